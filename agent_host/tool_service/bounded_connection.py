"""A connection to PostgreSQL that takes in only so much in answer to one request.

libpq holds each message whole in memory and has no limit of its own. The server cuts fields where it is asked to, but
plans and errors quote values at any length. So libpq is given one end of a pair of sockets in the place of its own, and
each byte that the server sends is counted before it is handed on; TLS lies on top of that and is not touched. Where
descriptors of sockets cannot be exchanged (Windows) there is no such limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import waiting

if TYPE_CHECKING:
    from collections.abc import Generator

_PIECE_BYTES: Final = 64 * 1024
_CANCEL_S: Final = 5.0
_READ, _WRITE, _BOTH = waiting.Wait.R, waiting.Wait.W, waiting.Wait.RW
_READABLE, _WRITABLE = waiting.Ready.R, waiting.Ready.W


class AnswerTooLarge(psycopg.OperationalError):
    """The server sent more than `limit_bytes` in answer to one request: rows, a plan, an error, notices."""


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """Ends itself when the answer to one request has more than `limit_bytes`."""

    limit_bytes: int = 1024 * 1024
    _gate: _Gate | None = None

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ASYNC109  as psycopg has it
        """As psycopg's; a wait that is given up cancels the query. Raises AnswerTooLarge."""
        if sys.platform == "win32":
            return await super().wait(gen, interval, timeout)
        if self._gate is None:
            self._gate = _Gate(self.pgconn.socket)
        passing = self._gate.passing(gen, self.limit_bytes)
        try:
            return await waiting.wait_async(passing, self._gate.server.fileno(), interval=interval, timeout=timeout)
        except AnswerTooLarge:
            self.pgconn.finish()
            self._gate.close()
            raise
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                try:
                    await self.cancel_safe(timeout=_CANCEL_S)
                finally:
                    self.pgconn.finish()  # its answer is half read
                    self._gate.close()
            raise

    async def close(self) -> None:
        """As psycopg's."""
        await super().close()
        if self._gate is not None:
            self._gate.close()


class _Gate:
    """Stands between libpq and the server. `server` is the socket to the server."""

    def __init__(self, descriptor: int) -> None:
        self.server = socket.socket(fileno=os.dup(descriptor))
        self._libpq, self._ours = socket.socketpair()
        for one in (self.server, self._libpq, self._ours):
            one.setblocking(False)
        os.dup2(self._libpq.fileno(), descriptor, inheritable=False)
        self._pending = b""
        self._rest = b""
        """Answers for which libpq's socket had no room yet."""

    def passing(self, gen: Generator[Any, Any, Any], limit_bytes: int) -> Generator[Any, Any, Any]:
        """What `gen` gives in the end, its waits being for the server."""
        received = 0
        try:
            wanted = next(gen)
            while True:
                pending, unread = self._take_requests(), self._has_answers()
                if wanted & _READ and unread:
                    wanted = gen.send(_READABLE)
                elif wanted & _WRITE and not pending:
                    wanted = gen.send(_WRITABLE)
                else:
                    ready = yield _WRITE if unread else _BOTH if pending else _READ
                    if ready & _READABLE:
                        received += self._pass_answers()
                    if received > limit_bytes:
                        raise AnswerTooLarge("the answer is too large")
        except StopIteration as stop:
            while self._take_requests():
                yield _WRITE
            return stop.value

    def _take_requests(self) -> bytes:
        """Send what libpq has written, as far as there is room for it. Returns what is left."""
        while True:
            if not self._pending:
                try:
                    self._pending = self._ours.recv(_PIECE_BYTES)
                except BlockingIOError:
                    return b""
            try:
                self._pending = self._pending[self.server.send(self._pending) :]
            except BlockingIOError:
                return self._pending
            except OSError:  # libpq reads the end
                self._pending = b""
                return b""

    def _has_answers(self) -> bool:
        """True if libpq has not read all that it was given, the end of the answers among it."""
        self._pass_on()
        try:
            self._libpq.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def _pass_answers(self) -> int:
        """Give libpq what the server has sent, or its end. Called once libpq has read all before."""
        try:
            piece = self.server.recv(_PIECE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            piece = b""
        if piece:
            self._rest = piece
            self._pass_on()
        else:
            self._ours.shutdown(socket.SHUT_WR)
        return len(piece)

    def _pass_on(self) -> None:
        """Give libpq the rest of the answers, as far as there is room for it."""
        if self._rest:
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[self._ours.send(self._rest) :]

    def close(self) -> None:
        """Let go of the sockets."""
        if self.server.fileno() >= 0:
            self._take_requests()  # the end of the session, as libpq announces it
        for one in (self.server, self._libpq, self._ours):
            one.close()

    __del__ = close  # the pool lets go of a connection that broke without closing it
