"""The session's patch: git applies it to the first versions and gets the present ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.session.patches import SessionChanges, render_text
from agent_host.session.tasks import FirstVersions
from agent_host.text_diff import find_renames
from state.blobs import PLAIN_FILE, PROGRAM, UNAVAILABLE, add_mode, sha256_hex, unavailable_at

if TYPE_CHECKING:
    from pathlib import Path


class Project:
    """A folder with first versions kept as a session keeps them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.kept: dict[str, bytes] = {}
        self.baselines: dict[str, str | None] = {}

    def before(self, name: str, content: bytes | None) -> None:
        path = self.root / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if content is None:
            self.baselines[str(path)] = None
            return
        self.baselines[str(path)] = sha256_hex(content)
        self.kept[sha256_hex(content)] = content

    def patch(self) -> str:
        return render_text(SessionChanges(FirstVersions(self.baselines), self.kept.get, str(self.root)).preview())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


CHANGES: dict[str, tuple[bytes | None, bytes | None]] = {
    "changed.txt": (b"one\ntwo\nthree\n", b"one\n2\nthree\n"),
    "sub/added.txt": (None, b"new\nfile\n"),
    "deleted.txt": (b"gone\n", None),
    "no-newline.txt": (b"a\nb", b"a\nc"),
    "gets-newline.txt": (b"a\nb", b"a\nb\n"),
    "crlf.txt": (b"a\r\nb\r\n", b"a\r\nc\r\n"),
    "odd-breaks.txt": ("a\u2028b\x0cc\x85\n".encode(), "a\u2028b\x0cc\x85d\n".encode()),
    "unicode.txt": ("grün\n".encode(), "blau 漢字\n".encode()),
}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("name", CHANGES)
def test_git_applies_it(project: Project, tmp_path: Path, name: str) -> None:
    first, present = CHANGES[name]
    project.before(name, first)
    copy = tmp_path / "copy"
    shutil.copytree(project.root, copy)
    target = project.root / name
    if present is None:
        target.unlink()
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(present)
    patch = project.patch().encode()
    applied = subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, capture_output=True)
    assert applied.returncode == 0, (applied.stderr.decode(), patch.decode())
    assert (copy / name).read_bytes() == present if present is not None else not (copy / name).exists()


TEXT = b"".join(b"line %d\n" % number for number in range(20))
RENAMES: dict[str, tuple[bytes, bytes, list[str]]] = {
    "the same": (TEXT, TEXT, ["similarity index 100%"]),
    "one line differs": (TEXT, TEXT.replace(b"line 3\n", b"other\n"), ["-line 3", "+other"]),
    "binary": (b"\0\1", b"\0\1", ["similarity index 100%"]),
    "another file": (TEXT, b"entirely different\n" * 20, ["deleted file", "new file"]),
    "empty": (b"", b"", ["deleted file", "new file"]),
    "binary that differs": (b"\0" + TEXT, b"\0" + TEXT + b"x", ["GIT binary patch"]),
}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("case", RENAMES)
def test_git_applies_renames(project: Project, tmp_path: Path, case: str) -> None:
    first, present, said = RENAMES[case]
    project.before('old "name".txt', first)
    project.before("sub/new.txt", None)
    copy = tmp_path / "copy"
    shutil.copytree(project.root, copy)
    (project.root / 'old "name".txt').unlink()
    (project.root / "sub").mkdir()
    (project.root / "sub" / "new.txt").write_bytes(present)
    patches = SessionChanges(FirstVersions(project.baselines), project.kept.get, str(project.root)).preview()
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=copy, input="".join(patch.diff for patch in patches).encode(), capture_output=True
    )
    assert applied.returncode == 0, applied.stderr.decode()
    assert [str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()] == ["sub/new.txt"]
    assert (copy / "sub" / "new.txt").read_bytes() == present
    text = project.patch() + "".join(patch.diff for patch in patches)
    assert all(one in text for one in said), text
    old, new = (patch.to_wire() for patch in patches)
    assert (old["status"], new["status"]) == ("deleted", "added")
    renamed = "rename from" in text
    assert (old.get("renamedTo"), new.get("renamedFrom")) == (
        (new["filePath"], old["filePath"]) if renamed else (None, None)
    )
    assert renamed == (case in ("the same", "one line differs", "binary"))


CONTENTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c"]), max_size=5).map(b"".join)


@given(st.dictionaries(st.sampled_from("abc"), CONTENTS), st.dictionaries(st.sampled_from("xyz"), CONTENTS))
def test_each_file_is_in_one_rename(gone: dict[str, bytes], new: dict[str, bytes]) -> None:
    found = find_renames(gone, new)
    assert len({old for old, _ in found.values()}) == len(found)
    for path, (old, alike) in found.items():
        assert (gone[old] == new[path]) == (alike == 100)
        assert 50 <= alike <= 100
    equal = {content for content in new.values() if content and content in gone.values()}
    assert equal == {new[path] for path, (_, alike) in found.items() if alike == 100}


def test_nothing_changed_is_an_empty_patch(project: Project) -> None:
    project.before("same.txt", b"same\n")
    assert project.patch() == ""


def test_a_file_that_was_not_stored_is_as_it_was_only_in_the_same_state(project: Project) -> None:
    for name in ("alone", "replaced", "by-hand", "gone"):
        path = project.root / name
        path.write_text("one\n")
        project.baselines[str(path)] = unavailable_at(str(path))
    (project.root / "new").write_text("one\n")
    (project.root / "new").replace(project.root / "replaced")
    (project.root / "by-hand").write_text("two, three\n")
    (project.root / "gone").unlink()
    assert project.patch().splitlines() == [
        "# by-hand: changed; its first version was not kept",
        "# gone: deleted; its first version was not kept",
        "# replaced: changed; its first version was not kept",
    ]
    alone = str(project.root / "alone")
    tasks = tuple((name, {alone: version}) for name, version in (("a", project.baselines[alone]), ("b", UNAVAILABLE)))
    known = SessionChanges(FirstVersions(project.baselines, tasks), project.kept.get, str(project.root))
    assert [patch.file_path for patch in known.preview("a")] == [alone]
    assert SessionChanges(FirstVersions({}, (tasks[0], ("b", tasks[0][1]))), project.kept.get, "/").preview("a") == []


def test_what_cannot_be_shown_is_said(project: Project) -> None:
    project.before("binary.bin", b"\x00\x01")
    (project.root / "binary.bin").write_bytes(b"\x00\x02")
    for name in ("huge.txt", "huge-and-gone.txt"):
        project.baselines[str(project.root / name)] = UNAVAILABLE
    (project.root / "huge.txt").touch()
    assert project.patch().splitlines() == [
        "diff --git a/binary.bin b/binary.bin",
        "Binary files a/binary.bin and b/binary.bin differ",
        "# huge-and-gone.txt: deleted; its first version was not kept",
        "# huge.txt: changed; its first version was not kept",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_link_in_the_place_of_a_file_is_shown_as_git_shows_it(project: Project) -> None:
    project.before("link.txt", b"one\n")
    (project.root / "link.txt").unlink()
    (project.root / "link.txt").symlink_to("other.txt")
    patch = project.patch()
    assert "deleted file mode 100644\n" in patch
    assert "new file mode 120000\n" in patch
    assert patch.endswith("+other.txt\n\\ No newline at end of file\n")


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_mode_that_has_changed_is_shown_and_applied(project: Project) -> None:
    for name in ("mode.sh", "both.sh", "plain.sh"):
        project.before(name, b"one\n")
        (project.root / name).write_bytes(b"one\n")
        project.baselines[str(project.root / name)] = add_mode(
            PROGRAM if name == "plain.sh" else PLAIN_FILE, project.baselines[str(project.root / name)] or ""
        )
    (project.root / "both.sh").write_bytes(b"two\n")
    for name in ("mode.sh", "both.sh"):
        (project.root / name).chmod(0o755)
    patch = project.patch()
    assert "diff --git a/mode.sh b/mode.sh\nold mode 100644\nnew mode 100755\n" in patch
    assert "old mode 100755\nnew mode 100644\n" in patch
    for way in ("-R", "--"):
        subprocess.run(["git", "apply", way, "-"], cwd=project.root, input=patch.encode(), check=True)
        executable = {path.name for path in project.root.iterdir() if path.stat().st_mode & 0o100}
        assert executable == ({"plain.sh"} if way == "-R" else {"mode.sh", "both.sh"})


class Move:
    """A project that was moved from `old` to `new`, and what was first in its files."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.old, self.new = project.root, folder / "new"
        self.project = project

    def patch(self, *between: Path) -> str:
        former = [str(self.old), *map(str, between)]
        project = self.project
        versions = FirstVersions(project.baselines)
        return render_text(SessionChanges(versions, project.kept.get, str(self.new), former=former).preview())


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("kind", ["link", "link in a link", "pipe", "large"])
def test_what_a_command_put_in_the_place_of_a_file_is_not_read(project: Project, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    for place in (outside, outside / "sub"):
        (place / "a.txt").write_text("secret\n")
    project.before("d/a.txt", b"one\n")
    folder = project.root / "d"
    if kind.startswith("link"):
        shutil.rmtree(folder)
        folder.symlink_to(outside if kind == "link" else project.root / "e")
        (project.root / "e").symlink_to(outside / "sub")
    elif kind == "large":
        os.truncate(folder / "a.txt", 3 << 40)
    else:
        (folder / "a.txt").unlink()
        os.mkfifo(folder / "a.txt")
    if kind == "large":  # nobody reads it to count its lines, either
        project.kept.clear()
    text = project.patch()
    assert text.startswith("# d/a.txt: ")
    assert "secret" not in text


def test_a_moved_file_is_compared_where_it_is(project: Project, tmp_path: Path) -> None:
    project.before("a.txt", b"one\n")
    project.before("gone.txt", b"one\n")
    project.before("never.txt", None)
    move = Move(project, tmp_path)
    project.root.rename(move.new)
    (move.new / "a.txt").write_bytes(b"two\n")
    (move.new / "gone.txt").unlink()
    patch = move.patch(tmp_path / "between", move.old)
    assert "+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n" in patch
    assert [line for line in patch.splitlines() if line.startswith("#")] == [
        f"# {str(move.old).lstrip('/')}/gone.txt: its workspace has moved, and it is in neither place"
    ]
    assert "never" not in patch


def test_the_oldest_first_version_counts_after_a_move(project: Project, tmp_path: Path) -> None:
    project.before("a.txt", b"one\n")
    move = Move(project, tmp_path)
    project.root.rename(move.new)
    project.baselines[str(move.new / "a.txt")] = sha256_hex(b"two\n")
    project.kept[sha256_hex(b"two\n")] = b"two\n"
    (move.new / "a.txt").write_bytes(b"three\n")
    assert move.patch().count("diff --git") == 1
    assert "-one\n+three\n" in move.patch()
    (move.new / "a.txt").unlink()
    assert "deleted file" in move.patch()


def test_a_workspace_within_the_one_before_has_not_moved(project: Project, tmp_path: Path) -> None:
    project.before("a.txt", b"one\n")
    project.before("sub/a.txt", b"one\n")
    move = Move(project, tmp_path)
    move.new = project.root / "sub"
    (project.root / "a.txt").unlink()
    assert move.patch().count("deleted file") == 1


def test_files_are_in_the_order_of_their_paths(project: Project) -> None:
    for name in ("b.txt", "a.txt"):
        project.before(name, None)
        (project.root / name).write_text(name)
    patch = project.patch()
    assert patch.index("a.txt") < patch.index("b.txt")
