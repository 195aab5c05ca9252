"""Output of a command as lines for a person."""

from __future__ import annotations

import pytest

from agent_host.cli.progress import OutputLines


def test_lines_come_when_they_have_their_end() -> None:
    output = OutputLines()
    assert output.add("stdout", "one\ntw") == ["one"]
    assert output.add("stderr", "oops\n") == ["oops"]
    assert output.add("stdout", "o\nthree") == ["two"]
    assert output.last() == ["one", "oops", "two", "three"]
    assert output.end() == ["three"]
    assert output.end() == []


def test_the_last_lines_are_five_and_not_blank() -> None:
    output = OutputLines()
    assert output.add("stdout", "1\n2\n\n3\n \n4\n5\n6\n\n7") == ["1", "2", "", "3", " ", "4", "5", "6", ""]
    assert output.last() == ["3", "4", "5", "6", "7"]


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_progress_bar_is_its_last_state(end: str) -> None:
    output = OutputLines()
    for percent in range(0, 101, 10):
        assert output.add("stderr", f"\r{percent} %{end}") == []
        assert output.last() == [f"{percent} %"]
    assert output.add("stderr", "\ndone\r\n") == ["100 %", "done"]


def test_nothing_steers_the_terminal() -> None:
    output = OutputLines()
    text = "\x1b[1;31mred\x1b[0m\x1b[K \x1b[2J\x1b]0;title\x07 \u202edlrow\tend\x08\n"
    (line,) = output.add("stdout", text)
    assert line == "red \\x1b[2J\\x1b]0;title\\x07 \\u202edlrow end\\x08"
    assert line.isprintable()


def test_a_line_without_an_end_is_bounded() -> None:
    output = OutputLines()
    for _ in range(100):
        assert output.add("stdout", "\r" + "x" * 1000) == []
    lines = [line for _ in range(100) for line in output.add("stdout", "y" * 1000)]
    assert 5 <= len(lines) <= 7
    assert len("".join([*lines, *output.end()])) == 101_000


def test_the_end_has_lines_of_both_streams() -> None:
    output = OutputLines()
    output.add("stderr", "e1\ne2\ne3\nerror: broken")
    output.add("stdout", "".join(f"o{number}\n" for number in range(9)))
    assert output.last() == ["o5", "o6", "o7", "o8", "error: broken"]
    assert output.last_of_each() == ["e3", "o6", "o7", "o8", "error: broken"]
    assert OutputLines().last_of_each() == []
