"""What is on record of a session's calls: the model's, policy's word on them, and what was run in their place.

A call whose arguments somebody changed while approving it has two forms, each with a decision of its own.
"""

from __future__ import annotations

import json
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.api.options import snapshot_limit
from agent_host.errors import SessionNotFound
from agent_host.events.kinds import EventType
from agent_host.events.sinks import run_logs
from agent_host.loop.edits import arguments_in_note
from agent_host.loop.secrets import NOT_KEPT
from agent_host.thread.messages import decode
from state.blobs import sha256_hex
from state.errors import Damaged, NoSuchSession, TooLarge, UnknownVersion, Untrusted, WriteFailed
from state.file_store import FileCheckpointStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.thread.messages import ToolCall
    from state.locations import SessionPaths


class Recorded(NamedTuple):
    """The encoded messages of a session, the workspace it had, and by call id the arguments that were put in place of
    the model's in the step that is open. `started` says with which policy, model and families it was begun."""

    messages: list[bytes]
    workspace: str
    edited: dict[str, dict[str, Any]]
    started: Mapping[str, Any] = MappingProxyType({})

    def calls(self) -> Iterator[ToolCall]:
        """The calls of the model, in order; one whose arguments could not be read was never judged. What is kept of a
        call with a secret is judged with its placeholders."""
        for data in self.messages:
            if b'"toolCalls"' in data:
                yield from (call for call in decode(data).tool_calls if call.problem in {None, NOT_KEPT})


class Decided(NamedTuple):
    """Policy's word on one form of a call, the hash of its arguments as they are kept, and the capability that was
    asked for."""

    decision: str
    arguments_hash: str | None
    capability: str | None = None


def recorded(paths: SessionPaths) -> Recorded:
    """Of the checkpoint, else of what stayed of a session that has ended. Raises SessionNotFound, UsageError."""
    store = FileCheckpointStore(paths.state_dir, snapshot_limit_bytes=snapshot_limit())
    try:
        state = store.load(paths.session_id)
    except (NoSuchSession, Damaged, UnknownVersion, TooLarge, Untrusted, WriteFailed):
        return _of_ended(paths)
    calls = [] if state.open_step is None else state.open_step.calls
    results = [call.result for call in calls if call.result is not None]
    edited = {call.call_id: call.edited_arguments for call in calls if call.edited_arguments is not None}
    workspace = str(state.identity.options.get("workspace", os.getcwd()))
    return Recorded([*state.thread, *results], workspace, edited, state.identity.options.get("started", {}))


def _of_ended(paths: SessionPaths) -> Recorded:
    try:
        with open(os.path.join(paths.artifacts, "session_history"), "rb") as handle:
            messages = orjson.loads(handle.read())
        with open(paths.result, "rb") as handle:
            result = orjson.loads(handle.read())
        encoded = [orjson.dumps(message) for message in messages]
        return Recorded(encoded, str(result["workspace"]), {}, dict(result.get("started", {})))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionNotFound(
            f"there is no session {paths.session_id} with its history on this disk; `agent-host sessions` lists all"
        ) from error


def decisions(paths: SessionPaths) -> tuple[dict[str, Decided], dict[str, Decided]]:
    """Policy's word on each call as the model made it, and on each edited form, from the run log; of several the
    last."""
    found: tuple[dict[str, Decided], dict[str, Decided]] = ({}, {})
    for path in run_logs(paths.events):
        try:
            with open(path, "rb") as handle:
                for line in handle:
                    _note_decision(line, *found)
        except OSError:
            continue
    return found


def _note_decision(line: bytes, asked: dict[str, Decided], edited: dict[str, Decided]) -> None:
    try:
        event = orjson.loads(line)
        payload = event["payload"]
        if event["eventType"] == EventType.TOOL_REQUESTED and "decision" in payload:
            said = Decided(str(payload["decision"]), payload.get("argumentsSha256"), payload.get("capability"))
            (edited if payload.get("edited") else asked)[str(payload["toolCallId"])] = said
    except (ValueError, TypeError, KeyError):
        return  # a line that a crash has cut


def edited_arguments(record: Recorded, edited: dict[str, Decided]) -> dict[str, dict[str, Any] | None]:
    """The arguments of each edited form by call id, None where they are not on record.

    They stand beside the result; in records of earlier versions the note in front of it has them, and cuts what is
    long. They count when they have the hash that the run log has.
    """
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(edited)
    for data in record.messages:
        if b'"toolCallId"' not in data:
            continue
        message = decode(data)
        if message.tool_call_id in edited:
            arguments = message.edited_arguments
            if arguments is None:
                arguments = arguments_in_note(message.content)
            found[message.tool_call_id] = arguments if _fits(arguments, edited[message.tool_call_id]) else None
    return {**found, **record.edited}  # a process that was killed may not have written its last events


def _fits(arguments: dict[str, Any] | None, said: Decided) -> bool:
    if arguments is None:
        return False
    # Arguments out of which a secret was taken are encoded by the standard library.
    spelled = (orjson.dumps(arguments), json.dumps(arguments, separators=(",", ":")).encode())
    return said.arguments_hash in {sha256_hex(one) for one in spelled}
