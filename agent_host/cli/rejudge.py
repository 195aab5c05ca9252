"""`agent-host policy rejudge SESSION --policy NEW`: what another policy would have said to the calls of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.policy import policy_only
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer
from agent_host.display_text import count_noun, one_line
from agent_host.host.replay import NOT_ON_RECORD, rejudge_calls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.host.replay import Rejudged


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
