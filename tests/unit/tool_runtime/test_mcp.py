"""MCP servers as a source of tools: real programs and real HTTP, around servers that are slow, lie, flood and die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import psutil  # type: ignore[import-untyped]  # it has none
import pytest
import trustme

from agent_host.contracts import SourceNotice, ToolRequest, ToolResult
from agent_host.ids import MACHINE
from state.tool_lists import ToolLists
from tests.support.mcp_servers import PNG, ROOT, command, logged, over_http
from tests.support.process import eventually
from tests.support.tls import server_context, tls_in_front_of
from tool_runtime.processes.command import LocalCommand
from tool_runtime.remote import RemoteTools, SourceTerms
from tool_runtime.remote.mcp import Http, ServerConfig, Stdio
from tool_runtime.remote.mcp.connection import LastError, ServerAnswerTooLarge, _OneOrigin
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.remote.mcp.wire import Incoming
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, ToolFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    Open = Callable[..., "Session"]

MANIFESTS = ROOT / "tests/fixtures/mcp_manifests"
pytestmark = pytest.mark.slow  # each starts an interpreter with the SDK


class Session:
    """A router over one server."""

    def __init__(
        self,
        folder: Path,
        place: Http | Stdio,
        *,
        timeout_s: float = 20,
        connect_s: float = 20,
        first_task_waits_s: float | None = None,
    ) -> None:
        self.chunks: list[bytes] = []
        self.told: list[SourceNotice] = []
        settings = RuntimeSettings(
            outside=MACHINE,
            workspace=str(folder),
            shell="/bin/sh",
            on_output=lambda _request, _name, data: self.chunks.append(data),
        )
        self.router = LocalToolRouter(settings, LocalCommand)
        self.source = McpSource(ServerConfig("odd", place, timeout_s, connect_s), settings, self.router.start_program)
        waits_s = connect_s if first_task_waits_s is None else first_task_waits_s
        terms = SourceTerms("Mcp.Invoke", isinstance(place, Http), timeout_s, waits_s)
        (folder / "state").mkdir(exist_ok=True)
        self.kept = ToolLists(str(folder / "state"), "mcp:odd")
        self.remote = RemoteTools(self.source, terms, self.kept, admits=lambda _: True, report=self._tell)
        self.source.on_changed = self.remote.begin
        self.news = asyncio.Event()
        self.router.add_remote(self.remote)

    def _tell(self, notice: SourceNotice) -> None:
        self.told.append(notice)
        self.news.set()

    async def listed(self, times: int) -> None:
        """Until the server's list is known for so many times."""
        async with asyncio.timeout(20):
            while sum(one.kind == "listed" for one in self.told) < times:
                self.news.clear()
                await self.news.wait()

    async def names(self) -> list[str]:
        """What a task has that begins now."""
        await self.router.fix({})
        return [spec.name for spec in await self.router.tools() if spec.capability == "Mcp.Invoke"]

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        request = ToolRequest(f"odd/{tool}", arguments, "s", "t", "st", "c1", "Mcp.Invoke")
        return await self.router.execute(request)

    def failure(self, result: ToolResult) -> tuple[str, str]:
        assert result.error is not None, result
        return result.error.code, result.error.message


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens sessions, which are closed at the end."""
    sessions: list[Session] = []

    def make(place: Http | Stdio, **more: Any) -> Session:
        sessions.append(Session(tmp_path, place, **more))
        return sessions[-1]

    yield make
    for one in sessions:
        await one.router.aclose()


def program(kind: str, log: Path | None = None, *more: str, **environment: str) -> Stdio:
    usual = {"PATH": os.environ["PATH"]}
    return Stdio(command(kind, log, *more), os.getcwd(), {**usual, **environment}, "mark")


async def test_a_program_is_listed_called_and_ended(opened: Open, tmp_path: Path) -> None:
    session = opened(program("odd", tmp_path / "log"))
    assert {"odd/add", "odd/fail", "odd/picture"} <= set(await session.names())
    (add,) = [spec for spec in await session.router.tools() if spec.name == "odd/add"]
    assert (add.description, set(add.input_schema["properties"])) == ("Adds two numbers.", {"a", "b"})
    result = await session.call("add", a=1, b=2)
    assert (result.status, result.output_text) == ("succeeded", "3")
    assert logged(tmp_path / "log") == [{"tool": "add", "a": 1, "b": 2}]
    wrong = session.failure(await session.call("add", a="one"))
    assert wrong[0] == "INVALID_REQUEST"
    assert len(logged(tmp_path / "log")) == 1  # the house's own check comes first
    assert len(running(tmp_path / "log")) == 1
    await session.router.aclose()
    assert running(tmp_path / "log") == []


def running(log: Path) -> list[int]:
    """The servers of this process that write to the log."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(log) in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


async def test_a_server_over_http(opened: Open) -> None:
    with over_http("odd") as url:
        session = opened(Http(url))
        assert "odd/add" in await session.names()
        assert (await session.call("add", a=1, b=2)).output_text == "3"


async def test_all_kinds_of_content(opened: Open) -> None:
    session = opened(program("odd"))
    await session.names()
    result = await session.call("picture")
    assert result.output_text is not None
    assert result.output_text.splitlines() == [
        "a picture:",
        f"[image: image/png, {len(PNG)} bytes]",
        "[audio: audio/wav, 4 bytes]",
        "[resource notes: file:///notes.txt (text/plain)]",
        "[resource mem://text]",
        "inside",
        "[resource mem://blob]",
        "[resource: application/zip, 2 bytes]",
    ]
    assert [(one.content_type, one.data) for one in result.artifacts] == [
        ("image/png", PNG),
        ("audio/wav", b"RIFF"),
        ("application/zip", b"\0\1"),
    ]
    assert [(one.media_type, one.data) for one in result.images] == [("image/png", PNG)]


async def test_a_failure_is_the_tools_own(opened: Open) -> None:
    session = opened(program("odd"))
    await session.names()
    code, message = session.failure(await session.call("fail"))
    assert (code, "fail" in message) == ("TOOL_EXECUTION_FAILED", True)


async def test_a_result_that_does_not_fit_its_output_schema_loses_what_is_structured(opened: Open) -> None:
    session = opened(program("odd"))
    await session.names()
    result = await session.call("lie")
    assert (result.status, result.output_text is not None) == ("succeeded", True)
    assert "structuredContent is left out, since it does not fit the tool's output schema: " in (
        result.output_text or ""
    )


async def test_a_server_that_asks_for_a_person_gets_none(opened: Open) -> None:
    session = opened(program("odd"))
    await session.names()
    assert session.failure(await session.call("ask"))[0] == "TOOL_EXECUTION_FAILED"
    assert (await session.call("add", a=1, b=1)).output_text == "2"


async def test_progress_is_shown_as_it_comes(opened: Open) -> None:
    session = opened(program("odd"))
    await session.names()
    assert (await session.call("progress")).output_text == "done"
    assert session.chunks == [b"1 of 2: part 1\n", b"2 of 2: part 2\n"]


async def test_a_call_that_takes_too_long_is_cancelled_there_too(opened: Open, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = opened(program("odd", log), timeout_s=0.5)
    await session.names()
    code, message = session.failure(await session.call("hang"))
    assert (code, message) == ("TOOL_EXECUTION_TIMEOUT", "odd/hang timed out after 0.5 seconds")
    await _logged(log, "cancelled")
    assert (await session.call("add", a=1, b=2)).output_text == "3"


async def test_a_call_that_is_cancelled_is_cancelled_there_too(opened: Open, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = opened(program("odd", log))
    await session.names()
    calling = asyncio.create_task(session.call("hang"))
    await _logged(log, "hang")
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    await _logged(log, "cancelled")


@pytest.mark.parametrize("http", [False, True])
async def test_an_answer_beyond_the_bound_is_refused(opened: Open, *, http: bool) -> None:
    with over_http("odd") if http else contextlib.nullcontext("") as url:
        session = opened(Http(url) if http else program("odd"))
        await session.names()
        result = await session.call("huge")
        assert result.status == "failed"
        assert (await session.call("add", a=1, b=2)).output_text == "3"


async def test_a_server_that_dies_in_a_call_is_started_again_and_the_call_is_not_sent_again(
    opened: Open, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    session = opened(program("odd", log))
    await session.names()
    code, message = session.failure(await session.call("die"))
    assert code == "TOOL_INTERRUPTED"
    assert "whether it took effect is unknown: its program has ended" in message
    assert (await session.call("add", a=1, b=2)).output_text == "3"
    assert [one["tool"] for one in logged(log)] == ["die", "add"]


async def test_a_server_over_http_that_was_started_again_is_connected_to_again(opened: Open, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with over_http("odd", log) as url:
        session = opened(Http(url))
        await session.names()
        code, message = session.failure(await session.call("die"))
        assert (code, "unknown" in message) == ("TOOL_INTERRUPTED", True)
        code, message = session.failure(await session.call("add", a=1, b=2))
        assert code == "TOOL_EXECUTION_FAILED"
    with over_http("odd", log, "--port", str(urlsplit(url).port)):
        assert (await session.call("add", a=3, b=4)).output_text == "7"
    assert [one["tool"] for one in logged(log)] == ["die", "add"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dead", "its program has ended with exit code 3 (it said: no configuration file)"),
        ("mute", "it did not answer within"),
        ("babble", ""),
    ],
)
async def test_a_server_that_is_none_has_no_tools_and_says_why(opened: Open, kind: str, said: str) -> None:
    session = opened(program(kind), connect_s=1 if kind == "mute" else 20, first_task_waits_s=20)
    assert await session.names() == []
    async with asyncio.timeout(30):
        while not session.told:
            await session.news.wait()
    (told,) = session.told
    assert told.kind == "unavailable"
    assert said in told.message


async def test_what_a_server_printed_in_place_of_messages_is_named(opened: Open) -> None:
    place = Stdio(
        (sys.executable, "-c", "import sys; print('usage: server DIR', flush=True); sys.stdin.read()"), "/", {}, "mark"
    )
    session = opened(place, connect_s=2, first_task_waits_s=20)
    assert await session.names() == []
    assert "(it printed: usage: server DIR)" in session.told[0].message


async def test_a_program_that_is_not_there(opened: Open) -> None:
    session = opened(Stdio(("/no/such/program",), os.getcwd(), {}, "mark"))
    assert await session.names() == []
    assert "/no/such/program" in session.told[0].message


async def test_a_tool_that_comes_later_is_there_with_the_next_task(opened: Open) -> None:
    session = opened(program("odd"))
    assert "odd/grown" not in await session.names()
    await session.call("grow")
    await session.listed(2)
    assert "odd/grown" not in [spec.name for spec in await session.router.tools()]
    assert "odd/grown" in await session.names()
    assert (await session.call("grown")).output_text == "new"


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes to open")
@pytest.mark.parametrize(
    ("recorded", "arguments"),
    [
        ("playwright-mcp", {}),
        ("notion-mcp-server", {"user_id": "u"}),
        ("server-filesystem", {"path": "/a"}),
        ("mcp-server-git", {"repo_path": "/a"}),
        ("mcp-server-time", {"timezone": "UTC"}),
    ],
)
async def test_recorded_servers_start_slowly_print_change_and_end_as_the_docs_say(
    opened: Open, tmp_path: Path, recorded: str, arguments: dict[str, Any]
) -> None:
    """docs/mcp.md, "Servers that change, print and end"."""
    manifest = MANIFESTS / f"{recorded}.json"
    tools = json.loads(manifest.read_text("utf-8"))["tools/list"]["tools"]
    first, *others = (f"odd/{tool['name']}" for tool in tools)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    argv = (sys.executable, str(ROOT / "tests/support/recorded_server.py"), str(manifest), str(tmp_path))
    session = opened(Stdio(argv, str(tmp_path), {"PATH": os.environ["PATH"]}, "mark"), first_task_waits_s=0.01)

    assert await session.names() == []
    assert [one.message for one in session.told] == ["mcp:odd does not answer: it did not answer within 0.01 s"]
    await asyncio.to_thread(gate.write_bytes, b"")
    await session.listed(1)
    assert session.told[-1].message == f"mcp:odd has {len(tools)} tools"
    assert await session.names() == [first, *others]
    offered = {spec.name: spec.input_schema for spec in await session.router.tools()}
    assert [offered[f"odd/{tool['name']}"] for tool in tools] == [tool["inputSchema"] for tool in tools]

    called = await session.call(first.removeprefix("odd/"), **arguments)
    assert (called.status, (called.output_text or "").partition("\n")[0]) == ("succeeded", "call 1")
    await session.listed(2)
    assert len([spec for spec in await session.router.tools() if spec.capability == "Mcp.Invoke"]) == len(tools)
    code, message = session.failure(await session.call(first.removeprefix("odd/"), **arguments))
    assert (code, "has changed since this task started" in message) == ("TOOL_EXECUTION_FAILED", True)
    assert await session.names() == [first, *others[:-1]]
    (changed,) = [one for one in session.told if one.kind == "changed"]
    assert (changed.added, changed.removed, changed.changed) == ([], others[-1:], [first])

    code, message = session.failure(await session.call(first.removeprefix("odd/"), **arguments))
    assert (code, "whether it took effect is unknown: its program has ended with exit code 3" in message) == (
        "TOOL_INTERRUPTED",
        True,
    )
    again = await session.call(first.removeprefix("odd/"), **arguments)
    assert (again.status, (again.output_text or "").partition("\n")[0]) == ("succeeded", "call 3")
    assert (tmp_path / "calls").read_text().count("called") == 3


async def test_a_token_goes_to_its_own_server(opened: Open) -> None:
    with over_http("odd", None, "--token", "s3cret-token") as url:
        refused = opened(Http(url, token="another"))
        assert await refused.names() == []
        assert "the server answered HTTP 401" in refused.told[0].message
        assert "odd/add" in await opened(Http(url, token="s3cret-token")).names()


async def test_a_certificate_of_the_client_and_roots_of_its_own(opened: Open, tmp_path: Path) -> None:
    authority = trustme.CA()
    roots, own = tmp_path / "roots.pem", tmp_path / "own.pem"
    authority.cert_pem.write_to_path(os.fspath(roots))
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(os.fspath(own))
    context = server_context(authority, "127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    with over_http("odd") as plain, tls_in_front_of(plain.removesuffix("/mcp"), context) as url:
        without = opened(Http(f"{url}/mcp", ca_file=os.fspath(roots)), connect_s=10)
        assert await without.names() == []
        known = opened(Http(f"{url}/mcp", ca_file=os.fspath(roots), client_cert=os.fspath(own)))
        assert "odd/add" in await known.names()
        missing = opened(Http(f"{url}/mcp", ca_file=os.fspath(tmp_path / "none.pem")))
        (tmp_path / "other").mkdir()
        missing.kept = ToolLists(os.fspath(tmp_path / "other"), "none")
        with pytest.raises(ToolFault, match="the certificates cannot be used"):
            await missing.source.list()


async def test_a_token_is_sent_to_no_other_origin() -> None:
    """Where a redirect or an authorization server leads elsewhere, the token stays behind."""
    sent: list[httpx2.Request] = []

    def take(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json={})

    place = Http("https://one.example/mcp", token="s3cret")
    transport = _OneOrigin(httpx2.MockTransport(take), place, LastError(), Incoming())
    async with httpx2.AsyncClient(transport=transport) as client:
        for url in (
            "https://one.example/other",
            "https://one.example:444/",
            "http://one.example/",
            "https://two.example/",
        ):
            await client.get(url)
    assert ["authorization" in request.headers for request in sent] == [True, False, False, False]


@pytest.mark.parametrize(
    ("encoding", "size", "problem"), [("gzip", 10, "compressed"), (None, 11 * 1024 * 1024, "more than")]
)
async def test_bodies_are_counted_below_the_sdk(encoding: str | None, size: int, problem: str) -> None:
    headers = {} if encoding is None else {"content-encoding": encoding}

    async def body() -> AsyncIterator[bytes]:
        for _ in range(0, size, 65536):
            yield b" " * 65536

    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=body()))
    place = Http("https://one.example/mcp")
    async with httpx2.AsyncClient(transport=_OneOrigin(transport, place, LastError(), Incoming())) as client:
        with pytest.raises(ServerAnswerTooLarge, match=problem):
            await client.get(place.url)


async def _logged(log: Path, tool: str) -> None:
    await asyncio.to_thread(eventually, lambda: any(one["tool"] == tool for one in logged(log)), f"{tool} in the log")
