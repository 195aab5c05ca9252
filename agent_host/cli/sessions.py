"""`agent-host sessions`: what can be resumed and what has ended; `--prune` is in `cli/prune.py`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli.shared import prunes, snapshot_limit, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.errors import UsageError
from state.disk import LOCAL_DISK
from state.errors import InvalidSessionId, WriteFailed
from state.file_store import FileCheckpointStore
from state.locations import checked_session_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from state.store import Summary

_UNREADABLE = "UNREADABLE"
_PROMPT_CHARS = 60
# What a row takes from a result, in the order of `_row`.
_KEPT = {"status": str, "prompt": str, "stepCount": int, "endedAt": str, "workspace": str}


def sessions(namespace: argparse.Namespace) -> int:
    """`agent-host sessions`, newest first."""
    if prunes(namespace):
        from agent_host.cli.prune import prune

        return prune(namespace)
    state_dir = state_dir_of(namespace)
    rows = sorted(_rows(state_dir), key=lambda row: str(row["updatedAt"]), reverse=True)
    if namespace.output == "json":
        answer(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(map(_line, rows)) or f"no sessions under {state_dir}\n")
    return 0


def newest_resumable(state_dir: str) -> str | None:
    """The id of the session that last ran and is not held by a live process; None when there is none."""
    newest = sorted(_resumable(state_dir), key=lambda summary: summary.updated_at, reverse=True)
    for summary in newest:
        if summary.state is None and summary.pid is None:
            notice(f"session {summary.session_id} is passed over: {summary.problem}")
    offered = [summary for summary in newest if _can_go_on(summary)]
    # What only waits for approvals has nothing to do unless they are given, so it comes last.
    offered.sort(key=lambda summary: summary.state is not None and summary.state.awaits_approval)
    return offered[0].session_id if offered else None


def _can_go_on(summary: Summary) -> bool:
    """Whether `agent-host resume` has something to go on with, in one place for the list and for the choice. A session
    without a task is for a client that has one (`ResumeSession`)."""
    return summary.pid is None and summary.state is not None and summary.state.task is not None


def _rows(state_dir: str) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for summary in _resumable(state_dir):
        seen.add(summary.session_id)
        yield _resumable_row(summary)
    folder = os.path.join(state_dir, "sessions")
    for name in _names(folder):
        if name in seen:
            continue
        try:
            kept = orjson.loads(LOCAL_DISK.read(os.path.join(folder, checked_session_id(name), "result.json")))
            values = [kept[key] for key in _KEPT]
        except (InvalidSessionId, OSError, orjson.JSONDecodeError, KeyError, TypeError):
            continue  # not a result of ours
        if [type(value) for value in values] == list(_KEPT.values()):
            yield _row(name, *values)


def _resumable(state_dir: str) -> list[Summary]:
    try:
        return FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit()).list()
    except WriteFailed as error:
        raise UsageError(f"the state directory {state_dir} cannot be used: {error}") from error


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _line(row: dict[str, Any]) -> str:
    """One row of the list for a person."""
    held = f" (held by process {row['pid']})" if row["pid"] else ""
    status = "INTERRUPTED" if row["resumable"] and row["status"] == "SESSION_RUNNING" else row["status"]
    held += " (resumable)" if row["resumable"] else ""
    prompt = " ".join(row["prompt"].split())
    shown = prompt if status == _UNREADABLE else prompt[:_PROMPT_CHARS]
    return f"{row['sessionId']}  {row['updatedAt']}  {status}{held}  {row['stepCount']} steps  {shown}\n"


def _resumable_row(summary: Summary) -> dict[str, Any]:
    updated, state = _rfc3339(summary.updated_at), summary.state
    if state is None:
        return _row(summary.session_id, _UNREADABLE, summary.problem, 0, updated, "", pid=summary.pid)
    return _row(
        summary.session_id,
        state.session_status,
        "" if state.task is None else state.task.prompt,
        0 if state.task is None else state.task.step_count,
        updated,
        str(state.identity.options.get("workspace", "")),
        pid=summary.pid,
        resumable=_can_go_on(summary),
    )


def _row(
    session_id: str,
    status: str,
    prompt: str,
    steps: int,
    updated: str,
    workspace: str,
    *,
    pid: int | None = None,
    resumable: bool = False,
) -> dict[str, Any]:
    return {
        "sessionId": session_id,
        "status": status,
        "resumable": resumable,
        "pid": pid,
        "prompt": prompt,
        "stepCount": steps,
        "updatedAt": updated,
        "workspace": workspace,
    }


def _rfc3339(timestamp: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
