"""Questions of MCP servers at their bounds: the last round, calls side by side, lost connections."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import PersonAnswer, PersonAsked, ToolRequest
from agent_host.ids import MACHINE
from tests.support.mcp_wire import MODERN, OLDER, WireCall, WireServer, text
from tests.unit.tool_runtime.test_mcp_wire import ERAS, NAME, Session
from tool_runtime.remote.mcp import ServerConfig, Stdio
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.remote.mcp.wire import MAX_QUESTIONS
from tool_runtime.tool import CallContext, RuntimeSettings, add_timeout

if TYPE_CHECKING:
    from tool_runtime.remote import Definition

WANTED: dict[str, Any] = {
    "resultType": "input_required",
    "requestState": "s1",
    "inputRequests": {
        "who": {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": NAME}}
    },
}


async def test_the_answer_to_the_last_round_is_the_result() -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        return text("took effect") if len(call.server.calls) > MAX_QUESTIONS else WANTED

    session = Session(WireServer(MODERN, ask=run), lambda _: PersonAnswer("accept", {"name": "Ada"}))
    assert await session.call("ask") == "took effect"
    assert (len(session.asked), len(session.server.calls)) == (MAX_QUESTIONS, MAX_QUESTIONS + 1)


async def test_a_call_whose_connection_is_lost_at_a_question_is_not_begun_anew() -> None:
    async def run(_: WireCall) -> dict[str, Any]:
        return WANTED

    server = WireServer(MODERN, ask=run)

    def answer(_: PersonAsked) -> PersonAnswer:
        server.end()
        return PersonAnswer("accept", {"name": "Ada"})

    assert await Session(server, answer).call("ask") == (
        "INTERRUPTED: the connection was lost between a question and its answer"
    )
    assert [call.get("requestState") for call in server.calls] == [None]


@pytest.mark.parametrize("version", ERAS)
async def test_a_message_without_end_is_cut(version: str) -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        if version == OLDER:
            await call.ask("x" * 100_000, **NAME)
        elif "inputResponses" not in call.params:
            form = {"mode": "form", "message": "x" * 100_000, "requestedSchema": NAME}
            return {**WANTED, "inputRequests": {"who": {"method": "elicitation/create", "params": form}}}
        return text("done")

    session = Session(WireServer(version, ask=run), lambda _: PersonAnswer("decline"))
    assert await session.call("ask") == "done"
    assert [len(asked.message) for asked in session.asked] == [65_536]


class SideBySide:
    """Two calls of one server of the older era, begun one after the other; `first` asks once both run. Its question
    waits until it is taken back, which takes until `may_end`."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self.both = asyncio.Event()
        self.put = asyncio.Event()
        self.go_on = asyncio.Event()
        self.may_end = asyncio.Event()
        self.told: list[str] = []
        self.server = WireServer(first=self._first, second=self._second)
        config = ServerConfig("odd", Stdio(("wire",), "/", {}, "mark"), 20, 20, elicitation=True)
        self.settings = RuntimeSettings(outside=MACHINE, workspace="/")
        self.source = McpSource(config, self.settings, self.server.start, ask_person=self._ask)
        self.calls: dict[str, CallContext] = {}

    async def _first(self, call: WireCall) -> dict[str, Any]:
        self.came.put_nowait("first")
        await self.both.wait()
        return text(str(await call.ask("Who?", **NAME)))

    async def _second(self, _: WireCall) -> dict[str, Any]:
        self.came.put_nowait("second")
        self.both.set()
        await self.go_on.wait()
        return text("second")

    async def _ask(self, request: ToolRequest, _: PersonAsked) -> PersonAnswer:
        self.told.append(request.tool_call_id)
        self.put.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            self.told.append("taken back")
            raise
        raise AssertionError("nobody answers")

    async def begin(self) -> list[asyncio.Task[Any]]:
        """Both calls, with the question put."""
        tools = {one.name: one for one in (await self.source.list()).definitions}
        running: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(20):
            for name in ("first", "second"):
                request = ToolRequest(f"odd/{name}", {}, "s", "t", "st", name, "Mcp.Invoke")
                self.calls[name] = CallContext.make(request, self.settings)
                running.append(asyncio.create_task(self._run(tools[f"odd/{name}"], self.calls[name])))
                assert await self.came.get() == name
            await self.put.wait()
        return running

    async def _run(self, tool: Definition, call: CallContext) -> Any:
        return await add_timeout(functools.partial(self.source.call, tool), 20)(call)

    def limits(self) -> list[float | None]:
        """When the time of each call that runs is over; None where it stands."""
        found = [call.clock.limit for call in self.calls.values()]
        return [limit.when() for limit in found if limit is not None]


async def test_a_question_may_be_of_any_call_that_runs() -> None:
    """It is shown under the latest, the time of both stands, and it is taken back with the last of them, before that
    call is over."""
    both = SideBySide()
    first, second = await both.begin()
    assert both.told == ["second"]
    assert both.limits() == [None, None]
    both.go_on.set()
    assert (await second).text == "second"
    assert (both.told, both.limits()) == (["second"], [None])
    first.cancel()
    for _ in range(50):  # turns of the loop, of which its end needs a few
        await asyncio.sleep(0)
    assert not first.done()
    both.may_end.set()
    await asyncio.wait([first])
    assert (first.cancelled(), both.told) == (True, ["second", "taken back"])
    await both.source.aclose()
