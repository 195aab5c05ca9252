"""Bundles from outside: every problem at once, each with its JSON path and a hint (AH 3.2 step 5, 8.1). The classes of
`policy.bundle` are the schema: the annotation of a field determines its values."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from config.json_text import TooDeep, check_depth, describe_bytes, describe_json
from config.lean_typing import NamedTuple
from policy import ANY_SESSION, SCHEMA_VERSION
from policy.bundle import (
    NO_DEFAULT,
    PARTS,
    BundleProblem,
    BundleProblems,
    CommandPolicy,
    PolicyBundle,
    builtin,
    members,
    nearest,
    together,
)
from policy.bundle.meaning import CONTROL, ENTRY_CHECKS, command_entry, command_policy_problems, meaning, objects
from policy.paths import is_absolute, is_under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from policy.bundle.builtin import PlaceholderValues
    from policy.bundle.meaning import EntryChecks

    Place = tuple[int | str, ...]
    """Path of a value: names of fields and numbers of items, from the top."""
    Read = Callable[[Any, Place, list[BundleProblem]], Any]
    """(JSON value, its place, list of problems to extend) → the value; _WRONG if it does not have the type."""

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
        problem = f"is {bundle.schema_version}"
        problems.append(BundleProblem("schemaVersion", problem, f"this host reads {SCHEMA_VERSION}"))
    if now >= bundle.expires_at:
        problems.append(BundleProblem("expiresAt", f"the bundle expired at {bundle.expires_at.isoformat()}"))
    if bundle.session_id not in {ANY_SESSION, session_id}:
        problems.append(BundleProblem("sessionId", f"the bundle is for session {bundle.session_id}, not {session_id}"))
    return problems


# Text to shape


def read_shape(raw: bytes | dict[str, Any]) -> tuple[dict[str, Any], list[BundleProblem]]:
    """The JSON object, and problems of its notation. Raises BundleProblems if it is not an object."""
    problems: list[BundleProblem] = []
    shape = _read(raw, problems) if isinstance(raw, bytes) else _load_json(raw)
    if not isinstance(shape, dict):
        kind = "a list" if isinstance(shape, list) else "text" if isinstance(shape, str) else json.dumps(shape)
        raise BundleProblems(tuple(problems) or (BundleProblem("", f"is not a JSON object, but {kind}"),))
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

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shape: dict[str, Any] = {}
        twice: dict[str, None] = {}
        for name, value in pairs:
            if name in shape:
                twice[name] = None
            shape[name] = value
        problems.extend(BundleProblem(name, "the field occurs twice in one object") for name in twice)
        return shape

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    text = ""
    try:
        text = raw.decode(json.detect_encoding(raw), "surrogatepass")
        check_depth(text)
        return json.loads(text, object_pairs_hook=build_object, parse_constant=refuse)
    except json.JSONDecodeError as fault:
        problems.append(BundleProblem("", describe_json(text, fault.msg, fault.pos), _TEMPLATE))
    except UnicodeDecodeError as fault:
        problems.append(BundleProblem("", describe_bytes(raw, fault)))
    except ValueError as fault:
        problems.append(BundleProblem("", f"is not JSON: {fault}"))
    return None


def read_typed(shape: Any) -> tuple[PolicyBundle | None, list[BundleProblem]]:
    """The bundle of a JSON shape, None if there are problems with its types."""
    problems: list[BundleProblem] = []
    bundle = _read_object(PolicyBundle, shape, problems)
    return None if bundle is _WRONG else bundle, problems


# commandPolicies from configuration, which only narrows: the rules and messages of a bundle, and one rule more.


def command_policies(entries: Sequence[dict[str, Any]], name: str) -> tuple[CommandPolicy, ...]:
    """The entries (JSON shape) as values. `name` is the list's name in problems.

    Raises BundleProblems with all problems, including `startsPrograms: true`, because nothing here can add permissions.
    """
    try:
        shape = json.loads(json.dumps(list(entries), allow_nan=False))
    except (ValueError, TypeError) as fault:
        raise BundleProblems((BundleProblem(name, f"is not JSON: {fault}"),)) from None
    of_types: list[BundleProblem] = []
    policies = _reader("tuple[CommandPolicy, ...]")(shape, (name,), of_types)
    of_values: list[BundleProblem] = []
    for place, entry in enumerate(entries):
        of_values += command_policy_problems(f"{name}[{place}]", entry)
        if entry.get("startsPrograms") is True:
            where = f"{name}[{place}].startsPrograms"
            of_values.append(BundleProblem(where, "is true, and configuration only narrows", "false, or leave it out"))
    problems = together(of_types, of_values)
    if problems:
        raise BundleProblems(problems)
    return tuple(policies)


def _read_object(cls: type, shape: Any, problems: list[BundleProblem], place: Place = ()) -> Any:
    """The value of the class, or _WRONG with its problems added to `problems`, in the order of the class's fields."""
    if not isinstance(shape, dict):
        return _wrong(problems, place, "must be an object")
    known = members(cls)
    values: dict[str, Any] = {}
    for json_name, member in known.items():
        if json_name in shape:
            values[member.name] = _reader(member.annotation)(shape[json_name], (*place, json_name), problems)
        elif member.default is NO_DEFAULT:
            example = _EXAMPLES.get(json_name)
            _wrong(problems, (*place, json_name), MISSING, None if example is None else f"such as {example}")
            values[member.name] = _WRONG
    unknown = [name for name in shape if name not in known]
    for name in unknown:
        _wrong(problems, (*place, name), UNKNOWN, nearest(name, tuple(known)))
    return _WRONG if unknown or any(value is _WRONG for value in values.values()) else cls(**values)


@lru_cache(maxsize=64)
def _reader(annotation: str) -> Read:
    """Return the reader of an annotation's values. Raises TypeError for one that no class has had so far."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation.endswith(" | None"):
        read = _reader(annotation.removesuffix(" | None"))
        return lambda value, place, problems: None if value is None else read(value, place, problems)
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return _many(_reader(annotation.removeprefix("tuple[").removesuffix(", ...]")))
    if annotation.startswith("Literal["):
        return _one_of(annotation.removeprefix("Literal[").removesuffix("]"))
    cls = PARTS.get(annotation)
    if cls is None:
        raise TypeError(f"a bundle's field is annotated with {annotation}, which nothing reads yet")
    return lambda value, place, problems: _read_object(cls, value, problems, place)


def _text(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
    if not isinstance(value, str):
        return _wrong(problems, place, "must be text", "in double quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        return _wrong(problems, place, "contains half of a character", "a lone surrogate cannot be written as UTF-8")
    return value


def _integer(value: Any, place: Place, problems: list[BundleProblem]) -> Any:
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


_PLAIN: Final[Mapping[str, Read]] = {
    "str": _text,
    "int": _integer,
    "float": _number,
    "bool": _flag,
    "datetime": _moment,
}


def _one_of(quoted: str) -> Read:
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


# Bundle files: what they may omit, and the built-ins that they extend (interface section 3).
#
# A file may contain placeholders and groups, omit `expiresAt`, and start from a built-in with `extends`. Problems name
# the JSON path in the file, so its own shape is checked before anything is added to it.


EXTENDS = "extends"
_VERSION = "policyBundleVersion"
_HASH_DIGITS = 8
_BY_ID = {"approvalRules": "approvalRuleId", "mcpServers": "name", "redactionRules": "redactionRuleId"}
"""Lists of objects, and the field by which an object replaces another."""
_NOT_IN_BUNDLES = builtin.OF_TEMPLATES | {EXTENDS}


class BuiltIns(NamedTuple):
    """The bundles that `extends` may name, and a function that returns a template, with placeholders and groups in it.
    `models` are the user's own; a built-in puts them before its own, and `more_models` after them."""

    names: tuple[str, ...]
    template: Callable[[str], Mapping[str, Any]]
    models: tuple[str, ...] = ()
    more_models: tuple[str, ...] = ()


def parse_file_bundle(
    raw: bytes | dict[str, Any],
    *,
    places: PlaceholderValues,
    built_ins: BuiltIns,
    now: datetime,
    sandboxed: bool = False,
) -> PolicyBundle:
    """A bundle from the JSON text of a file, or from its shape. `now` is aware: without `expiresAt` the bundle expires
    like a built-in that starts now. `sandboxed`: commands are sandboxed. Raises BundleProblems with all problems."""
    shape, problems = read_shape(raw)
    base = _base(shape, built_ins)
    lines_ask = not sandboxed or base is None or builtin.asks_in_lines(base)
    base = builtin.adapt_to_sandbox(base) if sandboxed and base is not None else base
    rules = () if base is None else tuple(rule["approvalRuleId"] for rule in base["approvalRules"])
    values = (*_extends(shape, built_ins), *meaning(shape, checks=file_checks(places), more_rules=rules))
    found = tuple(dict.fromkeys((*problems, *together(_types(shape), values))))
    if found:
        raise BundleProblems(found)
    extended = dict(shape) if base is None else extend(base, shape)
    extended.setdefault("expiresAt", builtin.expiry(base or {}, now).isoformat())
    by_groups = builtin.paths_of_groups(extended["capabilities"], places)
    entries = (entry for entry in extended["capabilities"] if not builtin.is_for_configured_tools(entry, places))
    extended["capabilities"] = [builtin.fill(entry, places) for entry in entries]
    bundle, wrong = read_typed(extended)
    if bundle is None:
        raise BundleProblems(tuple(wrong))
    return bundle.keep_known(bundle, by_groups=by_groups, sandboxed=sandboxed, lines_ask=lines_ask)


def extend(base: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a bundle that starts from the template `base`: scalars replace, lists of the same capability are
    added to, objects of the same id replace. Both shapes are good."""
    extended = {name: value for name, value in base.items() if name not in _NOT_IN_BUNDLES}
    extended["sessionId"] = ANY_SESSION
    digest = sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()  # how the file is laid out does not count
    extended[_VERSION] = f"{base[_VERSION]}+{digest[:_HASH_DIGITS]}"
    for name, value in shape.items():
        if name == "capabilities":
            extended[name] = _join_by_id(base[name], value, "name", _merge)
        elif name in _BY_ID:
            extended[name] = _join_by_id(base.get(name, ()), value, _BY_ID[name], lambda _, new: dict(new))
        elif name in ("llmPolicy", "sandbox") and value is not None:
            extended[name] = _merge(base.get(name, {}), value)
        elif name not in _NOT_IN_BUNDLES:
            extended[name] = value
    return extended


def _join_by_id(
    present: Iterable[Mapping[str, Any]],
    added: Iterable[Mapping[str, Any]],
    field: str,
    join: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Those of `present` in their order, each merged with the one of the same id, then the new ones."""
    known = {one[field]: dict(one) for one in present}
    for one in added:
        known[one[field]] = join(known[one[field]], one) if one[field] in known else dict(one)
    return list(known.values())


def _merge(present: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars replace, lists are extended, each entry once. `null` for a list has no effect, as everywhere; a list that
    a template has removed is not extended."""
    merged = dict(present)
    for name, value in added.items():
        before = merged.get(name)
        if isinstance(value, list) and isinstance(before, list):
            merged[name] = [*before, *(one for place, one in enumerate(value) if one not in [*before, *value[:place]])]
        elif isinstance(value, list) and before is None and name in present:
            continue
        elif not (value is None and isinstance(before, list)):
            merged[name] = value
    return merged


# What is wrong


def _base(shape: Mapping[str, Any], built_ins: BuiltIns) -> dict[str, Any] | None:
    """The template that a good `extends` names, with the user's models around its own."""
    name = shape.get(EXTENDS)
    if not isinstance(name, str) or name not in built_ins.names:
        return None
    base = dict(built_ins.template(name))
    llm = base["llmPolicy"]
    models = (*built_ins.models, *llm["allowedModels"], *built_ins.more_models)
    base["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys(models))}
    return base


def _extends(shape: Mapping[str, Any], built_ins: BuiltIns) -> Iterator[BundleProblem]:
    name = shape.get(EXTENDS, built_ins.names[0])
    if not isinstance(name, str):
        yield BundleProblem(EXTENDS, "must be text", f"the name of a built-in: {', '.join(built_ins.names)}")
    elif name not in built_ins.names:
        yield BundleProblem(EXTENDS, f"{name!r} is not a built-in", nearest(name, built_ins.names))


def _types(shape: Mapping[str, Any]) -> Iterator[BundleProblem]:
    """Problems with types, except for fields that a file may omit."""
    _, problems = read_typed({name: value for name, value in shape.items() if name != EXTENDS})
    for one in problems:
        may_miss = one.path == "expiresAt" or (EXTENDS in shape and "[" not in one.path)
        if one.message == MISSING and may_miss:
            continue
        is_top = one.message == UNKNOWN and one.path in shape
        yield one._replace(hint=nearest(one.path, (*members(PolicyBundle), EXTENDS))) if is_top else one


# Entries of a valid bundle without effect: each causes a warning.


def suspicions(
    shape: Mapping[str, Any], places: PlaceholderValues, find: Callable[[str], str | None]
) -> Iterator[BundleProblem]:
    """Entries of a valid file's lists that name missing places, or allow what the same capability blocks. `find` takes
    an absolute path and returns None if this machine has it, else a hint at another one, or an empty text."""
    for place, entry in objects(shape.get("capabilities")):
        at = f"capabilities[{place}]"
        lists = {field: entry.get(field) or () for pair in _PAIRS for field in pair}
        for field in ("allowedPaths", "blockedPaths"):
            for number, value in enumerate(lists[field]):
                path = _plain_path(value, places)
                hint = None if path is None else find(path)
                if hint is not None:
                    yield BundleProblem(f"{at}.{field}[{number}]", f"{value!r} does not exist here", hint or None)
        for allowed, blocked in _PAIRS:
            for number, value in enumerate(lists[allowed]):
                by = next((i for i, one in enumerate(lists[blocked]) if _blocks(one, value, allowed, places)), None)
                if by is not None:
                    yield BundleProblem(
                        f"{at}.{allowed}[{number}]",
                        f"{value!r} is blocked as well, and a blocked entry is never allowed",
                        f"{at}.{blocked}[{by}] is {lists[blocked][by]!r}: take one of them out",
                    )


_PAIRS = (
    ("allowedPaths", "blockedPaths"),
    ("allowedCommands", "blockedCommands"),
    ("allowedDomains", "blockedDomains"),
)


def _plain_path(value: str, places: PlaceholderValues) -> str | None:
    """The absolute path of an entry; None for groups, patterns, other systems' paths and a session's own places."""
    if value.startswith(("@", "${tmp}", "${stepFiles}")) or "*" in value:
        return None
    path = builtin.expand_path(value, places)
    return path if path is not None and is_absolute(path, places.os) else None


def _blocks(blocked: str, value: str, field: str, places: PlaceholderValues) -> bool:
    if field != "allowedPaths":
        return blocked == value
    outer, inner = _plain_path(blocked, places), _plain_path(value, places)
    return outer is not None and inner is not None and is_under(inner, outer, places.os)


# Problems of the forms that only a bundle file may have: `${workspace}`, `@credentials`, `src`.

_SHELL_PLACES = re.compile(r"~|\$|%")
"""Text that a shell would expand into a path: `~/x`, `$HOME/x`, `%USERPROFILE%`."""
_NEITHER = re.compile(r"\\|[A-Za-z]:")
"""Prefixes of paths that Windows reads as neither relative nor absolute: `\\x`, `C:x`."""

_NESTED = re.compile(r"(?:[^*]*/)?\*\*/\*?[^*/\\]+")


def file_checks(places: PlaceholderValues) -> EntryChecks:
    """The checks of a list's entries for a bundle given by file."""

    def check_allowed(value: str) -> tuple[str, str] | None:
        if value.startswith("@"):
            return f"{value!r} is a group of places to block", "name the paths themselves, or use it in blockedPaths"
        name = value[2:].partition("}")[0]
        # Not `${stepFiles}`: a bundle for CI is written and checked on other machines, too.
        is_known = value.startswith("${") and name in builtin.PLACEHOLDERS and name != "stepFiles"
        missing = is_known and places.path_of(name) is None
        return (f"{value!r} has no value on this machine", "name the path") if missing else _path("allowedPaths", value)

    return {
        **ENTRY_CHECKS,
        "allowedPaths": check_allowed,
        "blockedPaths": _check_blocked,
        "allowedCommands": program_problem,
    }


def _check_blocked(value: str) -> tuple[str, str] | None:
    if not value.startswith("@"):
        return _path("blockedPaths", value)
    if value[1:] in builtin.GROUP_NAMES:
        return None
    known = tuple(f"@{name}" for name in builtin.GROUP_NAMES)
    return f"{value!r} is not a group of places", nearest(value, known) or ""


def _path(field: str, value: str) -> tuple[str, str] | None:
    if CONTROL.search(value) or is_absolute(value, "posix") or is_absolute(value, "windows"):
        return ENTRY_CHECKS[field](value) or _placeholder_inside(value)
    if not value:
        return "is empty", "the workspace is ${workspace}"
    if value.startswith("${"):
        problem = _placeholder(value)
    elif _SHELL_PLACES.match(value) or _NEITHER.match(value):
        problem = f"{value!r} is not absolute", "no shell reads it: the home directory is ${home}"
    else:
        problem = _placeholder_inside(value)
    if problem is None and "*" in value and not (field == "blockedPaths" and _NESTED.fullmatch(value)):
        return f"{value!r} is a pattern", "an entry covers everything below it: leave the stars out"
    return problem


def _placeholder(value: str) -> tuple[str, str] | None:
    name, closed, rest = value[2:].partition("}")
    if not closed or (rest and not rest.startswith("/")):
        return f"{value!r} cannot be read", "a placeholder is closed, and a / follows, as in ${workspace}/src"
    if name not in builtin.PLACEHOLDERS:
        known = tuple(f"${{{one}}}" for one in builtin.PLACEHOLDERS)
        return f"${{{name}}} is not a placeholder", nearest(f"${{{name}}}", known) or ""
    return _placeholder_inside(rest)


def _placeholder_inside(value: str) -> tuple[str, str] | None:
    if "${" in value:
        return f"{value!r} has a placeholder inside", "a placeholder must be at the beginning of a path"
    return None


def program_problem(value: str) -> tuple[str, str] | None:
    """Return the problem of an entry of allowedCommands, and a hint."""
    if not value.startswith("${"):
        return command_entry(value)
    if CONTROL.search(value):
        return f"{value!r} has control characters", "no program is named with them"
    stars = next((one for one in builtin.STARS if value.endswith(one)), None)
    if stars is None or not value.startswith(builtin.PROGRAMS_BELOW):
        known = " or ".join(f"{builtin.PROGRAMS_BELOW}DIRECTORY{one}" for one in builtin.STARS)
        return f"{value!r} is not a program name", f"programs of the workspace are {known}"
    folder = value[len(builtin.PROGRAMS_BELOW) : -len(stars)]
    if any(character in folder for character in "*?$\\") or ".." in folder.split("/"):
        return f"{value!r} is not a directory of the workspace", "stars are allowed at the end only, and .. nowhere"
    return None
