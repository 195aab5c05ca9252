"""JSON of what may not stop the host, whatever a model or a file name put into it."""

from __future__ import annotations

import json
from typing import Any

import orjson


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
