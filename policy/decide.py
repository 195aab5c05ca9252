"""Decisions about tool calls: every call passes this function first (AH 8.2, 8.6).

`RULES` is the only order in which anything may deny a call. The loop, `policy check`, dry runs and a repeated decision
after a wait all run it, so they cannot disagree. A rule reads one `Case`, which contains everything as values (policy
does no I/O and reads no clock), and the decision so far. It returns that decision or a stricter one: no rule can lift a
denial, because the first denial ends the run.

A call that needs several capabilities is decided under each, and the strictest decision counts. Only two checks are
outside of the table. Withheld tools are denied before facts are gathered, and the sandbox is checked after the
strictest decision, because a call has one process however many capabilities it needs (`agent_host.judging.decisions`).

Traps: approval comes after all denials of the bundle, because a person must not be asked about a call that cannot run;
task options and ceilings come after approval, because they may deny a call that would need approval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy import FOLLOW_COMMANDS, READ_SKILLS, Decision, strictest, urls
from policy import CapabilityName as Name
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, OutputFacts, PathFacts, UrlFacts
from policy.rules import (
    NO_TERMS,
    CallTerms,
    Case,
    Rule,
    approval_needed,
    deny,
    expiry_denial,
    not_granted,
    where,
)
from policy.rules.commands import command_rules
from policy.rules.narrowing import apply_risk_ceiling, apply_task_options, assess, require_guarded_approval
from policy.rules.native_exec import apply_program_list, apply_program_roots, apply_script_rules
from policy.rules.paths import (
    file_kind,
    file_size,
    path_rules,
    process_places,
    readable_too,
    repository_places,
    session_places,
)
from policy.rules.skills import apply_skill_limits
from policy.rules.toolset import apply_delegation, asking_rule, entry_for_tool, judge_identity, judge_name
from policy.urls import address_is_public

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from policy.bundle import PolicyBundle


def decide(
    bundle: PolicyBundle,
    needs: Iterable[tuple[str, ActionFacts]],
    *,
    now: datetime,
    os: OsFamily = "posix",
    workspace: str | None = None,
    terms: CallTerms = NO_TERMS,
) -> Decision:
    """Return the verdict on one call (AH 8.2). Raises nothing for input of the model: invalid input is DENIED.

    `needs` are the capabilities that the call needs, at least one, each with its facts. `now` is aware. `workspace` is
    the project directory, which only the risk level depends on.
    """
    cases = (case_of(bundle, name, facts, now=now, os=os, workspace=workspace, terms=terms) for name, facts in needs)
    return strictest(list(map(_run_rules, cases)))


def check_tool(
    bundle: PolicyBundle,
    capability_name: str,
    facts: ActionFacts,
    *,
    now: datetime,
    os: OsFamily = "posix",
    workspace: str | None = None,
) -> Decision:
    """Return the bundle's decision on one capability, without a task's options and limits."""
    return _run_rules(case_of(bundle, capability_name, facts, now=now, os=os, workspace=workspace))


def case_of(
    bundle: PolicyBundle,
    capability: str,
    facts: ActionFacts,
    *,
    now: datetime,
    os: OsFamily = "posix",
    workspace: str | None = None,
    terms: CallTerms = NO_TERMS,
) -> Case:
    """The question whether a call may use one capability for these facts."""

    def judge(other: str, other_facts: ActionFacts) -> Decision:
        return check_tool(bundle, other, other_facts, now=now, os=os)

    return Case(bundle, capability, bundle.capability(capability), facts, os, now, workspace, terms, judge)


def _run_rules(case: Case) -> Decision:
    decision = Decision("ALLOWED", "granted", case.capability, f"capabilities[{case.capability}]")
    for rule in RULES:
        decision = rule(case, decision)
        if decision.decision == "DENIED":
            break
    return decision


def not_expired(case: Case, decision: Decision) -> Decision:
    """Deny if the bundle has expired, which pauses the session (AH 8.6)."""
    return expiry_denial(case.bundle, case.capability, case.now) or decision


def require_grant(case: Case, decision: Decision) -> Decision:
    """The bundle grants the capability (AH 8.1)."""
    return not_granted(case.capability) if case.granted is None else decision


_FACTS_OF: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys((Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE), (PathFacts,)),
    Name.SHELL_EXEC: (CommandFacts,),
    Name.NETWORK_HTTP: (UrlFacts,),
    Name.WORKSPACE_UPLOAD: (PathFacts, NamedToolFacts),
    **dict.fromkeys((Name.BACKEND_TOOL_INVOKE, Name.MCP_INVOKE, Name.TOOL_INVOKE), (NamedToolFacts,)),
}
"""The kinds of facts that each capability is judged by: an upload by the file that goes, or by its tool's name.
LLM.Call is no tool's."""


def apply_grant(case: Case, decision: Decision) -> Decision:
    """The lists of the grant admit paths, command, URL or name: the rules for the kind of facts, in their order."""
    entry, facts = case.entry, case.facts
    reason = _why_it_follows(case)
    if reason is not None:
        answer = judge_name(entry, facts.tool_name) if isinstance(facts, OutputFacts) else None
        return answer if isinstance(answer, Decision) else decision._replace(reason=reason)
    if not isinstance(facts, _FACTS_OF.get(case.capability, ())):
        return deny(entry.name, where(entry), "the call's facts do not fit the capability")
    granted_by = where(entry)
    for rule in _RULES_OF_FACTS[type(facts)]:
        answer = rule(case, facts)
        if isinstance(answer, Decision):
            return answer
        granted_by = answer or granted_by
    granted = "granted"
    if isinstance(facts, UrlFacts) and not facts.resolved_addresses and not urls.is_address(urls.host_of(facts.url)):
        granted = "granted by the host's name; its addresses are judged when it connects"
    return decision._replace(reason=granted, rule=granted_by)


def _why_it_follows(case: Case) -> str | None:
    """Why a call follows from one that was judged, and approved if necessary, before; None for any other."""
    facts = case.facts
    if isinstance(facts, OutputFacts):
        return "an allowed call of this session stored it"
    if not isinstance(facts, NamedToolFacts):
        return None
    if case.capability == Name.SHELL_EXEC and facts.tool_name in FOLLOW_COMMANDS:
        return "it acts on a command of this session"
    if case.capability == Name.FILE_READ and facts.tool_name in READ_SKILLS:
        # The user has put the skill there, or it is a file of the workspace, which the call reads within its scope.
        return "it reads a skill"
    return None


def require_approval(case: Case, decision: Decision) -> Decision:
    """Require a person's approval if the grant does (AH 8.2 step 3)."""
    if _why_it_follows(case) is not None:
        return decision
    entry = entry_for_tool(case.entry, case.facts.tool_name) if isinstance(case.facts, NamedToolFacts) else case.entry
    if not entry.requires_approval and decision.decision == "ALLOWED":
        return decision
    level, risks = assess(entry, case.facts, workspace=case.workspace, os=case.os)
    if entry.requires_approval:
        asked = approval_needed(entry, level, risks)
        if isinstance(case.facts, NamedToolFacts):
            return asked._replace(rule=asking_rule(case.entry, case.facts.tool_name))
        return asked
    return decision._replace(risk_level=level, risks=(*decision.risks, *risks))


def tool_name(case: Case, facts: NamedToolFacts | PathFacts) -> Decision | str | None:
    """allowedToolNames."""
    if isinstance(facts, NamedToolFacts) and facts.identity is not None:
        return judge_identity(case.entry, facts, facts.identity)
    return None if facts.tool_name is None else judge_name(case.entry, facts.tool_name)


def url_rules(case: Case, facts: UrlFacts) -> Decision | str | None:
    """Scope of Network.Http (AH 8.2): spelling, blocked domains, allowed domains, then addresses that are not public.
    No name is looked up here, no redirect followed."""
    entry = case.entry
    try:
        host, port = urls.target_of(facts.url)
    except urls.UrlProblem as problem:
        return deny(entry.name, where(entry), str(problem))
    shown = urls.host_and_port(facts.url)
    blocked = urls.blocking_rule(host, _domain_table(case, "blocked"), port)
    if blocked is not None:
        return deny(entry.name, where(entry, "blockedDomains", blocked), f"domain is blocked: {shown}")
    admitted = None
    if entry.allowed_domains is not None:
        admitted = urls.matching_rule(host, _domain_table(case, "allowed"), port)
        if admitted is None:
            return deny(entry.name, where(entry, "allowedDomains"), f"domain not allowed: {shown}")
    # A local name or address that is listed as such was meant; one that is merely not excluded was not.
    named = admitted is not None and not admitted.startswith("*")
    if (urls.is_local_name(host) or (urls.is_address(host) and not address_is_public(host))) and not named:
        return deny(entry.name, where(entry), f"not a public address: {host}")
    refused = _address_problem(case, facts, host, port, trusted=named)
    return refused or (None if admitted is None else where(entry, "allowedDomains", admitted))


def _address_problem(case: Case, facts: UrlFacts, host: str, port: int, *, trusted: bool) -> Decision | None:
    """A denial for one of the addresses that a name has, as the tool denies it when it connects: one that is not public
    has to be named itself, unless the name that is listed is a local one."""
    entry = case.entry
    for address in facts.resolved_addresses:
        try:
            canonical = urls.canonical_domain(address)
        except urls.UrlProblem:
            return deny(entry.name, where(entry), f"{host} has an address that cannot be read: {address}")
        blocked = urls.blocking_rule(canonical, _domain_table(case, "blocked"), port)
        if blocked is not None:
            return deny(entry.name, where(entry, "blockedDomains", blocked), f"address of {host} is blocked: {address}")
        if address_is_public(address) or (trusted and (urls.is_local_name(host) or urls.is_address(host))):
            continue
        own = urls.matching_rule(canonical, _domain_table(case, "allowed"), port) if trusted else None
        if own is None or own.startswith("*"):
            return deny(entry.name, where(entry), f"not a public address: {host}")
    return None


def _domain_table(case: Case, which: str) -> dict[str, str]:
    entries = case.entry.allowed_domains if which == "allowed" else case.entry.blocked_domains
    return case.bundle.remember((case.entry.name, which, "domains"), lambda: urls.domain_rules(entries or ()))


_RULES_OF_FACTS: Final[dict[type, tuple[Rule, ...]]] = {
    PathFacts: (
        path_rules,
        process_places,
        repository_places,
        session_places,
        file_kind,
        file_size,
        tool_name,
        readable_too,
    ),
    CommandFacts: (command_rules,),
    UrlFacts: (url_rules,),
    NamedToolFacts: (tool_name,),
}

RULES: Final[tuple[Callable[[Case, Decision], Decision], ...]] = (
    not_expired,
    apply_delegation,
    require_grant,
    apply_script_rules,
    apply_program_list,
    apply_grant,
    require_approval,
    require_guarded_approval,
    apply_task_options,
    apply_skill_limits,
    apply_risk_ceiling,
    apply_program_roots,
)
