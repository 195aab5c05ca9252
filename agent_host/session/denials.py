"""The calls that nobody was there to approve, as the result object tells them (SK 4.2, 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.approval.request import replay_of
from agent_host.thread.messages import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.thread.messages import ToolCall
    from state.checkpoint import Task


def denied_approvals(task: Task, thread: Sequence[bytes]) -> list[dict[str, Any]]:
    """`deniedApprovals` of the result: {toolName, replay} for each. On record is which call it was and what approves
    its kind; its arguments stand in the thread, and only there. Where they were lost to a damaged disk, the replay has
    no request and no id. Rows of earlier versions hold all of it."""
    calls = _calls(thread, {row["replay"]["callId"] for row in task.denied if "callId" in row["replay"]})
    return [
        {"toolName": row["toolName"], "replay": _replay(row["replay"], calls, row["toolName"], task.prompt)}
        for row in task.denied
    ]


def _replay(kept: dict[str, Any], calls: dict[str, ToolCall], tool_name: str, prompt: str) -> dict[str, Any]:
    if "callId" not in kept:
        return kept
    call = calls.get(kept["callId"])
    if call is not None and call.problem is None:
        return replay_of(tool_name, call.arguments, prompt=prompt, approve=kept["approve"])
    replay = replay_of(tool_name, {}, prompt=prompt, approve=kept["approve"])
    return {key: replay[key] for key in ("approve", "command")}


def _calls(thread: Sequence[bytes], wanted: set[str]) -> dict[str, ToolCall]:
    """The calls of the ids `wanted`, as the model made them."""
    found: dict[str, ToolCall] = {}
    for data in reversed(thread):
        if len(found) == len(wanted):
            break
        if b'"toolCalls"' in data:
            found.update((call.call_id, call) for call in decode(data).tool_calls if call.call_id in wanted)
    return found
