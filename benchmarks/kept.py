"""A session's steps and the checkpoint store that keeps them: for `checkpoint`, `other_stores` and their children.

Bytes are what the kernel was asked to write (`wchar` of /proc/self/io, so Linux only): it sees every way of writing,
SQLite's too. Syncs are counted at `os` and `fcntl`, which all of the store's go through.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.ids import MACHINE
from agent_host.thread.messages import Message, ToolCall, encode
from benchmarks.report import MIB
from state.checkpoint import CallRow, Checkpoint, SessionIdentity, TokenUsage
from state.file_store import FileCheckpointStore
from state.records import CallFinished, CallStarted, JournalRecord, StepCommitted, TurnTaken, message_of, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SESSION = "sess_bench"
RESULT_BYTES = 1024


class Store:
    """All that the benchmarks know of the store under test; `folder` is the state directory."""

    def __init__(self, folder: str, state: Checkpoint | None = None) -> None:
        store = FileCheckpointStore(folder, archives=True)  # as the program has it
        self._session = store.open(SESSION) if state is None else store.create(SESSION, state)
        self.append = self._session.append
        self.sync = self._session.sync
        self.compact = self._session.compact
        self.close = self._session.close

    def messages(self) -> Iterable[bytes]:
        """The thread, the system prompt first."""
        return self._session.state.thread


class Disk:
    """Counts and times syncs; while `off` there are none, for building what is not measured."""

    syncs = 0
    ns = 0
    off = False

    @classmethod
    def watch(cls) -> None:
        os.fsync = cls._counted(os.fsync)
        if sys.platform == "darwin":
            import fcntl

            real, full = fcntl.fcntl, cls._counted(fcntl.fcntl)
            fcntl.fcntl = lambda fd, what, *more: (full if what == fcntl.F_FULLFSYNC else real)(fd, what, *more)
        else:
            os.fdatasync = cls._counted(os.fdatasync)

    @classmethod
    def _counted(cls, sync: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> None:
            cls.syncs += 1
            if not cls.off:
                started = time.perf_counter_ns()
                sync(*arguments)
                cls.ns += time.perf_counter_ns() - started

        return counted


def written() -> int:
    """Bytes that this process has asked the kernel to write so far; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/io", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"wchar"))


class Step(NamedTuple):
    """The records of a step on both sides of its first sync, and its messages as the thread takes them."""

    ahead: list[JournalRecord]
    rest: list[JournalRecord]
    assistant: Message
    results: list[Message]

    @property
    def thread_bytes(self) -> int:
        return sum(len(message_of(record) or b"") for record in (*self.ahead, *self.rest))


def make_step(number: int, calls: int = 1, text: str = "Again.") -> Step:
    """A step as the loop records it, with a result of 1 KB for each call."""
    ids = [f"call_{number:06}_{call}" for call in range(calls)]
    output = (f"{number:06} The quick brown fox jumps over the lazy dog.\n" * 20)[:RESULT_BYTES]
    named = tuple(ToolCall(call, "RunCommand", {"command": f"head -c 1024 notes-{number}.txt"}) for call in ids)
    assistant = Message("assistant", text, 30, named)
    results = [Message("tool", output, 300, tool_call_id=call) for call in ids]
    step = f"step_{number:06}"
    usage = TokenUsage(1000, 30, 900)
    rows: list[CallRow] = [{"callId": call, "sideEffects": True} for call in ids]
    said = encode(assistant, MACHINE, session_id=SESSION, task_id="task_1", step_id=step)
    done = [encode(result, MACHINE, session_id=SESSION, task_id="task_1", step_id=step) for result in results]
    started = [CallStarted(call) for call in ids]
    finished = [CallFinished(call, "succeeded", data) for call, data in zip(ids, done, strict=True)]
    return Step(
        [TurnTaken(step, "tool_use", "b" * 36, usage, rows, said)],
        [*started, *finished, StepCommitted(number)],
        assistant,
        results,
    )


def long_steps(messages: int) -> Iterator[Step]:
    """The steps of a thread of so many messages, the system prompt and the user's among them: 10 MiB for 10,000."""
    steps = steps_of(messages)
    padding = "x" * (messages * MIB // 1000 // (steps + 1) - make_step(1, text="").thread_bytes)
    return (make_step(number, text=padding) for number in range(1, steps + 1))


def steps_of(messages: int) -> int:
    """A step is two messages; the system prompt and the user's stand in front."""
    return messages // 2 - 1


def new_session(folder: str) -> Store:
    system = encode(Message("system", "Be careful.", 3), MACHINE, session_id=SESSION)
    state = Checkpoint(
        SessionIdentity(SESSION, "ws", "tenant", "user", {"flags": {}, "workspace": folder}), thread=[system]
    )
    store = Store(folder, state)
    prompt = encode(Message("user", "Read on.", 3), MACHINE, session_id=SESSION, task_id="task_1")
    store.append(record_of("task_started", {"taskId": "task_1", "prompt": "Read on.", "maxSteps": 10**6}, prompt))
    return store


class Cost(NamedTuple):
    """Milliseconds of a step, and those of them that were not spent in syncs."""

    ms: float
    own_ms: float


def keep(store: Store, step: Step) -> Cost:
    """Write a step durably."""
    syncs_ns, started = Disk.ns, time.perf_counter_ns()
    for record in step.ahead:
        store.append(record)
    store.sync()
    for record in step.rest:
        store.append(record)
    store.sync()
    total_ns = time.perf_counter_ns() - started
    return Cost(total_ns / 1e6, (total_ns - Disk.ns + syncs_ns) / 1e6)


def files_in(folder: str) -> set[tuple[str, int]]:
    """Names and inodes: they change when the store puts a new file in place of an old one, which is a compaction."""
    return {(name, os.stat(os.path.join(at, name)).st_ino) for at, _, names in os.walk(folder) for name in names}
