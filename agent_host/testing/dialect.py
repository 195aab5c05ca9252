"""What the gateway asks of a wire dialect, and the values that pass between the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.testing.prompt_cache import Piece
    from agent_host.testing.script import ErrorBody, Turn


class BadRequest(ValueError):
    """The request is not one that a real gateway would take; the text says what is wrong and where."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a script can see of a request, whatever the dialect.

    `turn_index` is the number of assistant messages that the conversation had before this request, `position` the same
    without those that came from turns with `when` (as far as tool ids show). `last_text` is all text of the newest
    message: prose and tool results, joined by newlines. `last_images` are the media types of its images, `image_count`
    is the number of images in the whole request. `wants_usage`: a streamed answer is to have counts of tokens.
    """

    session: str
    model: str
    system: str
    max_tokens: int | None
    stream: bool
    tools: tuple[str, ...]
    message_count: int
    turn_index: int
    position: int
    last_role: str
    last_text: str
    last_tool_error: bool
    headers: Mapping[str, str]
    last_images: tuple[str, ...] = ()
    image_count: int = 0
    wants_usage: bool = True


class Dialect(Protocol):
    """One wire format. Implementations are pure: bytes and values, no I/O."""

    @property
    def path(self) -> str:
        """The path that requests are posted to."""
        ...

    @property
    def closing_events(self) -> int:
        """How many of the last events of a stream declare the answer complete."""
        ...

    def read(self, payload: Any, headers: Mapping[str, str]) -> RequestView:
        """Check the decoded request body and take from it what scripts look at.

        Raises:
            BadRequest: a real gateway would refuse this body.
        """
        ...

    @property
    def has_cache_marks(self) -> bool:
        """True if requests say what the provider is to keep; else it keeps what it can."""
        ...

    def pieces(self, payload: Any) -> Sequence[Piece]:
        """A request that `read` took, in the order and the parts in which a provider's cache sees it."""
        ...

    def stream_events(self, turn: Turn, view: RequestView) -> Sequence[bytes]:
        """The answer as encoded stream events, one item each, the last one ending the stream properly."""
        ...

    def error_event(self, error: ErrorBody, view: RequestView) -> bytes:
        """The event that reports an error after the stream has begun."""
        ...

    def failed_message(self, error: ErrorBody, view: RequestView) -> bytes | None:
        """The same for a request that did not ask for a stream, with HTTP 200; None where the wire has nothing such."""
        ...

    def message(self, turn: Turn, view: RequestView) -> bytes:
        """The answer to a request that did not ask for a stream: one JSON body."""
        ...

    def error(self, status: int, error: ErrorBody) -> bytes:
        """The body of an HTTP error; an empty `error.type` means the usual one for `status`."""
        ...
