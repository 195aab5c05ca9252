"""The model's prose at a terminal: cut into blocks as it comes, and rendered to a width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.terminal import MarkdownBlocks, render

PIECES = st.lists(st.text(alphabet="a `~\n*#-\u4e2d", max_size=12), max_size=30)


@given(PIECES)
def test_nothing_but_blank_lines_is_lost_on_the_way(pieces: list[str]) -> None:
    blocks = MarkdownBlocks()
    shown = [block for piece in pieces for block in blocks.add(piece)]
    shown.append(blocks.end())
    assert "".join(shown).split() == "".join(pieces).split()
    assert not blocks.open


@given(PIECES)
def test_it_makes_no_difference_where_the_pieces_are_cut(pieces: list[str]) -> None:
    whole, cut = MarkdownBlocks(), MarkdownBlocks()
    text = "".join(pieces)
    assert list(whole.add(text)) == [block for piece in pieces for block in cut.add(piece)]
    assert whole.end() == cut.end()


def test_a_fence_is_one_block_whatever_is_in_it() -> None:
    blocks = MarkdownBlocks()
    code = "````python\na = 1\n\n```\n\nb = 2\n````\n\n"
    assert list(blocks.add(f"First.\n\n{code}Last.")) == ["First.\n\n", code]
    assert blocks.end() == "Last."


@pytest.mark.parametrize("columns", [40, 79, 100])
def test_lines_fit_the_terminal(columns: int) -> None:
    text = "A **word** and `code`, and more words than fit into one line of a terminal, " * 5
    lines = render(text, columns, styled=False).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= columns
    assert "word" in lines[0]
    assert "**" not in lines[0]


def test_styles_are_the_only_control_characters() -> None:
    shown = render("# Title\n\n- [link](http://example.com/x)\n- `code`\n", 60)
    assert "http://example.com/x" in shown  # a link shows where it leads
    assert "\x1b]8" not in shown
    plain = render("# Title\n\n- [link](http://example.com/x)\n- `code`\n", 60, styled=False)
    assert all(char.isprintable() or char == "\n" for char in plain)
