"""The one function that every tool call passes first, and its sibling for LLM calls (AH 8.2, 8.6, 8.7).

A decision is made by an ordered table of rules: the first one that answers decides. A rule gets everything as values
and returns a denial, or None to let the next rule speak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from policy.decision import Decision
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, PathFacts, UrlFacts
from policy.names import READS_TOO, SIZED_CAPABILITIES
from policy.names import CapabilityName as Name
from policy.paths import (
    covering,
    is_absolute,
    is_share,
    is_under,
    normalize,
    problem_with,
    process_place,
    repository_place,
    roots,
)
from policy.risk import assess

if TYPE_CHECKING:
    from datetime import datetime

    from policy.bundle import Capability, PolicyBundle
    from policy.paths import Roots


PROCESS_RULE = "builtin.processPlaces"
REPOSITORY_RULE = "builtin.repositoryPlaces"


class Case(NamedTuple):
    """One question: may `entry` be used for `facts`?"""

    bundle: PolicyBundle
    entry: Capability
    facts: ActionFacts
    now: datetime
    os: OsFamily


_FACTS_OF: dict[str, tuple[type, ...]] = {
    Name.FILE_READ: (PathFacts,),
    Name.FILE_WRITE: (PathFacts,),
    Name.FILE_DELETE: (PathFacts,),
    Name.SHELL_EXEC: (CommandFacts,),
    Name.NETWORK_HTTP: (UrlFacts,),
    Name.WORKSPACE_UPLOAD: (PathFacts, NamedToolFacts),
    Name.BACKEND_TOOL_INVOKE: (NamedToolFacts,),
    Name.MCP_INVOKE: (NamedToolFacts,),
    Name.TOOL_INVOKE: (NamedToolFacts,),
}
"""What a capability is judged by: an upload by the file that goes, or by its tool's name. LLM.Call is no tool's."""


def check_tool(
    bundle: PolicyBundle,
    capability_name: str,
    facts: ActionFacts,
    *,
    now: datetime,
    os: OsFamily = "posix",
    workspace: str | None = None,
) -> Decision:
    """The verdict on one tool call (AH 8.2). Never raises for what the model can choose: what does not fit is DENIED.

    `now` is aware. `workspace` is the project directory, which only the risk level depends on.
    """
    entry = bundle.capability(capability_name)
    if entry is None or now >= bundle.expires_at:
        return _expired_or_not_granted(bundle, capability_name, now)
    if not isinstance(facts, _FACTS_OF.get(capability_name, ())):
        return denied(entry.name, where(entry), "the call's facts do not fit the capability")
    case = Case(bundle, entry, facts, now, os)
    granted_by = where(entry)
    for rule in _RULES[type(facts)]:
        answer = rule(case)
        if isinstance(answer, Decision):
            if answer.decision == "DENIED":
                return answer
            return _with_approval(case, workspace, answer)
        granted_by = answer or granted_by
    return _with_approval(case, workspace, Decision("ALLOWED", "granted", entry.name, granted_by))


def check_llm(bundle: PolicyBundle, *, model: str, now: datetime) -> Decision:
    """The verdict on one LLM request: expiry, the LLM.Call grant, the model (AH 8.7)."""
    entry = bundle.capability(Name.LLM_CALL)
    if entry is None or now >= bundle.expires_at:
        return _expired_or_not_granted(bundle, Name.LLM_CALL.value, now)
    if model not in bundle.llm_policy.allowed_models:
        return denied(entry.name, "llmPolicy.allowedModels", f"model not allowed: {model}")
    if entry.requires_approval:
        return approval_needed(entry, "low", ())
    return Decision("ALLOWED", "granted", entry.name, f"llmPolicy.allowedModels: {model}")


def denied(capability: str, rule: str, reason: str) -> Decision:
    """A denial by the entry `rule`."""
    return Decision("DENIED", reason, capability, rule)


def where(entry: Capability, list_name: str | None = None, value: object = None) -> str:
    """The JSON path of a capability, of one of its fields, or of one value in that."""
    path = f"capabilities[{entry.name}]" + (f".{list_name}" if list_name else "")
    return path if value is None else f"{path}: {value}"


def _expired_or_not_granted(bundle: PolicyBundle, name: str, now: datetime) -> Decision:
    if now >= bundle.expires_at:
        rule = f"expiresAt: {bundle.expires_at.isoformat()}"
        return denied(name, rule, "the policy bundle has expired")._replace(expired=True)
    return denied(name, "capabilities", f"capability not granted: {name}")


def _with_approval(case: Case, workspace: str | None, allowed: Decision) -> Decision:
    """Approval comes last: it never turns a denial into a question (AH 8.2 step 3)."""
    if not case.entry.requires_approval and allowed.decision == "ALLOWED":
        return allowed
    level, risks = assess(case.entry, case.facts, workspace=workspace, os=case.os)
    if case.entry.requires_approval:
        return approval_needed(case.entry, level, risks)
    return allowed._replace(risk_level=level, risks=(*allowed.risks, *risks))


def approval_needed(entry: Capability, level: str, risks: tuple[str, ...]) -> Decision:
    """The question that an entry wants asked."""
    return Decision(
        "APPROVAL_REQUIRED",
        "the capability requires approval",
        entry.name,
        where(entry, "requiresApproval", "true"),
        entry.approval_rule_id,
        level,  # type: ignore[arg-type]
        risks,
    )


# Files


def path_rules(case: Case) -> Decision | str | None:
    """Scope of File.* and uploads: blocked first, for the spelling and for the real place; allowed by the real place
    only."""
    entry, facts, os = case.entry, case.facts, case.os
    assert isinstance(facts, PathFacts)  # noqa: S101  the table of rules is keyed by this type
    for spelling in (facts.requested, facts.absolute, facts.real_path):
        problem = problem_with(spelling, os)
        if problem:
            return denied(entry.name, where(entry), problem)
    if not (is_absolute(facts.absolute, os) and is_absolute(facts.real_path, os)):
        return denied(entry.name, where(entry), f"not an absolute path: {facts.absolute}")
    real = normalize(facts.real_path, os)
    if entry.blocked_paths:
        for place in dict.fromkeys((normalize(facts.absolute, os), real)):
            blocked = _blocking(case, place)
            if blocked is not None:
                return denied(entry.name, where(entry, "blockedPaths", blocked), f"path is blocked: {place}")
            if entry.allowed_paths is None and is_share(place, os):
                reason = f"a share may be a blocked path under another name, and no allowed path names it: {place}"
                return denied(entry.name, where(entry, "blockedPaths"), reason)
    if entry.allowed_paths is None:
        return None
    admitted = covering(real, _root_table(case, "allowed"), os, "narrow")
    if admitted is None:
        return denied(entry.name, where(entry, "allowedPaths"), f"path not in allowed paths: {real}")
    return where(entry, "allowedPaths", admitted)


def _blocking(case: Case, place: str) -> str | None:
    """A block entry that is not absolute can't be matched against anything, so it refuses everything instead of
    protecting nothing."""
    table = _root_table(case, "blocked")
    return covering(place, table, case.os, "wide") if table.relative is None else table.relative


def _root_table(case: Case, which: str) -> Roots:
    """The look-up table of one path list, made once per bundle."""
    memo_key = (case.entry.name, which, case.os)
    table: Roots | None = case.bundle.memo.get(memo_key)
    if table is None:
        entries = (case.entry.allowed_paths if which == "allowed" else case.entry.blocked_paths) or ()
        table = case.bundle.memo[memo_key] = roots(entries, case.os, "narrow" if which == "allowed" else "wide")
    return table


def process_places(case: Case) -> Decision | str | None:
    """/proc shows the secrets of processes and leads anywhere, so being inside a wider allowed path is not enough:
    a place there must be inside an allowed path that is there itself."""
    facts, entry = case.facts, case.entry
    assert isinstance(facts, PathFacts)  # noqa: S101
    for path in (facts.requested, facts.absolute, facts.real_path):
        place = process_place(path, case.os)
        if place is None:
            continue
        named = (one for one in entry.allowed_paths or () if is_under(one, place, case.os))
        if not any(is_under(path, one, case.os) for one in named):
            return denied(entry.name, f"{PROCESS_RULE}: {place}", f"path is in {place}, which no allowed path names")
    return None


def repository_places(case: Case) -> Decision | str | None:
    """What decides which programs git runs is not changed through an allowed path that was meant for the files of a
    project: in whichever repository it is, an allowed path has to name its `.git`."""
    facts, entry = case.facts, case.entry
    assert isinstance(facts, PathFacts)  # noqa: S101
    if entry.name not in _CHANGING:
        return None
    for path in (normalize(facts.absolute, case.os), normalize(facts.real_path, case.os)):
        place = repository_place(path, entry.allowed_paths, case.os)
        if place is not None:
            reason = f"{path} says which programs git runs, and no allowed path names its .git"
            return denied(entry.name, f"{REPOSITORY_RULE}: {place}", reason)
    return None


_CHANGING = frozenset({Name.FILE_WRITE.value, Name.FILE_DELETE.value})
_UNCHANGEABLE = {"directory": "a directory", "other": "not a regular file"}


def file_kind(case: Case) -> Decision | str | None:
    """Only regular files are written or deleted: no directories, devices, pipes or sockets."""
    assert isinstance(case.facts, PathFacts)  # noqa: S101
    if case.entry.name in _CHANGING and case.facts.kind in _UNCHANGEABLE:
        what = _UNCHANGEABLE[case.facts.kind]
        return denied(case.entry.name, where(case.entry), f"{case.facts.absolute} is {what}")
    return None


def file_size(case: Case) -> Decision | str | None:
    """maxFileSizeBytes: the present size for a read or an upload, the size to be for a write."""
    assert isinstance(case.facts, PathFacts)  # noqa: S101
    limit = case.entry.max_file_size_bytes
    if limit is None or case.entry.name not in SIZED_CAPABILITIES:
        return None
    is_write = case.entry.name == Name.FILE_WRITE
    size = case.facts.new_size_bytes if is_write else case.facts.size_bytes
    if case.entry.name == Name.FILE_DELETE or size is None or size <= limit:
        return None
    rule = where(case.entry, "maxFileSizeBytes", limit)
    return denied(case.entry.name, rule, f"file exceeds size limit: {size} > {limit} bytes")


def readable_too(case: Case) -> Decision | str | None:
    """What is uploaded has been read: what File.Read denies or asks about is denied or asked about here."""
    if case.entry.name not in READS_TOO:
        return None
    answer = check_tool(case.bundle, Name.FILE_READ, case.facts, now=case.now, os=case.os)
    return None if answer.allowed else answer


# Everything else


def command_rules(case: Case) -> Decision | str | None:
    """Scope of Shell.Exec; the parser is only loaded when a command has to be judged."""
    from policy.shell_check import judge

    return judge(case)


def url_rules(case: Case) -> Decision | str | None:
    """Scope of Network.Http: spelling, blocked domains, allowed domains, then addresses that are not public."""
    from policy import urls

    entry, facts = case.entry, case.facts
    assert isinstance(facts, UrlFacts)  # noqa: S101

    try:
        host = urls.host_of(facts.url)
    except urls.UrlProblem as problem:
        return denied(entry.name, where(entry), str(problem))
    blocked_table = _domain_table(case, "blocked")
    blocked = blocked_table.get("") or urls.matching_rule(host, blocked_table)
    if blocked is not None:
        return denied(entry.name, where(entry, "blockedDomains", blocked), f"domain is blocked: {host}")
    admitted = None
    if entry.allowed_domains is not None:
        admitted = urls.matching_rule(host, _domain_table(case, "allowed"))
        if admitted is None:
            return denied(entry.name, where(entry, "allowedDomains"), f"domain not allowed: {host}")
    # A local name or address that is listed as such was meant; one that is merely not excluded was not.
    named = admitted is not None and not admitted.startswith("*")
    addresses = (host, *facts.resolved_addresses) if urls.is_address(host) else facts.resolved_addresses
    local = urls.is_local_name(host) or not all(map(urls.address_is_public, addresses))
    if local and not named:
        return denied(entry.name, where(entry), f"not a public address: {host}")
    return None if admitted is None else where(entry, "allowedDomains", admitted)


def _domain_table(case: Case, which: str) -> dict[str, str]:
    memo_key = (case.entry.name, which, "domains")
    table: dict[str, str] | None = case.bundle.memo.get(memo_key)
    if table is None:
        from policy.urls import domain_rules

        entries = case.entry.allowed_domains if which == "allowed" else case.entry.blocked_domains
        table = case.bundle.memo[memo_key] = domain_rules(entries or ())
    return table


def tool_name(case: Case) -> Decision | str | None:
    """allowedToolNames, exact."""
    assert isinstance(case.facts, NamedToolFacts | PathFacts)  # noqa: S101
    names, name = case.entry.allowed_tool_names, case.facts.tool_name
    if names is None or name is None:
        return None
    if name not in names:
        return denied(case.entry.name, where(case.entry, "allowedToolNames"), f"tool not allowed: {name}")
    return where(case.entry, "allowedToolNames", name)


Rule = Callable[[Case], Decision | str | None]
"""A denial; a decision of another capability that asks for approval; the entry that admits; or nothing to say."""

_RULES: dict[type, tuple[Rule, ...]] = {
    PathFacts: (path_rules, process_places, repository_places, file_kind, file_size, tool_name, readable_too),
    CommandFacts: (command_rules,),
    UrlFacts: (url_rules,),
    NamedToolFacts: (tool_name,),
}
