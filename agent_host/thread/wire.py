"""Encoded units of the conversation, kept so that sending them takes work for what is new and not for all of it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

_BLOCK_BYTES = 128 * 1024


class Mark(NamedTuple):
    """The mark that a wire puts at the end of a unit: `data`, in front of the unit's last `before` bytes."""

    data: bytes
    before: int


NO_MARK: Final = Mark(b"", 1)


class WireBuffer:
    """Grows at its end. Units are gathered into blocks, each made once; a request then consists of a few large chunks,
    and no unit is looked at again for it (invariant 8)."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []  # each ends with a comma: something always follows it
        self._block_starts: list[int] = []  # number of the first unit in each block
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def append(self, unit: bytes) -> None:
        """Add one unit: one or more JSON objects with commas between them."""
        if self._open_bytes >= _BLOCK_BYTES:
            self._block_starts.append(len(self._lengths) - len(self._open))
            self._blocks.append(b",".join(self._open) + b",")
            self._open, self._open_bytes = [], 0
        self._open.append(unit)
        self._open_bytes += len(unit)
        self._lengths.append(len(unit))

    def unit(self, number: int) -> bytes:
        """The unit of that `number`."""
        first_open = len(self._lengths) - len(self._open)
        if number >= first_open:
            return self._open[number - first_open]
        place = self._place_of(number)
        begins = self._offset(place, number)
        return self._blocks[place][begins : begins + self._lengths[number]]

    def replace(self, number: int, unit: bytes) -> None:
        """Put another unit in the place of that `number`. Only the block that it is in is made again."""
        first_open = len(self._lengths) - len(self._open)
        if number >= first_open:
            self._open_bytes += len(unit) - self._lengths[number]
            self._open[number - first_open] = unit
        else:
            place = self._place_of(number)
            self._blocks[place] = self._insert_unit(self._blocks[place], place, number, unit)
        self._lengths[number] = len(unit)

    def chunks(
        self, start: int, marks: Collection[int] = (), mark: Mark = NO_MARK, *, stop: int | None = None
    ) -> list[bytes]:
        """All units from number `start` on, commas between them, in as few pieces as that takes no copying, with `mark`
        at the end of the units `marks`. With `stop` only the units before that number, in one piece."""
        if stop is not None:
            return [b",".join(self.unit(number) for number in range(start, stop))]
        first_open = len(self._lengths) - len(self._open)
        if start >= first_open:
            return [self._join(start, marks, mark)]
        first = self._place_of(start)
        begins = self._offset(first, start)
        found: list[bytes] = []
        for place in range(first, len(self._blocks)):
            block, at = self._blocks[place], begins if place == first else 0
            for number in sorted(number for number in marks if start <= number < first_open):
                if self._place_of(number) == place:
                    ends = self._offset(place, number) + self._lengths[number] - mark.before
                    found += [block[at:ends], mark.data]
                    at = ends
            found.append(block[at:])
        return [*found, self._join(first_open, marks, mark)]

    def _join(self, start: int, marks: Collection[int], mark: Mark) -> bytes:
        """The open units from number `start` on."""
        shown = self._open[start - (len(self._lengths) - len(self._open)) :]
        if not any(number >= start for number in marks):
            return b",".join(shown)
        pieces: list[bytes | memoryview] = []  # a unit may be large: it is copied once, as it is without marks
        for number, unit in enumerate(shown, start):
            if number in marks:
                view = memoryview(unit)
                pieces += [view[: -mark.before], mark.data, view[-mark.before :], b","]
            else:
                pieces += [unit, b","]
        return b"".join(pieces[:-1])

    def _place_of(self, number: int) -> int:
        """The block that the unit of that `number` is in."""
        return bisect_right(self._block_starts, number) - 1

    def _offset(self, place: int, number: int) -> int:
        """The first byte of the unit in its block."""
        return sum(length + 1 for length in self._lengths[self._block_starts[place] : number])

    def _insert_unit(self, block: bytes, place: int, number: int, unit: bytes) -> bytes:
        begins = self._offset(place, number)
        return b"".join((block[:begins], unit, block[begins + self._lengths[number] :]))
