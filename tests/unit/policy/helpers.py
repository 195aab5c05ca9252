"""Bundles and facts in few words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from policy.bundle import PolicyBundle, bundle_from_trusted
from policy.decide import case_of, check_tool
from policy.facts import ActionFacts, CommandFacts, OsFamily, PathFacts, ShellName, UrlFacts
from policy.rules import CallTerms, Case
from policy.shell import parse, paths_in_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy import Decision

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def bundle_json(*capabilities: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "policyBundleVersion": "2026-01-01.00000000",
        "schemaVersion": "1.0",
        "tenantId": "t",
        "userId": "u",
        "sessionId": "s1",
        "expiresAt": "2026-01-02T00:00:00Z",
        "capabilities": list(capabilities),
        "llmPolicy": {
            "allowedModels": ["m"],
            "maxInputTokens": 200_000,
            "maxOutputTokens": 16_384,
            "maxSessionTokens": 1_000_000,
        },
        "approvalRules": [],
        **fields,
    }


def bundle(*capabilities: dict[str, Any], **fields: Any) -> PolicyBundle:
    return bundle_from_trusted(bundle_json(*capabilities, **fields))


def shell(
    command: str,
    *,
    files: bool = True,
    links: dict[str, str] | None = None,
    cwd: str = "/w",
    shell_name: ShellName = "bash",
    **shell_fields: Any,
) -> str:
    """The verdict on a command line, with File.Read and File.Write of /w granted; `links` maps spellings elsewhere."""
    grants = [{"name": "File.Read", "allowedPaths": ["/w"]}, {"name": "File.Write", "allowedPaths": ["/w"]}]
    held = bundle({"name": "Shell.Exec", **shell_fields}, *(grants if files else []))
    spellings = paths_in_line(parse(command, shell_name), cwd, "/home/u")
    real = {one: (links or {}).get(one, one) for one in spellings}
    facts = CommandFacts(command, cwd=cwd, home="/home/u", shell=shell_name, real_paths=real)
    return check_tool(held, "Shell.Exec", facts, now=NOW).decision


def apply(
    rule: Callable[[Case, Decision], Decision],
    decision: Decision,
    held: PolicyBundle,
    facts: ActionFacts,
    *,
    workspace: str | None = None,
    os: OsFamily = "posix",
    **terms: Any,
) -> Decision:
    """One rule of the table on a decision, as the table runs it: a denial is final."""
    if decision.decision == "DENIED":
        return decision
    terms_of_call = CallTerms(**terms)
    case = case_of(held, decision.capability, facts, now=NOW, os=os, workspace=workspace, terms=terms_of_call)
    return rule(case, decision)


def path(absolute: str, real: str | None = None, **facts: Any) -> PathFacts:
    return PathFacts(requested=absolute, absolute=absolute, real_path=real or absolute, **facts)


def url(text: str, *addresses: str) -> UrlFacts:
    return UrlFacts(text, resolved_addresses=addresses)
