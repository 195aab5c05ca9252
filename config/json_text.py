"""Read JSON text with a bound of our own on its nesting depth, and write it whatever a model or a file name put into
it.

The standard library's reader is bounded only by the interpreter's recursion limit (about 990 levels on Python 3.11,
1500 on 3.12, 10 000 on 3.13), and functions that walk a value reach that limit at a fraction of it. So the depth of a
text is checked before it is parsed. Our own records on disk, which contain such a text some levels deeper, and events
of a gateway, whose parts are checked one by one, are read by orjson alone: its own bound (1024) is the same everywhere.
"""

from __future__ import annotations

import codecs
import json
import re
from itertools import accumulate, count
from operator import sub
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 200
"""Maximum levels of arrays and objects in one text. orjson writes 254 levels, so a value that was read can be written
within an envelope; a walk with four frames per level stays within the interpreter's 1000."""

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
    """Raise TooDeep for JSON that nests deeper than MAX_DEPTH. It takes linear time, and one count for most texts. Text
    that is not JSON may pass; up to the position where a reader gives up, it nests no deeper either."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    if b"\\" in raw:  # from left to right, so that a quote after an escaped backslash ends its string
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(raw.split(b'"')[::2]).translate(_STEPS, _ALL_ELSE)
    if max(map(sub, accumulate(brackets), count(1)), default=0) > MAX_DEPTH:
        raise TooDeep


def loads(data: bytes | bytearray | str) -> Any:
    """Parse a JSON text from outside. Raises orjson.JSONDecodeError, of which TooDeep is a subclass."""
    check_depth(data)
    return orjson.loads(data)


def dumps(value: Any, *, option: int = 0) -> bytes:
    """Return `value` as JSON. The standard library writes what orjson rejects: a lone surrogate, an integer beyond 64
    bits, nesting deeper than 254. A value that JSON does not have is written as its `str()`. Of orjson's options,
    OPT_INDENT_2 and OPT_APPEND_NEWLINE are supported."""
    try:
        return orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:
        text = json.dumps(value, default=str, indent=2 if option & orjson.OPT_INDENT_2 else None)
        return text.encode() + (b"\n" if option & orjson.OPT_APPEND_NEWLINE else b"")


def copy_to_keep(data: bytes) -> bytes:
    """Copy `data` to a buffer of its own size. The buffers of orjson have at least 4 KB and can be ten times as large
    as their content, which matters for data that is kept."""
    return bytes(memoryview(data))


def encodable(text: str) -> str:
    """Replace each lone surrogate in `text` by a question mark, because a name that is not UTF-8 could be neither
    recorded nor put into a request."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def mend_halves(text: str) -> str:
    """Replace each half of a character in a JSON text, written as an escape, by a question mark: most readers refuse
    the text for it. A text that is not JSON stays as it is."""
    if re.search(r"\\u[dD][89a-fA-F]", text) is None:
        return text
    try:
        check_depth(text)
        return encodable(json.dumps(json.loads(text), ensure_ascii=False))
    except ValueError:
        return text


# Faults of a text in the wrong format, described for its author.

_COMMENT = r"//|/\*|#"
_TOML = r"\[\[?[\w.\"' -]+\]\]?\s*(?:#.*)?|[\w.\"'-]+\s*=\s*\S.*"
_YAML = r"---(?:\s.*)?|- \S.*|[\w.\"'-]+\s*:(?:\s.*)?"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def name_format(text: str) -> str | None:
    """Guess `JSON`, `TOML` or `YAML` from the first line that is neither empty nor a comment; None if it resembles none
    of them."""
    lines = (line.strip() for line in text.lstrip("\ufeff").splitlines())
    first = next((line for line in lines if line and not re.match(_COMMENT, line)), "")
    if first.startswith("{"):
        return "JSON"
    named = (("TOML", _TOML), ("YAML", _YAML))
    return next((name for name, form in named if re.fullmatch(form, first)), None)


def describe_bytes(raw: bytes, error: UnicodeDecodeError) -> str:
    """Describe the fault in bytes that are not UTF-8."""
    if raw.startswith(_UTF_16):
        return "is UTF-16: save it as UTF-8"
    line = raw.count(b"\n", 0, error.start) + 1
    return f"is not UTF-8 (line {line}): save it as UTF-8"


def describe_toml(raw: bytes, error: Exception) -> str:
    """Describe the fault in a file that is not TOML."""
    if isinstance(error, UnicodeDecodeError):
        return describe_bytes(raw, error)
    found = name_format(raw.decode("utf-8", "replace"))
    if found in ("JSON", "YAML"):
        return f"is {found}, and has to be TOML: a line [section], and lines of the form key = value below it"
    hint = "; text needs quotes" if str(error).startswith("Invalid value") else ""
    return f"not valid TOML: {error}{hint}"


def describe_json(text: str, message: str, position: int) -> str:
    """Describe the fault in a text that is not JSON: `message` is the parser's, about this `position`."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return "is empty"
    found = name_format(text)
    if found in ("TOML", "YAML"):
        return f"is {found}, and has to be JSON"
    rest = text[position:].lstrip(", \t\r\n")
    line = text.count("\n", 0, len(text) - len(rest)) + 1
    if re.match(_COMMENT, rest):
        return f"is not JSON: line {line} has a comment, and JSON has none: take it out"
    if not rest or message.startswith("Unterminated"):
        return f"is not JSON: it is not closed at its end, line {line}: a bracket or a quote is missing"
    if message.startswith("Extra data"):
        return f"is not JSON: more follows in line {line} after it ends"
    before = text[: len(text) - len(rest)].rstrip()
    if rest[0] in "}]" and before.endswith(","):
        return f"is not JSON: line {line} has a bracket after a comma: take the comma out"
    if rest[0] == "'" or ("property name" in message and re.match(r"[\w$]", rest)):
        return f"is not JSON: in line {line} a name or a text has no double quotes around it"
    return f"is not JSON: line {line}: {message[:1].lower()}{message[1:]}"
