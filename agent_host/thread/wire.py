"""Encoded units of the conversation, kept so that sending them takes work for what is new and not for all of it."""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK_BYTES = 128 * 1024
_NOTHING: Mapping[int, bytes] = MappingProxyType({})


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
            self._blocks[place] = self._with_unit(self._blocks[place], place, number, unit)
        self._lengths[number] = len(unit)

    def chunks(self, start: int, instead: Mapping[int, bytes] = _NOTHING, *, stop: int | None = None) -> list[bytes]:
        """All units from number `start` on, commas between them, in as few pieces as that takes no copying. `instead`
        has what goes out in the place of single units; what is kept stays as it is. With `stop` only the units before
        that number, in one piece."""
        if stop is not None:
            return [b",".join(self.unit(number) for number in range(start, stop))]
        first_open = len(self._lengths) - len(self._open)
        if start >= first_open:
            return [b",".join(self._shown(start, instead))]
        first = self._place_of(start)
        whole = self._blocks[first:]
        # From the last to the first, so that the places of those before are still right.
        for number in sorted((number for number in instead if start <= number < first_open), reverse=True):
            place = self._place_of(number)
            whole[place - first] = self._with_unit(whole[place - first], place, number, instead[number])
        whole[0] = whole[0][self._offset(first, start) :]
        return [*whole, b",".join(self._shown(first_open, instead))]

    def _shown(self, start: int, instead: Mapping[int, bytes]) -> list[bytes]:
        """The open units from number `start` on."""
        first_open = len(self._lengths) - len(self._open)
        shown = self._open[start - first_open :]
        for number, unit in instead.items():
            if number >= start:
                shown[number - start] = unit
        return shown

    def _place_of(self, number: int) -> int:
        """The block that the unit of that `number` is in."""
        return bisect_right(self._block_starts, number) - 1

    def _offset(self, place: int, number: int) -> int:
        """Where the unit begins in its block."""
        return sum(length + 1 for length in self._lengths[self._block_starts[place] : number])

    def _with_unit(self, block: bytes, place: int, number: int, unit: bytes) -> bytes:
        begins = self._offset(place, number)
        return b"".join((block[:begins], unit, block[begins + self._lengths[number] :]))
