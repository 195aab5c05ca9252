"""What the loop works with: one value, put together by the session, that every part of the loop gets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.routing.registry import Registry
from policy.options import AS_THE_BUNDLE_SAYS
from state.errors import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import Category, ToolRouter
    from agent_host.events.emitter import Emitter
    from agent_host.events.live_output import LiveOutput
    from agent_host.llm.deferred import Model
    from agent_host.llm.retry import RetryPolicy
    from agent_host.loop.cancellation import Cancellation
    from agent_host.routing.facts import Environment
    from agent_host.scrub import Scrubber
    from agent_host.services.uploads import UploadQueue
    from agent_host.services.workspace import ArtifactHome
    from agent_host.states import Machine, TaskPhase
    from agent_host.thread.thread import Thread
    from policy.bundle import PolicyBundle
    from policy.options import TaskOptions
    from policy.toolset import Limits
    from state.checkpoint import Checkpoint, Task
    from state.records import Record
    from state.store import OpenSession

EndStatus = Literal["completed", "failed", "cancelled", "paused"]


class ResumeNote(NamedTuple):
    """What the model reads when a task goes on; `workspace` is the new one where the note is about one."""

    text: str
    workspace: str | None = None


class TaskEnd(NamedTuple):
    """How a task ended. `reason` is a documented name, `message` one line for a person, `text` the model's last.
    `resumable`: the task is still open in the checkpoint."""

    status: EndStatus
    reason: str | None = None
    message: str | None = None
    text: str = ""
    resumable: bool = False


@dataclass(slots=True)
class LoopContext:
    """Collaborators, limits and switches of one session.

    `tools` are those that the router has, `limits` what takes some of them away. `make_head` gives the encoded
    front of a model request, `head` is that of the task at work, `head_tokens` its estimated size. `max_stored_bytes`
    is the limit at which the store is full. `artifacts` keeps what calls leave on this disk, and `uploads` takes it to
    the Workspace Service where that is another place (`uploads_elsewhere`). `phase` is where the task at work stands,
    `task_options` narrow it. `at_once` is how many calls of one turn may run at the same time; whoever keeps a large
    artifact holds `large_artifact`. `versions` is what calls left at a path, by SHA-256, None where only first versions
    of files are kept.
    """

    store: OpenSession
    thread: Thread
    llm: Model
    router: ToolRouter
    gate: ApprovalGate
    emitter: Emitter
    artifacts: ArtifactHome
    uploads: UploadQueue
    uploads_elsewhere: bool
    bundle: PolicyBundle
    where: Environment
    tools: Registry
    limits: Limits
    model: str
    make_head: Callable[[LoopContext], bytes]
    retry: RetryPolicy
    count: Callable[[str], int]
    clock: Callable[[], datetime]
    cancellation: Cancellation
    scrubber: Scrubber
    max_stored_bytes: int
    phase: Machine[TaskPhase]
    live_output: LiveOutput
    at_once: Mapping[Category, int]
    large_artifact: asyncio.Lock = field(default_factory=asyncio.Lock)
    policy_expired: bool = False
    storage_limit_told: bool = False
    versions: dict[str, str | None] | None = None
    task_options: TaskOptions = AS_THE_BUNDLE_SAYS
    head: bytes = b""
    head_tokens: int = 0

    def __post_init__(self) -> None:
        self.renew_head()

    def renew_head(self) -> None:
        """Make the front of model requests anew, as the bundle and the task's options are by now."""
        self.head = self.make_head(self)
        self.head_tokens = self.count(self.head.decode())

    async def refresh_tools(self) -> None:
        """Take the tools that the router has by now."""
        specs = tuple(await self.router.tools())
        if specs != tuple(self.tools):
            self.tools = Registry(specs)
            self.renew_head()

    def narrow_task(self, options: TaskOptions) -> None:
        """Have `options` hold for the task at work."""
        if options != self.task_options:
            self.task_options = options
            self.renew_head()

    @property
    def state(self) -> Checkpoint:
        """The session's recoverable state."""
        return self.store.state

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.store.state.identity.session_id

    @property
    def task(self) -> Task:
        """The task at work."""
        task = self.store.state.task
        if task is None:
            raise RuntimeError("the loop runs only with a task")
        return task

    def emit(self, event_type: EventType, step_id: str | None, **payload: object) -> None:
        """An event of the task at work, or of the session before its first one."""
        task = self.state.task
        self.emitter.emit(event_type, payload, task_id=None if task is None else task.task_id, step_id=step_id)

    def keep(self, data: bytes) -> str:
        """Keep a large thing with the session; see `OpenSession.keep`."""
        name = self.store.keep(data)
        self._tell_of_storage_limit(None)
        return name

    def record(self, record: Record) -> None:
        """Put something on record that must be there before the loop goes on. Raises CheckpointWriteFailed."""
        try:
            self.store.append(record)
        except WriteFailed as error:
            raise CheckpointWriteFailed(f"{error}; nothing was started") from error

    def has_room(self) -> bool:
        """Whether another step has room on record; see `OpenSession.has_room`. Raises CheckpointWriteFailed."""
        try:
            return self.store.has_room()
        except WriteFailed as error:
            raise CheckpointWriteFailed(f"{error}; nothing was started") from error

    def write_ahead(self) -> None:
        """Make what is recorded durable before an effect may follow. Raises CheckpointWriteFailed."""
        try:
            self.store.sync()
        except WriteFailed as error:
            raise CheckpointWriteFailed(f"{error}; nothing was started") from error
        self._tell_of_storage_limit(None)

    def checkpoint(self, step_id: str | None, record: Record, *, sync: bool = True) -> None:
        """Put something on record that has already happened, durably unless more follows at once. A failure is told,
        and the next write carries what this one could not (AH 11)."""
        try:
            self.store.append(record)
            if sync:
                self.store.sync()
        except WriteFailed as error:
            self.emit(EventType.CHECKPOINT_FAILED, step_id, message=str(error), code=ErrorCode.CHECKPOINT_WRITE_FAILED)
        self._tell_of_storage_limit(step_id)

    def _tell_of_storage_limit(self, step_id: str | None) -> None:
        if self.store.storage_full and not self.storage_limit_told:
            self.storage_limit_told = True
            message = (
                f"the session has reached host.max_stored_bytes ({self.max_stored_bytes} bytes): artifacts, "
                "versions of files and records are no longer kept"
            )
            self.emit(EventType.STORAGE_LIMIT_REACHED, step_id, message=message)
