"""Which lines are the same: the shortest answer for what is small, a right one in bounded time for anything."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host import text_diff
from agent_host.text_diff import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINES = st.lists(st.sampled_from("abcde"), max_size=16) | st.lists(st.integers(0, 40), max_size=40)


def edits(old: Sequence[object], new: Sequence[object]) -> int:
    """How many lines the changes touch; they turn `old` into `new`, with equal lines between each two."""
    made: list[object] = []
    at_old, touched = 0, 0
    for i1, i2, j1, j2 in changes(old, new):
        assert i1 > at_old or not made
        assert i1 < i2 or j1 < j2
        made += [*old[at_old:i1], *new[j1:j2]]
        at_old, touched = i2, touched + i2 - i1 + j2 - j1
    assert [*made, *old[at_old:]] == list(new)
    return touched


def fewest(old: Sequence[object], new: Sequence[object]) -> int:
    row = list(range(len(new) + 1))
    for line in old:
        left, row[0] = row[0], row[0] + 1
        for at, other in enumerate(new, 1):
            left, row[at] = row[at], left if line == other else 1 + min(row[at], row[at - 1])
    return row[-1]


@given(LINES, LINES)
def test_small_texts_get_the_shortest_answer(old: list[object], new: list[object]) -> None:
    assert edits(old, new) == fewest(old, new)


@given(LINES, LINES, st.integers(0, 6), st.integers(0, 60))
def test_every_way_that_a_limit_leads_to_is_right(old: list[object], new: list[object], most: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_diff, "_MAX_EDITS", most)
        patch.setattr(text_diff, "_MAX_STEPS", steps)
        edits(old, new)


COUNT = 100_000
CHANCE = random.Random(1)
LARGE: dict[str, Callable[[int], tuple[object, object]]] = {
    "nothing in common": lambda n: (f"old {n}", f"new {n}"),
    "every other line": lambda n: (n if n % 2 else f"old {n}", n if n % 2 else f"new {n}"),
    "every other line, all the same": lambda n: ("same" if n % 2 else f"{n}", "same" if n % 2 else f"new {n}"),
    "few different lines": lambda _: (CHANCE.randrange(3), CHANCE.randrange(3)),
    "lines that are there a hundred times": lambda _: (CHANCE.randrange(1000), CHANCE.randrange(1000)),
    "backwards": lambda n: (n, COUNT - n),
    "backwards in pairs": lambda n: (n // 2, (COUNT - n) // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_large_texts_take_bounded_time(case: str) -> None:
    pairs = [LARGE[case](number) for number in range(COUNT)]
    old, new = [one for one, _ in pairs], [other for _, other in pairs]
    began = time.process_time()
    edits(old, new)
    assert time.process_time() - began < 2.5  # half a second on a machine that is not busy


def test_a_few_changes_in_a_large_text_stay_a_few() -> None:
    """Also where no line is there once, and behind a block that was put in."""
    old = [number // 2 for number in range(COUNT)]
    new = [-1 if number % 100 == 0 else line for number, line in enumerate(old)]
    assert edits(old, new) == 2 * COUNT // 100
    plain: list[object] = list(range(COUNT))
    block = [f"block {number % 7}" for number in range(5000)]
    assert edits(plain, [*plain[:50_000], *block, *plain[50_000:90_000], *plain[95_000:]]) == 10_000
