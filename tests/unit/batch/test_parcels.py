"""Parcels: what goes to a node and comes back, and what a crash in between leaves."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.batch import BatchTask, Source
from agent_host.batch.ledger import Ledger
from agent_host.batch.scheduler import Attempts, BatchLaunch, ProcessEnd
from agent_host.batch.workspaces import Depot, LostCosts, Parcel, Workspaces, remove_tree
from state import SessionLocked
from state.disk import SessionLock
from state.keys import redaction_key

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = "0123456789abcdef"


class Scene:
    """A batch's machine and a node, whose directories are not the same."""

    def __init__(self, root: Path) -> None:
        self.out, self.state, self.node = root / "out", root / "state", root / "node"
        self.workspace = self.out / "workspaces" / KEY
        self.patch = self.out / "patches" / "a.patch"
        order = self.out / "work" / f"{KEY}.order"
        for folder in (self.workspace, self.patch.parent, order.parent, self.node):
            folder.mkdir(parents=True)
        order.write_text("do it")
        self.here = Depot(str(self.out), str(self.state))
        self.there = Depot(str(self.node))
        self.parcel = Parcel(KEY, "b-1", (str(order),), str(self.patch))
        self.on_node = Parcel(KEY, "b-1", (self._at_node(str(order)),), self._at_node(str(self.patch)))

    def send(self) -> None:
        self.there.unpack(self.on_node, self.here.pack(self.parcel, with_files=True))

    def work(self) -> None:
        """What a session does on a node."""
        (self.node / "workspaces" / KEY / "made").write_text("made")
        (self.node / "patches" / "a.patch").write_text("diff")
        records = self.node / "state" / "sessions" / "b-1"
        records.mkdir(parents=True, exist_ok=True)
        (records / "result.json").write_text("{}")
        checkpoint = self.node / "state" / "checkpoints" / "b-1.json"
        if checkpoint.exists():
            checkpoint.unlink()
        else:
            checkpoint.write_text("{}")

    def archive(self) -> str:
        return self.there.pack(self.on_node, with_files=False)

    def behind(self, before: dict[str, str]) -> dict[str, str]:
        """What is there once the session has worked twice, and has said so in its workspace."""
        made = {f"out/workspaces/{KEY}/made": "made again"}
        return {name: text for name, text in before.items() if "/checkpoints/" not in name} | made

    def found(self) -> dict[str, str]:
        """The files of the batch's machine but those of the work in progress."""
        files = itertools.chain(self.out.rglob("*"), self.state.rglob("*"))
        named = {str(path.relative_to(self.out.parent)): path for path in files if path.is_file()}
        return {
            name: path.read_text(errors="replace")
            for name, path in named.items()
            if "work" not in path.relative_to(self.out.parent).parts
        }

    def _at_node(self, path: str) -> str:
        return str(self.node / os.path.relpath(path, self.out))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_session_goes_out_and_comes_back_with_its_workspace(scene: Scene) -> None:
    (scene.workspace / "link").symlink_to("/nowhere")
    os.mkfifo(scene.workspace / "pipe")
    closed = scene.workspace / "closed"
    closed.mkdir()
    (closed / "file").write_text("kept")
    (closed / "file").chmod(0)
    closed.chmod(0)
    scene.send()
    assert (scene.node / "work" / f"{KEY}.order").read_text() == "do it"
    assert redaction_key(str(scene.node / "state")) == redaction_key(str(scene.state)), "placeholders stay the same"
    scene.work()
    scene.here.take_back(scene.parcel, scene.archive())
    assert (scene.workspace / "made").read_text() == "made"
    assert (scene.workspace / "link").readlink().as_posix() == "/nowhere"
    assert not (scene.workspace / "pipe").exists(), "what cannot be copied is left out"
    assert closed.stat().st_mode & 0o777 == 0
    closed.chmod(0o700)
    assert (closed / "file").stat().st_mode & 0o777 == 0
    assert scene.patch.read_text() == "diff"
    assert (scene.state / "checkpoints" / "b-1.json").exists()
    assert scene.state.stat().st_mode & 0o77 == (scene.state / "checkpoints").stat().st_mode & 0o77 == 0
    scene.there.clear(scene.on_node)
    assert [path.name for path in scene.node.rglob("*") if path.is_file()] == [f"{KEY}.packed", "redaction.key"]


def test_what_the_session_has_removed_is_gone_and_an_older_parcel_does_not_stay(scene: Scene) -> None:
    (scene.workspace / "first").write_text("1")
    for _ in range(2):
        scene.send()
        (scene.node / "workspaces" / KEY / "first").unlink(missing_ok=True)
        scene.work()
        scene.here.take_back(scene.parcel, scene.archive())
    assert not (scene.workspace / "first").exists()
    assert not (scene.state / "checkpoints" / "b-1.json").exists(), "its clean end has removed it"
    (scene.node / "workspaces" / KEY / "of a lost attempt").write_text("")
    scene.send()
    assert sorted(os.listdir(scene.node / "workspaces" / KEY)) == ["made"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_parcel_takes_effect_as_a_whole_wherever_the_batch_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    """Each step of putting it in place is the last one once; the next start leaves the session before or behind it."""

    class Killed(BaseException):
        pass

    for last in itertools.count():
        scene = Scene(tmp_path / str(last))
        scene.send()
        scene.work()
        scene.here.take_back(scene.parcel, scene.archive())
        before = scene.found()
        scene.send()
        scene.work()
        (scene.node / "workspaces" / KEY / "made").write_text("made again")
        archive = scene.archive()

        left = [None] * last

        def dies(real: Any, left: list[None] = left) -> Any:
            def step(place: str, *args: Any, **named: Any) -> Any:
                if not left:
                    if real is remove_tree and os.path.isdir(place):  # with a part of it
                        next(one for one in Path(place).rglob("*") if one.is_file()).unlink()
                    raise Killed
                left.pop()
                return real(place, *args, **named)

            return step

        def stays_on_its_disk(source: str, place: str, real: Any = os.rename) -> None:
            if place.endswith(".came") and "/state/" in place:
                raise OSError(errno.EXDEV, "another disk")
            real(source, place)

        with monkeypatch.context() as patched:
            patched.setattr("agent_host.batch.workspaces.remove_tree", dies(remove_tree))
            patched.setattr("agent_host.batch.workspaces.os.rename", dies(stays_on_its_disk if apart else os.rename))
            patched.setattr("agent_host.batch.workspaces.shutil.copy2", dies(shutil.copy2))
            try:
                scene.here.take_back(scene.parcel, archive)
                whole = scene.found()
                break
            except Killed:
                pass
        Depot(str(scene.out), str(scene.state)).finish_all()
        after = scene.found()
        is_behind = after["out/workspaces/" + KEY + "/made"] == "made again"
        assert is_behind == ("state/checkpoints/b-1.json" not in after)
        assert after == (scene.behind(before) if is_behind else before)
        assert [path.name for path in (scene.out / "work").iterdir()] == [f"{KEY}.order"]
    assert last > 4
    assert whole["out/workspaces/" + KEY + "/made"] == "made again"


def test_what_a_session_put_in_the_place_of_its_directories_is_not_followed(scene: Scene) -> None:
    for place in (scene.node / "workspaces" / KEY, scene.node / "state" / "sessions" / "b-1"):
        scene.send()
        scene.work()
        remove_tree(str(place))
        place.symlink_to(scene.out)
        with pytest.raises(tarfile.TarError):
            scene.here.take_back(scene.parcel, scene.archive())
        assert scene.workspace.is_dir()
        assert not scene.workspace.is_symlink()


def test_a_parcel_is_its_owner_s_and_keeps_modes(scene: Scene) -> None:
    open_to_all, closed = scene.workspace / "open", scene.workspace / "closed"
    open_to_all.write_text("")
    open_to_all.chmod(0o666)
    closed.write_text("")
    closed.chmod(0)
    archive = scene.here.pack(scene.parcel, with_files=True)
    assert Path(archive).stat().st_mode & 0o777 == 0o600
    assert closed.stat().st_mode & 0o777 == 0, "as before"
    with tarfile.open(archive) as packed:
        assert {(member.uid, member.gid, member.uname) for member in packed} == {(0, 0, "")}
    scene.there.unpack(scene.on_node, archive)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (scene.node / "workspaces" / KEY).iterdir()}
    assert modes == {"open": 0o666, "closed": 0}
    assert {path.stat().st_uid for path in scene.node.rglob("*")} == {os.geteuid()}


@pytest.mark.slow
def test_deep_and_odd_names_come_back(scene: Scene) -> None:
    deep = scene.workspace
    for _ in range(300):
        deep /= "d"
        deep.mkdir()
    (deep / os.fsdecode(b"\xff\n")).write_text("odd")
    scene.send()
    scene.work()
    scene.here.take_back(scene.parcel, scene.archive())
    assert (deep / os.fsdecode(b"\xff\n")).read_text() == "odd"


def test_nothing_is_unpacked_while_a_lost_worker_s_process_is_there(scene: Scene) -> None:
    scene.send()
    lock = SessionLock.acquire(str(scene.node / "state" / "checkpoints" / "b-1.lock"), "b-1")
    (scene.node / "workspaces" / KEY / "at work").write_text("")
    with pytest.raises(SessionLocked):
        scene.send()
    assert (scene.node / "workspaces" / KEY / "at work").exists()
    lock.release(remove=True)
    scene.send()
    assert not (scene.node / "workspaces" / KEY / "at work").exists()


def test_what_a_lost_process_may_have_cost_counts(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    costs = LostCosts(str(tmp_path))
    assert costs.total(KEY) == 0
    costs.set_risk(KEY, 2.0)
    assert costs.total(KEY) == 2.0, "as long as it is out"
    costs.set_risk(KEY, 0.0)
    assert LostCosts(str(tmp_path)).total(KEY) == 0
    costs.set_risk(KEY, 1.5)
    costs.settle(KEY)
    costs.set_risk(KEY, 0.5)
    assert LostCosts(str(tmp_path)).total(KEY) == 2.0, "the first never came back"
    costs.set_risk(KEY, 0.0)
    assert costs.total(KEY) == 1.5
    costs.settle(KEY)
    costs.set_risk(KEY, 0.0)
    costs.set_risk(KEY, 0.0)
    assert costs.total(KEY) == 1.5, "a run without a limit forgets nothing"


class Node:
    """An engine whose processes end with a result. `seen` has their arguments, and the names in the workspace."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self.seen: list[tuple[list[str], list[str]]] = []

    async def run(self, name: str, arguments: Sequence[str], *, directory: str, parcel: Parcel) -> ProcessEnd:
        self.seen.append(([*arguments], os.listdir(os.path.join(self._depot.directory, "workspaces", parcel.key))))
        self._depot.costs.set_risk(parcel.key, parcel.risk)
        self._depot.costs.set_risk(parcel.key, 0.0)
        row = {"endedBy": "model", "status": "TASK_COMPLETED", "retryable": False, "cost": 1.0, "reason": None}
        return ProcessEnd(0, json.dumps(row).encode(), "")

    async def aclose(self) -> None:
        """Nothing is left of it."""


def test_an_attempt_counts_what_was_out_and_begins_with_what_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was killed with one process out, and with the parcel of the one before not in its place."""
    (tmp_path / "source").mkdir()
    task = BatchTask("a", "Do it.", Source("directory", str(tmp_path / "source")), max_cost=5.0)
    ledger = Ledger(str(tmp_path / "out"), [task], "ci")
    depot = Depot(ledger.path, str(tmp_path / "state"))
    node = Node(depot)
    launch = BatchLaunch(str(tmp_path), depot.state_dir, (), (), 9, None, 60, keeps_all=True, files=())
    attempts = Attempts(ledger, launch, Workspaces(ledger.at("workspaces"), ()), node, depot)
    asyncio.run(attempts.run(task, number=1, max_cost=5.0))

    far = Depot(str(tmp_path / "node"))
    (tmp_path / "node" / "workspaces" / task.key).mkdir(parents=True)
    (tmp_path / "node" / "workspaces" / task.key / "made").touch()
    parcel = Parcel(task.key, ledger.session_id(task), ())
    with monkeypatch.context() as patched:
        patched.setattr("agent_host.batch.workspaces._move", lambda *_: os.stat(tmp_path / "nothing"))
        with pytest.raises(OSError, match="nothing"):
            depot.take_back(parcel, far.pack(parcel, with_files=False))
    depot.costs.set_risk(task.key, 2.0)
    ended = asyncio.run(attempts.run(task, number=2, max_cost=5.0))
    ledger.close()
    (first, empty), (second, names) = node.seen
    assert (first[first.index("--max-cost") + 1], empty) == ("5.0", [])
    assert (second[second.index("--max-cost") + 1], names) == ("3.0", ["made"])
    assert ended.row["cost"] == 3.0
    assert depot.costs.total(task.key) == 2.0
