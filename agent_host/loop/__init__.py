"""The parts that the loop works with: one value, composed by the session, that every part of the loop gets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events import EventType
from agent_host.judging import Registry
from agent_host.thread.messages import ToolCall, encode, holds_arguments, set_lengths
from config.lean_typing import NamedTuple
from policy.redaction import PLACEHOLDER
from policy.rules import TaskOptions
from state import WriteFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping

    from agent_host.approval.gate import ApprovalGate, ElicitationQueue
    from agent_host.contracts import Category, ToolRouter
    from agent_host.events.emitter import Emitter, LiveOutput
    from agent_host.ids import Outside
    from agent_host.judging import Judge, PreparedCall
    from agent_host.llm import Meaning
    from agent_host.loop.conversation import Conversation
    from agent_host.loop.progress import Cancellation, Progress
    from agent_host.redaction import Scrubber
    from agent_host.services.workspace import EmbeddedWorkspaceService, UploadQueue
    from agent_host.states import Machine, TaskPhase
    from agent_host.thread.messages import Block, Message
    from agent_host.workspace_changes.watch import Watch, WatchWindow
    from state.checkpoint import Checkpoint, Task
    from state.file_session import FileSession
    from state.records import JournalRecord

_T = TypeVar("_T")


class ResumeNote(NamedTuple):
    """A note for the model about a task that continues; `workspace` is the new one if the note is about one."""

    text: str
    workspace: str | None = None


class Replay(NamedTuple):
    """One call to run after all: the id by which it was approved, and the denied calls that it makes good for. `place`
    and `approve` are the place that was asked about and what approves its kind, as on record of the last of these."""

    replay_id: str
    call: ToolCall
    settles: tuple[str, ...]
    place: str | None = None
    approve: str | None = None


class Step(NamedTuple):
    """A recorded model turn. `calls` are its calls with policy's decision on each; None for a step that a crash left
    open, because recovery decides about its calls first. `stop` is the gateway's stop reason and `detail` the gateway's
    explanation of it; a crash loses both."""

    assistant: Message
    meaning: Meaning
    calls: tuple[PreparedCall, ...] | None
    stop: str = ""
    detail: str = ""


MODEL_OPTION, MAX_COST_OPTION = "model", "max_cost"
"""Recorded options of a task: its model and its maximum cost."""
MAX_COST: Final = "--max-cost, llm.max_cost"
"""The session's limit, as the message of an end by it names it."""
LISTS_OPTION = "tool_lists"
"""Recorded option of a task: SHA-256 of each remote tool list that it uses, by source."""
_OF_ITS_CALLS = frozenset((MODEL_OPTION, MAX_COST_OPTION, LISTS_OPTION))


class ArtifactPlaces(NamedTuple):
    """Destinations of artifacts: `home` stores them on this disk, and `queue` uploads them if the Workspace Service is
    remote (`elsewhere`). The lock `one_large` admits one large artifact at a time."""

    home: EmbeddedWorkspaceService
    queue: UploadQueue
    elsewhere: bool
    one_large: asyncio.Lock


class CommandWatch:
    """Watches what the commands of one session change in the workspace at this real path. `excluded` are folders of the
    host itself. `background_window` is the snapshot taken when background commands started, None if none runs."""

    def __init__(self, workspace: str, excluded: Collection[str] = ()) -> None:
        self._places = workspace, tuple(excluded)
        self._watch: Watch | None = None
        self.background_window: WatchWindow | None = None

    def watch(self) -> Watch:
        """The watch, made with the first command."""
        if self._watch is None:
            from agent_host.workspace_changes.watch import Watch

            self._watch = Watch(*self._places)
        return self._watch


@dataclass(slots=True, eq=False, repr=False)
class LoopContext:
    """The parts of one session; `conversation.renew_head` comes before its first use. `phase` is the state of the
    current task; `max_concurrent` is the maximum number of concurrent calls of one turn, by category; `questions` are
    the unanswered questions, `progress` counts turns without effect. `command_watch` detects what commands change; None
    if the settings turn it off. `state` is the session's recoverable state; `step_id` is the current step, or the last
    one."""

    journal: Journal
    judge: Judge
    conversation: Conversation
    router: ToolRouter
    gate: ApprovalGate
    emitter: Emitter
    artifacts: ArtifactPlaces
    cancellation: Cancellation
    scrubber: Scrubber
    phase: Machine[TaskPhase]
    live_output: LiveOutput
    max_concurrent: Mapping[Category, int]
    questions: ElicitationQueue
    progress: Progress
    outside: Outside
    command_watch: CommandWatch | None = None
    state: Checkpoint = field(init=False)
    session_id: str = field(init=False)
    step_id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.state = self.journal.store.state
        self.session_id = self.state.identity.session_id

    async def refresh_tools(self) -> None:
        """Take the tools that the router has now. Those from elsewhere stay as the task has had them so far."""
        self.judge.tool_lists = await self.router.fix(self.task.options.get(LISTS_OPTION, {}))
        specs = tuple(await self.router.tools())
        if specs != tuple(self.judge.tools):
            self.judge.tools = Registry(specs)
            self.conversation.renew_head(self.judge)

    def begin_task(self, task: Task) -> None:
        """Apply the options and the model of a recorded task that starts or continues."""
        options = {name: value for name, value in task.options.items() if name not in _OF_ITS_CALLS}
        self.narrow_task(TaskOptions(**options))
        self.conversation.use_model(task.options.get(MODEL_OPTION), self.judge)
        self.use_skills()

    def use_skills(self) -> None:
        """Have the skills that the current task uses limit the tools: from the call that has read one until the task
        ends, each leaves only the tools that its `allowed-tools` name, None all of them (SK 3.1)."""
        judge = self.judge
        limits = {limit for limit in judge.limits if limit.commands is None}
        limited = {name: allowed for name, allowed in self.task.skills.items() if allowed is not None}
        limits |= {judge.skill_tools(name, allowed).limit for name, allowed in limited.items()}
        if limits != judge.limits:
            judge.limits = frozenset(limits)
            self.conversation.renew_head(judge)

    def narrow_task(self, options: TaskOptions) -> None:
        """Have `options` hold for the current task."""
        if options != self.judge.options:
            self.judge.options = options
            self.conversation.renew_head(self.judge)

    @property
    def task(self) -> Task:
        """The current task."""
        task = self.state.task
        if task is None:
            raise RuntimeError("the loop runs only with a task")
        return task

    def encode(self, message: Message, step_id: str | None = None) -> bytes:
        """Encode a message of the current task for the record. A result follows its turn, all else the last message."""
        state = self.state
        step = state.open_step if message.role == "tool" else None
        parent = state.last_message if step is None else state.thread[step.position]
        task_id = self.task.task_id
        return encode(
            message, self.outside, session_id=self.session_id, task_id=task_id, step_id=step_id, parent=parent
        )

    def emit(self, event_type: EventType, step_id: str | None, **payload: object) -> None:
        """An event of the current task, or of the session before its first one."""
        task = self.state.task
        self.emitter.emit(event_type, payload, task_id=None if task is None else task.task_id, step_id=step_id)


# The loop's records, and when each is durable (design section 6).


class Journal:
    """The record of one session. `max_stored_bytes` is the limit at which `store` is full. `keeps_versions`:
    each version of a file that a call writes over is kept, and not only the first of a task."""

    def __init__(
        self, store: FileSession, emitter: Emitter, max_stored_bytes: int, *, keeps_versions: bool = False
    ) -> None:
        self.store = store
        self.keeps_versions = keeps_versions
        self._emitter = emitter
        self._max_stored_bytes = max_stored_bytes
        self._reported_full = False

    def record(self, record: JournalRecord) -> None:
        """Write a record that must exist before the loop continues. Raises CheckpointWriteFailed."""
        _have_done(self.store.append, record)

    def try_record(self, record: JournalRecord) -> None:
        """Write a record, or change nothing. Raises CheckpointWriteFailed."""
        _have_done(self.store.try_append, record)

    def write_ahead(self) -> None:
        """Sync all records before an effect may follow. Raises CheckpointWriteFailed."""
        _have_done(self.store.sync)
        self._report_storage_limit(None)

    def record_durably(self, record: JournalRecord, undo: JournalRecord) -> None:
        """Write a record, durable on return. Raises CheckpointWriteFailed after `undo` has reverted it."""
        self.try_record(record)
        try:
            self.write_ahead()
        except CheckpointWriteFailed:
            self.checkpoint(None, undo)
            raise

    def checkpoint(self, step_id: str | None, record: JournalRecord, *, sync: bool = True) -> None:
        """Record something that has already happened; `sync` is False if more records follow at once. A failure is
        reported, and the next write includes this record (AH 11)."""
        try:
            self.store.append(record)
            if sync:
                self.store.sync()
        except WriteFailed as error:
            self._emit(EventType.CHECKPOINT_FAILED, step_id, message=str(error), code=ErrorCode.CHECKPOINT_WRITE_FAILED)
        self._report_storage_limit(step_id)

    def keep(self, data: bytes) -> str:
        """Store large data with the session; see `FileSession.keep`."""
        name = self.store.keep(data)
        self._report_storage_limit(None)
        return name

    def has_room(self) -> bool:
        """True if another step has room on record; see `FileSession.has_room`. Raises CheckpointWriteFailed."""
        return _have_done(self.store.has_room)

    def _report_storage_limit(self, step_id: str | None) -> None:
        if not self._reported_full and self.store.storage_full:
            self._reported_full = True
            message = (
                f"the session has reached host.max_stored_bytes ({self._max_stored_bytes} bytes): artifacts, "
                "versions of files and records are no longer kept"
            )
            self._emit(EventType.STORAGE_LIMIT_REACHED, step_id, message=message)

    def _emit(self, event_type: EventType, step_id: str | None, **payload: object) -> None:
        task = self.store.state.task
        self._emitter.emit(event_type, payload, task_id=None if task is None else task.task_id, step_id=step_id)


def _have_done(write: Callable[..., _T], *args: JournalRecord) -> _T:
    try:
        return write(*args)
    except WriteFailed as error:
        raise CheckpointWriteFailed(f"{error}; nothing was started") from error


# Everything of a model's turn is recorded except secrets (AH 8.7).
#
# Calls run with the model's own arguments, byte for byte. Their records, and what the model reads of them later,
# contain placeholders. So a call whose arguments contained a secret cannot be resumed from its record, which says so.

NOT_KEPT = "its arguments contained a secret, which is stored nowhere, so it cannot be resumed: make the call again"
_HOLDS_PLACEHOLDER = (
    "the arguments hold {placeholder}, which stands in the place of a secret that you were not shown; it would be put "
    "there for good: leave that part of the file as it is, or name where the value is to come from"
)


def clean_message(scrubber: Scrubber, message: Message) -> Message:
    """Redact a message for the record and for later requests. A provider block that contains a secret is omitted:
    blocks are signed, and the provider would reject one with a placeholder."""
    content = scrubber.text(message.content)
    changed = content != message.content
    calls = tuple(_clean_call(scrubber, call) for call in message.tool_calls)
    # Detection in arguments depends on the position of a value, so it misses a text that quotes them.
    of_others = calls != message.tool_calls

    def is_kept(block: Block) -> bool:
        is_other = (changed and block.holds_text) or (of_others and holds_arguments(block))
        raw = block.raw.encode()
        return not is_other and scrubber.json(raw) == raw

    kept = message.keeping(is_kept)
    if changed:
        texts = [scrubber.text(part) for part in kept.parts() if isinstance(part, str)]
        # A secret may begin in one text and end in the next: then they become one.
        lengths = [len(text) for text in texts] if "".join(texts) == content else [len(content)]
        kept = kept._replace(content=content, order=set_lengths(kept.order, lengths))
    return kept._replace(tool_calls=calls)


def holds_secret(scrubber: Scrubber, call: ToolCall) -> bool:
    """True if the call's arguments contain a secret."""
    return scrubber.json(call.arguments_json) != call.arguments_json


def placeholder_problem(call: ToolCall) -> str | None:
    """Return why a call that would write a placeholder in place of a secret cannot run; None for any other call."""
    if b"[redacted:" not in call.arguments_json:
        return None
    found = re.search(PLACEHOLDER, call.arguments_json.decode())
    return None if found is None else _HOLDS_PLACEHOLDER.format(placeholder=found.group())


def _clean_call(scrubber: Scrubber, call: ToolCall) -> ToolCall:
    clean = scrubber.json(call.arguments_json)
    return call if clean == call.arguments_json else ToolCall(call.call_id, call.name, orjson.loads(clean), NOT_KEPT)
