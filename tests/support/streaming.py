"""A gateway that streams any bytes for as long as the client listens: HTTP on loopback, in threads of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Body = Callable[[threading.Event], Iterable[bytes]]
    """Pieces of an answer. The event is set when the gateway goes down: whoever pauses between pieces waits for it."""


class StreamingGateway:
    """Answers each request with the next of `bodies`, the last one again and again. `requests` are the bodies that
    came; `sent_bytes` counts what went out. A look at which server this is counts as none."""

    def __init__(self, bodies: tuple[Body, ...], headers: str) -> None:
        self._bodies = bodies
        self._head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{headers}connection: close\r\n\r\n"
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.sent_bytes = 0
        self._threads[0].start()

    def close(self) -> None:
        """End what still streams."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.settimeout(30)
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client may leave at any time
            first = connection.recv(4, socket.MSG_PEEK)
            body = _body_of(connection)
            if first == b"GET ":
                connection.sendall(b"HTTP/1.0 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                return
            self.requests.append(body)
            connection.sendall(self._head.encode())
            for piece in self._bodies[min(len(self.requests), len(self._bodies)) - 1](self._over):
                if self._over.is_set():
                    return
                connection.sendall(piece)
                self.sent_bytes += len(piece)


def _body_of(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        length = 0
        while (line := stream.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return stream.read(length)


@contextlib.contextmanager
def streaming(*bodies: Body, headers: str = "") -> Iterator[StreamingGateway]:
    """Serve `bodies`; `headers` are lines of their own, each with its end."""
    made = StreamingGateway(bodies, headers)
    try:
        yield made
    finally:
        made.close()


def endless(start: bytes, again: bytes) -> Body:
    """`start`, then `again` for ever."""

    def body(_: threading.Event) -> Iterator[bytes]:
        yield start
        while True:
            yield again

    return body


def endless_gzip(start: bytes, again: bytes) -> Body:
    """The same as gzip; `again` is compressed only once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    return endless(head, packer.compress(again) + packer.flush(zlib.Z_FULL_FLUSH))


def paced(start: bytes, again: bytes, pause_s: float = 0.02) -> Body:
    """`start`, then `again` for ever with a pause before each."""

    def body(over: threading.Event) -> Iterator[bytes]:
        yield start
        while not over.wait(pause_s):
            yield again

    return body


def once(answer: bytes) -> Body:
    """`answer`, and the end."""
    return lambda _: iter((answer,))
