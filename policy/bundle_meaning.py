"""What the values of a bundle must be beyond their types. Reads the raw shape, so it can speak beside type errors."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from policy.bundle import Capability, json_names
from policy.names import ALL_CAPABILITIES, SCHEMA_VERSION
from policy.paths import is_absolute
from policy.problems import Problem, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


def meaning(shape: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with the values of a bundle's JSON shape, whose types may be wrong as well."""
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
        yield Problem(f"{path}.name", f"{name!r} is not a capability", nearest(name, ALL_CAPABILITIES))
    rule = entry.get("approvalRuleId")
    if isinstance(rule, str) and rule not in rules:
        hint = nearest(rule, rules) if rules else "approvalRules is empty"
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
