"""The messages of a session (AH 5.1), encoded once: the bytes go into journal, snapshot and history as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from agent_host.stamps import new_id, now_rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(NamedTuple):
    """One call as the model asked for it. `problem` says why the arguments cannot be used, None when they can."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None


class Message(NamedTuple):
    """One ConversationMessage. `tokens` is an estimate made when the message was."""

    role: Role
    content: str
    tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False


def encode(message: Message, *, session_id: str, task_id: str | None = None, step_id: str | None = None) -> bytes:
    """The ConversationMessage JSON of `message` (interface section 3), with a fresh messageId and timestamp."""
    wire: dict[str, Any] = {
        "messageId": new_id("msg"),
        "sessionId": session_id,
        "role": message.role,
        "content": message.content,
        "timestamp": now_rfc3339(),
        "tokenCount": message.tokens,
    }
    if message.tool_calls:
        wire["toolCalls"] = [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments}
            | ({"problem": call.problem} if call.problem else {})
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["toolCallId"] = message.tool_call_id
        wire["isError"] = message.is_error
    if task_id is not None:
        wire["taskId"] = task_id
    if step_id is not None:
        wire["stepId"] = step_id
    return orjson.dumps(wire)


def last_answer(thread: Sequence[bytes]) -> str:
    """The text that the model ended with: its last message, with the parts before it where the output limit cut the
    answer and the model went on."""
    parts: list[str] = []
    for data in reversed(thread):
        message = decode(data)
        if message.role == "system":
            continue
        if message.role != "assistant" or message.tool_calls:
            break
        parts.append(message.content)
    return "".join(reversed(parts))


def decode(data: bytes) -> Message:
    """The message that `encode` wrote."""
    wire = orjson.loads(data)
    calls = tuple(
        ToolCall(call["id"], call["name"], call["arguments"], call.get("problem")) for call in wire.get("toolCalls", ())
    )
    return Message(
        wire["role"], wire["content"], wire["tokenCount"], calls, wire.get("toolCallId"), wire.get("isError", False)
    )
