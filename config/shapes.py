"""Shapes of values from outside: check data of files, clients and models field by field, with the path of every
problem.

This is the only checker for shapes of our own: files of a session, settings, parameters of `serve`, arguments of tools,
scripts and cases. Each shape has two methods. `fits` is called for all values and is fast; `problems` is called only
for a value that does not fit, and returns what is wrong and where: `resume.usage.inputTokens: must be a whole number of
at least 0, not -3`. A model of pydantic would report as much, but its import would take longer than most resumes
(decisions 0004 and 0032).
"""

from __future__ import annotations

import json
import os
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

_SHOWN_CHARS = 40
_PLAIN_NAME_CHARS = 80
_LISTED = 10
_KNOWN_NAMES = 60
_INFINITE = float("inf")


class Problem(NamedTuple):
    """One problem: its path (`a.b[2]`; empty for the whole value), and its text, the end of a sentence that begins with
    the path."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path or 'it'}: {self.text}"

    @property
    def sentence(self) -> str:
        """The problem as one sentence: `count must be a whole number, not true`."""
        return f"{self.path or 'it'} {self.text}"


class Shape(Protocol):
    """A constraint on a value."""

    def fits(self, value: Any) -> bool:
        """True if `value` has this shape."""
        ...

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """Yield one problem for each thing that is wrong with `value`, which is at `path`; none if it fits."""
        ...


def first_problem(shape: Shape, value: Any, path: str = "") -> Problem | None:
    """Return the first problem of `value`; None if it fits."""
    return None if shape.fits(value) else next(shape.problems(value, path))


def all_problems(shape: Shape, value: Any, path: str = "") -> tuple[Problem, ...]:
    """Return all problems of `value`, in the order of the shape."""
    return () if shape.fits(value) else tuple(shape.problems(value, path))


class Leaf:
    """A value that is checked as a whole; `expected` describes the values that fit, or returns that description. With
    `kind`, exactly the values of this type fit. Without `quotes` no problem shows the value, which may be secret."""

    def __init__(
        self,
        expected: str | Callable[[], str],
        fits: Callable[[Any], bool],
        *,
        kind: type | None = None,
        quotes: bool = True,
    ) -> None:
        self._expected = expected
        self._quotes = quotes
        self.fits = fits
        self.kind = kind

    @property
    def expected(self) -> str:
        """The values that fit, in words."""
        return self._expected if isinstance(self._expected, str) else self._expected()

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if not self.fits(value):
            yield Problem(path, f"must be {self.expected}" + (f", not {display(value)}" if self._quotes else ""))


_SCALARS = frozenset((str, int, bool, type(None)))
_MISSING = object()
"""A value that fits no shape."""

TEXT = Leaf("a string", lambda value: type(value) is str, kind=str)
OBJECT = Leaf("an object", lambda value: type(value) is dict, kind=dict)
FLAG = Leaf("true or false", lambda value: value is True or value is False)
NULL = Leaf("null", lambda value: value is None)
ANYTHING = Leaf("anything", lambda value: value is not _MISSING)


def _limits(low: float | None, high: float | None) -> tuple[float, float]:
    return -_INFINITE if low is None else low, _INFINITE if high is None else high


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    if low is not None:
        return f" of at least {low:,}"
    return "" if high is None else f" of at most {high:,}"


def integer(low: float | None = None, high: float | None = None) -> Leaf:
    """A whole number within its bounds; neither true nor 1.0 is one."""

    def expected() -> str:  # most starts make a shape for each of fifty settings, and have a problem with none
        return f"a whole number{_bounds(low, high)}"

    if low is not None and high is None:
        return Leaf(expected, lambda value: type(value) is int and value >= low)
    least, most = _limits(low, high)
    return Leaf(expected, lambda value: type(value) is int and least <= value <= most)


def number(low: float | None = None, high: float | None = None) -> Leaf:
    """A number within its bounds; neither true nor NaN is one."""
    least, most = _limits(low, high)
    numbers = (int, float)
    return Leaf(
        lambda: f"a number{_bounds(low, high)}", lambda value: type(value) in numbers and least <= value <= most
    )


COUNT = integer(0)


def matches(pattern: str) -> Callable[[Any], bool]:
    """True for a string that the regular expression matches as a whole."""
    return lambda value: type(value) is str and re.fullmatch(pattern, value) is not None


def is_table_of_strings(value: Any) -> bool:
    """True for an object whose values are strings."""
    return type(value) is dict and all(type(one) is str for one in value.values())


def one_of(*choices: str | int | None) -> Leaf:
    """One of `choices`, of the same type: 1 is neither true nor 1.0."""
    known = frozenset((type(one), one) for one in choices)
    listed = ", ".join(one if isinstance(one, str) and one.isidentifier() else display(one) for one in choices)
    # A value that is not a scalar may not be hashable, and is none of the choices.
    return _Choice(
        f"one of {listed}" if len(choices) > 1 else listed,
        lambda value: type(value) in _SCALARS and (type(value), value) in known,
        tuple(one for one in choices if isinstance(one, str)),
    )


class _Choice(Leaf):
    """One of several values; for any other text, a problem names the choice that was probably meant."""

    def __init__(self, expected: str, fits: Callable[[Any], bool], names: tuple[str, ...]) -> None:
        super().__init__(expected, fits)
        self._names = names

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        for problem in super().problems(value, path):
            meant = meant_name(value, self._names, likeness=0.6) if isinstance(value, str) else None
            yield problem if meant is None else problem._replace(text=f"{problem.text}; did you mean {meant}?")


class Text:
    """A string of `least` to `most` characters. NUL, which no path and no environment variable can contain, is rejected
    without `nul`; half of a character, which UTF-8 cannot encode, is rejected without `halves`."""

    def __init__(self, least: int = 0, most: int | None = None, *, nul: bool = False, halves: bool = False) -> None:
        self._least, self._most = least, most
        self._nul, self._halves = nul, halves

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return self._wrong(value) is None

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape; at most one problem."""
        if (wrong := self._wrong(value)) is not None:
            yield Problem(path, wrong)

    def _wrong(self, value: Any) -> str | None:
        if type(value) is not str:
            return f"must be a string, not {display(value)}"
        if (wrong_size := _wrong_size(len(value), self._least, self._most, "character")) is not None:
            return wrong_size
        if not self._nul and "\0" in value:
            return "must not contain a NUL character"
        if not self._halves and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "must not contain half of a character (a lone surrogate)"
        return None


class Nullable:
    """`shape`, or null."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return value is None or self._shape.fits(value)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if value is not None:
            yield from self._shape.problems(value, path)


class Either:
    """One of two shapes, chosen by the value's own content."""

    def __init__(self, is_first: Callable[[dict[str, Any]], bool], first: Shape, second: Shape) -> None:
        self._is_first = is_first
        self._first = first
        self._second = second

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return self._shape_of(value).fits(value)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        yield from self._shape_of(value).problems(value, path)

    def _shape_of(self, value: Any) -> Shape:
        return self._first if type(value) is dict and self._is_first(value) else self._second


class AnyOf:
    """At least one of several shapes."""

    def __init__(self, *shapes: Shape) -> None:
        self._shapes = shapes

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return any(shape.fits(value) for shape in self._shapes)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if self.fits(value):
            return
        leaves = [shape.expected for shape in self._shapes if isinstance(shape, Leaf)]
        if len(leaves) == len(self._shapes):
            yield Problem(path, f"must be {' or '.join(leaves)}, not {display(value)}")
            return
        closest = next(self._shapes[0].problems(value, path))
        yield Problem(path, f"must have one of {len(self._shapes)} forms; not the first: {closest.sentence}")


class AllOf:
    """Several shapes at once. The problems are those of the first shape that does not fit: if a value has the wrong
    type, the others would add nothing."""

    def __init__(self, *shapes: Shape) -> None:
        self._shapes = shapes

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return all(shape.fits(value) for shape in self._shapes)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        for shape in self._shapes:
            if not shape.fits(value):
                yield from shape.problems(value, path)
                return


class ListOf:
    """A list of `least` to `most` items that all have one shape."""

    def __init__(self, item: Shape, least: int = 0, most: int | None = None) -> None:
        self._item = item
        self._least, self._most = least, most
        self._bounded = least > 0 or most is not None

    def fits(self, value: Any) -> bool:
        """See Shape."""
        if (type(value) is not list and not isinstance(value, tuple)) or (self._bounded and self._wrong(value)):
            return False
        return all(map(self._item.fits, value))

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if (wrong := self._wrong(value)) is not None:
            yield Problem(path, wrong)
            return
        for place, item in enumerate(value):
            if not self._item.fits(item):
                yield from self._item.problems(item, f"{path}[{place}]")

    def _wrong(self, value: Any) -> str | None:
        if type(value) is not list and not isinstance(value, tuple):
            return f"must be a list, not {display(value)}"
        return _wrong_size(len(value), self._least, self._most, "item") if self._bounded else None


class Row:
    """A list of fixed length, in which each position has its own shape."""

    def __init__(self, *places: Shape) -> None:
        self._places = places

    def fits(self, value: Any) -> bool:
        """See Shape."""
        is_row = type(value) is list and len(value) == len(self._places)
        return is_row and all(shape.fits(item) for shape, item in zip(self._places, value, strict=True))

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if type(value) is not list or len(value) != len(self._places):
            yield Problem(path, f"must be a list of {len(self._places)}, not {display(value)}")
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

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if type(value) is not dict:
            yield Problem(path, f"must be an object, not {display(value)}")
            return
        for key, item in value.items():
            if not self._item.fits(item):
                yield from self._item.problems(item, f"{path}[{display(key)}]")


class Record:
    """An object with named fields. Other fields are ignored, because a later version may write them; in a `closed`
    record they are problems, and with `others` each of them must have that shape."""

    def __init__(
        self,
        required: Mapping[str, Shape],
        optional: Mapping[str, Shape] | None = None,
        *,
        closed: bool = False,
        others: Shape | None = None,
    ) -> None:
        self._required = dict(required)
        self._optional = dict(optional or {})
        self._names = self._required.keys() | self._optional.keys()
        self._closed = closed
        self._others = others
        self._open = not closed and others is None
        # Most fields of a message are strings, and a session may have a hundred thousand messages, so these are checked
        # without a call each.
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
        if len(value) == len(self._required):
            return True
        for name, kind in self._may_be_plain:
            if name in value and type(value[name]) is not kind:
                return False
        for name, fits in self._known:
            if name in value and not fits(value[name]):
                return False
        return self._open or self._unknown_fit(value)

    def _unknown_fit(self, value: dict[str, Any]) -> bool:
        if self._closed:
            return value.keys() <= self._names
        return self._others is None or all(self._others.fits(value[name]) for name in value.keys() - self._names)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if type(value) is not dict:
            yield Problem(path, f"must be an object, not {display(value)}")
            return
        for name, shape in self._required.items():
            if name in value:
                yield from shape.problems(value[name], member_path(path, name))
            else:
                yield Problem(member_path(path, name), "is missing")
        for name, shape in self._optional.items():
            if name in value:
                yield from shape.problems(value[name], member_path(path, name))
        if self._open:
            return
        for name, item in value.items():
            if name not in self._names:
                if self._closed:
                    known = (*self._required, *self._optional)
                    missing = [one for one in self._required if one not in value]
                    yield Problem(member_path(path, name), f"is not known{hint_at(name, known, missing)}")
                elif self._others is not None:
                    yield from self._others.problems(item, member_path(path, name))


def _is_plain(shape: Shape) -> TypeGuard[Leaf]:
    return isinstance(shape, Leaf) and shape.kind is not None


def member_path(path: str, name: str) -> str:
    """Return the path of a member of the object at `path`: `path.name`, or `path["odd name"]`."""
    if type(name) is str and name.isidentifier() and len(name) <= _PLAIN_NAME_CHARS:
        return f"{path}.{name}" if path else name
    return f"{path}[{display(name)}]"


def hint_at(name: str, known: Collection[str], missing: Collection[str] = ()) -> str:
    """Return the end of a sentence about a name that is not in `known`: the most similar of the `missing` names, else
    of all, else a list of all, up to 60. Letter case, `_` and `-` are ignored."""
    if not known:
        return "; none is"
    for names in (missing, known):
        meant = meant_name(name, names)
        if meant is not None:
            return f"; did you mean {meant}?"
    unlisted = len(known) - _KNOWN_NAMES
    return f"; known are {', '.join(list(known)[:_KNOWN_NAMES])}" + (f" and {unlisted} more" if unlisted > 0 else "")


def meant_name(name: str, known: Collection[str], *, likeness: float = 0.5) -> str | None:
    """Return the most similar of `known`, None if none has at least this likeness (0 to 1). Letter case, `_` and `-`
    are ignored."""
    import difflib  # needed only after a mistake

    folded = {_fold(one): one for one in reversed(tuple(known))}  # the first of two that fold to the same
    near = difflib.get_close_matches(_fold(name[:_PLAIN_NAME_CHARS]), folded, n=1, cutoff=likeness)
    return folded[near[0]] if near else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def list_problems(problems: Sequence[object], most: int = _LISTED) -> str:
    """Return the problems in one line for a person: the first ten, or `most`, and the number of the others."""
    unlisted = len(problems) - most
    return "; ".join(map(str, problems[:most])) + (f"; and {unlisted} more" if unlisted > 0 else "")


def display(value: object) -> str:
    """Return `value` as JSON in one line that is safe to show; a long one is cut."""
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        value = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS + 1]
    elif isinstance(value, int) and value.bit_length() > 4 * _SHOWN_CHARS:  # Python refuses to print the longest
        return "a number of many digits"
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _wrong_size(size: int, least: int, most: int | None, what: str) -> str | None:
    if size < least:
        return "must not be empty" if least == 1 else f"must have at least {least:,} {what}s, not {size:,}"
    if most is not None and size > most:
        return f"must have at most {most:,} {what}{'' if most == 1 else 's'}, not {size:,}"
    return None


# Missing paths: the reason, and the name that may have been meant.


def why_no_directory(path: str) -> str:
    """Return the reason why the absolute `path` is not a directory, as the end of a sentence that begins with it."""
    file = file_in(path)
    if file is not None:
        return "it is a file; give a directory" if file == path else f"{file} is a file, and no directory"
    return f"there is no such directory{hint_at_path(path)}"


def file_in(path: str) -> str | None:
    """Return the part of an absolute `path` that exists and is not a directory; None if every part that exists is a
    directory."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path if os.path.lexists(path) and not os.path.isdir(path) else None


def hint_at_path(path: str) -> str:
    """Return the end of a sentence about a missing path: the most similar name in its folder, if there is one."""
    folder, name = os.path.split(path.rstrip(os.sep))
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.name for _, entry in zip(range(1000), entries, strict=False)]
    except OSError:
        return ""
    meant = None if name in names else meant_name(name, names, likeness=0.6)
    return "" if meant is None else f"; did you mean {os.path.join(folder, meant)}?"
