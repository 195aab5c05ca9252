"""Tool output: decoding, truncation and storage. This module has byte order marks, the encoding fallback chain (TR
6.3), binary detection and truncation."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_SNIFF_BYTES: Final = 8192
_PRINTABLE: Final = bytes(code for code in range(256) if code >= 32 or code in b"\t\n\r\f\b\x1b")
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, because it starts with UTF-16's mark
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def is_encoding(name: str) -> bool:
    """True if Python supports the text encoding `name`."""
    try:
        codecs.lookup(name)
        "".encode(name)
    except LookupError:  # also for codecs like base64 that are not text encodings
        return False
    return True


def strip_bom(head: bytes) -> tuple[int, str | None]:
    """Return the length of the byte order mark at the start of `head`, and its encoding."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return len(mark), encoding
    return 0, None


def looks_binary(head: bytes) -> bool:
    """True if bytes without a byte order mark are treated as binary: the first 8192 contain a NUL."""
    return b"\0" in head[:_SNIFF_BYTES]


def is_unprintable(head: bytes) -> bool:
    """True if more than 30% of the first bytes are control characters or invalid UTF-8 (NT). Letters of all languages
    are printable."""
    head = head[:_SNIFF_BYTES]
    unprintable = len(head.translate(None, _PRINTABLE))
    if not head.isascii():
        unprintable += head.decode("utf-8", "replace").count("\ufffd")
    return unprintable * 10 > len(head) * 3


def candidates(encoding: str | None, os_default: str) -> Sequence[str]:
    """Return the encodings to try, in order (TR 6.3). Latin-1 is last because it decodes any bytes."""
    if encoding is not None and codecs.lookup(encoding).name != "utf-8":
        return (encoding,)
    return tuple(dict.fromkeys(("utf-8", codecs.lookup(os_default).name, "iso8859-1")))


def decode_body(data: bytes, charset: str | None = None) -> str | None:
    """Decode an HTTP body; None if it is binary. A wrong or unknown charset falls back to UTF-8, then Latin-1."""
    skip, marked = strip_bom(data)
    if marked is None and looks_binary(data):
        return None
    first = marked or (charset if charset and is_encoding(charset) else "utf-8")
    for name in (first, "utf-8"):
        try:
            return data[skip:].decode(name)
        except UnicodeDecodeError:
            continue
    return data[skip:].decode("latin-1")


def charset_of(content_type: str) -> str | None:
    """Return the charset in a Content-Type header; None if there is none."""
    pairs = (parameter.partition("=") for parameter in content_type.split(";")[1:])
    return next((value.strip().strip("\"'") for name, _, value in pairs if name.strip().lower() == "charset"), None)


def decode_output(data: bytes, *, crlf: bool) -> str:
    """Decode a command's output as UTF-8 with replacement characters; `crlf` converts `\\r\\n` to `\\n`."""
    text = data.decode("utf-8", "replace")
    return text.replace("\r\n", "\n") if crlf else text


# Head and tail of long output (TR 7.1), in bounded memory and never cutting inside a UTF-8 character.
#
# All tools use the same marker, which gives the numbers of missing and of total bytes. It does not count towards the
# limit.


HEAD_PERCENT: Final = 80


def marker(omitted: int, total: int) -> bytes:
    """Return the line that replaces `omitted` of `total` bytes."""
    return b"\n[... truncated %d bytes of %d ...]\n" % (omitted, total)


def head_size(limit: int) -> int:
    """Return the size of the head if `limit` bytes may remain."""
    return limit * HEAD_PERCENT // 100


def truncate(data: bytes, limit: int) -> bytes:
    """Return `data`, or its head and tail (together at most `limit` bytes) around a marker."""
    if len(data) <= limit:
        return data
    head = head_size(limit)
    return join_ends(data[:head], data[len(data) - (limit - head) :], len(data))


def truncate_text(text: str, limit: int) -> str:
    """Truncate text like `truncate`, measured in UTF-8 bytes."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= limit else truncate(data, limit).decode("utf-8", "replace")


def truncate_characters(text: str, limit: int) -> str:
    """Return the text, or its head and tail (together `limit` characters) around a line that reports the cut."""
    if len(text) <= limit:
        return text
    head = head_size(limit)
    return f"{text[:head]}\n[... only {limit} characters are shown ...]\n{text[len(text) - (limit - head) :]}"


def join_ends(head: bytes, tail: bytes, total: int) -> bytes:
    """Join `head` and `tail` of a stream of `total` bytes around a marker, without incomplete characters."""
    head = whole_end(head)
    return head + mark_tail(len(head), tail, total)


def mark_tail(head_bytes: int, tail: bytes, total: int) -> bytes:
    """Return a marker and `tail`, to follow the first `head_bytes` of a stream of `total` bytes."""
    tail = whole_start(tail)
    return marker(total - head_bytes - len(tail), total) + tail


def whole_end(data: bytes) -> bytes:
    """Return `data` without an incomplete character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < width else data
    return data


def whole_start(data: bytes) -> bytes:
    """Return `data` without the rest of an incomplete character at its start."""
    for start in range(4):
        if data[start : start + 1] < b"\x80" or data[start] >= 0xC0:
            return data[start:]
    return data  # not UTF-8


class _Gap(NamedTuple):
    """Position of the line, from `start` to `end`, that reports `missing` bytes of a stream."""

    start: int
    end: int
    missing: int

    def join(self, head: bytes, tail: bytes, total: int) -> bytes:
        """Join like `join_ends`, with the line complete or absent; if it is absent, the missing bytes count as left
        out."""
        tail_at = total - len(tail)
        if self.end <= len(head) or tail_at <= self.start:
            return join_ends(head, tail, total)
        tail = tail[max(0, self.end - tail_at) :]
        return join_ends(head[: self.start], tail, total - (self.end - self.start) + self.missing)


class HeadTail:
    """Collects a stream of any length in about twice `limit` bytes of memory; a chunk costs time proportional to its
    length."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._gap: _Gap | None = None
        self._limit = limit
        self._head_size = head_size(limit)
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the stream."""
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
        """The number of lines that end before the omitted part; None if nothing is omitted."""
        return None if self.total <= self._limit else whole_end(bytes(self._head)).count(b"\n")

    def skip(self, count: int) -> None:
        """Report with one line that `count` bytes are skipped; if that line is cut, they count as left out."""
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
        """Return the last `size` bytes, or as many as are still kept."""
        return bytes(self._tail[max(0, len(self._tail) - min(size, self._tail_size)) :])
