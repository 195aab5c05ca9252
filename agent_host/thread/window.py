"""Which part of the conversation is sent when all of it no longer fits (AH 5.4). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# After a cut the window is filled to this share of the budget, so that the next cut is many steps away: a prefix that
# stays the same from call to call is what gateways cache.
REFILL = 0.4
# The recency window: so many of the last units are kept even when that leaves the refill mark unreached.
RECENT_UNITS = 4


def advance(sizes: Sequence[int], start: int, kept: int, budget: int) -> tuple[int, int]:
    """Where the window starts now.

    `sizes` are tokens of each unit (a user message, or an assistant message with all its results), `start` the present
    first unit, `kept` the tokens from there on, `budget` what may be kept. Returns the new (start, kept). A unit is
    kept or dropped whole, so no call ever loses its result; the last unit is always kept.
    """
    if kept <= budget:
        return start, kept
    target = int(budget * REFILL)
    newest = len(sizes) - 1
    while start < newest and kept > (target if start < len(sizes) - RECENT_UNITS else budget):
        kept -= sizes[start]
        start += 1
    return start, kept


def cut(sizes: Sequence[int], start: int, kept: int, budget: int) -> tuple[int, int]:
    """Where the window starts when no more than `budget` tokens may be left, recent units or not; as `advance`."""
    newest = len(sizes) - 1
    while start < newest and kept > budget:
        kept -= sizes[start]
        start += 1
    return start, kept
