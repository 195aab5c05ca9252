"""Bundles from outside: every problem at once, each with its JSON path and a hint (AH 3.2 step 5, 8.1). The classes of
`policy.bundle` are the schema: what stands in a field follows from its annotation."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from config.json_text import TooDeep, check_depth
from config.lean_typing import NamedTuple
from config.text_formats import describe_bytes, describe_json
from policy import bundle as model
from policy.bundle import (
    NO_DEFAULT,
    BundleProblem,
    BundleProblems,
    CommandPolicy,
    PolicyBundle,
    is_part,
    json_names,
    members,
    nearest,
    together,
)
from policy.bundle.meaning import command_policy_problems, meaning
from policy.names import ANY_SESSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Place = tuple[int | str, ...]
    """Path of a value: names of fields and numbers of items, from the top."""
    Read = Callable[[Any, Place, list[BundleProblem]], Any]
    """(JSON value, its place, problems, to be added to) → the value; _WRONG where it is none of the type."""

MAX_BYTES = 16 * 1024 * 1024
MISSING: Final = "is missing"
UNKNOWN: Final = "is not a field of this object"
_WRONG: Final = object()
_EXAMPLES = {
    "policyBundleVersion": '"2026-01-31.1"',
    "schemaVersion": f'"{SCHEMA_VERSION}"',
    "tenantId": '"acme"',
    "userId": '"jo"',
    "sessionId": f'"{ANY_SESSION}", which stands for any session',
    "expiresAt": '"2026-01-31T12:00:00Z"',
    "capabilities": '[{"name": "LLM.Call"}]',
    "allowedModels": '["claude-sonnet-4-5"]',
    "maxInputTokens": "200000",
    "maxOutputTokens": "16384",
    "maxSessionTokens": "1000000",
    "approvalRules": "[]",
    "approvalRuleId": '"shell"',
    "title": '"Run a command"',
    "description": '"It runs on this machine with your rights."',
    "transport": '"stdio" or "http"',
    "redactionRuleId": '"ticket-numbers"',
    "pattern": '"T-[0-9]{6}"',
    "command": '"git"',
    "index": "0",
}
"""Examples of required fields, by name."""
_TEMPLATE = "`agent-host policy show NAME` prints a bundle to start from"


def parse_bundle(raw: bytes | dict[str, Any]) -> PolicyBundle:
    """A bundle from JSON text or from its JSON shape. Raises BundleProblems with all of them."""
    shape, problems = read_shape(raw)
    bundle, of_types = read_typed(shape)
    found = tuple(dict.fromkeys((*problems, *together(of_types, meaning(shape)))))
    if found or bundle is None:
        raise BundleProblems(found)
    return bundle


def check_usable(bundle: PolicyBundle, *, session_id: str, now: datetime) -> list[BundleProblem]:
    """Why a valid bundle can't be used for this session now; empty when it can (AH 3.2 step 5, 8.6)."""
    problems: list[BundleProblem] = []
    if bundle.schema_version != SCHEMA_VERSION:
        problems.append(
            BundleProblem("schemaVersion", f"is {bundle.schema_version}", f"this host reads {SCHEMA_VERSION}")
        )
    if now >= bundle.expires_at:
        problems.append(BundleProblem("expiresAt", f"the bundle expired at {bundle.expires_at.isoformat()}"))
    if bundle.session_id not in {ANY_SESSION, session_id}:
        problems.append(BundleProblem("sessionId", f"the bundle is for session {bundle.session_id}, not {session_id}"))
    return problems


# Text to shape


def read_shape(raw: bytes | dict[str, Any]) -> tuple[dict[str, Any], list[BundleProblem]]:
    """The JSON object, and what is wrong with how it is written. Raises BundleProblems for no object."""
    problems: list[BundleProblem] = []
    shape = _read(raw, problems) if isinstance(raw, bytes) else _load_json(raw)
    if not isinstance(shape, dict):
        raise BundleProblems(tuple(problems) or (BundleProblem("", f"is not a JSON object, but {_kind(shape)}"),))
    return shape, problems


def _load_json(raw: Any) -> Any:
    try:
        text = json.dumps(raw, allow_nan=False)
        check_depth(text)
        return json.loads(text)
    except RecursionError:
        raise BundleProblems((BundleProblem("", f"is not JSON: {TooDeep()}"),)) from None
    except (ValueError, TypeError) as fault:
        raise BundleProblems((BundleProblem("", f"is not JSON: {fault}"),)) from None


def _read(raw: bytes, problems: list[BundleProblem]) -> Any:
    if len(raw) > MAX_BYTES:
        problems.append(BundleProblem("", f"is longer than {MAX_BYTES} bytes"))
        return None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shape = dict(pairs)
        left = dict.fromkeys(shape, 1)
        twice: dict[str, None] = {}
        for name, _ in pairs:
            left[name] -= 1
            if left[name] < 0:
                twice[name] = None
        problems.extend(BundleProblem(name, "the field stands twice in one object") for name in twice)
        return shape

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    text = ""
    try:
        text = raw.decode(json.detect_encoding(raw), "surrogatepass")
        check_depth(text)
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as fault:
        problems.append(BundleProblem("", describe_json(text, fault.msg, fault.pos), _TEMPLATE))
    except UnicodeDecodeError as fault:
        problems.append(BundleProblem("", describe_bytes(raw, fault)))
    except ValueError as fault:
        problems.append(BundleProblem("", f"is not JSON: {fault}"))
    return None


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "text" if isinstance(value, str) else json.dumps(value)


def read_typed(shape: Any) -> tuple[PolicyBundle | None, list[BundleProblem]]:
    """The bundle of a JSON shape, None where there are problems with its types."""
    problems: list[BundleProblem] = []
    bundle = _read_object(PolicyBundle, shape, problems)
    return None if bundle is _WRONG else bundle, problems


# commandPolicies from configuration, which only narrows: the rules and messages of a bundle, and one rule more.


def command_policies(entries: Sequence[dict[str, Any]], name: str) -> tuple[CommandPolicy, ...]:
    """The entries (JSON shape) as values. `name` is what the problems call the list.

    Raises BundleProblems with all that is wrong, `startsPrograms: true` included: nothing here can add.
    """
    try:
        shape = json.loads(json.dumps(list(entries), allow_nan=False))
    except (ValueError, TypeError) as fault:
        raise BundleProblems((BundleProblem(name, f"is not JSON: {fault}"),)) from None
    of_types: list[BundleProblem] = []
    policies = _read_list(CommandPolicy, shape, of_types, (name,))
    of_values: list[BundleProblem] = []
    for place, entry in enumerate(entries):
        of_values += command_policy_problems(f"{name}[{place}]", entry)
        of_values += _grants(f"{name}[{place}]", entry)
    problems = together(of_types, of_values)
    if problems:
        raise BundleProblems(problems)
    return tuple(policies)


def _grants(path: str, entry: dict[str, Any]) -> Iterator[BundleProblem]:
    if entry.get("startsPrograms") is True:
        yield BundleProblem(
            f"{path}.startsPrograms", "is true, and configuration only narrows", "false, or leave it out"
        )


def _read_object(cls: type, shape: Any, problems: list[BundleProblem], place: Place = ()) -> Any:
    """The value of the class, or _WRONG with what is wrong added to `problems`, in the order of the class's fields."""
    if not isinstance(shape, dict):
        return _wrong(problems, place, "must be an object")
    known = _members(cls)
    values: dict[str, Any] = {}
    for json_name, member in known.items():
        if json_name in shape:
            values[member.name] = member.read(shape[json_name], (*place, json_name), problems)
        elif member.is_required:
            example = _EXAMPLES.get(json_name)
            _wrong(problems, (*place, json_name), MISSING, None if example is None else f"such as {example}")
            values[member.name] = _WRONG
    unknown = [name for name in shape if name not in known]
    for name in unknown:
        _wrong(problems, (*place, name), UNKNOWN, nearest(name, json_names(cls)))
    return _WRONG if unknown or any(value is _WRONG for value in values.values()) else cls(**values)


def _read_list(cls: type, shape: Any, problems: list[BundleProblem], place: Place = ()) -> Any:
    """The same for a list of such objects, as a tuple."""
    return _many(lambda value, at, found: _read_object(cls, value, found, at))(shape, place, problems)


class _Member(NamedTuple):
    name: str
    read: Read
    is_required: bool


@lru_cache(maxsize=16)
def _members(cls: Any) -> Mapping[str, _Member]:
    """The fields of a class by their JSON names."""
    return {
        json_name: _Member(name, _reader(annotation), default is NO_DEFAULT)
        for json_name, (name, annotation, default) in members(cls).items()
    }


def _reader(annotation: str) -> Read:
    """Return the reader of values of an annotation, as it is written in the classes. Raises TypeError for one that no
    class has had so far."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation.endswith(" | None"):
        return _or_null(_reader(annotation.removesuffix(" | None")))
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return _many(_reader(annotation.removeprefix("tuple[").removesuffix(", ...]")))
    if annotation.startswith("Literal["):
        return _one_of(annotation.removeprefix("Literal[").removesuffix("]"))
    cls: Any = getattr(model, annotation, None)
    if not is_part(cls):
        raise TypeError(f"a bundle's field is annotated with {annotation}, which nothing reads yet")
    return lambda value, place, problems: _read_object(cls, value, problems, place)


def _text(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    if not isinstance(value, str):
        return _wrong(problems, place, "must be text", "in double quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        return _wrong(problems, place, "holds half of a character", "a lone surrogate cannot be written as UTF-8")
    return value


def _whole(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _wrong(problems, place, "must be a whole number", "in digits, without quotes")


def _number(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return _wrong(problems, place, "must be a number", "in digits, without quotes")


def _flag(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    return value if isinstance(value, bool) else _wrong(problems, place, "must be true or false", "without quotes")


def _moment(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    try:
        return datetime.fromisoformat(value.upper())
    except (AttributeError, ValueError):
        return _wrong(problems, place, "must be an RFC 3339 time with a zone", "such as 2026-01-31T12:00:00Z")


_PLAIN: Final[Mapping[str, Read]] = {"str": _text, "int": _whole, "float": _number, "bool": _flag, "datetime": _moment}


def _or_null(read: Read) -> Read:
    return lambda value, place, problems: None if value is None else read(value, place, problems)


def _one_of(quoted: str) -> Read:
    """One of the texts that a Literal lists, with quotes and commas."""
    known = tuple(one.strip().strip("'\"") for one in quoted.split(","))

    def read(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
        if value in known:
            return value
        return _wrong(problems, place, f"must be {' or '.join(map(repr, known))}")

    return read


def _many(read: Read) -> Read:
    def read_all(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
        if not isinstance(value, list):
            return _wrong(problems, place, "must be a list", "in square brackets")
        items = tuple(read(item, (*place, number), problems) for number, item in enumerate(value))
        return _WRONG if any(item is _WRONG for item in items) else items

    return read_all


def _wrong(problems: list[BundleProblem], place: Place, message: str, hint: str | None = None) -> Any:
    problems.append(BundleProblem(_json_path(place), message, hint))
    return _WRONG


def _json_path(place: Place) -> str:
    path = ""
    for step in place:
        path += f"[{step}]" if isinstance(step, int) else (f".{step}" if path else step)
    return path
