"""What is left of colours and progress bars in what the model reads."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.rows import each_row
from tests.support.screen import ReferenceScreen
from tests.unit.tool_runtime.conftest import text_of
from tool_runtime.output.terminal import MAX_ROW_CHARS, MAX_ROWS, Reducer, has_control, keep_colours, reduce

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call


@each_row(
    ("printed", "shown"),
    [
        (b"plain\n", b"plain\n"),
        (b"\x1b[1;31mred\x1b[0m\n", b"red\n"),
        (b"10%\r20%\r100%\n", b"100%\n"),
        (b"longer\rabc\n", b"abcger\n"),
        (b"longer\r\x1b[Kabc\n", b"abc\n"),
        (b"longer\x1b[2K\rabc\n", b"abc\n"),
        (b"abc\b\bX\n", b"aXc\n"),
        (b"a\r\nb\r\n", b"a\r\nb\r\n"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1b(Btext\x1b[?25l\n", b"text\n"),
        (b"a\x1b[2Gb\x1b[Dc\n", b"ac\n"),
        (b"abc\x1b[1G\x1b[1KX\n", b"Xbc\n"),
        (b"tab\there\x07\n", b"tab\there\n"),
        (b"\x1b[", b""),
        (b"cut \x1b", b"cut "),
        ("é\rb\n".encode(), b"b\n"),
        ("██░░\r███░\n".encode(), "███░\n".encode()),
        (b"a: 1\nb: 1\n\x1b[2A\x1b[2Ka: done\n\x1b[2Kb: done\n", b"a: done\nb: done\n"),
        (b"one\ntwo\nthree\n\x1b[3A\x1b[Jall\n", b"all\n"),
        (b"1\n2\n3\n\x1b[2FX\x1b[BY\n", b"1\nX\n3Y\n"),
        (b"[ ok ]\x1b[20Gservice\n", b"[ ok ]             service\n"),
        (b"what was there\x1b[2J\x1b[Hgoes on\n", b"what was theregoes on\n"),
    ],
)
def test_what_a_terminal_shows_at_the_end(printed: bytes, shown: bytes) -> None:
    assert reduce(printed) == shown


TEXT = [
    b"a",
    b"bc",
    b"\n",
    b"\r",
    b"\r\n",
    b"\b",
    b"\xc3\xa9",
    b"\xe2",
    b"\x82",
    b"\x00",
    b"\x07",
    b"y\n" * 70,
    b"z" * 5000,
]
CONTROLS = [
    b"K",
    b"2K",
    b"1K",
    b"0K",
    b"A",
    b"2A",
    b"70A",
    b"B",
    b"C",
    b"300C",
    b"D",
    b"E",
    b"F",
    b"5G",
    b"J",
    b"2J",
    b"31m",
]
SEQUENCES = [*(b"\x1b[" + control for control in CONTROLS), b"\x1b]0;t\x07", b"\x1b[2K\r", b"\r\x1b[K", b"\r\x1b[2K"]
PARTS = [b"\x1b", b"[", b"31m", b"]0;", b"\x1b\\", b"1;2H"]
OUTPUT = st.lists(st.sampled_from([*TEXT, *SEQUENCES, *PARTS]), max_size=40).map(b"".join)
BAR = st.sampled_from([b"\r", b"\r", b"10%", b"[##  ]", b"\xe2\x96\x88", b"\x1b[K", b"\x1b[2K\r", b"\x1b[32m", b"\n"])
BARS = st.lists(BAR, max_size=60).map(b"".join)


@settings(max_examples=60)
@given(OUTPUT | BARS, st.lists(st.integers(1, 40), max_size=8))
@example(b"\x1b[31mred\r\n", [1, 2, 1, 4])
@example(b"\r" * 5 + b"a\x1b[K\rlonger\rb\r" * 3, [3])
def test_it_shows_what_a_screen_does_however_the_output_is_cut(data: bytes, sizes: list[int]) -> None:
    expected = ReferenceScreen(data)
    for chunks in ([data], cut(data, sizes), cut(data, [1] * len(data[:300]))):
        reducer = Reducer()
        shown = b"".join([*map(reducer.feed, chunks), reducer.end()])
        assert (shown, reducer.rewritten) == (expected.text, expected.rewritten)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [*chunks, data]


def whole(data: bytes) -> bytes:
    reducer = Reducer()
    return reducer.feed(data) + reducer.end()


@given(OUTPUT)
def test_nothing_is_left_that_a_terminal_acts_on(data: bytes) -> None:
    left = reduce(data)
    assert not has_control(left.replace(b"\r\n", b"\n").replace(b"\r", b""))
    assert reduce(left.replace(b"\r", b"")) == left.replace(b"\r", b"")


@given(OUTPUT | BARS)
@example(b"\x1b[01;31m\x1b[Kerror\x1b[m\x1b[K: no\r\n")
@example(b"\x1b[31mred\x1b[")
def test_an_output_without_its_colours_is_what_is_shown(data: bytes) -> None:
    kept = keep_colours(data)
    if kept is not None:
        assert re.sub(rb"\x1b\[[0-9;:]*m", b"", kept) == reduce(data)


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (b"plain\n", None),
        (b"\x1b]0;title\x07\x1b[2mdim\x1b[0m\n", b"\x1b[2mdim\x1b[0m\n"),
        (b"a.c:\x1b[01;31m\x1b[Kerror\x1b[m\x1b[K\n", b"a.c:\x1b[01;31merror\x1b[m\n"),
        (b"\x1b[4:3mcurly\x1b[m\0", b"\x1b[4:3mcurly\x1b[m"),
        (b"\x1b[32m10%\r\x1b[32m20%\n", None),
        (b"\x1b[32mone\x1b[2Dtwo", None),
    ],
)
def test_colours_are_kept_of_what_is_not_drawn_over(printed: bytes, kept: bytes | None) -> None:
    assert keep_colours(printed) == kept


def test_a_picture_of_64_lines_is_followed_and_no_more() -> None:
    def picture(lines: int) -> bytes:
        return b"".join(b"line %d\n" % number for number in range(lines)) + b"\x1b[%dA" % lines

    reducer = Reducer()
    shown = reducer.feed(picture(MAX_ROWS - 1) * 100) + reducer.end()
    assert shown.count(b"\n") == MAX_ROWS - 1
    assert reducer.rewritten > 10_000
    assert whole(picture(MAX_ROWS) * 2).count(b"\n") == MAX_ROWS + 1


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])), st.text(alphabet="\t\n ab"))
def test_plain_text_is_not_touched(text: str, more: str) -> None:
    data = (text + more).encode()
    assert reduce(data) == data
    assert whole(data) == data


@pytest.mark.parametrize("line", [b"x" * 10_000, b"\n" * 10_000, b"x\n\x1b[200G" * 100, b"\x1b]0;" + b"x" * 10_000])
def test_what_is_held_is_bounded(line: bytes) -> None:
    reducer = Reducer()
    for _ in range(100):
        reducer.feed(line)
    assert len(reducer.end()) < 2 * MAX_ROWS * MAX_ROW_CHARS


async def test_a_progress_bar_is_one_line_and_the_stored_output_is_whole(call: Call, workspace: Path) -> None:
    script = workspace / "bar.py"
    script.write_text(
        "import sys\nsys.stdout.write('start\\n')\n"
        "for n in range(20000):\n    sys.stdout.write(f'\\r\\x1b[32m{n:6}/20000\\x1b[0m')\n"
        "sys.stdout.write('\\ndone\\n')\n"
    )
    result = await call("RunCommand", command=f"{sys.executable} {script}")
    assert text_of(result) == (
        "Exit code: 0\n--- stdout ---\nstart\n 19999/20000\ndone\n--- stderr ---\n"
        "[Characters of stdout that were drawn over, and are not shown: 239988]\n"
    )
    (artifact,) = result.artifacts
    assert artifact.data.count(b"\r") == 20_000
