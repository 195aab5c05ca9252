"""The gateway: requests, answers, dialects (AH 6). Here are results of a model call, whatever the dialect (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from agent_host.thread.messages import Block, Order, ToolCall
    from state.checkpoint import TokenUsage

Meaning = Literal[
    "complete", "continue", "cut", "window", "blocked", "unknown", "empty", "call_as_text", "repeated", "bad_answer"
]
"""The meaning of an answer's end for a turn without calls (AH 4.4), as its dialect says: the model is done; it paused
and wants to go on; the answer was cut at a limit; the model's context window was full; the model or the gateway
refused; the dialect does not know the word; it says that there are calls, and has none. With calls all but `blocked`
run them and go on. The client cuts an answer that repeats itself (`repeated`), and the loop finds calls that are
written as text and final answers that do not fit their schema (`agent_host.loop.progress`)."""


MAX_DETAIL = 500


class ModelTurn(NamedTuple):
    """One whole response. `stop_reason` is the gateway's own word, and `meaning` what its dialect makes of it.
    `replaced` counts halves of characters in it that became U+FFFD. `blocks` are what the provider alone reads, `order`
    is their place among text and calls (`agent_host.thread.messages`); `dropped_blocks` counts those that cannot go
    back unchanged. `response_id` and `response_model` are what the gateway calls the answer and the model that made it,
    "" where it does not say. `detail` is what it says of the stop besides: which limit cut the answer, why the model
    refused; "" for nothing, at most `MAX_DETAIL` characters."""

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
    """The stream broke the dialect's rules, or ended before it said that it was over."""


class AnswerTooLarge(Exception):
    """The answer is over a limit; `str()` of it names what, how much and the setting. A retry would be over it too."""

    def __init__(self, what: str, setting: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit} bytes (llm.{setting})")


class StreamFault(Exception):
    """The gateway reported an error inside the stream. `body` is the error as JSON value, by which
    `agent_host.llm.errors` says what it means; `retryable` counts where that knows nothing of it."""

    def __init__(self, message: str, *, retryable: bool = True, body: Any = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.body = body
