"""Calls on one path one after the other, also when a person moves them in between."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.loop.calls import CallDone, PathTurn

Paths = tuple[str, ...]
PATHS: tuple[Paths, ...] = (("a",), ("b",), (), ("a", "b"), ("b", "c"), ("c", "a"))
Plan = list[tuple[Paths, Paths, int]]


async def played(plan: Plan) -> list[tuple[int, Paths]]:
    """Run calls with (paths, where a person moves it, how many rounds they think): (call, paths) as they ran."""
    order, ran = dict[str, CallDone](), []
    at_work: set[str] = set()
    turns = [PathTurn(order, paths) for paths, _, _ in plan]

    async def one(number: int) -> None:
        _, moved, rounds = plan[number]
        try:
            for _ in range(rounds):
                await asyncio.sleep(0)
            await turns[number].move(moved)
            await turns[number].wait()
            assert at_work.isdisjoint(moved)
            at_work.update(moved)
            await asyncio.sleep(0)
            ran.append((number, moved))
            at_work.difference_update(moved)
        finally:
            await turns[number].leave()

    async with asyncio.timeout(20):
        await asyncio.gather(*map(one, range(len(plan))))
    return ran


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(PATHS), st.integers(0, 5)), max_size=7))
def test_nothing_meets_on_a_path_and_nothing_waits_for_ever(plan: Plan) -> None:
    ran = asyncio.run(played(plan))
    assert sorted(number for number, _ in ran) == list(range(len(plan)))
    for path in ("a", "b", "c"):
        stayed = [number for number, at in ran if path in at and plan[number][0] == at]
        moved = [number for number, at in ran if path in at and plan[number][0] != at]
        assert stayed == sorted(stayed)
        there = [number for number, at in ran if path in at]
        assert there == [*stayed, *moved]
