"""Ids that users choose, and what is remembered under them (interface section 1, `--session-id`).

Without a Session Service a chosen id is the session's own. A service gives ids of its own; then `keys/KEY.json` names
the session that was begun under the key. A pruned session with a chosen id leaves its result as a stub, so that what
was done once under an id is never done again.
"""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, Any

import orjson

from state.disk import LOCAL_DISK
from state.errors import as_write_failure
from state.files import make_durable_dir, replace_atomically
from state.locations import SessionPaths, checked_session_id
from state.redaction_key import redaction_key

if TYPE_CHECKING:
    from state.disk import Lock

FOLDER = "keys"


def prompt_mark(state_dir: str, prompt: str) -> str:
    """What tells two prompts apart without showing either, which may hold a secret: HMAC-SHA-256, in hex, under the key
    of the state directory."""
    return hmac.new(redaction_key(state_dir), prompt.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def session_of(state_dir: str, key: str) -> str:
    """The id of the session that was begun under `key`; the key itself where no other is on record. Raises
    InvalidSessionId."""
    try:
        named = orjson.loads(LOCAL_DISK.read(_path(state_dir, key)))["sessionId"]
        return checked_session_id(named)
    except (OSError, ValueError, LookupError, TypeError):
        return checked_session_id(key)


def remember(state_dir: str, key: str, session_id: str) -> None:
    """Have `key` stand for `session_id`; durable on return. Raises InvalidSessionId, WriteFailed."""
    path = _path(state_dir, key)
    with as_write_failure("keeping the session's id"):
        make_durable_dir(LOCAL_DISK, os.path.dirname(path), within=state_dir)
        replace_atomically(LOCAL_DISK, path, [orjson.dumps({"sessionId": session_id})])


def hold(state_dir: str, key: str) -> Lock:
    """Keep every other process from beginning a session under `key`. Raises SessionLocked, WriteFailed,
    InvalidSessionId."""
    checked_session_id(key)
    folder = os.path.join(state_dir, FOLDER)
    with as_write_failure("preparing the state directory"):
        make_durable_dir(LOCAL_DISK, folder, within=state_dir)
    return LOCAL_DISK.lock(os.path.join(folder, f"{key}.lock"), key)


def kept_result(state_dir: str, session_id: str) -> dict[str, Any] | None:
    """What `result.json` or, behind a prune, the stub says of a session that ended; None where neither can be read.
    Raises InvalidSessionId."""
    paths = SessionPaths(state_dir, session_id)
    for path in (paths.result, paths.stub):
        try:
            kept = orjson.loads(LOCAL_DISK.read(path))
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(kept, dict):
            return kept
    return None


def leave_stub(state_dir: str, session_id: str, options: dict[str, Any] | None) -> None:
    """Before a session is pruned: keep its result where its id was chosen. `options` are those of its checkpoint, None
    where there is none. Raises OSError."""
    kept = kept_result(state_dir, session_id)
    if kept is None and options is not None:  # it never ended
        kept = {"sessionId": session_id, "started": options.get("started", {})}
    if kept is None or not _was_chosen(kept):
        return
    stub = SessionPaths(state_dir, session_id).stub
    make_durable_dir(LOCAL_DISK, os.path.dirname(stub), within=state_dir)
    replace_atomically(LOCAL_DISK, stub, [orjson.dumps(kept, option=orjson.OPT_INDENT_2)])


def _was_chosen(kept: dict[str, Any]) -> bool:
    started = kept.get("started")
    return isinstance(started, dict) and isinstance(started.get("key"), str)


def _path(state_dir: str, key: str) -> str:
    return os.path.join(state_dir, FOLDER, f"{checked_session_id(key)}.json")
