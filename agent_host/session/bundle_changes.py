"""Changes to a bundle file by earlier sessions: no model writes the bundle of the next run unseen."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from agent_host.events.sinks import run_logs
from state.errors import InvalidSessionId
from state.locations import SessionPaths

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNDER_WAY = b'"kind":"changes_seen"'
"""The record of what commands in the background have changed, which no event has."""


def last_change(state_dir: str, path: str) -> str | None:
    """Return the id of the newest session of this state directory that is on record as having changed the file at
    `path`, as it is named or where it leads; None if no record says so."""
    names = {orjson.dumps(one) for one in (os.path.abspath(path), os.path.realpath(path))}
    newest_first = sorted(_sessions(state_dir), key=lambda one: _age(one.events), reverse=True)
    for paths in newest_first:
        if any(_has_changed(file, name) for file in _files(paths) for name in names):
            return paths.session_id
    return None


def _sessions(state_dir: str) -> Iterator[SessionPaths]:
    with suppress(OSError), os.scandir(os.path.join(state_dir, "sessions")) as entries:
        for entry in entries:
            with suppress(InvalidSessionId):
                yield SessionPaths(state_dir, entry.name)


def _age(path: str) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0


def _files(paths: SessionPaths) -> Iterator[str]:
    yield from run_logs(paths.events)
    yield from paths.checkpoint_files
    with suppress(OSError):
        yield from (os.path.join(paths.archive, name) for name in os.listdir(paths.archive))


def _has_changed(file: str, name: bytes) -> bool:
    """True if a line of `file` says that the file of this `name`, in JSON, was changed."""
    try:
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(name)
            while at >= 0:
                end = content.find(b"\n", at)
                end = len(content) if end < 0 else end
                if _says_so(content[content.rfind(b"\n", 0, at) + 1 : end], name):
                    return True
                at = content.find(name, end)
    except (OSError, ValueError):  # it is not there, or empty
        pass
    return False


def _says_so(line: bytes, name: bytes) -> bool:
    if _UNDER_WAY in line:
        return name + b":" in line
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:  # of a journal
        return False
    payload = event.get("payload") if isinstance(event, dict) else None
    return isinstance(payload, dict) and orjson.loads(name) in payload.get("pathsChanged", ())
