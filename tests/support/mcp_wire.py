"""An MCP server in the test's own process, in plain JSON: quick, and able to say what the SDK's servers do not.

server = WireServer(hello=said("Hello."))
source = McpSource(config, settings, server.start)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Any, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tool_runtime.processes.background import ServerProcess
    from tool_runtime.processes.command import ServerParams

    Handler = Callable[["WireCall"], Awaitable[dict[str, Any]]]

MODERN = "2026-07-28"
OLDER = "2025-11-25"


def text(said: str) -> dict[str, Any]:
    """The result of a call that says this."""
    return {"content": [{"type": "text", "text": said}]}


def says(said: str) -> Handler:
    """A tool that always says this."""

    async def run(_: WireCall) -> dict[str, Any]:
        return text(said)

    return run


class WireCall:
    """A call that a tool of the server has got: the `params` of its request."""

    def __init__(self, server: WireServer, params: dict[str, Any]) -> None:
        self.server = server
        self.params = params

    def progress(self, done: float, message: str) -> None:
        """Say how far it is."""
        token = self.params["_meta"]["progressToken"]
        self.server.notify("notifications/progress", progressToken=token, progress=done, message=message)

    async def ask(self, message: str, /, **schema: Any) -> dict[str, Any]:
        """Ask the person for a form, as a server of the older era does; the client's reply."""
        return await self.server.request("elicitation/create", message=message, requestedSchema=schema)


class WireServer:
    """A server with these tools, of the era `version`. In place of a program it is what a source starts: see
    `ServerProcess`. `calls` are the `params` of each call. `verbatim` are whole answers by method, as bytes or
    from the `params`, with %ID% for the id, and `content_type` is that of answers over HTTP. `headers` go with each of
    those, and `heads` are those of the requests. If it has `sessions`, it adds one of each `initialize` over HTTP, and
    `unknown` is the body of the 404 to a request of another, with %ID% for the id of that."""

    def __init__(self, version: str = OLDER, /, **tools: Handler) -> None:
        self.version = version
        self.tools = tools
        self.verbatim: dict[str, bytes | Callable[[dict[str, Any]], bytes]] = {}
        self.content_type = "application/json"
        self.headers = b""
        self.heads: list[str] = []
        self.sessions: set[str] | None = None
        self.unknown = b""
        self.calls: list[dict[str, Any]] = []
        self.starts = 0
        self.capabilities: dict[str, Any] = {}
        self.has_ended = False
        self.last_words = ""
        self.has_worked = False
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.numbers = itertools.count(1)
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._beside: set[asyncio.Task[None]] = set()

    def start(self, _: ServerParams) -> ServerProcess:
        """Be started; once more after an end."""
        self.starts += 1
        self.has_ended = False
        self._lines = asyncio.Queue()
        return cast("ServerProcess", self)

    async def read_line(self) -> bytes:
        """See ServerProcess."""
        return await self._lines.get()

    def write(self, data: bytes) -> None:
        """See ServerProcess."""
        message = orjson.loads(data)
        if "method" not in message:
            self._replies.pop(message["id"]).set_result(message)
        elif "id" in message:
            task = asyncio.create_task(self._answer(message))
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)

    async def aclose(self) -> None:
        """See ServerProcess."""
        self.end()
        for task in self._beside:
            task.cancel()

    def refusals(self, said: str | None = None) -> tuple[str, ...]:
        """See ServerProcess."""
        return ()

    def end(self) -> None:
        """End, as a program that dies."""
        self.has_ended = True
        self._lines.put_nowait(b"")

    def notify(self, method: str, **params: Any) -> None:
        """Send what needs no reply."""
        self._send({"method": method, "params": params})

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the client for something; its reply, with `result` or `error`."""
        number = f"s{next(self.numbers)}"
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._send({"id": number, "method": method, "params": params})
        answer: dict[str, Any] = await reply
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        self._lines.put_nowait(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")

    async def _answer(self, message: dict[str, Any]) -> None:
        for line in (await self.reply(message) + b"\n").splitlines(keepends=True):
            self._lines.put_nowait(line)

    async def reply(self, message: dict[str, Any]) -> bytes:
        """The answer to a request."""
        if (verbatim := self.verbatim.get(message["method"])) is not None:
            raw = verbatim if isinstance(verbatim, bytes) else verbatim(message.get("params", {}))
            return raw.replace(b"%ID%", orjson.dumps(message["id"]))
        said = await self._said(message["method"], message.get("params", {}))
        return orjson.dumps({"jsonrpc": "2.0", "id": message["id"], **said})

    async def _said(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "wire", "version": "1"}}
        complete = {"resultType": "complete"} if self.version == MODERN else {}
        if method == "initialize" and self.version == OLDER:
            self.capabilities = params["capabilities"]
            return {"result": {"protocolVersion": OLDER, **about}}
        if method == "server/discover" and self.version == MODERN:
            kept = {"ttlMs": 0, "cacheScope": "private"}
            return {"result": {"supportedVersions": [MODERN], **about, **kept, **complete}}
        if method == "tools/list":
            kept = {"ttlMs": 0, "cacheScope": "private"} if self.version == MODERN else {}
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
            return {"result": {"tools": listed, **kept, **complete}}
        if method == "tools/call":
            self.calls.append(params)
            return {"result": {**complete, **await self.tools[params["name"]](WireCall(self, params))}}
        return {"error": {"code": -32601, "message": "Method not found"}}


@contextlib.asynccontextmanager
async def over_http(server: WireServer, *first: int) -> AsyncIterator[str]:
    """The URL of the server over real HTTP. The `first` requests get these statuses: 0 is a connection that is closed
    without an answer."""
    left = list(first)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        server.heads.append(head)
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        status, said, headers = left.pop(0) if left else 200, b"", server.headers
        if status == 0:
            return 0
        session = re.search(r"(?i)mcp-session-id: (\S+)", head)
        if status == 200 and not head.startswith("POST"):
            status = 405
        elif session and server.sessions is not None and session[1] not in server.sessions:
            number = re.search(rb'"id":([0-9]+)', body)
            status, said = 404, server.unknown.replace(b"%ID%", number[1] if number else b"null")
        elif status == 200:
            message = orjson.loads(body)
            status = 200 if "id" in message else 202
            said = await server.reply(message) if "id" in message else b""
            if message["method"] == "initialize" and server.sessions is not None:
                server.sessions.add(name := f"s{next(server.numbers)}")
                headers += f"Mcp-Session-Id: {name}\r\n".encode()
            if server.content_type == "text/event-stream":
                said = b"event: message\r\nid: 1\r\ndata: " + said + b"\r\n\r\n"
        kind = f"Content-Type: {server.content_type}\r\n" if server.content_type else ""
        writer.write(f"HTTP/1.1 {status} Said\r\n{kind}".encode() + headers)
        writer.write(f"Content-Length: {len(said)}\r\n\r\n".encode() + said)
        await writer.drain()
        return status

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    finally:
        listening.close()
