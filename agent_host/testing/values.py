"""Readers of script values: each takes what TOML or JSON gave and returns a checked, immutable value.

What a value may be is a shape (`config.shapes`); here stands what the shape does not do: the conversion.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from config.shapes import FLAG, Shape, Text, display, first_problem, hint_at, whole

Reader = Callable[[Any], Any]

_UTF8 = Text(nul=True)


class BadValue(ValueError):
    """A value is not what its key takes. `path` is the key below the turn, such as `tool_calls[1].name`."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path

    def nest(self, key: str) -> BadValue:
        """The same problem seen from the table that holds `key`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return BadValue(self.text, f"{key}{joint}{self.path}")


def reader(shape: Shape) -> Reader:
    """A reader of values of one shape, which are given back as they are."""

    def read(raw: Any) -> Any:
        problem = first_problem(shape, raw)
        if problem is not None:
            raise BadValue(problem.text, problem.path)
        return raw

    return read


string: Callable[[Any], str] = reader(_UTF8)
"""Reads a string that can be sent as UTF-8."""
boolean: Callable[[Any], bool] = reader(FLAG)
natural: Callable[[Any], int] = reader(whole(0))
"""Reads a whole number, zero or more."""


def strings(raw: Any) -> tuple[str, ...]:
    """A string or an array of strings; one string is an array of one."""
    if isinstance(raw, str):
        return (string(raw),)
    if not isinstance(raw, (list, tuple)):
        raise BadValue(f"must be a string or an array of strings, not {display(raw)}")
    return array_of(string)(raw)


def whole_number(lowest: int, highest: int | None = None) -> Callable[[Any], int]:
    """A reader of whole numbers from `lowest` to `highest`."""
    return reader(whole(lowest, highest))


def positions(raw: Any) -> tuple[int, ...]:
    """One whole number or an array of them, from 1."""
    return array_of(whole_number(1))(raw if isinstance(raw, (list, tuple)) else [raw])


def pattern(raw: Any) -> re.Pattern[str]:
    """A regular expression in Python's syntax; `.` matches newlines too."""
    try:
        return re.compile(string(raw), re.DOTALL)
    except re.error as error:
        raise BadValue(f"is not a regular expression: {error}") from None


def table_of(item: Shape) -> Callable[[Any], Mapping[str, Any]]:
    """A reader of tables whose values all have one shape."""

    def read(raw: Any) -> Mapping[str, Any]:
        entries = _table(raw)
        return table(entries, dict.fromkeys(entries, reader(item)))

    return read


def array_of(read_item: Reader) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of arrays."""

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, (list, tuple)):
            raise BadValue(f"must be an array, not {display(raw)}")
        return tuple(_read_at(f"[{index}]", read_item, item) for index, item in enumerate(raw))

    return read


def _read_at(place: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except BadValue as problem:
        raise problem.nest(place) from None


def table(raw: Any, readers: Mapping[str, Reader], required: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a table by key, each read by its reader. Raises BadValue for what is no table, a key that `readers`
    lacks (with the nearest one it has), a value its reader refuses, or a `required` key that is missing."""
    values = {}
    for key, value in _table(raw).items():
        if key not in readers:
            raise BadValue(unknown_key(key, readers), key)
        values[key] = _read_at(key, readers[key], value)
    for key in required:
        if key not in values:
            raise BadValue("is missing", key)
    return values


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that is not among `known`."""
    return f"is not known{hint_at(key, list(known))}"


def _table(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise BadValue(f"must be a table, not {display(raw)}")
    return raw


# Placeholders in scripts: `${name}` is filled in, `$${` stands for a plain `${`, anything else is left alone.

T = TypeVar("T")

BUILT_IN = frozenset({"turn"})
"""Names that the gateway knows by itself: `turn` is the number of assistant messages before this answer."""

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(value: object) -> list[str]:
    """Every placeholder name in the strings of `value`, however deep."""
    found = defaultdict[str, str](str)
    fill(value, found)
    return list(found)


def fill(value: T, variables: Mapping[str, str]) -> T:
    """`value` with its placeholders filled. Table keys and compiled patterns stay as they are. Raises KeyError for a
    placeholder whose name is not in `variables`."""
    filled: Any = value
    if isinstance(value, str):
        if "$" in value:
            filled = _PLACEHOLDER.sub(lambda match: variables[match[1]] if match[1] else "${", value)
    elif isinstance(value, Mapping):
        filled = {key: fill(part, variables) for key, part in value.items()}
    elif isinstance(value, (tuple, list)):
        filled = type(value)(fill(part, variables) for part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: fill(getattr(value, field.name), variables) for field in fields(value)}
        filled = replace(value, **changes)
    return cast("T", filled)
