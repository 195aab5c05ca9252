"""What a person is asked (AH 10.1), and what a machine gets instead when nobody can be asked (SK 4.2, 4.3)."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope = Literal["once", "task", "session"]


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that waits for a person. `rule_id` names the bundle's rule, None where the capability has none."""

    approval_id: str
    session_id: str
    task_id: str
    step_id: str
    tool_name: str
    capability: str
    arguments: Mapping[str, Any]
    title: str
    description: str
    rule_id: str | None
    risk_level: str
    risks: tuple[str, ...]

    @property
    def action_summary(self) -> str:
        """The call in one line, control characters escaped, cut where it gets long."""
        shown = orjson.dumps(dict(self.arguments)).decode()
        return f"{self.tool_name} {shown}" if len(shown) <= 200 else f"{self.tool_name} {shown[:200]}…"

    @property
    def approve(self) -> str:
        """What `--approve` takes to approve calls of this kind in advance."""
        return self.rule_id or self.tool_name

    def to_payload(self) -> dict[str, Any]:
        """The payload of `approval_requested`."""
        return {
            "approvalId": self.approval_id,
            "title": self.title,
            "description": self.description,
            "actionSummary": self.action_summary,
            "riskLevel": self.risk_level,
            "risks": list(self.risks),
            "details": {"toolName": self.tool_name, "capability": self.capability},
        }


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """`approved`, and why not where it is not. `unattended` marks a denial because nobody could be asked.

    `scope` says how far an approval reaches: this call, the same call again in this task, or in this session.
    """

    approved: bool
    reason: str
    unattended: bool = False
    scope: Scope = "once"

    def to_record(self) -> dict[str, Any]:
        """The answer as it stands in an `approval` record: {approved, scope, reason, unattended?}."""
        fields: dict[str, Any] = {"approved": self.approved, "scope": self.scope, "reason": self.reason}
        if self.unattended:
            fields["unattended"] = True
        return fields

    @classmethod
    def from_record(cls, fields: Mapping[str, Any]) -> Self:
        """The answer that `to_record` wrote. Raises KeyError for what is none."""
        return cls(fields["approved"], fields["reason"], fields.get("unattended", False), fields["scope"])


def replay_of(tool_name: str, arguments: Mapping[str, Any], *, prompt: str, approve: str) -> dict[str, Any]:
    """How to have a denied call approved another time: an id bound to the exact arguments, the option that approves its
    kind in advance, a command that gives it, and the call as JSON."""
    return {
        "id": f"replay_{call_digest(tool_name, arguments)[:32]}",
        "approve": approve,
        "command": f"agent-host run {shlex.quote(prompt)} --approve {shlex.quote(approve)}",
        "request": {"toolName": tool_name, "arguments": dict(arguments)},
    }


def call_digest(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """What makes two calls the same call: sha256, in hex, of {toolName, arguments} as JSON with sorted keys."""
    call = {"toolName": tool_name, "arguments": dict(arguments)}
    return hashlib.sha256(orjson.dumps(call, option=orjson.OPT_SORT_KEYS)).hexdigest()
