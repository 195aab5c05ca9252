"""The gateway: requests, answers and dialects (AH 6). This module has the results of a model call in any dialect (AH
6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from agent_host.thread.messages import Block, Order, ToolCall
    from state.checkpoint import TokenUsage

Meaning = Literal[
    "complete", "continue", "cut", "window", "blocked", "unknown", "empty", "call_as_text", "repeated", "bad_answer"
]
"""The meaning of an answer's stop reason for a turn without calls (AH 4.4), as its dialect maps it: the model is done;
it paused and wants to continue; the answer was cut at a limit; the model's context window was full; the model or the
gateway refused; the stop reason is unknown; it announces calls, but the answer has none. With any meaning but
`blocked`, a turn's calls are run and the loop continues. The client cuts an answer that repeats itself (`repeated`),
and the loop detects calls that are written as text and final answers that do not match their schema
(`agent_host.loop.progress`)."""


MAX_DETAIL = 500


class ModelTurn(NamedTuple):
    """One complete response. `stop_reason` is the gateway's own word, `meaning` the dialect's interpretation of it.
    `replaced` counts lone surrogates that became U+FFFD. `blocks` are parts that only the provider reads, `order` is
    their order among text and calls (`agent_host.thread.messages`); `dropped_blocks` counts those that cannot be sent
    back unchanged. `response_id` and `response_model` are the gateway's names of the answer and of the model that made
    it, "" if it gives none. `detail` is further information about the stop, such as the limit that cut the answer or
    the reason of a refusal; "" for none, at most `MAX_DETAIL` characters."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    stop_reason: str
    meaning: Meaning
    usage: TokenUsage
    replaced: int = 0
    blocks: tuple[Block, ...] = ()
    order: Order = ()
    dropped_blocks: int = 0
    response_id: str = ""
    response_model: str = ""
    detail: str = ""


class StreamProtocolError(Exception):
    """The stream broke the dialect's rules, or ended without its last event."""


class AnswerTooLarge(Exception):
    """The answer exceeds a limit; its `str()` names the part, the limit and the setting. A retry would exceed it
    too."""

    def __init__(self, what: str, setting: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit} bytes (llm.{setting})")


class StreamFault(Exception):
    """The gateway reported an error inside the stream. `body` is the error's JSON value, which `agent_host.llm.errors`
    classifies; `retryable` is used if that finds nothing."""

    def __init__(self, message: str, *, retryable: bool = True, body: Any = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.body = body
