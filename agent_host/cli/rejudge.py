"""`agent-host policy rejudge SESSION --policy NEW`: what another policy would have said to the calls of a session."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.approval.display import one_line
from agent_host.cli import exit_codes
from agent_host.cli.policy import policy_and_place
from agent_host.cli.shared import anchored, state_dir_of
from agent_host.cli.streams import answer
from agent_host.errors import SessionNotFound, UsageError
from agent_host.events.kinds import EventType
from agent_host.events.sinks import run_logs
from agent_host.loop.secrets import NOT_KEPT
from agent_host.routing.trial import TrialCase, judge_case
from agent_host.thread.messages import decode
from state.errors import Damaged, InvalidSessionId, NoSuchSession, UnknownVersion, Untrusted, WriteFailed
from state.file_store import FileCheckpointStore
from state.locations import SessionPaths

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.thread.messages import ToolCall


class Rejudged(NamedTuple):
    """One call: what policy said then (None where it was not asked), and what it would say now."""

    call: ToolCall
    before: str | None
    now: str
    rule: str
    reason: str

    @property
    def differs(self) -> bool:
        """Whether the two decisions are not the same."""
        return self.before is not None and self.before != self.now

    def to_wire(self) -> dict[str, Any]:
        """A line of the list."""
        return {
            "toolCallId": self.call.call_id,
            "toolName": self.call.name,
            "before": self.before,
            "now": self.now,
            "rule": self.rule,
            "reason": self.reason,
            "changed": self.differs,
        }


def rejudge(namespace: argparse.Namespace) -> int:
    """Every call of the session in order; nothing is executed. The disk is asked as it is now."""
    paths = _paths(state_dir_of(namespace), namespace.session_id)
    thread, workspace = _recorded(paths)
    workspace = anchored(namespace.workspace, os.path.realpath) if namespace.workspace else workspace
    tried = policy_and_place(namespace, workspace)
    now = datetime.now(UTC)
    said = _decisions(paths)
    rows = []
    for call in _calls(thread):
        decision = judge_case(
            tried.bundle, TrialCase(call.name, call.arguments), tried.here, now=now, limits=tried.limits
        )
        rows.append(Rejudged(call, said.get(call.call_id), decision.decision, decision.rule, decision.reason))
    if namespace.output == "json":
        answer(orjson.dumps([row.to_wire() for row in rows], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(_lines(rows)))
    return exit_codes.COMPLETED


def _lines(rows: list[Rejudged]) -> Iterator[str]:
    for row in rows:
        if row.differs:
            shown = one_line(orjson.dumps(row.call.arguments).decode())
            yield f"{row.call.call_id}  {row.call.name} {shown}\n"
            yield f"  {row.before} → {row.now}: {one_line(row.reason)}\n  by {one_line(row.rule)}\n"
    changed = sum(row.differs for row in rows)
    yield f"{len(rows)} call{'' if len(rows) == 1 else 's'}, {changed} decided differently\n"


def _paths(state_dir: str, session_id: str) -> SessionPaths:
    try:
        return SessionPaths(state_dir, session_id)
    except InvalidSessionId as error:
        raise UsageError(str(error)) from error


def _recorded(paths: SessionPaths) -> tuple[list[bytes], str]:
    """The encoded thread and the workspace: of the checkpoint, else of what stayed of a session that has ended."""
    try:
        state = FileCheckpointStore(paths.state_dir).load(paths.session_id)
    except (NoSuchSession, Damaged, UnknownVersion, Untrusted, WriteFailed):
        return _of_ended(paths)
    return state.thread, str(state.identity.options.get("workspace", os.getcwd()))


def _of_ended(paths: SessionPaths) -> tuple[list[bytes], str]:
    try:
        with open(os.path.join(paths.artifacts, "session_history"), "rb") as handle:
            messages = orjson.loads(handle.read())
        with open(paths.result, "rb") as handle:
            workspace = str(orjson.loads(handle.read())["workspace"])
        return [orjson.dumps(message) for message in messages], workspace
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionNotFound(
            f"there is no session {paths.session_id} with its history on this disk; `agent-host sessions` lists all"
        ) from error


def _calls(thread: list[bytes]) -> Iterator[ToolCall]:
    """The calls of the model, in order; one whose arguments could not be read was never judged. What is kept of a call
    with a secret is judged with its placeholders."""
    for data in thread:
        if b'"toolCalls"' in data:
            yield from (call for call in decode(data).tool_calls if call.problem in {None, NOT_KEPT})


def _decisions(paths: SessionPaths) -> dict[str, str]:
    """Policy's word on each call, from the run log; of several the last."""
    found: dict[str, str] = {}
    for path in run_logs(paths.events):
        try:
            with open(path, "rb") as handle:
                for line in handle:
                    _note_decision(line, found)
        except OSError:
            continue
    return found


def _note_decision(line: bytes, found: dict[str, str]) -> None:
    try:
        event = orjson.loads(line)
        if event["eventType"] == EventType.TOOL_REQUESTED and "decision" in event["payload"]:
            found[str(event["payload"]["toolCallId"])] = str(event["payload"]["decision"])
    except (ValueError, TypeError, KeyError):
        return  # a line that a crash has cut
