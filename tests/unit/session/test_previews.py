"""What one task of several changed, and the session in all; what of it is asked for, and what cannot be shown."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.session import patches
from agent_host.session import patches as git_patch
from agent_host.session.patches import FilePatch, SessionChanges, render_text
from agent_host.session.tasks import FirstVersions, first_versions
from state.blobs import UNAVAILABLE
from state.records import record_of
from tests.support.memory_store import MemoryCheckpointStore
from tests.unit.state.helpers import commit, finish, fresh_state, message, turn

if TYPE_CHECKING:
    from pathlib import Path


class Work:
    """A session whose tasks write files under `root`, with first versions on record as the loop has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = MemoryCheckpointStore()
        self.session = self.store.create("s", fresh_state("s"))
        self.steps = 0

    def task(self, task_id: str, **files: str | None) -> None:
        """A task that leaves `files`, and is over."""
        fields = {"taskId": task_id, "prompt": task_id, "maxSteps": 9}
        self.session.append(record_of("task_started", fields, message("user", task_id)))
        for name, content in files.items():
            self.write(name, content)
        self.session.append(record_of("task_ended", {"status": "completed"}))

    def write(self, name: str, content: str | None) -> None:
        """One call: its first version goes on record where the task has none."""
        assert self.session.state.task is not None
        self.steps += 1
        step, path = f"c{self.steps}", self.root / name
        found = self.session.keep(path.read_bytes()) if path.exists() else None
        known = os.fspath(path) in self.session.state.task.baselines
        turn(self.session, step, step, gated=True)
        self.session.append(
            record_of("call_started", {"callId": step, "baselines": {} if known else {os.fspath(path): found}})
        )
        if content is not None:
            path.write_text(content)
        elif path.exists():
            path.unlink()
        finish(self.session, step)
        commit(self.session, self.steps)

    def resume(self) -> None:
        """What a new process finds."""
        self.session.close()
        self.session = self.store.open("s")

    def preview(self, task_id: str | None = None, *only: str, former: tuple[str, ...] = ()) -> list[FilePatch]:
        changes = SessionChanges(first_versions(self.session.state), self.session.kept, os.fspath(self.root), former)
        return changes.preview(task_id, only or None)

    def told(self, task_id: str | None = None, *only: str) -> dict[str, str]:
        """Each file with its status and the lines of its diff that are marked."""
        return {
            os.path.relpath(patch.file_path, self.root): " ".join([patch.status, *marked(patch.diff)])
            for patch in self.preview(task_id, *only)
        }


def marked(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


@pytest.mark.parametrize("compact", [False, True])
def test_each_task_shows_what_it_changed(work: Work, *, compact: bool) -> None:
    (work.root / "old").write_text("0\n")
    (work.root / "doomed").write_text("d\n")
    work.task("one", old="1\n", new="n1\n", brief="b\n", same="s\n")
    work.task("two", new="n2\n", brief=None, doomed=None)
    work.task("three", old="3\n", brief="b3\n", doomed="d\n", same="s\n")
    if compact:
        work.session.compact()
    work.resume()
    assert work.told("one") == {
        "old": "modified -0 +1", "new": "added +n1", "brief": "added +b", "same": "added +s",
    }  # fmt: skip
    assert work.told("two") == {"new": "modified -n1 +n2", "brief": "deleted -b", "doomed": "deleted -d"}
    assert work.told("three") == {"old": "modified -1 +3", "brief": "added +b3", "doomed": "added +d"}
    assert work.told() == {"old": "modified -0 +3", "new": "added +n2", "brief": "added +b3", "same": "added +s"}
    for patch in work.preview():
        assert patch.to_wire() == {
            "filePath": patch.file_path, "status": patch.status, "diff": patch.diff,
            "additions": patch.additions, "deletions": patch.deletions,
        }  # fmt: skip


def test_what_comes_to_nothing_in_the_end_is_not_shown(work: Work) -> None:
    (work.root / "back").write_text("0\n")
    work.task("one", back="1\n", brief="b\n")
    work.write("back", "0\n")
    work.write("brief", None)
    assert work.told() == work.told("one") == {}
    work.task("two", back=None)
    assert work.told("two") == work.told() == {"back": "deleted -0"}
    work.write("back", "2\n")
    assert work.told("two") == work.told() == {"back": "modified -0 +2"}


def test_a_task_that_nobody_followed_ends_at_what_is_there(work: Work) -> None:
    work.task("one", a="1\n")
    work.task("two", b="1\n")
    (work.root / "a").write_text("by somebody else\n")
    assert work.told("one") == {"a": "added +by somebody else"}


def test_a_task_that_is_not_known(work: Work) -> None:
    work.task("one", a="1\n")
    with pytest.raises(LookupError, match="'other'"):
        work.preview("other")
    assert work.session.state.has_task("one")
    assert not work.session.state.has_task("other")


def test_only_what_is_asked_for(work: Work) -> None:
    work.task("one", a="1\n", b="1\n", c="1\n")
    assert list(work.told(None, "./x/../a", os.fspath(work.root / "c"))) == ["a", "c"]
    assert work.told("one", "unknown", "..", "", "\0", "\ud800", "a\0") == {}
    versions = first_versions(work.session.state)
    assert SessionChanges(versions, work.session.kept, os.fspath(work.root)).preview(file_paths=[]) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_file_that_is_asked_for_through_a_link(work: Work) -> None:
    work.task("one", a="1\n")
    (work.root / "link").symlink_to(work.root)
    assert list(work.told(None, "link/a")) == ["a"]
    (work.root / "a").unlink()
    (work.root / "a").symlink_to("elsewhere")
    (patch,) = work.preview(None, "a")
    assert (patch.status, patch.additions) == ("added", 1)
    assert "new file mode 120000\n" in patch.diff


def test_a_file_outside_of_the_workspace(work: Work, tmp_path: Path) -> None:
    work.root = tmp_path / "inside"
    work.root.mkdir()
    work.task("one", **{"../outside": "1\n"})
    versions = FirstVersions({os.fspath(tmp_path / "outside"): None})
    (patch,) = SessionChanges(versions, work.session.kept, os.fspath(work.root)).preview()
    assert patch.file_path == os.fspath(tmp_path / "outside")
    assert f"+++ b/{patch.file_path.lstrip('/')}\n" in patch.diff


def test_a_version_in_between_that_was_not_kept(work: Work) -> None:
    path = os.fspath(work.root / "a")
    (work.root / "a").write_text("3\n")
    versions = FirstVersions({path: None}, (("one", {path: None}), ("two", {path: UNAVAILABLE})))
    found = {
        task: SessionChanges(versions, lambda _: None, os.fspath(work.root)).preview(task) for task in ("one", "two")
    }
    (one,), (two,) = found["one"], found["two"]
    assert (one.status, one.diff) == ("added", "# a: changed; its last version was not kept\n")
    assert (two.status, two.diff) == ("modified", "# a: changed; its first version was not kept\n")
    assert render_text([one]) == one.diff


@pytest.mark.parametrize("before", ["", "".join(f"{number}\n" for number in range(50)), "no end"])
def test_a_file_too_large_to_be_shown_is_counted(work: Work, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "MAX_PATCH_BYTES", 1000)
    (work.root / "a").write_text(before)
    lines = "".join(f"{number}\n" for number in range(50))
    work.task("one", a=lines * 10, b=lines * 10, c="small\n", d="\0" * 2000)
    a, b, c, d = work.preview()
    assert (a.status, a.additions, a.deletions) == (
        "modified", 500 - len(before.splitlines()) * (before != "no end"), int(before == "no end")
    )  # fmt: skip
    assert (b.status, b.additions, b.deletions) == ("added", 500, 0)
    assert b.diff == f"# b: too large to be shown: {len(lines) * 10} bytes\n"
    assert (c.status, c.additions, c.note) == ("added", 1, None)
    assert (d.status, d.additions, d.deletions) == ("added", 0, 0)


def test_a_binary_file_that_cannot_be_packed_is_not_shown(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_patch, "MAX_PACKED_BYTES", 100)
    noise = "".join(map(chr, random.Random(1).sample(range(0xD000), 200)))
    work.task("one", a="\0" + noise, b="\0" * 5000)
    a, b = work.preview()
    assert a.diff == f"# a: too large to be shown: {(work.root / 'a').stat().st_size} bytes\n"
    assert (a.status, b.status) == ("added", "added")
    assert "GIT binary patch" in b.diff


def test_a_preview_has_room_for_so_much(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.task("one", a="1\n" * 20, b="2\n" * 2000, c="3\n" * 20)
    monkeypatch.setattr(patches, "MAX_PREVIEW_CHARS", 1000)
    a, b, c = work.preview()
    assert b.diff == "# b: not shown with so many others: ask for it alone\n"
    assert (b.status, b.additions) == ("added", 2000)
    assert a.note is None
    assert c.note is None


def test_the_patch_of_the_session_is_the_preview_to_read(work: Work) -> None:
    work.task("one", a="1\n", b="\0")
    state = work.session.state
    versions = FirstVersions(state.baselines)
    text = render_text(SessionChanges(versions, work.session.kept, os.fspath(work.root)).preview())
    assert text == render_text(work.preview())
    assert text.endswith("+1\ndiff --git a/b b/b\nnew file mode 100644\nBinary files /dev/null and b/b differ\n")


def test_tasks_in_a_workspace_that_moved(work: Work, tmp_path: Path) -> None:
    old = work.root = tmp_path / "old"
    old.mkdir()
    work.task("one", a="1\n", gone="1\n")
    old.rename(tmp_path / "new")
    work.root = tmp_path / "new"
    work.task("two", a="2\n")
    (work.root / "gone").unlink()
    former = (os.fspath(old),)
    assert [(patch.file_path, marked(patch.diff)) for patch in work.preview("one", former=former)] == [
        (os.fspath(work.root / "a"), ["+1"])
    ]
    assert [marked(patch.diff) for patch in work.preview("two", former=former)] == [["-1", "+2"]]
    assert [marked(patch.diff) for patch in work.preview(former=former)] == [["+2"]]
    assert len(work.preview(None, os.fspath(old / "a"), former=former)) == 1
    work.root = old  # and back
    (tmp_path / "new").rename(old)
    both = (os.fspath(old), os.fspath(tmp_path / "new"))
    assert [marked(patch.diff) for patch in work.preview(former=both)] == [["+2"]]
