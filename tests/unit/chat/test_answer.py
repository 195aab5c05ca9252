"""The text of an answer that begins again: nothing of it is printed twice, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agent_host.chat.activity import BEGINS_AGAIN, AnswerText

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = st.lists(st.text(alphabet="ab \n`-\u4e2d", max_size=9), max_size=12).map("\n\n".join)
CUTS = st.lists(st.integers(0, 120), max_size=4)


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def printed(answer: AnswerText, text: str, size: int) -> list[str | None]:
    return [block for piece in pieces(text, size) for block in answer.add(piece)]


def words(blocks: list[str | None]) -> list[str]:
    return "".join(block for block in blocks if block is not None).split()


@given(TEXTS, CUTS, st.integers(1, 7))
def test_an_answer_that_streams_again_is_printed_once(text: str, cuts: list[int], size: int) -> None:
    answer = AnswerText()
    found: list[str | None] = []
    for cut in cuts:
        found += printed(answer, text[:cut], size)
        answer.take_back()
    found += [*printed(answer, text, size), *answer.end()]
    assert BEGINS_AGAIN not in found
    assert words(found) == text.split()
    assert answer.growing == ""


@given(TEXTS, TEXTS, st.integers(1, 7))
def test_another_answer_is_printed_whole_after_a_mark(first: str, second: str, size: int) -> None:
    answer = AnswerText()
    before = printed(answer, first, size)
    answer.take_back()
    after = [*printed(answer, second, size), *answer.end()]
    if BEGINS_AGAIN in after:
        assert after.index(BEGINS_AGAIN) == 0
        assert words(after) == second.split()
    else:
        assert words([*before, *after]) == second.split()


@given(TEXTS, st.integers(0, 120), st.integers(0, 120), st.integers(1, 7))
def test_what_is_broken_off_stands_there_as_far_as_it_came(text: str, first: int, second: int, size: int) -> None:
    """By Escape, while an answer comes or comes again."""
    answer = AnswerText()
    found = printed(answer, text[:first], size)
    answer.take_back()
    found += [*printed(answer, text[:second], size), *answer.end(is_whole=False)]
    assert BEGINS_AGAIN not in found
    shown = "".join(block for block in found if block is not None)
    assert shown.split() in (text[:second].split(), words(printed(AnswerText(), text[:first], size)))


def test_a_text_that_was_taken_back_for_no_other_is_marked() -> None:
    answer = AnswerText()
    assert list(answer.add("One.\n\nTwo.")) == ["One.\n\n"]
    answer.take_back()
    assert list(answer.end()) == [BEGINS_AGAIN]
