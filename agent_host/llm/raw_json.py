"""Parts of JSON text as they stand there: what goes back to a provider unchanged is not read and written again."""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_TOKENS = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_value_at = json.JSONDecoder().raw_decode


def member(data: str, name: str) -> str | None:
    """The JSON text of the member `name` of the object that `data` is, as it stands there; the last one of this name.
    Raises ValueError for what is no JSON."""
    return members(data).get(name)


def members(data: str) -> dict[str, str]:
    """The JSON text of each member of the object that `data` is, as it stands there; of each name the last one. Raises
    ValueError for what is no object."""
    found: dict[str, str] = {}
    at = _inside(data, "{")
    while data[at : at + 1] == '"':
        key, at = _value_at(data, at)
        at = _behind(data, _behind(data, at) + 1)  # the colon
        end = _end_of(data, at)
        found[key] = data[at:end]
        at = _behind(data, end)
        if data[at : at + 1] != ",":
            break
        at = _behind(data, at + 1)
    return found


def elements(data: str) -> list[str]:
    """The JSON text of each element of the array that `data` is, as it stands there. Raises ValueError for what is no
    array."""
    found: list[str] = []
    at = _inside(data, "[")
    while data[at : at + 1] not in ("]", ""):
        end = _end_of(data, at)
        found.append(data[at:end])
        at = _behind(data, end)
        if data[at : at + 1] != ",":
            break
        at = _behind(data, at + 1)
    return found


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


def _inside(data: str, begin: str) -> int:
    at = _behind(data, 0)
    if data[at : at + 1] != begin:
        raise ValueError(f"there is no {begin} at the beginning")
    return _behind(data, at + 1)


def _behind(data: str, at: int) -> int:
    """The first place from `at` on that is no white space."""
    match = _SPACE.match(data, at)
    return at if match is None else match.end()
