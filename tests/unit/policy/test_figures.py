"""How much of what others write is refused: a corpus that was drawn before it was judged."""

from __future__ import annotations

from tests.support.shell_figures import PAGE, page, rows


def test_the_page_of_what_is_refused_is_current_and_the_shares_are_what_they_may_be() -> None:
    judged = rows()
    assert page(judged) == PAGE.read_text("utf-8"), "python -m tests.support.shell_figures writes it"
    assert len(judged) >= 400
    assert sum(bool(one.by_list) for one in judged) / len(judged) <= 0.08
    assert sum(bool(one.by_ci) for one in judged) / len(judged) <= 0.185
