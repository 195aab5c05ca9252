"""Shapes of JSON values, checked by hand: what a file of ours may hold, field by field, with every problem's path.

Each shape answers twice. `fits` is asked of all values, and is quick; `problems` is asked only of what does not fit,
and says what is wrong and where: `resume.usage.inputTokens: expected a whole number of at least 0, found -3`. A model
of pydantic would say as much, and its import would take longer than most resumes (decision 0004).
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SHOWN_CHARS = 40
_LISTED = 10


class Shape(Protocol):
    """What a value may be."""

    def fits(self, value: Any) -> bool:
        """Whether `value` has this shape."""
        ...

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """One line for each thing that is wrong with `value`, which stands at `path`; none when it fits."""
        ...


class Leaf:
    """A value that is looked at as a whole; `expected` says which values fit. `kind`: all of this type do, and no
    other."""

    def __init__(self, expected: str, fits: Callable[[Any], bool], *, kind: type | None = None) -> None:
        self._expected = expected
        self.fits = fits
        self.kind = kind

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if not self.fits(value):
            yield f"{path}: expected {self._expected}, found {shown(value)}"


_SCALARS = frozenset((str, int))
_MISSING = object()
"""What no shape fits."""

TEXT = Leaf("a string", lambda value: type(value) is str, kind=str)
OBJECT = Leaf("an object", lambda value: type(value) is dict, kind=dict)
COUNT = Leaf("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
FLAG = Leaf("true or false", lambda value: value is True or value is False)


def one_of(*choices: str | int) -> Leaf:
    """One of `choices`, of the same type: 1 is not true, nor 1.0."""
    known = frozenset((type(one), one) for one in choices)
    said = ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in choices)
    # What is no scalar cannot be looked up in a set, and is none of them.
    return Leaf(f"one of {said}", lambda value: type(value) in _SCALARS and (type(value), value) in known)


class Nullable:
    """`shape`, or null."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return value is None or self._shape.fits(value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if value is not None:
            yield from self._shape.problems(value, path)


class Either:
    """One of two shapes, by what the value says of itself."""

    def __init__(self, is_first: Callable[[dict[str, Any]], bool], first: Shape, second: Shape) -> None:
        self._is_first = is_first
        self._first = first
        self._second = second

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return self._shape_of(value).fits(value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        yield from self._shape_of(value).problems(value, path)

    def _shape_of(self, value: Any) -> Shape:
        return self._first if type(value) is dict and self._is_first(value) else self._second


class ListOf:
    """A list whose items all have one shape."""

    def __init__(self, item: Shape) -> None:
        self._item = item

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return type(value) is list and all(map(self._item.fits, value))

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if type(value) is not list:
            yield f"{path}: expected a list, found {shown(value)}"
            return
        for place, item in enumerate(value):
            if not self._item.fits(item):
                yield from self._item.problems(item, f"{path}[{place}]")


class Row:
    """A list of fixed length, each place with a shape of its own."""

    def __init__(self, *places: Shape) -> None:
        self._places = places

    def fits(self, value: Any) -> bool:
        """See Shape."""
        if type(value) is not list or len(value) != len(self._places):
            return False
        return all(shape.fits(item) for shape, item in zip(self._places, value, strict=True))

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if type(value) is not list or len(value) != len(self._places):
            yield f"{path}: expected a list of {len(self._places)}, found {shown(value)}"
            return
        for place, (shape, item) in enumerate(zip(self._places, value, strict=True)):
            yield from shape.problems(item, f"{path}[{place}]")


class MapOf:
    """An object of any keys, whose values all have one shape."""

    def __init__(self, item: Shape) -> None:
        self._item = item

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return type(value) is dict and all(map(self._item.fits, value.values()))

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if type(value) is not dict:
            yield f"{path}: expected an object, found {shown(value)}"
            return
        for key, item in value.items():
            if not self._item.fits(item):
                yield from self._item.problems(item, f"{path}[{shown(key)}]")


class Record:
    """An object with named fields. Fields of no name here are passed over: a later version may write them; a `closed`
    record has none."""

    def __init__(
        self, required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, closed: bool = False
    ) -> None:
        self._required = dict(required)
        self._optional = dict(optional or {})
        self._closed = closed
        # Most fields of a message are strings, and a session may have a hundred thousand messages: no call for these.
        plain = {name: shape.kind for name, shape in self._required.items() if _is_plain(shape)}
        self._kinds = tuple(plain.values())
        self._plain = itemgetter(*plain) if len(plain) > 1 else lambda value: tuple(value[name] for name in plain)
        self._needed = [(name, shape.fits) for name, shape in self._required.items() if not _is_plain(shape)]
        self._may_be_plain = [(name, shape.kind) for name, shape in self._optional.items() if _is_plain(shape)]
        self._known = [(name, shape.fits) for name, shape in self._optional.items() if not _is_plain(shape)]

    def fits(self, value: Any) -> bool:
        """See Shape."""
        if type(value) is not dict:
            return False
        try:
            if tuple(map(type, self._plain(value))) != self._kinds:
                return False
        except KeyError:
            return False
        for name, fits in self._needed:
            if not fits(value.get(name, _MISSING)):
                return False
        if self._closed and not value.keys() <= self._required.keys() | self._optional.keys():
            return False
        if len(value) > len(self._required):
            for name, kind in self._may_be_plain:
                if name in value and type(value[name]) is not kind:
                    return False
            for name, fits in self._known:
                if name in value and not fits(value[name]):
                    return False
        return True

    def problems(self, value: Any, path: str) -> Iterator[str]:
        """See Shape."""
        if type(value) is not dict:
            yield f"{path or 'it'}: expected an object, found {shown(value)}"
            return
        inside = f"{path}." if path else ""
        for name, shape in self._required.items():
            if name in value:
                yield from shape.problems(value[name], inside + name)
            else:
                yield f"{inside}{name}: is missing"
        for name, shape in self._optional.items():
            if name in value:
                yield from shape.problems(value[name], inside + name)
        if self._closed:
            for name in sorted(value.keys() - self._required.keys() - self._optional.keys()):
                yield f"{inside}{name}: is not known"


def _is_plain(shape: Shape) -> TypeGuard[Leaf]:
    return isinstance(shape, Leaf) and shape.kind is not None


def listed(problems: Sequence[str]) -> str:
    """The problems in one line for a person: the first ten, and how many more there are."""
    more = len(problems) - _LISTED
    return "; ".join(problems[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def shown(value: object) -> str:
    """`value`, as JSON has it, in one line that is safe to show; what is long is cut."""
    import json  # for a message that few processes ever write

    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
