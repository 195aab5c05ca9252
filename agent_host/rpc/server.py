"""One client's requests, served as they come while a task runs, and the session's events on their way to it.

Replies are never dropped: a client that does not take them is not read from. Events wait in a bounded queue, and what
does not fit is found again with GetEvents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_host.errors import AgentHostError, ErrorCode
from agent_host.events.outbox import EventRing, Outbox, Since
from agent_host.rpc import messages
from config import json_text
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from agent_host.events.emitter import Event
    from agent_host.session.start import SessionHost

_MAX_IN_FLIGHT = 64
_MAX_WAITING_BYTES = 4 * 1024 * 1024


class Receiver(Protocol):
    """The receiver of the other side's messages."""

    def receive(self, data: bytes) -> None:
        """The next bytes."""

    def end(self) -> None:
        """Handle the end: the other side is gone or sends nothing more. Called once."""


class Channel(Protocol):
    """One client. Used on the event loop."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were written and not taken yet."""

    def write(self, data: bytes) -> None:
        """Send `data`, immediately as far as the other side accepts it. Data after the end is dropped."""

    async def drain(self) -> None:
        """Until the other side has taken all, or is gone."""

    def pause_reading(self, *, paused: bool) -> None:
        """Stop reading, or start again."""

    def close(self) -> None:
        """Disconnect the client; unsent data is dropped."""


class Notification(NamedTuple):
    """A message to the client that is no event of the feed."""

    method: str
    params: Mapping[str, Any]

    def encode(self) -> bytes:
        """Encode it as JSON-RPC."""
        return json_text.dumps({"jsonrpc": "2.0", "method": self.method, "params": self.params})


AFTER: Final = "$after"
"""The member of a result with the notifications that follow the reply immediately; it is not sent itself."""


class Method(NamedTuple):
    """A method: the shape of its parameters and its handler. The rest is for docs/serve.md: the members of its result,
    its own errors, and its description."""

    shape: messages.Params
    serve: Callable[..., Awaitable[Mapping[str, Any]]]
    result: Mapping[str, str] = {}
    errors: Sequence[type[AgentHostError]] = ()
    purpose: str = ""


class Feed:
    """Events of a session for its clients, who come one after the other: a bounded queue for the one that is connected,
    a ring for one that missed some."""

    def __init__(self) -> None:
        self._ring = EventRing()
        self._outbox: Outbox | None = None

    def begin(self, first_id: int) -> None:
        """The session's first event will have this number."""
        self._ring = EventRing(first_id=first_id)

    def attach(self) -> Outbox:
        """The queue of the client that is there from here on; that of the one before gets nothing more."""
        self.detach()
        self._outbox = Outbox()
        return self._outbox

    def detach(self) -> None:
        """Send events to no client."""
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()

    def since(self, event_id: int) -> Since:
        """Answer GetEvents; see `EventRing.since`."""
        return self._ring.since(event_id)

    def take(self, event: Event) -> None:
        """See Sink."""
        self._ring.take(event)
        if self._outbox is not None:
            self._outbox.put(event)

    def flush(self) -> None:
        """See Sink. The client's queue empties itself."""
        self._ring.flush()


class ClientConnection:
    """A `Receiver` for one client. `on_end` is called when the client is gone; `framing` is the client's framing."""

    def __init__(
        self,
        channel: Channel,
        methods: Mapping[str, Method],
        outbox: Outbox,
        on_end: Callable[[ClientConnection], None],
        framing: messages.Framing | None = None,
    ) -> None:
        self._channel = channel
        self._methods = methods
        self._outbox = outbox
        self._on_end = on_end
        self.framing = messages.Framing() if framing is None else framing
        self._lines: deque[bytes | messages.FramingError] = deque()  # came with the last bytes, and wait for their turn
        self._serving: set[asyncio.Task[None]] = set()
        self._paused = False
        self._events = asyncio.ensure_future(self._send_events())

    # Receiver

    def receive(self, data: bytes) -> None:
        """Bytes of the client."""
        self._lines.extend(self.framing.feed(data))
        self._balance()

    def end(self) -> None:
        """Handle the end of the client's input, or of the client; a last line without its newline counts."""
        last = self.framing.end()
        if last is not None:
            self._lines.append(last)
            self._balance()
        self._on_end(self)

    # Methods for the process

    async def await_answers(self) -> None:
        """Until every request so far has its answer, taken or not."""
        while self._serving:
            await asyncio.wait(self._serving)

    async def finish(self) -> None:
        """Until the client has taken all that was for it; its outbox is closed by then."""
        await self.await_answers()
        await self._events
        await self._channel.drain()

    async def close(self) -> None:
        """Let go of the client."""
        self._lines.clear()
        tasks = [self._events, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channel.close()

    # Requests

    def _take(self, line: bytes | messages.FramingError) -> None:
        asked = messages.read_line(line)
        if asked is None:
            return
        task = asyncio.ensure_future(self._serve_line(asked))
        self._serving.add(task)
        task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._balance()

    def _balance(self) -> None:
        """Serve what there is room for, and take no more of a client that sends faster than it takes its answers."""
        while self._lines and not self._full:
            self._take(self._lines.popleft())
        paused = self._full or bool(self._lines)
        if paused != self._paused:
            self._paused = paused
            self._channel.pause_reading(paused=paused)

    @property
    def _full(self) -> bool:
        return len(self._serving) >= _MAX_IN_FLIGHT or self._channel.waiting_bytes > _MAX_WAITING_BYTES

    async def _serve_line(self, asked: messages.RpcLine) -> None:
        replies = [await self._serve(request) for request in asked.requests]
        answers = [answer for answer, _ in replies if answer is not None]
        if not answers:
            return
        answer = b"[" + b",".join(answers) + b"]" if asked.is_batch else answers[0]
        after = (one.encode() for _, rest in replies for one in rest)
        self._channel.write(b"".join(map(self.framing.wrap, (answer, *after))))
        if self._channel.waiting_bytes > _MAX_WAITING_BYTES:
            await self._channel.drain()  # the request counts as in flight until there is room again

    async def _serve(self, request: messages.RpcRequest) -> tuple[bytes | None, Sequence[Notification]]:
        """The answer to one request, and what follows that; None for a notification."""
        outcome = request.fault if request.fault is not None else await self._call(request)
        if request.id_json is None:
            return None, ()
        if isinstance(outcome, messages.RpcError):
            return messages.encode_fault(request.id_json, outcome), ()
        after = outcome.pop(AFTER, ())
        return messages.encode_result(request.id_json, outcome), after

    async def _call(self, request: messages.RpcRequest) -> dict[str, Any] | messages.RpcError:
        method = self._methods.get(request.method)
        if method is None:
            return messages.unknown_method(request.method, self._methods)
        try:
            messages.check(method.shape, request.params)
            result = dict(await method.serve(dict(request.params)))
            passed_over = messages.list_ignored(method.shape, request.params)
            return {**result, "ignored": passed_over} if passed_over else result
        except Exception as error:  # noqa: BLE001  one of the two places that turn exceptions into what clients see
            return _fault_of(error)

    # Events

    async def _send_events(self) -> None:
        wrap = self.framing.wrap
        while events := await self._outbox.get():
            self._channel.write(b"".join(wrap(messages.encode_event(event.line())) for event in events))
            if self._channel.waiting_bytes:
                await self._channel.drain()
                self._balance()


def _fault_of(error: Exception) -> messages.RpcError:
    """The one translation of exceptions to JSON-RPC errors (interface section 2)."""
    if isinstance(error, messages.InvalidParams):
        return messages.RpcError(messages.INVALID_PARAMS, str(error), ErrorCode.INVALID_REQUEST)
    if isinstance(error, AgentHostError):
        name = str(error.details.get("code", error.code))
        details = {key: value for key, value in error.details.items() if key != "code"}
        return messages.RpcError(error.rpc_code, str(error), name, error.retryable, details)
    return messages.internal_error(error)


# The process of `serve`: clients connect and disconnect, signals arrive, and at the end the session is over or
# resumable.

# Replies are sent before the process exits, for a limited time if a client does not read them.
_CLOSE_S = 2.0
_ANSWERS_S = 10.0
_HELD = -32031


class Server:
    """One session host and its clients, one at a time.

    `reconnect_s` is how long a session waits for another client when its own has gone; None: no other can come.
    `begin_s` is how long the process waits, without a client, for one that begins a session (0: for ever).
    """

    def __init__(
        self,
        host: SessionHost,
        feed: Feed,
        methods: Mapping[str, Method],
        *,
        reconnect_s: float | None,
        begin_s: float = 0.0,
    ) -> None:
        self._host = host
        self._feed = feed
        self._methods = methods
        self._reconnect_s = reconnect_s
        self._begin_s = begin_s
        self._client: ClientConnection | None = None
        self._framing = messages.Framing()  # of the last client
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.TimerHandle | None = None
        self._left = asyncio.Event()
        self._answers_s = _ANSWERS_S
        self.gave_up = False
        """True if it ends because no session was started."""

    def accept(self, channel: Channel) -> Receiver | None:
        """Serve the client, unless there is one already; then it gets an error, and None is returned."""
        if self._client is not None or self._left.is_set():
            fault = messages.RpcError(
                _HELD, "another client is connected; one at a time", ErrorCode.SESSION_HELD, retryable=True
            )
            channel.write(self._framing.wrap(messages.encode_fault(b"null", fault)))
            return None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._framing = messages.Framing(before=self._framing)
        self._client = ClientConnection(channel, self._methods, self._feed.attach(), self._on_disconnect, self._framing)
        self._host.attend()
        return self._client

    def detach(self, *, answers_s: float = _ANSWERS_S) -> None:
        """End as soon as the step is done, and leave the session resumable. Requests that came before have `answers_s`
        to be answered."""
        self._answers_s = min(self._answers_s, answers_s)
        self._left.set()

    async def run(self) -> None:
        """Serve until the session is over, or no client is left."""
        if self._reconnect_s is not None and self._client is None:
            self._wait_for_a_session()
        over = asyncio.ensure_future(self._host.over.wait())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({over, left}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                if self._client is not None:  # its requests from before it left
                    await _run_within(self._client.await_answers(), self._answers_s)
                await self._host.detach()
        finally:
            over.cancel()
            left.cancel()
            await self._close_clients()

    def _on_disconnect(self, client: ClientConnection) -> None:
        if client is not self._client:
            return
        if self._reconnect_s is None:  # it may still read, and gets everything until the end
            self.detach()
            return
        self._client = None
        self._feed.detach()
        self._host.suspend()
        task = asyncio.ensure_future(self._depart(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _depart(self, client: ClientConnection) -> None:
        """Serve the requests that a client sent before it left, above all a Shutdown."""
        await _run_within(client.finish(), _ANSWERS_S)
        await client.close()
        if self._client is not None:
            return
        if self._host.session is None:
            self._wait_for_a_session()
            return
        self._host.suspend()  # the session may have come only now
        if self._reconnect_s:
            self._waiting = asyncio.get_running_loop().call_later(self._reconnect_s, self.detach)
        else:
            self.detach()

    def _wait_for_a_session(self) -> None:
        """No client is connected and there is no session: a process without clients must not stay for ever."""
        if self._begin_s and self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(self._begin_s, self._give_up)

    def _give_up(self) -> None:
        self.gave_up = True
        self.detach()

    async def _close_clients(self) -> None:
        client, self._client = self._client, None
        self._feed.detach()
        if client is not None:
            await _run_within(client.finish(), _CLOSE_S)
            await client.close()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._waiting is not None:
            self._waiting.cancel()


async def _run_within(work: Coroutine[Any, Any, None], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
