"""Head and tail of what a terminal would show of a stream (TR 7.1), at a cost that stays small for any length.

Drawing what was printed costs some seconds a gigabyte, and minutes where pictures are drawn again line by line. Of a
long stream only the ends are read: what lies between is counted.
"""

from __future__ import annotations

from typing import Final

from tool_runtime.output.terminal import Reducer
from tool_runtime.output.truncate import HeadTail, whole_start

FIRST_BYTES: Final = 16 * 1024 * 1024
"""What is drawn of a stream as it comes."""
LAST_BYTES: Final = 1024 * 1024
"""What is drawn of the end of a longer one."""


class ShownEnds:
    """Takes a stream in chunks. Its first `first_bytes` are drawn as they come, and of what follows the last
    `last_bytes` in the end; nothing is left out of a stream that is not longer than both together."""

    def __init__(self, limit: int, first_bytes: int, last_bytes: int = LAST_BYTES) -> None:
        self.is_whole = True
        self._ends = HeadTail(limit)
        self._room = first_bytes
        self._last_bytes = last_bytes
        self._reducer = Reducer()
        self._last: _Last | None = None
        self._rewritten = 0

    @property
    def rewritten(self) -> int:
        """How many characters of what was looked at were drawn over or erased: they are not shown."""
        return self._rewritten + self._reducer.rewritten

    def add(self, chunk: bytes) -> None:
        """The next bytes of the stream."""
        if self._last is None and len(chunk) > self._room:
            self._draw(chunk[: self._room])
            chunk, self._last = chunk[self._room :], _Last(self._last_bytes)
        if self._last is None:
            self._room -= len(chunk)
            self._draw(chunk)
        else:
            self._last.add(chunk)

    def end(self) -> HeadTail:
        """What is shown, once the stream is over. `is_whole` says from then on whether all of it was looked at."""
        if self._last is not None:
            last, total = self._last.content(), self._last.total
            self._last, self._room = None, 0
            if len(last) < total:
                last = last[_line_start(last) :]
                self._skip(total - len(last))
            self._draw(last)
        self._ends.add(self._reducer.end())
        return self._ends

    def _draw(self, data: bytes) -> None:
        self._ends.add(self._reducer.feed(data))

    def _skip(self, count: int) -> None:
        """What follows is drawn on a screen of its own."""
        self.is_whole = False
        self._ends.add(self._reducer.end())
        self._ends.skip(count)
        self._rewritten, self._reducer = self.rewritten, Reducer()


class _Last:
    """The last `size` bytes of a stream of `total` bytes, in a ring: a byte is copied once."""

    def __init__(self, size: int) -> None:
        self.total = 0
        self._size = size
        self._ring = bytearray(size)

    def add(self, chunk: bytes) -> None:
        """The next bytes."""
        view = memoryview(chunk)[-self._size :]
        at = (self.total + len(chunk) - len(view)) % self._size
        first = min(len(view), self._size - at)
        self._ring[at : at + first] = view[:first]
        self._ring[: len(view) - first] = view[first:]
        self.total += len(chunk)

    def content(self) -> bytes:
        """They, in order."""
        at = self.total % self._size
        return bytes(self._ring[:at]) if self.total < self._size else bytes(self._ring[at:] + self._ring[:at])


def _line_start(data: bytes) -> int:
    """Where the first line begins that is not cut at its start. Where none is near, where a form of a line that is
    drawn again does, or else a character."""
    for end in (b"\n", b"\r"):
        found = data.find(end, 0, len(data) // 2) + 1
        if found:
            return found
    return len(data) - len(whole_start(data))
