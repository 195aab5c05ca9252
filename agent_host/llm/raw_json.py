"""Verbatim parts of JSON text: data that is sent back to a provider unchanged is not parsed and encoded again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import orjson

from config import json_text
from config.json_text import check_depth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SPACE = re.compile(r"[ \t\r\n]*")
_TOKENS = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_MAX_NAME_CHARS = 256
_value_at = json.JSONDecoder().raw_decode


def members(data: str) -> dict[str, str]:
    """Return the verbatim JSON text of each member of the object `data`; of a repeated name the last one. Raises
    ValueError if `data` is not an object."""
    return dict(_parts(data, "{"))


def elements(data: str) -> list[str]:
    """Return the verbatim JSON text of each element of the array `data`. Raises ValueError if `data` is not an
    array."""
    return [text for _, text in _parts(data, "[")]


def _parts(data: str, begin: str) -> Iterator[tuple[str, str]]:
    """Yield the name and JSON text of each part of the object or the array; the name of elements is ""."""
    at = _skip_space(data, 0)
    if data[at : at + 1] != begin:
        raise ValueError(f"there is no {begin} at the beginning")
    name, has_next = "", True
    while has_next:
        at = _skip_space(data, at + 1)
        if data[at : at + 1] in ("]", "") or (begin == "{" and data[at] != '"'):
            return
        if begin == "{":
            name, at = _value_at(data, at)
            at = _skip_space(data, _skip_space(data, at) + 1)  # the colon
        end = _end_of(data, at)
        yield name, data[at:end]
        at = _skip_space(data, end)
        has_next = data[at : at + 1] == ","


def join_members(fields: Mapping[str, str]) -> str:
    """Return the JSON object with these members, each given as JSON text."""
    return f"{{{','.join(f'{orjson.dumps(name).decode()}:{text}' for name, text in fields.items())}}}"


class RawParts:
    """The verbatim JSON text of parts of `data`, each addressed by its path of names and positions. The objects and
    arrays on a path are parsed once, on first use. All methods raise ValueError or LookupError for a missing part."""

    def __init__(self, data: str) -> None:
        self.data = data
        self._members: dict[tuple[str | int, ...], dict[str, str]] = {}
        self._elements: dict[tuple[str | int, ...], list[str]] = {}

    def text(self, *path: str | int) -> str:
        """Return the text of a part."""
        if not path:
            return self.data
        *way, last = path
        return self.members(*way)[last] if isinstance(last, str) else self.elements(*way)[last]

    def members(self, *path: str | int) -> dict[str, str]:
        """Return the members of a part that is an object."""
        if path not in self._members:
            self._members[path] = members(self.text(*path))
        return self._members[path]

    def elements(self, *path: str | int) -> list[str]:
        """Return the elements of a part that is an array."""
        if path not in self._elements:
            self._elements[path] = elements(self.text(*path))
        return self._elements[path]


def _end_of(data: str, at: int) -> int:
    """Return the end of the value at `at`, of any depth: users of a part check its depth. Raises ValueError."""
    if data[at : at + 1] not in ("[", "{"):
        return _value_at(data, at)[1]
    depth = 0
    for token in _TOKENS.finditer(data, at):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if depth == 0:
            return token.end()
    raise ValueError("a value is not closed")


def _skip_space(data: str, at: int) -> int:
    match = _SPACE.match(data, at)
    return at if match is None else match.end()


# Fields of a message or a call that only its provider reads, joined from the deltas of a stream. They are sent back
# unchanged, under the same names.

_Kind = Literal["text", "list", "value"]
# The fields that are joined from the fragments of one list entry; of all others the last value is used.
_IN_PIECES = frozenset({"text", "summary", "data", "thinking"})


class OpaqueFields:
    """Fields joined from deltas: a text grows with each delta, a list gets more entries, any other value is replaced.
    `replaced` counts lone surrogates that became U+FFFD, `dropped` fields that cannot be sent back unchanged; both are
    known after `to_json`."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._pieces: dict[str, list[str]] = {}
        self.replaced = 0
        self.dropped = 0

    def add(self, name: str, value: Any, raw: str) -> bool:
        """Add a field of a delta, whose JSON text is `raw`. Return True if it is not empty."""
        if value is None or value in ("", [], {}):
            return False
        kind: _Kind = "text" if isinstance(value, str) else "list" if isinstance(value, list) else "value"
        if kind == "value" or self._kinds.get(name) != kind:
            self._pieces[name] = []
        self._kinds[name] = kind
        self._pieces[name] += [value] if kind == "text" else elements(raw) if kind == "list" else [raw]
        return True

    def to_json(self) -> str | None:
        """Return the fields as a JSON object, without those that cannot be read; None if there are none."""
        members: list[str] = []
        for name, kind in self._kinds.items():
            try:
                members.append(f"{orjson.dumps(name).decode()}:{self._value(name, kind)}")
            except (ValueError, TypeError, KeyError):  # orjson's own errors are of these kinds
                self.dropped += 1
        return f"{{{','.join(members)}}}" if members else None

    def _value(self, name: str, kind: _Kind) -> str:
        pieces = self._pieces[name]
        if kind == "text":
            text, count = repair("".join(pieces))
            self.replaced += count
            return orjson.dumps(text).decode()
        if kind == "list":
            pieces = [_join(group) for group in _group(name, pieces)]
        value = f"[{','.join(pieces)}]" if kind == "list" else pieces[0]
        json_text.loads(value)
        return value


def _group(name: str, entries: Iterable[str]) -> Iterable[list[str]]:
    """Group the fragments of each list entry: in `reasoning_details` (OpenRouter) those with the same type and index,
    in `thinking_blocks` (LiteLLM) those up to a signature. A signature is valid only for the complete entry."""
    groups: list[list[str]] = []
    by_key: dict[Any, list[str]] = {}
    for entry in entries:
        key = _fragment_of(name, entry)
        group = by_key.get(key) if key is not None else None
        if group is None:
            group = []
            groups.append(group)
            if key is not None:
                by_key[key] = group
        group.append(entry)
        if name == "thinking_blocks" and key is not None and orjson.loads(entry).get("signature"):
            del by_key[key]
    return groups


def _fragment_of(name: str, entry: str) -> Any:
    """Return a key that is the same for all fragments of one entry; None for a complete entry."""
    value = orjson.loads(entry) if name in ("reasoning_details", "thinking_blocks") else None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    if name == "thinking_blocks":
        return value["type"] if value["type"] == "thinking" else None
    index = value.get("index")
    return (value["type"], index) if type(index) is int else None


def _join(fragments: list[str]) -> str:
    """Join the fragments of one entry; a single fragment is returned unchanged."""
    if len(fragments) == 1:
        return fragments[0]
    joined: dict[str, Any] = {}
    for fragment in fragments:
        json_text.check_depth(fragment)
        for name, value in json.loads(fragment).items():
            if name in _IN_PIECES and isinstance(value, str) and isinstance(joined.get(name), str):
                joined[name] += value
            elif value is not None or name not in joined:
                joined[name] = value
    return orjson.dumps(joined).decode()


# Surrogates (halves of characters) in a model's output. JSON can contain them as escapes (`\ud800`), but no file,
# request or record can. Two that belong together become their character; a lone one becomes U+FFFD.

REPLACEMENT = "\ufffd"

_HIGH, _LOW, _ANY = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}", r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
# Matches one escape at a time, so that a u after an escaped backslash does not count as an escape.
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|(?P<alone>{_ANY})|.)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_MAYBE = re.compile(rf"\\{_ANY}|{_HALF.pattern}")


def may_hold_halves(encoded: str) -> bool:
    """True if JSON that orjson refuses may be valid except for lone surrogates."""
    return _MAYBE.search(encoded) is not None


def repair(text: str) -> tuple[str, int]:
    """Return `text` with surrogates joined or replaced, and the number of replaced ones."""
    if _HALF.search(text) is None:
        return text, 0
    repaired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return repaired, repaired.count(REPLACEMENT) - text.count(REPLACEMENT)


def name_in(value: object) -> str:
    """Return a name that is only used in telemetry; "" for anything that is not a string or is too long. It is not cut,
    because a secret that is cut could not be detected."""
    return repair(value)[0] if isinstance(value, str) and len(value) <= _MAX_NAME_CHARS else ""


def repair_json(encoded: str) -> tuple[str, int]:
    """Repair JSON, whose strings may contain surrogates as escapes, in linear time; return it and the number of
    replaced ones."""
    encoded, count = repair(encoded)

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if match["alone"] is None:
            return match[0]
        count += 1
        return REPLACEMENT

    return _ESCAPE.sub(replace, encoded), count


def loads_with_halves(encoded: str) -> Any:
    """Parse `encoded`, keeping lone surrogates in its strings. Raises ValueError if it is not JSON."""
    check_depth(encoded)
    return json.loads(encoded)


def split_open_end(text: str) -> tuple[str, str]:
    """Split off a high surrogate at the end of `text`, which a later text may complete. Return both parts; the second
    is "" if there is none."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
