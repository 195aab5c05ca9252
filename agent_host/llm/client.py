"""The LLM client: one pooled connection to the gateway, one request at a time, the answer streamed (AH 6)."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from agent_host.errors import GatewayRejected, GatewayUnavailable, UsageError
from agent_host.http_basics import LOOPBACK, TlsContext, first_line, shown_url
from agent_host.llm import error_bodies
from agent_host.llm.content_coding import ACCEPTED, UnknownCoding, decoder
from agent_host.llm.event_stream import BoundedStream

from agent_host.lean_httpx import httpx  # isort: skip  first, since httpx-sse imports httpx itself
from httpx_sse import EventSource

from agent_host.llm.gateway_errors import kind_of_answer, kind_of_event
from agent_host.llm.gateway_refusal import NO_HINTS, RetryHints, refusal
from agent_host.llm.limits import AnswerTooLarge, Patience
from agent_host.llm.stream import StreamFault, StreamProtocolError
from agent_host.llm.urls import checked_headers, checked_token, checked_url, password_of, request_url
from agent_host.scrub import Scrubber

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence

    from agent_host.errors import GatewayError, GuardrailBlocked
    from agent_host.llm.error_bodies import Said
    from agent_host.llm.gateway_errors import Kind
    from agent_host.llm.limits import AnswerLimits, GatewayTimeouts
    from agent_host.llm.stream import Assembler, Dialect, ModelTurn

_IN_THE_MIDDLE = "in the middle of its answer"
_MAX_ERROR_BYTES = 64 * 1024
_MAX_SHOWN = 300
_ONE_PIECE_BYTES = 512 * 1024
_SLICE_BYTES = 512 * 1024


class LlmClient:
    """Posts requests to one gateway. Safe to build before the event loop runs; connects with the first request.
    `headers` are those of `llm.headers`.

    Raises UsageError for a URL or a token that no request could carry.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        dialect: Dialect,
        *,
        session_id: str,
        timeouts: GatewayTimeouts,
        limits: AnswerLimits,
        tls: TlsContext | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        url = checked_url(base_url)
        try:
            httpx.URL(base_url)  # which is stricter about names
        except httpx.InvalidURL as error:
            raise UsageError(f"--gateway {shown_url(base_url)!r}: {error}") from error
        token = checked_token(token)
        self.dialect = dialect
        headers = checked_headers(headers)
        self._scrubber = Scrubber(
            [token, password_of(base_url), *headers.values()]
        )  # a gateway may quote what it refuses
        self._timeouts = timeouts
        self._limits = limits
        self._url = httpx.URL(request_url(base_url, dialect.path))  # read once, not with each request
        self._shown = shown_url(request_url(base_url, dialect.path)).partition("?")[0]
        self._http = _Http(
            headers={**dialect.headers(token), **headers, "x-session-id": session_id, "accept-encoding": ACCEPTED},
            timeout=httpx.Timeout(timeouts.read_s, connect=timeouts.connect_s),
            verify=(tls or TlsContext(base_url)).get(),
            follow_redirects=False,
            trust_env=url.host not in LOOPBACK,
        )
        first = self._http.build_request("POST", self._url, content=b"")
        del first.headers["content-length"]
        if self._url.username or self._url.password:
            first = next(httpx.BasicAuth(self._url.username, self._url.password).auth_flow(first))
        self._headers, self._extensions = first.headers.raw, first.extensions

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """One call: `head`, then `messages` in chunks as they were encoded, then the dialect's tail.

        `on_text` gets each piece of text as it arrives, `on_thinking` each piece of the model's thinking; tool calls
        come only with the whole turn. `on_sent` is called once the request is out. Nothing is retried here.

        Raises GuardrailBlocked, GatewayUnavailable, ModelOverloaded, GatewayRejected, ContextTooLong.
        """
        parts = _parts(head, messages, self.dialect.tail)
        patience = Patience(self._timeouts)
        try:
            async with patience.timeout:
                response = await self._http.exchange(self._request(parts, on_sent))
                try:
                    if response.status_code != httpx.codes.OK:
                        raise await self._http_error(response)
                    return await self._read(response, on_text, on_thinking, patience)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise GatewayUnavailable(f"the gateway at {self._shown} {patience.what_was_missed()}") from error
        except httpx.TimeoutException as error:
            raise GatewayUnavailable(f"the gateway at {self._shown} did not answer in time") from error
        except httpx.RequestError as error:
            said = first_line(error)[:_MAX_SHOWN]
            raise GatewayUnavailable(f"the gateway at {self._shown} failed: {said}") from error

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    def _request(self, parts: list[bytes], on_sent: Callable[[], None] | None) -> httpx.Request:
        """The request with this body. What is the same in each was read from the client once."""
        length, body = sum(map(len, parts)), _Body(parts, on_sent)
        headers = [*self._headers, (b"content-length", b"%d" % length)]
        return httpx.Request("POST", self._url, headers=headers, stream=body, extensions=dict(self._extensions))

    async def _read(
        self,
        response: httpx.Response,
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None,
        patience: Patience,
    ) -> ModelTurn:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        assembler = self.dialect.assembler(self._limits.max_call_arguments_bytes)
        content = 0
        try:
            if kind != "text/event-stream":
                return _read_whole(assembler, await self._whole(response, kind), on_text, on_thinking)
            stream = BoundedStream(_chunks(response), _decoder_of(response), self._limits)
            async for event in EventSource(cast("httpx.Response", stream)).aiter_sse():
                text = assembler.feed(event.event, event.data)
                if text:
                    on_text(text)
                if assembler.thinking and on_thinking is not None:
                    on_thinking(assembler.thinking)
                if assembler.content > content:
                    content = assembler.content
                    patience.renew()
            return assembler.finish()
        except AnswerTooLarge as error:
            raise GatewayRejected(f"the gateway at {self._shown} sent {error}") from error
        except UnknownCoding as error:
            raise GatewayRejected(
                f"the gateway at {self._shown} answered with the content encoding {str(error)[:_MAX_SHOWN]}, for which "
                "nobody asked"
            ) from error
        except StreamProtocolError as error:
            raise GatewayUnavailable(f"the gateway's answer broke off: {error}") from error
        except UnicodeDecodeError as error:
            raise GatewayUnavailable("the gateway's answer is not UTF-8") from error
        except StreamFault as error:
            raise self._fault(error) from error

    async def _http_error(self, response: httpx.Response) -> GatewayError | GuardrailBlocked:
        said = error_bodies.read(await _read_bounded(response))
        kind = kind_of_answer(response.status_code, said)
        return self._refusal(kind, f"HTTP {response.status_code}", said, RetryHints.of(response.headers))

    async def _whole(self, response: httpx.Response, kind: str) -> list[tuple[str, str]]:
        """The events that say the same as a successful answer that is no event stream, where it is a whole answer in
        JSON: some gateways do not heed `stream`. Raises what it is otherwise: GatewayError, GuardrailBlocked."""
        instead = f"{kind[:_MAX_SHOWN] or 'no content type'} instead of an event stream"
        if "json" in kind:
            stream = BoundedStream(_chunks(response), _decoder_of(response), self._limits)
            body = "".join([piece async for piece in stream.aiter_text()])
            value = error_bodies.parsed(body.encode("utf-8", "replace"))
            if error_bodies.is_error(value):
                said = error_bodies.read_value(value)
                where = f"HTTP {response.status_code} with an error in its body"
                raise self._refusal(kind_of_event(said, passing=True), where, said, RetryHints.of(response.headers))
            if error_bodies.is_whole_answer(value):
                instead = f"{kind[:_MAX_SHOWN]} that is no answer of this dialect"
                with contextlib.suppress(LookupError, ValueError):
                    return list(self.dialect.whole(body))
        raise GatewayRejected(f"the gateway at {self._shown} answered with {instead}: check the URL and --dialect")

    def _fault(self, fault: StreamFault) -> GatewayError | GuardrailBlocked:
        """The error for one that the gateway reported inside its answer."""
        said = error_bodies.read_value(fault.body)
        said = said._replace(message=str(fault), names=said.names | error_bodies.names_in(str(fault)))
        return self._refusal(kind_of_event(said, passing=fault.retryable), _IN_THE_MIDDLE, said)

    def _refusal(
        self, kind: Kind, where: str, said: Said, hints: RetryHints = NO_HINTS
    ) -> GatewayError | GuardrailBlocked:
        return refusal(kind, where, said, self._short(said.message) or "no details", hints)

    def _short(self, text: str) -> str:
        """What a gateway said, in one line of a length to be shown."""
        return " ".join(self._scrubber.text(text).split())[:_MAX_SHOWN]


def _parts(head: bytes, messages: Sequence[bytes], tail: bytes) -> list[bytes]:
    """The body in one piece when it is small; a large one goes out as it lies, without a second copy of it."""
    parts = [head, *messages, tail]
    return [b"".join(parts)] if sum(map(len, parts)) <= _ONE_PIECE_BYTES else parts


class _Body(httpx.AsyncByteStream):
    """The blocks, each let go once it is sent, and then a call of `on_sent`. A body given as bytes would stay alive
    with its request, which httpx ties into a cycle, until the next garbage collection."""

    def __init__(self, parts: list[bytes], on_sent: Callable[[], None] | None) -> None:
        self._parts = parts[::-1]
        self._on_sent = on_sent
        parts.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._parts:
            part = self._parts.pop()
            for start in range(0, len(part), _SLICE_BYTES):  # what is given at once is copied twice on its way
                yield part[start : start + _SLICE_BYTES]
        if self._on_sent is not None:
            self._on_sent()


class _Http(httpx.AsyncClient):
    """httpx's client, which chooses the proxy and keeps the connection. `exchange` leaves out what it does around each
    request and no gateway needs, which takes a tenth of a step: redirects, hooks, a line of its log."""

    async def exchange(self, request: httpx.Request) -> httpx.Response:
        """Send a request with the cookies that the gateway has set; the answer's body is still to be read. Raises
        httpx.RequestError."""
        if self.cookies:
            self.cookies.set_cookie_header(request)
        response = await self._transport_for_url(request.url).handle_async_request(request)
        if "set-cookie" in response.headers:
            response.request = request
            self.cookies.extract_cookies(response)
        return response


def _chunks(response: httpx.Response) -> AsyncIterable[bytes]:
    """The body as it comes, without httpx's count of it."""
    return cast("AsyncIterable[bytes]", response.stream)


def _decoder_of(response: httpx.Response) -> Callable[[bytes], Iterable[bytes]]:
    """What decompresses the body in small pieces. Raises UnknownCoding."""
    return decoder(response.headers.get("content-encoding", ""))


def _read_whole(
    assembler: Assembler,
    events: Iterable[tuple[str, str]],
    on_text: Callable[[str], None],
    on_thinking: Callable[[str], None] | None,
) -> ModelTurn:
    """What the events of an answer give that came in one piece. Raises as an assembler does."""
    for name, data in events:
        text = assembler.feed(name, data)
        if text:
            on_text(text)
        if assembler.thinking and on_thinking is not None:
            on_thinking(assembler.thinking)
    return assembler.finish()


async def _read_bounded(response: httpx.Response) -> bytes:
    """The start of an error's body; nothing where it cannot be decompressed: the status says enough."""
    body = bytearray()
    try:
        pieces_of = _decoder_of(response)
        async for chunk in _chunks(response):
            for piece in pieces_of(chunk):
                body += piece
                if len(body) >= _MAX_ERROR_BYTES:
                    return bytes(body[:_MAX_ERROR_BYTES])
    except (UnknownCoding, StreamProtocolError):
        return b""
    return bytes(body[:_MAX_ERROR_BYTES])
