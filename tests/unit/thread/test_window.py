"""Which units are sent (AH 5.4): a pure function, so its promises are checked over anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_host.thread import RECENT_UNITS, REFILL, advance, cut

sizes_of_units = st.lists(st.integers(0, 500), min_size=1, max_size=40)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    sizes = draw(sizes_of_units)
    start = draw(st.integers(0, len(sizes) - 1))
    return sizes, start, sum(sizes[start:]), draw(st.integers(-100, 3000))


@given(windows())
def test_the_window_only_moves_on_and_keeps_the_last_unit(window: tuple[list[int], int, int, int]) -> None:
    sizes, start, kept, budget = window
    moved, left = advance(sizes, start, kept, budget)
    assert start <= moved <= len(sizes) - 1
    assert left == sum(sizes[moved:])


@given(windows())
def test_what_is_left_fits_unless_it_is_a_single_unit(window: tuple[list[int], int, int, int]) -> None:
    sizes, start, kept, budget = window
    moved, left = advance(sizes, start, kept, budget)
    assert left <= budget or moved == len(sizes) - 1


@given(windows())
def test_what_fits_is_left_alone(window: tuple[list[int], int, int, int]) -> None:
    sizes, start, kept, _ = window
    assert advance(sizes, start, kept, kept) == (start, kept)
    assert advance(sizes, start, kept, kept + 1) == (start, kept)


@given(windows())
def test_a_second_look_changes_nothing(window: tuple[list[int], int, int, int]) -> None:
    sizes, start, kept, budget = window
    moved, left = advance(sizes, start, kept, budget)
    assert advance(sizes, moved, left, budget) == (moved, left)


@given(windows())
def test_no_more_goes_than_must(window: tuple[list[int], int, int, int]) -> None:
    sizes, start, kept, budget = window
    moved, left = advance(sizes, start, kept, budget)
    if moved == start:
        return
    with_one_more = left + sizes[moved - 1]
    recent = moved > len(sizes) - RECENT_UNITS
    assert with_one_more > (budget if recent else int(budget * REFILL))


def test_a_cut_makes_room_for_the_steps_to_come() -> None:
    sizes = [100] * 11
    assert advance(sizes, 0, 1100, 1000) == (7, 400)


def test_the_recency_window_is_kept_above_the_refill_mark() -> None:
    sizes = [10, 240, 240, 240, 240]
    assert advance(sizes, 0, sum(sizes), 960) == (1, 960)


def test_a_thread_that_grows_is_cut_seldom() -> None:
    sizes: list[int] = []
    start = kept = cuts = 0
    for _ in range(1000):
        sizes.append(100)
        kept += 100
        moved, kept = advance(sizes, start, kept, 10_000)
        cuts += moved != start
        start = moved
        assert kept <= 10_000
    assert cuts <= 17


@given(windows())
def test_a_hard_cut_drops_what_is_above_the_budget_and_keeps_the_last_unit(
    window: tuple[list[int], int, int, int],
) -> None:
    sizes, start, kept, budget = window
    moved, left = cut(sizes, start, kept, budget)
    assert start <= moved <= len(sizes) - 1
    assert left == sum(sizes[moved:])
    assert left <= budget or moved == len(sizes) - 1
    assert moved == start or left + sizes[moved - 1] > budget
    assert cut(sizes, moved, left, budget) == (moved, left)
