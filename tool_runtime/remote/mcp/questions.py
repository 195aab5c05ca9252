"""Questions of a server to a person in the middle of a call: elicitation, in both eras of the protocol (TR 9).

In the older era it is a request of the server, which does not say during which call; in the newer one it is the answer
to the call, which is then sent again with what the person said. A server that asks outside of a call gets no answer,
and so does one that asks too often. The host's model and its directories are not for servers.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types

from agent_host.contracts import PersonAsked
from tool_runtime.remote.mcp import NotSent
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import PersonAnswer
    from tool_runtime.remote.mcp import Asking

    Send = Callable[[Mapping[str, Any]], Awaitable[Any]]


MAX_QUESTIONS: Final = 10
"""Of one call."""
_PAUSE_S: Final = 0.05
_MAX_MESSAGE_CHARS: Final = 65_536
_NOT_HERE: Final = "questions are answered in the middle of a call only"
_TOO_MANY: Final = f"more than {MAX_QUESTIONS} questions in one call"


class _AskingCall:
    """A call under way, whose questions go to `asking`."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.asked = 0


class ServerQuestions:
    """The questions of one connection. `source` is the name that people see."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._calls: list[_AskingCall] = []
        self._waiting: dict[asyncio.Future[PersonAnswer], set[_AskingCall]] = {}
        """The questions that wait, each with the calls that it may belong to and that are not over."""

    @asynccontextmanager
    async def during(self, asking: Asking | None) -> AsyncIterator[_AskingCall | None]:
        """A call that questions may be asked in. When it is over, the questions that can belong to no other call are
        taken back."""
        if asking is None:
            yield None
            return
        call = _AskingCall(asking)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)
            for calls in self._waiting.values():
                calls.discard(call)
            over = [question for question, calls in self._waiting.items() if not calls]
            for question in over:
                question.cancel()
            if over:
                await asyncio.wait(over)

    async def finish(self, send: Send, asking: Asking | None) -> Any:
        """The result of a call, which is sent again with what a server of the newer era asks for. Raises what `send`
        raises, and ToolFault for what is not given."""
        async with self.during(asking) as call:
            answer = await send({})
            for number in range(MAX_QUESTIONS):
                if not isinstance(answer, types.InputRequiredResult):
                    return answer
                said: dict[str, Any] = {"request_state": answer.request_state}
                if answer.input_requests:
                    said["input_responses"] = await self.answers(call, answer.input_requests)
                else:  # it only wants to be asked again
                    await asyncio.sleep(_PAUSE_S * 2 ** min(number, 3))
                try:
                    answer = await send(said)
                except NotSent:
                    lost = "the connection was lost between a question and its answer"
                    raise ToolFault(FaultKind.INTERRUPTED, lost) from None
        if not isinstance(answer, types.InputRequiredResult):
            return answer
        raise ToolFault(FaultKind.SYSTEM, f"the server has not answered after {MAX_QUESTIONS} rounds of questions")

    async def answer(
        self,
        context: Any,  # noqa: ARG002  the SDK calls it by this name
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        """See the SDK's ElicitationFnT, for a request of the server. It may belong to any of the calls that run."""
        if not self._calls:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NOT_HERE)
        return await self._ask(self._calls, params)

    async def answers(self, call: _AskingCall | None, wanted: types.InputRequests) -> types.InputResponses:
        """Answer the questions of a call, which is to be sent again with them. Raises ToolFault for what is not
        given."""
        found: types.InputResponses = {}
        for key, one in wanted.items():
            if call is None or not isinstance(one, types.ElicitRequest):
                what = "a person" if isinstance(one, types.ElicitRequest) else "the host's model or its directories"
                raise ToolFault(FaultKind.SYSTEM, f"the server asks for more than the call: {what}, and gets none here")
            answer = await self._ask([call], one.params)
            if isinstance(answer, types.ErrorData):
                raise ToolFault(FaultKind.SYSTEM, answer.message)
            found[key] = answer
        return found

    async def _ask(
        self, calls: Sequence[_AskingCall], params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """The answer to a question of one of `calls`: it is put under the last of them, and the time of all stands."""
        latest = calls[-1]
        latest.asked += 1
        if latest.asked > MAX_QUESTIONS:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_TOO_MANY)
        with ExitStack() as clocks:
            for call in calls:
                clocks.enter_context(call.asking.paused())
            asking = asyncio.ensure_future(latest.asking.put(_question(self._source, params)))
            self._waiting[asking] = set(calls)
            try:
                await asyncio.wait([asking])
            except asyncio.CancelledError:
                asking.cancel()
                await asyncio.wait([asking])
                raise
            finally:
                del self._waiting[asking]
        if asking.cancelled():  # no call is left that it can belong to
            return types.ElicitResult(action="cancel")
        answer = asking.result()
        if answer.problem is not None:
            return types.ErrorData(code=types.INVALID_PARAMS, message=answer.problem)
        content = None if answer.content is None else dict(answer.content)
        return types.ElicitResult(action=answer.action, content=content)


def _question(source: str, params: types.ElicitRequestParams) -> PersonAsked:
    message = params.message[:_MAX_MESSAGE_CHARS]
    if isinstance(params, types.ElicitRequestURLParams):
        return PersonAsked(source, message, url=params.url)
    return PersonAsked(source, message, params.requested_schema)
