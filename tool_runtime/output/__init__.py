"""Output of tools: read, cut and kept whole. Here, bytes to text: byte order marks, the encoding fallback chain
(TR 6.3), binary detection."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

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
    """True if more than 30% of what bytes begin with cannot be printed (NT): control characters, and bytes that are no
    UTF-8. Letters of all languages can."""
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


def decode_output(data: bytes, *, crlf: bool) -> str:
    """Text of what a command printed: UTF-8 with the replacement character; `crlf` turns line ends into `\\n`."""
    text = data.decode("utf-8", "replace")
    return text.replace("\r\n", "\n") if crlf else text


def charset_of(content_type: str) -> str | None:
    """The charset that a header names, None where it names none."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")
    return None
