"""Bundles from outside: every problem at once, each with its JSON path and a hint (AH 3.2 step 5, 8.1).

The classes of `policy.bundle` are the schema; pydantic's validator, which is imported here and nowhere else, gets them
from `policy.bundle_schema`.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from policy.bundle import Capability, PolicyBundle, bundle_part, camel, json_names
from policy.names import ALL_CAPABILITIES, ANY_SESSION, SCHEMA_VERSION
from policy.paths import is_absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic_core import ValidationError


MAX_BYTES = 16 * 1024 * 1024
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


class Problem(NamedTuple):
    """One thing that is wrong: where (`capabilities[2].allowedPaths`, empty for the whole), what, and what may help."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.path or 'the bundle'}: {self.message}{hint}"


class BundleProblems(ValueError):
    """A bundle that is refused; `problems` lists everything that is wrong with it, in the order of the document."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def parse_bundle(raw: bytes | dict[str, Any]) -> PolicyBundle:
    """A bundle from JSON text or from its JSON shape. Raises BundleProblems with all of them."""
    problems: list[Problem] = []
    shape = _read(raw, problems) if isinstance(raw, bytes) else raw
    if not isinstance(shape, dict):
        raise BundleProblems(tuple(problems) or (Problem("", "is not a JSON object"),))
    try:
        text = json.dumps(shape, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as fault:
        raise BundleProblems((*problems, Problem("", f"is not JSON: {fault}"))) from None
    bundle = _typed(text, problems)
    problems.extend(_meaning(shape))
    if problems or bundle is None:
        raise BundleProblems(tuple(dict.fromkeys(problems)))
    return bundle


def check_usable(bundle: PolicyBundle, *, session_id: str, now: datetime) -> list[Problem]:
    """Why a valid bundle can't be used for this session now; empty when it can (AH 3.2 step 5, 8.6)."""
    problems: list[Problem] = []
    if bundle.schema_version != SCHEMA_VERSION:
        problems.append(Problem("schemaVersion", f"is {bundle.schema_version}", f"this host reads {SCHEMA_VERSION}"))
    if now >= bundle.expires_at:
        problems.append(Problem("expiresAt", f"the bundle expired at {bundle.expires_at.isoformat()}"))
    if bundle.session_id not in {ANY_SESSION, session_id}:
        problems.append(Problem("sessionId", f"the bundle is for session {bundle.session_id}, not {session_id}"))
    return problems


# Text to shape


def _read(raw: bytes, problems: list[Problem]) -> Any:
    if len(raw) > MAX_BYTES:
        problems.append(Problem("", f"is longer than {MAX_BYTES} bytes"))
        return None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shape = dict(pairs)
        left = dict.fromkeys(shape, 1)
        twice: dict[str, None] = {}
        for name, _ in pairs:
            left[name] -= 1
            if left[name] < 0:
                twice[name] = None
        problems.extend(Problem(name, "the field stands twice in one object") for name in twice)
        return shape

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(raw, object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as fault:
        problems.append(Problem("", f"is not JSON: {fault}"))
        return None


# Shape to types


def _typed(text: str, problems: list[Problem]) -> PolicyBundle | None:
    from pydantic_core import ValidationError

    from policy.bundle_schema import bundle_validator

    try:
        bundle: PolicyBundle = bundle_validator().validate_json(text)
        return bundle
    except ValidationError as fault:
        problems.extend(type_problems(fault))
        return None


def type_problems(fault: ValidationError, place: tuple[int | str, ...] = ()) -> list[Problem]:
    """What the validator says, in our words; `place` is where in a bundle stands what it was given."""
    errors = fault.errors(include_url=False, include_context=False, include_input=False)
    return [_from_pydantic((*place, *error["loc"]), error["type"], error["msg"]) for error in errors]


_MESSAGES = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "unexpected_keyword_argument": "is not a field of this object",
    "extra_forbidden": "is not a field of this object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
}
_UNKNOWN_FIELD = frozenset({"unexpected_keyword_argument", "extra_forbidden"})


def _from_pydantic(loc: tuple[int | str, ...], kind: str, message: str) -> Problem:
    hint = _nearest(str(loc[-1]), _fields_at(loc[:-1])) if kind in _UNKNOWN_FIELD else None
    return Problem(_json_path(loc), _MESSAGES.get(kind, message), hint)


def _fields_at(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    cls: type | None = PolicyBundle
    for step in loc:
        if isinstance(step, str) and cls is not None:
            cls = bundle_part(cls, step)
    return json_names(cls) if cls is not None else ()


def _json_path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else (f".{step}" if path else step)
    return path


def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches

    folded = {one.lower(): one for one in known}
    snake = camel(name).lower()
    close = [snake] if snake in folded else get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}?" if close else f"known are {', '.join(known)}"


# Types to meaning: what a value must be beyond its type. Reads the raw shape, so that it can speak beside type errors.


def _meaning(shape: dict[str, Any]) -> Iterator[Problem]:
    if shape.get("schemaVersion", SCHEMA_VERSION) != SCHEMA_VERSION:
        yield Problem("schemaVersion", f"{shape['schemaVersion']!r} is not known", f"must be {SCHEMA_VERSION!r}")
    yield from _expiry(shape.get("expiresAt"))
    if not shape.get("sessionId", "-"):
        yield Problem("sessionId", "is empty", "'*' stands for any session")
    yield from _llm_policy(shape.get("llmPolicy"))
    rules = _objects(shape.get("approvalRules"))
    yield from _unique("approvalRules", rules, "approvalRuleId")
    entries = _objects(shape.get("capabilities"))
    yield from _unique("capabilities", entries, "name")
    known_rules = tuple(rule["approvalRuleId"] for _, rule in rules if isinstance(rule.get("approvalRuleId"), str))
    for place, entry in entries:
        yield from _capability(f"capabilities[{place}]", entry, known_rules)
    yield from _unique("mcpServers", _objects(shape.get("mcpServers")), "name")
    for place, server in _objects(shape.get("mcpServers")):
        needed = {"stdio": "command", "http": "url"}.get(str(server.get("transport")))
        if needed is not None and not server.get(needed):
            yield Problem(f"mcpServers[{place}].{needed}", f"is needed for transport {server['transport']}")
    redactions = _objects(shape.get("redactionRules"))
    yield from _unique("redactionRules", redactions, "redactionRuleId")
    for place, rule in redactions:
        yield from _redaction_rule(f"redactionRules[{place}]", rule)


def _redaction_rule(path: str, rule: dict[str, Any]) -> Iterator[Problem]:
    from policy import patterns
    from policy.redaction import UnusablePattern, rule_pattern

    if rule.get("redactionRuleId") == "":
        yield Problem(f"{path}.redactionRuleId", "is empty", "it stands in the placeholders")
    pattern = rule.get("pattern")
    try:
        if isinstance(pattern, str):
            rule_pattern(pattern)
    except UnusablePattern as error:
        yield Problem(f"{path}.pattern", f"{pattern!r} is not usable: {error}", patterns.HINT)


def _objects(value: Any) -> list[tuple[int, dict[str, Any]]]:
    items = value if isinstance(value, (list, tuple)) else []
    return [(place, item) for place, item in enumerate(items) if isinstance(item, dict)]


def _expiry(value: Any) -> Iterator[Problem]:
    if value is None:
        return
    try:
        readable = isinstance(value, str) and _RFC3339.fullmatch(value) and datetime.fromisoformat(value.upper())
    except ValueError:
        readable = False
    if not readable:
        yield Problem("expiresAt", "must be an RFC 3339 time with a zone", "such as 2026-01-31T12:00:00Z")


def _llm_policy(policy: Any) -> Iterator[Problem]:
    if not isinstance(policy, dict):
        return
    if policy.get("allowedModels") == []:
        yield Problem("llmPolicy.allowedModels", "is empty", "name at least one model")
    yield from _at_least("llmPolicy", policy, {"maxInputTokens": 1, "maxOutputTokens": 1, "maxSessionTokens": 1})


def _at_least(path: str, shape: dict[str, Any], least: dict[str, int]) -> Iterator[Problem]:
    for name, bound in least.items():
        value = shape.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value < bound:
            yield Problem(f"{path}.{name}", f"must be at least {bound}")


def _unique(path: str, items: list[tuple[int, dict[str, Any]]], field: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for place, item in items:
        name = item.get(field)
        if isinstance(name, str) and first.setdefault(name, place) != place:
            yield Problem(
                f"{path}[{place}].{field}", f"{name!r} stands at {path}[{first[name]}] already", "merge the two"
            )


def _capability(path: str, entry: dict[str, Any], rules: tuple[str, ...]) -> Iterator[Problem]:
    name = entry.get("name")
    if isinstance(name, str) and name not in ALL_CAPABILITIES:
        yield Problem(f"{path}.name", f"{name!r} is not a capability", _nearest(name, ALL_CAPABILITIES))
    rule = entry.get("approvalRuleId")
    if isinstance(rule, str) and rule not in rules:
        hint = _nearest(rule, rules) if rules else "approvalRules is empty"
        yield Problem(f"{path}.approvalRuleId", f"{rule!r} is not in approvalRules", hint)
    yield from _at_least(path, entry, {"maxFileSizeBytes": 0, "maxOutputBytes": 0})
    for field, check in _ENTRY_CHECKS.items():
        values = entry.get(field)
        for place, value in enumerate(values if isinstance(values, (list, tuple)) else []):
            problem = check(value) if isinstance(value, str) else None
            if problem is not None:
                yield Problem(f"{path}.{field}[{place}]", *problem)
    for place, policy in _objects(entry.get("commandPolicies")):
        yield from command_policy_problems(f"{path}.commandPolicies[{place}]", policy)


def _path_entry(value: str) -> tuple[str, str] | None:
    if not (is_absolute(value, "posix") or is_absolute(value, "windows")):
        return f"{value!r} is not absolute", "entries are absolute directories or files"
    if value.endswith(("/*", "/**")):
        return f"{value!r} is a pattern", "an entry covers everything below it: leave the stars out"
    return None


def _command_entry(value: str) -> tuple[str, str] | None:
    if not value or value != value.strip() or any(character.isspace() for character in value.strip()):
        return f"{value!r} is not a program name", "use commandPolicies to judge arguments"
    return None


def _domain_entry(value: str) -> tuple[str, str] | None:
    from policy.urls import UrlProblem, canonical_domain

    try:
        canonical_domain(value)
    except UrlProblem as problem:
        return str(problem), "entries are example.com, *.example.com or an address"
    return None


_ENTRY_CHECKS: dict[str, Callable[[str], tuple[str, str] | None]] = {
    "allowedPaths": _path_entry,
    "blockedPaths": _path_entry,
    "allowedCommands": _command_entry,
    "blockedCommands": _command_entry,
    "allowedDomains": _domain_entry,
    "blockedDomains": _domain_entry,
}


def command_policy_problems(path: str, policy: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with an entry of commandPolicies beyond its types."""
    from policy import patterns

    command = policy.get("command")
    problem = _command_entry(command) if isinstance(command, str) else None
    if problem is not None:
        yield Problem(f"{path}.command", problem[0], "it is a program, its arguments have rules of their own")
    yield from _at_least(path, policy, {"maxArguments": 0})
    for place, rule in _objects(policy.get("arguments")):
        yield from _at_least(f"{path}.arguments[{place}]", rule, {"index": 0})
        pattern = rule.get("pattern")
        said = patterns.problem_of(pattern) if isinstance(pattern, str) else None
        if said is not None:
            yield Problem(f"{path}.arguments[{place}].pattern", f"{pattern!r} is not usable: {said}", patterns.HINT)


assert set(_ENTRY_CHECKS) <= set(json_names(Capability))  # noqa: S101  one home for the field names
