"""Runs of recorded sessions: `agent-host replay SESSION_ID` compares a new run with the recording; `agent-host policy
rejudge SESSION` shows the decisions of another policy on its calls; and `agent-host cost-check` compares the current
cost of recordings with a baseline."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from typing import TYPE_CHECKING

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.outputs import OutputFile, check_no_overlap
from agent_host.cli.policy import policy_only
from agent_host.cli.shared import answer_in, sandbox_in_words, settings_of_options, state_dir_of
from agent_host.display_text import count_noun, escape, one_line
from agent_host.errors import UsageError
from agent_host.host.own_policy import NOT_ON_RECORD, rejudge_calls
from agent_host.host.records import session_id_of
from agent_host.host.replay import baseline_of, compare, cost_of, name_of, read_baseline, replay_session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.host.own_policy import Rejudged
    from agent_host.host.replay import Growth, Replayed

_NEEDS_A_PLACE = (
    "replay runs the session's commands and writes again: name the directory for that with --workspace, such as a "
    "fresh copy of the project"
)


def replay(namespace: argparse.Namespace) -> int:
    """`replay`: exit code 0 if all calls are unchanged, else 1."""
    if namespace.workspace is None:
        raise UsageError(_NEEDS_A_PLACE)
    gc.enable()
    flags = {"host.policy": namespace.policy} if namespace.policy is not None else {}
    state_dir = state_dir_of(namespace)
    session_id = session_id_of(state_dir, namespace.session_id)
    running = replay_session(flags, session_id=session_id, workspace=namespace.workspace, state_dir=state_dir)
    done = asyncio.run(running)
    answer_in(namespace.output, _wire(done), _text(done), indented=False)
    return exit_codes.COMPLETED if done.difference is None else exit_codes.FAILED


def _wire(done: Replayed) -> dict[str, object]:
    difference = None if done.difference is None else done.difference.to_wire()
    row: dict[str, object] = {"calls": done.calls, "difference": difference, "ended": done.ended}
    if done.before is not None or done.now is not None:
        row["sandbox"] = {"before": done.before, "now": done.now}
    if done.refusals:
        row["refusals"] = [one.to_wire() for one in done.refusals]
    return row


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


def _text(done: Replayed) -> Iterator[str]:
    """The comparison of the calls, the sandbox of commands if it has changed, and its denials."""
    yield _compare(done)
    if done.now is None:
        return
    yield sandbox_in_words(done.now)
    if done.before is not None and done.before["level"] != done.now["level"]:
        yield f"  on record they ran at the level {one_line(done.before['level'])}\n"
    for one in done.refusals:
        head = f"call {one.number}, {one_line(one.tool_name)}"
        if one.grant is not None:
            yield f"{head}: asked of the sandbox: {one_line(orjson.dumps(one.grant).decode())}\n"
        for denial in one.now:
            yield f"{head}: {one_line(denial)}{'' if denial in one.before else ' (not on record)'}\n"
        for denial in one.before:
            if denial not in one.now:
                yield f"{head}: on record, and not now: {one_line(denial)}\n"


def rejudge(namespace: argparse.Namespace) -> int:
    """`policy rejudge`: the calls that would be decided differently, or with `--output json` all of them."""
    state_dir = state_dir_of(namespace)
    rows = rejudge_calls(
        policy_only(namespace),
        session_id=session_id_of(state_dir, namespace.session_id),
        workspace=namespace.workspace,
        state_dir=state_dir,
    )
    answer_in(namespace.output, [row.to_wire() for row in rows], _lines(rows))
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
    forms = f", {edited} edited" if edited else ""
    yield f"{count_noun(len(rows) - edited, 'call')}{forms}, {sum(row.differs for row in rows)} decided differently\n"


_SHORT = "/tmp"  # noqa: S108 each use makes its own directory there


def cost_check(namespace: argparse.Namespace) -> int:
    """Measure each recording and compare it, or write the baseline; exit 1 if one costs more."""
    before = {} if namespace.write_baseline else read_baseline(namespace.baseline)
    names = [name_of(recording) for recording in namespace.recordings]
    if len(set(names)) < len(names):
        raise UsageError(f"two recordings have one name: {', '.join(sorted(names))}")
    missing = [name for name in names if not namespace.write_baseline and name not in before]
    if missing:
        raise UsageError(
            f"--baseline {namespace.baseline} has no {', '.join(missing)}: measure all with --write-baseline"
        )
    file = OutputFile("baseline", namespace.baseline) if namespace.write_baseline else None
    if file is not None:
        check_no_overlap((file,), namespace)
    gc.enable()
    if os.path.isdir(_SHORT):  # prompts contain directories, so these must be nearly the same everywhere
        os.environ["TMPDIR"] = _SHORT
        tempfile.tempdir = None
    flags, state_dir = settings_of_options(namespace), state_dir_of(namespace)
    costs = {
        name: asyncio.run(cost_of(recording, flags, workspace=namespace.workspace, state_dir=state_dir))
        for name, recording in zip(names, namespace.recordings, strict=True)
    }
    rows = compare(costs, before, namespace.max_growth)
    answer_in(namespace.output, [_wire_of_growth(row) for row in rows], map(_line_of_growth, rows))
    is_written = file is None or file.write(baseline_of(costs))
    return exit_codes.FAILED if not is_written or any(row.is_over for row in rows) else exit_codes.COMPLETED


def _wire_of_growth(row: Growth) -> dict[str, object]:
    now = {"tokenEquivalents": row.cost.equivalents, "firstRequestTokens": row.cost.first_request}
    then = row.before and {"tokenEquivalents": row.before.equivalents, "firstRequestTokens": row.before.first_request}
    return {"name": row.name, **now, "baseline": then, "isOver": row.is_over}


def _line_of_growth(row: Growth) -> str:
    mark = "over" if row.is_over else "ok  "
    figures = [("token equivalents", row.cost.equivalents, row.before and row.before.equivalents)]
    figures.append(("in the first request", row.cost.first_request, row.before and row.before.first_request))
    words = []
    for what, now, then in figures:
        words.append(f"{now:,} {what}" + (f" ({(now - then) / then:+.1%} of {then:,})" if then else ""))
    return f"{mark}  {escape(row.name, keep='')}: {', '.join(words)}\n"
