"""Head and tail of what is too long (TR 7.1), in bounded memory and never cutting inside a UTF-8 character.

The marker is one for all tools: it says how many bytes are missing and of how many. It comes on top of the limit.
"""

from __future__ import annotations

from typing import Final

from config.lean_typing import NamedTuple

HEAD_PERCENT: Final = 80


def marker(omitted: int, total: int) -> bytes:
    """The line that stands where `omitted` of `total` bytes were left out."""
    return b"\n[... truncated %d bytes of %d ...]\n" % (omitted, total)


def head_size(limit: int) -> int:
    """Bytes of the head when `limit` bytes may stay."""
    return limit * HEAD_PERCENT // 100


def truncate(data: bytes, limit: int) -> bytes:
    """`data`, or its head and tail of at most `limit` bytes together around a marker."""
    if len(data) <= limit:
        return data
    head = head_size(limit)
    return join_ends(data[:head], data[len(data) - (limit - head) :], len(data))


def truncate_text(text: str, limit: int) -> str:
    """`truncate` for text, measured in UTF-8 bytes."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= limit else truncate(data, limit).decode("utf-8", "replace")


def truncate_characters(text: str, limit: int) -> str:
    """The text, or of a longer one the head and tail, of `limit` characters together, around a line that says so."""
    if len(text) <= limit:
        return text
    head = head_size(limit)
    return f"{text[:head]}\n[... only {limit} characters are shown ...]\n{text[len(text) - (limit - head) :]}"


def join_ends(head: bytes, tail: bytes, total: int) -> bytes:
    """`head` and `tail` of a stream of `total` bytes around a marker, without a character that is cut."""
    head = whole_end(head)
    return head + mark_tail(len(head), tail, total)


def mark_tail(head_bytes: int, tail: bytes, total: int) -> bytes:
    """The end of a stream of `total` bytes after its first `head_bytes`: a marker and its tail."""
    tail = whole_start(tail)
    return marker(total - head_bytes - len(tail), total) + tail


def whole_end(data: bytes) -> bytes:
    """`data` without a character that is cut at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < width else data
    return data


def whole_start(data: bytes) -> bytes:
    """`data` without the rest of a character that is cut at its start."""
    for start in range(4):
        if data[start : start + 1] < b"\x80" or data[start] >= 0xC0:
            return data[start:]
    return data  # no UTF-8 at all


class _Gap(NamedTuple):
    """The place where bytes of a stream are `missing`: the line that says so begins at `start` and ends at `end`."""

    start: int
    end: int
    missing: int

    def join(self, head: bytes, tail: bytes, total: int) -> bytes:
        """`join_ends`, with the line whole or not at all; without it, what is missing counts as left out."""
        tail_at = total - len(tail)
        if self.end <= len(head) or tail_at <= self.start:
            return join_ends(head, tail, total)
        tail = tail[max(0, self.end - tail_at) :]
        return join_ends(head[: self.start], tail, total - (self.end - self.start) + self.missing)


class HeadTail:
    """Collects a stream of any length in about two times `limit` bytes; each chunk costs time in its own length."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._gap: _Gap | None = None
        self._limit = limit
        self._head_size = head_size(limit)
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if len(chunk) >= self._tail_size:
            self._tail[:] = chunk[len(chunk) - self._tail_size :]
            return
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_size:  # trimming at twice the size keeps the cost of moving linear
            del self._tail[: len(self._tail) - self._tail_size]

    @property
    def lines_before_cut(self) -> int | None:
        """The number of lines that end before the part that is left out; None if all of it is kept."""
        return None if self.total <= self._limit else whole_end(bytes(self._head)).count(b"\n")

    def skip(self, count: int) -> None:
        """In this place `count` bytes of the stream are not given, once in a stream. A line says so, and where that is
        left out they count as left out."""
        line = b"\n[... %d bytes were not looked at ...]\n" % count
        self._gap = _Gap(self.total, self.total + len(line), count)
        self.add(line)

    def render(self, limit: int) -> bytes:
        """Render the stream, cut to `limit` (at most the limit given at the start)."""
        limit = min(limit, self._limit)
        size = head_size(limit)
        if self.total <= self._limit:
            data = bytes(self._head + self._tail)
            if len(data) <= limit:
                return data
            head, tail = data[:size], data[len(data) - (limit - size) :]
        else:
            head, tail = bytes(self._head[:size]), self.tail(limit - size)
        if self._gap is None:
            return join_ends(head, tail, self.total)
        return self._gap.join(head, tail, self.total)

    def tail(self, size: int) -> bytes:
        """The last `size` bytes, as far as they are still here."""
        return bytes(self._tail[max(0, len(self._tail) - min(size, self._tail_size)) :])
