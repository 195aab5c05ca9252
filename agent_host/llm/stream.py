"""What a model call gives, whatever the gateway's dialect (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolSpec
    from agent_host.thread.messages import ToolCall
    from agent_host.thread.thread import Renderer

Meaning = Literal["complete", "continue", "cut", "blocked"]
"""What the end of an answer means for a turn without calls (AH 4.4), as its dialect says: the model is done; it wants
to go on; the answer was cut at a limit; the model or the gateway refused. With calls all but `blocked` run them and go
on."""


class TokenUsage(NamedTuple):
    """Tokens of one call as the gateway counted them; `cached_input` is the part of `input` read from its cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def to_wire(self) -> dict[str, int]:
        """By the names of the result object."""
        return {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cachedInputTokens": self.cached_input_tokens,
        }


class ModelTurn(NamedTuple):
    """One whole response. `stop_reason` is the gateway's own word, and `meaning` what its dialect makes of it.
    `replaced` counts halves of characters in it that became U+FFFD."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    stop_reason: str
    meaning: Meaning
    usage: TokenUsage
    replaced: int = 0


class StreamProtocolError(Exception):
    """The stream broke the dialect's rules, or ended before it said that it was over."""


class StreamFault(Exception):
    """The gateway reported an error inside the stream. `retryable` is its own classification."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class Assembler(Protocol):
    """Takes the events of one stream and puts the turn together."""

    content: int
    """Grows with each event that brings something of the answer, and with no other: pings bring nothing."""

    def feed(self, event: str, data: str) -> str | None:
        """Take one server-sent event; returns text to show at once. Raises StreamProtocolError, StreamFault,
        AnswerTooLarge."""
        ...

    def finish(self) -> ModelTurn:
        """The turn. Raises StreamProtocolError when the stream was cut, AnswerTooLarge."""
        ...


class Dialect(Protocol):
    """One wire format of a gateway: request out, events in."""

    @property
    def path(self) -> str:
        """Where requests are posted, behind the gateway's URL."""
        ...

    @property
    def renderer(self) -> Renderer:
        """Messages to wire form."""
        ...

    def headers(self, token: str | None) -> Mapping[str, str]:
        """Request headers, credentials included."""
        ...

    def head(self, *, model: str, max_tokens: int, system: str, tools: Sequence[ToolSpec]) -> bytes:
        """The request's JSON up to where the first message goes; encoded once a session. `tail` closes it."""
        ...

    @property
    def tail(self) -> bytes:
        """What closes the request's JSON behind the last message."""
        ...

    def assembler(self, max_call_arguments_bytes: int | None = None) -> Assembler:
        """A fresh assembler for one response; None: the arguments of a call have no limit."""
        ...

    def error_message(self, body: Any) -> str | None:
        """The human part of an error body, None when it is not of this dialect."""
        ...
