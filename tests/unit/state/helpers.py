"""Sessions and records in few words. Messages are what `agent_host.thread.messages` would encode, in short."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import orjson

from state import SessionPaths
from state.checkpoint import Checkpoint, SessionIdentity
from state.file_store import FileCheckpointStore
from state.loading import LoadedFiles, find
from state.records import record_of
from tests.support.beside import Later

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from state.file_session import FileSession

SESSION = "sess_1"
USAGE = {"inputTokens": 10, "outputTokens": 3, "cachedInputTokens": 1}


OPTIONS: dict[str, Any] = {"flags": {}, "workspace": "/w"}
"""What a session on record was started with, at the least."""
_OF_EVERY_MESSAGE = {"messageId": "m", "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z", "tokenCount": 1}


def message(role: str, content: str, **more: Any) -> bytes:
    return orjson.dumps({**_OF_EVERY_MESSAGE, "role": role, "content": content, **more})


def fresh_state(session_id: str = SESSION, **options: Any) -> Checkpoint:
    identity = SessionIdentity(session_id, "ws_1", "tenant", "user", {**OPTIONS, **options})
    return Checkpoint(identity, policy_bundle_version="v1", thread=[message("system", "be careful")])


def paths_in(directory: Path | str, session_id: str = SESSION) -> SessionPaths:
    return SessionPaths(str(directory), session_id)


def create(directory: Path | str, session_id: str = SESSION, **options: Any) -> FileSession:
    return _store(directory, options).create(session_id, fresh_state(session_id))


def reopen(directory: Path | str, session_id: str = SESSION, **options: Any) -> FileSession:
    return _store(directory, options).open(session_id)


def _store(directory: Path | str, options: dict[str, Any]) -> FileCheckpointStore:
    return FileCheckpointStore(str(directory), **{"start_job": Later, **options})


def load(directory: Path | str, session_id: str = SESSION) -> Checkpoint:
    """The session as it is on disk, whoever holds it."""
    return FileCheckpointStore(str(directory)).load(session_id)


def on_disk(directory: Path | str) -> LoadedFiles:
    """What lies on disk, with what is wrong about it."""
    return find(FileCheckpointStore(str(directory))._storage(SESSION))


def start_task(store: FileSession, prompt: str = "do it") -> None:
    store.append(record_of("task_started", {"taskId": "t1", "prompt": prompt, "maxSteps": 40}, message("user", prompt)))


def turn(
    store: FileSession,
    step: str,
    *calls: str,
    gated: bool = False,
    text: str = "",
    side_effects: bool = True,
    settled: Sequence[str] | None = None,
) -> None:
    """The write-ahead of a step with `calls`, by id."""
    named = [{"id": call, "name": "RunCommand", "arguments": {"command": call}} for call in calls]
    rows: list[dict[str, Any]] = [{"callId": call, "sideEffects": side_effects} for call in calls]
    if gated:
        rows = [{**row, "gated": True, "approvalId": f"appr_{row['callId']}"} for row in rows]
    fields = {
        "stepId": step,
        "stopReason": "tool_use" if calls else "end_turn",
        "boot": "b",
        "usage": USAGE,
        "calls": rows,
        **({} if settled is None else {"settled": settled}),
    }
    store.append(record_of("turn", fields, message("assistant", text, **({"toolCalls": named} if named else {}))))


def finish(store: FileSession, call: str, text: str = "ok", status: str = "succeeded") -> None:
    result = message("tool", text, toolCallId=call, isError=status != "succeeded")
    store.append(record_of("call_finished", {"callId": call, "status": status}, result))


def commit(store: FileSession, count: int) -> None:
    store.append(record_of("step_committed", {"stepCount": count}))


def whole_step(store: FileSession, number: int, text: str = "ok") -> None:
    """One durable step with one call, as the loop records it."""
    call = f"c{number}"
    turn(store, f"step_{number}", call)
    store.sync()
    store.append(record_of("call_started", {"callId": call}))
    finish(store, call, text)
    commit(store, number)
    store.sync()


def unnumbered(state: Checkpoint) -> Checkpoint:
    """A copy of the state without its sequence number, which a reopened session may count on from elsewhere."""
    return dataclasses.replace(copy.deepcopy(state), seq=0)
