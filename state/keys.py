"""Ids that users choose, and what is remembered under them (interface section 1, `--session-id`).

Without a Session Service a chosen id is the session's own. A service gives ids of its own; then `keys/KEY.json` names
the session that was begun under the key. A pruned session with a chosen id leaves its result as a stub, so that what
was done once under an id is never done again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import orjson

from state.disk import LOCAL_DISK, make_durable_dir, replace_atomically
from state.errors import Damaged, InvalidSessionId, translate_errors
from state.locations import SessionPaths, check_session_id

if TYPE_CHECKING:
    from state.disk import Lock

FOLDER = "keys"


def prompt_mark(state_dir: str, prompt: str) -> str:
    """Return a mark that distinguishes prompts without showing them, since they may hold a secret: HMAC-SHA-256, in
    hex, under the key of the state directory."""
    import hmac  # only a session whose id is chosen has a mark

    return hmac.new(redaction_key(state_dir), prompt.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def session_of(state_dir: str, key: str) -> str:
    """The id of the session that was begun under `key`; the key itself where no other is on record. Raises
    InvalidSessionId, and Damaged for a record that cannot be read: it may name a session."""
    path = _path(state_dir, key)
    kept = _read(path)
    if kept is None:
        return key
    named = kept.get("sessionId")
    if isinstance(named, str):
        with contextlib.suppress(InvalidSessionId):
            return check_session_id(named)
    raise Damaged(f"{path} names no session")


def remember(state_dir: str, key: str, session_id: str) -> None:
    """Have `key` stand for `session_id`; durable on return. Raises InvalidSessionId, WriteFailed."""
    path = _path(state_dir, key)
    with translate_errors("keeping the session's id"):
        make_durable_dir(LOCAL_DISK, os.path.dirname(path), within=state_dir)
        replace_atomically(LOCAL_DISK, path, [orjson.dumps({"sessionId": session_id})])


def hold(state_dir: str, key: str) -> Lock:
    """Keep every other process from beginning a session under `key`. Raises SessionLocked, WriteFailed,
    InvalidSessionId."""
    check_session_id(key)
    folder = os.path.join(state_dir, FOLDER)
    with translate_errors("preparing the state directory"):
        make_durable_dir(LOCAL_DISK, folder, within=state_dir)
    return LOCAL_DISK.lock(os.path.join(folder, f"{key}.lock"), key)


def read_result(state_dir: str, session_id: str) -> dict[str, Any] | None:
    """Return the result of a session that ended, from `result.json` or, after a prune, from the stub; None if there is
    neither.

    Raises InvalidSessionId, and Damaged for one that is there and cannot be read: the session was begun.
    """
    paths = SessionPaths(state_dir, session_id)
    kept = _read(paths.result)
    return _read(paths.stub) if kept is None else kept


def leave_stub(state_dir: str, session_id: str, options: dict[str, Any] | None, *, damaged: bool) -> None:
    """Before a session is pruned: keep its result where its id was chosen, or may have been. `options` are those of its
    checkpoint, None where there is none, or where it is `damaged`. Raises OSError."""
    try:
        kept = read_result(state_dir, session_id)
    except Damaged:
        kept, damaged = None, True
    if kept is None and options is not None:  # it never ended
        kept = {"sessionId": session_id, "started": options.get("started", {})}
    if kept is None and damaged:  # nothing says whether its id was chosen: the safe answer
        kept = {"sessionId": session_id, "started": {"key": session_id}}
    if kept is None or not _was_chosen(kept):
        return
    stub = SessionPaths(state_dir, session_id).stub
    make_durable_dir(LOCAL_DISK, os.path.dirname(stub), within=state_dir)
    replace_atomically(LOCAL_DISK, stub, [orjson.dumps(kept, option=orjson.OPT_INDENT_2)])


def _read(path: str) -> dict[str, Any] | None:
    """The object in a file; None where nothing lies there. Raises Damaged."""
    try:
        kept = orjson.loads(LOCAL_DISK.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise Damaged(f"{path} is no JSON: {error}") from error
    if not isinstance(kept, dict):
        raise Damaged(f"{path} holds no object")
    return kept


def _was_chosen(kept: dict[str, Any]) -> bool:
    started = kept.get("started")
    return isinstance(started, dict) and isinstance(started.get("key"), str)


def _path(state_dir: str, key: str) -> str:
    return os.path.join(state_dir, FOLDER, f"{check_session_id(key)}.json")


# The key that placeholders of redacted values are made with: one for a state directory, so that a session that is
# resumed goes on with the placeholders it had, and nobody who only sees events can try values out.

KEY_NAME: Final = "redaction.key"
_KEY_BYTES: Final = 32


def redaction_key(state_dir: str, *, makes: bool = True) -> bytes:
    """The key of this state directory, made when it is first asked for, unless it `makes` nothing; what is there and is
    no key, as after a power loss, is replaced. Where it can be neither read nor kept the key is one for this process:
    placeholders of its sessions then differ from those before."""
    path = os.path.join(state_dir, KEY_NAME)
    with contextlib.suppress(OSError):
        return _read_redaction_key(path)
    with contextlib.suppress(OSError):
        if makes:
            _make(path)
            return _read_redaction_key(path)
    return _process_mark()


def _make(path: str) -> None:
    """Put a whole key there: never a part of one, and no second one in the place of another process's. Raises OSError
    where nothing can be put there."""
    made = f"{path}.{os.getpid()}-{threading.get_ident()}"
    try:
        fd = LOCAL_DISK.open_new(made)
        try:
            LOCAL_DISK.write(fd, os.urandom(_KEY_BYTES))
            LOCAL_DISK.sync(fd)
        finally:
            LOCAL_DISK.close(fd)
        try:
            LOCAL_DISK.link(made, path)
        except OSError:  # another process was faster, what lies there is no key, or the disk has no second names
            if not _is_key(path):
                LOCAL_DISK.replace(made, path)
    finally:
        LOCAL_DISK.remove(made)


def _read_redaction_key(path: str) -> bytes:
    """Raises OSError, also for what is no key."""
    key = LOCAL_DISK.read(path)
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return key


def _is_key(path: str) -> bool:
    try:
        _read_redaction_key(path)
    except OSError:
        return False
    return True


@functools.cache
def _process_mark() -> bytes:
    return os.urandom(_KEY_BYTES)
