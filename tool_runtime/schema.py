"""Checks tool arguments against the subset of JSON Schema that our own definitions use, compiled to shapes once for
each tool. A library checks against schemas of other programs (`tool_runtime.foreign_schema`); `tool.judge_of` chooses.

Known keywords: type (one or several), required, properties, additionalProperties, enum and const (scalars), anyOf,
minimum, maximum, minLength, maxLength, pattern (RE2's syntax), items, minItems, maxItems. description, title, default
and examples are only annotations. A schema with any other keyword is rejected, so that nothing passes unchecked. One
rule is stricter than the standard: 1.0 is not a whole number, because tools count with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from config import json_text
from config.shapes import (
    ANYTHING,
    COUNT,
    FLAG,
    NULL,
    OBJECT,
    TEXT,
    AllOf,
    AnyOf,
    Leaf,
    ListOf,
    MapOf,
    Problem,
    Record,
    Shape,
    Text,
    display,
    first_problem,
    integer,
    list_problems,
    member_path,
    number,
    one_of,
)

Judge = Callable[[Mapping[str, Any]], str | None]
"""Maps the arguments of a call to a one-line description of their problems; None if there are none."""

MAX_LISTED = 5  # maximum problems of a call that its message lists
_ROOT = "$"
_MAX_READ_CHARS = 100_000
_MAX_SHOWN_CHARS = 300
_EXPECTED: Mapping[str, str] = {
    "object": "an object", "array": "a list", "string": "a string", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip
_KINDS: Mapping[type, str] = {
    dict: "object", list: "array", tuple: "array", str: "string", int: "integer", float: "number", bool: "boolean",
    type(None): "null",
}  # fmt: skip
_TYPE = one_of(*_EXPECTED)
_SCALAR = AnyOf(TEXT, integer(), FLAG, NULL)
_SCHEMA = Record(
    {},
    {
        "type": AnyOf(_TYPE, ListOf(_TYPE, 1)),
        "enum": ListOf(_SCALAR, 1),
        "const": _SCALAR,
        "anyOf": ListOf(OBJECT, 1),
        "properties": MapOf(OBJECT),
        "required": ListOf(TEXT),
        "additionalProperties": AnyOf(FLAG, OBJECT),
        "items": OBJECT,
        "pattern": TEXT,
        **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), COUNT),
        **dict.fromkeys(("minimum", "maximum"), number()),
        **dict.fromkeys(("description", "title", "default", "examples"), ANYTHING),
    },
    closed=True,
)


class UnusableSchema(ValueError):
    """Raised for a tool's schema that cannot be used to check arguments; the message gives the problem and its path."""


def own_judge(schema: Mapping[str, Any]) -> Judge:
    """Return the judge of arguments for one of our own schemas. Raises UnusableSchema for an unknown keyword."""
    shape = shape_of(schema)

    def judge(arguments: Mapping[str, Any]) -> str | None:
        given = dict(arguments)
        return None if shape.fits(given) else list_problems(list(shape.problems(given, _ROOT)), MAX_LISTED)

    return judge


def target_of(root: Mapping[str, Any], reference: Any) -> Any:
    """Resolve a reference. Raises UnusableSchema if it points outside the schema, or to nothing."""
    if not (isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))):
        raise UnusableSchema("$ref: must lead into the schema itself, as in #/$defs/name")
    from urllib.parse import unquote  # few schemas have references

    found: Any = root
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name) if isinstance(found, list) else name]
        except (KeyError, IndexError, TypeError, ValueError):
            raise UnusableSchema(f"$ref: nothing is at {reference[:_MAX_SHOWN_CHARS]}") from None
    return found


def shape_of(schema: Mapping[str, Any], path: str = _ROOT) -> Shape:
    """Return the shape of the values that `schema` accepts. Raises UnusableSchema."""
    problem = first_problem(_SCHEMA, schema, path)
    if problem is not None:
        raise UnusableSchema(str(problem))
    parts: list[Shape] = [_shape_by_kind(schema, path)]
    if "enum" in schema:
        parts.append(one_of(*schema["enum"]))
    if "const" in schema:
        parts.append(one_of(schema["const"]))
    if "anyOf" in schema:
        forms = enumerate(schema["anyOf"])
        parts.append(AnyOf(*(shape_of(form, f"{path}.anyOf[{place}]") for place, form in forms)))
    return parts[0] if len(parts) == 1 else AllOf(*parts)


def _shape_by_kind(schema: Mapping[str, Any], path: str) -> Shape:
    types = schema.get("type", tuple(_EXPECTED))
    types = (types,) if isinstance(types, str) else types
    shapes: dict[str, Shape] = {}
    for kind in types:
        if kind == "object":
            shapes[kind] = _Advised(_object(schema, path))
        elif kind == "array":
            items = shape_of(schema["items"], f"{path}.items") if "items" in schema else ANYTHING
            shapes[kind] = _Advised(ListOf(items, schema.get("minItems", 0), schema.get("maxItems")))
        elif kind == "string":
            shapes[kind] = _string(schema, path)
        elif kind == "number":
            shapes[kind] = shapes["integer"] = _AdvisedLeaf(number(schema.get("minimum"), schema.get("maximum")))
        elif kind == "integer":
            shapes.setdefault(kind, _AdvisedLeaf(integer(schema.get("minimum"), schema.get("maximum"))))
        else:
            shapes[kind] = _AdvisedLeaf(FLAG) if kind == "boolean" else NULL
    return next(iter(shapes.values())) if len(types) == 1 else _ByKind(types, shapes)


def _object(schema: Mapping[str, Any], path: str) -> Record:
    members = {
        name: shape_of(member, member_path(f"{path}.properties", name))
        for name, member in schema.get("properties", {}).items()
    }
    additional = schema.get("additionalProperties", True)
    others = None if isinstance(additional, bool) else shape_of(additional, f"{path}.additionalProperties")
    needed = schema.get("required", ())
    # A required name that no property describes counts as an additional property.
    unknown: Shape = others or (ANYTHING if additional else _NOTHING)
    return Record(
        {name: members.get(name, unknown) for name in needed},
        {name: shape for name, shape in members.items() if name not in needed},
        closed=additional is False,
        others=others,
    )


def _string(schema: Mapping[str, Any], path: str) -> Shape:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    bounded: Shape = Text(least, most, nul=True, halves=True) if least or most is not None else TEXT
    if "pattern" not in schema:
        return bounded
    import re2  # rarely needed

    try:
        pattern = re2.compile(schema["pattern"])
    except re2.error as error:
        raise UnusableSchema(f"{path}.pattern: is not a regular expression: {error}") from None
    matching = Leaf(f"what {pattern.pattern} matches", lambda value: pattern.search(value) is not None)
    return AllOf(bounded, matching)


_NOTHING = Leaf("left out", lambda _: False)


def advice_on(value: Any, fits: Callable[[Any], bool]) -> str:
    """Suggest a replacement for a value of the wrong type that would fit in another spelling, as the end of a sentence;
    empty if there is none. The value is not converted, because a call must do exactly what its arguments say."""
    if isinstance(value, float) and value.is_integer() and fits(int(value)):
        return f"; send {display(int(value))}"
    if not isinstance(value, str) or len(value) > _MAX_READ_CHARS:
        return ""
    spelled = value.strip()
    try:
        json_text.check_depth(spelled)
        meant = json.loads(spelled.lower() if spelled in ("True", "False") else spelled)
    except ValueError:
        return ""
    if isinstance(meant, str) or meant in (math.inf, -math.inf) or not fits(meant):
        return ""
    if isinstance(meant, (dict, list)):
        return f"; send {'the object' if isinstance(meant, dict) else 'the list'} itself, not a string"
    return f"; send {display(meant)}, without quotes"


class _AdvisedLeaf(Leaf):
    """Accepts the same values as `leaf`; a problem also suggests how to spell a value that would fit."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(lambda: leaf.expected, leaf.fits)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        for problem in super().problems(value, path):
            yield problem._replace(text=problem.text + advice_on(value, self.fits))


class _Advised:
    """Like `_AdvisedLeaf`, for objects and lists."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.fits = shape.fits

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        advice = advice_on(value, self.fits)
        for problem in self._shape.problems(value, path):
            yield problem._replace(text=problem.text + advice)


class _ByKind:
    """One shape for each JSON type in `types`; values of other types do not fit."""

    def __init__(self, types: tuple[str, ...] | list[str], shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._expected = " or ".join(_EXPECTED[kind] for kind in types)

    def fits(self, value: Any) -> bool:
        """See Shape."""
        shape = self._shapes.get(_KINDS.get(type(value), ""))
        return shape is not None and shape.fits(value)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        shape = self._shapes.get(_KINDS.get(type(value), ""))
        if shape is None:
            yield Problem(path, f"must be {self._expected}, not {display(value)}{advice_on(value, self.fits)}")
        else:
            yield from shape.problems(value, path)
