"""Approvals that reach further than one call: what is kept of them, and which calls they cover. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.approval.request import call_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent_host.approval.request import ApprovalRequest, Scope


def grant_for(request: ApprovalRequest, scope: Scope, *, policy_bundle_version: str, granted_at: str) -> dict[str, Any]:
    """The fields of the `grant` record that an approval of `request` leaves. `scope` is task or session; `granted_at`
    is in RFC 3339."""
    return {
        "approvalId": request.approval_id,
        "scope": scope,
        "toolName": request.tool_name,
        "capability": request.capability,
        "argumentsHash": call_digest(request.tool_name, request.arguments),
        "policyBundleVersion": policy_bundle_version,
        "taskId": request.task_id,
        "grantedAt": granted_at,
    }


def covering(
    grants: Iterable[Mapping[str, Any]],
    *,
    tool_name: str,
    arguments: Mapping[str, Any],
    task_id: str,
    policy_bundle_version: str,
) -> str | None:
    """The approvalId of the first of `grants` that covers the call, None when it has to be asked for.

    A grant is for one tool with exactly these arguments, under the bundle that it was given under: another bundle may
    ask for other reasons. One of scope task ends with its task.
    """
    wanted = (tool_name, call_digest(tool_name, arguments), policy_bundle_version)
    for grant in grants:
        in_scope = grant["scope"] == "session" or (grant["scope"] == "task" and grant["taskId"] == task_id)
        if in_scope and wanted == (grant["toolName"], grant["argumentsHash"], grant["policyBundleVersion"]):
            return str(grant["approvalId"])
    return None
