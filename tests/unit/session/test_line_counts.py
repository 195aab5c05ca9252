"""Lines of large texts counted in slices agree with what a diff of them says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host import text_diff
from agent_host.text_diff import compare, count_replaced
from tests.support.rows import each_row

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "ü\n", "\n", "a", "c\r"]), max_size=12).map("".join).map(str.encode)


def counted(before: bytes, after: bytes, slice_bytes: int = 1024) -> tuple[int, int] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_diff, "_SLICE_BYTES", slice_bytes)
        return count_replaced(before, len(after), lambda at, size: after[at : at + size])


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.integers(1, 9))
def test_the_counts_are_those_of_a_diff_or_of_a_coarser_one(
    start: bytes, old: bytes, new: bytes, end: bytes, slice_bytes: int
) -> None:
    before, after = start + old + end, start + new + end
    counts = counted(before, after, slice_bytes)
    assert counts is not None
    diff = compare(before, after)
    assert counts[0] - counts[1] == diff.additions - diff.deletions
    assert counts[0] >= diff.additions


@each_row(
    ("before", "after", "counts"),
    [
        (b"", b"", (0, 0)),
        (b"same\n", b"same\n", (0, 0)),
        (b"same", b"same", (0, 0)),
        (b"a\nb\n", b"a\nx\nb\n", (1, 0)),
        (b"a\nb", b"a\nb\n", (1, 1)),
        (b"a\na\na\n", b"a\na\n", (0, 1)),
        (b"xa\n", b"ya\n", (1, 1)),
        (b"one\nxb\ntwo\n", b"one\nyb\ntwo\n", (1, 1)),
    ],
)
def test_by_hand(before: bytes, after: bytes, counts: tuple[int, int]) -> None:
    assert counted(before, after) == counts


@pytest.mark.parametrize("after", [b"\0", b"\xff", b"a\xc3", b"\xc3\xbc" * 9 + b"\xc3"])
def test_what_is_no_text_has_no_lines(after: bytes) -> None:
    assert counted(b"", after, 1) is None
    assert counted(b"", after, 7) is None
