"""Bytes to messages and back, in either framing (interface section 2): one JSON object a line, or a Content-Length
header before each, as language servers have it. Pure; it holds what is left of an unfinished message.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_HEADER_BYTES: Final = 4096
_MAX_LENGTH_DIGITS: Final = 18
_BLANK: Final = b" \t\r\n"
_FIRST_BYTES: Final = b"content-"
_FIRST_FIELD: Final = b"content-length:"


class FramingError(Exception):
    """The error in place of a message that cannot be read; `str()` says why."""


class LineTooLong(FramingError):
    """A line is over the limit; the rest of it will be skipped."""


class Framing:
    """The messages of one client. Its first bytes that are no white space and no byte order mark say which framing it
    speaks: `Content-`, in any case, begins a header, anything else a line. Until then it is spoken to as the client
    `before` it, where there was one, else in lines."""

    def __init__(self, limit: int = MAX_LINE_BYTES, *, before: Framing | None = None) -> None:
        self._limit = limit
        self._has_headers: bool = before is not None and before._has_headers  # noqa: SLF001  of the same class
        self._first = b""  # too few to know
        self._splitter: LineSplitter | HeaderSplitter | None = None

    def feed(self, data: bytes) -> list[bytes | FramingError]:
        """The messages that `data` completes; FramingError in place of one that cannot be read."""
        if self._splitter is None:
            data = (self._first + data).removeprefix(BOM_UTF8).lstrip(_BLANK)
            begins = data[: len(_FIRST_BYTES)].lower()
            if begins == _FIRST_BYTES:
                self._splitter, self._has_headers = HeaderSplitter(self._limit), True
            elif _FIRST_BYTES.startswith(begins) or BOM_UTF8.startswith(data):
                self._first = data
                return []
            else:
                self._splitter, self._has_headers = LineSplitter(self._limit), False
            self._first = b""
        return list(self._splitter.feed(data))

    def end(self) -> bytes | FramingError | None:
        """Take the end of the stream: a last line without its newline, or an error for a message that was cut off; None
        when nothing is left."""
        if self._splitter is None:
            first, self._first = self._first, b""
            return first or None
        return self._splitter.end()

    def wrap(self, message: bytes) -> bytes:
        """One encoded message as it goes to the client."""
        if self._has_headers:
            return b"Content-Length: %d\r\n\r\n%s" % (len(message), message)
        return message + b"\n"


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


class HeaderSplitter:
    """Messages behind headers. A header is lines of `Name: value`, each ended by CRLF, or by LF alone, and an empty
    line. Of its fields Content-Length counts; the others are passed over.

    After a header that cannot be read everything is skipped until a line begins with `Content-Length:`. No line within
    a JSON text does, so no part of a message is taken for a header. Memory is bounded by `limit`, and that of a header
    by MAX_HEADER_BYTES.
    """

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._line = bytearray()  # of a header, not whole yet
        self._header_bytes = 0
        self._has_fields = False
        self._length: int | None = None
        self._body = bytearray()
        self._missing_bytes = 0  # of the body
        self._skips_body = False
        self._is_lost = False

    def feed(self, data: bytes) -> Iterator[bytes | FramingError]:
        """The messages that `data` completes; FramingError in place of one, as soon as it is known to be."""
        at = 0
        while at < len(data):
            if self._missing_bytes:
                piece = data[at : at + self._missing_bytes]
                at += len(piece)
                yield from self._take_body(piece)
                continue
            end = data.find(b"\n", at)
            piece = data[at:] if end < 0 else data[at:end]
            at += len(piece) + (end >= 0)
            try:
                yield from self._take_header(piece, whole=end >= 0)
            except FramingError as error:
                self._begin_header()
                self._is_lost = True
                if end < 0:
                    self._line += b"\0"  # the rest of this line is skipped as well
                yield error

    def end(self) -> FramingError | None:
        """An error for a message that the end of the stream cuts off; what is skipped had its own."""
        begun = self._missing_bytes or self._has_fields or self._line.strip()
        is_cut_off = begun and not self._skips_body and not self._is_lost
        self._begin_header()
        self._missing_bytes, self._skips_body, self._is_lost = 0, False, False
        self._body.clear()
        return FramingError("the stream ended within a message") if is_cut_off else None

    def _begin_header(self) -> None:
        self._line.clear()
        self._header_bytes, self._has_fields, self._length = 0, False, None

    def _take_header(self, piece: bytes, *, whole: bool) -> Iterator[bytes | FramingError]:
        """A header's line, or a part of it. Raises FramingError where it cannot be read."""
        if self._is_lost:
            found = self._find_header(piece, whole=whole)
            if found is None:
                return
            piece = found
        # Reported at once: a client that ends no line may wait for its answer.
        if 0 <= piece.find(b"{") < MAX_HEADER_BYTES - self._header_bytes:
            raise FramingError("a message begins before its header has ended with an empty line")
        self._header_bytes += len(piece) + whole
        if self._header_bytes > MAX_HEADER_BYTES:
            raise FramingError(f"a header is longer than {MAX_HEADER_BYTES} bytes")
        self._line += piece
        if not whole:
            return
        line = bytes(self._line.removesuffix(b"\r"))
        self._line.clear()
        if line:
            self._take_field(line)
        elif self._has_fields:
            yield from self._begin_body()
        else:  # empty lines between two messages
            self._header_bytes = 0

    def _find_header(self, piece: bytes, *, whole: bool) -> bytes | None:
        """The present part of a line that begins with Content-Length; None for any other."""
        room = len(_FIRST_FIELD) - len(self._line)
        self._line += piece[:room]
        if self._line.lower() != _FIRST_FIELD:
            if whole:
                self._line.clear()
            return None
        found = bytes(self._line) + piece[room:]
        self._line.clear()
        self._is_lost = False
        return found

    def _take_field(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if not colon or not name.replace(b"-", b"").isalnum():
            raise FramingError("a header's line is not of the form `Name: value`")
        self._has_fields = True
        if name.lower() + colon != _FIRST_FIELD:
            return
        value = value.strip(b" \t")
        if self._length is not None:
            raise FramingError("a header has more than one Content-Length")
        if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
            raise FramingError("Content-Length is not a number of bytes")
        self._length = int(value)

    def _begin_body(self) -> Iterator[bytes | FramingError]:
        length = self._length
        if length is None:
            raise FramingError("a header has no Content-Length")
        self._begin_header()
        self._missing_bytes = length
        self._skips_body = length > self._limit
        if self._skips_body:
            yield FramingError(f"a message is longer than {self._limit} bytes")
        elif length == 0:
            yield b""

    def _take_body(self, piece: bytes) -> Iterator[bytes]:
        self._missing_bytes -= len(piece)
        if self._skips_body:
            self._skips_body = self._missing_bytes > 0
        elif self._missing_bytes:
            self._body += piece
        elif self._body:
            self._body += piece
            message = bytes(self._body)
            self._body.clear()
            yield message
        else:
            yield piece
