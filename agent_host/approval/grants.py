"""What an approval is bound to: one exact call, or the action that a wider one is for (AH 10.2, SK 3.3). Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson

from policy.canonical import canonical_form
from policy.facts import CommandFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent_host.approval.request import ApprovalRequest, Scope
    from policy.facts import ActionFacts, OsFamily


def exact_call(tool_name: str, arguments: Mapping[str, Any], facts: ActionFacts, policy_hash: str) -> str:
    """What an approval of one call is bound to, as sha256 in hex: the arguments, the directory that a command runs in,
    and the policy that asked. `policy_hash` is that of `policy.canonical`."""
    return _digest(
        toolName=tool_name,
        arguments=dict(arguments),
        cwd=facts.cwd if isinstance(facts, CommandFacts) else None,
        policy=policy_hash,
    )


def same_action(
    tool_name: str,
    arguments: Mapping[str, Any],
    facts: ActionFacts,
    policy_hash: str,
    *,
    told_by_facts: frozenset[str | None],
    os: OsFamily,
) -> str:
    """What an approval for a task or a session is bound to, as sha256 in hex: the tool, what it acts on in one
    spelling, its other arguments, and the policy that asked.

    `told_by_facts` are the arguments that say on what it acts, and the one with the content that it writes to a file.
    """
    seen = told_by_facts | ({"cwd"} if isinstance(facts, CommandFacts) else set())
    return _digest(
        toolName=tool_name,
        form=canonical_form(facts, os),
        others={name: value for name, value in arguments.items() if name not in seen},
        policy=policy_hash,
    )


def grant_for(
    request: ApprovalRequest, scope: Scope, *, action: str, policy_bundle_version: str, granted_at: str
) -> dict[str, Any]:
    """The fields of the `grant` record that an approval of `request` leaves. `scope` is task or session; `action` is
    what `same_action` gives; `granted_at` is in RFC 3339."""
    return {
        "approvalId": request.approval_id,
        "scope": scope,
        "toolName": request.tool_name,
        "capability": request.capability,
        "action": request.action_summary,
        "actionHash": action,
        "policyBundleVersion": policy_bundle_version,
        "taskId": request.task_id,
        "grantedAt": granted_at,
    }


def covering(grants: Iterable[Mapping[str, Any]], *, action: str, task_id: str) -> str | None:
    """The approvalId of the first of `grants` that covers the `action`, None when it has to be asked for. One of scope
    task ends with its task; one that an earlier version recorded without an action covers nothing."""
    for grant in grants:
        in_scope = grant["scope"] == "session" or (grant["scope"] == "task" and grant["taskId"] == task_id)
        if in_scope and grant.get("actionHash") == action:
            return str(grant["approvalId"])
    return None


def _digest(**parts: Any) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
