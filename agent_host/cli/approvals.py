"""`agent-host approvals`, `approve` and `deny`: the open questions of all live sessions of a state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.display_text import escape, one_line
from agent_host.rpc import questions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

_WHO = {
    "client": "the client that has the session",
    "command": "a command",
    "chat": "a chat",
    "acp": "an editor",
    "view": "the local page",
}


def approvals(namespace: argparse.Namespace) -> int:
    """List the open questions; exit 1 where a live session does not say its own."""
    state_dir, problems = state_dir_of(namespace), _Problems()
    found = questions.open_questions(state_dir, problems.add)
    if namespace.output == "json":
        answer(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(map(_row, found)) or f"no open questions under {state_dir}\n")
    return exit_codes.FAILED if problems.any else exit_codes.COMPLETED


def approve(namespace: argparse.Namespace) -> int:
    """Approve an open question."""
    return _decide(namespace, {"decision": "approved", "scope": namespace.scope})


def deny(namespace: argparse.Namespace) -> int:
    """Deny an open question."""
    reason = {} if namespace.reason is None else {"reason": namespace.reason.encode("utf-8", "replace").decode()}
    return _decide(namespace, {"decision": "denied", **reason})


def _decide(namespace: argparse.Namespace, given: Mapping[str, Any]) -> int:
    state_dir, approval_id, problems = state_dir_of(namespace), namespace.approval_id, _Problems()
    told = questions.answer(state_dir, {"approvalId": approval_id, **given}, problems.add)
    shown = escape(approval_id, keep="")
    if told is None and problems.any:
        return exit_codes.FAILED
    if told is None:
        notice(f"error: no live session under {state_dir} asks {shown}: `agent-host approvals` lists what is open")
    elif told["status"] == "delivered":
        answer(f"{given['decision']} {shown}\n")
        return exit_codes.COMPLETED
    elif told["status"] == "form":
        notice(f"error: {shown} is a form of an MCP server, which only the client that has the session can answer")
    else:
        by = told.get("answeredBy")
        who = "nobody answered it in time" if by is None else f"by {_WHO.get(by, one_line(str(by)))}"
        notice(f"error: {shown} is {one_line(str(told['decision']))} already: {who}")
    return exit_codes.FAILED


def _row(row: Mapping[str, Any]) -> str:
    """One question for a person, in lines; the texts of `approval_requested` steer no terminal."""
    kind = " (a form: its client answers it)" if row.get("isQuestion") else ""
    head = f"{row['approvalId']}  {row['riskLevel']}  {row['title']}: {row['actionSummary']}{kind}"
    return f"{escape(head, keep='')}\n  session {row['sessionId']}, task {escape(str(row['taskId']), keep='')}\n"


class _Problems:
    """Sessions that did not answer, each told as it comes."""

    def __init__(self) -> None:
        self.any = False

    def add(self, line: str) -> None:
        """Tell one."""
        self.any = True
        notice(f"error: {one_line(line)}")
