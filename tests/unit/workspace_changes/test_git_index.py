"""The index as real git writes it, and as nobody does."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.workspace_changes import NAME_BYTES, Unreadable, blob_name, parse_index
from tests.support.git import commit_all, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

FILES = {"a.txt": b"a\n", "deep/er/b.txt": b"bb", "deep/er/bc.txt": b"", "é 'odd'": b"odd", "n" * 200 + ".txt": b"long"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return filled(tmp_path, "sha1")


def filled(folder: Path, hash_name: str) -> Path:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git(folder, "init", "-q", f"--object-format={hash_name}")
    commit_all(folder)
    return folder


def index_of(project: Path) -> bytes:
    return (project / ".git" / "index").read_bytes()


def sealed(data: bytes) -> bytes:
    """`data`, which has another checksum at its end, with its own."""
    return data[:-20] + hashlib.sha1(data[:-20], usedforsecurity=False).digest()


@pytest.mark.parametrize(("hash_name", "name_bytes"), [("sha1", 20), ("sha256", 32)])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_each_version_is_read(tmp_path: Path, version: int, hash_name: str, name_bytes: int) -> None:
    project = filled(tmp_path, hash_name)
    if version == 3:  # git writes it where an entry needs more flags
        (project / "later.txt").write_text("later")
        git(project, "add", "-N", "later.txt")
    git(project, "update-index", "--index-version", str(version))
    data = index_of(project)
    assert data[7] == version
    found = parse_index(data, name_bytes)
    assert found.keys() == FILES.keys()
    for name, content in FILES.items():
        there = os.lstat(project / name)
        assert (found[name].blob, found[name].size) == (blob_name(content, name_bytes), len(content))
        assert found[name].seconds * 10**9 + found[name].nanoseconds == there.st_mtime_ns
        assert found[name].mode == 0o100644
    with pytest.raises(Unreadable):
        parse_index(data, 52 - name_bytes)


def test_what_is_in_conflict_or_not_checked_out_is_left_out(project: Path) -> None:
    blob = git(project, "rev-parse", ":a.txt").strip()
    lines = f"0 {'0' * 40}\ta.txt\n" + "".join(f"100644 {blob} {stage}\ta.txt\n" for stage in (1, 2, 3))
    git(project, "update-index", "--index-info", feed=lines.encode())
    git(project, "update-index", "--skip-worktree", "deep/er/b.txt")
    git(project, "update-index", "--add", "--cacheinfo", f"160000,{blob},module")
    assert parse_index(index_of(project)).keys() == FILES.keys() - {"a.txt", "deep/er/b.txt"}


def test_a_split_index_is_refused(project: Path) -> None:
    git(project, "update-index", "--split-index")
    with pytest.raises(Unreadable, match="extension"):
        parse_index(index_of(project))


@pytest.mark.parametrize("name", [b"../x.txt", b".git/hook", b"a//x.txt", b"/abs.txt", b".GIT/conf", b"a/./b.tx"])
def test_names_that_lead_elsewhere_are_left_out(tmp_path: Path, name: bytes) -> None:
    plain = b"x" * len(name)
    (tmp_path / plain.decode()).write_text("x")
    commit_all(tmp_path)
    assert parse_index(sealed(index_of(tmp_path).replace(plain, name))) == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda data: data[:20], "short"),
        (lambda data: b"DIRX" + data[4:], "version"),
        (lambda data: sealed(data[:7] + b"\5" + data[8:]), "version"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        (lambda data: sealed(data[:8] + b"\0\1\0\0" + data[12:]), "more than"),
        (lambda data: sealed(data[:11] + b"\xff" + data[12:]), "ends|extension"),
        (lambda data: sealed(data[:7] + b"\4" + data[8:11] + b"\1" + bytes(60) + b"\0\1" + b"\0" + b"n" * 30), "entry"),
        (lambda data: sealed(data[:-20] + b"link" + bytes(4) + bytes(20)), "extension"),
        (lambda data: sealed(data[:-20] + b"TREE\0\0\1\0" + bytes(20)), "extension"),
    ],
)
def test_what_is_no_whole_index_is_refused(project: Path, changed: object, why: str) -> None:
    assert callable(changed)
    with pytest.raises(Unreadable, match=why):
        parse_index(changed(index_of(project)))


def test_names_that_repeat_each_other_are_bounded() -> None:
    entry = bytes(60) + b"\x0f\xff"
    first, others = entry + b"\0" + b"n" * 40_000 + b"\0", (entry + b"\0" + b"n\0") * 1000
    with pytest.raises(Unreadable, match="names"):
        parse_index(sealed(b"DIRC" + (4).to_bytes(4, "big") + (1001).to_bytes(4, "big") + first + others + bytes(20)))


def test_an_index_without_a_checksum_is_read(project: Path) -> None:
    assert parse_index(index_of(project)[:-20] + bytes(20)).keys() == FILES.keys()


@given(st.integers(2, 4), st.integers(0, 3), st.binary(max_size=300), st.sampled_from(NAME_BYTES))
def test_any_bytes_are_read_or_refused(version: int, count: int, rest: bytes, name_bytes: int) -> None:
    head = b"DIRC" + version.to_bytes(4, "big") + count.to_bytes(4, "big")
    try:
        found = parse_index(head + rest + bytes(name_bytes), name_bytes)
    except Unreadable:
        return
    assert len(found) <= count
