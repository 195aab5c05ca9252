"""`agent-host policy rejudge SESSION --policy NEW`: what another policy would have said to the calls of a session."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.app.launches import anchored
from agent_host.app.tools import BUILT_IN
from agent_host.approval.display import one_line
from agent_host.cli import exit_codes
from agent_host.cli.policy import policy_and_place
from agent_host.cli.recorded_calls import decisions, edited_arguments, recorded
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer
from agent_host.errors import UsageError
from agent_host.routing.dry_run import DryRunCase, judge_case
from agent_host.thread.messages import ToolCall
from state.errors import InvalidSessionId
from state.locations import SessionPaths

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.cli.policy import Tried
    from policy.decision import Decision


class Rejudged(NamedTuple):
    """One call as the model made it, or the form that the person who approved it gave it: what policy said then (None
    where it was not asked), and what it would say now (None for a form whose arguments are not on record)."""

    call: ToolCall
    before: str | None
    now: Decision | None
    edited: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two decisions are not the same."""
        return self.before is not None and self.now is not None and self.before != self.now.decision

    def to_wire(self) -> dict[str, Any]:
        """A line of the list."""
        row: dict[str, Any] = {
            "toolCallId": self.call.call_id,
            "toolName": self.call.name,
            "before": self.before,
            "now": None if self.now is None else self.now.decision,
            "rule": None if self.now is None else self.now.rule,
            "reason": _NOT_ON_RECORD if self.now is None else self.now.reason,
            "changed": self.differs,
        }
        return row | {"edited": True} if self.edited else row


_NOT_ON_RECORD = "the arguments that it ran with are not on record"


def rejudge(namespace: argparse.Namespace) -> int:
    """Every call of the session in order; nothing is executed. The disk is asked as it is now. A call that was edited
    when it was approved is judged in both its forms, each beside what policy said to that form."""
    paths = _paths(state_dir_of(namespace), namespace.session_id)
    record = recorded(paths)
    workspace = anchored(namespace.workspace, os.path.realpath) if namespace.workspace else record.workspace
    tried = policy_and_place(namespace, workspace, namespace.session_id)
    now = datetime.now(UTC)
    asked, edited = decisions(paths)
    ran_with = edited_arguments(record, edited)
    rows = []
    for call in record.calls():
        said = asked.get(call.call_id)
        rows.append(Rejudged(call, None if said is None else said.decision, _judged(tried, call, now)))
        if call.call_id in ran_with:
            then = edited.get(call.call_id)
            arguments = ran_with[call.call_id]
            form = call if arguments is None else ToolCall(call.call_id, call.name, arguments)
            decision = None if arguments is None else _judged(tried, form, now)
            rows.append(Rejudged(form, None if then is None else then.decision, decision, edited=True))
    if namespace.output == "json":
        answer(orjson.dumps([row.to_wire() for row in rows], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(_lines(rows)))
    return exit_codes.COMPLETED


def _judged(tried: Tried, call: ToolCall, now: datetime) -> Decision:
    return judge_case(
        tried.bundle, DryRunCase(call.name, call.arguments), tried.here, BUILT_IN, now=now, limits=tried.limits
    )


def _lines(rows: list[Rejudged]) -> Iterator[str]:
    for row in rows:
        form = ", as it was approved" if row.edited else ""
        if row.now is None:
            yield f"{row.call.call_id}  {row.call.name}{form}\n  {_NOT_ON_RECORD}\n"
        elif row.differs:
            shown = one_line(orjson.dumps(row.call.arguments).decode())
            yield f"{row.call.call_id}  {row.call.name}{form} {shown}\n"
            yield f"  {row.before} → {row.now.decision}: {one_line(row.now.reason)}\n  by {one_line(row.now.rule)}\n"
    edited = sum(row.edited for row in rows)
    calls = len(rows) - edited
    changed = sum(row.differs for row in rows)
    forms = f", {edited} edited" if edited else ""
    yield f"{calls} call{'' if calls == 1 else 's'}{forms}, {changed} decided differently\n"


def _paths(state_dir: str, session_id: str) -> SessionPaths:
    try:
        return SessionPaths(state_dir, session_id)
    except InvalidSessionId as error:
        raise UsageError(str(error)) from error
