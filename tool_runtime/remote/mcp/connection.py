"""One session with an MCP server, by the official SDK; the only module that imports it.

A session has its own task, because the SDK's scopes must be entered and left by the same one. The SDK negotiates one of
its two eras: with `initialize`, or without. Requests of a server to its client are rejected: it gets no model and no
files, and may ask a person only if the user's configuration allows it (`wire`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpx2
import mcp_types as types
import orjson
from mcp import Client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agent_host.http import sendable_cookies
from agent_host.version import __version__
from tool_runtime.processes.background import ProgramLineTooLong, ServerProcess
from tool_runtime.processes.command import ServerParams
from tool_runtime.remote import MAX_TOOLS
from tool_runtime.remote.mcp import MAX_ANSWER_BYTES, MAX_PAGES, Asking, Http, NotSent, ServerConfig, Stdio, origin_of
from tool_runtime.remote.mcp.wire import Incoming, ServerQuestions, answer_in
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client.session import IncomingMessage

    Start = Callable[[ServerParams], ServerProcess]

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


for _name in ("mcp", "client"):  # its failures are raised, not printed to standard error
    logging.getLogger(_name).addHandler(logging.NullHandler())

_Result = types.CallToolResult | types.InputRequiredResult
_Answer: TypeAdapter[_Result] = TypeAdapter(_Result)
_FAULTS: Final = (
    MCPError, ValidationError, httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError,
    OSError, RuntimeError, ToolFault,
)  # fmt: skip
"""Exceptions that the SDK and the layers below it may raise."""
_MAX_MESSAGE_CHARS: Final = 500
_GOODBYE_S: Final = 2.0
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's message for an untrusted certificate
_TERMINATED: Final = "Session terminated"  # the SDK's message for a 404 without a readable body
_BAD_HEADERS: Final = "its x-mcp-header is not one that a call can carry"


class ServerConnection:
    """A session with one server; `start` starts its program, `on_changed` hears that its tools have changed."""

    def __init__(
        self, config: ServerConfig, start: Start, on_changed: Callable[[], None], auth: httpx2.Auth | None = None
    ) -> None:
        self._config = config
        self._start = start
        self._on_changed = on_changed
        self._auth = auth
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._refusals = LastError()
        self._incoming = Incoming()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._is_unknown = False
        self._questions = ServerQuestions(f"mcp:{config.name}")

    async def open(self) -> None:
        """Connect, and negotiate a version. Raises ToolFault if the server does not answer in time."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(opened), name=f"mcp {self._config.name}")
        limit_s = self._config.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.wait([opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.aclose()
            message = f"it did not answer within {limit_s:g} s{self._last_words()}"
            raise ToolFault(FaultKind.TIMED_OUT, message) from None
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if not opened.done() or opened.cancelled():
            raise ToolFault(FaultKind.NETWORK, self._why())

    @property
    def is_refused(self) -> bool:
        """True if the server has answered that it does not want this client: another try has no better answer."""
        return self._refusals.for_good or _UNTRUSTED in str(self._error)

    @property
    def is_open(self) -> bool:
        """True if a request may be sent on it, as far as known."""
        ended = self._stop.is_set() or (self._process is not None and self._process.has_ended)
        return self._client is not None and self._task is not None and not self._task.done() and not ended

    async def tools(self) -> tuple[list[Any], dict[str, str]]:
        """The server's tools as it describes them, unchecked, and by name the reasons for omitted ones, including those
        of unreadable pages. Raises ToolFault if nothing can be read, or not in time."""
        tools: list[Any] = []
        rejected: dict[str, str] = {}
        cursors: list[str | None] = [None]
        try:
            async with asyncio.timeout(self._config.timeout_s):
                while cursors[-1] not in cursors[:-1] and len(cursors) <= MAX_PAGES and len(tools) <= MAX_TOOLS:
                    try:
                        cursor = await self._page(cursors[-1], tools, rejected)
                    except ToolFault as fault:
                        if len(cursors) == 1 or not self.is_open:
                            raise
                        rejected["…"] = f"page {len(cursors)} of the tools cannot be read: {fault}"
                        return tools, rejected
                    if cursor is None:
                        return tools, rejected
                    cursors.append(cursor)
        except TimeoutError:
            limit_s = self._config.timeout_s
            raise ToolFault(FaultKind.TIMED_OUT, f"it did not list its tools within {limit_s:g} s") from None
        rejected["…"] = "there are more pages of tools than are read"
        return tools, rejected

    async def _page(self, cursor: str | None, tools: list[Any], rejected: dict[str, str]) -> str | None:
        params = types.PaginatedRequestParams(cursor=cursor)
        result, page = await self._ask(lambda: self._session.list_tools(params=params))
        listed = page.get("tools") if isinstance(page, dict) else page
        if not isinstance(listed, list | None) or not isinstance(page, dict):
            raise ToolFault(FaultKind.SYSTEM, "its list of tools is not a list")
        usable = {tool.name for tool in result.tools}
        for tool in listed or ():
            name = tool.get("name") if isinstance(tool, dict) else None
            if isinstance(name, str) and name not in usable:  # the SDK has left it out
                rejected[f"{self._config.name}/{name}"] = _BAD_HEADERS
            else:
                tools.append(tool)
        following = page.get("nextCursor")
        if following is not None and not isinstance(following, str):
            rejected["…"] = f"its nextCursor is not a text: {following}"[:_MAX_MESSAGE_CHARS]
        return following if isinstance(following, str) and following else None

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        progress: Callable[[float, float | None, str | None], Awaitable[None]],
        asking: Asking | None = None,
    ) -> Any:
        """The result of a tool as the server sends it, unchecked and without timeout; a cancellation is sent to the
        server. `asking` handles questions to a person. Raises NotSent, ToolFault."""

        async def send_once(request: types.CallToolRequest) -> Any:
            result, answer = await self._ask(
                lambda: self._session.send_request(request, _Answer, progress_callback=progress), is_call=True
            )
            return result if isinstance(result, types.InputRequiredResult) else answer

        async def send(fields: Mapping[str, Any]) -> Any:
            params = types.CallToolRequestParams(name=tool, arguments=dict(arguments), **fields)
            request = types.CallToolRequest(params=params)
            try:
                return await send_once(request)
            except _HeadersDiffer:  # refused before anything ran: its schema is another one by now
                await self.tools()
                return await send_once(request)

        if self._process is not None:
            self._process.has_worked = True
        return await self._questions.finish(send, asking)

    async def aclose(self) -> None:
        """End the session, and the program of one over stdio."""
        self._stop.set()
        if self._task is not None and not self._task.done():
            if self._client is not None:  # else there is no session to close yet
                await asyncio.wait([self._task], timeout=_GOODBYE_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = Client(
                    await self._transport(stack),
                    client_info=types.Implementation(name="agent-host", version=__version__),
                    message_handler=self._on_message,
                    elicitation_callback=self._questions.answer if self._config.elicitation else None,
                    cache=None,
                )
                self._client = await stack.enter_async_context(client)
                opened.set_result(None)
                listening = asyncio.ensure_future(self._listen(self._client))
                try:
                    await self._stop.wait()
                    if self._is_unknown:  # the other requests get this answer, too
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_GOODBYE_S / 2):
                                await self._idle.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])
        except _FAULTS as error:
            self._error = error
        except ExceptionGroup as group:
            self._error = _first(group)

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        place = self._config.place
        if isinstance(place, Stdio):
            fields = place.argv, place.cwd, place.environment, place.mark, MAX_ANSWER_BYTES
            self._process = self._start(ServerParams(*fields, scope=place.scope))
            return stdio_transport(self._process, self._incoming)
        client = http_client(place, self._auth, self._refusals, self._incoming, self._config.connect_timeout_s)
        http = await stack.enter_async_context(client)
        return streamable_http_client(place.url, http_client=http, max_sse_event_size=MAX_MENDED_BYTES)

    async def _listen(self, client: Client) -> None:
        """Hear of changes from a server of the newer era, which has to be asked for them."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        changes = client.server_capabilities.tools
        if changes is None or not changes.list_changed:
            return
        with contextlib.suppress(MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self._on_changed()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_changed()

    @property
    def _session(self) -> Any:
        if self._client is None:
            raise RuntimeError("only an open connection is asked")
        return self._client.session

    async def _ask(self, send: Callable[[], Awaitable[Any]], *, is_call: bool = False) -> tuple[Any, Any]:
        """Send one request: returns the answer as read by the SDK, and the result as sent by the server. Raises
        ToolFault, and for a call NotSent if the server did not get it."""
        if not self.is_open:
            raise NotSent if is_call else ToolFault(FaultKind.NETWORK, self._why())
        self._refusals.clear()
        self._under_way += 1
        self._idle.clear()
        try:
            result = await send()
            answer = answer_in(result.meta) or {"result": None}
            error = answer.get("error")
            if error is None:
                return result, answer["result"]
            if error["code"] == types.HEADER_MISMATCH and is_call:
                raise _HeadersDiffer
            raise ToolFault(FaultKind.SYSTEM, f"{error['message'][:_MAX_MESSAGE_CHARS]} (code {error['code']})")
        except ValidationError as invalid:
            raise ToolFault(FaultKind.SYSTEM, f"the answer is not valid MCP: {_line(invalid)}") from invalid
        except MCPError as refusal:
            raise await self._fault(refusal, is_call=is_call) from refusal
        except RuntimeError as failure:  # the SDK's word for an answer that it does not take
            raise ToolFault(FaultKind.SYSTEM, _line(failure)) from failure
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _fault(self, error: MCPError, *, is_call: bool) -> Exception:
        if error.code == types.HEADER_MISMATCH and is_call:
            return _HeadersDiffer()
        if error.code == types.INVALID_REQUEST and error.message == _TERMINATED:
            self._is_unknown = True  # the server does not know the session, so it did nothing
            self._stop.set()
            return NotSent() if is_call else ToolFault(FaultKind.NETWORK, "the server has ended the session")
        if error.code == types.CONNECTION_CLOSED:
            return await self._cut_off(error, is_call=is_call)
        if error.code == types.INTERNAL_ERROR and self._refusals.last is not None:
            doubt = "; whether the call took effect is unknown" if is_call and "HTTP 5" in self._refusals.last else ""
            return ToolFault(FaultKind.NETWORK, f"the server answered {self._refusals.last}{doubt}")
        return ToolFault(FaultKind.SYSTEM, f"{error.message[:_MAX_MESSAGE_CHARS]} (code {error.code})")

    async def _cut_off(self, error: MCPError, *, is_call: bool) -> Exception:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_GOODBYE_S)
        if not is_call:
            return ToolFault(FaultKind.NETWORK, self._why(_line(error)))
        if isinstance(self._error, httpx2.ConnectError | httpx2.ConnectTimeout) and self._under_way == 1:
            return NotSent()
        lost = "the connection was lost while the call ran, and whether it took effect is unknown"
        return ToolFault(FaultKind.INTERRUPTED, f"{lost}: {self._why(_line(error))}")

    def _why(self, otherwise: str = "the connection was closed") -> str:
        error = self._error
        if isinstance(error, ToolFault):
            return str(error)
        reason = otherwise if error is None else _line(error)
        if self._process is not None and (
            error is None or (isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED)
        ):
            reason = self._process.ending or reason
        if _UNTRUSTED in reason:
            reason += "; ca_file of its entry names the roots that it is trusted by"
        if self._refusals.last is not None and isinstance(error, MCPError):
            reason = f"the server answered {self._refusals.last}"
        return reason + self._last_words()

    def _last_words(self) -> str:
        if self._process is None:
            return ""
        words = self._process.last_words
        printed = self._incoming.noise
        notes = [f"it said: {words[:_MAX_MESSAGE_CHARS]}"] if words else [f"it printed: {printed}"] if printed else []
        notes += [f"its sandbox: {line[:_MAX_MESSAGE_CHARS]}" for line in self._process.refusals()]
        return f" ({'; '.join(notes)})" if notes else ""

    def explain(self, fault: ToolFault) -> ToolFault:
        """The fault of a tool, with the denials of the program's sandbox."""
        refused = () if self._process is None else self._process.refusals(str(fault))
        if not refused:
            return fault
        lines = "; ".join(line[:_MAX_MESSAGE_CHARS] for line in refused)
        hint = f"write and domains of the user's entry of {self._config.name} determine its permissions"
        return ToolFault(fault.kind, f"{fault} (its sandbox: {lines}; {hint})", partial=fault.partial)


class _HeadersDiffer(Exception):
    """The server has refused a call, since the headers that a tool's schema asks for were not those of its schema."""


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _line(error: Exception) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:_MAX_MESSAGE_CHARS]


_EVENTS = "text/event-stream"
_EVENT_END = re.compile(rb"\r\n\r?\n|\n\r?\n|\r\r")
MAX_MENDED_BYTES = 3 * MAX_ANSWER_BYTES  # of a repaired event, in which an answer is a text
_PASSING = (408, 425, 429)  # of the errors of a client, those that pass


class ServerAnswerTooLarge(httpx2.StreamError):
    """The body of an answer is beyond the bound."""


class LastError:
    """The server's last error. `for_good`: a retry would fail the same way."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.for_good = False

    def take(self, status: int, reason: str) -> None:
        """Note an answer."""
        self.last = f"HTTP {status} {reason}".strip()
        self.for_good = status < 500 and status not in _PASSING

    def clear(self) -> None:
        """Forget it: another request is sent."""
        self.last, self.for_good = None, False


def http_client(
    place: Http, auth: httpx2.Auth | None, refusals: LastError, incoming: Incoming, connect_s: float
) -> httpx2.AsyncClient:
    """A client for the server at `place`. Raises ToolFault for certificates that cannot be read."""
    transport = httpx2.AsyncHTTPTransport(verify=_tls(place), trust_env=False, proxy=place.proxy)
    return httpx2.AsyncClient(
        transport=_OneOrigin(transport, place, refusals, incoming),
        auth=auth,
        timeout=httpx2.Timeout(connect_s, read=None),  # calls have time-outs of their own
        trust_env=False,
        headers={"accept-encoding": "identity"},
        cookies=sendable_cookies(),
    )


def _tls(place: Http) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=place.ca_file)
        if place.client_cert is not None:
            context.load_cert_chain(place.client_cert, place.client_key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        named = ", ".join(filter(None, (place.ca_file, place.client_cert, place.client_key)))
        raise ToolFault(FaultKind.SYSTEM, f"the certificates cannot be used ({named}): {error}") from error
    return context


class _OneOrigin(httpx2.AsyncBaseTransport):
    """Sends the token to the server's own origin only, counts received bytes, and repairs the messages in them. An
    answer is not decompressed, because a few bytes could become many after the count."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, place: Http, refusals: LastError, incoming: Incoming) -> None:
        self._inner = inner
        self._place = place
        self._origin = origin_of(place.url)
        self._refusals = refusals
        self._incoming = incoming

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        own = origin_of(str(url)) == self._origin
        if self._place.token is not None and own:
            request.headers["authorization"] = f"Bearer {self._place.token}"
        to = self._incoming.note_sent(await request.aread()) if own and request.method == "POST" else None
        response = await self._inner.handle_async_request(request)
        if response.status_code >= 400:
            self._refusals.take(response.status_code, response.reason_phrase)
        is_unknown = response.status_code == 404 and MCP_SESSION_ID in request.headers  # the session
        if is_unknown and not await _answers(response, to):
            response.headers.pop("content-type", None)  # so that the SDK does not read it, but says _TERMINATED
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise ServerAnswerTooLarge("the server sent a compressed answer, which was not requested")
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError("an asynchronous transport returned something that is not a stream")
        content_type = response.headers.get("content-type", "").lower()
        is_answer = own and 200 <= response.status_code < 300
        if not content_type.startswith(_EVENTS):
            pieces = _count(stream)
            if is_answer and to is not None and response.headers.get("content-length") != "0":
                pieces = _mend_body(pieces, lambda raw: self._incoming.body(raw, to, content_type))
                response.headers["content-type"] = "application/json"
                response.status_code = 200
            response.stream = _Body(stream, pieces)
        elif is_answer:  # each event has its own bound
            response.stream = _Body(stream, _mend_events(stream, lambda raw: self._incoming.messages(raw, to)))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _answers(response: httpx2.Response, to: int | str | None) -> bool:
    """True if a refusal is the error that answers the request `to`, which the server has taken; its body is read."""
    stream = response.stream
    if to is None or not isinstance(stream, httpx2.AsyncByteStream):
        return False
    async with contextlib.aclosing(stream):  # also if it is too large
        raw = b"".join([piece async for piece in _count(stream)])
    response.stream = httpx2.ByteStream(raw)
    with contextlib.suppress(ValueError, TypeError, LookupError):
        value = orjson.loads(raw)
        return value["id"] == to and "error" in value
    return False


class _Body(httpx2.AsyncByteStream):
    """The body `inner` of an answer, given as `pieces`, which are made of it."""

    def __init__(self, inner: httpx2.AsyncByteStream, pieces: AsyncIterator[bytes]) -> None:
        self._inner = inner
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _count(body: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    left = MAX_ANSWER_BYTES
    async for piece in body:
        left -= len(piece)
        if left < 0:
            raise ServerAnswerTooLarge(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        yield piece


async def _mend_body(pieces: AsyncIterator[bytes], mend: Callable[[bytes], dict[str, Any]]) -> AsyncIterator[bytes]:
    yield orjson.dumps(mend(b"".join([piece async for piece in pieces])))


async def _mend_events(
    body: httpx2.AsyncByteStream, mend: Callable[[bytes], list[dict[str, Any]]]
) -> AsyncIterator[bytes]:
    left = b""
    async for piece in body:
        start = max(0, len(left) - 3)
        left += piece
        place = 0
        while (end := _EVENT_END.search(left, max(start, place))) is not None:
            yield _mend_event(left[place : end.start()], mend)
            place = end.end()
        left = left[place:]
        if len(left) > MAX_ANSWER_BYTES:
            raise httpx2.SSEError(f"an event has more than {MAX_ANSWER_BYTES} bytes")
    if left.strip():
        yield _mend_event(left, mend)


def _mend_event(raw: bytes, mend: Callable[[bytes], list[dict[str, Any]]]) -> bytes:
    lines = [line.partition(b":") for line in raw.splitlines()]
    data = b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
    others = b"".join(b"".join(line) + b"\n" for line in lines if line[0] in (b"id", b"retry"))
    messages = mend(data) if data.strip() else []
    if not messages:  # its fields about the stream still apply
        return others + b"data:\n\n"
    return b"".join(others + b"data: " + orjson.dumps(message) + b"\n\n" for message in messages)


@asynccontextmanager
async def stdio_transport(process: ServerProcess, incoming: Incoming) -> AsyncIterator[Streams]:
    """Messages from and to the program, one a line. Noise is skipped; a line that is too long ends the session."""
    to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_session:
            while True:
                try:
                    line = await process.read_line()
                except ProgramLineTooLong as error:
                    await to_session.send(error)
                    return
                if not line:
                    return
                for message in incoming.line(line):
                    await to_session.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    async def write() -> None:
        async with from_session:
            async for message in from_session:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                incoming.note_sent(data)
                process.write(data + b"\n")

    async def until_closed(work: Callable[[], Awaitable[None]]) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await work()

    tasks = [asyncio.create_task(until_closed(work)) for work in (read, write)]
    try:
        yield received, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (to_session, received, outgoing, from_session):
                await stream.aclose()
