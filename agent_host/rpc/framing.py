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
        self._parts: list[bytes] = []
        self._length = 0
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
        left = None if self._skipping or not self._parts else b"".join(self._parts)
        self._parts, self._length, self._skipping = [], 0, False
        return left

    def _take(self, piece: bytes, *, whole: bool) -> Iterator[bytes | LineTooLong]:
        if self._skipping:
            self._skipping = not whole
            return
        self._length += len(piece)
        if self._length > self._limit:
            self._parts, self._length, self._skipping = [], 0, not whole
            yield LineTooLong(f"a line is longer than {self._limit} bytes")
            return
        self._parts.append(piece)
        if whole:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts, self._length = [], 0
            yield line
