"""The LLM client: one persistent connection to the gateway, one request at a time, streamed answers (AH 6).

`LlmClient.stream` sends a request that is already encoded and returns a complete `ModelTurn`, or raises. An answer
passes through the connection, the check of the HTTP status and headers, the bounded reader of server-sent events
(`network`), and the dialect's assembler, which turns events into text, thinking, calls and usage.

Everything that is specific to a provider is in its dialect (`anthropic`, `openai_chat`, `openai_responses`, built on
`dialects` and `raw_json`). The loop sees only `ModelTurn`: text, calls, blocks that are sent back unchanged, a
`meaning` (complete, continue, cut, window, blocked, unknown) and the tokens.

Rules:

- A turn is complete or it fails. A stream that ends early or an event that cannot be read fails the turn; a call whose
  arguments are not JSON gets a `problem` and never runs.
- One set of tables classifies the errors of all dialects (`errors`), by status, names and words. The caller retries
  (`agent_host.http`), according to the hints in the answer.
- Everything is bounded: a line, an event, an answer, thinking, an endless repetition, the time until the first byte and
  between two bytes (`network`).
- Error messages of the gateway are scrubbed of the token, the password and header values before they are shown.

Traps: gateways are proxies of proxies. A 200 may carry an error, a stream may end without its last event, a tool call
may come as text, numbers may be strings. Each well-formed item is accepted on its own, and a malformed one loses only
itself. httpx is imported with the first request, because importing it takes a quarter of the startup time.
"""

from __future__ import annotations

import contextlib
from base64 import b64encode
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from agent_host import http
from agent_host.errors import TOKEN_VARIABLE, ContextTooLong, GatewayRejected, GatewayUnavailable, UsageError
from agent_host.http import TlsContext, displayable_url, first_line, is_loopback, retry_after_s, strip_html
from agent_host.llm import AnswerTooLarge, ModelTurn, StreamFault, StreamProtocolError, errors
from agent_host.llm.errors import GETTING_READY, KINDS, kind_of_answer, kind_of_event, limit_of
from agent_host.llm.known_dialects import (
    check_headers,
    check_token,
    check_url,
    is_by_proxy,
    request_url,
    secrets_in,
)
from agent_host.llm.network import (
    ACCEPTED,
    BoundedStream,
    GatewayAnswer,
    HttpConnection,
    NetworkFailed,
    NetworkLate,
    Patience,
    UnknownCoding,
    connect,
)
from agent_host.redaction import Scrubber
from agent_host.version import __version__
from config.settings import KEY_HEADERS
from state.checkpoint import NO_TOKENS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    import httpx
    from httpx import Cookies
    from httpx_sse import EventSource

    from agent_host.errors import GatewayError, GuardrailBlocked
    from agent_host.llm.dialects import Assembler, Dialect
    from agent_host.llm.errors import ErrorDetails, Kind
    from agent_host.llm.network import AnswerLimits, GatewayTimeouts

_AGAIN = {"true": True, "false": False}
_TOKEN_MAY_BE_MISSING = frozenset({401, 403, 404})
_NOT_FOUND = frozenset({404, 405})


_OK = 200
_MAX_ERROR_BYTES = 64 * 1024
_MAX_SHOWN = 300
_ONE_PIECE_BYTES = 512 * 1024
_SLICE_BYTES = 512 * 1024
_REPEATED = "repeated"


class LlmClient:
    """A client that posts requests to one gateway. It may be built before the event loop runs; it connects with the
    first request. `headers` are those of `llm.headers`, `time` returns seconds since the epoch, and `token_name` is the
    name of the token's setting in messages.

    Raises UsageError for a URL or a token that no request could carry.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        dialect: Dialect,
        *,
        session_id: str,
        time: Callable[[], float],
        timeouts: GatewayTimeouts,
        limits: AnswerLimits,
        tls: TlsContext | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        token_name: str = TOKEN_VARIABLE,
    ) -> None:
        place = check_url(base_url)
        token = check_token(token)
        self.dialect = dialect
        headers = check_headers(headers)
        self._token_name = token_name
        self._has_token = bool(token or place.password) or not KEY_HEADERS.isdisjoint(headers)
        self._scrubber = Scrubber([token, place.password, *secrets_in(headers)])  # a gateway may quote them in an error
        self._time = time
        self._timeouts = timeouts
        self._limits = limits
        url = request_url(base_url, dialect.path)
        self._shown = displayable_url(url).partition("?")[0]
        own = {"accept": "*/*", "connection": "keep-alive", "user-agent": f"agent-host/{__version__}"}
        of_session = {"x-session-id": session_id, "accept-encoding": ACCEPTED}
        # Loopback addresses are reached without the environment's proxy.
        by_proxy = not is_loopback(place.host) and is_by_proxy(place.scheme)
        self._connection = (_ByProxy if by_proxy else _Direct)(
            url,
            {**own, **dialect.headers(token), **headers, **of_session},
            (tls or TlsContext(base_url)).get(),
            timeouts,
        )

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """Make one call: send `head`, then `messages` in chunks as they were encoded, then the dialect's tail.

        `on_text` gets each piece of text as it arrives, `on_thinking` each piece of the model's thinking; tool calls
        come only with the whole turn. `on_sent` is called once the request is out. Nothing is retried here.

        Raises GuardrailBlocked, GatewayUnavailable, ModelOverloaded, GatewayRejected, ContextTooLong.
        """
        parts = [head, *messages, self.dialect.tail]
        length = sum(map(len, parts))
        if length <= _ONE_PIECE_BYTES:  # a larger one is sent in parts, without a second copy in memory
            parts = [b"".join(parts)]
        patience = Patience(self._timeouts)
        try:
            async with patience.timeout:
                answer = await self._connection.post(_RequestBody(parts, [on_sent, _event_source]), length)
                try:
                    if answer.status != _OK:
                        raise await self._http_error(answer)
                    return await self._read(answer, on_text, on_thinking, patience)
                finally:
                    await answer.close()
        except TimeoutError as error:
            raise GatewayUnavailable(f"the gateway at {self._shown} {patience.what_was_missed()}") from error
        except NetworkLate as error:
            raise GatewayUnavailable(f"the gateway at {self._shown} did not answer in time") from error
        except NetworkFailed as error:
            reason = first_line(error)[:_MAX_SHOWN]
            raise GatewayUnavailable(f"the gateway at {self._shown} failed: {reason}") from error

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()

    async def _read(
        self,
        answer: GatewayAnswer,
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None,
        patience: Patience,
    ) -> ModelTurn:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        reading = _Reading(self.dialect.assembler(self._limits.max_call_arguments_bytes), on_text, on_thinking)
        try:
            if kind != "text/event-stream":
                for name, data in await self._events_of_answer(answer, kind):
                    if reading.take(name, data):
                        break
                return reading.turn()
            await self._read_stream(answer, reading, patience)
            return reading.turn()
        except AnswerTooLarge as error:
            raise GatewayRejected(f"the gateway at {self._shown} sent {error}") from error
        except UnknownCoding as error:
            raise GatewayRejected(
                f"the gateway at {self._shown} answered with the content encoding {str(error)[:_MAX_SHOWN]}, which "
                "was not requested"
            ) from error
        except StreamProtocolError as error:
            raise GatewayUnavailable(f"the gateway's answer broke off: {error}") from error
        except UnicodeDecodeError as error:
            raise GatewayUnavailable("the gateway's answer is not UTF-8") from error
        except StreamFault as error:
            raise self._fault(error) from error

    async def _read_stream(self, answer: GatewayAnswer, reading: _Reading, patience: Patience) -> None:
        stream, content = BoundedStream(answer.body, answer.decoder(), self._limits), 0
        async for event in _event_source()(cast("httpx.Response", stream)).aiter_sse():
            if reading.take(event.event, event.data):
                return
            if reading.assembler.is_over:
                await answer.read_to_end()
                return
            if reading.assembler.content > content:
                content = reading.assembler.content
                patience.renew()

    async def _http_error(self, answer: GatewayAnswer) -> GatewayError | GuardrailBlocked:
        details = errors.read(await _read_bounded(answer))
        target = http.redirect_target(answer.status, answer.headers)
        if target is not None:
            redirects = f"it redirects to {target[: _MAX_SHOWN // 2]}, which is not followed"
            details = details._replace(message=f"{redirects}: if that is the gateway, give its URL")
        kind = kind_of_answer(answer.status, details)
        return self._refusal(kind, f"HTTP {answer.status}", details._replace(status=answer.status), answer.headers)

    async def _events_of_answer(self, answer: GatewayAnswer, kind: str) -> list[tuple[str, str]]:
        """Convert a successful answer that is not an event stream but a complete answer in JSON, as sent by gateways
        that ignore `stream`, to the events of an equivalent stream. Raises GatewayError, GuardrailBlocked for anything
        else."""
        instead = f"{kind[:_MAX_SHOWN] or 'no content type'} instead of an event stream"
        if "json" in kind:
            stream = BoundedStream(answer.body, answer.decoder(), self._limits)
            body = "".join([piece async for piece in stream.aiter_text()])
            value = errors.parse(body.encode("utf-8", "replace"))
            if errors.is_error(value):
                details = errors.read_value(value)
                where = f"HTTP {answer.status} with an error in its body"
                raise self._refusal(kind_of_event(details, passing=True), where, details, answer.headers)
            if errors.is_complete_answer(value):
                instead = f"{kind[:_MAX_SHOWN]} that is not an answer of this dialect"
                with contextlib.suppress(LookupError, ValueError):
                    return list(self.dialect.events_of_answer(body))
        raise GatewayRejected(f"the gateway at {self._shown} answered with {instead}: check the URL and --dialect")

    def _fault(self, fault: StreamFault) -> GatewayError | GuardrailBlocked:
        details = errors.read_value(fault.body)
        details = details._replace(message=str(fault), names=details.names | errors.names_in(str(fault)))
        return self._refusal(kind_of_event(details, passing=fault.retryable), "in the middle of its answer", details)

    def _refusal(
        self, kind: Kind, where: str, details: ErrorDetails, headers: Mapping[str, str] = MappingProxyType({})
    ) -> GatewayError | GuardrailBlocked:
        """Return the error for a refusal of this kind. `where` is its origin ("HTTP 400"); `headers` contain hints on
        retries, as the official SDKs read them. A permanent error is treated as temporary if the gateway asks for a
        retry, except for a request that is too long, because a shorter one is sent in any case."""
        meant = KINDS[kind]
        asks_again = _AGAIN.get(str(headers.get("x-should-retry", "")).strip().lower())
        after_s = retry_after_s(headers, self._time)
        advice = self._advise(kind, details.status)
        shown = self._short(details.message) or "no details"
        message = f"{meant.message} ({where}): {shown}" + (advice and f"; {advice}")
        extra: dict[str, Any] = {} if meant.code is None else {"code": meant.code}
        if issubclass(meant.error, GatewayUnavailable):
            gets_ready = kind == "loading" or details.status in GETTING_READY
            again = asks_again is not False
            return meant.error(message, retry_after_s=after_s, again=again, gets_ready=gets_ready, **extra)
        if kind == "too_long":
            return ContextTooLong(message, limit=limit_of(details))
        if asks_again:
            return GatewayUnavailable(message, retry_after_s=after_s)
        return meant.error(message, **extra)

    def _advise(self, kind: Kind, status: int | None) -> str:
        advice = KINDS[kind].advice.replace(TOKEN_VARIABLE, self._token_name)
        if not advice and status in _NOT_FOUND:
            advice = f"there may be nothing at {self._shown}: check the URL and --dialect"
        if not self._has_token and (kind == "credentials" or status in _TOKEN_MAY_BE_MISSING):
            no_token = f"no token was sent: set {self._token_name}"
            return no_token if kind == "credentials" or not advice else f"{advice} ({no_token} if it wants one)"
        return advice

    def _short(self, text: str) -> str:
        return " ".join(strip_html(self._scrubber.text(text)).split())[:_MAX_SHOWN]


class _RequestBody:
    """Send the blocks, release each once it is sent, and then call the functions in `callbacks`. A body given as bytes
    would stay in memory with its request until the answer is complete."""

    def __init__(self, parts: list[bytes], callbacks: Iterable[Callable[[], object] | None]) -> None:
        self._parts = parts[::-1]
        self._callbacks = callbacks
        parts.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._parts:
            part = self._parts.pop()
            for start in range(0, len(part), _SLICE_BYTES):  # each is copied twice when it is sent
                yield part[start : start + _SLICE_BYTES]
        for call in self._callbacks:
            if call is not None:
                call()


def _event_source() -> type[EventSource]:
    """Import the reader of server-sent events once the first request is sent: it imports httpx, a quarter of the
    startup time."""
    http.httpx  # noqa: B018  first, because httpx-sse imports httpx itself
    from httpx_sse import EventSource

    return EventSource


class _Reading:
    """One answer, read event by event. It is cut if its text or its thinking repeats endlessly."""

    def __init__(
        self, assembler: Assembler, on_text: Callable[[str], None], on_thinking: Callable[[str], None] | None
    ) -> None:
        self.assembler = assembler
        self._on_text, self._on_thinking = on_text, on_thinking
        self._texts: list[str] = []
        self._of_text, self._of_thinking = RepetitionWatch(MAX_RUN_BYTES), RepetitionWatch()
        self._cut: int | None = None

    def take(self, name: str, data: str) -> bool:
        """Process an event and show its text and thinking; return True if the answer is cut here. Raises the same
        errors as an assembler."""
        assembler = self.assembler
        text = assembler.feed(name, data)
        if text:
            self._on_text(text)
            self._texts.append(text)
            self._cut = self._of_text.count_repeated(text) or None
        if assembler.thinking:
            if self._on_thinking is not None:
                self._on_thinking(assembler.thinking)
            if self._of_thinking.count_repeated(assembler.thinking):
                self._cut = self._cut or 0
        return self._cut is not None

    def turn(self) -> ModelTurn:
        """Return the turn; for an answer that was cut, only its text, without the repetition. Raises the same errors as
        an assembler."""
        if self._cut is None:
            turn = self.assembler.finish()
            self._cut = 0 if turn.tool_calls else self._of_text.count_at_end(by_itself=turn.meaning == "complete")
            if not self._cut:
                return turn
        text = "".join(self._texts).encode("utf-8", "replace")
        return ModelTurn(text[: len(text) - self._cut].decode("utf-8", "ignore"), (), _REPEATED, "repeated", NO_TOKENS)


async def _read_bounded(answer: GatewayAnswer) -> bytes:
    """Read the start of an error's body; return nothing if it cannot be decompressed, because the status is enough."""
    body = bytearray()
    try:
        pieces_of = answer.decoder()
        async for chunk in answer.body:
            for piece in pieces_of(chunk):
                body += piece
                if len(body) >= _MAX_ERROR_BYTES:
                    return bytes(body[:_MAX_ERROR_BYTES])
    except (UnknownCoding, StreamProtocolError):
        return b""
    return bytes(body[:_MAX_ERROR_BYTES])


# Detection of answers that repeat themselves: a model that is caught in a loop writes until its output limit.
#
# A run of one visible character does not prove a loop: horizontal rules, padding and ASCII art are runs too. Such an
# answer is read further, and the way it ends decides.

REPEATED_BYTES: Final = 8 * 1024
"""If this many bytes at the end of an answer repeat one piece, the model is in a loop."""
MAX_PIECE_BYTES: Final = 512
MAX_RUN_BYTES: Final = 1024 * 1024
"""A run of one visible character that is this long is a loop, no matter how the answer would end."""
_LOOK_EVERY_BYTES: Final = 1024


class RepetitionWatch:
    """A detector of repetition in texts of one kind, such as an answer's text or its thinking, as they arrive.
    `max_run_bytes` is the longest allowed run of one visible character while the answer continues."""

    def __init__(self, max_run_bytes: int = REPEATED_BYTES) -> None:
        self._max_run_bytes = max_run_bytes
        self._tail = b""
        self._unseen = 0
        self._run = 0

    def count_repeated(self, text: str) -> int:
        """Add a text; return the number of bytes at the end of all texts that only repeat the piece before them, 0 if
        there is no loop."""
        data = text.encode("utf-8", "replace")
        self._tail = (self._tail + data)[-max(REPEATED_BYTES, len(data)) :]
        self._unseen += len(data)
        return self._look(self._max_run_bytes) if self._unseen >= _LOOK_EVERY_BYTES else 0

    def count_at_end(self, *, by_itself: bool) -> int:
        """Return the same number after the last text. `by_itself`: the answer was not cut, so a run has ended."""
        return self._look(self._max_run_bytes if by_itself else REPEATED_BYTES)

    def _look(self, max_run_bytes: int) -> int:
        tail, newest = self._tail, len(self._tail) - REPEATED_BYTES
        if newest < 0:
            return 0
        new, self._unseen = self._unseen, 0
        starts: list[int] = [*range(0, newest, _LOOK_EVERY_BYTES), newest]
        piece = 0
        for start in starts:
            window = tail[start : start + REPEATED_BYTES]
            piece = _piece_of(window)
            characters = sum(byte & 0xC0 != 0x80 for byte in window[:piece])
            if piece and (characters != 1 or window[:piece].isspace()):  # not a run of one visible character
                return len(tail) - start - piece
        in_tail = len(tail) - len(tail.rstrip(tail[-piece:])) if piece else 0
        self._run = in_tail if in_tail < len(tail) else max(in_tail, self._run + new)
        return self._run - piece if self._run >= max_run_bytes else 0


def _piece_of(tail: bytes) -> int:
    """Return the length of the shortest piece that `tail` repeats, 0 if none of at most `MAX_PIECE_BYTES`."""
    # In a text that repeats a piece, its end occurs again one piece earlier. An end of two pieces finds the shortest
    # piece.
    end = tail[-2 * MAX_PIECE_BYTES :]
    place = tail.rfind(end, len(tail) - 3 * MAX_PIECE_BYTES, len(tail) - 1)
    length = len(tail) - len(end) - place
    return length if place >= 0 and tail[length:] == tail[:-length] else 0


# The connection to a gateway, kept from request to request (RFC 9112 9.3).
#
# httpx's client distributes any number of connections among any number of requests to any host. A session sends one
# request at a time to one gateway, and that pooling takes a quarter of a step's time, and its import a third of the
# startup time. httpx is used for cookies and for proxies of the environment, because it implements NO_PROXY, tunnels
# and SOCKS.


class _Direct:
    """The direct connection to the host, for requests with these `headers` to a `url` that `check_url` accepts. Each is
    sent after the answer to the previous one was closed."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext, timeouts: GatewayTimeouts) -> None:
        self._place = place = check_url(url)
        self._headers = {"host": place.named, **headers}
        if place.user is not None:
            self._headers["authorization"] = f"Basic {b64encode(place.user.encode()).decode()}"
        self._raw = _encode(self._headers)
        self._timeouts = timeouts
        self._tls = tls
        self._cookies: Cookies | None = None
        self._kept: HttpConnection | None = None

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        """Send a request with this body of `length` bytes. Raises NetworkLate, NetworkFailed."""
        kept = await self._ready()
        try:
            headers = [*self._raw, (b"content-length", b"%d" % length)]
            status, answered = await kept.post(self._place.target.encode(), headers, body)
        except BaseException:
            kept.close()
            raise
        answer_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answered}
        if "set-cookie" in answer_headers:
            self._take_cookies(answered)
        return GatewayAnswer(status, answer_headers, kept.body(), kept.end)

    async def aclose(self) -> None:
        if self._kept is not None:
            await self._kept.aclose()

    async def _ready(self) -> HttpConnection:
        """Return the connection, or a new one if the server closed it or it was idle for too long."""
        if self._kept is not None:
            if self._kept.can_be_used:
                return self._kept
            self._kept.close()
            self._kept = None
        place, limits = self._place, self._timeouts
        tls = self._tls if place.scheme == "https" else None
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        self._kept = await connect(
            place.host, place.port or (443 if tls else 80), tls, connect_s=limits.connect_s, patience_s=limits.read_s
        )
        return self._kept

    def _take_cookies(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the gateway's cookies with the next requests: some gateways use them to route a client to the same
        server."""
        self._cookies = self._cookies or http.httpx.Cookies(http.sendable_cookies())
        request = http.httpx.Request("POST", f"{self._place.scheme}://{self._place.named}{self._place.target}")
        self._cookies.extract_cookies(http.httpx.Response(200, headers=list(headers), request=request))
        self._cookies.set_cookie_header(request)
        brought = {"cookie": request.headers["cookie"]} if "cookie" in request.headers else {}
        self._raw = _encode({**self._headers, **brought})


class _ByProxy:
    """The connection through a proxy of the environment, as httpx finds it. Raises UsageError for one that cannot be
    used."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext, timeouts: GatewayTimeouts) -> None:
        limits = http.httpx.Timeout(timeouts.read_s, connect=timeouts.connect_s)
        try:
            self._url = http.httpx.URL(url)
            cookies = http.sendable_cookies()
            self._client = http.httpx.AsyncClient(headers=headers, cookies=cookies, timeout=limits, verify=tls)
        except (http.httpx.InvalidURL, ImportError, ValueError) as error:
            raise UsageError(f"--gateway {displayable_url(url)!r} by the proxy of the environment: {error}") from error

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        request = self._client.build_request("POST", self._url, content=body, headers={"content-length": str(length)})
        with _translate_errors():
            answer = await self._client.send(request, stream=True)
        return GatewayAnswer(answer.status_code, answer.headers, _read(answer), answer.aclose)

    async def aclose(self) -> None:
        await self._client.aclose()


async def _read(answer: http.httpx.Response) -> AsyncIterator[bytes]:
    with _translate_errors():
        async for chunk in answer.aiter_raw():
            yield chunk


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert httpx's errors to those of `network`."""
    try:
        yield
    except http.httpx.TimeoutException as error:
        raise NetworkLate(str(error)) from error
    except http.httpx.RequestError as error:
        raise NetworkFailed(str(error)) from error


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
