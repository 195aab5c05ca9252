"""Readers of script values: each takes what TOML or JSON gave and returns a checked, immutable value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Reader = Callable[[Any], Any]


class BadValue(ValueError):
    """A value is not what its key takes. `path` is the key below the turn, such as `tool_calls[1].name`."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path

    def under(self, key: str) -> BadValue:
        """The same problem seen from the table that holds `key`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return BadValue(self.text, f"{key}{joint}{self.path}")


def string(raw: Any) -> str:
    """A string that can be sent as UTF-8."""
    if not isinstance(raw, str):
        raise BadValue(f"must be a string, not {_kind(raw)}")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise BadValue("holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return raw


def strings(raw: Any) -> tuple[str, ...]:
    """A string or an array of strings; one string is an array of one."""
    if isinstance(raw, str):
        return (string(raw),)
    if not isinstance(raw, (list, tuple)):
        raise BadValue(f"must be a string or an array of strings, not {_kind(raw)}")
    return tuple(_items(raw, string))


def boolean(raw: Any) -> bool:
    """True or false."""
    if not isinstance(raw, bool):
        raise BadValue(f"must be true or false, not {_kind(raw)}")
    return raw


def natural(raw: Any) -> int:
    """A whole number, zero or more."""
    return whole_number(0)(raw)


def whole_number(lowest: int, highest: int | None = None) -> Callable[[Any], int]:
    """A reader of whole numbers from `lowest` to `highest`."""

    def read(raw: Any) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise BadValue(f"must be a whole number, not {_kind(raw)}")
        if raw < lowest or (highest is not None and raw > highest):
            limit = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
            raise BadValue(f"must be {limit}, not {raw}")
        return raw

    return read


def positions(raw: Any) -> tuple[int, ...]:
    """One whole number or an array of them, from 1."""
    return array_of(whole_number(1))(raw if isinstance(raw, (list, tuple)) else [raw])


def pattern(raw: Any) -> re.Pattern[str]:
    """A regular expression in Python's syntax; `.` matches newlines too."""
    try:
        return re.compile(string(raw), re.DOTALL)
    except re.error as error:
        raise BadValue(f"is not a regular expression: {error}") from None


def table_of(*kinds: type) -> Callable[[Any], Mapping[str, Any]]:
    """A reader of tables whose values are of one of `kinds`."""
    wanted = " or ".join({str: "a string", bool: "true or false"}[kind] for kind in kinds)

    def read(raw: Any) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            raise BadValue(f"must be a table, not {_kind(raw)}")
        for key, value in raw.items():
            if not isinstance(value, kinds):
                raise BadValue(f"must be {wanted}, not {_kind(value)}", key)
        return dict(raw)

    return read


def array_of(read_item: Reader) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of arrays."""

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, (list, tuple)):
            raise BadValue(f"must be an array, not {_kind(raw)}")
        return tuple(_items(raw, read_item))

    return read


def table(raw: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The values of a table by key, each read by its reader.

    Raises:
        BadValue: not a table, a key that `readers` lacks (with the nearest one it has), or a value its reader refuses.
    """
    if not isinstance(raw, Mapping):
        raise BadValue(f"must be a table, not {_kind(raw)}")
    values = {}
    for key, value in raw.items():
        if key not in readers:
            raise BadValue(unknown_key(key, readers), key)
        try:
            values[key] = readers[key](value)
        except BadValue as problem:
            raise problem.under(key) from None
    return values


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that is not among `known`."""
    import difflib  # only a mistaken script pays for it

    names = list(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; known keys: {', '.join(names)}"


def _items(raw: Iterable[Any], read_item: Reader) -> Iterable[Any]:
    for index, item in enumerate(raw):
        try:
            yield read_item(item)
        except BadValue as problem:
            raise problem.under(f"[{index}]") from None


def _kind(raw: Any) -> str:
    names = {str: "a string", bool: "true or false", int: "a whole number", float: "a number with a fraction"}
    names |= {list: "an array", tuple: "an array", dict: "a table", type(None): "null"}
    return names.get(type(raw), type(raw).__name__)
