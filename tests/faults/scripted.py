"""A session by script, run by a loop in small over any disk, and what must hold whatever happens to disk and process.

The script says what the model asks for; `Host` does to the store what `agent_host.loop` does, and `World` knows what
has really happened: the records in order, how far they were durable, which effects took place. A crash of any kind is
followed by another Host over what the disk has left, as often as one likes, until the script is done.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.faults.crash import Killed, PowerCut
from state import NoSuchSession, WriteFailed
from state.blobs import UNAVAILABLE, sha256_hex
from state.checkpoint import Checkpoint, SessionIdentity
from state.file_store import FileCheckpointStore
from state.loading import ResumeVerdict, judge
from state.records import record_of
from tests.support.beside import Later
from tests.unit.state.helpers import OPTIONS, message

if TYPE_CHECKING:
    from agent_host.faults.disk import SimulatedDisk
    from state.checkpoint import OpenCall
    from state.file_session import FileSession

STATE_DIR = "/home/state"
SESSION = "s1"
# Small, so that the script's few records make the store compact several times.
MIN_COMPACT_BYTES = 2500
USAGE = {"inputTokens": 10, "outputTokens": 3, "cachedInputTokens": 1}


@dataclass(frozen=True, slots=True)
class Planned:
    """One call that the model asks for."""

    call_id: str
    side_effects: bool = True
    gated: bool = False
    file: bytes | None = None  # it writes a file that holds this, so that is kept first
    name: str | None = None  # of the file; the call's id where none is given
    status: str = "succeeded"
    text: str = "ok"

    @property
    def path(self) -> str:
        return f"/w/{self.name or self.call_id}"


# Each row is a step; its calls run at once, and the last one is done first.
SCRIPT: tuple[tuple[Planned, ...], ...] = (
    (Planned("a"), Planned("b"), Planned("c")),
    (Planned("read", side_effects=False, text="x" * 20_000), Planned("fails", status="failed")),
    (Planned("gated", gated=True, file=b"small"), Planned("free", file=b"other")),
    (Planned("large", file=b"L" * 70_000),),
    (Planned("look", side_effects=False), Planned("waits", gated=True, file=b"of the second task", name="free")),
    (Planned("last", text="y" * 2000, file=b"of the third task", name="free"),),
)
# The steps with which a further task begins.
FURTHER_TASKS = (3, 5)


class Paused(Exception):
    """The disk did not take a record that had to come first."""


@dataclass(slots=True)
class World:
    """What has happened. `states` are the states after each record, the first the one at the start; those up to
    `written` a killed process must have left, those up to `durable` a machine without power as well."""

    states: list[bytes] = field(default_factory=list)
    written: int = -1
    durable: int = -1
    started: dict[str, int] = field(default_factory=dict)  # by call: the state behind its start record
    rebooted: bool = False
    power_lost: bool = False
    compaction_lasts: int = (
        0  # how often a compaction is asked for before it is done; 0: the sync that begins it ends it
    )
    ending: bool = False
    done: bool = False
    effects: collections.Counter[str] = field(default_factory=collections.Counter)
    blobs: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # by name: the state that first names it

    def copy(self) -> World:
        """The same world for another way to go on."""
        return dataclasses.replace(
            self,
            states=list(self.states),
            started=dict(self.started),
            effects=self.effects.copy(),
            blobs=dict(self.blobs),
        )

    def lose_power(self) -> World:
        """The same world at the next boot, where only what was durable must be there."""
        return dataclasses.replace(self.copy(), written=self.durable, rebooted=True, power_lost=True, done=False)

    def found(self, state: Checkpoint) -> None:
        """A process has opened the session and found `state`: it is one that was, and not older than it may be."""
        seen, started = fingerprint(state), started_in(state)
        lowest = max(self.written, 0)
        places = [place for place, known in enumerate(self.states) if seen == known]
        fitting = [place for place in places if place >= lowest and self.starts_at(state, place) <= started]
        assert fitting, (
            f"found is state {places or 'unknown'}, and it must be one of {lowest} to {len(self.states) - 1}"
        )
        assert self.power_lost or started <= self.started.keys(), "a start is made up"
        at = fitting[0]
        self.states = self.states[: at + 1]
        self.started = {call: place for call, place in self.started.items() if place <= at}
        self.written = at
        if self.rebooted:
            self.durable = at
            self.rebooted = False

    def starts_at(self, state: Checkpoint, place: int) -> set[str]:
        """Calls of the open step whose start stands among the records up to `place`."""
        calls = state.open_step.calls if state.open_step is not None else []
        return {call.call_id for call in calls if self.started.get(call.call_id, place + 1) <= place}


def started_in(state: Checkpoint) -> set[str]:
    """Calls of the open step that the state takes for started."""
    return {call.call_id for call in state.open_step.calls if call.started} if state.open_step is not None else set()


def fingerprint(state: Checkpoint) -> bytes:
    """The state without its sequence number, which each snapshot may raise, and without the starts of its open calls:
    after a power loss one may be suspected that is not on record."""
    plain = dataclasses.replace(state, seq=0)
    if state.open_step is not None:
        calls = [dataclasses.replace(call, started=False) for call in state.open_step.calls]
        plain.open_step = dataclasses.replace(state.open_step, calls=calls)
    return hashlib.sha256(orjson.dumps(plain, default=_plain)).digest()


def _plain(value: bytes | tuple[object, ...]) -> object:
    """An encoded message as text, a named tuple as a list."""
    return value.decode() if isinstance(value, bytes) else list(value)


class Host:
    """One process that has the session."""

    def __init__(self, disk: SimulatedDisk, world: World) -> None:
        self.disk = disk
        self.world = world
        self.store = FileCheckpointStore(
            STATE_DIR,
            disk=disk,
            min_compact_bytes=MIN_COMPACT_BYTES,
            start_job=functools.partial(Later, times=world.compaction_lasts),
            archives=True,
        )

    def run(self) -> None:
        """Begin or resume, and go on to the end, or until the disk or the machine gives way."""
        try:
            self.session = self._open()
        except WriteFailed:
            return
        except NoSuchSession:
            assert self.world.ending or self.world.written < 0, "a durable session is gone"
            if self.world.ending:
                self.world.done = True
                return
            try:
                self._create()
            except WriteFailed:
                return
        try:
            self._work()
        except Paused:
            self._record("session_status", {"status": "SESSION_PAUSED"}, sync=True)
            self.session.close()
        else:
            self._end()

    def _create(self) -> None:
        identity = SessionIdentity(SESSION, "ws", "tenant", "user", OPTIONS)
        start = Checkpoint(identity, policy_bundle_version="v1", thread=[message("system", "be careful")])
        self.world.states = [fingerprint(start)]
        self.session = self.store.create(SESSION, start)
        self.world.written = self.world.durable = 0

    def _open(self) -> FileSession:
        contents = self.disk.contents()
        loaded = None
        with contextlib.suppress(NoSuchSession):
            loaded = self.store.load(SESSION)
        assert self.disk.contents() == contents, "load has changed something"
        session = self.store.open(SESSION)
        assert loaded is not None, "open finds a session that load does not find"
        assert fingerprint(loaded) == fingerprint(session.state), "load and open find different states"
        must_have = self.world.written
        self.world.found(session.state)
        for name, (first, data) in list(self.world.blobs.items()):
            kept = session.kept(name)
            assert kept == data or (kept is None and first > must_have), f"blob {name} is gone"
            if kept is None:
                del self.world.blobs[name]
        return session

    def _work(self) -> None:
        if self.session.state.task is None:
            fields = {"taskId": "t1", "prompt": "do it", "maxSteps": 40}
            self._record("task_started", fields, message("user", "do it"), pause=True)
        elif self.session.state.session_status == "SESSION_PAUSED":
            self._record("session_status", {"status": "SESSION_RUNNING"})
        while (number := self._steps_done()) < len(SCRIPT):
            if self.session.state.open_step is None:
                self._begin_further_task(number)
                self._take_turn(number)
                left = list(SCRIPT[number])
            else:
                left = self._recover(number)
            for planned in reversed(left):
                self._run_call(planned)
            task = self.session.state.task
            assert task is not None
            self._record("step_committed", {"stepCount": task.step_count + 1}, sync=True)
            self._record("note", {}, message("system", f"{number} done"))
        self._end_task()

    def _steps_done(self) -> int:
        state = self.session.state
        return sum(task.step_count for task in (*state.earlier_tasks, state.task) if task is not None)

    def _begin_further_task(self, number: int) -> None:
        task = self.session.state.task
        if number in FURTHER_TASKS and task is not None and task.step_count:
            self._end_task()
            fields = {"taskId": f"t{number}", "prompt": "go on", "maxSteps": 40}
            self._record("task_started", fields, message("user", "go on"), pause=True)

    def _end_task(self) -> None:
        task = self.session.state.task
        if task is not None and task.status == "running":
            self._record("task_ended", {"status": "completed"}, sync=True)

    def _take_turn(self, number: int) -> None:
        calls = SCRIPT[number]
        baselines = self._baselines([call for call in calls if not call.gated])
        named = [{"id": call.call_id, "name": "RunCommand", "arguments": {"n": number}} for call in calls]
        rows = [
            {"callId": call.call_id, "sideEffects": call.side_effects}
            | ({"gated": True} if call.gated else {})
            | ({"intent": intent(call)} if call.file is not None and not call.gated else {})
            for call in calls
        ]
        fields: dict[str, Any] = {"stepId": f"step{number}", "stopReason": "tool_use", "boot": self.disk.boot_id()}
        fields |= {"usage": USAGE, "calls": rows, "baselines": baselines}
        self._record("turn", fields, message("assistant", "", toolCalls=named), pause=True, names=baselines)
        if any(call.side_effects and not call.gated for call in calls):  # the start of a gated one syncs them both
            self._write_ahead()

    def _baselines(self, calls: list[Planned]) -> dict[str, str]:
        return {call.path: self.session.keep(call.file) for call in calls if call.file is not None}

    def _recover(self, number: int) -> list[Planned]:
        """What is left to run of the open step, as agent_host.loop.recovery has it."""
        step = self.session.state.open_step
        assert step is not None
        same_boot = step.boot is not None and step.boot == self.disk.boot_id()
        planned = {call.call_id: call for call in SCRIPT[number]}
        to_run = []
        for call in step.calls:
            verdict = judge(call, same_boot=same_boot)
            self._check_verdict(call, verdict)
            if verdict is ResumeVerdict.RUN:
                to_run.append(planned[call.call_id])
            elif verdict is not ResumeVerdict.REUSE:
                self._finish(call.call_id, "failed", "interrupted")
        return to_run

    def _check_verdict(self, call: OpenCall, verdict: ResumeVerdict) -> None:
        happened = self.world.effects[call.call_id]
        assert not (verdict is ResumeVerdict.RUN and call.side_effects and happened), (
            f"{call.call_id} would happen twice"
        )

    def _run_call(self, call: Planned) -> None:
        if call.side_effects:
            more: dict[str, Any] = {}
            if call.gated:
                more = {"intent": intent(call), "baselines": self._baselines([call])}
            fields = {"callId": call.call_id, **more}
            self._record("call_started", fields, pause=True, names=more.get("baselines"))
            if call.gated:
                self._write_ahead()
            self.world.effects[call.call_id] += 1
            assert self.world.effects[call.call_id] == 1, f"{call.call_id} has happened twice"
        self._finish(call.call_id, call.status, call.text)

    def _finish(self, call_id: str, status: str, text: str) -> None:
        self._record("call_finished", {"callId": call_id, "status": status}, message("tool", text, toolCallId=call_id))

    def _record(
        self, kind: str, fields: dict[str, Any], data: bytes | None = None, *, pause: bool = False, sync: bool = False,
        names: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Append one record, and sync it where asked; a failure is no matter unless `pause` says so."""
        world, seq = self.world, self.session.state.seq
        at = len(world.states)
        try:
            self._append(kind, fields, data)
            world.written = at
            for name in (names or {}).values():
                if name != UNAVAILABLE:
                    world.blobs.setdefault(name, (at, _content_of(name)))
            if sync:
                self._sync()
        except WriteFailed as error:
            if pause:
                raise Paused from error
        assert self.session.state.seq > seq, "the sequence number stands still"

    def _append(self, kind: str, fields: dict[str, Any], data: bytes | None) -> None:
        """The append, with its state on the list however it ends: it may be on the disk, half of it or all."""
        try:
            self.session.append(record_of(kind, fields, data))
        finally:
            if kind == "call_started":
                self.world.started[fields["callId"]] = len(self.world.states)
            self.world.states.append(fingerprint(self.session.state))

    def _sync(self) -> None:
        self.session.sync()
        self.world.durable = self.world.written = len(self.world.states) - 1

    def _write_ahead(self) -> None:
        try:
            self._sync()
        except WriteFailed as error:
            raise Paused from error

    def _end(self) -> None:
        """The clean end. The store adds a record of its own to say so."""
        assert [call for row in SCRIPT for call in row if call.side_effects and not self._accounted(call)] == []
        self.world.ending = True
        ended = dataclasses.replace(self.session.state, session_status="SESSION_COMPLETED")
        self.world.states.append(fingerprint(ended))
        try:
            self.session.delete()
        except WriteFailed:
            return
        self.world.done = True
        # A lock's file that could not be taken away stays and holds nobody up; what was put aside stays anyway.
        ends = (".json", ".journal", ".tmp", ".previous")
        left = [path for path in self.disk.contents() if path.endswith(ends) and "/archive/" not in path]
        assert left == [], "something is left"

    def _accounted(self, call: Planned) -> bool:
        """An effect that happened, and one that did not, is told by a result with its call's id."""
        results = (orjson.loads(data) for data in self.session.state.thread)
        said = [each for each in results if each.get("toolCallId") == call.call_id]
        return len(said) == 1 and (self.world.effects[call.call_id] == 1 or said[0]["content"] == "interrupted")


def intent(call: Planned) -> dict[str, Any]:
    return {"path": call.path, "before": None, "after": "h"}


def _content_of(name: str) -> bytes:
    files = (call.file for row in SCRIPT for call in row if call.file is not None)
    return next(data for data in files if sha256_hex(data) == name)


def advance(disk: SimulatedDisk, world: World) -> None:
    """One process over `disk`, up to the end or to what its disk has in store for it."""
    try:
        Host(disk, world).run()
    except (PowerCut, Killed):
        pass
    except BaseException as error:
        error.add_note(disk.explain())
        raise
    if disk.misuses:
        raise AssertionError(f"{disk.misuses}\n{disk.explain()}")
