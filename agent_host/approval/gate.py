"""Approval gates, which answer if policy requires a person's approval (AH 10): from approvals in advance, or by a
person, for whom calls wait."""

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
        """A person's answer: the keyword arguments of `PendingApprovals.decide`."""

        approved: Required[bool]
        scope: Scope
        reason: str | None
        arguments: Mapping[str, Any] | None
        answered_by: AnsweredBy


Delivery = Literal["delivered", "not_found"]


class ApprovalGate(Protocol):
    """A gate that waits for an answer as long as it takes; meanwhile the loop continues with the calls that need
    none."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Return the answer to one request."""


class InAdvance(NamedTuple):
    """Approvals given in advance. `names` contains approval rule ids, tool names and capability names, as given to
    `--approve`; `everything` is `--approve-all`. Only the name of its tool approves a call of a guarded tool (SK 3.2);
    only the name SANDBOX_GRANT approves a call that requests more than its sandbox allows."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    def answer(self, request: ApprovalRequest) -> ApprovalAnswer | None:
        """Return the approval of `request`, None if nothing approves it in advance. A form is never answered in
        advance."""
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
    """A gate without an approver: calls approved in advance are approved, all others are denied at once (SK 4.2)."""

    def __init__(self, in_advance: frozenset[str], *, approve_all: bool = False) -> None:
        self._in_advance = InAdvance(in_advance, approve_all)

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer from the approvals given before the run."""
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


# The gate as the loop sees it: a call that waits for it shows in the task's state (AH 3.3).


class WatchedGate:
    """An `ApprovalGate` in front of another. The task is in the state of waiting as long as any of its calls waits for
    approval."""

    def __init__(self, gate: ApprovalGate, phase: Machine[TaskPhase]) -> None:
        self._gate = gate
        self._phase = phase
        self._waiting = 0

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Return the answer to one request."""
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
    """Simultaneous questions of one turn, each with the action that an approval for a task or a session would be bound
    to. One answer may cover several of them (AH 10.2)."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[ApprovalAnswer]]] = {}

    async def ask(self, gate: ApprovalGate, request: ApprovalRequest, action: str) -> ApprovalAnswer:
        """Return the gate's answer, or the answer to an equal question if it covers this one, whichever comes first."""
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
    """An ApprovalGate whose answers come from outside, by the approval's id. Calls approved in advance are answered at
    once; a call without an answer within `timeout_s` seconds, or the bundle's timeout, is denied. A `prompt` asks a
    person too, and is cancelled, with a message, if another answer is faster; then the timeout is the prompt's own.
    `on_asked` is called with this gate and the session's id when a question opens. Only the first answer counts; a
    timeout is an answer too. All calls are made on the session's event loop."""

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
        """Wait for the answer to one request. Raises RuntimeError for an id that is already waiting."""
        answer = self._in_advance.answer(request)
        if answer is not None:
            return answer
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
            if prompting.cancel(*_cancel_message(waiting.answer)):
                await asyncio.wait({prompting})
            if not prompting.cancelled():
                prompting.exception()  # too late to count

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
        those of the call, or are the fields of a form; a denial ignores them. Raises ValueError for arguments that
        cannot be recorded, or do not fit the form; the call stays waiting."""
        waiting = self._waiting.get(approval_id)
        if waiting is None or waiting.answer.done():  # done: its call was just given up
            return "not_found"
        form = waiting.request.form
        wrong = form.problem(arguments or {}) if approved and form is not None else None
        if wrong is not None:
            raise ValueError(wrong)
        edited = _recordable(arguments) if approved and arguments is not None else None
        text = reason or ("approved by the user" if approved else "denied by the user")
        text = text[:2000].encode("utf-8", "replace").decode()
        scope = scope if approved else "once"
        self._settle(waiting, ApprovalAnswer(approved, text, scope=scope, arguments=edited, answered_by=answered_by))
        return "delivered"

    def tool_of(self, approval_id: str) -> str | None:
        """Return the tool whose call waits for this approval, None if no call waits or a form does."""
        waiting = self._waiting.get(approval_id)
        return None if waiting is None or waiting.request.form is not None else waiting.request.tool_name

    def is_form(self, approval_id: str) -> bool:
        """True if a form of an MCP server waits under this id."""
        waiting = self._waiting.get(approval_id)
        return waiting is not None and waiting.request.form is not None

    def answer_to(self, approval_id: str) -> ApprovalAnswer | None:
        """Return the answer to a question of this process, None if it has none, or if 1000 others were answered
        since."""
        return self._answered.get(approval_id)

    def rows(self) -> list[dict[str, Any]]:
        """Return the waiting calls, oldest first: the payload of `approval_requested`, with session, task and step."""
        asked = [waiting.request for waiting in self._waiting.values()]
        return [
            {**one.to_payload(), "sessionId": one.session_id, "taskId": one.task_id, "stepId": one.step_id}
            for one in asked
        ]

    def suspend(self) -> None:
        """Stop the timeouts because the client is gone; waiting calls stay open indefinitely."""
        self._attended = False
        for waiting in self._waiting.values():
            waiting.stop_clock()

    def attend(self) -> None:
        """Restart the full timeout of waiting calls, because a client is present (again)."""
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
        """Answer the call and remove the approval at once, not when the call wakes up: from now on it is not found."""
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


def _cancel_message(answer: asyncio.Future[ApprovalAnswer]) -> tuple[str, ...]:
    """Return the message for cancelling a prompt: the answer that the question got meanwhile, if any."""
    if not answer.done() or answer.cancelled():
        return ()
    decision = answer.result()
    return (f"{'approved' if decision.approved else 'denied'} elsewhere: {decision.reason}",)


def _recordable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy `arguments`. Raises ValueError for values that cannot be recorded, such as lone surrogates."""
    try:
        encoded = orjson.dumps([[[[dict(arguments)]]]])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments cannot be put on record: {error}") from error
    copy = orjson.loads(encoded)[0][0][0][0]
    if not isinstance(copy, dict):
        raise TypeError("arguments are an object")
    return copy
