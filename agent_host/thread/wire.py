"""Encoded units of the conversation, kept so that sending them takes work for what is new and not for all of it."""

from __future__ import annotations

from bisect import bisect_right

_BLOCK_BYTES = 128 * 1024


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

    def replace(self, number: int, unit: bytes) -> None:
        """Put another unit in the place of that `number`. Only the block that it is in is made again."""
        first_open = len(self._lengths) - len(self._open)
        if number >= first_open:
            self._open_bytes += len(unit) - self._lengths[number]
            self._open[number - first_open] = unit
        else:
            place = bisect_right(self._block_starts, number) - 1
            block, first = self._blocks[place], self._block_starts[place]
            begins = sum(length + 1 for length in self._lengths[first:number])
            self._blocks[place] = b"".join((block[:begins], unit, block[begins + self._lengths[number] :]))
        self._lengths[number] = len(unit)

    def chunks(self, start: int) -> list[bytes]:
        """All units from number `start` on, commas between them, in as few pieces as that takes no copying."""
        first_open = len(self._lengths) - len(self._open)
        if start >= first_open:
            return [b",".join(self._open[start - first_open :])]
        whole = [block for block, first in zip(self._blocks, self._block_starts, strict=True) if first >= start]
        if len(whole) < len(self._blocks):
            cut = len(self._blocks) - len(whole) - 1
            begins = sum(length + 1 for length in self._lengths[self._block_starts[cut] : start])
            rest = self._blocks[cut][begins:]
            whole = [rest, *whole] if rest else whole
        return [*whole, b",".join(self._open)]
