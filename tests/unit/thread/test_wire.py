"""Chunks of the thread: put together they are always the units with commas between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_host.thread as wire
from agent_host.thread import WireBuffer

units_of_sizes = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=40)


@given(units_of_sizes, st.integers(1, 80), st.data())
def test_any_part_of_the_thread_comes_out_whole(units: list[bytes], block_bytes: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(units) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_BLOCK_BYTES", block_bytes)
        buffer = WireBuffer()
        for number, unit in enumerate(units, 1):
            buffer.append(unit)
            if start < number:
                assert b"".join(buffer.chunks(start)) == b",".join(units[start:number])
    assert len(buffer) == len(units)


@given(units_of_sizes, st.integers(1, 80), st.data())
def test_a_unit_may_be_replaced(units: list[bytes], block_bytes: int, data: st.DataObject) -> None:
    changes = st.lists(st.tuples(st.integers(0, len(units) - 1), st.binary(min_size=1, max_size=60)), max_size=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_BLOCK_BYTES", block_bytes)
        buffer = WireBuffer()
        for unit in units:
            buffer.append(unit)
        for number, unit in data.draw(changes):
            buffer.replace(number, unit)
            units[number] = unit
        buffer.append(b"end")
    start = data.draw(st.integers(0, len(units) - 1))
    assert b"".join(buffer.chunks(start)) == b",".join([*units[start:], b"end"])


def test_a_long_thread_is_a_few_chunks_that_are_made_once() -> None:
    buffer = WireBuffer()
    for _ in range(2000):
        buffer.append(b"x" * 1000)
    first = buffer.chunks(0)
    assert len(first) < 20
    buffer.append(b"new")
    again = buffer.chunks(0)
    assert all(one is other for one, other in zip(first[:-1], again[:-1], strict=True))
