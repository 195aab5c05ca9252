"""Checks of a bundle's values beyond their types, on the raw shape, so that they also work if types are wrong."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from policy import ALL_CAPABILITIES, ANY_SESSION, SCHEMA_VERSION, patterns, words
from policy import CapabilityName as Name
from policy.bundle import BundleProblem, Capability, members, nearest
from policy.paths import is_absolute, normalize, split_nested
from policy.urls import UrlProblem, canonical_domain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from policy.facts import OsFamily

    EntryChecks = Mapping[str, Callable[[str], tuple[str, str] | None]]


RFC3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
SESSION_ID = r"[A-Za-z0-9_-]{1,128}"
"""Valid ids of a session; they name files (AH 9)."""
APPROVAL_TIMEOUT_S = (0.01, 604_800)
"""The shortest and the longest time that an approval may be waited for, in seconds."""
SERVER_NAME = r"[A-Za-z0-9_.-]{1,64}"
"""Valid names of an MCP server; its tools are `server/tool`."""
_TOKENS = dict.fromkeys(("maxInputTokens", "maxOutputTokens", "maxSessionTokens"), 1)
_SERVER_NEEDS = {"stdio": ("command", "url"), "http": ("url", "command")}
"""By transport: the field with the server's address, and the one of the other transport."""


def meaning(
    shape: dict[str, Any], *, checks: EntryChecks | None = None, more_rules: tuple[str, ...] = ()
) -> Iterator[BundleProblem]:
    """Find the problems in the values of a bundle's JSON shape, whose types may be wrong as well. `checks` are by
    default those of the wire for the entries of lists; `more_rules` are approval rules from elsewhere."""
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


def _top(shape: dict[str, Any]) -> Iterator[BundleProblem]:
    if shape.get("schemaVersion", SCHEMA_VERSION) != SCHEMA_VERSION:
        yield BundleProblem("schemaVersion", f"{shape['schemaVersion']!r} is not known", f'must be "{SCHEMA_VERSION}"')
    yield from _empty("", shape, "policyBundleVersion", "it is used in decisions and audit")
    if "expiresAt" in shape and not _is_moment(shape["expiresAt"]):
        yield BundleProblem("expiresAt", "must be an RFC 3339 time with a zone", "such as 2026-01-31T12:00:00Z")
    session = shape.get("sessionId")
    if isinstance(session, str) and session != ANY_SESSION and not re.fullmatch(SESSION_ID, session):
        problem = "is empty" if not session else f"{session!r} names no session"
        yield BundleProblem("sessionId", problem, "1 to 128 of A-Z a-z 0-9 _ -, or '*' for any session")
    wait, (low, high) = shape.get("approvalTimeoutS"), APPROVAL_TIMEOUT_S
    if isinstance(wait, int | float) and not isinstance(wait, bool) and not low <= wait <= high:
        yield BundleProblem("approvalTimeoutS", f"{wait} is not between {low} and {high}", "seconds, such as 300")
    sandbox = shape.get("sandbox")
    if isinstance(sandbox, dict) and sandbox.get("allowOff") is True:
        for field in ("required", "minimumLevel"):
            if sandbox.get(field):
                yield BundleProblem("sandbox.allowOff", f"is the opposite of {field}", "leave one of the two out")


def _empty(path: str, shape: dict[str, Any], field: str, hint: str) -> Iterator[BundleProblem]:
    if shape.get(field) == "":
        yield BundleProblem(f"{path}.{field}" if path else field, "is empty", hint)


def _server(path: str, server: dict[str, Any]) -> Iterator[BundleProblem]:
    """Problems of a server entry; its required fields depend on the transport."""
    name = server.get("name")
    if isinstance(name, str) and not re.fullmatch(SERVER_NAME, name):
        yield BundleProblem(f"{path}.name", f"{name!r} names no server", "1 to 64 of A-Z a-z 0-9 _ - .")
    transport = str(server.get("transport"))
    if transport not in _SERVER_NEEDS:
        return
    needed, other = _SERVER_NEEDS[transport]
    if server.get(needed) in (None, ""):
        yield BundleProblem(f"{path}.{needed}", f"is needed for transport {transport}")
    if server.get(other) is not None:
        yield BundleProblem(f"{path}.{other}", f"means nothing for transport {transport}", f"it has {needed}")
    url = server.get("url")
    if transport == "http" and isinstance(url, str) and url and not re.match(r"(?i)https?://", url):
        yield BundleProblem(f"{path}.url", f"{url!r} is not an http or https URL")


def _redaction_rule(path: str, rule: dict[str, Any]) -> Iterator[BundleProblem]:
    yield from _empty(path, rule, "redactionRuleId", "it is used in the placeholders")
    pattern = rule.get("pattern")
    try:
        if isinstance(pattern, str):
            patterns.rule_pattern(pattern)
    except patterns.UnusablePattern as error:
        yield BundleProblem(f"{path}.pattern", f"{pattern!r} is not usable: {error}", patterns.HINT)


def _is_moment(value: Any) -> bool:
    try:
        return bool(isinstance(value, str) and re.fullmatch(RFC3339, value) and datetime.fromisoformat(value.upper()))
    except ValueError:
        return False


def _llm_policy(policy: Any) -> Iterator[BundleProblem]:
    if not isinstance(policy, dict):
        return
    models = policy.get("allowedModels")
    if models == []:
        yield BundleProblem("llmPolicy.allowedModels", "is empty", "name at least one model")
    for place, model in enumerate(models if isinstance(models, (list, tuple)) else []):
        if model == "":
            path = f"llmPolicy.allowedModels[{place}]"
            yield BundleProblem(path, "is empty", "name a model, such as claude-sonnet-4-5")
    yield from check_least("llmPolicy", policy, _TOKENS, "a number of tokens, such as 200000")


def _unique(path: str, items: list[tuple[int, dict[str, Any]]], field: str) -> Iterator[BundleProblem]:
    first: dict[str, int] = {}
    for place, item in items:
        name = item.get(field)
        if isinstance(name, str) and first.setdefault(name, place) != place:
            problem = f"{name!r} is already at {path}[{first[name]}]"
            yield BundleProblem(f"{path}[{place}].{field}", problem, "merge the two")


def _capability(
    path: str, entry: dict[str, Any], rules: tuple[str, ...], checks: EntryChecks | None
) -> Iterator[BundleProblem]:
    name = entry.get("name")
    if isinstance(name, str) and name not in ALL_CAPABILITIES:
        yield BundleProblem(f"{path}.name", f"{name!r} is not a capability", nearest(name, ALL_CAPABILITIES))
    rule = entry.get("approvalRuleId")
    if isinstance(rule, str):
        yield from rule_problems(path, rule, rules)
    yield from check_least(path, entry, {"maxFileSizeBytes": 0, "maxOutputBytes": 0}, "leave it out for no limit")
    yield from scope_problems(path, entry)
    yield from list_problems(path, entry, checks)
    of_tools = objects(entry.get("toolPolicies"))
    yield from _unique(f"{path}.toolPolicies", of_tools, "tool")
    for place, policy in of_tools:
        yield from tool_policy_problems(f"{path}.toolPolicies[{place}]", policy, rules)


# Valid entries of a capability's lists, and its meaningful fields (AH 8.2).

_PATHS = words("allowedPaths blockedPaths")
SCOPES: dict[str, frozenset[str]] = {
    **dict.fromkeys((Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE), _PATHS),
    Name.SHELL_EXEC: words("allowedCommands blockedCommands commandPolicies allowedVariables"),
    Name.NETWORK_HTTP: words("allowedDomains blockedDomains"),
    Name.WORKSPACE_UPLOAD: _PATHS | {"allowedToolNames"},
    Name.BACKEND_TOOL_INVOKE: words("allowedToolNames toolPolicies insteadOf"),
    Name.MCP_INVOKE: words("allowedToolNames toolPolicies"),
    Name.TOOL_INVOKE: words("allowedToolNames toolPolicies"),
    Name.LLM_CALL: frozenset(),
}
"""The lists that restrict each capability. Any other list would look like a limit and be none."""
SCOPE_FIELDS: tuple[str, ...] = tuple(one for one in members(Capability) if any(one in it for it in SCOPES.values()))
SENT_ELSEWHERE: tuple[str, ...] = (
    Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE, Name.SHELL_EXEC, Name.NETWORK_HTTP, Name.TOOL_INVOKE,
)  # fmt: skip
HARMLESS_EMPTY = words(
    "allowedVariables blockedPaths blockedCommands blockedDomains commandPolicies toolPolicies insteadOf"
)
"""Lists that restrict nothing when they are empty: those that write every field down may write these everywhere."""

VARIABLE_NAME = "[A-Za-z_][A-Za-z0-9_]*"
CONTROLS = r"\x00-\x1f\x7f-\x9f"
"""Characters that no name of a path or program may have, for use in a regex class."""
NO_PROGRAM = "*?;|&<>$`\"'(){}"
"""Characters that mean something to a shell, or to those who hope for a pattern."""
CONTROL = re.compile(f"[{CONTROLS}]")
_BRACKETS = words("[ [[ ]]")
_WHOLE = "an entry covers everything below it: leave the stars out"
_NESTED = "a name at any depth below ROOT is written ROOT/**/NAME, and only NAME may begin with a star"


def scope_problems(path: str, entry: dict[str, Any]) -> Iterator[BundleProblem]:
    """Lists that restrict nothing, since calls of this capability are not judged by them."""
    name = entry.get("name")
    if not isinstance(name, str) or name not in SCOPES:
        return
    known = SCOPES[name]
    for field in SCOPE_FIELDS:
        value = entry.get(field)
        if field in known or value is None or (field in HARMLESS_EMPTY and value in ([], ())):
            continue
        meant = [other for other in ALL_CAPABILITIES if field in SCOPES[other]]
        limits = ", ".join(one for one in members(Capability) if one in known)
        hint = f"{name} has {limits}" if limits else f"it is for {', '.join(meant)}"
        yield BundleProblem(f"{path}.{field}", f"restricts nothing in {name}", hint)


def list_problems(path: str, entry: dict[str, Any], checks: EntryChecks | None = None) -> Iterator[BundleProblem]:
    """Problems in the entries of a capability's lists; `checks` are those of the wire unless others are given."""
    for field, check in (checks or ENTRY_CHECKS).items():
        values = entry.get(field)
        for place, value in enumerate(values if isinstance(values, (list, tuple)) else []):
            problem = check(value) if isinstance(value, str) else None
            if problem is not None:
                yield BundleProblem(f"{path}.{field}[{place}]", *problem)
    for place, policy in objects(entry.get("commandPolicies")):
        yield from command_policy_problems(f"{path}.commandPolicies[{place}]", policy)


def objects(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """The objects in a list with their places; none if it is not a list."""
    items = value if isinstance(value, (list, tuple)) else []
    return [(place, item) for place, item in enumerate(items) if isinstance(item, dict)]


def is_whole(value: Any) -> bool:
    """True for what JSON Schema calls an integer, 1.0 included."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def check_least(path: str, shape: dict[str, Any], least: dict[str, int], hint: str) -> Iterator[BundleProblem]:
    """The whole numbers of `shape` that are below their bounds."""
    for name, bound in least.items():
        value = shape.get(name)
        if value is not None and is_whole(value) and value < bound:
            yield BundleProblem(f"{path}.{name}", f"must be at least {bound}", hint)


def path_entry(value: str) -> tuple[str, str] | None:
    """The problem with an absolute path of a list, and a hint."""
    if CONTROL.search(value):
        return f"{value!r} has control characters", "no path is written with them"
    if not (is_absolute(value, "posix") or is_absolute(value, "windows")):
        return f"{value!r} is not absolute", "entries are absolute directories or files"
    return None


def _check_allowed_path(value: str) -> tuple[str, str] | None:
    if {"*", "**"}.isdisjoint(_parts(value)) or path_entry(value):
        return path_entry(value)
    return f"{value!r} is a pattern", f"{_WHOLE}; ROOT/**/NAME is for blockedPaths" if _is_nested(value) else _WHOLE


def _check_blocked_path(value: str) -> tuple[str, str] | None:
    """Reject a star before a name if it has no meaning, because the place would be unprotected."""
    parts = _parts(value)
    starred = [part.startswith("*") for part in parts]
    if not any(starred) or path_entry(value):
        return path_entry(value)
    if _is_nested(value) and not any(starred[:-2]):
        return None
    return f"{value!r} is a pattern", _WHOLE if parts[-1] in {"*", "**"} else _NESTED


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"[\\/]", path) if part]


def _is_nested(value: str) -> bool:
    os: OsFamily = "posix" if is_absolute(value, "posix") else "windows"
    return split_nested(normalize(value, os), os) is not None


def command_entry(value: str) -> tuple[str, str] | None:
    """The problem with a program of a list, and a hint."""
    if not value or any(character.isspace() for character in value):
        return f"{value!r} is not a program name", "use commandPolicies to judge arguments"
    if CONTROL.search(value):
        return f"{value!r} has control characters", "no program is named with them"
    if not set(NO_PROGRAM if value in _BRACKETS else NO_PROGRAM + "[]").isdisjoint(value):
        return f"{value!r} is not a program name", "entries are compared as they are, not as patterns or lines"
    return None


def _domain_entry(value: str) -> tuple[str, str] | None:
    try:
        canonical_domain(value)
    except UrlProblem as problem:
        host, _, port = value.rpartition(":")
        if host and port.isdecimal():
            return str(problem), "a port is a number from 1 to 65535: example.com:8080, 127.0.0.1:8080, [::1]:8080"
        return str(problem), "entries are example.com, *.example.com or an address"
    return None


def _tool_entry(value: str) -> tuple[str, str] | None:
    if not value or CONTROL.search(value) or any(character.isspace() for character in value):
        return f"{value!r} is not the name of a tool", "entries are names, or patterns such as server/*"
    return None


def _variable_entry(value: str) -> tuple[str, str] | None:
    if re.fullmatch(VARIABLE_NAME, value):
        return None
    return f"{value!r} is not the name of a variable", "letters, digits and _, such as NODE_ENV"


def _check_delegated(value: str) -> tuple[str, str] | None:
    if value in SENT_ELSEWHERE:
        return None
    return f"{value!r} has no tools that could run there", f"these have: {', '.join(SENT_ELSEWHERE)}"


ENTRY_CHECKS: EntryChecks = {
    "allowedToolNames": _tool_entry,
    "insteadOf": _check_delegated,
    "allowedPaths": _check_allowed_path,
    "blockedPaths": _check_blocked_path,
    "allowedCommands": command_entry,
    "blockedCommands": command_entry,
    "allowedDomains": _domain_entry,
    "blockedDomains": _domain_entry,
    "allowedVariables": _variable_entry,
}
"""By the name of a list: the problem of one of its entries, and a hint."""


def command_policy_problems(path: str, policy: dict[str, Any]) -> Iterator[BundleProblem]:
    """Problems of an entry of commandPolicies beyond its types."""
    command = policy.get("command")
    problem = command_entry(command) if isinstance(command, str) else None
    if problem is not None:
        yield BundleProblem(f"{path}.command", problem[0], "it is a program, its arguments have rules of their own")
    yield from check_least(path, policy, {"maxArguments": 0}, "0 stands for none")
    most = policy.get("maxArguments")
    for place, rule in objects(policy.get("arguments")):
        yield from _argument_problems(f"{path}.arguments[{place}]", rule, most)


def _argument_problems(path: str, rule: dict[str, Any], most: Any) -> Iterator[BundleProblem]:
    yield from check_least(path, rule, {"index": 0}, "0 is the first argument")
    index = rule.get("index")
    if is_whole(index) and is_whole(most) and 0 <= most <= index:
        yield BundleProblem(f"{path}.index", f"is beyond maxArguments, {int(most)}", "0 is the first argument")
    pattern = rule.get("pattern")
    if pattern is None and rule.get("enum") is None:
        yield BundleProblem(path, "has no rule for the argument", 'give a pattern or an enum; "(?s).*" fits anything')
    problem = patterns.problem_of(pattern) if isinstance(pattern, str) else None
    if problem is not None:
        yield BundleProblem(f"{path}.pattern", f"{pattern!r} is not usable: {problem}", patterns.HINT)


def tool_policy_problems(path: str, policy: dict[str, Any], rules: tuple[str, ...]) -> Iterator[BundleProblem]:
    """Problems of an entry of toolPolicies beyond its types; `rules` are the ids of the approval rules."""
    tool = policy.get("tool")
    problem = _tool_entry(tool) if isinstance(tool, str) else None
    if problem is not None:
        yield BundleProblem(f"{path}.tool", *problem)
    rule = policy.get("approvalRuleId")
    if isinstance(rule, str):
        yield from rule_problems(path, rule, rules)
    if isinstance(rule, str) and policy.get("requiresApproval") is not True:
        yield BundleProblem(f"{path}.approvalRuleId", "means nothing without an approval", "add requiresApproval: true")
    if all(policy.get(name) is None for name in ("requiresApproval", "repeatable")):
        yield BundleProblem(path, "has no rule for the tool", "give requiresApproval, repeatable, or both")


def rule_problems(path: str, rule: str, rules: tuple[str, ...]) -> Iterator[BundleProblem]:
    """Problems of an approvalRuleId."""
    if rule not in rules:
        hint = nearest(rule, rules) if rules else "approvalRules is empty"
        yield BundleProblem(f"{path}.approvalRuleId", f"{rule!r} is not in approvalRules", hint)


assert set(ENTRY_CHECKS) <= set(SCOPE_FIELDS)  # noqa: S101  one home for the field names
