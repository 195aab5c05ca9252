"""The fields in front of a Markdown file, between two lines of three hyphens, as SKILL.md has them.

They are YAML, and this reads the part of it that such files use: texts, plain, in quotes or in a block (`|`, `>`), and
lists of texts. A field with more than that (a mapping) is passed over. A YAML library takes longer to import than the
fields of two hundred files to read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    Value = str | tuple[str, ...]

_FIRST: Final = re.compile(r"\ufeff?---[ \t]*\r?\n")
_LAST: Final = re.compile(r"^---[ \t]*\r?$\n?", re.MULTILINE)
_FIELD: Final = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*))?")
_BLOCK: Final = r"([|>])[+-]?[1-9]?[+-]?(?:[ \t]+#.*)?"
_ESCAPES: Final = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", "0": "\0"}


class NoFrontMatter(ValueError):
    """The text does not begin with such fields; `str()` says why."""


class Document(NamedTuple):
    """The fields by name, and the text behind them."""

    fields: dict[str, Value]
    body: str


def split(text: str) -> Document:
    """The fields and the body. Raises NoFrontMatter."""
    first = _FIRST.match(text)
    if first is None:
        raise NoFrontMatter("it does not begin with a line of three hyphens")
    last = _LAST.search(text, first.end())
    if last is None:
        raise NoFrontMatter("no second line of three hyphens ends its fields")
    lines = text[first.end() : last.start()].split("\n")[:-1]
    return Document(_fields([line.rstrip("\r") for line in lines]), text[last.end() :])


def _fields(lines: Sequence[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    at = 0
    while at < len(lines):
        field = _FIELD.fullmatch(lines[at])
        at += 1
        if field is None:
            continue
        start = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t-"):
            at += 1
        value = _value((field[2] or "").strip(), lines[start:at])
        if value is not None:
            found[field[1]] = value
    return found


def _value(first: str, rest: Sequence[str]) -> Value | None:
    """What stands behind the colon and below it; None for a mapping."""
    block = re.fullmatch(_BLOCK, first) if first[:1] in ("|", ">") else None
    if block is not None:
        return _block(rest, folded=block[1] == ">")
    if first.startswith("["):
        inside = " ".join((first, *(line.strip() for line in rest))).strip()
        return tuple(_scalar(item) for item in _items(inside[1 : inside.rfind("]")]) if item)
    below = [line.strip() for line in rest if line.strip() and not line.strip().startswith("#")]
    if first in ("", "~", "null") or first.startswith("#"):
        if not below:
            return "" if first == "" or first.startswith("#") else None
        if all(line.startswith("- ") for line in below):
            return tuple(_scalar(line[2:].strip()) for line in below)
        return None if any(_FIELD.fullmatch(line) for line in below) else _scalar(" ".join(below))
    return _scalar(" ".join((first, *below)))


def _block(lines: Sequence[str], *, folded: bool) -> str:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    text = "\n".join(line[indent:].rstrip() for line in lines).strip("\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text) if folded else text


def _items(text: str) -> list[str]:
    """The items of a list in brackets: commas in quotes or parentheses are no separators."""
    items, current, quote, depth = [], "", "", 0
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        if char == "," and not quote and depth <= 0:
            items.append(current.strip())
            current = ""
        else:
            current += char
    return [*items, current.strip()]


def _scalar(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), text[1:-1])
    return re.sub(r"(?:^|[ \t])#.*", "", text).rstrip() if "#" in text else text.rstrip()
