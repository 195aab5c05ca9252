"""Output of tools: read, cut and kept whole. Here, bytes to text: byte order marks, the encoding fallback chain
(TR 6.3), binary detection."""

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
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def is_encoding(name: str) -> bool:
    """True if `name` is a text encoding that Python has."""
    try:
        codecs.lookup(name)
        "".encode(name)
    except LookupError:  # also for codecs like base64 that are not text encodings
        return False
    return True


def strip_bom(head: bytes) -> tuple[int, str | None]:
    """Length of the byte order mark that `head` starts with, and the encoding it stands for."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return len(mark), encoding
    return 0, None


def looks_binary(head: bytes) -> bool:
    """True if bytes without a byte order mark are no text in any encoding of the chain: they hold a NUL early on."""
    return b"\0" in head[:_SNIFF_BYTES]


def is_unprintable(head: bytes) -> bool:
    """True if more than 30% of the first bytes are control characters or no UTF-8 (NT). Letters of all languages can be
    printed."""
    head = head[:_SNIFF_BYTES]
    unprintable = len(head.translate(None, _PRINTABLE))
    if not head.isascii():
        unprintable += head.decode("utf-8", "replace").count("\ufffd")
    return unprintable * 10 > len(head) * 3


def candidates(encoding: str | None, os_default: str) -> Sequence[str]:
    """Encodings to try in order (TR 6.3). Latin-1 is last: it takes everything."""
    if encoding is not None and codecs.lookup(encoding).name != "utf-8":
        return (encoding,)
    return tuple(dict.fromkeys(("utf-8", codecs.lookup(os_default).name, "iso8859-1")))


def decode_body(data: bytes, charset: str | None = None) -> str | None:
    """Text of an HTTP body, or None when it is binary. A wrong or unknown charset falls back like a file's."""
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
    """The charset that a header names, None where it names none."""
    pairs = (parameter.partition("=") for parameter in content_type.split(";")[1:])
    return next((value.strip().strip("\"'") for name, _, value in pairs if name.strip().lower() == "charset"), None)


def decode_output(data: bytes, *, crlf: bool) -> str:
    """Text of what a command printed: UTF-8 with the replacement character; `crlf` turns line ends into `\\n`."""
    text = data.decode("utf-8", "replace")
    return text.replace("\r\n", "\n") if crlf else text


# Head and tail of what is too long (TR 7.1), in bounded memory and never cutting inside a UTF-8 character.
#
# The marker is one for all tools: it says how many bytes are missing and of how many. It comes on top of the limit.


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
        """Say once that `count` bytes are not given here; where the line is left out, they count as left out."""
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
