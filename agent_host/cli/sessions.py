"""`agent-host sessions`: what can be resumed and what has ended; `--prune` is in `cli/prune.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agent_host.api.records import UNREADABLE, stored_sessions
from agent_host.cli.shared import prunes, state_dir_of
from agent_host.cli.streams import answer
from agent_host.shown_text import escaped

if TYPE_CHECKING:
    import argparse

    from agent_host.api.records import StoredSession


def sessions(namespace: argparse.Namespace) -> int:
    """`agent-host sessions`, newest first."""
    if prunes(namespace):
        from agent_host.cli.prune import prune

        return prune(namespace)
    state_dir = state_dir_of(namespace)
    found = stored_sessions(state_dir).all(search=namespace.search)
    if namespace.output == "json":
        rows = [one.to_wire() for one in found]
        answer(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(map(_line, found)) or f"no sessions under {state_dir}\n")
    return 0


def _line(one: StoredSession) -> str:
    """One row of the list for a person."""
    held = f" (held by process {one.pid})" if one.pid else ""
    status = one.in_words
    held += " (resumable)" if one.resumable else ""
    title = escaped(one.prompt if one.status == UNREADABLE else one.title, keep="")
    return f"{one.session_id}  {one.updated_at}  {status}{held}  {one.step_count} steps  {title}\n"
