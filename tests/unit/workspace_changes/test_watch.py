"""What changes between two looks at a workspace, with a real repository in it and without."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from agent_host.workspace_changes import watch
from agent_host.workspace_changes import watch as walk
from agent_host.workspace_changes.watch import Changes, Watch
from state.blobs import OVERWRITTEN, UNAVAILABLE
from tests.support.git import commit_all, git

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
OLD = 1_600_000_000


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose index is younger than its files, as it is after a while."""
    return repository(tmp_path / "project")


def repository(folder: Path, *how: str) -> Path:
    write(folder, a_txt="a\n", b_txt="b\n", sub__c_txt="c\n")
    for path in folder.rglob("*.txt"):
        os.utime(path, (OLD, OLD))
    git(folder, "init", "-q", *how)
    commit_all(folder)
    return folder


def allowed(_: str) -> bool:
    return True


def seen(folder: Path, work: Callable[[], object], may_keep: Callable[[str], bool] = allowed) -> Changes:
    one = Watch(os.path.realpath(folder))
    window = one.begin()
    work()
    changes = one.end(window, may_keep)
    root = os.path.realpath(folder) + os.sep
    assert all(path.startswith(root) for path in changes.files)
    return changes._replace(files={path[len(root) :]: held for path, held in changes.files.items()})


def change_all(folder: Path) -> None:
    write(folder, a_txt="changed\n", new_txt="new\n")
    (folder / "b.txt").unlink()
    os.replace(folder / "sub" / "c.txt", folder / "sub" / "moved.txt")


def test_git_has_what_a_command_overwrote(project: Path) -> None:
    changes = seen(project, lambda: change_all(project))
    moved = {"sub/c.txt": b"c\n", "sub/moved.txt": None}
    assert changes == Changes({"a.txt": b"a\n", "b.txt": b"b\n", "new.txt": None, **moved})


def test_git_has_what_a_command_overwrote_that_was_written_again_before(project: Path) -> None:
    one, path = Watch(str(project)), project / "a.txt"
    window = one.begin()
    path.write_bytes(path.read_bytes())
    assert one.end(window, allowed) == Changes({})
    window = one.begin()
    path.write_text("changed\n")
    assert one.end(window, allowed) == Changes({str(path): b"a\n"})
    window = one.begin()  # which finds what is none of git's
    path.write_text("b\n")
    assert one.end(window, allowed) == Changes({str(path): OVERWRITTEN})


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_link_that_leads_elsewhere_has_its_mode(project: Path) -> None:
    path = project / "link"
    path.symlink_to("a.txt")
    commit_all(project)

    def work() -> None:
        path.unlink()
        path.symlink_to("b.txt")

    assert seen(project, work) == Changes({"link": b"a.txt"}, None, {str(path): "120000"})


def test_packed_content_is_found_as_well(project: Path) -> None:
    git(project, "gc", "-q")
    assert seen(project, lambda: change_all(project)).files["a.txt"] == b"a\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_repository_that_names_objects_by_sha256_is_read_as_well(tmp_path: Path, packed: bool) -> None:
    project = repository(tmp_path / "project", "--object-format=sha256")
    if packed:
        git(project, "gc", "-q")
    write(project, fresh_txt="fresh\n")
    git(project, "add", "-A")  # as old as its index: it is read to be sure

    def work() -> None:
        change_all(project)
        write(project, fresh_txt="later\n")

    moved = {"sub/c.txt": b"c\n", "sub/moved.txt": None}
    assert seen(project, work) == Changes(
        {"a.txt": b"a\n", "b.txt": b"b\n", "fresh.txt": b"fresh\n", "new.txt": None, **moved}
    )


@pytest.mark.parametrize("value", ["blake3", "", "sha1"])
def test_what_the_configuration_says_wrongly_of_an_index_is_said(tmp_path: Path, value: str) -> None:
    project = repository(tmp_path / "project", "--object-format=sha256")
    with (project / ".git" / "config").open("a") as file:
        file.write(f"[extensions]\nobjectFormat = {value}\n")
    changes = seen(project, lambda: change_all(project))
    assert changes.files["a.txt"] == OVERWRITTEN
    assert changes.unseen is not None
    assert changes.unseen.startswith("git's index is not used: ")


def test_a_command_that_writes_the_index_changes_nothing_of_what_was_before(project: Path) -> None:
    def work() -> None:
        change_all(project)
        git(project, "add", "-A")
        git(project, "commit", "-q", "-m", "more")
        git(project, "gc", "-q")

    assert seen(project, work).files["a.txt"] == b"a\n"


def test_without_git_new_files_are_known_and_contents_are_not(project: Path) -> None:
    shutil.rmtree(project / ".git")
    changes = seen(project, lambda: change_all(project))
    gone = dict.fromkeys(("a.txt", "b.txt", "sub/c.txt"), OVERWRITTEN)
    assert changes == Changes({**gone, "new.txt": None, "sub/moved.txt": None})


def test_what_git_does_not_have_was_not_kept(project: Path) -> None:
    write(project, a_txt="not added\n", untracked_txt="x\n")
    changes = seen(project, lambda: write(project, a_txt="changed\n", untracked_txt="y\n"))
    assert changes.files == {"a.txt": OVERWRITTEN, "untracked.txt": OVERWRITTEN}


def test_a_file_written_with_its_index_is_read_to_be_sure(project: Path) -> None:
    write(project, fresh_txt="fresh\n", odd_txt="odd1\n")
    git(project, "add", "-A")
    index = project / ".git" / "index"
    entry = os.stat(project / "odd.txt").st_mtime_ns
    (project / "odd.txt").write_text("odd2\n")  # of the same size and time as the index has
    os.utime(project / "odd.txt", ns=(entry, entry))
    os.utime(index, ns=(entry, entry))
    os.utime(project / "fresh.txt", ns=(os.stat(project / "fresh.txt").st_mtime_ns,) * 2)
    changes = seen(project, lambda: write(project, fresh_txt="x\n", odd_txt="y\n"))
    assert changes.files["odd.txt"] == OVERWRITTEN


def test_what_was_touched_has_not_changed(project: Path) -> None:
    def work() -> None:
        os.utime(project / "a.txt")
        (project / "b.txt").write_text("b\n")
        (project / "sub" / "c.txt").chmod(0o640)

    assert seen(project, work) == Changes({})


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_file_that_becomes_a_program_has_changed(project: Path) -> None:
    (project / "untracked.sh").write_text("#!/bin/sh\n")

    def work() -> None:
        for name in ("a.txt", "untracked.sh"):
            (project / name).chmod(0o755)

    changes = seen(project, work)
    assert changes.files == {"a.txt": (project / "a.txt").read_bytes(), "untracked.sh": b"#!/bin/sh\n"}
    assert set(changes.modes.values()) == {"100644"}


def test_a_write_that_hides_behind_the_old_time_is_seen(project: Path) -> None:
    def work() -> None:
        with (project / "a.txt").open("r+") as file:
            file.write("x")
        os.utime(project / "a.txt", (OLD, OLD))

    if sys.platform != "win32":
        assert seen(project, work).files == {"a.txt": b"a\n"}


def test_other_line_ends_than_gits_were_not_kept(project: Path) -> None:
    (project / ".gitattributes").write_text("a.txt text eol=crlf\n")
    git(project, "add", "-A")
    (project / "a.txt").unlink()
    git(project, "checkout", "-q", "--", "a.txt")
    assert (project / "a.txt").read_bytes() == b"a\r\n"
    os.utime(project / "a.txt", (OLD, OLD))
    git(project, "update-index", "-q", "--refresh")
    assert seen(project, lambda: write(project, a_txt="x")).files == {"a.txt": OVERWRITTEN}


def test_a_file_that_may_not_be_read_is_named_and_not_kept(project: Path) -> None:
    changes = seen(project, lambda: change_all(project), lambda path: not path.endswith(("a.txt", "new.txt")))
    assert (changes.files["a.txt"], changes.files["new.txt"]) == (UNAVAILABLE, UNAVAILABLE)
    assert changes.files["b.txt"] == b"b\n"


def make(folder: Path, *names: str, content: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_packages_caches_and_what_gitignore_names_are_left_out(project: Path) -> None:
    (project / ".gitignore").write_text("# made\n/target/\nbuild\n*.log\ndeep/*.x\n")
    make(project, "vendored/node_modules/tracked")
    git(project, "add", "-f", "-A")

    def work() -> None:
        make(project, "node_modules/x.js", "sub/__pycache__/y", "target/z", "sub/build/z", "sub/run.log")
        make(project, "sub/target/z", "deep/a.x")
        make(project, "vendored/node_modules/tracked", content="changed")
        (project / ".gitignore").unlink()  # what counts is what it said before

    found = {".gitignore", "sub/target/z", "deep/a.x", "vendored/node_modules/tracked"}
    assert set(seen(project, work).files) == found


def test_what_gitignore_takes_back_is_looked_at(project: Path) -> None:
    (project / ".gitignore").write_text("*.log\nbuild\nout\n!keep.log\n!build/\n")
    work = seen(project, lambda: make(project, "a.log", "keep.log", "build/x", "out/x"))
    assert set(work.files) == {"a.log", "keep.log", "build/x"}


def test_a_folder_of_a_repository_is_a_workspace(project: Path) -> None:
    assert seen(project / "sub", lambda: write(project, sub__c_txt="x", a_txt="x")).files == {"c.txt": b"c\n"}


def test_another_work_tree_of_a_repository_is_one(project: Path) -> None:
    tree = project.parent / "tree"
    git(project, "worktree", "add", "-q", str(tree))
    os.utime(tree / "a.txt", (OLD, OLD))
    git(tree, "update-index", "-q", "--refresh")
    assert seen(tree, lambda: write(tree, a_txt="x")).files == {"a.txt": b"a\n"}


def test_a_repository_that_does_not_know_the_workspace_is_not_read(project: Path) -> None:
    stranger = project.parent / "stranger"
    shutil.copytree(project, stranger, ignore=shutil.ignore_patterns(".git"), copy_function=shutil.copy2)
    (stranger / ".git").write_text(f"gitdir: {project / '.git'}\n")
    assert seen(stranger, lambda: write(stranger, a_txt="x")).files == {"a.txt": OVERWRITTEN}
    (stranger / ".git").unlink()
    (stranger / ".git").symlink_to(project / ".git")
    assert seen(stranger, lambda: write(stranger, a_txt="x2")).files == {"a.txt": OVERWRITTEN}


def test_a_damaged_index_is_said(project: Path) -> None:
    with (project / ".git" / "index").open("r+b") as file:
        file.write(b"XXXX")
    changes = seen(project, lambda: change_all(project))
    assert changes.files["a.txt"] == OVERWRITTEN
    assert changes.unseen == "git's index is not used: it is of no known version"


def test_an_index_of_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert seen(tmp_path, lambda: write(tmp_path, a_txt="x")) == Changes({"a.txt": None})


def test_links_are_named_and_not_followed(project: Path) -> None:
    outside = project.parent / "outside"
    write(outside, secret_txt="secret")
    (project / "into").symlink_to(outside)

    def work() -> None:
        write(outside, secret_txt="changed", more_txt="more")
        (project / "link").symlink_to(outside / "secret.txt")
        shutil.rmtree(project / "sub")
        (project / "sub").symlink_to(outside)
        write(outside, c_txt="here as well")

    assert seen(project, work).files == {"link": None, "sub": None, "sub/c.txt": b"c\n"}


def test_a_tracked_file_behind_a_link_is_not_looked_at(project: Path) -> None:
    outside = project.parent / "outside"
    write(outside, c_txt="c\n")
    shutil.rmtree(project / "sub")
    (project / "sub").symlink_to(outside)
    assert seen(project, lambda: write(outside, c_txt="changed")).files == {}


PLACES = (
    *(".gitignore", ".git/index", ".git/config", ".git/HEAD", "a.txt", "sub/c.txt", ".git/objects/pack/pack-1.idx"),
    *(".git/objects", ".git", "sub"),
)


@pytest.mark.many_rows(16)
@pytest.mark.many_rows(25)
@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link", "link to itself", "large", "device", "folder"])
def test_what_a_command_puts_in_the_place_of_a_file_leads_nowhere(project: Path, place: str, kind: str) -> None:
    outside = project.parent / "outside"
    write(outside, secret_txt="secret", c_txt="secret", index="secret")

    def work() -> None:
        path = project / place
        if path.is_dir() and not path.is_symlink():
            path.rename(project / "away")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "large":
            path.touch()
            os.truncate(path, 3 << 40)
        elif kind == "folder":
            path.mkdir()
        else:
            targets = {"link": str(outside), "device": "/dev/zero", "link to itself": str(path)}
            path.symlink_to(targets.get(kind, "none"))

    for _ in range(2):  # both as what a command finds and as what it leaves
        changes = seen(project, work)
        assert not any("secret" in path for path in changes.files)
        assert b"secret" not in [held for held in changes.files.values() if isinstance(held, bytes)]
        if (project / "away").exists() and not (project / place).is_symlink():
            shutil.rmtree(project / "away")


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_names_of_a_folder_that_a_link_leads_to_meanwhile_are_not_told(project: Path) -> None:
    outside, other = project.parent / "outside", project / "other"
    write(outside, secret_txt="secret")
    going = threading.Event()

    def exchange() -> None:
        while not going.is_set():
            with contextlib.suppress(OSError):
                (project / "sub").rename(other)
                (project / "sub").symlink_to(outside)
                (project / "sub").unlink()
                other.rename(project / "sub")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(150):
            assert "sub/secret.txt" not in seen(project, list).files
    finally:
        going.set()
        thread.join()


def test_the_walk_ends_at_its_limit_and_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, **{f"deep__deeper__f{number}": "x" for number in range(30)})
    monkeypatch.setattr(walk, "MAX_ENTRIES", 10)

    def work() -> None:
        write(project, sub__c_txt="x", first_txt="new", **{f"deep__deeper__f{number}": "y" for number in range(30)})

    changes = seen(project, work)
    assert changes.unseen is not None
    assert "not all were looked at" in changes.unseen
    assert changes.files["sub/c.txt"] == b"c\n"  # tracked
    assert changes.files["first.txt"] == OVERWRITTEN  # it may have been there
    assert "a.txt" not in changes.files


def test_more_changes_than_are_reported_are_counted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_CHANGES", 2)
    monkeypatch.setattr(watch, "MAX_KEPT", 1)
    assert seen(project, lambda: change_all(project)) == Changes(
        {"a.txt": b"a\n", "b.txt": OVERWRITTEN}, "3 more file(s) changed"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
def test_names_that_are_no_text_are_counted(project: Path) -> None:
    changes = seen(project, lambda: open(os.fsencode(project) + b"/\xff", "wb").close())
    assert changes == Changes({}, "1 file(s) changed whose names are not UTF-8")


def test_what_changes_while_two_commands_run_is_one_of_each(project: Path) -> None:
    one = Watch(os.path.realpath(project))
    first = one.begin()
    write(project, a_txt="first\n")
    second = one.begin()
    write(project, a_txt="second\n", b_txt="second\n")
    (path_a, path_b) = (os.path.join(os.path.realpath(project), name) for name in ("a.txt", "b.txt"))
    assert one.end(second, allowed).files == {path_a: b"a\n", path_b: b"b\n"}
    assert one.end(first, allowed).files == {path_a: b"a\n", path_b: b"b\n"}


def test_folders_of_the_host_are_left_out(project: Path) -> None:
    root = os.path.realpath(project)
    one = Watch(root, [os.path.join(root, "state")])
    window = one.begin()
    write(project, state__journal="x", x_txt="x")
    assert list(one.end(window, allowed).files) == [os.path.join(root, "x.txt")]


def planted(project: Path, marker: Path) -> dict[str, list[tuple[str, str]]]:
    program = project.parent / "program.sh"
    program.write_text(f"#!/bin/sh\necho started >> {marker}\ncat\n")
    program.chmod(0o755)
    at = str(program)
    (project / ".gitattributes").write_text("*.txt filter=evil diff=evil merge=evil\n")
    for hook in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(program, project / ".git" / "hooks" / hook)
    return {
        "fsmonitor": [("core.fsmonitor", at)],
        "filters": [(f"filter.evil.{part}", at) for part in ("clean", "smudge", "process")],
        "textconv": [("diff.evil.textconv", at), ("diff.evil.command", at), ("diff.external", at)],
        "hooks": [("core.hooksPath", str(project / ".git" / "hooks"))],
        "pager": [("core.pager", at), ("pager.diff", at), ("core.editor", at), ("core.sshCommand", at)],
    }


@pytest.mark.skipif(sys.platform == "win32", reason="programs are shell scripts")
@pytest.mark.parametrize("kind", ["fsmonitor", "filters", "textconv", "hooks", "pager"])
def test_the_configuration_of_a_workspace_starts_nothing(project: Path, kind: str) -> None:
    marker = project.parent / "started"
    for name, value in planted(project, marker)[kind]:
        git(project, "config", name, value)
    changes = seen(project, lambda: change_all(project))
    assert changes.files["a.txt"] == b"a\n"
    assert not marker.exists()
    if kind in ("fsmonitor", "filters"):  # git itself is taken in, so what was planted works
        git(project, "add", "-A")
        assert marker.exists()
