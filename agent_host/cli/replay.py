"""`agent-host replay SESSION_ID`: a recorded session run again, to see whether it still does the same; and
`agent-host policy rejudge SESSION`: the decisions of another policy on the calls of a session."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.policy import policy_only
from agent_host.cli.shared import sandbox_in_words, state_dir_of
from agent_host.cli.streams import answer
from agent_host.display_text import count_noun, one_line
from agent_host.errors import UsageError
from agent_host.host.replay import NOT_ON_RECORD, rejudge_calls, replay_session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.host.replay import Rejudged, Replayed

_NEEDS_A_PLACE = (
    "replay runs the session's commands and writes again: name the directory for that with --workspace, such as a "
    "fresh copy of the project"
)


def replay(namespace: argparse.Namespace) -> int:
    """`replay`: exit code 0 where all calls are as they were, else 1."""
    if namespace.workspace is None:
        raise UsageError(_NEEDS_A_PLACE)
    gc.enable()
    flags = {"host.policy": namespace.policy} if namespace.policy is not None else {}
    done = asyncio.run(
        replay_session(
            flags,
            session_id=namespace.session_id,
            workspace=namespace.workspace,
            state_dir=state_dir_of(namespace),
        )
    )
    if namespace.output == "json":
        answer(orjson.dumps(_wire(done), option=orjson.OPT_APPEND_NEWLINE))
    else:
        answer(_text(done))
    return exit_codes.COMPLETED if done.difference is None else exit_codes.FAILED


def _wire(done: Replayed) -> dict[str, object]:
    difference = None if done.difference is None else done.difference.to_wire()
    row: dict[str, object] = {"calls": done.calls, "difference": difference, "ended": done.ended}
    if done.before is not None or done.now is not None:
        row["sandbox"] = {"before": done.before, "now": done.now}
    if done.refusals:
        row["refusals"] = [one.to_wire() for one in done.refusals]
    return row


def _text(done: Replayed) -> str:
    return f"{_compare(done)}{_sandbox(done)}"


def _sandbox(done: Replayed) -> str:
    """Describe the sandbox of commands now, and where that is not as it was; what it denied to each call."""
    if done.now is None:
        return ""
    lines = [sandbox_in_words(done.now).rstrip("\n")]
    if done.before is not None and done.before["level"] != done.now["level"]:
        lines.append(f"  on record they ran at the level {one_line(done.before['level'])}")
    for one in done.refusals:
        head = f"call {one.number}, {one_line(one.tool_name)}"
        if one.grant is not None:
            lines.append(f"{head}: asked of the sandbox: {one_line(orjson.dumps(one.grant).decode())}")
        lines += [
            f"{head}: {one_line(denial)}{'' if denial in one.before else ' (not on record)'}" for denial in one.now
        ]
        lines += [f"{head}: on record, and not now: {one_line(gone)}" for gone in one.before if gone not in one.now]
    return "".join(f"{line}\n" for line in lines)


def _compare(done: Replayed) -> str:
    calls = count_noun(done.calls, "call")
    ended = f"a task ended otherwise: {one_line(done.ended)}\n" if done.ended else ""
    found = done.difference
    if found is None:
        return f"{ended}{calls}, all as on record\n"
    if found.what == "call":
        return f"{ended}{calls}; call {found.number}, {found.tool_name}, was not made\n"
    was = f"{found.what}: {found.before} on record, {found.now or 'not judged: there is no such tool'} now"
    return f"{ended}{calls}; the first difference is call {found.number}, {one_line(found.tool_name)}\n  {was}\n"


def rejudge(namespace: argparse.Namespace) -> int:
    """`policy rejudge`: those calls that would be decided differently, or with `--output json` all of them."""
    rows = rejudge_calls(
        policy_only(namespace),
        session_id=namespace.session_id,
        workspace=namespace.workspace,
        state_dir=state_dir_of(namespace),
    )
    if namespace.output == "json":
        answer(orjson.dumps([row.to_wire() for row in rows], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(_lines(rows)))
    return exit_codes.COMPLETED


def _lines(rows: list[Rejudged]) -> Iterator[str]:
    for row in rows:
        form = ", as it was approved" if row.edited else ""
        if row.now is None:
            yield f"{row.call.call_id}  {row.call.name}{form}\n  {NOT_ON_RECORD}\n"
        elif row.differs:
            shown = one_line(orjson.dumps(row.call.arguments).decode())
            yield f"{row.call.call_id}  {row.call.name}{form} {shown}\n"
            yield f"  {row.before} → {row.now.decision}: {one_line(row.now.reason)}\n  by {one_line(row.now.rule)}\n"
    edited = sum(row.edited for row in rows)
    calls = len(rows) - edited
    changed = sum(row.differs for row in rows)
    forms = f", {edited} edited" if edited else ""
    yield f"{count_noun(calls, 'call')}{forms}, {changed} decided differently\n"
