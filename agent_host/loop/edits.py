"""Arguments that the person who approved a call wrote in place of the model's: what runs, and what the model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agent_host import lenient_json
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext
    from state.open_step import Call

_MAX_SHOWN_CHARS = 2000
_MAX_KEPT_BYTES = 16 * 1024
# As earlier versions began it; what they kept has the arguments nowhere else.
_OLD_START = "[Whoever approved this call changed its arguments. It was run, or refused, with: "
_START = "[The person who approved this call changed its arguments. It was run, or refused, with: "
_END = "]"


def call_on_record(call: Call) -> ToolCall:
    """`call` as it is run, or was."""
    if call.edited_arguments is None:
        return ToolCall(call.call_id, call.tool_name, call.arguments, call.problem)
    return ToolCall(call.call_id, call.tool_name, call.edited_arguments)


def note_of_edit(ctx: LoopContext, call: ToolCall) -> str:
    """What the model reads in front of the result of an edited call; ends its line."""
    shown = lenient_json.dumps(ctx.scrubber.value(call.arguments)).decode()
    if len(shown) > _MAX_SHOWN_CHARS:
        shown = f"{shown[:_MAX_SHOWN_CHARS]}… ({len(shown) - _MAX_SHOWN_CHARS} more characters)"
    return f"{_START}{shown}{_END}\n"


def kept_arguments(ctx: LoopContext, call: ToolCall) -> Any | None:
    """The arguments of an edited call as they stay on record beside its result, without secrets; None where they are
    longer than a message holds itself (`state.large`)."""
    clean = ctx.scrubber.value(call.arguments)
    return clean if len(lenient_json.dumps(clean)) <= _MAX_KEPT_BYTES else None


def arguments_in_note(text: str) -> dict[str, Any] | None:
    """The arguments that `note_of_edit` put in front of the result `text`, without their secrets; None where they were
    too long for it. For records of earlier versions, which have them nowhere else, and only for the result of a call
    that is known to be edited: any tool may print the like."""
    line = text.partition("\n")[0]
    start = next((one for one in (_START, _OLD_START) if line.startswith(one)), None)
    if start is None or not line.endswith(_END):
        return None
    try:
        arguments = orjson.loads(line[len(start) : -len(_END)])
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None
