"""Parameters of a method against their shape (`config.shapes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from config.shapes import Record, Text, first_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.shapes import Shape


class InvalidParams(Exception):
    """Parameters that break their shape; `str()` says which and why."""


def params(required: Mapping[str, Shape] | None = None, optional: Mapping[str, Shape] | None = None) -> Record:
    """An object of no other members than these."""
    return Record(required or {}, optional, closed=True)


def name(most_chars: int = 1024) -> Text:
    """A string that is not empty and can be part of a path."""
    return Text(1, most_chars)


def prose(most_chars: int, *, least_chars: int = 0) -> Text:
    """A string for people and models; what half of a character it holds is replaced later on."""
    return Text(least_chars, most_chars, nul=True, halves=True)


def check(shape: Shape, value: Mapping[str, Any]) -> None:
    """Raises InvalidParams with the first problem of `value`."""
    problem = first_problem(shape, value)
    if problem is not None:
        raise InvalidParams(problem.sentence)
