"""A table whose rows are one test has all of them run, and tells each that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.support.rows import each_row


def test_every_row_runs_with_the_fixtures_and_those_that_fail_are_told() -> None:
    ran = []

    @each_row(("left", "right"), [(1, 1), (1, 2), pytest.param(2, 2, id="two"), (3, 4)])
    def same(left: int, right: int, folder: str) -> None:
        ran.append((left, right, folder))
        assert left == right

    assert list(inspect.signature(same).parameters) == ["folder"]
    with pytest.raises(BaseExceptionGroup) as failed:
        same(folder="/w")
    assert ran == [(1, 1, "/w"), (1, 2, "/w"), (2, 2, "/w"), (3, 4, "/w")]
    notes = [one.__notes__ for one in failed.value.exceptions]
    assert notes == [["with left = 1, right = 2"], ["with left = 3, right = 4"]]


@each_row("row", [(1, 2), "text", None])
def test_one_name_stands_for_a_whole_row(row: object) -> None:
    assert row in ((1, 2), "text", None)


async def test_one_that_waits_is_waited_for_and_tables_multiply() -> None:
    ran = []

    @each_row("a", "xy")
    @each_row("b", [1, 2])
    async def pairs(a: str, b: int) -> None:
        ran.append((a, b))
        assert (a, b) != ("y", 2)

    with pytest.raises(AssertionError) as failed:
        await pairs()
    assert ran == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert failed.value.__notes__ == ["with b = 2", "with a = 'y'"]


@pytest.mark.parametrize("end", [pytest.skip, pytest.fail])
def test_a_row_that_is_skipped_or_fails_by_a_word_is_one_that_failed(end: object) -> None:
    @each_row("number", range(9))
    def some(number: int) -> None:
        assert callable(end)
        end("why")

    with pytest.raises(BaseExceptionGroup, match="at least 5 rows failed"):
        some()


def test_a_table_has_rows_and_no_marks() -> None:
    with pytest.raises(AssertionError):
        each_row("a", [])
    with pytest.raises(AssertionError):
        each_row("a", [pytest.param(1, marks=pytest.mark.slow)])
