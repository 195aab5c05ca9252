"""`agent-host report`: many sessions as one page, and their own pages beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.shared import state_dir_of
from agent_host.cli.show import import_pages, write_page
from agent_host.cli.streams import answer, notice
from agent_host.display_text import count_noun
from agent_host.errors import AgentHostError, SessionNotFound, UsageError
from agent_host.host.records import session_id_of, stored_sessions

if TYPE_CHECKING:
    import argparse

    from agent_host.host.records import StoredSession


def report(namespace: argparse.Namespace) -> int:
    """`agent-host report`; exit 1 where a page could not be written. Raises UsageError, SessionNotFound."""
    state_dir = state_dir_of(namespace)
    if bool(namespace.sessions) == bool(namespace.all):
        raise UsageError("report needs the ids of sessions, or --all for all of them")
    rows = stored_sessions(state_dir).all()
    if not namespace.all:
        wanted = list(dict.fromkeys(session_id_of(state_dir, one) for one in namespace.sessions))
        found = {row.session_id: row for row in rows}
        missing = next((one for one in wanted if one not in found), None)
        if missing is not None:
            raise SessionNotFound(f"there is no session {missing} under {state_dir}; `agent-host sessions` lists all")
        rows = [found[one] for one in wanted]
    pages = import_pages("pages")
    folder = f"{os.path.splitext(os.path.abspath(namespace.html))[0]}-sessions" if namespace.with_sessions else None
    failed = 0 if folder is None else _write_sessions(state_dir, rows, folder)
    name = None if folder is None else os.path.basename(folder)
    written = write_page(namespace.html, lambda: pages.sessions_page(rows, state_dir=state_dir, folder=name))
    return exit_codes.FAILED if failed else written


def _write_sessions(state_dir: str, rows: list[StoredSession], folder: str) -> int:
    """Write the page of each session into `folder`; returns how many could not be. Raises UsageError for the folder."""
    pages, sessions, failed = import_pages("session"), stored_sessions(state_dir), 0
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--with-sessions {folder}: {error.strerror}") from error
    for row in rows:
        try:
            transcript = sessions.record(row.session_id).transcript()
            path = os.path.join(folder, f"{row.session_id}.html")
            failed += write_page(path, lambda: pages.session_page(transcript, state_dir=state_dir), quiet=True) != 0  # noqa: B023  it is called at once
        except AgentHostError as error:
            notice(f"error: session {row.session_id} has no page: {error}")
            failed += 1
    answer(f"wrote {count_noun(len(rows) - failed, 'page')} to {folder}\n")
    return failed
