"""A session's loop with all its own parts, around a scripted model and tools that are functions (`loop_parts`).

    loop = Loop(tmp_path, calls(shell("make")), says("Done."))
    end = await loop.run()
    assert loop.tools.ran == ["make"]

The store is in memory, or on a `SimulatedDisk`, which can fail and lose its power. Every request of the loop is read as
strictly as the shipped gateway reads it, and every event is held against the table of events.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.approval.gate import ElicitationQueue, UnattendedGate, WatchedGate
from agent_host.events.emitter import LiveOutput
from agent_host.host.environment import BUILT_IN
from agent_host.http import RetryPolicy
from agent_host.ids import MACHINE
from agent_host.judging import Environment, Judge
from agent_host.llm.deferred import KnownModels
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.loop import ArtifactPlaces, Journal, LoopContext
from agent_host.loop.conversation import Conversation, ForModel
from agent_host.loop.progress import Cancellation, Progress
from agent_host.loop.task import run_task
from agent_host.redaction import Scrubber
from agent_host.services.workspace import UploadLimits, UploadQueue
from agent_host.states import task_machine
from agent_host.thread import Thread
from agent_host.thread.messages import Message, decode, encode, estimate, message_tokens
from policy.redaction import Redaction
from policy.rules import AS_THE_BUNDLE_SAYS, NO_LIMITS
from state.checkpoint import Checkpoint, SessionIdentity
from state.file_store import FileCheckpointStore
from state.records import JournalRecord, fields_of, kind_of, record_of
from tests.support.events import Watcher, emitter, problems
from tests.support.loop_parts import MODEL, NOW, SESSION, TASK, Artifacts, Home, Script, Tools, bundle
from tests.support.memory_store import MemoryCheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import Category
    from agent_host.events import EventType
    from agent_host.faults.disk import SimulatedDisk
    from agent_host.states import TaskEnd
    from policy.bundle import PolicyBundle
    from policy.rules import Limits, TaskOptions
    from state.checkpoint import CallStatus
    from tests.support.loop_parts import Turn
    from tests.support.memory_store import CheckpointStore


class Answer(NamedTuple):
    """One call as the model read of it in the end."""

    call_id: str
    text: str
    is_error: bool

    @property
    def code(self) -> str:
        """The word in front of the first colon."""
        return self.text.partition(":")[0]


class Loop:
    """One process with one session. `again` is the next process.

    `disk`: where the session is kept; in memory without one. `sessions`: a store that has the session already. `models`
    is the section `[models]` of the configuration, and `max_cost` what the session may cost.
    """

    def __init__(
        self,
        folder: Path | str,
        *turns: Turn,
        tools: Tools | None = None,
        gate: ApprovalGate | None = None,
        policy: PolicyBundle | None = None,
        disk: SimulatedDisk | None = None,
        sessions: CheckpointStore | None = None,
        artifacts: Artifacts | None = None,
        home: Home | None = None,
        options: TaskOptions = AS_THE_BUNDLE_SAYS,
        limits: Limits = NO_LIMITS,
        secrets: tuple[str, ...] = (),
        redaction: bool = False,
        retry: RetryPolicy = RetryPolicy(0),  # noqa: B008  a value
        max_stored: int = 10**9,
        at_once: Mapping[Category, int] | None = None,
        fallbacks: tuple[str, ...] = (),
        models: Mapping[str, Mapping[str, Any]] | None = None,
        max_cost: float = 0,
        repeats: tuple[int, int] = (3, 10),
    ) -> None:
        self.folder = os.path.realpath(folder)
        resumed = sessions is not None
        self.sessions = sessions or sessions_on(disk, max_stored)
        store = self.sessions.open(SESSION) if resumed else self.sessions.create(SESSION, self._first_state())
        self.model = Script(*turns)
        self.tools = tools or Tools()
        self.watcher = Watcher()
        self.artifacts = artifacts or Artifacts()
        self.home = home or Home()
        self.now = NOW
        out, phase = emitter(self.watcher), task_machine()
        self.ctx = LoopContext(
            journal=Journal(store, out, max_stored),
            judge=Judge(
                policy or bundle(folder),
                Environment(self.folder, None, "posix", "bash"),
                BUILT_IN,
                limits,
                lambda: self.now,
                options,
            ),
            conversation=Conversation(
                _thread(store.state, MODEL),
                self.model,
                MODEL,
                _head_of(MODEL),
                retry,
                estimate,
                KnownModels(models or {}),
                lambda model, _dropped: ForModel(_thread(store.state, model), _head_of(model)),
                fallbacks=fallbacks,
                max_cost=max_cost,
            ),
            router=self.tools,
            gate=WatchedGate(gate or UnattendedGate(frozenset()), phase),
            emitter=out,
            artifacts=ArtifactPlaces(
                self.home, UploadQueue(self.artifacts, UploadLimits()), elsewhere=True, one_large=asyncio.Lock()
            ),
            cancellation=Cancellation(),
            scrubber=Scrubber(secrets, Redaction(key=lambda: b"k") if redaction else None),
            phase=phase,
            live_output=LiveOutput(out),
            max_concurrent={"commands": 8, "files": 8, "requests": 8, "uploads": 2, **(at_once or {})},
            questions=ElicitationQueue(),
            progress=Progress(*repeats),
            outside=MACHINE,
        )
        self.ctx.conversation.renew_head(self.ctx.judge)

    # One process

    def begin(self, task_id: str = TASK, prompt: str = "Do it.", *, max_steps: int = 10) -> None:
        """Put a task on record, as the session does."""
        ctx = self.ctx
        message = Message("user", prompt, message_tokens(ctx.conversation.count, prompt))
        fields = {"taskId": task_id, "prompt": prompt, "maxSteps": max_steps}
        ctx.journal.record(
            record_of("task_started", fields, encode(message, MACHINE, session_id=SESSION, task_id=task_id))
        )
        ctx.conversation.thread.add_task(message)
        ctx.phase.fire("start")

    async def run(self, *, max_steps: int = 10, **more: Any) -> TaskEnd:
        """The task to its end, begun or gone on with."""
        if self.ctx.state.task is None:
            self.begin(max_steps=max_steps)
        elif self.ctx.phase.may("resume"):
            self.ctx.phase.fire("resume")
        async with asyncio.timeout(20):
            end = await run_task(self.ctx, **more)
        assert [problem for event in self.watcher.events for problem in problems(orjson.loads(event.line()))] == []
        return end

    def again(self, *turns: Turn, sessions: CheckpointStore | None = None, **more: Any) -> Loop:
        """The next process: after a clean end of this one, or with what another store holds."""
        if sessions is None:
            self.ctx.journal.store.close()
        kept = {"tools": Tools(self.tools.run), "policy": self.ctx.judge.bundle}
        kept |= {"artifacts": self.artifacts, "home": self.home}
        return Loop(self.folder, *turns, sessions=sessions or self.sessions, **{**kept, **more})

    def watch_records(self) -> list[tuple[str, dict[str, Any]]]:
        """Kind and fields of each record from here on."""
        seen: list[tuple[str, dict[str, Any]]] = []
        append = self.ctx.journal.store.append

        def noted(record: JournalRecord) -> None:
            seen.append((kind_of(record), fields_of(record)))
            append(record)

        self.ctx.journal.store.append = noted  # type: ignore[method-assign]  # a place to look from
        return seen

    # What it left

    def kept(self) -> Checkpoint:
        """What the next process would find if this one died now."""
        return self.sessions.load(SESSION)

    def on_record(self) -> tuple[str, str]:
        """The status of the task and of the session as the next process would find them."""
        state = self.kept()
        assert state.task is not None
        return state.task.status, state.session_status

    def answers(self) -> list[Answer]:
        """The results in the thread, in its order."""
        messages = map(decode, self.ctx.state.thread)
        return [Answer(m.tool_call_id or "", m.content, m.is_error) for m in messages if m.role == "tool"]

    def texts(self) -> list[str]:
        """The results as the model reads them."""
        return [answer.text for answer in self.answers()]

    def finished(self) -> list[tuple[str, CallStatus, str | None]]:
        """Name, status and code of each call of the task."""
        return self.ctx.task.finished_calls

    def told(self, kind: EventType) -> list[dict[str, Any]]:
        """The payloads of the events of one kind."""
        return [event.payload for event in self.watcher.events if event.event_type is kind]

    def kinds(self) -> list[EventType]:
        """The kinds of all events."""
        return [event.event_type for event in self.watcher.events]

    @staticmethod
    def _first_state() -> Checkpoint:
        identity = SessionIdentity(SESSION, "w", "tenant", "user", {"flags": {}, "workspace": "/w"})
        system = encode(Message("system", "Be careful.", 5), MACHINE, session_id=SESSION)
        return Checkpoint(identity, policy_bundle_version="v1", thread=[system])


def sessions_on(disk: SimulatedDisk | None, max_stored: int = 10**9) -> CheckpointStore:
    """The sessions that are on `disk`; in memory, and none yet, without one."""
    if disk is None:
        return MemoryCheckpointStore(blob_limit_bytes=max_stored)
    return FileCheckpointStore("/state", disk, blob_limit_bytes=max_stored)


def _head_of(model: str) -> Callable[[Judge, int], bytes]:
    return lambda _, most: AnthropicDialect().head(model=model, max_output_tokens=most, system="Be careful.", tools=())


def _thread(state: Checkpoint, model: str) -> Thread:
    thread, step = Thread(AnthropicDialect().renderer(model)), state.open_step
    still_open = None if step is None else step.position - 1
    thread.restore(
        map(decode, state.thread[1:]),
        still_open=still_open,
        dropped=state.dropped_messages,
        large_from=state.cleared_messages,
    )
    return thread
