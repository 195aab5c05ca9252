"""The wire dialects of the scripted gateway, a module for each; and the interface between the two, with the values that
pass there."""

from __future__ import annotations

import re
from collections import OrderedDict
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.testing.script import ErrorBody, RequestView, Turn


_LOOK_BACK = 20
_MAX_MARKS = 4
_MAX_ENTRIES = 100_000
_MINIMUM_TOKENS = 1024
"""A beginning of fewer tokens is not kept: the usual minimum."""
_BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 128 * _BYTES_PER_TOKEN


class BadRequest(ValueError):
    """The request is not one that a real gateway would take; the text says what is wrong and where."""


class MockDialect(Protocol):
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


class CachePiece(NamedTuple):
    """A part of a request that is kept or sent anew as a whole. `marked`: a cache mark stands at its end, `long`: one
    that asks for an hour."""

    data: bytes
    marked: bool = False
    long: bool = False


def blocks_of(data: bytes) -> list[CachePiece]:
    """A part of a request as a provider without marks keeps it: by blocks, so that a beginning of it is found again."""
    return [CachePiece(data[start : start + _BLOCK_BYTES]) for start in range(0, len(data), _BLOCK_BYTES)]


class Counts(NamedTuple):
    """Tokens of one request: in all, and of these read from the cache and written to it; of those written the ones that
    are kept for an hour."""

    whole: int
    read: int
    written: int
    long: int = 0


class TooManyMarks(ValueError):
    """A request has more cache marks than a provider takes."""


def tokens_of(data: bytes) -> int:
    """Tokens of a text: four bytes are one. Coarse, and the same on every machine."""
    return -(-len(data) // _BYTES_PER_TOKEN)


class PromptCache:
    """The cache of one provider, for all models and sessions that ask it. Nothing expires: tests have no clock."""

    def __init__(self, minimum_tokens: int = _MINIMUM_TOKENS) -> None:
        self._minimum = minimum_tokens
        self._kept: OrderedDict[bytes, None] = OrderedDict()

    def count(self, model: str, pieces: Sequence[CachePiece], *, has_marks: bool) -> Counts:
        """Count a request that was answered, and keep what the provider would keep of it. Raises TooManyMarks."""
        ends = list(_prefixes(model, pieces))
        marks = [place for place, piece in enumerate(pieces) if piece.marked] if has_marks else [len(pieces) - 1]
        if len(marks) > _MAX_MARKS:
            raise TooManyMarks(f"a request may have {_MAX_MARKS} cache marks, this one has {len(marks)}")
        back = _LOOK_BACK if has_marks else len(pieces)
        read = max((tokens for mark in marks for tokens in self._find_known(ends, mark, back)), default=0)
        written = max((ends[mark].tokens for mark in marks if ends[mark].tokens >= self._minimum), default=0)
        for place in marks if has_marks else range(len(ends)):
            if ends[place].tokens >= self._minimum:
                self._keep(ends[place].digest)
        for_an_hour = (ends[mark].tokens for mark in marks if pieces[mark].long)
        long = max((tokens for tokens in for_an_hour if tokens <= written), default=0)
        return Counts(ends[-1].tokens if ends else 0, read, max(0, written - read), max(0, long - read))

    def _find_known(self, ends: Sequence[_Prefix], mark: int, back: int) -> Iterator[int]:
        """Tokens of what is kept at the mark or up to `back` pieces before it, the longest first."""
        for place in range(mark, max(-1, mark - back), -1):
            if ends[place].digest in self._kept:
                yield ends[place].tokens
                return

    def _keep(self, digest: bytes) -> None:
        self._kept[digest] = None
        self._kept.move_to_end(digest)
        if len(self._kept) > _MAX_ENTRIES:
            self._kept.popitem(last=False)


class _Prefix(NamedTuple):
    digest: bytes
    tokens: int


def _prefixes(model: str, pieces: Sequence[CachePiece]) -> Iterator[_Prefix]:
    running, tokens = blake2b(model.encode(), digest_size=16), 0
    for piece in pieces:
        running.update(len(piece.data).to_bytes(8, "big") + piece.data)
        tokens += tokens_of(piece.data)
        yield _Prefix(running.digest(), tokens)
