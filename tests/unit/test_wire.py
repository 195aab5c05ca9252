"""`WireBuffer`: whatever is added and wherever the window starts, the chunks are the units with commas between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_host.thread as wire

UNITS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=60)


@given(units=UNITS, data=st.data())
def test_chunks_are_the_units_from_the_start_on(units: list[bytes], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_BLOCK_BYTES", 64)
        buffer = wire.WireBuffer()
        for count, unit in enumerate(units, 1):
            buffer.append(unit)
            start = data.draw(st.integers(0, count - 1))
            assert b"".join(buffer.chunks(start)) == b",".join(units[start:count])


def test_a_long_thread_is_few_chunks_and_the_same_ones_every_time() -> None:
    buffer = wire.WireBuffer()
    for _ in range(2000):
        buffer.append(b"x" * 1000)
    first, second = buffer.chunks(0), buffer.chunks(0)
    assert len(first) < 20
    assert all(one is other for one, other in zip(first[:-1], second[:-1], strict=True))
