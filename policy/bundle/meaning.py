"""What the values of a bundle must be beyond their types. Reads the raw shape, so it can speak beside type errors."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from policy import patterns
from policy.bundle.entry_meaning import (
    at_least,
    list_problems,
    objects,
    rule_problems,
    scope_problems,
    tool_policy_problems,
)
from policy.bundle.problems import Problem, nearest
from policy.names import ALL_CAPABILITIES, ANY_SESSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.bundle.entry_meaning import EntryChecks

RFC3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
SESSION_ID = r"[A-Za-z0-9_-]{1,128}"
"""What a session may be called: it names files (AH 9)."""
SERVER_NAME = r"[A-Za-z0-9_.-]{1,64}"
"""What an MCP server may be called: its tools are `server/tool`."""
_TOKENS = dict.fromkeys(("maxInputTokens", "maxOutputTokens", "maxSessionTokens"), 1)
_SERVER_NEEDS = {"stdio": ("command", "url"), "http": ("url", "command")}
"""By transport: the field that says where the server is, and the one of the other transport."""


def meaning(
    shape: dict[str, Any], *, checks: EntryChecks | None = None, more_rules: tuple[str, ...] = ()
) -> Iterator[Problem]:
    """What is wrong with the values of a bundle's JSON shape, whose types may be wrong as well. `checks` are those of
    the wire for the entries of lists unless others are given; `more_rules` are approval rules that stand elsewhere."""
    yield from _top(shape)
    yield from _llm_policy(shape.get("llmPolicy"))
    rules = objects(shape.get("approvalRules"))
    yield from _unique("approvalRules", rules, "approvalRuleId")
    for place, rule in rules:
        yield from _empty(f"approvalRules[{place}]", rule, "approvalRuleId", "capabilities refer to it")
    entries = objects(shape.get("capabilities"))
    yield from _unique("capabilities", entries, "name")
    known_rules = tuple(rule["approvalRuleId"] for _, rule in rules if isinstance(rule.get("approvalRuleId"), str))
    for place, entry in entries:
        yield from _capability(f"capabilities[{place}]", entry, (*known_rules, *more_rules), checks)
    servers = objects(shape.get("mcpServers"))
    yield from _unique("mcpServers", servers, "name")
    for place, server in servers:
        yield from _server(f"mcpServers[{place}]", server)
    redactions = objects(shape.get("redactionRules"))
    yield from _unique("redactionRules", redactions, "redactionRuleId")
    for place, rule in redactions:
        yield from _redaction_rule(f"redactionRules[{place}]", rule)


def _top(shape: dict[str, Any]) -> Iterator[Problem]:
    if shape.get("schemaVersion", SCHEMA_VERSION) != SCHEMA_VERSION:
        yield Problem("schemaVersion", f"{shape['schemaVersion']!r} is not known", f'must be "{SCHEMA_VERSION}"')
    yield from _empty("", shape, "policyBundleVersion", "it stands in decisions and audit")
    if "expiresAt" in shape and not _is_moment(shape["expiresAt"]):
        yield Problem("expiresAt", "must be an RFC 3339 time with a zone", "such as 2026-01-31T12:00:00Z")
    session = shape.get("sessionId")
    if isinstance(session, str) and session != ANY_SESSION and not re.fullmatch(SESSION_ID, session):
        said = "is empty" if not session else f"{session!r} names no session"
        yield Problem("sessionId", said, "1 to 128 of A-Z a-z 0-9 _ -, or '*' for any session")


def _empty(path: str, shape: dict[str, Any], field: str, hint: str) -> Iterator[Problem]:
    if shape.get(field) == "":
        yield Problem(f"{path}.{field}" if path else field, "is empty", hint)


def _server(path: str, server: dict[str, Any]) -> Iterator[Problem]:
    """What a server needs follows its transport."""
    name = server.get("name")
    if isinstance(name, str) and not re.fullmatch(SERVER_NAME, name):
        yield Problem(f"{path}.name", f"{name!r} names no server", "1 to 64 of A-Z a-z 0-9 _ - .")
    transport = str(server.get("transport"))
    if transport not in _SERVER_NEEDS:
        return
    needed, other = _SERVER_NEEDS[transport]
    if server.get(needed) in (None, ""):
        yield Problem(f"{path}.{needed}", f"is needed for transport {transport}")
    if server.get(other) is not None:
        yield Problem(f"{path}.{other}", f"means nothing for transport {transport}", f"it has {needed}")
    url = server.get("url")
    if transport == "http" and isinstance(url, str) and url and not re.match(r"(?i)https?://", url):
        yield Problem(f"{path}.url", f"{url!r} is not an http or https URL")


def _redaction_rule(path: str, rule: dict[str, Any]) -> Iterator[Problem]:
    if rule.get("redactionRuleId") == "":
        yield Problem(f"{path}.redactionRuleId", "is empty", "it stands in the placeholders")
    pattern = rule.get("pattern")
    try:
        if isinstance(pattern, str):
            patterns.rule_pattern(pattern)
    except patterns.UnusablePattern as error:
        yield Problem(f"{path}.pattern", f"{pattern!r} is not usable: {error}", patterns.HINT)


def _is_moment(value: Any) -> bool:
    try:
        return bool(isinstance(value, str) and re.fullmatch(RFC3339, value) and datetime.fromisoformat(value.upper()))
    except ValueError:
        return False


def _llm_policy(policy: Any) -> Iterator[Problem]:
    if not isinstance(policy, dict):
        return
    if policy.get("allowedModels") == []:
        yield Problem("llmPolicy.allowedModels", "is empty", "name at least one model")
    models = policy.get("allowedModels")
    for place, model in enumerate(models if isinstance(models, (list, tuple)) else []):
        if model == "":
            yield Problem(f"llmPolicy.allowedModels[{place}]", "is empty", "name a model, such as claude-sonnet-4-5")
    yield from at_least("llmPolicy", policy, _TOKENS, "a number of tokens, such as 200000")


def _unique(path: str, items: list[tuple[int, dict[str, Any]]], field: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for place, item in items:
        name = item.get(field)
        if isinstance(name, str) and first.setdefault(name, place) != place:
            yield Problem(
                f"{path}[{place}].{field}", f"{name!r} stands at {path}[{first[name]}] already", "merge the two"
            )


def _capability(
    path: str, entry: dict[str, Any], rules: tuple[str, ...], checks: EntryChecks | None
) -> Iterator[Problem]:
    name = entry.get("name")
    if isinstance(name, str) and name not in ALL_CAPABILITIES:
        yield Problem(f"{path}.name", f"{name!r} is not a capability", nearest(name, ALL_CAPABILITIES))
    rule = entry.get("approvalRuleId")
    if isinstance(rule, str):
        yield from rule_problems(path, rule, rules)
    yield from at_least(path, entry, {"maxFileSizeBytes": 0, "maxOutputBytes": 0}, "leave it out for no limit")
    yield from scope_problems(path, entry)
    yield from list_problems(path, entry, checks)
    of_tools = objects(entry.get("toolPolicies"))
    yield from _unique(f"{path}.toolPolicies", of_tools, "tool")
    for place, policy in of_tools:
        yield from tool_policy_problems(f"{path}.toolPolicies[{place}]", policy, rules)
