"""What a server asks a person in the middle of a call: elicitation, in both eras of the protocol (TR 9).

In the older era it is a request of the server, which does not say during which call; in the newer one it is the answer
to the call, which is then sent again with what the person said. A server that asks outside of a call gets no answer,
and so does one that asks too often. The host's model and its directories are not for servers.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types

from agent_host.contracts import PersonAsked
from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from agent_host.contracts import PersonAnswer

    Ask = Callable[[PersonAsked], Awaitable[PersonAnswer]]
    Send = Callable[[Mapping[str, Any]], Awaitable[types.CallToolResult | types.InputRequiredResult]]

MAX_QUESTIONS: Final = 10
"""Of one call."""
_PAUSE_S: Final = 0.05
_MAX_MESSAGE_CHARS: Final = 65_536
_NOT_HERE: Final = "questions are answered in the middle of a call only"
_TOO_MANY: Final = f"more than {MAX_QUESTIONS} questions in one call"


class NotSent(Exception):
    """The server has not got the request: it may be sent again on another connection."""


class _Call:
    """A call under way, whose questions go to `ask`."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.asked = 0
        self.waiting: set[asyncio.Future[PersonAnswer]] = set()


class Questions:
    """Those of one connection. `source` is what people are told who asks."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._calls: list[_Call] = []

    @asynccontextmanager
    async def during(self, ask: Ask | None) -> AsyncIterator[_Call | None]:
        """A call that questions may be asked in; those that wait when it is over are taken back."""
        if ask is None:
            yield None
            return
        call = _Call(ask)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)
            for one in call.waiting:
                one.cancel()
            if call.waiting:
                await asyncio.wait(call.waiting)

    async def finished(self, send: Send, ask: Ask | None) -> types.CallToolResult:
        """The result of a call, which is sent again with what a server of the newer era asks for. Raises what `send`
        raises, and ToolFault for what is not given."""
        async with self.during(ask) as call:
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
        raise ToolFault(FaultKind.SYSTEM, f"the server has not answered after {MAX_QUESTIONS} rounds of questions")

    async def answer(
        self,
        context: Any,  # noqa: ARG002  the SDK calls it by this name
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        """See the SDK's ElicitationFnT, for a request of the server. It belongs to the call that began last."""
        if not self._calls:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NOT_HERE)
        return await self._asked(self._calls[-1], params)

    async def answers(self, call: _Call | None, wanted: types.InputRequests) -> types.InputResponses:
        """What a call is to be sent again with. Raises ToolFault for what is not given."""
        found: types.InputResponses = {}
        for key, one in wanted.items():
            if call is None or not isinstance(one, types.ElicitRequest):
                what = "a person" if isinstance(one, types.ElicitRequest) else "the host's model or its directories"
                raise ToolFault(FaultKind.SYSTEM, f"the server asks for more than the call: {what}, and gets none here")
            answer = await self._asked(call, one.params)
            if isinstance(answer, types.ErrorData):
                raise ToolFault(FaultKind.SYSTEM, answer.message)
            found[key] = answer
        return found

    async def _asked(self, call: _Call, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        call.asked += 1
        if call.asked > MAX_QUESTIONS:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_TOO_MANY)
        asking = asyncio.ensure_future(call.ask(_question(self._source, params)))
        call.waiting.add(asking)
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait([asking])
            raise
        finally:
            call.waiting.discard(asking)
        if asking.cancelled():  # the call is over
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
