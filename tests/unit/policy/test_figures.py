"""How much of what others write is refused: a corpus that was drawn before it was judged."""

from __future__ import annotations

import pytest

from tests.support.shell_figures import LEVELS, PAGE, page, refusals, rows


def test_the_page_of_what_is_refused_is_current_and_the_shares_are_what_they_may_be() -> None:
    judged = rows()
    assert page(judged) == PAGE.read_text("utf-8"), "python -m tests.support.shell_figures writes it"
    assert len(judged) >= 400
    assert sum(bool(one.by_list) for one in judged) / len(judged) <= 0.08
    assert sum(bool(one.by_ci) for one in judged) / len(judged) <= 0.185


@pytest.mark.parametrize(
    ("name", "number"), [("build", {"none": 3, "sandbox": 0}), ("docs", {"none": 1, "sandbox": 0})]
)
def test_of_a_hundred_ordinary_lines_few_are_refused_falsely(name: str, number: dict[str, int]) -> None:
    """The exact number, so that what a change gains is not lost again; 3 of 100 are the most there may be."""
    false = [(one.level, one.id, one.reason) for one in refusals(name) if one.right is None]
    assert {level: sum(one[0] == level for one in false) for level in LEVELS} == number, false
