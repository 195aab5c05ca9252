"""What a method's parameters may be: closed shapes as data, each problem told with its path.

A few lines of our own where a validation library would cost as much as the whole start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class InvalidParams(Exception):
    """Parameters that break their shape; `str()` says which and why."""


class Param(NamedTuple):
    """One member of an object: how its value is checked, and whether it must be there."""

    check: Callable[[str, Any], None]
    required: bool = True


def optional(check: Callable[[str, Any], None]) -> Param:
    """A member that may be left out."""
    return Param(check, required=False)


def check_object(shape: Mapping[str, Param], value: Mapping[str, Any], path: str = "") -> None:
    """Raises InvalidParams with the first problem: a missing or unknown member, or a wrong value."""
    for name, param in shape.items():
        if name in value:
            param.check(path + name, value[name])
        elif param.required:
            raise InvalidParams(f"{path}{name} is missing")
    for name in value:
        if name not in shape:
            known = ", ".join(shape) or "none"
            raise InvalidParams(f"{path}{name} is not a parameter here; known are: {known}")


def text(max_chars: int = 1024, *, empty: bool = False, prose: bool = False) -> Callable[[str, Any], None]:
    """A string of at most `max_chars`. `prose` may hold half of a character, which is replaced later on, and NUL, which
    no path and no variable of a process can."""

    def check(path: str, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidParams(f"{path} must be a string")
        if not value and not empty:
            raise InvalidParams(f"{path} must not be empty")
        if len(value) > max_chars:
            raise InvalidParams(f"{path} must have at most {max_chars} characters")
        if not prose:
            if "\0" in value:
                raise InvalidParams(f"{path} holds a NUL character")
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidParams(f"{path} holds half of a character (a lone surrogate)") from None

    return check


def one_of(*names: str) -> Callable[[str, Any], None]:
    """One of a few strings."""

    def check(path: str, value: Any) -> None:
        if not isinstance(value, str) or value not in names:
            raise InvalidParams(f"{path} must be one of {', '.join(names)}")

    return check


def whole(least: int, most: int) -> Callable[[str, Any], None]:
    """A whole number from `least` to `most`."""

    def check(path: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidParams(f"{path} must be a whole number from {least} to {most:,}")

    return check


def flag(path: str, value: Any) -> None:
    """true or false."""
    if not isinstance(value, bool):
        raise InvalidParams(f"{path} must be true or false")


def anything(path: str, value: Any) -> None:
    """Any object; what it may hold is checked where it is used."""
    if not isinstance(value, dict):
        raise InvalidParams(f"{path} must be an object")


def list_of(member: Callable[[str, Any], None], most: int = 1000) -> Callable[[str, Any], None]:
    """An array of at most `most` members."""

    def check(path: str, value: Any) -> None:
        if not isinstance(value, list):
            raise InvalidParams(f"{path} must be an array")
        if len(value) > most:
            raise InvalidParams(f"{path} must have at most {most} members")
        for index, item in enumerate(value):
            member(f"{path}[{index}]", item)

    return check


def an_object(**shape: Param) -> Callable[[str, Any], None]:
    """An object of a closed shape."""

    def check(path: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise InvalidParams(f"{path} must be an object")
        check_object(shape, value, f"{path}.")

    return check
