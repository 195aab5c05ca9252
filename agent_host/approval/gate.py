"""Approvers: who answers when policy requires a person's approval (AH 10): what was said in advance, or a person who is
there, for whom calls wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from agent_host.approval import ApprovalAnswer
from config.lean_typing import NamedTuple
from policy import SANDBOX_GRANT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Required, TypedDict

    from agent_host.approval import AnsweredBy, ApprovalRequest, Scope
    from agent_host.states import Machine, TaskPhase

    OnAsked = Callable[["PendingApprovals", str], None]

    class Decision(TypedDict, total=False):
        """Somebody's answer, as `PendingApprovals.decide` takes it."""

        approved: Required[bool]
        scope: Scope
        reason: str | None
        arguments: Mapping[str, Any] | None
        answered_by: AnsweredBy


Delivery = Literal["delivered", "not_found"]


class ApprovalGate(Protocol):
    """Waits for an answer as long as it takes; the loop goes on with the calls that need none."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request."""


class InAdvance(NamedTuple):
    """Approvals that were given before anybody was asked. `names` holds approval rule ids, tool names and capability
    names, as given to `--approve`; `everything` is `--approve-all`. A call of a guarded tool is approved by the name of
    its tool alone (SK 3.2), one that asks for more than its sandbox gives by the name of that alone."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    def answer(self, request: ApprovalRequest) -> ApprovalAnswer | None:
        """The approval of `request`, None where nothing was said about it. A form has no answer in advance."""
        if request.form is not None:
            return None
        if self.everything and not request.by_name:
            return ApprovalAnswer(approved=True, reason="approved in advance by --approve-all")
        names: tuple[str | None, ...] = (request.tool_name, request.rule_id, request.capability)
        if request.rule_id == SANDBOX_GRANT:
            names = (SANDBOX_GRANT,) if not request.by_name or request.tool_name in self.names else ()
        elif request.by_name:
            names = (request.tool_name,)
        for name in names:
            if name is not None and name in self.names:
                return ApprovalAnswer(approved=True, reason=f"approved in advance by --approve {name}")
        return None


class UnattendedGate:
    """Nobody is there: what was approved in advance is approved, everything else is denied at once (SK 4.2)."""

    def __init__(self, in_advance: frozenset[str], *, approve_all: bool = False) -> None:
        self._in_advance = InAdvance(in_advance, approve_all)

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer from what was said before the run."""
        answer = self._in_advance.answer(request)
        if answer is not None:
            return answer
        if request.form is not None:
            return ApprovalAnswer(approved=False, reason="no approver is present to answer it", unattended=True)
        reason = "it needs an approval, and no approver is present"
        if request.by_name:
            reason += f"; only --approve {request.tool_name} gives it in advance"
        elif request.rule_id == SANDBOX_GRANT:
            reason += f"; only --approve {SANDBOX_GRANT} gives it in advance"
        return ApprovalAnswer(approved=False, reason=reason, unattended=True)


# The gate as the loop sees it: a call that waits at it is seen in the task's state (AH 3.3).


class WatchedGate:
    """An `ApprovalGate` in front of another. The task waits for approval as long as any of its calls does."""

    def __init__(self, gate: ApprovalGate, phase: Machine[TaskPhase]) -> None:
        self._gate = gate
        self._phase = phase
        self._waiting = 0

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request."""
        if self._waiting == 0:
            self._phase.fire("ask")
        self._waiting += 1
        try:
            return await self._gate.ask(request)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._phase.fire("execute")


class ElicitationQueue:
    """Questions of one turn that wait at the gate at the same time, each with the action that an approval for a task or
    a session would be bound to: one answer may cover several of them (AH 10.2)."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[ApprovalAnswer]]] = {}

    async def ask(self, gate: ApprovalGate, request: ApprovalRequest, action: str) -> ApprovalAnswer:
        """The gate's answer, or that of an equal question that was answered for both, whichever comes first."""
        covered: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request.approval_id] = action, covered
        asking = asyncio.ensure_future(gate.ask(request))
        try:
            await asyncio.wait({asking, covered}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else covered.result()
        finally:
            del self._waiting[request.approval_id]
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
                if not asking.cancelled():
                    asking.result()  # a fault of the gate is not swallowed

    def cover(self, action: str, approval_id: str) -> None:
        """Answer every other question about the `action`, which the approval `approval_id` covers from now on."""
        for other, (waiting_for, covered) in self._waiting.items():
            if other != approval_id and waiting_for == action and not covered.done():
                covered.set_result(ApprovalAnswer(True, f"covered by the answer to {approval_id}"))


class _WaitingCall:
    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def stop_clock(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PendingApprovals:
    """An ApprovalGate whose answers come from outside, by the approval's id. What was approved in advance is answered
    at once; a call without an answer within `timeout_s` seconds, or those of the bundle, is denied. With `prompt` that
    asks a person too, and is cancelled, with a message, when another answer is faster; the time is its own then.
    `on_asked` is called with this gate and the session's id when a question opens. One answer counts, the first: the
    time-out is one too. All of it happens on the loop that the session runs on."""

    def __init__(
        self,
        *,
        timeout_s: float,
        in_advance: InAdvance | None = None,
        prompt: Callable[[ApprovalRequest], Awaitable[ApprovalAnswer]] | None = None,
        on_asked: OnAsked | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._in_advance = in_advance or InAdvance()
        self._prompt = prompt
        self._on_asked = on_asked
        self._waiting: dict[str, _WaitingCall] = {}
        self._answered: dict[str, ApprovalAnswer] = {}
        self._attended = True

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request, as soon as there is one. Raises RuntimeError for an id that waits already."""
        said = self._in_advance.answer(request)
        if said is not None:
            return said
        if request.approval_id in self._waiting:
            raise RuntimeError(f"approval {request.approval_id} waits for its answer already")
        waiting = _WaitingCall(request)
        self._waiting[request.approval_id] = waiting
        if self._attended:
            self._start_clock(waiting)
        if self._on_asked is not None:
            self._on_asked(self, request.session_id)
        try:
            return await (waiting.answer if self._prompt is None else self._first_of(waiting, self._prompt(request)))
        finally:
            self._take(request.approval_id, waiting)

    async def _first_of(self, waiting: _WaitingCall, prompt: Awaitable[ApprovalAnswer]) -> ApprovalAnswer:
        prompting = asyncio.ensure_future(prompt)
        try:
            await asyncio.wait({prompting, waiting.answer}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.answer.done():
                answer = prompting.result()
                if answer.answered_by is None and not (answer.timed_out or answer.unattended):
                    answer = answer._replace(answered_by="client")
                self._settle(waiting, answer)
            return waiting.answer.result()
        finally:
            if prompting.cancel(*_told_elsewhere(waiting.answer)):
                await asyncio.wait({prompting})
            if not prompting.cancelled():
                prompting.exception()  # it came too late to count

    def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        scope: Scope = "once",
        reason: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        answered_by: AnsweredBy = "client",
    ) -> Delivery:
        """Deliver a person's decision. An approval that is not waiting (any more) is `not_found`. `arguments` replace
        those of the call, or are the fields of a form; with a denial they mean nothing. Raises ValueError for arguments
        that could not be put on record, or are no answer to the form, and leaves the call waiting."""
        waiting = self._waiting.get(approval_id)
        if waiting is None or waiting.answer.done():  # done: its call was given up a moment ago
            return "not_found"
        form = waiting.request.form
        wrong = form.problem(arguments or {}) if approved and form is not None else None
        if wrong is not None:
            raise ValueError(wrong)
        edited = _recordable(arguments) if approved and arguments is not None else None
        said = reason or ("approved by the user" if approved else "denied by the user")
        said = said[:2000].encode("utf-8", "replace").decode()
        scope = scope if approved else "once"
        self._settle(waiting, ApprovalAnswer(approved, said, scope=scope, arguments=edited, answered_by=answered_by))
        return "delivered"

    def tool_of(self, approval_id: str) -> str | None:
        """The tool whose call waits for this approval, None where none does, or where it is a form that does."""
        waiting = self._waiting.get(approval_id)
        return None if waiting is None or waiting.request.form is not None else waiting.request.tool_name

    def is_form(self, approval_id: str) -> bool:
        """True if a form of an MCP server waits under this id."""
        waiting = self._waiting.get(approval_id)
        return waiting is not None and waiting.request.form is not None

    def answer_to(self, approval_id: str) -> ApprovalAnswer | None:
        """The answer that a question of this process has got, None for one that has none, or that was long ago."""
        return self._answered.get(approval_id)

    def rows(self) -> list[dict[str, Any]]:
        """The waiting calls, oldest first, as `approval_requested` has them, with session, task and step."""
        asked = [waiting.request for waiting in self._waiting.values()]
        return [
            {**one.to_payload(), "sessionId": one.session_id, "taskId": one.task_id, "stepId": one.step_id}
            for one in asked
        ]

    def suspend(self) -> None:
        """The client is gone: what waits stays open, without end."""
        self._attended = False
        for waiting in self._waiting.values():
            waiting.stop_clock()

    def attend(self) -> None:
        """A client is there (again): what waits has the whole time from here."""
        if not self._attended:
            self._attended = True
            for waiting in self._waiting.values():
                self._start_clock(waiting)

    def _start_clock(self, waiting: _WaitingCall) -> None:
        if self._prompt is not None:
            return
        wait_s = waiting.request.timeout_s or self._timeout_s
        waiting.timer = asyncio.get_running_loop().call_later(wait_s, self._time_out, waiting)

    def _time_out(self, waiting: _WaitingCall) -> None:
        reason = f"approval timed out after {waiting.request.timeout_s or self._timeout_s:g} s"
        self._settle(waiting, ApprovalAnswer(approved=False, reason=reason, timed_out=True))

    def _settle(self, waiting: _WaitingCall, answer: ApprovalAnswer) -> None:
        """Here, and not when the call wakes up: from now on the approval is found no more."""
        self._take(waiting.request.approval_id, waiting)
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
            self._answered[waiting.request.approval_id] = answer
            if len(self._answered) > 1000:
                del self._answered[next(iter(self._answered))]

    def _take(self, approval_id: str, waiting: _WaitingCall) -> None:
        waiting.stop_clock()
        if self._waiting.get(approval_id) is waiting:
            del self._waiting[approval_id]


def _told_elsewhere(answer: asyncio.Future[ApprovalAnswer]) -> tuple[str, ...]:
    """The message of the cancellation of a prompt: how the question was answered meanwhile, if it was."""
    if not answer.done() or answer.cancelled():
        return ()
    said = answer.result()
    return (f"{'approved' if said.approved else 'denied'} elsewhere: {said.reason}",)


def _recordable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `arguments`. Raises ValueError for what no record holds, such as lone surrogates."""
    try:
        whole = orjson.dumps([[[[dict(arguments)]]]])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments cannot be put on record: {error}") from error
    copy = orjson.loads(whole)[0][0][0][0]
    if not isinstance(copy, dict):
        raise TypeError("arguments are an object")
    return copy
