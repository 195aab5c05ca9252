"""The messages of a session (AH 5.1), encoded once: the bytes go into journal, snapshot and history as they are.

What is large in a message, its text and the arguments of its calls, is encoded once for the gateway too: its JSON is
made when it is first asked for and is kept as long as the message is.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

from agent_host.ids import new_id, now_rfc3339
from agent_host.lenient_json import encodable as encodable
from agent_host.lenient_json import to_keep

if TYPE_CHECKING:
    from collections.abc import Sequence

GO_ON: Final = "[Your answer was cut at the output limit. Go on where it stopped.]"
"""What the host says behind an answer that is not whole."""

Role = Literal["system", "user", "assistant", "tool"]


class _CallFields(NamedTuple):
    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None


class ToolCall(_CallFields):
    """One call as the model asked for it. `problem` says why the arguments cannot be used, None when they can."""

    @cached_property
    def arguments_json(self) -> bytes:
        """The arguments as JSON. Raises orjson.JSONEncodeError when they nest too deep for a message on record."""
        # A resume writes the whole message without fragments, so what counts is the depth at which they stand in it.
        return orjson.dumps([[[self.arguments]]])[3:-3]

    def renamed(self, call_id: str) -> ToolCall:
        """The same call under another id; what is encoded stays encoded."""
        other = self._replace(call_id=call_id)
        vars(other).update(vars(self))
        return other


class _MessageFields(NamedTuple):
    role: Role
    content: str
    tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    edited_arguments: dict[str, Any] | None = None
    goes_on: bool = False
    workspace: str | None = None


class Message(_MessageFields):
    """One ConversationMessage. `tokens` is an estimate made when the message was.

    `edited_arguments` are those that the call of a result ran with where the person who approved it wrote them.
    `goes_on` marks the note behind an answer that was cut, `workspace` the note that names a new workspace."""

    @cached_property
    def content_json(self) -> bytes:
        """The content as a JSON string. Raises orjson.JSONEncodeError for a lone surrogate."""
        return orjson.dumps(self.content)


def encode(message: Message, *, session_id: str, task_id: str | None = None, step_id: str | None = None) -> bytes:
    """The ConversationMessage JSON of `message` (interface section 3), with a fresh messageId and timestamp. Raises
    orjson.JSONEncodeError for a lone surrogate."""
    wire: dict[str, Any] = {
        "messageId": new_id("msg"),
        "sessionId": session_id,
        "role": message.role,
        "content": orjson.Fragment(message.content_json),
        "timestamp": now_rfc3339(),
        "tokenCount": message.tokens,
    }
    if message.tool_calls:
        wire["toolCalls"] = [
            {"id": call.call_id, "name": call.name, "arguments": orjson.Fragment(call.arguments_json)}
            | ({"problem": call.problem} if call.problem else {})
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["toolCallId"] = message.tool_call_id
        wire["isError"] = message.is_error
    if message.edited_arguments is not None:
        wire["editedArguments"] = message.edited_arguments
    if message.goes_on:
        wire["goesOn"] = True
    if message.workspace is not None:
        wire["workspace"] = message.workspace
    if task_id is not None:
        wire["taskId"] = task_id
    if step_id is not None:
        wire["stepId"] = step_id
    return to_keep(orjson.dumps(wire))


def last_answer(thread: Sequence[bytes]) -> str:
    """The text that the model ended with: its last message, with the parts before it where the output limit cut the
    answer and the model went on."""
    parts: list[str] = []
    goes_on = True
    for data in reversed(thread):
        message = decode(data)
        if message.role == "system":
            goes_on = goes_on or message.goes_on or message.content == GO_ON  # older records have only the text
            continue
        if message.role != "assistant" or message.tool_calls or not goes_on:
            break
        parts.append(message.content)
        goes_on = False
    return "".join(reversed(parts))


def decode(data: bytes) -> Message:
    """The message that `encode` wrote."""
    wire = orjson.loads(data)
    calls = tuple(
        ToolCall(call["id"], call["name"], call["arguments"], call.get("problem")) for call in wire.get("toolCalls", ())
    )
    return Message(
        wire["role"],
        wire["content"],
        wire["tokenCount"],
        calls,
        wire.get("toolCallId"),
        wire.get("isError", False),
        wire.get("editedArguments"),
        wire.get("goesOn", False),
        wire.get("workspace"),
    )
