"""Blobs as real git stores them, and damaged ones."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.workspace_changes import MAX_BLOB_BYTES, Objects, ObjectUnavailable, apply_delta, blob_name
from tests.support.git import commit_all, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

RANDOM = random.Random(1)
LINES = [b"%032x\n" % RANDOM.getrandbits(128) for _ in range(2000)]


def blobs_of(project: Path, *names: bytes) -> list[bytes | None]:
    with contextlib.closing(Objects(str(project / ".git" / "objects"))) as store:
        return [store.blob(name) for name in names]


def blob_of(project: Path, name: bytes) -> bytes | None:
    return blobs_of(project, name)[0]


def test_loose_ones_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0binary\n" * 1000)
    (tmp_path / "empty").write_bytes(b"")
    commit_all(tmp_path)
    a_commit = bytes.fromhex(git(tmp_path, "rev-parse", "HEAD").strip())
    names = [*map(blob_name, (b"\0binary\n" * 1000, b"", b"never")), a_commit]
    assert blobs_of(tmp_path, *names) == [b"\0binary\n" * 1000, b"", None, None]


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("offsets", ["true", "false"])
def test_packed_ones_are_read_with_their_deltas(tmp_path: Path, offsets: str) -> None:
    lines, versions = list(LINES), []
    for number in range(30):
        lines[number * 60 : number * 60 + 20] = [b"version %d\n" % number]
        versions.append(b"".join(lines))
    git(tmp_path, "init", "-q")
    for content in versions:
        (tmp_path / "f").write_bytes(content)
        commit_all(tmp_path)
    git(tmp_path, "-c", f"repack.useDeltaBaseOffset={offsets}", "repack", "-q", "-a", "-d", "-f", "--depth=40")
    assert not list((tmp_path / ".git" / "objects").glob("[0-9a-f][0-9a-f]"))
    packed = git(tmp_path, "verify-pack", "-v", *(str(one) for one in tmp_path.glob(".git/objects/pack/*.idx")))
    assert "chain length = 2" in packed
    assert blobs_of(tmp_path, *map(blob_name, [*versions, b"never"])) == [*versions, None]


def test_long_offsets_are_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content\n" * 99)
    commit_all(tmp_path)
    git(tmp_path, "-c", "pack.indexVersion=2", "gc", "-q")
    (pack,) = (tmp_path / ".git" / "objects" / "pack").glob("*.pack")
    pack.with_suffix(".idx").unlink()
    git(tmp_path, "index-pack", "--index-version=2,0x1", str(pack))
    assert blob_of(tmp_path, blob_name(b"content\n" * 99)) == b"content\n" * 99


def put_loose(project: Path, name: bytes, data: bytes) -> None:
    path = project / ".git" / "objects" / name.hex()[:2] / name.hex()[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"blob 7\0content")[:-5],
        zlib.compress(b"blob 8\0content"),
        zlib.compress(b"tree 7\0content"),
        zlib.compress(b"blob 5\0other"),
        zlib.compress(b"blob 33554432\0" + bytes(32 * 1024 * 1024)),
    ],
    ids=["empty", "no zlib", "cut", "another size", "a tree", "another content", "too large"],
)
def test_a_damaged_one_is_not_there(tmp_path: Path, data: bytes) -> None:
    commit_all(tmp_path)
    put_loose(tmp_path, blob_name(b"content"), data)
    assert blob_of(tmp_path, blob_name(b"content")) is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    other, project = tmp_path / "other", tmp_path / "project"
    for folder in (other, project):
        folder.mkdir()
        commit_all(folder)
    objects = project / ".git" / "objects"
    # Commits have other names each second, so a folder of this name may be there already.
    secret = next(one for one in map(b"%d".__mod__, range(300)) if not (objects / blob_name(one).hex()[:2]).exists())
    put_loose(other, blob_name(secret), zlib.compress(b"blob %d\0%b" % (len(secret), secret)))
    folder_name = blob_name(secret).hex()[:2]
    assert blob_of(other, blob_name(secret)) == secret
    (objects / folder_name).symlink_to(other / ".git" / "objects" / folder_name)
    assert blob_of(project, blob_name(secret)) is None
    (objects / "info" / "alternates").write_text(str(other / ".git" / "objects"))
    assert blob_of(project, blob_name(secret)) is None


def packed(kind: int, size: int, rest: bytes) -> bytes:
    head = bytearray([kind << 4 | size & 15])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + rest


def put_pack(project: Path, objects: dict[bytes, bytes]) -> None:
    """A pack of these entries by their names, with an index that is not checked here."""
    folder = project / ".git" / "objects" / "pack"
    names = sorted(objects)
    pack, offsets = bytearray(b"PACK" + bytes(8)), []
    for name in names:
        offsets.append(len(pack))
        pack += objects[name]
    fanout = b"".join(sum(one[0] <= first for one in names).to_bytes(4, "big") for first in range(256))
    table = b"".join(at.to_bytes(4, "big") for at in offsets)
    index = b"\xfftOc\0\0\0\2" + fanout + b"".join(names) + bytes(4 * len(names)) + table
    (folder / "pack-x.pack").write_bytes(pack)
    (folder / "pack-x.idx").write_bytes(index)


def test_deltas_that_go_in_a_circle_end(tmp_path: Path) -> None:
    commit_all(tmp_path)
    one, other = b"\1" * 20, b"\2" * 20
    delta = zlib.compress(b"\1\1\x90\1")
    put_pack(tmp_path, {one: packed(7, 4, other + delta), other: packed(7, 4, one + delta)})
    assert blob_of(tmp_path, one) is None


@given(st.binary(max_size=200))
def test_any_entry_of_a_pack_is_read_or_not_there(tmp_path_factory: pytest.TempPathFactory, entry: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-entry"
    (folder / ".git" / "objects" / "pack").mkdir(parents=True, exist_ok=True)
    name = hashlib.sha1(b"any", usedforsecurity=False).digest()
    put_pack(folder, {name: entry})
    assert blob_of(folder, name) is None


PARTS = st.one_of(st.binary(min_size=1, max_size=127), st.tuples(st.integers(0, 50), st.integers(1, 50)))


@given(st.binary(max_size=50), st.lists(PARTS, max_size=5))
def test_a_delta_makes_what_its_parts_say(base: bytes, parts: list[bytes | tuple[int, int]]) -> None:
    delta, made = bytearray(), bytearray()
    for part in parts:
        if isinstance(part, bytes):
            delta += bytes([len(part)]) + part
            made += part
        elif part[0] + part[1] <= len(base):
            delta += bytes([0x80 | 1 | 0x10, part[0], part[1]])
            made += base[part[0] : part[0] + part[1]]
    sizes = bytes([len(base)]) + bytes([len(made) & 0x7F | 0x80, len(made) >> 7])
    assert apply_delta(base, sizes + bytes(delta)) == made


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_any_delta_ends(base: bytes, delta: bytes) -> None:
    try:
        made = apply_delta(base, delta)
    except (IndexError, ObjectUnavailable):
        return
    assert len(made) <= MAX_BLOB_BYTES
