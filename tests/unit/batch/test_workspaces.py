"""Workspaces of a batch: whole copies that share nothing with where they came from."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from agent_host.batch import Source
from agent_host.batch import workspaces as module
from agent_host.batch.workspaces import Workspaces, WorkspaceUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.batch import Kind

KEY = "0123456789abcdef"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")


def git(folder: Path | str, *words: str) -> str:
    who = ("-c", "user.name=N", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With a commit on a branch, a staged file, a changed one, a new one, a stash and a hook."""
    folder = tmp_path / "source"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    (folder / "kept").write_text("kept\n")
    (folder / "changed").write_text("before\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    git(folder, "branch", "other")
    (folder / "kept").write_text("stashed\n")
    git(folder, "stash")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    git(folder, "config", "alias.evil", "!touch ran")
    (folder / "changed").write_text("after\n")
    (folder / "staged").write_text("staged\n")
    git(folder, "add", "staged")
    (folder / "new").write_text("new\n")
    (folder / "link").symlink_to("kept")
    return folder


def made(tmp_path: Path, kind: Kind, place: Path | str, revision: str = "") -> Path:
    spaces = Workspaces(str(tmp_path / "out"))
    path = spaces.make(KEY, Source(kind, os.fspath(place), revision))
    assert sorted(one for one in os.listdir(tmp_path / "out") if not one.startswith("git-")) == [KEY]
    return tmp_path / "out" / os.path.basename(path)


def test_a_directory_is_copied_as_it_stands_with_a_repository_of_its_own(tmp_path: Path, repository: Path) -> None:
    before = git(repository, "stash", "list")
    copy = made(tmp_path, "directory", repository)
    assert git(copy, "status", "--porcelain", "--branch") == git(repository, "status", "--porcelain", "--branch")
    assert git(copy, "log", "--format=%s", "--all") == "first\n"
    assert (copy / "link").readlink() == (repository / "link").readlink()
    assert git(copy, "branch", "--format=%(refname:short)") == "other\ntrunk\n"
    assert not (copy / ".git" / "hooks" / "post-checkout").exists()
    assert "evil" not in (copy / ".git" / "config").read_text()
    git(copy, "add", ".")
    git(copy, "commit", "--quiet", "--message=second")
    git(copy, "checkout", "--quiet", "-b", "mine")
    (copy / "kept").write_text("mine\n")
    git(copy, "stash")
    assert git(repository, "stash", "list") == before
    assert git(repository, "branch", "--format=%(refname:short)") == "other\ntrunk\n"
    assert git(repository, "log", "--format=%s") == "first\n"
    assert not (copy / "ran").exists()


def test_a_linked_working_tree_is_copied_with_its_own_head(tmp_path: Path, repository: Path) -> None:
    linked = tmp_path / "linked"
    (repository / ".git" / "hooks" / "post-checkout").unlink()
    git(repository, "worktree", "add", "--quiet", str(linked), "other")
    copy = made(tmp_path, "directory", linked)
    assert git(copy, "rev-parse", "--abbrev-ref", "HEAD").strip() == "other"
    assert git(copy, "status", "--porcelain") == ""
    git(copy, "commit", "--quiet", "--allow-empty", "--message=mine")
    assert git(linked, "log", "--format=%s") == "first\n"


def test_a_fetch_that_was_killed_is_made_again(tmp_path: Path, repository: Path) -> None:
    url = str(repository)
    store = tmp_path / "out" / f"git-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    (store.with_name(f"{store.name}.new") / "objects").mkdir(parents=True)  # in its first command
    copy = made(tmp_path, "git", url, "trunk")
    assert (copy / "kept").read_text() == "kept\n"
    (repository / ".git" / "hooks" / "post-checkout").unlink()
    git(repository, "commit", "--quiet", "--allow-empty", "--message=second")
    (store / "refs" / "heads" / "trunk.lock").touch()  # in a later one
    copy = made(tmp_path, "git", url, git(repository, "rev-parse", "HEAD").strip())
    assert git(copy, "log", "-1", "--format=%s") == "second\n"


@pytest.mark.parametrize("is_link", [False, pytest.param(True, marks=POSIX)])
def test_a_working_tree_inside_of_a_directory_does_not_lead_to_its_repository(
    tmp_path: Path, repository: Path, *, is_link: bool
) -> None:
    (repository / ".git" / "hooks" / "post-checkout").unlink()
    inside = repository / "trees" / "inner"
    git(repository, "worktree", "add", "--quiet", str(inside), "other")
    if is_link:
        (inside / ".git").unlink()
        (inside / ".git").symlink_to(repository / ".git")
    before = git(repository, "for-each-ref")
    copy = made(tmp_path, "directory", repository)
    assert (copy / "trees" / "inner" / "kept").read_text() == "kept\n"
    git(copy / "trees" / "inner", "branch", "mine")
    assert git(copy, "branch", "--list", "--format=%(refname:short)", "mine") == "mine\n"
    assert git(repository, "for-each-ref") == before


@POSIX
def test_the_places_of_the_batch_are_in_no_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("out", "state/checkpoints", "kept/out"):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text("x")
    spaces = Workspaces(str(source / "out" / "workspaces"), left_out=(str(source / "out"), str(source / "state")))
    copy = spaces.make(KEY, Source("directory", str(source)))
    assert sorted(os.listdir(copy)) == ["kept"]
    assert os.path.exists(os.path.join(copy, "kept", "out", "file")), "a name is no place"


def test_what_cannot_be_copied_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "pipe")
    (source / "file").write_text("x")
    assert os.listdir(made(tmp_path, "directory", source)) == ["file"]


def test_a_git_url_is_fetched_once_and_never_moves_its_source(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    spaces, fetches = Workspaces(str(tmp_path / "out")), list[str]()
    fetch = module._fetch

    def noted(source: Source, store: str) -> None:
        fetches.append(store)
        fetch(source, store)

    monkeypatch.setattr(module, "_fetch", noted)
    for key in ("a", "b"):
        copy = spaces.make(key, Source("git", str(repository), "trunk"))
        assert git(copy, "rev-parse", "HEAD").strip() == commit
        assert sorted(os.listdir(copy)) == [".git", "changed", "kept"]
    by_commit = spaces.make("c", Source("git", str(repository), commit[:12]))
    assert git(by_commit, "rev-parse", "HEAD").strip() == commit
    assert len(fetches) == 2
    (tmp_path / "out" / "a" / "kept").write_text("mine\n")
    git(tmp_path / "out" / "a", "commit", "--quiet", "--all", "--message=mine")
    assert git(repository, "log", "--all", "--format=%s", "trunk", "other").count("mine") == 0


def test_filters_hooks_and_the_machines_configuration_run_nothing(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap, marker = tmp_path / "gitconfig", tmp_path / "ran"
    trap.write_text(f'[filter "x"]\n\tsmudge = touch {marker}\n[core]\n\thooksPath = {repository}/.git/hooks\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(trap))
    (repository / ".gitattributes").write_text("* filter=x\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "--quiet", "--message=filtered")
    copy = made(tmp_path, "git", repository, "trunk")
    assert (copy / ".gitattributes").exists()
    assert not marker.exists()
    assert not (copy / "ran").exists()


@pytest.mark.parametrize(
    ("place", "revision", "said"),
    [
        ("{repository}", "nothing", "nothing"),
        ("{repository}/none", "trunk", "none"),
        ("https://127.0.0.1:1/a.git", "main", "127.0.0.1"),
        ("ext::sh -c 'touch {marker}'", "main", "ext"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(
    tmp_path: Path, repository: Path, place: str, revision: str, said: str
) -> None:
    marker = tmp_path / "marker"
    place = place.format(repository=repository, marker=marker)
    with pytest.raises(WorkspaceUnavailable, match=said):
        made(tmp_path, "git", place, revision)
    assert not (tmp_path / "out" / KEY).exists()
    assert not marker.exists()


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    packed = archive_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("folder/file"), b"text"))
    assert (made(tmp_path, "archive", packed) / "folder" / "file").read_bytes() == b"text"


def hostile(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize(
    "member",
    [
        hostile("../out-of-it"),
        hostile("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        hostile("link", type=tarfile.LNKTYPE, linkname="../../other"),
        hostile("device", type=tarfile.CHRTYPE),
    ],
)
def test_an_archive_that_leaves_its_directory_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    packed = archive_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("first"), b"x"), (member, b""))
    with pytest.raises(WorkspaceUnavailable):
        made(tmp_path, "archive", packed)
    assert not (tmp_path / "out" / KEY).exists()
    assert not (tmp_path / "out-of-it").exists()


def test_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    packed = archive_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("large"), bytes(1001)))
    with pytest.raises(WorkspaceUnavailable, match="more than"):
        made(tmp_path, "archive", packed)
    (tmp_path / "torn.tar.gz").write_bytes(packed.read_bytes()[:40])
    with pytest.raises(WorkspaceUnavailable):
        made(tmp_path, "archive", tmp_path / "torn.tar.gz")


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", "zst-named-gz"])
def test_an_archive_that_is_damaged_in_its_middle_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, f"w:{kind}" if kind in ("gz", "xz", "bz2") else "w") as archive:  # type: ignore[call-overload]  # a mode of a table
        info = tarfile.TarInfo("file")
        info.size = 200_000
        archive.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    path.write_bytes(data if kind in ("gz", "xz", "bz2") else b"\x28\xb5\x2f\xfd" + data[:5000])
    with pytest.raises(WorkspaceUnavailable, match=re.escape(str(path))):
        made(tmp_path, "archive", path)
    assert not (tmp_path / "out" / KEY).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX modes")
def test_a_workspace_is_removed_whatever_its_modes(tmp_path: Path) -> None:
    spaces = Workspaces(str(tmp_path / "out"))
    source = tmp_path / "source"
    (source / "closed" / "inner").mkdir(parents=True)
    path = spaces.make(KEY, Source("directory", str(source)))
    os.chmod(os.path.join(path, "closed"), 0o000)
    spaces.remove(KEY)
    spaces.remove(KEY)
    assert os.listdir(tmp_path / "out") == []
