"""Any legal history: what is on disk is always the live state, with failing disks and killed processes between."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from state import WriteFailed
from state.disk import Disk
from state.records import JournalRecord, record_of
from tests.unit.state.helpers import create, load, message, reopen, unnumbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.checkpoint import Checkpoint, OpenCall

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.just("x" * 2000)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(words, json_values, max_size=3)
counts = st.integers(0, 10_000)
paths = st.sampled_from(["/w/a", "/w/b", "/w/ü"])
hashes = st.none() | st.sampled_from(["h1", "h2", "unavailable"])
replays = st.fixed_dictionaries(
    {"approve": words}, optional={"callId": words, "place": st.none() | words, "request": arguments}
)
grants = st.fixed_dictionaries(
    {"scope": st.sampled_from(["task", "session"]), "approvalId": words, "taskId": words},
    optional={"actionHash": words},
)
baselines = st.dictionaries(paths, hashes, max_size=2)


class History(RuleBasedStateMachine):
    """Legal records in any order, on a healthy disk."""

    min_compact_bytes = 1 << 40

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._directory = tempfile.mkdtemp(prefix="store")
        self._numbers = 0
        # The states that a killed process may leave: the one of the last successful write and what came after it.
        self.possible: list[Checkpoint] = []

    def teardown(self) -> None:
        self._patch.undo()
        self.store.close()
        shutil.rmtree(self._directory)

    @initialize()
    def open_new(self) -> None:
        self.store = create(self._directory, min_compact_bytes=self.min_compact_bytes)
        self.possible = [unnumbered(self.store.state)]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except WriteFailed:
            self.possible.append(unnumbered(self.store.state))
        else:
            self.possible = [unnumbered(self.store.state)]

    def append(self, record: JournalRecord) -> None:
        self.attempt(lambda: self.store.append(record))

    def calls(self, *, answered: bool) -> list[OpenCall]:
        step = self.store.state.open_step
        return [] if step is None else [call for call in step.calls if (call.result is not None) is answered]

    def is_open(self) -> bool:
        return self.store.state.open_step is not None

    def has_task(self) -> bool:
        task = self.store.state.task
        return task is not None and task.status == "running"

    def is_over(self) -> bool:
        task = self.store.state.task
        return task is not None and task.status != "running"

    @precondition(lambda self: not self.is_open())
    @rule(prompt=words)
    def task_started(self, prompt: str) -> None:
        fields = {"taskId": f"task{self.number()}", "prompt": prompt, "maxSteps": 5}
        self.append(record_of("task_started", fields, message("user", prompt)))

    @precondition(lambda self: self.has_task() and not self.is_open())
    @rule(
        text=words,
        given=st.lists(st.tuples(arguments, st.booleans(), st.booleans()), max_size=3),
        first=baselines,
        usage=st.tuples(counts, counts, counts),
        boot=st.none() | st.just("boot"),
        window=st.none() | st.fixed_dictionaries({"dropped": counts, "estimated": counts}),
    )
    def turn(
        self, text: str, given: list[tuple[dict[str, Any], bool, bool]], first: dict[str, str | None],
        usage: tuple[int, int, int], boot: str | None, window: dict[str, int] | None,
    ) -> None:  # fmt: skip
        named, rows = [], []
        for values, gated, broken in given:
            call = f"call{self.number()}"
            named.append(
                {"id": call, "name": "WriteFile", "arguments": values} | ({"problem": "cut"} if broken else {})
            )
            intent = {"path": "/w/a", "before": None, "after": "h"}
            approval = {"gated": True} | ({"approvalId": f"appr_{call}"} if not broken else {})
            rows.append({"callId": call, "sideEffects": gated} | (approval if gated else {"intent": intent}))
        counted = dict(zip(("inputTokens", "outputTokens", "cachedInputTokens"), usage, strict=True))
        fields: dict[str, Any] = {"stepId": f"step{self.number()}", "stopReason": "tool_use", "boot": boot}
        fields |= {"usage": counted, "calls": rows} | ({"baselines": first} if first else {})
        fields |= {} if window is None else {"window": window}
        self.append(record_of("turn", fields, message("assistant", text, **({"toolCalls": named} if named else {}))))

    @precondition(lambda self: self.calls(answered=False))
    @rule(
        data=st.data(),
        answer=st.none() | st.booleans(),
        reason=words,
        scope=st.sampled_from(["once", "session"]),
        edited=st.none() | arguments,
    )
    def approval(
        self, data: st.DataObject, answer: bool | None, reason: str, scope: str, edited: dict[str, Any] | None
    ) -> None:
        call = data.draw(st.sampled_from(self.calls(answered=False)))
        fields = {"callId": call.call_id, "approvalId": f"appr_{call.call_id}"}
        given: dict[str, Any] = {} if answer is None else {"approved": answer, "scope": scope, "reason": reason}
        given |= {} if answer is None or edited is None else {"arguments": edited}
        self.append(record_of("approval", {**fields, **given}))

    @precondition(lambda self: self.calls(answered=False))
    @rule(data=st.data(), first=baselines)
    def call_started(self, data: st.DataObject, first: dict[str, str | None]) -> None:
        call = data.draw(st.sampled_from(self.calls(answered=False)))
        more = {"intent": {"path": "/w/b", "before": "h", "after": None}, "baselines": first} if call.gated else {}
        self.append(record_of("call_started", {"callId": call.call_id, **more}))

    @precondition(lambda self: self.calls(answered=False))
    @rule(data=st.data(), text=words, code=st.none() | st.just("DENIED"), replay=st.none() | replays)
    def call_finished(self, data: st.DataObject, text: str, code: str | None, replay: dict[str, Any] | None) -> None:
        call = data.draw(st.sampled_from(self.calls(answered=False)))
        fields: dict[str, Any] = {"callId": call.call_id, "status": "succeeded" if code is None else "denied"}
        fields |= ({"code": code} if code else {}) | ({"replay": replay} if replay is not None else {})
        self.append(record_of("call_finished", fields, message("tool", text, toolCallId=call.call_id)))

    @precondition(lambda self: self.is_open() and not self.calls(answered=False))
    @rule(note=st.none() | words, dropped=st.none() | st.integers(0, 9))
    def step_committed(self, note: str | None, dropped: int | None) -> None:
        task = self.store.state.task
        assert task is not None
        data = None if note is None else message("system", note)
        moved = {} if dropped is None else {"dropped": dropped}
        self.append(record_of("step_committed", {"stepCount": task.step_count + 1} | moved, data))

    @precondition(lambda self: not self.is_open())
    @rule(text=words)
    def note(self, text: str) -> None:
        self.append(record_of("note", {}, message("system", text)))

    @precondition(lambda self: self.has_task() and not self.is_open())
    @rule(status=st.sampled_from(["completed", "failed", "cancelled"]), reason=st.none() | words)
    def task_ended(self, status: str, reason: str | None) -> None:
        self.append(record_of("task_ended", {"status": status, "reason": reason}))

    @precondition(lambda self: self.is_over())
    @rule(steps=counts)
    def task_reopened(self, steps: int) -> None:
        self.append(record_of("task_reopened", {"maxSteps": steps}))

    @rule(
        status=st.sampled_from(["SESSION_PAUSED", "SESSION_RUNNING"]),
        version=st.none() | words,
        steps=st.none() | counts,
    )
    def session_status(self, status: str, version: str | None, steps: int | None) -> None:
        fields: dict[str, Any] = {"status": status}
        fields |= {"policyBundleVersion": version} if version is not None else {}
        fields |= {"maxSteps": steps} if steps is not None else {}
        self.append(record_of("session_status", fields))

    @rule(grant=grants)
    def grant(self, grant: dict[str, Any]) -> None:
        self.append(record_of("grant", grant))

    @rule()
    def sync(self) -> None:
        self.attempt(self.store.sync)

    @rule()
    def end_and_resume(self) -> None:
        self.store.close()
        self.store = reopen(self._directory, min_compact_bytes=self.min_compact_bytes)
        assert unnumbered(self.store.state) in self.possible
        self.possible = [unnumbered(self.store.state)]

    @invariant()
    def the_disk_holds_it(self) -> None:
        if self.possible:
            assert unnumbered(load(self._directory)) in self.possible


class HistoryWithCompaction(History):
    min_compact_bytes = 0


class HistoryOnABadDisk(History):
    """The same with writes that fail, some of them half done; resumed only once the disk is well."""

    min_compact_bytes = 2000

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[str, list[bool]] = {"write": [], "sync": [], "sync_directory": []}
        for name in self.plan:
            self._patch.setattr(Disk, name, self._unreliable(name, getattr(Disk, name)))

    def _unreliable(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(disk: Disk, target: int | str, *data: bytes) -> None:
            if self.plan[name] and self.plan[name].pop(0):
                if data and isinstance(target, int):
                    os.write(target, data[0][: len(data[0]) * 2 // 3])
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(disk, target, *data)

        return call

    @rule(name=st.sampled_from(["write", "sync", "sync_directory"]), fails=st.lists(st.booleans(), max_size=6))
    def spoil(self, name: str, fails: list[bool]) -> None:
        self.plan[name] = fails

    @rule()
    def end_and_resume(self) -> None:
        for name in self.plan:
            self.plan[name] = []
        super().end_and_resume()


_SETTINGS = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
for _machine in (History, HistoryWithCompaction, HistoryOnABadDisk):
    _machine.TestCase.settings = _SETTINGS

TestHistory = History.TestCase
TestHistoryWithCompaction = pytest.mark.slow(HistoryWithCompaction.TestCase)
TestHistoryOnABadDisk = pytest.mark.slow(HistoryOnABadDisk.TestCase)
