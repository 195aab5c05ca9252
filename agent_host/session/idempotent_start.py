"""Sessions that were begun under an id that the user chose, for `run --session-id ID --or-resume` (interface section
1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.errors import CheckpointUnreadable, UsageError
from agent_host.session.handshake import PolicySource
from agent_host.session.opening import state_errors_translated
from agent_host.session.reports import is_result
from config.lean_typing import NamedTuple
from state.disk import LOCAL_DISK, is_quarantined
from state.errors import Damaged, NoSuchSession
from state.file_store import FileCheckpointStore
from state.keys import prompt_mark, read_result, session_of
from state.locations import SessionPaths

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_OF_THE_RESULT = frozenset(
    {
        "prompt", "workspace", "resumable", "startedAt", "endedAt", "started", "title", "tenantId", "userId",
        "totalTokens", "sessionUsage",
    }
)  # fmt: skip


class Begun(NamedTuple):
    """A session that can be gone on with. `started` is what its first record says of how it was started."""

    session_id: str
    started: Mapping[str, Any]


class Over(NamedTuple):
    """A session that has ended. `result` is its result object."""

    session_id: str
    started: Mapping[str, Any]
    result: dict[str, Any]


def find_begun(state_dir: str, key: str, *, snapshot_limit_bytes: int) -> Begun | Over | None:
    """Find the session that was begun under `key`; None if there is none. A snapshot above the limit is not read.
    Changes nothing.

    Raises UsageError for a key that is none and for a session that was removed before its end, CheckpointUnreadable for
    one that is damaged, or whose result is: what it did is not known well enough to go on with it unasked.
    """
    with state_errors_translated():
        session_id = session_of(state_dir, key)
        try:
            state = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit_bytes).load(session_id)
        except NoSuchSession:
            state = None
        except Damaged as error:
            raise CheckpointUnreadable(_damage(session_id, str(error))) from error
    if state is not None and state.salvaged is not None:
        raise CheckpointUnreadable(_damage(session_id, state.salvaged))
    if state is not None and state.task is not None:
        return Begun(session_id, state.identity.options.get("started", {}))
    try:
        kept = read_result(state_dir, session_id)
    except Damaged as error:
        raise CheckpointUnreadable(_result_damage(session_id, str(error))) from error
    if kept is not None:
        if "status" not in kept:
            raise UsageError(
                f"session {key} was removed before it had ended, or with a result that could not be read: choose "
                "another id"
            )
        if not is_result(kept):
            raise CheckpointUnreadable(_result_damage(session_id, "its kept result has another shape"))
        result = {name: value for name, value in kept.items() if name not in _NOT_OF_THE_RESULT}
        return Over(session_id, kept.get("started", {}), result)
    if is_quarantined(LOCAL_DISK, SessionPaths(state_dir, session_id)):
        raise CheckpointUnreadable(_damage(session_id, "only damaged files of it are left"))
    return None


def start_record(state_dir: str, key: str, prompt: str) -> dict[str, str]:
    """The entry in the first record of a session for `refuse_another`."""
    return {"key": key, "promptMark": prompt_mark(state_dir, prompt)}


def refuse_another(state_dir: str, key: str, started: Mapping[str, Any], *, prompt: str, policy: PolicySource) -> None:
    """Raises UsageError where `prompt` or `policy` are not those that the session was begun with."""
    if "promptMark" not in started:
        raise UsageError(f"session {key} was not begun with --session-id: `agent-host resume {key}` goes on with it")
    if started["promptMark"] != prompt_mark(state_dir, prompt):
        raise UsageError(f"session {key} was begun with another prompt: choose another id, or give the same prompt")
    name = started.get("policy")
    if name is not None and not policy.is_same(PolicySource(name, started.get("policyHash", ""))):
        raise UsageError(
            f"session {key} was begun under another policy ({name}): choose another id, give the same policy, or take "
            f"the new one with `agent-host resume {key} --policy ...`"
        )


def _damage(session_id: str, why: str) -> str:
    return (
        f"session {session_id} is damaged: {why}; --or-resume does not go on with it: look at what it did, then "
        f"`agent-host resume {session_id}` or choose another id"
    )


def _result_damage(session_id: str, why: str) -> str:
    return f"session {session_id} is damaged: {why}; it may have had its effects: look at them, then choose another id"
