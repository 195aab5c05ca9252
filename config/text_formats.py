"""Faults of a text that is not in the format it has to be in, in words for the one who wrote it."""

from __future__ import annotations

import codecs
import re

_COMMENT = re.compile(r"//|/\*|#")
_TOML = re.compile(r"\[\[?[\w.\"' -]+\]\]?\s*(?:#.*)?|[\w.\"'-]+\s*=\s*\S.*")
_YAML = re.compile(r"---(?:\s.*)?|- \S.*|[\w.\"'-]+\s*:(?:\s.*)?")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def name_format(text: str) -> str | None:
    """`JSON`, `TOML` or `YAML`, by the first line that says something; None if it is like none of them."""
    lines = (line.strip() for line in text.lstrip("\ufeff").splitlines())
    first = next((line for line in lines if line and not _COMMENT.match(line)), "")
    if first.startswith("{"):
        return "JSON"
    named = (("TOML", _TOML), ("YAML", _YAML))
    return next((name for name, form in named if form.fullmatch(first)), None)


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
    hint = "; text stands in quotes" if str(error).startswith("Invalid value") else ""
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
    if _COMMENT.match(rest):
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
