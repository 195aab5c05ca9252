"""Both state machines of a session as tables (AH 3.3): the session's life, and the current task within it.

A row has a trigger, its source states, its target state, its condition and its effects. A transition without a row is
impossible: `Machine.fire` raises. docs/states.md is generated from these tables.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from config import lean_typing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EndStatus = Literal["completed", "failed", "cancelled", "paused"]


class SessionStatus(StrEnum):
    """`sessionStatus` on the wire and in records."""

    CREATED = "SESSION_CREATED"
    RUNNING = "SESSION_RUNNING"
    PAUSED = "SESSION_PAUSED"
    COMPLETED = "SESSION_COMPLETED"
    FAILED = "SESSION_FAILED"
    CANCELLED = "SESSION_CANCELLED"


class TaskPhase(StrEnum):
    """`task.status` on the wire. IDLE: no task is running."""

    IDLE = "IDLE"
    RUNNING = "TASK_RUNNING"
    WAITING_FOR_LLM = "WAITING_FOR_LLM"
    PROCESSING_RESPONSE = "PROCESSING_RESPONSE"
    CHECKING_POLICY = "CHECKING_POLICY"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    EXECUTING_TOOLS = "EXECUTING_TOOLS"
    COMPLETED = "TASK_COMPLETED"
    FAILED = "TASK_FAILED"
    CANCELLED = "TASK_CANCELLED"


State = TypeVar("State", bound=StrEnum)


class TaskEnd(lean_typing.NamedTuple):
    """The end of a task. `reason` is a documented name, `message` one line for the user, `text` the model's last text.
    `resumable`: the task is still open in the checkpoint."""

    status: EndStatus
    reason: str | None = None
    message: str | None = None
    text: str = ""
    resumable: bool = False


class Transition(NamedTuple, Generic[State]):
    """One row: `trigger` leads from each of `sources` to `target`. `when` and `action` are documentation."""

    trigger: str
    sources: tuple[State, ...]
    target: State
    when: str
    action: str = ""


class IllegalTransition(RuntimeError):
    """The table has no such trigger for the current state: a bug, not a user error."""


_S, _T = SessionStatus, TaskPhase
_AT_WORK = (
    _T.RUNNING, _T.WAITING_FOR_LLM, _T.PROCESSING_RESPONSE, _T.CHECKING_POLICY, _T.WAITING_FOR_APPROVAL,
    _T.EXECUTING_TOOLS,
)  # fmt: skip

SESSION_TABLE: tuple[Transition[SessionStatus], ...] = (
    Transition("open", (_S.CREATED,), _S.RUNNING, "the policy is valid, the host compatible", "store, thread, events"),
    Transition("pause", (_S.RUNNING,), _S.PAUSED, "the network fails, the policy expires, the disk fails",
               "checkpoint, `session_paused`"),
    Transition("resume", (_S.PAUSED,), _S.RUNNING, "ResumeSession with a valid policy",
               "new policy, the task continues"),
    Transition("complete", (_S.RUNNING,), _S.COMPLETED, "Shutdown without a running task",
               "history, `session_completed`, checkpoint removed"),
    Transition("cancel", (_S.RUNNING, _S.PAUSED), _S.CANCELLED,
               "Shutdown with a running or suspended task, or in a pause",
               "task cancelled, history, `session_cancelled`, checkpoint removed"),
    Transition("fail", (_S.RUNNING, _S.PAUSED), _S.FAILED,
               "a fault of the program itself, or the Session Service has ended the session",
               "`session_failed`; the records stay, but the checkpoint is removed if the service ended the session"),
)  # fmt: skip

TASK_TABLE: tuple[Transition[TaskPhase], ...] = (
    Transition("start", (_T.IDLE,), _T.RUNNING, "StartTask", "the prompt is recorded"),
    Transition("resume", (_T.IDLE,), _T.RUNNING, "ResumeSession finds a task that is not over"),
    Transition("call_model", (_T.RUNNING,), _T.WAITING_FOR_LLM, "policy and budget allow a request", "request sent"),
    Transition("answered", (_T.WAITING_FOR_LLM,), _T.PROCESSING_RESPONSE, "the answer is complete", "usage counted"),
    Transition("reopen", (_T.RUNNING,), _T.PROCESSING_RESPONSE, "a crash or a pause left a step open"),
    Transition("check", (_T.PROCESSING_RESPONSE,), _T.CHECKING_POLICY, "the answer has tool calls",
               "turn recorded, synced"),
    Transition("ask", (_T.CHECKING_POLICY, _T.EXECUTING_TOOLS), _T.WAITING_FOR_APPROVAL,
               "a call needs an approval; others continue", "`approval_requested`"),
    Transition("execute", (_T.CHECKING_POLICY, _T.WAITING_FOR_APPROVAL), _T.EXECUTING_TOOLS,
               "no call waits for an answer (any more)", "allowed calls run, denied ones are answered"),
    Transition("step_done", (_T.EXECUTING_TOOLS,), _T.RUNNING, "every call has its result", "checkpoint"),
    Transition("cut_short", (_T.PROCESSING_RESPONSE,), _T.RUNNING, "the answer paused, or hit a limit", "checkpoint"),
    Transition("complete", (_T.PROCESSING_RESPONSE,), _T.COMPLETED, "a complete answer without tool calls",
               "`task_completed`"),
    Transition("fail", (_T.RUNNING, _T.WAITING_FOR_LLM, _T.PROCESSING_RESPONSE), _T.FAILED,
               "steps or tokens are used up, the gateway or a guardrail rejects the request", "`task_failed`"),
    Transition("cancel", (_T.RUNNING, _T.WAITING_FOR_LLM), _T.CANCELLED, "CancelTask or Shutdown, at a safe point",
               "`task_cancelled`"),
    Transition("suspend", _AT_WORK, _T.IDLE, "the session pauses, or the process ends: the task stays open",
               "checkpoint"),
    Transition("settle", (_T.COMPLETED, _T.FAILED, _T.CANCELLED), _T.IDLE, "the history is uploaded"),
)  # fmt: skip


class Machine(Generic[State]):
    """The state of one session or task. Only `fire` changes `state`."""

    def __init__(self, table: Iterable[Transition[State]], state: State) -> None:
        self._moves = moves(table)
        self._state = state

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    def may(self, trigger: str) -> bool:
        """True if the table has a row for `trigger` in the current state."""
        return (self._state, trigger) in self._moves

    def fire(self, trigger: str) -> None:
        """Change to the state that `trigger` leads to. Raises IllegalTransition and leaves the state unchanged if there
        is none."""
        target = self._moves.get((self._state, trigger))
        if target is None:
            raise IllegalTransition(f"{trigger!r} cannot follow {self._state}")
        self._state = target


def moves(table: Iterable[Transition[State]]) -> Mapping[tuple[State, str], State]:
    """The table by (state, trigger). Raises ValueError if two rows disagree."""
    found: dict[tuple[State, str], State] = {}
    for row in table:
        for source in row.sources:
            if (source, row.trigger) in found:
                raise ValueError(f"{row.trigger!r} from {source} stands twice")
            found[source, row.trigger] = row.target
    return found


def session_machine() -> Machine[SessionStatus]:
    """Return the machine of a session that is being created."""
    return Machine(SESSION_TABLE, SessionStatus.CREATED)


def task_machine() -> Machine[TaskPhase]:
    """Return the machine of a session's task, without a running task."""
    return Machine(TASK_TABLE, TaskPhase.IDLE)
