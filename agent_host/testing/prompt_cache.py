"""A simulation of a provider's prompt cache: what it would read and write of each request by the rules of today's
providers.

A request is a row of pieces: tools, system prompt, blocks of messages. A provider with marks (Anthropic) writes what
stands before each mark, and reads by looking some pieces back from a mark for what was written before. One without
marks (OpenAI) does both by itself, for the longest beginning that it knows.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOK_BACK = 20
_MAX_MARKS = 4
_MAX_ENTRIES = 100_000
MINIMUM_TOKENS = 1024
"""A beginning of fewer tokens is not kept: the usual minimum."""
_BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 128 * _BYTES_PER_TOKEN


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

    def __init__(self, minimum_tokens: int = MINIMUM_TOKENS) -> None:
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
