"""Parameters of a method against their shape (`config.shapes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from config.shapes import Record, Text, first_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from config.shapes import Shape

_MAX_LISTED: Final = 100
_MAX_LISTED_CHARS: Final = 200


class InvalidParams(Exception):
    """Parameters that break their shape; `str()` says which and why."""


class Params(Record):
    """An object with these members. Others are of a later version of the protocol, and have no effect."""

    def __init__(self, required: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        super().__init__(required, optional)
        self._members = {**required, **optional}

    def unknown(self, value: Mapping[str, Any], path: str = "") -> Iterator[str]:
        """The paths of members of `value`, which fits, that have no effect: `name`, or `taskOptions.name`."""
        for name, item in value.items():
            shape = self._members.get(name)
            if shape is None:
                yield path + name
            elif isinstance(shape, Params):
                yield from shape.unknown(item, f"{path}{name}.")


def params(required: Mapping[str, Shape] | None = None, optional: Mapping[str, Shape] | None = None) -> Params:
    """The shape of an object with these members."""
    return Params(required or {}, optional or {})


def name(most_chars: int = 1024) -> Text:
    """A string that is not empty and can be part of a path."""
    return Text(1, most_chars)


def prose(most_chars: int, *, least_chars: int = 0) -> Text:
    """A string for people and models; what half of a character it holds is replaced later on."""
    return Text(least_chars, most_chars, nul=True, halves=True)


def ignored(shape: Params, value: Mapping[str, Any]) -> list[str]:
    """What a reply lists as `ignored`: the paths of unknown members of `value`, which fits; sorted, the first 100, each
    cut at 200 characters."""
    unknown = list(shape.unknown(value))
    return [path[:_MAX_LISTED_CHARS] for path in sorted(unknown)[:_MAX_LISTED]] if unknown else unknown


def check(shape: Shape, value: Mapping[str, Any]) -> None:
    """Raises InvalidParams with the first problem of `value`. Members of no name that `shape` has are no problem."""
    problem = first_problem(shape, value)
    if problem is not None:
        raise InvalidParams(problem.sentence)
