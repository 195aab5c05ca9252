"""Halves of characters (lone surrogates) in what a model says. JSON can spell them (`\\ud800`), and no file, request or
record can hold them. Two that belong together become their character; one that stays alone becomes U+FFFD."""

from __future__ import annotations

import json
import re
from typing import Any

from config.json_text import check_depth

REPLACEMENT = "\ufffd"

_HIGH, _LOW, _ANY = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}", r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
# One escape at a time, so that the u of an escaped backslash is none.
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|(?P<alone>{_ANY})|.)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_MAYBE = re.compile(rf"\\{_ANY}|{_HALF.pattern}")


def may_hold_halves(encoded: str) -> bool:
    """True if JSON that orjson refuses may be good but for halves of characters."""
    return _MAYBE.search(encoded) is not None


def repaired(text: str) -> tuple[str, int]:
    """`text` with halves joined or replaced, and how many were replaced."""
    if _HALF.search(text) is None:
        return text, 0
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole, whole.count(REPLACEMENT) - text.count(REPLACEMENT)


def repaired_json(encoded: str) -> tuple[str, int]:
    """The same for JSON, whose strings may spell halves as escapes; linear in its length."""
    encoded, count = repaired(encoded)

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if match["alone"] is None:
            return match[0]
        count += 1
        return REPLACEMENT

    return _ESCAPE.sub(replace, encoded), count


def loads_with_halves(encoded: str) -> Any:
    """The value of `encoded`, halves of characters left in its strings. Raises ValueError for what is no JSON."""
    check_depth(encoded)
    return json.loads(encoded)


def without_open_end(text: str) -> tuple[str, str]:
    """`text`, and the first half of a character with which it ends, for the second half to follow; "" for none."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
