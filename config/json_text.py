"""JSON text: read with a bound on how deep it may nest, which is ours and not the interpreter's; written whatever a
model or a file name put into it.

The standard library's reader follows as deep as the interpreter's recursion limit lets it (about 990 levels on Python
3.11, 1500 on 3.12, 10 000 on 3.13), and functions that walk through a value meet that limit at a fraction of it. So a
text is measured before anything reads it. Records of our own on disk, which hold such a text some levels deeper, and
events of a gateway, whose parts are judged one by one, are read by orjson alone: its own bound (1024) is the same
everywhere.
"""

from __future__ import annotations

import json
from itertools import accumulate, count
from operator import sub
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 200
"""Levels of arrays and objects in one text. orjson writes 254, so what was read can be written within an envelope; a
walk that takes four frames a level stays within the interpreter's 1000."""

_OPENING, _CLOSING = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPENING + _CLOSING, b"\2\2\0\0")
_ALL_ELSE = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)


class TooDeep(orjson.JSONDecodeError):
    """A JSON text nests deeper than MAX_DEPTH."""

    def __init__(self) -> None:
        super().__init__("nests too deep", "", 0)

    def __str__(self) -> str:
        return f"it nests deeper than {MAX_DEPTH} levels"


def check_depth(data: bytes | bytearray | str) -> None:
    """Raise TooDeep for JSON that nests deeper than MAX_DEPTH. Linear, and for most texts one count. Text that is no
    JSON may pass; up to the place where a reader gives up it nests no deeper either."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    if b"\\" in raw:  # from left to right, so that the quote behind an escaped backslash ends its string
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(raw.split(b'"')[::2]).translate(_STEPS, _ALL_ELSE)
    if max(map(sub, accumulate(brackets), count(1)), default=0) > MAX_DEPTH:
        raise TooDeep


def loads(data: bytes | bytearray | str) -> Any:
    """The value of a JSON text from outside. Raises orjson.JSONDecodeError, TooDeep among it."""
    check_depth(data)
    return orjson.loads(data)


def dumps(value: Any, *, option: int = 0) -> bytes:
    """`value` as JSON. What orjson refuses, a lone surrogate, an integer beyond 64 bits, nesting deeper than 254, the
    standard library writes; what is no JSON at all becomes its `str()`. Of orjson's options it takes OPT_INDENT_2 and
    OPT_APPEND_NEWLINE."""
    try:
        return orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:
        text = json.dumps(value, default=str, indent=2 if option & orjson.OPT_INDENT_2 else None)
        return text.encode() + (b"\n" if option & orjson.OPT_APPEND_NEWLINE else b"")


def copy_to_keep(data: bytes) -> bytes:
    """`data` in a buffer of its own size: those that orjson returns are 4 KB at least and can be ten times as large as
    what is in them, which counts for what is kept."""
    return bytes(memoryview(data))


def encodable(text: str) -> str:
    """`text` with a question mark for each lone surrogate: what stands for a name that is no UTF-8 could be put neither
    on record nor into a request."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
