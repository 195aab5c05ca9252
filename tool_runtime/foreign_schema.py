"""Checks arguments against a schema from another program: an MCP server, the backend tool service, a skill.

The library jsonschema-rs does the checks (decision 0032). It runs in this process, and a schema may be written to make
the host hang or to fetch from elsewhere, so it is bounded:

- A schema has at most 256 KiB and 64 levels. References lead into the schema itself: nothing is fetched, no file is
  read.
- Patterns are matched in linear time. One that needs backtracking (a look-around, a back reference) is left to the
  tool. Where more or less would then pass than the schema says, as below `not`, the schema is refused.
- Arguments have at most 64 levels, and how often subschemas are applied to them is bounded beforehand: a few lines of
  references that double at each step would take hours.
- `format` only informs, as in draft 2020-12.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import jsonschema_rs
import orjson

from config.shapes import Problem, display, hint_at, list_problems, member_path
from tool_runtime.schema import MAX_LISTED, UnusableSchema, advice_on, target_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tool_runtime.schema import Judge

_MAX_SCHEMA_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 64
_MAX_REGEX_BYTES: Final = 256 * 1024
_MAX_PROBLEMS: Final = 11
_MAX_MESSAGE_CHARS: Final = 300
_MAX_WORK: Final = 100_000_000
"""Applications of a subschema to a value; the library does 50 million of the cheapest in a second."""
_MAX_STATES: Final = 100_000
_MAX_CHAIN: Final = 200
_DEPTH_AT_FIRST: Final = 8
_CHARS_A_UNIT: Final = 16
_KNOWN_DRAFTS: Final = (
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
_UNSUPPORTED: Final = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary")

# Keywords with subschemas (as a value, in a list, or as the values of an object), by whether these apply to the value
# itself or to its members.
_ITSELF: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_ITSELF_BY_NAME: Final = ("dependentSchemas", "dependencies")
_INSIDE: Final = (
    "items", "prefixItems", "additionalItems", "contains", "additionalProperties", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
_INSIDE_BY_NAME: Final = ("properties", "patternProperties")
_KEPT_BY_NAME: Final = ("$defs", "definitions")
_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}  # flags beside these until draft 4
_OLD_DRAFTS: Final = r"json-schema\.org/(draft-0[34]/)?schema"
_Kind = jsonschema_rs.ValidationErrorKind
_PYTHON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "integer": (int,), "number": (int, float), "boolean": (bool,),
}  # fmt: skip
_NEGATING: Final = ("not", "if", "oneOf", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
"""Keywords below which leaving out a pattern could make more or fewer values pass."""


def foreign_judge(schema: Mapping[str, Any]) -> Judge:
    """Return the judge of arguments for `schema`. Raises UnusableSchema if it is invalid or exceeds a bound."""
    usable = _usable(schema)
    work = _Work(usable)
    work.count_at(_DEPTH_AT_FIRST)
    try:
        regex = jsonschema_rs.RegexOptions(size_limit=_MAX_REGEX_BYTES, dfa_size_limit=_MAX_REGEX_BYTES)
        options: dict[str, Any] = {"validate_formats": False, "mask": "the value", "pattern_options": regex}
        validator = jsonschema_rs.validator_for(usable, offline=True, **options)
    except ValueError as error:
        raise UnusableSchema(f"is not a valid JSON Schema: {_first_line(error)}") from None

    def judge(arguments: Mapping[str, Any]) -> str | None:
        depth, size = _extent(arguments)
        if depth > _MAX_DEPTH:
            return f"$: must have at most {_MAX_DEPTH} levels"
        try:
            if work.count_at(depth) * size > _MAX_WORK:
                return "$: is too large or too deep to be checked by the tool's schema"
            found = list(islice(validator.iter_errors(arguments), _MAX_PROBLEMS))
        except UnusableSchema:
            return "$: is too deep to be checked by the tool's schema"
        except ValueError as error:
            return f"$: cannot be checked by the tool's schema: {_first_line(error)}"
        return list_problems([_problem(error, usable) for error in found], MAX_LISTED) if found else None

    return judge


def mend_schema(schema: Any, *, of_object: bool = False) -> Mapping[str, Any]:
    """Return the schema, repaired if it is unusable and its meaning is plain: absent or true accepts anything, a null
    keyword is absent, the booleans of draft 4 are converted. `of_object`: it describes arguments, so the type object is
    implied. Raises UnusableSchema."""
    if not isinstance(schema, dict | bool | None) or schema is False:
        raise UnusableSchema("is not an object")
    read: dict[str, Any] = schema if isinstance(schema, dict) else {}
    kind = read.get("type")
    if of_object and kind != "object":
        if kind is not None and not (isinstance(kind, list) and "object" in kind):
            raise UnusableSchema('is not of an object: "type": "object"')
        read = {**read, "type": "object"}
    try:
        foreign_judge(read)
    except UnusableSchema as error:
        mended: dict[str, Any] = _mend(read)
        if mended == read:
            raise
        try:
            foreign_judge(mended)
        except UnusableSchema:
            raise error from None
        return mended
    return read


def _mend(schema: Any) -> Any:
    """Return a copy without placeholders for absent keywords, and with draft 7 in place of drafts before 6."""
    if not isinstance(schema, dict):
        return schema
    mended: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in (*_ITSELF, *_INSIDE):
            mended[keyword] = list(map(_mend, value)) if isinstance(value, list) else _mend(value)
        elif keyword in (*_ITSELF_BY_NAME, *_INSIDE_BY_NAME, *_KEPT_BY_NAME) and isinstance(value, dict):
            mended[keyword] = {name: True if below is None else _mend(below) for name, below in value.items()}
        elif keyword in _BOUNDS and value is True and _BOUNDS[keyword] in schema:
            mended[keyword] = schema[_BOUNDS[keyword]]
        elif keyword == "$schema" and isinstance(value, str) and re.search(_OLD_DRAFTS, value):
            mended[keyword] = _KNOWN_DRAFTS[1]
        elif not (keyword in ("required", *_BOUNDS) and isinstance(value, bool)):
            mended[keyword] = value
    return {key: value for key, value in mended.items() if value is not None or key in ("const", "default")}


def _usable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `schema` without the patterns that are not checked. Raises UnusableSchema."""
    try:
        encoded = orjson.dumps(schema)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise UnusableSchema(f"is not JSON: {_first_line(error)}") from None
    if len(encoded) > _MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"has {len(encoded):,} bytes, more than {_MAX_SCHEMA_BYTES:,}")
    copy = orjson.loads(encoded)
    if not isinstance(copy, dict):
        raise UnusableSchema("must be an object")
    if _extent(copy)[0] > _MAX_DEPTH:
        raise UnusableSchema(f"has more than {_MAX_DEPTH} levels")
    draft = copy.get("$schema", _KNOWN_DRAFTS[-1])
    if not isinstance(draft, str) or draft.rstrip("#") not in _KNOWN_DRAFTS:
        raise UnusableSchema("$schema: must be draft 6, 7, 2019-09 or 2020-12 of JSON Schema")
    preparation = _Preparation(copy)
    preparation.prepare(copy)
    for schema_with_it in preparation.not_judged:
        schema_with_it.pop("pattern", None)
    return copy


class _Preparation:
    """Rejects unsupported keywords, and finds the patterns that are not checked."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._seen: set[tuple[int, bool]] = set()
        self.not_judged: list[dict[str, Any]] = []

    def prepare(self, schema: Any, path: str = "#", *, negated: bool = False, chain: int = 0) -> None:
        """Check `schema` and its subschemas. `negated`: it is below a keyword of `_NEGATING`. Raises UnusableSchema."""
        if not isinstance(schema, dict) or (id(schema), negated) in self._seen:
            return
        self._seen.add((id(schema), negated))
        if chain > _MAX_CHAIN:
            raise UnusableSchema("has too many references that lead to others")
        for keyword in _UNSUPPORTED if schema is self._root else (*_UNSUPPORTED, "$id", "$schema"):
            if keyword in schema:
                raise UnusableSchema(f"{path}: {keyword} is not supported")
        self._patterns(schema, path, negated=negated)
        for keyword, below in _subschemas(schema):
            self.prepare(below, f"{path}/{keyword}", negated=negated or keyword in _NEGATING, chain=chain + 1)
        if "$ref" in schema:
            self.prepare(target_of(self._root, schema["$ref"]), f"{path}/$ref", negated=negated, chain=chain + 1)

    def _patterns(self, schema: dict[str, Any], path: str, *, negated: bool) -> None:
        by_name = schema.get("patternProperties")
        if isinstance(by_name, dict) and not all(map(_is_linear, by_name)):
            raise UnusableSchema(f"{path}/patternProperties: a pattern that needs backtracking is not supported here")
        if isinstance(schema.get("pattern"), str) and not _is_linear(schema["pattern"]):
            if negated:
                raise UnusableSchema(f"{path}/pattern: a pattern that needs backtracking is not supported here")
            self.not_judged.append(schema)


def _is_linear(pattern: str) -> bool:
    """True if the linear-time engine accepts `pattern`, or no engine does; the library then reports the pattern
    itself."""
    for options in (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions()):
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=options)
        except ValueError:
            continue
        return isinstance(options, jsonschema_rs.RegexOptions)
    return True


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in (*_ITSELF, *_INSIDE):
        below = schema.get(keyword)
        yield from ((keyword, one) for one in (below if isinstance(below, list) else (below,)))
    for keyword in (*_ITSELF_BY_NAME, *_INSIDE_BY_NAME, *_KEPT_BY_NAME):
        below = schema.get(keyword)
        if isinstance(below, dict):
            yield from ((keyword, one) for one in below.values())


class _Work:
    """Upper bound of subschema applications on the way from a value to one of its leaves."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._known: dict[tuple[int, int], int] = {}
        self._under_way: set[tuple[int, int]] = set()

    def count_at(self, depth: int) -> int:
        """Return the bound for a value of `depth` levels. Raises UnusableSchema above all bounds."""
        self._under_way.clear()  # of a value that was too deep
        return self._count(self._root, depth)

    def _count(self, schema: Any, depth: int) -> int:
        if not isinstance(schema, dict):
            return 1
        state = (id(schema), depth)
        if state in self._known:
            return self._known[state]
        if state in self._under_way:
            raise UnusableSchema("$ref: leads back to itself")
        if len(self._under_way) > _MAX_CHAIN or len(self._known) > _MAX_STATES:
            raise UnusableSchema("has too many references that lead to others")
        self._under_way.add(state)
        work = 1 + sum(len(value) for value in schema.values() if isinstance(value, (list, dict))) // _CHARS_A_UNIT
        work += _CHARS_A_UNIT * ("pattern" in schema)
        named = 0
        for keyword, below in _subschemas(schema):
            if keyword in _ITSELF or keyword in _ITSELF_BY_NAME:
                work += self._count(below, depth)
            elif depth > 0 and keyword == "properties":
                named = max(named, self._count(below, depth - 1))
            elif depth > 0 and keyword not in _KEPT_BY_NAME:
                work += self._count(below, depth - 1)
        if "$ref" in schema:
            work += self._count(target_of(self._root, schema["$ref"]), depth)
        self._under_way.discard(state)
        if work + named > _MAX_WORK:
            raise UnusableSchema("would have to be applied too often, since its references multiply")
        self._known[state] = work + named
        return work + named


def _extent(value: Any) -> tuple[int, int]:
    """The depth of `value` and its size: its values, and its text in units of 16 characters."""
    depth, size, level = 0, 1, [value]
    while level:
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
                size += sum(len(name) for name in one if isinstance(name, str)) // _CHARS_A_UNIT
            elif isinstance(one, (list, tuple)):
                below.extend(one)
            elif isinstance(one, str):
                size += len(one) // _CHARS_A_UNIT
        size += len(below)
        depth += bool(below)
        if depth > _MAX_DEPTH:
            break
        level = below
    return depth, size


def _problem(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> Problem:
    path = "$"
    for part in error.instance_path:
        path = f"{path}[{part}]" if isinstance(part, int) else member_path(path, part)
    return Problem(path, error.message[:_MAX_MESSAGE_CHARS] + _hint(error, schema))


def _hint(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    kind = error.kind
    if isinstance(kind, _Kind.AdditionalProperties | _Kind.UnevaluatedProperties):
        known = _properties_at(schema, error.schema_path[:-1])
        return hint_at(kind.unexpected[0], known) if kind.unexpected and known else ""
    if isinstance(kind, _Kind.Required):
        return ""
    value = error.instance
    if not isinstance(kind, _Kind.Type):
        return f"; it is {display(value)}"
    types = {one for name in kind.types for one in _PYTHON_TYPES.get(name, ())}
    return f"; it is {display(value)}{advice_on(value, lambda meant: type(meant) in types)}"


def _properties_at(schema: Mapping[str, Any], steps: Sequence[str | int]) -> list[str]:
    place: Any = schema
    for step in steps:
        if isinstance(place, list) and isinstance(step, int) and step < len(place):
            place = place[step]
        else:
            place = place.get(step) if isinstance(place, dict) else None
    known = place.get("properties") if isinstance(place, dict) else None
    return list(known) if isinstance(known, dict) else []


def _first_line(error: Exception) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:_MAX_MESSAGE_CHARS]
