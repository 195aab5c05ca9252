"""What a preview shows of files is what git takes: applied to the first versions it gives the present ones."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.session import patches as limits
from agent_host.session.patches import SessionChanges
from agent_host.session.tasks import FirstVersions
from state.blobs import sha256_hex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.session.patches import FilePatch

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Change(NamedTuple):
    before: bytes | None
    after: bytes | None
    executable: bool = False


def review(changes: Mapping[str, Change], folder: Path) -> list[FilePatch]:
    """The preview of `changes`; `folder/copy` has the first versions and `folder/work` the present ones. It applies."""
    work, copy = folder / "work", folder / "copy"
    for root in (work, copy):
        root.mkdir(parents=True)
    first, blobs = {}, {}
    for name, change in changes.items():
        put(copy / name, change.before, change.executable)
        put(work / name, change.after, change.executable)
        first[str(work / name)] = None if change.before is None else sha256_hex(change.before)
        blobs[sha256_hex(change.before or b"")] = change.before or b""
    found = SessionChanges(FirstVersions(first), blobs.get, str(work)).preview()
    applied = apply("".join(patch.diff for patch in found), copy)
    # A file that is renamed keeps its mode: what that of the old one was is not on record.
    was = {patch.file_path: patch.renamed_from for patch in found if patch.renamed_from is not None}
    of = {name: os.path.relpath(was.get(str(work / name), work / name), work) for name in changes}
    assert applied == {
        name: (change.after, changes[of[name]].executable)
        for name, change in changes.items()
        if change.after is not None
    }
    assert [patch.note for patch in found if patch.diff.startswith("#") and patch.renamed_to is None] == []
    return found


def apply(patch: str, copy: Path, *options: str) -> dict[str, tuple[bytes, bool]]:
    """What is in `copy` when git has applied `patch` there: content and whether it may be run, by path."""
    if patch:
        done = subprocess.run(["git", "apply", *options, "-"], cwd=copy, input=patch.encode(), capture_output=True)
        assert done.returncode == 0, (done.stderr.decode(), patch)
    files = [path for path in copy.rglob("*") if path.is_file()]
    return {str(path.relative_to(copy)): (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for path in files}


def put(path: Path, content: bytes | None, executable: bool) -> None:
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)


TEXT = st.lists(
    st.sampled_from(["a\n", "b\n", "c\r\n", "\n", "d", "\r", "é\u2028\x0b\x85", "-- a\n", "@@ -1 +1 @@\n"]), max_size=25
)
CONTENTS = st.none() | TEXT.map(lambda lines: "".join(lines).encode()) | st.binary(max_size=200) | st.just(b"")
NAME = st.text(st.sampled_from("ab \"'\\\tü漢\u2028\x01\n#"), min_size=1, max_size=6)
if sys.platform == "win32":
    NAME = st.text(st.sampled_from("ab ü#"), min_size=1, max_size=6).map(str.strip).filter(bool)
NAMES = NAME | st.tuples(st.sampled_from(["dir", "di r/ü"]), NAME).map("/".join)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, st.builds(Change, CONTENTS, CONTENTS, st.booleans()), max_size=6))
def test_git_applies_any_change(changes: dict[str, Change]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = review(changes, Path(folder))
        changed = {name: change for name, change in changes.items() if change.before != change.after}
        assert {Path(patch.file_path).relative_to(Path(folder) / "work").as_posix() for patch in found} == set(changed)
        for patch in found:
            change = changes[Path(patch.file_path).relative_to(Path(folder) / "work").as_posix()]
            assert patch.status == status_of(change)
            assert counted(patch.diff) == (patch.additions, patch.deletions)


def status_of(change: Change) -> str:
    return "added" if change.before is None else "deleted" if change.after is None else "modified"


def counted(diff: str) -> tuple[int, int]:
    """The lines that a diff marks, as they are behind its first hunk's head."""
    if "\nGIT binary patch\n" in diff:
        return 0, 0
    _, _, body = diff.partition("\n@@ -")
    lines = body.split("\n")[1:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def test_git_takes_a_binary_patch_back_too(tmp_path: Path) -> None:
    noise = random.Random(1)
    changes = {
        "changed.bin": Change(noise.randbytes(300_000), noise.randbytes(250_001)),
        "added.bin": Change(None, noise.randbytes(10_000), executable=True),
        "deleted.bin": Change(noise.randbytes(52), None),
        "latin-1.txt": Change("grün\n".encode("latin-1"), b"blau\n"),
        "emptied.bin": Change(b"\0", b""),
    }
    found = review(changes, tmp_path)
    assert {(patch.additions, patch.deletions) for patch in found} == {(0, 0)}
    back = apply("".join(patch.diff for patch in found), tmp_path / "copy", "-R")
    assert {name: content for name, (content, _) in back.items()} == {
        name: change.before for name, change in changes.items() if change.before is not None
    }


def test_a_folder_in_the_place_of_a_file_and_the_other_way(tmp_path: Path) -> None:
    (tmp_path / "copy" / "was-folder").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "copy" / "was-folder" / "inner").write_bytes(b"inner\n")
    (tmp_path / "copy" / "was-file").write_bytes(b"file\n")
    (tmp_path / "work" / "was-file").mkdir()
    (tmp_path / "work" / "was-file" / "inner").write_bytes(b"inner\n")
    (tmp_path / "work" / "was-folder").write_bytes(b"file\n")
    work = tmp_path / "work"
    first = {
        str(work / "was-file"): "file", str(work / "was-file" / "inner"): None,
        str(work / "was-folder"): None, str(work / "was-folder" / "inner"): "inner",
    }  # fmt: skip
    kept = {"file": b"file\n", "inner": b"inner\n"}
    found = SessionChanges(FirstVersions(first), kept.get, str(work)).preview()
    assert [patch.status for patch in found] == ["deleted", "added", "added", "deleted"]
    applied = apply("".join(patch.diff for patch in found), tmp_path / "copy")
    assert applied == {"was-file/inner": (b"inner\n", False), "was-folder": (b"file\n", False)}


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_TEXT_BYTES", 20), ("MAX_TEXT_LINES", 3)], ids=["by-bytes", "by-lines"]
)
def test_a_large_text_is_a_binary_patch_with_its_lines_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(limits, limit, value)
    before = b"".join(b"line %d\n" % number for number in range(9))
    changes = {
        "changed": Change(before, before.replace(b"line 4\n", b"four\nfive\n")),
        "added": Change(None, before),
        "emptied": Change(before, b""),
        "appended": Change(before[:-1], before[:-1] + b"0\nmore"),
    }
    found = review(changes, tmp_path)
    assert {Path(patch.file_path).name: (patch.additions, patch.deletions) for patch in found} == {
        "changed": (2, 1), "added": (9, 0), "emptied": (0, 9), "appended": (2, 1),
    }  # fmt: skip
    assert all("GIT binary patch" in patch.diff for patch in found)
    assert found[0].note == "added: too large for a diff of lines"


def test_the_notes_are_passed_over(tmp_path: Path) -> None:
    """Files that cannot be shown stand before, between and behind others of each kind."""
    work, copy = tmp_path / "work", tmp_path / "copy"
    work.mkdir()
    copy.mkdir()
    first: dict[str, str | None] = {}
    for name, content in {"b": b"text\n", "d": b"\0\1", "f": b"", "h\n": b"no end"}.items():
        (work / name).write_bytes(content)
        first[os.fspath(work / name)] = None
    for name in ("a", "c", "e", "g\n", "i"):
        first[os.fspath(work / name)] = "lost"
    found = SessionChanges(FirstVersions(first), lambda _: None, str(work)).preview()
    assert [patch.diff.startswith("# ") for patch in found] == [True, False] * 4 + [True]
    applied = apply("".join(patch.diff for patch in found), copy)
    assert {name: content for name, (content, _) in applied.items()} == {
        path.name: path.read_bytes() for path in work.iterdir()
    }
