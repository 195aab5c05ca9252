"""Inner door: what another policy would have said to the calls of a session."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.api.dry_runs import policy_to_try
from agent_host.api.options import anchored
from agent_host.api.recorded_calls import decisions, edited_arguments, recorded
from agent_host.app.sandboxing import Level
from agent_host.errors import UsageError
from agent_host.thread.messages import ToolCall
from policy.scope import LEVELS
from state.errors import InvalidSessionId
from state.locations import SessionPaths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.decision import Decision
    from policy.scope import SandboxLevel

NOT_ON_RECORD = "the arguments that it ran with are not on record"


class Rejudged(NamedTuple):
    """One call as the model made it, or the form that the person who approved it gave it.

    `before` is what policy said then, None where it was not asked; `now` what it would say now, None for a form whose
    arguments are not on record. `level` is the one that commands of the session were held at.
    """

    call: ToolCall
    before: str | None
    now: Decision | None
    edited: bool = False
    level: SandboxLevel = "none"

    @property
    def differs(self) -> bool:
        """True if the two decisions are not the same."""
        return self.before is not None and self.now is not None and self.before != self.now.decision

    def to_wire(self) -> dict[str, Any]:
        """A line of the list."""
        row: dict[str, Any] = {
            "toolCallId": self.call.call_id,
            "toolName": self.call.name,
            "before": self.before,
            "now": None if self.now is None else self.now.decision,
            "rule": None if self.now is None else self.now.rule,
            "reason": NOT_ON_RECORD if self.now is None else self.now.reason,
            "changed": self.differs,
        }
        if self.now is not None and self.now.command_scope is not None:
            row["commandScope"] = self.now.command_scope.to_wire(self.level)
        return row | {"edited": True} if self.edited else row


def rejudged_calls(
    flags: Mapping[str, Any], *, session_id: str, workspace: str | None, state_dir: str
) -> list[Rejudged]:
    """Every call of the session in order, under the policy of `host.policy` in `flags`; nothing is executed.

    The disk is asked as it is now, in `workspace`, by default the session's. A call that was edited when it was
    approved is judged in both its forms, each beside what policy said to that form. Raises UsageError,
    SessionNotFound, PolicyBundleInvalid.
    """
    paths = _paths(state_dir, session_id)
    record = recorded(paths)
    root = anchored(workspace, os.path.realpath) if workspace else record.workspace
    level = record.started.get("sandbox", LEVELS[0])
    tried = policy_to_try(flags, workspace=root, state_dir=state_dir, session_id=session_id, level=Level(level, level))
    now = datetime.now(UTC)
    asked, edited = decisions(paths)
    ran_with = edited_arguments(record, edited)
    rows = []
    for call in record.calls():
        said = asked.get(call.call_id)
        decision = tried.judge(call.name, call.arguments, now, level)
        rows.append(Rejudged(call, None if said is None else said.decision, decision, level=level))
        if call.call_id in ran_with:
            then = edited.get(call.call_id)
            arguments = ran_with[call.call_id]
            form = call if arguments is None else ToolCall(call.call_id, call.name, arguments)
            changed = None if arguments is None else tried.judge(form.name, form.arguments, now, level)
            rows.append(Rejudged(form, None if then is None else then.decision, changed, edited=True, level=level))
    return rows


def _paths(state_dir: str, session_id: str) -> SessionPaths:
    try:
        return SessionPaths(state_dir, session_id)
    except InvalidSessionId as error:
        raise UsageError(str(error)) from error
