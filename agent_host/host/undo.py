"""Undo the file changes of a session's last step: each file gets its previous content, if it is still as the step left
it. Files that cannot be restored are named.

The journal records what each call found and left (`state.checkpoint.Intent`, `CallFinished.changed`). Files written by
a command have no recorded hash: such a file counts as unchanged if it was written no later than the command's result. A
stored version with a secret removed is not restored.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.display_text import count_noun, one_line
from agent_host.errors import UsageError
from agent_host.host.options import snapshot_limit
from agent_host.ids import MACHINE
from agent_host.safe_open import read_real
from agent_host.session.opening import state_errors_translated
from config.lean_typing import NamedTuple
from policy.redaction import PLACEHOLDER
from state import SessionPaths
from state.blobs import LINK, NOT_KEPT, PROGRAM, UNAVAILABLE, mode_and_blob, sha256_hex
from state.disk import LOCAL_DISK
from state.file_store import FileCheckpointStore
from state.journal import journals_of, parse
from tool_runtime.files import Scope
from tool_runtime.files.write import Expected, WriteParams, delete_file, write_file
from tool_runtime.tool import Abandoned, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_MOST_BYTES: Final = 16 * 1024 * 1024
_NO_FILE: Final = ""
_OUTSIDE: Final = "it is outside of the workspace"
_PROGRAM_MODE: Final = 0o755
_FILE_MODE: Final = 0o644


class UndoResult(NamedTuple):
    """`lines` are for the person, `note` for the model, empty if nothing was done; `step_id` is the step."""

    lines: list[str]
    note: str
    step_id: str


@dataclass
class _Change:
    """A file before and after the step: the version `before`, None if there was none; the hash that the step `left`,
    _NO_FILE for no file, None if only `written_by`, in seconds, shows that it is unchanged. `before_hash` is that of
    the content before, if it is recorded."""

    before: str | None
    before_hash: str | None
    left: str | None
    written_by: float = 0.0


@dataclass
class _Step:
    step_id: str
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # tool and subject
    changes: dict[str, _Change] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)  # by callId, calls whose effects are not on record


class _NotRestored(Exception):
    """`str()` is the reason."""


def undo_last_step(state_dir: str, session_id: str, workspace: str, skip: Collection[str] = ()) -> UndoResult:
    """Take back the last step that changed files, of those that are not in `skip`. Raises SessionNotFound,
    UsageError."""
    with state_errors_translated():
        paths = SessionPaths(state_dir, session_id)
        steps = [step for step in _steps(paths) if step.changes and step.step_id not in skip]
        if not steps:
            return UndoResult(["no step that changed files is left on record"], "", "")
        store = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit())
        kept = store.versions(session_id)
    step = steps[-1]
    done, left = [], []
    for path, change in step.changes.items():
        shown = os.path.relpath(path, workspace) if _inside(path, workspace) else path
        try:
            done.append(f"{shown}: {_restore(path, change, kept, workspace)}")
        except (_NotRestored, ToolFault) as problem:
            left.append(f"{shown} stays as it is: {problem}")
        except OSError as error:
            left.append(f"{shown} stays as it is: {error.strerror}")
    left += [f"not taken back: what {one} did besides" for one in step.others.values()]
    head = f"took back {count_noun(len(done), 'file')} of the last step that changed some"
    note = "" if not done else "The person undid files of an earlier step: " + "; ".join(done) + ". " + "; ".join(left)
    return UndoResult([one_line(line, 2000) for line in (head, *done, *left)], one_line(note, 8000), step.step_id)


def _restore(path: str, change: _Change, kept: Callable[[str], bytes | None], workspace: str) -> str:
    if not _inside(path, workspace):
        raise _NotRestored(_OUTSIDE)
    now = _hash_now(path)
    if change.left is not None and now != change.left:
        raise _NotRestored("it was changed after the step")
    if change.left is None and now != _NO_FILE and os.lstat(path).st_mtime > change.written_by:
        raise _NotRestored("it was changed after the command that changed it")
    scope = Scope((os.path.realpath(workspace),))
    if change.before is None:
        if now == _NO_FILE:
            raise _NotRestored("it is gone already")
        delete_file(path, scope, Abandoned(), through_links=False)
        return "deleted, as it was not there before"
    mode, name = mode_and_blob(change.before)
    if mode == LINK:
        raise _NotRestored("it was a link")
    content = None if name in NOT_KEPT else kept(name)
    if content is None:
        raise _NotRestored("the version before was not kept")
    has_secret = re.search(PLACEHOLDER.encode(), content) is not None
    is_complete = sha256_hex(content) == change.before_hash if change.before_hash else not has_secret
    if not is_complete:
        raise _NotRestored("the previous version contains a secret, which was not kept")
    bits = None if now != _NO_FILE else _PROGRAM_MODE if mode == PROGRAM else _FILE_MODE
    expected = Expected() if now == _NO_FILE else Expected(sha256=now)
    write_file(
        WriteParams(path, scope, content, MACHINE.new_id("undo"), expected=expected, mode=bits, through_links=False),
        Abandoned(),
    )
    return "as it was before"


def _hash_now(path: str) -> str:
    try:
        return sha256_hex(read_real(path, _MOST_BYTES))
    except FileNotFoundError:
        return _NO_FILE
    except OSError as error:
        raise _NotRestored(f"it cannot be read: {error.strerror}") from error


def _inside(path: str, workspace: str) -> bool:
    return path.startswith(os.path.realpath(workspace).rstrip(os.sep) + os.sep)


# The steps on record


def _steps(paths: SessionPaths) -> Iterator[_Step]:
    step: _Step | None = None
    for fields, message in _records(paths):
        kind = fields.get("kind")
        if kind == "turn":
            if step is not None:
                yield step
            step = _begin(fields, message)
        elif step is not None and kind == "call_started" and fields.get("intent"):
            step.others.pop(fields["callId"], None)  # an approved call has its intent only here
            _add_intent(step, fields["intent"])
        elif step is not None and kind == "call_finished":
            if fields.get("status") == "denied":  # it did nothing
                step.others.pop(fields["callId"], None)
            for path, version in fields.get("changed", {}).items():
                if path not in step.changes:
                    at = datetime.fromisoformat(message["timestamp"]).timestamp()
                    _merge(step, path, _Change(version, None, None, at))
    if step is not None:
        yield step


def _begin(fields: Mapping[str, Any], message: Mapping[str, Any]) -> _Step:
    step = _Step(str(fields["stepId"]))
    for call in message.get("toolCalls", ()):
        arguments = call["arguments"] if isinstance(call["arguments"], dict) else {}
        subject = next((str(arguments[name]) for name in ("command", "path", "url") if name in arguments), "")
        step.calls[call["id"]] = (str(call["name"]), subject)
    for row in fields.get("calls", ()):
        if row.get("intent"):
            _add_intent(step, row["intent"])
        elif row.get("sideEffects"):
            step.others[row["callId"]] = one_line(" ".join(step.calls.get(row["callId"], ("a call", ""))), 200)
    return step


def _add_intent(step: _Step, intent: Mapping[str, Any]) -> None:
    target = intent.get("target")
    before = intent.get("kept", UNAVAILABLE) if intent["before"] is not None else None
    after = intent["after"]
    _merge(step, intent["path"], _Change(before, intent["before"], _NO_FILE if after is None else after))
    if target:
        version = UNAVAILABLE if target["before"] is not None else None
        _merge(step, target["path"], _Change(version, target["before"], intent["before"]))


def _merge(step: _Step, path: str, change: _Change) -> None:
    first = step.changes.get(path)
    if first is None:
        step.changes[path] = change
    else:
        first.left = change.left


def _records(paths: SessionPaths) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    last = 0
    for path in journals_of(LOCAL_DISK, paths):
        try:
            with open(path, "rb") as file:
                content = parse(file.read())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"the record of the session cannot be read: {error.strerror}") from error
        for record in content.records:
            if record.seq > last:
                last = record.seq
                message = {} if record.message is None else orjson.loads(record.message)
                yield orjson.loads(record.fields), message
