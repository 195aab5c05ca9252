"""Results of a model call, whatever the gateway's dialect (AH 6.3)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, Protocol

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.llm.client import LlmClient
    from agent_host.llm.models import Cost, ModelFacts, Models
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


# Lazy LLM client and model table: both are expensive to import and not needed for the first reply. Both are made when
# they are first needed.


class Model(Protocol):
    """The model that answers the loop's requests."""

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See `LlmClient.stream`."""
        ...

    def warm_up(self) -> None:
        """Get ready for the first request, beside the event loop."""
        ...

    async def aclose(self) -> None:
        """Let go of the connection."""
        ...


class DeferredClient:
    """A `Model` that is `make()` from its first request on. Used on one event loop."""

    def __init__(self, make: Callable[[], LlmClient]) -> None:
        self._make = make
        self._client: LlmClient | None = None

    def warm_up(self) -> None:
        """See Model: what the first request imports takes a while. The process waits for it when it ends: C code that
        is cut off in the middle of an import crashes."""
        threading.Thread(target=import_client, name="warm-up").start()

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See `LlmClient.stream`. Raises what making the client raises, too."""
        if self._client is None:
            self._client = self._make()
        return await self._client.stream(head, messages, on_text, on_thinking, on_sent)

    async def aclose(self) -> None:
        """Close the connection, where there is one."""
        if self._client is not None:
            await self._client.aclose()


class KnownModels:
    """Facts about models, with `configured`, the section `[models]`, over the shipped table; see
    `agent_host.llm.models.Models`."""

    def __init__(self, configured: Mapping[str, Mapping[str, Any]]) -> None:
        self._configured = configured
        self._models: Models | None = None

    def of(self, model: str) -> ModelFacts:
        """The limits and the prices of `model`."""
        return self._table().of(model)

    def is_configured(self, model: str, field: str) -> bool:
        """True if an entry of the user for `model` has this field."""
        return self._table().is_configured(model, field)

    def cost(self, usage: TokenUsage, by_model: Mapping[str, TokenUsage]) -> Cost | None:
        """The cost of `usage`, which is `by_model`; None if it is not known."""
        return self._table().cost(usage, by_model) if self._configured else None

    def unpriced(self, usage: TokenUsage, by_model: Mapping[str, TokenUsage]) -> str | None:
        """Why the cost of `usage` is not known, None where it is."""
        return self._table().unpriced(usage, by_model)

    def _table(self) -> Models:
        if self._models is None:
            from agent_host.llm.models import Models

            self._models = Models(self._configured)
        return self._models


def import_client() -> None:
    """Import what makes requests."""
    import agent_host.llm.client  # noqa: F401  for its effect
