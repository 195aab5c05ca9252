"""Connections of clients, bounded in number and in the time that a request may take to arrive.

uvicorn waits for the rest of a request for as long as its client likes, and takes as many connections as there are
descriptors. Here a request has a time to arrive, which grows with what has come of it, and when there are too many
connections, the one that has waited longest for its request ends: first of those that have shown no tenant's token.
A connection whose call runs is never ended for another.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    import asyncio

HAS_TOKEN: Final = "agent_host.has_token"  # noqa: S105  a name
"""Set in the scope of a request whose token is a tenant's."""
_REQUEST_S: Final = 20.0
_LEAST_BYTES_A_SECOND: Final = 16 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_CONNECTIONS: Final = 4096
_WANTED_DESCRIPTORS: Final = 65_536
_MAX_BACKLOG: Final = 2048
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionRoom(NamedTuple):
    """The number of connections that a process serves, and how many may wait to be accepted. asyncio accepts all of the
    latter at once, and fails loudly when it finds no descriptor for one."""

    connections: int
    backlog: int

    @classmethod
    def found(cls) -> ConnectionRoom:
        """The number that the descriptors of this process allow, of which it takes as many as it may."""
        if sys.platform == "win32":
            return cls(_MAX_CONNECTIONS, _MAX_BACKLOG)
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY:
            wanted = _WANTED_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _WANTED_DESCRIPTORS)
            limit = max(limit, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        else:
            limit = _WANTED_DESCRIPTORS
        return cls(min(_MAX_CONNECTIONS, limit // 2), min(_MAX_BACKLOG, max(1, limit // 16)))


class ServedConnections:
    """All connections of a process; uvicorn calls it for the protocol of each (`Config.http`)."""

    def __init__(self, most: int, request_s: float = _REQUEST_S) -> None:
        self.request_s = request_s
        self._most = most
        self._open: set[_BoundedConnection] = set()
        # Those that wait for a request, the longest first: without a token so far, and with one.
        self._waiting: tuple[dict[_BoundedConnection, None], dict[_BoundedConnection, None]] = ({}, {})

    def __call__(self, **parts: Any) -> _BoundedConnection:
        """The protocol of a new connection."""
        return _BoundedConnection(self, **parts)

    def enter(self, connection: _BoundedConnection) -> None:
        """Count a new connection, and end another one, or this, if that makes too many."""
        self._open.add(connection)
        if len(self._open) > self._most:
            oldest = next((one for waiting in self._waiting for one in waiting), connection)
            oldest.abort()

    def leave(self, connection: _BoundedConnection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self.set_waiting(connection, waiting=False)

    def set_waiting(self, connection: _BoundedConnection, *, waiting: bool) -> None:
        """Note that a connection waits for its next request from now on, or that it does not."""
        for kind in self._waiting:
            kind.pop(connection, None)
        if waiting and connection in self._open:
            self._waiting[connection.has_token][connection] = None


class _BoundedConnection(HttpToolsProtocol):
    """uvicorn's, which ends when a request does not arrive in its time or an answer is not taken."""

    has_token = False

    def __init__(self, connections: ServedConnections, **parts: Any) -> None:
        super().__init__(**parts)
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._in_head = False
        self._head_bytes = 0
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._all.enter(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._forget()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.abort()
        elif self._timer is not None:
            if self._is_busy():
                self._stop_waiting()
            elif self._has_begun():
                self._due += len(data) / _LEAST_BYTES_A_SECOND

    def on_message_begin(self) -> None:
        """See httptools."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """See uvicorn's protocols."""
        super().on_response_complete()
        self.has_token = self.has_token or HAS_TOKEN in self.scope
        if not self._is_busy():
            self._wait()

    def pause_writing(self) -> None:
        """See asyncio.Protocol. Who does not read what was asked for is as one that does not ask."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        if self._is_busy():
            self._stop_waiting()

    def abort(self) -> None:
        """End the connection at once."""
        self._forget()
        self.transport.abort()

    def _is_busy(self) -> bool:
        """True if a request is here as a whole and is not answered yet."""
        if self.flow.write_paused:
            return False
        return bool(self.pipeline) or (self._has_begun() and not self.cycle.more_body)

    def _has_begun(self) -> bool:
        """True if the newest request is here, whole or in part, and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        self._unsent = sys.maxsize
        self._due = self.loop.time() + self._all.request_s
        self._timer = self.loop.call_at(self._due, self._look)
        self._all.set_waiting(self, waiting=True)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._all.set_waiting(self, waiting=False)

    def _forget(self) -> None:
        self._stop_waiting()
        self._all.leave(self)

    def _look(self) -> None:
        """End the connection unless more time is due to it."""
        unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
        if 0 < unsent < self._unsent:
            self._unsent, self._due = unsent, now + self._all.request_s
        if now < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
            return
        if unsent or self.transport.is_closing():
            self.abort()
            return
        if self._in_head or self._has_begun():
            self.transport.write(_TOO_LATE)
        self._stop_waiting()
        self.transport.close()
