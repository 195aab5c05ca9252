"""The process behind `serve`: clients come and go, signals arrive, and at the end the session is over or resumable."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from agent_host.errors import ErrorCode
from agent_host.rpc.messages import Framing, RpcError, encode_fault
from agent_host.rpc.methods import Served, method_table
from agent_host.rpc.server import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent_host.rpc.server import Channel, Feed, Receiver
    from agent_host.session.handshake import SessionHost

# What was answered goes out before the process does; a client that does not read it has had its chance.
_GOODBYE_S = 2.0
_ANSWERS_S = 10.0
_HELD = -32031


class Server:
    """One session host and its clients, one at a time.

    `reconnect_s` is how long a session waits for another client when its own has gone; None: no other can come.
    `begin_s` is how long the process waits, without a client, for one that begins a session (0: for ever).
    """

    def __init__(self, host: SessionHost, feed: Feed, *, reconnect_s: float | None, begin_s: float = 0.0) -> None:
        self._host = host
        self._feed = feed
        self._methods = method_table(Served(host, feed))
        self._reconnect_s = reconnect_s
        self._begin_s = begin_s
        self._client: ClientConnection | None = None
        self._framing = Framing()  # of the last client
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.TimerHandle | None = None
        self._left = asyncio.Event()
        self._answers_s = _ANSWERS_S
        self.gave_up = False
        """True if it ends because nobody began a session."""

    def accept(self, channel: Channel) -> Receiver | None:
        """Serve the client, unless there is one already; then it gets an error, and None is returned."""
        if self._client is not None or self._left.is_set():
            fault = RpcError(
                _HELD, "another client is connected; one at a time", ErrorCode.SESSION_HELD, retryable=True
            )
            channel.write(self._framing.wrap(encode_fault(b"null", fault)))
            return None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._framing = Framing(before=self._framing)
        self._client = ClientConnection(channel, self._methods, self._feed.attach(), self._gone, self._framing)
        self._host.attend()
        return self._client

    def leave(self, *, answers_s: float = _ANSWERS_S) -> None:
        """End as soon as the step is done, and leave the session resumable. Requests that came before have `answers_s`
        to be answered."""
        self._answers_s = min(self._answers_s, answers_s)
        self._left.set()

    async def run(self) -> None:
        """Until the session is over, or nobody is there any more."""
        if self._reconnect_s is not None and self._client is None:
            self._wait_for_a_session()
        over = asyncio.ensure_future(self._host.over.wait())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({over, left}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                if self._client is not None:  # what it asked for before it left
                    await _run_within(self._client.await_answers(), self._answers_s)
                await self._host.let_go()
        finally:
            over.cancel()
            left.cancel()
            await self._say_goodbye()

    def _gone(self, client: ClientConnection) -> None:
        if client is not self._client:
            return
        if self._reconnect_s is None:  # it may still read, and gets what comes until the end
            self.leave()
            return
        self._client = None
        self._feed.detach()
        self._host.suspend()
        task = asyncio.ensure_future(self._depart(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _depart(self, client: ClientConnection) -> None:
        """Do what a client asked for before it went, a Shutdown above all."""
        await _run_within(client.finish(), _ANSWERS_S)
        await client.close()
        if self._client is not None:
            return
        if self._host.session is None:
            self._wait_for_a_session()
            return
        self._host.suspend()  # the session may have come only now
        if self._reconnect_s:
            self._waiting = asyncio.get_running_loop().call_later(self._reconnect_s, self.leave)
        else:
            self.leave()

    def _wait_for_a_session(self) -> None:
        """Nobody is connected, and there is no session: a process that nobody comes to is not to stay for ever."""
        if self._begin_s and self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(self._begin_s, self._give_up)

    def _give_up(self) -> None:
        self.gave_up = True
        self.leave()

    async def _say_goodbye(self) -> None:
        client, self._client = self._client, None
        self._feed.detach()
        if client is not None:
            await _run_within(client.finish(), _GOODBYE_S)
            await client.close()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._waiting is not None:
            self._waiting.cancel()


async def _run_within(work: Coroutine[Any, Any, None], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
