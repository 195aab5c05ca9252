"""Checks of a snapshot whose checksum is right: each field by its shape, and fields that have to agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from config.shapes import display
from state.record_shapes import message_of, message_problems, snapshot_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def snapshot_problems(raw: dict[str, Any], version: int, thread: Sequence[bytes] | None) -> list[str]:
    """Every problem, with its path. `raw` is the snapshot without its messages, `version` that of its `resume`;
    `thread` is None where it has no list of messages."""
    shape = snapshot_shape(version)
    found = [] if shape.fits(raw) else list(map(str, shape.problems(raw, "")))
    if thread is None:
        return [*found, "thread: must be a list"]
    of_thread, waiting = _thread_problems(thread)
    found += of_thread
    if found:  # what is to agree cannot be looked at yet
        return found
    step = raw["resume"]["openStep"]
    for upload_id, row in raw["resume"].get("uploads", {}).items():
        if row["id"] != upload_id:
            found.append(f"resume.uploads[{display(upload_id)}].id: must be the same id, not another")
    position = None if step is None else step["position"]
    found += (
        f"thread[{place}].toolCalls: call {display(call_id)} has no result, and its step is not open"
        for call_id, place in waiting.items()
        if place != position
    )
    if step is not None:
        found += _step_problems(step, thread, {call_id for call_id, place in waiting.items() if place == position})
    try:
        orjson.dumps(raw)
    except orjson.JSONEncodeError:
        found.append("it nests too deep to be written again")
    return found


def _thread_problems(thread: Sequence[bytes]) -> tuple[list[str], dict[str, int]]:
    """The problems, and by id the places of the calls that have no result in the thread."""
    found: list[str] = []
    unpaired: list[str] = []
    waiting: dict[str, int] = {}
    for place, data in enumerate(thread):
        wire = message_of(data)
        if wire is None:
            found += message_problems(data, f"thread[{place}]")
        elif "toolCalls" in wire:
            for call in wire["toolCalls"]:
                waiting[call["id"]] = place
        elif "toolCallId" in wire and waiting.pop(wire["toolCallId"], None) is None:
            unpaired.append(f"thread[{place}].toolCallId: must name a call before it that has no result yet")
    if not thread:
        found.append("thread: must hold at least the system prompt")
    elif not found and orjson.loads(thread[0])["role"] != "system":
        unpaired.append('thread[0].role: must be "system": the system prompt comes first')
    return found or unpaired, waiting


def _step_problems(step: dict[str, Any], thread: Sequence[bytes], open_calls: set[str]) -> Iterator[str]:
    """`open_calls` are the calls of the message at the step's position that have no result in the thread."""
    path, position = "resume.openStep", step["position"]
    turn = orjson.loads(thread[position]) if position < len(thread) else {}
    if turn.get("role") != "assistant":
        yield f"{path}.position: must be the place of an assistant's message, not {position}"
        return
    rows = [row["callId"] for row in step["calls"]]
    if len(rows) != len(open_calls) or set(rows) != open_calls:
        yield f"{path}.calls: must be a row for each call of thread[{position}], and no other"
    for place, row in enumerate(step["calls"]):
        if ("result" in row) != ("status" in row):
            yield f"{path}.calls[{place}]: must have `result` and `status` together"
        elif "result" in row and row["result"]["toolCallId"] != row["callId"]:
            yield f"{path}.calls[{place}].result.toolCallId: must be the row's callId, not another"
