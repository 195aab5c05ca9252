"""Parts of JSON text as they stand there: what goes back to a provider unchanged is not read and written again."""

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
    """The JSON text of each member of the object that `data` is, as it stands there; of each name the last one. Raises
    ValueError for what is no object."""
    return dict(_parts(data, "{"))


def elements(data: str) -> list[str]:
    """The JSON text of each element of the array that `data` is, as it stands there. Raises ValueError for what is no
    array."""
    return [text for _, text in _parts(data, "[")]


def _parts(data: str, begin: str) -> Iterator[tuple[str, str]]:
    """Name and JSON text of each part of the object or the array; elements have no name."""
    at = _skip_space(data, 0)
    if data[at : at + 1] != begin:
        raise ValueError(f"there is no {begin} at the beginning")
    name, more = "", True
    while more:
        at = _skip_space(data, at + 1)
        if data[at : at + 1] in ("]", "") or (begin == "{" and data[at] != '"'):
            return
        if begin == "{":
            name, at = _value_at(data, at)
            at = _skip_space(data, _skip_space(data, at) + 1)  # the colon
        end = _end_of(data, at)
        yield name, data[at:end]
        at = _skip_space(data, end)
        more = data[at : at + 1] == ","


def join_members(fields: Mapping[str, str]) -> str:
    """The JSON object that has these members, each as the JSON text that it is."""
    return f"{{{','.join(f'{orjson.dumps(name).decode()}:{text}' for name, text in fields.items())}}}"


class RawParts:
    """The JSON text of parts of `data`, each by the names and places on the way to it, as it stands there. What is on
    the way is looked for once, when it is first asked for. All methods raise ValueError or LookupError for what is not
    there."""

    def __init__(self, data: str) -> None:
        self.data = data
        self._members: dict[tuple[str | int, ...], dict[str, str]] = {}
        self._elements: dict[tuple[str | int, ...], list[str]] = {}

    def text(self, *path: str | int) -> str:
        """The part itself."""
        if not path:
            return self.data
        *way, last = path
        return self.members(*way)[last] if isinstance(last, str) else self.elements(*way)[last]

    def members(self, *path: str | int) -> dict[str, str]:
        """The members of the object that the part is."""
        if path not in self._members:
            self._members[path] = members(self.text(*path))
        return self._members[path]

    def elements(self, *path: str | int) -> list[str]:
        """The elements of the array that the part is."""
        if path not in self._elements:
            self._elements[path] = elements(self.text(*path))
        return self._elements[path]


def _end_of(data: str, at: int) -> int:
    """The end of the value at `at`, however deep it nests: who uses a part judges its depth. Raises ValueError."""
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


# Fields of a message or a call that only its provider reads, put together from the deltas of a stream: they go back
# as they came, under the names that they came under.

_Kind = Literal["text", "list", "value"]
# Of the fragments of one entry of a list, what is said in several of them; of all else the last counts.
_IN_PIECES = frozenset({"text", "summary", "data", "thinking"})


class OpaqueFields:
    """A text grows with each delta, a list gets more entries, anything else is replaced. `replaced` counts halves of
    characters that became U+FFFD, `dropped` fields that cannot be sent back unchanged; both are known after `whole`."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._pieces: dict[str, list[str]] = {}
        self.replaced = 0
        self.dropped = 0

    def add(self, name: str, value: Any, raw: str) -> bool:
        """Take a field of a delta, whose JSON text is `raw`. Returns whether there is anything in it."""
        if value is None or value in ("", [], {}):
            return False
        kind: _Kind = "text" if isinstance(value, str) else "list" if isinstance(value, list) else "value"
        if kind == "value" or self._kinds.get(name) != kind:
            self._pieces[name] = []
        self._kinds[name] = kind
        self._pieces[name] += [value] if kind == "text" else elements(raw) if kind == "list" else [raw]
        return True

    def whole(self) -> str | None:
        """The fields as a JSON object, those left out that cannot be read; None where there are none."""
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
    """The entries of a list, those together that are fragments of one: of `reasoning_details` (OpenRouter) such with
    one type and index, of `thinking_blocks` (LiteLLM) those up to a signature. A signature holds for the whole only."""
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
    """The common beginning of the fragments of one entry; None for one that is whole."""
    value = orjson.loads(entry) if name in ("reasoning_details", "thinking_blocks") else None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    if name == "thinking_blocks":
        return value["type"] if value["type"] == "thinking" else None
    index = value.get("index")
    return (value["type"], index) if type(index) is int else None


def _join(fragments: list[str]) -> str:
    """One entry; a single fragment is one as it stands."""
    if len(fragments) == 1:
        return fragments[0]
    whole: dict[str, Any] = {}
    for fragment in fragments:
        json_text.check_depth(fragment)
        for name, value in json.loads(fragment).items():
            if name in _IN_PIECES and isinstance(value, str) and isinstance(whole.get(name), str):
                whole[name] += value
            elif value is not None or name not in whole:
                whole[name] = value
    return orjson.dumps(whole).decode()


# Halves of characters (lone surrogates) in what a model says. JSON can spell them (`\ud800`), and no file, request or
# record can hold them. Two that belong together become their character; one that stays alone becomes U+FFFD.

REPLACEMENT = "\ufffd"

_HIGH, _LOW, _ANY = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}", r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
# One escape at a time, so that the u of an escaped backslash is none.
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|(?P<alone>{_ANY})|.)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_MAYBE = re.compile(rf"\\{_ANY}|{_HALF.pattern}")


def may_hold_halves(encoded: str) -> bool:
    """True if JSON that orjson refuses may be good but for halves of characters."""
    return _MAYBE.search(encoded) is not None


def repair(text: str) -> tuple[str, int]:
    """`text` with halves joined or replaced, and how many were replaced."""
    if _HALF.search(text) is None:
        return text, 0
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole, whole.count(REPLACEMENT) - text.count(REPLACEMENT)


def name_in(value: object) -> str:
    """A name that only observers read: what is no string, or too long, is none. It is not cut, since a secret in it
    could not be found any more."""
    return repair(value)[0] if isinstance(value, str) and len(value) <= _MAX_NAME_CHARS else ""


def repair_json(encoded: str) -> tuple[str, int]:
    """The same for JSON, whose strings may spell halves as escapes; linear in its length."""
    encoded, count = repair(encoded)

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


def split_open_end(text: str) -> tuple[str, str]:
    """`text`, and the first half of a character with which it ends, for the second half to follow; "" for none."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
