"""Questions to a person (AH 10.1), and the reply for a machine when nobody can be asked (SK 4.2, 4.3)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import orjson

from agent_host.display_text import clip, one_line
from agent_host.ids import REPLAY_PREFIX
from config.lean_typing import NamedTuple
from state.records import ApprovalAnswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.approval.forms import Form

Scope = Literal["once", "task", "session"]
AnsweredBy = Literal["client", "command", "chat", "acp", "view"]
"""The face by which a person answered: the client that has the session (the terminal of `run` too), the commands
`approve` and `deny`, a chat, an editor, the local page."""

_MAX_DESCRIPTION_BYTES = 4096
_MAX_RISKS = 20


class ApprovalRequest(NamedTuple):
    """One call that waits for a person. `rule_id` names the bundle's rule, None if the capability has none.

    `summary` and `details` come from `agent_host.approval.details`: safe to show, bounded, without the secrets of this
    process. All other text is escaped and bounded by `to_payload`. `by_name`: only the name of the tool approves it in
    advance. `timeout_s` is the bundle's timeout, None if it has none. With a `form` the request is a question of an MCP
    server in the middle of a call: nothing answers it in advance, and an approval has the answers as its `arguments`.
    `replay` says how the call can be approved later if no person answers now (`replay_of`); it is empty for a form.
    """

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
    summary: str = ""
    details: Mapping[str, Any] = {}
    by_name: bool = False
    timeout_s: float | None = None
    form: Form | None = None
    replay: Mapping[str, Any] = {}

    @property
    def action_summary(self) -> str:
        """The call in one line, for people."""
        return self.summary or one_line(self.tool_name)

    def to_payload(self) -> dict[str, Any]:
        """The payload of `approval_requested`."""
        return {
            "approvalId": self.approval_id,
            "title": one_line(self.title),
            "description": clip(self.description, _MAX_DESCRIPTION_BYTES),
            "actionSummary": self.action_summary,
            "riskLevel": self.risk_level,
            "risks": [one_line(risk) for risk in self.risks[:_MAX_RISKS]],
            **({} if self.form is None else {"isQuestion": True}),
            "details": {"toolName": one_line(self.tool_name), "capability": self.capability, **self.details},
            **({"replay": dict(self.replay)} if self.replay else {}),
        }


class ApprovalAnswer(NamedTuple):
    """The answer to a request: `approved`, and the reason of a denial. `unattended` marks a denial because no person
    could be asked, `timed_out` one because no answer came in time.

    `scope` is the range of an approval: this call, the same call again in this task, or in this session. `arguments`
    are the person's edited arguments, None if the model's were approved unchanged; for a form they are its fields.
    `answered_by` is the interface that the person used, None without a question or an answer.
    """

    approved: bool
    reason: str
    unattended: bool = False
    scope: Scope = "once"
    timed_out: bool = False
    arguments: Mapping[str, Any] | None = None
    answered_by: AnsweredBy | None = None

    @property
    def is_denial(self) -> bool:
        """True if a person denied it, not only that no person was there to approve it."""
        return not (self.approved or self.unattended or self.timed_out)

    def to_record(self, call_id: str, approval_id: str, bound_to: str | None = None) -> ApprovalAnswered:
        """Return the record of the answer to this call; `bound_to` is what an approval is bound to (`exact_call`)."""
        arguments = None if self.arguments is None else dict(self.arguments)
        return ApprovalAnswered(
            call_id,
            approval_id,
            self.approved,
            self.scope,
            self.reason,
            self.unattended,
            self.timed_out,
            bound_to,
            arguments,
            self.answered_by,
        )

    @classmethod
    def from_record(cls, record: ApprovalAnswered) -> Self:
        """Return the answer that `to_record` recorded."""
        scope, answered_by = cast("Scope", record.scope), cast("AnsweredBy | None", record.answered_by)
        said = (record.approved, record.reason, record.unattended, scope, record.timed_out, record.arguments)
        return cls(*said, answered_by)


def replay_of(tool_name: str, arguments: Mapping[str, Any], *, session_id: str, approve: str) -> dict[str, Any]:
    """The means to approve a denied call after all: an id bound to the exact arguments, a command that runs exactly
    this call and lets the task continue, the call as JSON; `approve` is the option that approves its kind in
    advance."""
    replay_id = f"{REPLAY_PREFIX}{call_digest(tool_name, arguments)[:32]}"
    return {
        "id": replay_id,
        "approve": approve,
        "command": f"agent-host resume {session_id} --approve {replay_id}",
        "request": {"toolName": tool_name, "arguments": dict(arguments)},
    }


def call_digest(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """The identity of a call: sha256, in hex, of {toolName, arguments} as JSON with sorted keys."""
    call = {"toolName": tool_name, "arguments": dict(arguments)}
    return hashlib.sha256(orjson.dumps(call, option=orjson.OPT_SORT_KEYS)).hexdigest()
