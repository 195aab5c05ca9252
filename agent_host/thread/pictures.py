"""Which pictures of a conversation are sent: the newest, as many as gateways take.

When there are too many, the older half goes at once, so that what stands before the newest stays the same for many
steps: a prefix that stays is what gateways cache.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent_host.thread.messages import Message

MAX_SENT: Final = 20
"""Pictures in one request. With more of them Anthropic refuses sides of more than 2000 pixels."""
MAX_SENT_BYTES: Final = 12 * 1024 * 1024
"""Bytes of the pictures in one request, before base64: gateways take requests of 20 to 32 MB."""
MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the pictures that a session keeps: all of its messages are in memory, and in one artifact at its end."""

NONE_TAKEN: Final = "this model takes no images"
ALL_KEPT: Final = f"not shown: this session has {MAX_KEPT_BYTES // 1024**2} MiB of pictures and keeps no more"
_OLDER: Final = "not shown any more, newer pictures have taken its place: read it again to see it"
_TOO_MANY: Final = "not shown: too many pictures at once, read it again to see it"


class Pictured(NamedTuple):
    """A unit of the thread that has pictures: how many, their bytes, what they count in tokens, and the unit as it is
    sent without them."""

    unit: int
    pictures: int
    size: int
    tokens: int
    without: bytes


def sizes_of(results: Sequence[Message]) -> list[int]:
    """The bytes of each picture of `results`."""
    return [len(image.data) for result in results for image in result.images]


def without_pictures(results: Sequence[Message], why: str = _OLDER) -> list[Message]:
    """`results` with `why` in the place of their pictures."""
    return [result.without_images(why) for result in results]


class SentPictures:
    """The units with pictures that are sent, oldest first. With `takes_images` false no picture is."""

    def __init__(self, *, takes_images: bool) -> None:
        self._takes_images = takes_images
        self._units: deque[Pictured] = deque()
        self._count = self._size = 0

    def admitted(self, results: Sequence[Message]) -> list[Message]:
        """The results of one turn with those of their pictures that one request may have, the last ones first."""
        if not self._takes_images:
            return without_pictures(results, NONE_TAKEN)
        admitted: list[Message] = []
        count, size = MAX_SENT, MAX_SENT_BYTES
        for result in reversed(results):
            sizes = sizes_of([result])
            fits = len(sizes) <= count and sum(sizes) <= size
            admitted.append(result if fits else result.without_images(_TOO_MANY))
            if fits:
                count, size = count - len(sizes), size - sum(sizes)
        return admitted[::-1]

    def add(self, added: Pictured) -> Iterator[Pictured]:
        """Take a unit behind the others; gives those that are to be sent without their pictures from now on."""
        self._units.append(added)
        self._count, self._size = self._count + added.pictures, self._size + added.size
        if self._count <= MAX_SENT and self._size <= MAX_SENT_BYTES:
            return
        while len(self._units) > 1 and (self._count > MAX_SENT // 2 or self._size > MAX_SENT_BYTES // 2):
            oldest = self._units.popleft()
            self._count, self._size = self._count - oldest.pictures, self._size - oldest.size
            yield oldest
