"""What is printed: rows that fit, that steer nothing, and that pass for nothing else; and nothing of it is hidden."""

from __future__ import annotations

import difflib
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcwidth

from agent_host.chat.paper import Paper
from agent_host.display_text import escape
from agent_host.terminal import cells, wrap, wrap_coloured

HOSTILE = "a b\t\n-#`|*<>&[]()!\x00\x1b\x07\x9b\u202e\u200d\ufe0f\u0301\u231a\u4e2d\U0001f600\U0001f1e6┃›·Allow?"
TEXTS = st.text(alphabet=HOSTILE, max_size=300)
COLUMNS = st.integers(40, 200)
PLAIN = Paper(lambda: 80, styled=False)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def columns_of(row: str) -> int:
    """The columns of a row on a terminal, by the tables of another library."""
    return sum(max(0, wcwidth(char)) for char in row)


def rows_of(text: str, columns: int) -> list[str]:
    """The rows of what is printed; each fits, and has no control character but colours."""
    assert text.endswith("\n")
    rows = COLOURS.sub("", text).split("\n")[:-1]
    assert [row for row in rows if columns_of(row) > columns or not row.isprintable()] == []
    return rows


def marks(text: str) -> str:
    """All of a text but its blanks."""
    return "".join(text.split())


@pytest.mark.parametrize("plain", [False, True])
@given(text=TEXTS, columns=COLUMNS)
def test_text_of_a_model_begins_in_the_third_column(text: str, columns: int, plain: bool) -> None:
    paper = Paper(lambda: columns, styled=True, plain=plain)
    shown = [paper.answer(text or "a"), paper.quoted(text)]
    shown += [paper.diff(f"@@ -1 +1 @@\n-{text}\n+x{text}")]
    for part in shown:
        assert [row for row in rows_of(part, columns) if row and not row.startswith("  ")] == []
    *_, first = rows_of(paper.unfolded("output", text.split("\n")), columns)[:1]
    assert first in ("· output", "agent-host: output")


@given(text=TEXTS, columns=COLUMNS)
def test_a_call_and_a_notice_begin_with_the_hosts_mark_alone(text: str, columns: int) -> None:
    paper = Paper(lambda: columns, styled=True)
    call = paper.call(text, text, status="succeeded", result=text, tail=text.split("\n"), hidden="3 lines", diff=text)
    notice = paper.notice(text)
    for part, mark in ((call.removeprefix("\n"), "● "), (notice, "· ")):
        first, *rest = rows_of(part, columns)
        assert first.startswith(mark)
        assert [row for row in rest if row and not row.startswith("  ")] == []


def question(**details: Any) -> dict[str, Any]:
    return {
        "title": "Run a command",
        "actionSummary": "Run",
        "description": "",
        "riskLevel": "low",
        "risks": [],
        "details": {"toolName": "RunCommand", **details},
    }


@given(command=TEXTS, diff=TEXTS, columns=COLUMNS)
def test_a_question_shows_all_of_a_call_behind_its_bar(command: str, diff: str, columns: int) -> None:
    paper = Paper(lambda: columns, styled=True)
    rows = rows_of(paper.question(question(command=command, diff=diff)), columns)
    assert rows[0] == ""
    assert [row for row in rows[1:] if not row.startswith("┃ ")] == []
    shown = marks("".join(row.removeprefix("┃ ") for row in rows[1:]))
    if command:
        assert marks(escape(command)) in shown
    for line in diff.split("\n"):
        assert all(mark in shown for mark in marks(escape(line.replace("\t", " "), keep="")))


@given(text=TEXTS, columns=st.integers(4, 200), hang=st.integers(0, 30))
@example(text="\t", columns=4, hang=0)
def test_wrapping_loses_nothing(text: str, columns: int, hang: int) -> None:
    rows = wrap(escape(text), columns, hang)
    assert max(map(cells, rows)) <= columns
    assert marks("".join(rows)) == marks(escape(text))
    coloured = wrap_coloured(f"\x1b[31m{text}\x1b[0m", columns)
    assert marks(COLOURS.sub("", "".join(coloured))) == marks(escape(text, keep="").replace("\\x1b", "\x1b")) or (
        "\x1b" in text or COLOURS.search(text) is not None
    )


@given(
    old=st.lists(st.text(alphabet="ab \t\u4e2d+-@", max_size=150), max_size=12),
    new=st.lists(st.text(alphabet="ab \t\u4e2d+-@", max_size=150), max_size=12),
    columns=COLUMNS,
)
def test_a_diff_has_every_line_whole_in_one_column_or_two(old: list[str], new: list[str], columns: int) -> None:
    lines = list(difflib.unified_diff(old, new, "a", "b", lineterm="", n=1))
    rows = list(PLAIN.diff_rows("\n".join(lines), columns))
    assert [row for row in rows if cells(row) > columns] == []
    if any("│" in row for row in rows):
        halves = [row.partition("│") for row in rows if "│" in row]
        left, right = ("".join(half[side] for half in halves) for side in (0, 2))
        removed, added = ([one[1:] for one in lines[2:] if one.startswith((sign, " "))] for sign in ("-", "+"))
        assert without_numbers(left) == marks("".join(removed))
        assert without_numbers(right) == marks("".join(added))
    else:
        assert marks("".join(rows).replace("↪ ", "")) == marks("".join(lines))


def without_numbers(text: str) -> str:
    return marks(re.sub(r"\d", "", text))


def test_no_line_of_a_file_passes_for_another_of_the_diff() -> None:
    rows = list(PLAIN.diff_rows("@@ -1 +1 @@\n+one\u2028-two\x0b+three\x85 four\n", 100))
    assert rows[1:] == [r"+one\u2028-two\x0b+three\x85 four"]


def test_a_diff_of_two_sides_stands_side_by_side_where_it_has_room() -> None:
    change, addition = "@@ -1 +1 @@\n-one\n+two\n", "@@ -0,0 +1 @@\n+two\n"
    wide = list(PLAIN.diff_rows(change, 200))
    assert [row.split() for row in wide[1:]] == [["1", "one", "│", "1", "two"]]
    assert list(PLAIN.diff_rows(change, 100))[1:] == ["-one", "+two"]
    assert list(PLAIN.diff_rows(addition, 200))[1:] == ["+two"]
