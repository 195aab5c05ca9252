"""Tokens of model calls, as the gateway counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class TokenUsage(NamedTuple):
    """Tokens of one call, of a task or of a session.

    `input_tokens` are all tokens of the request; `cache_read_tokens` and `cache_write_tokens` are parts of them that
    the gateway read from its cache and wrote to it, and `cache_write_1h_tokens` the part of the latter that it keeps
    for an hour. `output_tokens` are all tokens of the answer, reasoning included.
    The budget of a session counts input and output (`total`), whatever a provider charges for a cached token.

    A gateway that counts too low does not raise what a session may use: `uncounted_input` and `uncounted_output` are
    what limits count beyond it (`for_limits`). They stand in records, and are no tokens of the gateway.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    uncounted_input: int = 0
    uncounted_output: int = 0

    @property
    def total(self) -> int:
        """Input and output, as the gateway counts them."""
        return self.input_tokens + self.output_tokens

    @property
    def for_limits(self) -> TokenUsage:
        """The tokens that limits count."""
        return self._replace(
            input_tokens=self.input_tokens + self.uncounted_input,
            output_tokens=self.output_tokens + self.uncounted_output,
            uncounted_input=0,
            uncounted_output=0,
        )

    def plus(self, other: TokenUsage) -> TokenUsage:
        """The sum of both."""
        return TokenUsage(*map(sum, zip(self, other, strict=True)))

    def to_wire(self) -> dict[str, int]:
        """The JSON form in events and results. Counts of what was written to the cache are left out where they are 0,
        as in files of earlier versions."""
        wire = {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cachedInputTokens": self.cache_read_tokens,
        }
        if self.cache_write_tokens:
            wire["cacheWriteTokens"] = self.cache_write_tokens
        if self.cache_write_1h_tokens:
            wire["cacheWrite1hTokens"] = self.cache_write_1h_tokens
        return wire

    def to_record(self) -> dict[str, int]:
        """The JSON form in records and snapshots: `to_wire`, and what limits count beyond it, where that is not 0."""
        beyond = {"uncountedInputTokens": self.uncounted_input, "uncountedOutputTokens": self.uncounted_output}
        return {**self.to_wire(), **{name: count for name, count in beyond.items() if count}}

    @classmethod
    def from_record(cls, wire: Mapping[str, int]) -> TokenUsage:
        """Decode what `to_record` wrote; a count that is missing is 0."""
        return cls(
            wire.get("inputTokens", 0),
            wire.get("outputTokens", 0),
            wire.get("cachedInputTokens", 0),
            wire.get("cacheWriteTokens", 0),
            wire.get("cacheWrite1hTokens", 0),
            wire.get("uncountedInputTokens", 0),
            wire.get("uncountedOutputTokens", 0),
        )


NO_TOKENS = TokenUsage()
