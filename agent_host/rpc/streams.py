"""A client on two descriptors, such as the standard streams."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.rpc.descriptors import PolledReader, PolledWriter, ThreadedReader, ThreadedWriter, can_be_watched

if TYPE_CHECKING:
    from agent_host.rpc.transport import Receiver


class StreamChannel:
    """A client on two descriptors, such as the standard streams.

    Pipes and sockets are watched by the event loop and keep their modes; what it cannot watch (files, and anything on
    Windows) has threads. So has writing to a terminal: one that polls as writable may have room for a few bytes only,
    and then keeps the writer waiting.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._reader: PolledReader | ThreadedReader | None = None
        writer = PolledWriter if can_be_watched(write_fd) and not os.isatty(write_fd) else ThreadedWriter
        self._writer: PolledWriter | ThreadedWriter = writer(write_fd, self._end)
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self._receiver = receiver
        kind = PolledReader if can_be_watched(self._read_fd) else ThreadedReader
        self._reader = kind(self._read_fd, receiver.received, self._end)
        self._reader.pause(paused=False)

    @property
    def waiting_bytes(self) -> int:
        """See Channel."""
        return self._writer.waiting_bytes

    def write(self, data: bytes) -> None:
        """See Channel."""
        self._writer.write(data)

    async def drained(self) -> None:
        """See Channel."""
        await self._writer.drained()

    def pause_reading(self, *, paused: bool) -> None:
        """See Channel."""
        if self._reader is not None:
            self._reader.pause(paused=paused)

    def close(self) -> None:
        """See Channel."""
        self._receiver = None
        if self._reader is not None:
            self._reader.close()
        self._writer.close()

    def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()
