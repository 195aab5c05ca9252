"""`agent-host sessions`: what can be resumed and what has ended; `--prune` is in `cli/prune.py`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli.shared import prunes, state_dir_of
from state.errors import InvalidSessionId, StateError
from state.locations import SessionPaths, checked_session_id
from state.lock import holder
from state.store import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_SNAPSHOT_SUFFIX = ".json"
_READ_TRIES = 3


def sessions(namespace: argparse.Namespace) -> int:
    """`agent-host sessions`, newest first."""
    if prunes(namespace):
        from agent_host.cli.prune import prune

        return prune(namespace)
    state_dir = state_dir_of(namespace)
    rows = sorted(_rows(state_dir), key=lambda row: str(row["updatedAt"]), reverse=True)
    if namespace.output == "json":
        sys.stdout.buffer.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return 0
    if not rows:
        sys.stdout.write(f"no sessions under {state_dir}\n")
    for row in rows:
        held = f" (held by process {row['pid']})" if row["pid"] else ""
        status = "INTERRUPTED" if row["resumable"] and row["status"] == "SESSION_RUNNING" else row["status"]
        held += " (resumable)" if row["resumable"] else ""
        prompt = " ".join(row["prompt"].split())
        sys.stdout.write(
            f"{row['sessionId']}  {row['updatedAt']}  {status}{held}  {row['stepCount']} steps  {prompt[:60]}\n"
        )
    return 0


def newest_resumable(state_dir: str) -> str | None:
    """The id of the session that was last at work and is not held by a live process; None when there is none."""
    free = [paths for paths in _resumable(state_dir) if holder(paths.lock) is None]
    for paths in sorted(free, key=_mtime, reverse=True):
        try:
            task = load(paths).state.task
        except StateError as error:
            sys.stderr.write(f"agent-host: session {paths.session_id} is passed over: {error}\n")
            continue
        if task is not None:  # without one it died before it began
            return paths.session_id
    return None


def _rows(state_dir: str) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for paths in _resumable(state_dir):
        seen.add(paths.session_id)
        yield _resumable_row(paths)
    folder = os.path.join(state_dir, "sessions")
    for name in _names(folder):
        if name in seen:
            continue
        try:
            with open(os.path.join(folder, checked_session_id(name), "result.json"), "rb") as handle:
                kept = orjson.loads(handle.read())
            row = _row(name, *(kept[key] for key in ("status", "prompt", "stepCount", "endedAt", "workspace")))
        except (InvalidSessionId, OSError, orjson.JSONDecodeError, KeyError, TypeError):
            continue  # not a result of ours
        yield row


def _resumable(state_dir: str) -> Iterator[SessionPaths]:
    for name in _names(os.path.join(state_dir, "checkpoints")):
        if name.endswith(_SNAPSHOT_SUFFIX):
            try:
                yield SessionPaths(state_dir, name.removesuffix(_SNAPSHOT_SUFFIX))
            except InvalidSessionId:
                continue


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _resumable_row(paths: SessionPaths) -> dict[str, Any]:
    pid = holder(paths.lock)
    updated = _mtime(paths)
    for _ in range(_READ_TRIES):  # a live holder may put a new snapshot in place between our two reads
        try:
            state = load(paths).state
        except StateError as error:
            problem = str(error)
            continue
        task = state.task
        return _row(
            paths.session_id,
            state.session_status,
            "" if task is None else task.prompt,
            0 if task is None else task.step_count,
            updated,
            str(state.identity.options.get("workspace", "")),
            pid=pid,
            resumable=pid is None,
        )
    return _row(paths.session_id, "UNREADABLE", problem, 0, updated, "", pid=pid)


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


def _mtime(paths: SessionPaths) -> str:
    from datetime import UTC, datetime

    times = [os.stat(path).st_mtime for path in (paths.snapshot, paths.journal) if os.path.exists(path)]
    moment = datetime.fromtimestamp(max(times, default=0.0), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
