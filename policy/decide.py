"""The one function that every tool call passes first (AH 8.2, 8.6).

A decision is made by an ordered table of rules: the first one that answers decides. A rule gets everything as values
and returns a denial, or None to let the next rule speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.decision import Decision
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, OutputFacts, PathFacts, UrlFacts
from policy.names import FOLLOW_COMMANDS, READ_SKILLS
from policy.names import CapabilityName as Name
from policy.rules.case import Case, Rule, approval_needed, denied, expired_or_not_granted, where
from policy.rules.commands import command_rules
from policy.rules.named_tools import asking_rule, for_tool, judge_identity, judge_name, listed_as
from policy.rules.paths import (
    file_kind,
    file_size,
    path_rules,
    process_places,
    readable_too,
    repository_places,
    session_places,
)
from policy.rules.risk import assess
from policy.rules.urls import granted_reason, url_rules

if TYPE_CHECKING:
    from datetime import datetime

    from policy.bundle.model import Capability, PolicyBundle


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
"""What a capability is judged by: an upload by the file that goes, or by its tool's name. LLM.Call is no tool's.
What follows a command of the session needs no facts but its tool's name (`FOLLOW_COMMANDS`)."""


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
        return expired_or_not_granted(bundle, capability_name, now)
    if capability_name == Name.SHELL_EXEC and isinstance(facts, NamedToolFacts) and facts.tool_name in FOLLOW_COMMANDS:
        # Its line was judged, and approved where it had to be, when it started.
        return Decision("ALLOWED", "it acts on a command of this session", entry.name, where(entry))
    if capability_name == Name.FILE_READ and isinstance(facts, NamedToolFacts) and facts.tool_name in READ_SKILLS:
        # The user has put the skill there, or it is a file of the workspace, which the call reads within its scope.
        return Decision("ALLOWED", "it reads a skill", entry.name, where(entry))
    if isinstance(facts, OutputFacts):
        return _stored_output(entry, facts)
    if not isinstance(facts, _FACTS_OF.get(capability_name, ())):
        return denied(entry.name, where(entry), "the call's facts do not fit the capability")

    def judge(other: str, other_facts: ActionFacts) -> Decision:
        return check_tool(bundle, other, other_facts, now=now, os=os)

    case = Case(bundle, entry, facts, os, judge)
    granted_by = where(entry)
    for rule in _RULES[type(facts)]:
        answer = rule(case)
        if isinstance(answer, Decision):
            if answer.decision == "DENIED":
                return answer
            return _with_approval(case, workspace, answer)
        granted_by = answer or granted_by
    reason = granted_reason(facts) if isinstance(facts, UrlFacts) else "granted"
    return _with_approval(case, workspace, Decision("ALLOWED", reason, entry.name, granted_by))


def _stored_output(entry: Capability, facts: OutputFacts) -> Decision:
    """Its call was judged, and approved where it had to be, when it ran; what it gave may be read as long as the bundle
    grants such a call."""
    if entry.allowed_tool_names is not None and listed_as(entry, facts.tool_name) is None:
        return denied(entry.name, where(entry, "allowedToolNames"), f"tool not allowed: {facts.tool_name}")
    return Decision("ALLOWED", "an allowed call of this session stored it", entry.name, where(entry))


def _with_approval(case: Case, workspace: str | None, allowed: Decision) -> Decision:
    """Approval comes last: it never turns a denial into a question (AH 8.2 step 3)."""
    entry = for_tool(case.entry, case.facts.tool_name) if isinstance(case.facts, NamedToolFacts) else case.entry
    if not entry.requires_approval and allowed.decision == "ALLOWED":
        return allowed
    level, risks = assess(entry, case.facts, workspace=workspace, os=case.os)
    if entry.requires_approval:
        asked = approval_needed(entry, level, risks)
        if isinstance(case.facts, NamedToolFacts):
            return asked._replace(rule=asking_rule(case.entry, case.facts.tool_name))
        return asked
    return allowed._replace(risk_level=level, risks=(*allowed.risks, *risks))


def tool_name(case: Case) -> Decision | str | None:
    """allowedToolNames."""
    assert isinstance(case.facts, NamedToolFacts | PathFacts)  # noqa: S101
    if isinstance(case.facts, NamedToolFacts) and case.facts.identity is not None:
        return judge_identity(case.entry, case.facts, case.facts.identity)
    return None if case.facts.tool_name is None else judge_name(case.entry, case.facts.tool_name)


_RULES: dict[type, tuple[Rule, ...]] = {
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
