"""Calls on one path one after the other, also when a person moves them in between."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.loop.admission import PathOrder

PATHS = ("a", "b", None)
Plan = list[tuple[str | None, str | None, int]]


async def played(plan: Plan) -> list[tuple[int, str | None]]:
    """Run calls with (path, where a person moves it, how many rounds they think): (call, path) as they ran."""
    order, ran, at_work = PathOrder(), [], set()
    places = [order.place(path) for path, _, _ in plan]

    async def one(number: int) -> None:
        path, moved, rounds = plan[number]
        try:
            for _ in range(rounds):
                await asyncio.sleep(0)
            if moved != path:
                await places[number].move(moved)
            await places[number].turn()
            if moved is not None:
                assert moved not in at_work
                at_work.add(moved)
            await asyncio.sleep(0)
            ran.append((number, moved))
            at_work.discard(moved)
        finally:
            await places[number].leave()

    async with asyncio.timeout(20):
        await asyncio.gather(*map(one, range(len(plan))))
    return ran


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(PATHS), st.integers(0, 5)), max_size=7))
def test_nothing_meets_on_a_path_and_nothing_waits_for_ever(plan: Plan) -> None:
    ran = asyncio.run(played(plan))
    assert sorted(number for number, _ in ran) == list(range(len(plan)))
    for path in ("a", "b"):
        stayed = [number for number, at in ran if at == path and plan[number][0] == path]
        moved = [number for number, at in ran if at == path and plan[number][0] != path]
        assert stayed == sorted(stayed)
        there = [number for number, at in ran if at == path]
        assert there == [*stayed, *moved]
