"""Bytes to lines: one JSON object a line (interface section 2). Pure; it holds what is left of an unfinished line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 32 * 1024 * 1024


class LineTooLong(Exception):
    """A line is over the limit; the rest of it will be skipped."""


class LineSplitter:
    """Lines of a stream of bytes, without their newlines. Each byte is looked at once; memory is bounded by `limit`."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | LineTooLong]:
        """The lines that `data` completes; LineTooLong in place of one, as soon as it is known to be."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            yield from self._take(data[start:end], whole=True)
            start = end + 1
        if start < len(data):
            yield from self._take(data[start:], whole=False)

    def end(self) -> bytes | None:
        """The last line where the stream ended without a newline; None when nothing is left."""
        left = None if self._skipping or not self._rest else bytes(self._rest)
        self._rest, self._skipping = bytearray(), False
        return left

    def _take(self, piece: bytes, *, whole: bool) -> Iterator[bytes | LineTooLong]:
        if self._skipping:
            self._skipping = not whole
            return
        if len(self._rest) + len(piece) > self._limit:
            self._rest, self._skipping = bytearray(), not whole
            yield LineTooLong(f"a line is longer than {self._limit} bytes")
        elif not whole:
            self._rest += piece
        elif self._rest:
            self._rest += piece
            line, self._rest = bytes(self._rest), bytearray()
            yield line
        else:
            yield piece
