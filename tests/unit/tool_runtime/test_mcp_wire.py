"""MCP servers that ask, flood and lie, on the wire: what a source makes of it. The servers are in this process."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from agent_host.contracts import PersonAnswer, PersonAsked, ToolRequest
from agent_host.events import EventType
from agent_host.events.emitter import MAX_PIECE_BYTES, LiveOutput
from agent_host.ids import MACHINE
from tests.support.events import Watcher, emitter
from tests.support.mcp_wire import MODERN, OLDER, WireCall, WireServer, over_http, says, text
from tests.support.rows import each_row
from tool_runtime.remote.mcp import Http, ServerConfig, Stdio, wire
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.remote.mcp.wire import Incoming
from tool_runtime.tool import CallContext, RuntimeSettings, ToolFault, add_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

NAME: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ERAS = (OLDER, MODERN)


class Session:
    """A source over a server, and what came of it."""

    def __init__(
        self, server: WireServer, answer: Callable[[PersonAsked], PersonAnswer] | None = None, *, may_ask: bool = True
    ) -> None:
        self.server = server
        self.asked: list[PersonAsked] = []
        self.chunks: list[bytes] = []
        self._answer = answer
        place = Stdio(("wire",), "/", {}, "mark")
        config = ServerConfig("odd", place, 20, 20, elicitation=answer is not None and may_ask)
        self.settings = RuntimeSettings(
            outside=MACHINE, workspace="/", on_output=lambda _request, _name, data: self.chunks.append(data)
        )
        self.source = McpSource(config, self.settings, server.start, ask_person=self._ask)

    async def _ask(self, _: ToolRequest, asked: PersonAsked) -> PersonAnswer:
        self.asked.append(asked)
        assert self._answer is not None
        return self._answer(asked)

    async def call(self, tool: str, timeout_s: float = 20.0) -> str:
        """The text of a call; what fails is its message."""
        request = ToolRequest(f"odd/{tool}", {}, "s", "t", "st", "c1", "Mcp.Invoke")
        (one,) = [one for one in (await self.source.list()).definitions if one.name == f"odd/{tool}"]

        async def run(call: CallContext) -> Any:
            return await self.source.call(one, call)

        try:
            return str((await add_timeout(run, timeout_s)(CallContext.make(request, self.settings))).text)
        except ToolFault as fault:
            return f"{fault.kind.name}: {fault}"
        finally:
            await self.source.aclose()


def asks(version: str) -> WireServer:
    """A server with a tool that asks for a name."""

    async def run(call: WireCall) -> dict[str, Any]:
        if version == OLDER:
            reply = await call.ask("Who are you?", **NAME)
            return text(str(reply.get("result", reply.get("error"))))
        if "inputResponses" not in call.params:
            form = {"mode": "form", "message": "Who are you?", "requestedSchema": NAME}
            asked = {"who": {"method": "elicitation/create", "params": form}}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": "s1"}
        assert call.params["requestState"] == "s1"
        return text(str(call.params["inputResponses"]["who"]))

    return WireServer(version, ask=run)


@pytest.mark.parametrize("version", ERAS)
async def test_a_person_is_asked_where_the_entry_says_so(version: str) -> None:
    session = Session(asks(version), lambda _: PersonAnswer("accept", {"name": "Ada"}))
    assert await session.call("ask") == str({"action": "accept", "content": {"name": "Ada"}})
    (asked,) = session.asked
    assert (asked.source, asked.message, asked.url) == ("mcp:odd", "Who are you?", None)
    assert asked.schema is not None
    assert asked.schema["properties"] == {"name": {"type": "string"}}


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_may_say_no(version: str, action: Any) -> None:
    session = Session(asks(version), lambda _: PersonAnswer(action))
    assert await session.call("ask") == str({"action": action})


@pytest.mark.parametrize("version", ERAS)
async def test_nobody_is_asked_where_no_entry_says_so(version: str) -> None:
    session = Session(asks(version), lambda _: PersonAnswer("accept", {"name": "Ada"}), may_ask=False)
    said = await session.call("ask")
    assert session.asked == []
    assert ("Elicitation not supported" if version == OLDER else "a person, and gets none here") in said
    assert "elicitation" not in session.server.capabilities


@pytest.mark.parametrize("version", ERAS)
async def test_a_question_that_cannot_be_shown_is_refused(version: str) -> None:
    session = Session(asks(version), lambda _: PersonAnswer("decline", problem="no such form"))
    assert "no such form" in await session.call("ask")


async def test_a_server_that_asks_too_often_is_told_so() -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        replies = [await call.ask(f"Question {number}", type="object", properties={}) for number in range(12)]
        return text(str(["error" in reply for reply in replies]))

    session = Session(WireServer(nag=run), lambda _: PersonAnswer("accept", {}))
    assert await session.call("nag") == str([False] * 10 + [True] * 2)
    assert len(session.asked) == 10


async def test_a_server_that_never_has_enough_ends_the_call() -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        asked = {
            "a": {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": NAME}}
        }
        return {"resultType": "input_required", "inputRequests": asked}

    session = Session(WireServer(MODERN, nag=run), lambda _: PersonAnswer("accept", {"name": "Ada"}))
    assert "after 10 rounds of questions" in await session.call("nag")
    assert len(session.asked) == 10


@pytest.mark.parametrize(
    ("method", "said"), [("sampling/createMessage", "the host's model"), ("roots/list", "its directories")]
)
async def test_the_hosts_model_and_directories_are_not_for_servers(method: str, said: str) -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        message = {"role": "user", "content": {"type": "text", "text": "Hello?"}}
        params = {"messages": [message], "maxTokens": 9} if "sampling" in method else {}
        return {"resultType": "input_required", "inputRequests": {"a": {"method": method, "params": params}}}

    session = Session(WireServer(MODERN, use=run), lambda _: PersonAnswer("accept", {}))
    assert said in await session.call("use")


async def test_a_question_outside_of_a_call_has_no_answer() -> None:
    server = WireServer(add=says("3"))
    session = Session(server, lambda _: PersonAnswer("accept", {}))
    await session.source.list()
    reply = await server.request("elicitation/create", message="Hello?", requestedSchema=NAME)
    assert reply["error"]["message"] == "questions are answered in the middle of a call only"
    assert await session.call("add") == "3"
    assert session.asked == []


async def test_a_question_is_taken_back_with_its_call() -> None:
    """And the call's time stands while somebody is asked."""
    server = WireServer()
    begun, ended = asyncio.Event(), asyncio.Event()
    limits: list[float | None] = []

    async def run(call: WireCall) -> dict[str, Any]:
        return text(str(await call.ask("Who?", **NAME)))

    server.tools["ask"] = run
    session = Session(server, lambda _: PersonAnswer("accept", {}))
    request = ToolRequest("odd/ask", {}, "s", "t", "st", "c1", "Mcp.Invoke")
    call = CallContext.make(request, session.settings)

    async def wait(_: ToolRequest, __: PersonAsked) -> PersonAnswer:
        assert call.clock.limit is not None
        limits.append(call.clock.limit.when())
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody answers")

    config = ServerConfig("odd", Stdio(("wire",), "/", {}, "mark"), 20, 20, elicitation=True)
    source = McpSource(config, session.settings, server.start, ask_person=wait)
    (tool,) = (await source.list()).definitions
    calling = asyncio.ensure_future(add_timeout(lambda one: source.call(tool, one), 20)(call))
    await begun.wait()
    calling.cancel()
    await asyncio.wait([calling])
    assert (ended.is_set(), calling.cancelled(), limits) == (True, True, [None])
    await source.aclose()


async def test_a_server_may_want_to_be_called_again() -> None:
    async def run(call: WireCall) -> dict[str, Any]:
        if "requestState" in call.params:
            return text(call.params["requestState"])
        return {"resultType": "input_required", "requestState": "later"}

    assert await Session(WireServer(MODERN, slow=run)).call("slow") == "later"


async def test_the_time_of_a_call_goes_on_after_the_answer() -> None:
    request = ToolRequest("odd/ask", {}, "s", "t", "st", "c1", "Mcp.Invoke")
    call = CallContext.make(request, RuntimeSettings(outside=MACHINE, workspace="/"))

    async def run(one: CallContext) -> Any:
        limit = one.clock.limit
        assert limit is not None
        with one.clock.paused(), one.clock.paused():
            assert limit.when() is None
        left = (limit.when() or 0) - asyncio.get_running_loop().time()
        assert 19 < left <= 20
        return None

    await add_timeout(run, 20)(call)
    with call.clock.paused():  # the call is over, and there is nothing to stop
        assert call.clock.limit is None


@pytest.mark.parametrize(
    ("first", "pauses", "said"),
    [
        ((), [], "3"),
        ((0,), [0.25], "3"),
        ((503, 429), [0.25, 1.0], "3"),
        ((0, 503, 500), [0.25, 1.0], "HTTP 500"),
        ((401,), [], "HTTP 401"),
        ((403,), [], "HTTP 403"),
    ],
)
async def test_connecting_is_tried_again_with_growing_pauses(
    first: tuple[int, ...], pauses: list[float], said: str
) -> None:
    """Where the failure may pass, and three times at most."""
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    server = WireServer(add=says("3"))
    # A try whose answer is an error asks once more, in the older era.
    each = [status for one in first for status in ([0] if one == 0 else [one, one])]
    async with over_http(server, *each) as url:
        config = ServerConfig("odd", Http(url), 20, 20)
        source = McpSource(config, RuntimeSettings(outside=MACHINE, workspace="/"), server.start, pause=pause)
        try:
            (tool,) = (await source.list()).definitions
            request = ToolRequest("odd/add", {}, "s", "t", "st", "c1", "Mcp.Invoke")
            text_of = (
                await source.call(tool, CallContext.make(request, RuntimeSettings(outside=MACHINE, workspace="/")))
            ).text
        except ToolFault as fault:
            text_of = str(fault)
        await source.aclose()
    assert said in text_of
    assert paused == pauses
    assert len(server.calls) == (said == "3")


@pytest.mark.parametrize(("cookie", "is_sent"), [(b"route=a1; Path=/", True), (b"route=\xe9", False)])
async def test_a_cookie_is_sent_if_a_header_can_have_it(cookie: bytes, is_sent: bool) -> None:
    server = WireServer(add=says("3"))
    server.headers = b"Set-Cookie: " + cookie + b"\r\n"
    session = Session(server)
    async with over_http(server) as url:
        session.source = McpSource(ServerConfig("odd", Http(url), 20, 20), session.settings, server.start)
        assert await session.call("add") == "3"
    assert bool([head for head in server.heads if "\ncookie: route=a1\r" in head.lower()]) is is_sent
    assert bool([head for head in server.heads if "\ncookie:" in head.lower()]) is is_sent


@pytest.mark.parametrize(
    "unknown",
    [
        b"",
        b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}',
        b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}',
    ],
    ids=["empty", "TypeScript SDK", "Python SDK"],
)
async def test_calls_of_a_session_that_the_server_does_not_know_are_sent_once_more_in_another(unknown: bytes) -> None:
    server = WireServer(add=says("3"))
    server.sessions, server.unknown = set(), unknown
    session = Session(server)
    request = ToolRequest("odd/add", {}, "s", "t", "st", "c1", "Mcp.Invoke")
    async with over_http(server) as url:
        source = McpSource(ServerConfig("odd", Http(url), 20, 20), session.settings, server.start)
        (tool,) = (await source.list()).definitions
        for calls in (1, 4):
            server.sessions.clear()
            each = [source.call(tool, CallContext.make(request, session.settings)) for _ in range(calls)]
            assert [one.text for one in await asyncio.gather(*each)] == ["3"] * calls
        assert len(server.calls) == 5
        server.sessions.clear()
        server.unknown = b'{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32603,"message":"sent"}}'
        with pytest.raises(ToolFault, match="HTTP 404"):  # the error of this very call: the server has taken it
            await source.call(tool, CallContext.make(request, session.settings))
        await source.aclose()


async def test_a_flood_of_progress_is_a_few_events() -> None:
    """It is shown as far as somebody can look at it, and the answer comes behind it."""
    watcher = Watcher()
    out = LiveOutput(emitter(watcher))
    many = 1_500

    async def run(call: WireCall) -> dict[str, Any]:
        for number in range(many):
            call.progress(number, "x" * 2000)
        return text("done")

    session = Session(WireServer(flood=run))
    chunks = 0

    def take(request: ToolRequest, name: str, data: bytes) -> None:
        nonlocal chunks
        chunks += 1
        assert len(data) <= 1000
        out.take(request, name, data)

    session.source._settings = session.settings = session.settings._replace(on_output=take)
    assert await session.call("flood") == "done"
    out.end("c1")
    assert chunks == many
    told = [event for event in watcher.events if event.event_type is EventType.TOOL_OUTPUT_CHUNK]
    assert 0 < len(told) < many / 2
    assert max(len(event.line()) for event in told) < 3 * MAX_PIECE_BYTES


# Item by item


def answer(result: Any) -> bytes:
    return b'{"jsonrpc":"2.0","id":%ID%,"result":' + json.dumps(result).encode() + b"}"


def named(name: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **fields}


GOOD = named("good", description="Good.")
DEEP: Any = {"type": "object"}
for _ in range(200):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@each_row(
    ("odd", "reason"),
    [
        (named("odd", title=3, description=None, annotations={"readOnlyHint": "yes"}, icons="x", _meta=[]), None),
        (named("odd", execution={"taskSupport": 3}, outputSchema=None), None),
        ({"name": "odd"}, None),
        (named("odd", inputSchema=None), None),
        (named("odd", inputSchema=True), None),
        (named("odd", inputSchema={}), None),
        (named("odd", inputSchema={"properties": {"x": {"type": "string"}}, "required": ["x"]}), None),
        (named("odd", inputSchema={"anyOf": [{"type": "object"}, {"type": "object"}]}), None),
        (named("odd", inputSchema={"$ref": "#/definitions/A", "definitions": {"A": {"type": "object"}}}), None),
        (named("odd", inputSchema={"type": ["object", "null"], "properties": None, "required": None}), None),
        (named("odd", inputSchema={"type": "object", "properties": {"x": None, "y": {"enum": None}, "z": True}}), None),
        (
            named(
                "odd",
                inputSchema={
                    "$schema": "http://json-schema.org/draft-04/schema#",
                    "type": "object",
                    "properties": {"n": {"type": "number", "minimum": 1, "exclusiveMinimum": True, "required": True}},
                },
            ),
            None,
        ),
        (named("odd", outputSchema={}), None),
        (named("odd", outputSchema={"properties": {"x": {"type": "string"}}}), None),
        (named("odd", inputSchema={"type": "string"}), "not of an object"),
        (named("odd", inputSchema={"type": ["array", "null"]}), "not of an object"),
        (named("odd", inputSchema=[]), "is not an object"),
        (named("odd", inputSchema=False), "is not an object"),
        (named("odd", inputSchema="object"), "is not an object"),
        (named("odd", inputSchema={"type": "object", "properties": {"required": ["x"]}}), "is not a valid JSON Schema"),
        (named("odd", inputSchema={"type": "object", "properties": []}), "is not a valid JSON Schema"),
        (named("odd", inputSchema={"type": "object", "properties": {"x": {"type": "str"}}}), "is not a valid JSON"),
        (named("odd", inputSchema={"$ref": "https://x.example/s"}), "must lead into the schema itself"),
        (named("odd", inputSchema={"$ref": "#/definitions/gone"}), "nothing is at"),
        (named("odd", inputSchema={"type": "object", "title": "x" * 300_000}), "bytes, more than"),
        (named("odd", inputSchema=DEEP), "has more than 64 levels"),
        (named("odd", outputSchema={"type": "nothing"}), "is not a valid JSON Schema"),
        (named("odd", outputSchema=7), "is not an object"),
        (named("od d"), "its name is not one of"),
        (named("good", description="another"), "another tool has this name"),
        (named(None), "it has no name"),
        (named(7), "it has no name"),
        (named(""), "it has no name"),
        ({}, "it has no name"),
        (None, "it is not an object"),
        ("odd", "it is not an object"),
    ],
)  # fmt: skip
async def test_an_odd_tool_costs_only_itself(odd: Any, reason: str | None) -> None:
    """Where it is plain what its schema means, not even that."""
    server = WireServer()
    result = {"tools": [odd, GOOD], "_meta": None, "nextCursor": None, "resultType": "complete", "ttlMs": -1}
    server.verbatim["tools/list"] = answer(result)
    session = Session(server)
    listed = await session.source.list()
    await session.source.aclose()
    names = [one.name for one in listed.definitions]
    assert sorted(names) == (["odd/good", "odd/odd"] if reason is None else ["odd/good"])
    assert [(reason or "") in said for said in listed.rejected.values()] == [True] * (reason is not None)


@each_row(
    ("result", "names", "rejected"),
    [
        ({}, [], {}),
        ({"tools": None}, [], {}),
        ({"tools": [GOOD], "nextCursor": ""}, ["odd/good"], {}),
        ({"tools": [GOOD], "nextCursor": 7}, ["odd/good"], {"…": "its nextCursor is not a text: 7"}),
        ({"tools": [GOOD], "nextCursor": "a"}, ["odd/good"], {"…": "there are more pages of tools than are read"}),
        ({"tools": {"good": GOOD}}, None, {}),
        ({"tools": "good"}, None, {}),
        ([GOOD], None, {}),
        (None, None, {}),
    ],
)
async def test_a_list_is_read_as_far_as_it_is_one(
    result: Any, names: list[str] | None, rejected: dict[str, str]
) -> None:
    """A cursor that repeats has no more to give; what is no list takes nothing away from what is known."""
    server = WireServer()
    server.verbatim["tools/list"] = answer(result)
    session = Session(server)
    if names is None:
        with pytest.raises(ToolFault, match=r"^its list of tools is not a list$"):
            await session.source.list()
    else:
        listed = await session.source.list()
        assert [one.name for one in listed.definitions] == names
        assert {name: why for name, why in listed.rejected.items() if name == "…"} == rejected
    await session.source.aclose()


TEXT = '{"content":[{"type":"text","text":"it is done"}]}'
NESTED = "[" * 5000 + "]" * 5000
CUT = '{"jsonrpc":"2.0","id":%ID%,"result":{"content":["cut'
ANSWERS = [
    (f'{{"jsonrpc":"2.0","id":"%ID%","result":{TEXT}}}', "it is done"),
    (f'{{"jsonrpc":"2.0","id":%ID%.0,"result":{TEXT}}}', "it is done"),
    (f'{{"id":%ID%,"result":{TEXT},"error":null}}', "it is done"),
    (f'{{"jsonrpc":"1.0","id":%ID%,"method":"tools/call","result":{TEXT}}}', "it is done"),
    (f'[{{"method":"notifications/message","params":[]}},{{"id":%ID%,"result":{TEXT}}}]', "it is done"),
    (f'\N{BYTE ORDER MARK}{{"jsonrpc":"2.0","id":%ID%,"result":{TEXT}}}', "it is done"),
    (f'INFO {{done}} {{"jsonrpc":"2.0","id":%ID%,"result":{TEXT}}} ok', "it is done"),
    ('"content":[{"type":"text","text":"beside the id"}]}', "beside the id"),
    ('"result":null}', ""),
    ('"also":null}', '{"also":null}'),
    ('"error":null}', "[the answer has neither a result nor an error]"),
    ('"result":["a",null]}', "a\n[a part of the result is left out: it is null]"),
    ('"result":"a text"}', "a text"),
    ('"result":{"content":["caf\xe9"]}}', "caf\N{REPLACEMENT CHARACTER}"),
    ('"result":{"content":["half \\ud83d"]}}', "half ?"),
    ('"result":{"structuredContent":{"a":NaN,"b":1e999}}}', '{"a":"NaN","b":"inf"}'),
    ('"result":{"content":["a\ttab"]}}', "a\ttab"),
    (f'"result":{{"structuredContent":{NESTED}}}}}', "[" * 98 + '"[nested too deep]"' + "]" * 98),
    (CUT, f"[the answer is not JSON, and is shown as received]\n{CUT}"),
    ('"error":{"code":-32000,"message":"no row"}}', "SYSTEM: no row (code -32000)"),
    ('"error":{"code":"-5","message":null,"data":"no row"}}', "SYSTEM: no row (code -5)"),
    ('"error":{"code":1e20,"message":"no row"}}', "SYSTEM: no row (code 0)"),
    ('"error":{"code":-18446744073709551616,"message":"no row"}}', "SYSTEM: no row (code 0)"),
    ('"error":{"code":NaN,"message":"no row"}}', "SYSTEM: no row (code 0)"),
    ('"error":{"code":1e999,"message":"no row"}}', "SYSTEM: no row (code 0)"),
    ('"error":{"code":-32000.0,"message":"no row"}}', "SYSTEM: no row (code -32000)"),
    ('"error":"no row"}', "SYSTEM: no row (code 0)"),
    ('"error":{}}', "SYSTEM: the server gives no reason (code 0)"),
    ('"error":{"message":"cut', "SYSTEM: the answer is not JSON: "),
]


@pytest.mark.many_rows(20)
@pytest.mark.parametrize(("raw", "text_of"), ANSWERS, ids=map(str, range(len(ANSWERS))))
@pytest.mark.parametrize("wire", ["stdio", "", "text/event-stream"])
async def test_an_answer_to_a_waiting_call_ends_it_at_once_with_what_can_be_read(
    raw: str, text_of: str, wire: str
) -> None:
    server = WireServer(act=says("never"))
    raw = f'{{"jsonrpc":"2.0","id":%ID%,{raw}' if raw.startswith('"') else raw
    encoded = raw.encode() if "\N{BYTE ORDER MARK}" in raw else raw.encode("latin-1")
    server.verbatim["tools/call"] = encoded
    session = Session(server)
    if wire == "stdio":
        found = await session.call("act")
    else:
        server.content_type = wire
        async with over_http(server) as url:
            session.source = McpSource(ServerConfig("odd", Http(url), 20, 20), session.settings, server.start)
            found = await session.call("act")
    found = re.sub(r'"id":\d+', '"id":%ID%', found)
    assert found.startswith(text_of) if raw.endswith("cut") else found == text_of
    assert len(server.calls) == 0, "the verbatim answer is the only one"


PRETTY = json.dumps({"jsonrpc": "2.0", "id": 0, "result": json.loads(TEXT)}, indent=2).replace('"id": 0', '"id": %ID%')


@pytest.mark.parametrize(
    "printed",
    [PRETTY, f"[\n{PRETTY}\n]", PRETTY.replace("\n", "\r\n"), '{"a":\n' + ANSWERS[0][0]],
    ids=["indented", "in a list", "CRLF", "one line, after noise"],
)
async def test_an_answer_printed_over_several_lines_is_one(printed: str) -> None:
    server = WireServer(act=says("never"))
    server.verbatim["tools/call"] = printed.encode()
    assert await Session(server).call("act") == "it is done"


WHOLE = ANSWERS[0][0]
SPLIT = '{"jsonrpc":"2.0","id":%ID%,\n"result":{"content":["}\nit is \\"done\\""]}}'


@pytest.mark.parametrize(
    ("printed", "text_of"),
    [
        (f"{{ starting\nDEBUG: {WHOLE}", "it is done"),
        (f"{{\nDEBUG: {WHOLE}", "it is done"),
        (f"[start {{\n{PRETTY}", "it is done"),
        (f'{{\n"params":\n{WHOLE} {{', "it is done"),
        (SPLIT, '}\nit is "done"'),
        (PRETTY.replace('"text":', '"a": {"result": 5},\n"text":'), "it is done"),
    ],
    ids=["words", "bracket", "several lines", "bracket behind", "line end in a text", "a field like an answer"],
)
async def test_a_line_with_an_open_bracket_takes_no_answer_with_it(printed: str, text_of: str) -> None:
    server = WireServer(act=says("never"))
    server.verbatim["tools/call"] = printed.encode()
    assert await Session(server).call("act", 5) == text_of


@pytest.mark.parametrize("first", [b"{\n", b"[start {\n"])
def test_the_work_for_a_line_of_noise_does_not_grow_with_the_lines_before_it(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    tokens = wire._TOKEN

    class Counting:
        def finditer(self, data: bytes) -> Any:
            nonlocal read
            read += len(data)
            return tokens.finditer(data)

    monkeypatch.setattr(wire, "_TOKEN", Counting())
    incoming, noise = Incoming(), b"line 1 of the server, nothing special in it\n"
    incoming.note_sent(b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}')
    for line in (first, *[noise] * 2000):
        assert incoming.line(line) == []
    assert read <= 2001 * len(noise)
    assert len(incoming.line(b'x {"id":7,"result":{}}\n')) == 1


async def test_a_page_for_people_is_no_answer() -> None:
    """Such as that of a proxy that wants a login: the call has not come to the server."""
    server = WireServer(act=says("never"))
    session = Session(server)
    async with over_http(server) as url:
        session.source = McpSource(ServerConfig("odd", Http(url), 20, 20), session.settings, server.start)
        await session.source.list()
        server.verbatim["tools/call"] = b"<html>Log in</html>"
        connection = session.source._connection
        assert connection is not None
        server.content_type = "text/html"
        with pytest.raises(ToolFault, match="Unexpected content type: text/html"):
            await connection.call("act", {}, AsyncMock())
        await session.source.aclose()


async def test_a_page_that_cannot_be_read_costs_only_itself() -> None:
    server = WireServer()
    pages = {None: {"tools": [GOOD], "nextCursor": "b"}, "b": {"tools": 7}}
    server.verbatim["tools/list"] = lambda params: answer(pages[params.get("cursor")])
    listed = await (session := Session(server)).source.list()
    assert [one.name for one in listed.definitions] == ["odd/good"]
    assert listed.rejected == {"…": "page 2 of the tools cannot be read: its list of tools is not a list"}
    await session.source.aclose()


async def test_a_tool_whose_headers_no_call_can_carry_is_named() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "object", "x-mcp-header": "X"}}}
    server = WireServer(MODERN)
    server.verbatim["tools/list"] = answer({"tools": [GOOD, named("odd", inputSchema=schema)]})
    listed = await (session := Session(server)).source.list()
    assert [one.name for one in listed.definitions] == ["odd/good"]
    assert listed.rejected == {"odd/odd": "its x-mcp-header is not one that a call can carry"}
    await session.source.aclose()


async def test_a_list_that_does_not_come_is_waited_for_as_long_as_a_call() -> None:
    server = WireServer()
    server.verbatim["tools/list"] = b"nothing that is an answer"
    config = ServerConfig("odd", Stdio(("wire",), "/", {}, "mark"), 0.05, 20)
    source = McpSource(config, RuntimeSettings(outside=MACHINE, workspace="/"), server.start)
    with pytest.raises(ToolFault, match=r"did not list its tools within 0\.05 s"):
        await source.list()
    await source.aclose()


@pytest.mark.parametrize(
    ("version", "result"),
    [
        (OLDER, {"protocolVersion": OLDER}),
        (OLDER, {"protocolVersion": None, "capabilities": None, "serverInfo": None, "instructions": 7}),
        (OLDER, {"protocolVersion": "2025-06-18", "capabilities": {"tools": None, "experimental": {"a": True}}}),
        (MODERN, {"supportedVersions": [MODERN, None], "capabilities": [], "serverInfo": {"name": 7}}),
    ],
)
async def test_a_handshake_needs_no_more_than_a_version(version: str, result: dict[str, Any]) -> None:
    server = WireServer(version, act=says("it is done"))
    server.verbatim["initialize" if version == OLDER else "server/discover"] = answer(result)
    assert await Session(server).call("act") == "it is done"


@pytest.mark.parametrize("wire", ["stdio", "events"])
async def test_odd_notifications_and_requests_cost_nothing(wire: str) -> None:
    """In a stream of events the SDK would end the call for one. A list that has changed is read again all the same."""
    odd: list[Any] = [
        {"jsonrpc": "2.0", "method": "notifications/message", "params": []},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": None, "progress": "half"}},
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": None}},
        {"jsonrpc": "2.0", "id": [], "method": "elicitation/create", "params": {}},
        {"jsonrpc": "2.0", "id": {}, "method": 7},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": "%ID%", "method": "ping"},
        [],
        None,
    ]
    between = b"\r\n\r\ndata: " if wire == "events" else b"\n"
    lines = [*(json.dumps(one).encode() for one in odd), b"<html>", answer({"content": ["it is done"]})]
    server = WireServer(act=says("never"))
    server.verbatim["tools/call"] = between.join(lines)
    server.content_type = "text/event-stream"
    session = Session(server)
    changes: list[int] = []
    async with over_http(server) as url:
        if wire == "events":
            session.source = McpSource(ServerConfig("odd", Http(url), 20, 20), session.settings, server.start)
        session.source.on_changed = lambda: changes.append(1)
        assert await session.call("act") == "it is done"
    assert changes == [1]
