"""The interface between the gateway and a wire dialect, and the values that pass between the two."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent_host.testing.prompt_cache import CachePiece
    from agent_host.testing.script import ErrorBody, RequestView, Turn


class BadRequest(ValueError):
    """The request is not one that a real gateway would take; the text says what is wrong and where."""


class Dialect(Protocol):
    """One wire format. Implementations are pure: bytes and values, no I/O."""

    @property
    def path(self) -> str:
        """The path that requests are posted to."""
        ...

    @property
    def closing_events(self) -> int:
        """The number of last events of a stream that declare the answer complete."""
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

    def pieces(self, payload: Any) -> Sequence[CachePiece]:
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


# Ids of the tool calls that the gateway makes up. They carry all that it would have to remember of a conversation:
# how far it has come, and a mark of the thinking that has to come back.

_OWN = re.compile(r"[a-z]+_(\d+)_\d+(?:_(\d+))?(?:_t([0-9a-f]{4})([0-9a-f]{12}))?")


def tool_id(view: RequestView, call: int, *, takes_position: bool, mark: str = "", prefix: str = "toolu") -> str:
    """An id for the tool call with index `call` in the answer to `view`, unique in its conversation.

    It carries how far the conversation has come, for `progress` to read: `toolu_{turn_index}_{call}`, and after that
    the position of the next answer where turns with `when` have made it lag behind. `mark` is what it ends with
    (`mark_of`).
    """
    next_position = view.position + takes_position
    plain = f"{prefix}_{view.turn_index}_{call}"
    return (plain if next_position == view.turn_index + 1 else f"{plain}_{next_position}") + mark


def progress(answers: Iterable[Sequence[object]]) -> tuple[int, int]:
    """`turn_index` and `position` of a request (see `RequestView`), from the ids of the calls of each assistant's
    message, the newest first.

    Counting these messages falls short once a client has dropped old ones to fit its context window, and cannot show
    which of them came from turns with `when`. So the newest id of ours decides, and only what follows it is counted: a
    gateway that has just started knows as much as one that has seen the whole session.
    """
    count = 0
    for ids in answers:
        count += 1
        for call_id in ids:
            if own := _OWN.fullmatch(str(call_id)):
                turn_index = int(own[1]) + 1
                position = turn_index if own[2] is None else int(own[2])
                return turn_index + count - 1, position + count - 1
    return count, count


def mark_of(model: str, thinking: object) -> str:
    """The end of the ids of calls after this thinking of `model`; empty if there is none."""
    return f"_t{_digest(model)[:4]}{_digest(thinking)[:12]}" if thinking else ""


def has_mark_of(call_id: object, model: str) -> bool:
    """True if the id has a mark, and that of `model`: another model reads no thinking of it."""
    own = _OWN.fullmatch(str(call_id))
    return own is not None and own[3] == _digest(model)[:4]


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
