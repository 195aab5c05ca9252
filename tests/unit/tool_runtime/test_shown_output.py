"""Head and tail of what a terminal would show, of streams that are too long to be drawn whole."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tool_runtime.conftest import request, text_of
from tests.unit.tool_runtime.test_terminal_output import OUTPUT, cut
from tool_runtime.output import HeadTail, marker, truncate
from tool_runtime.output.terminal import MAX_ROWS, Reducer, ShownEnds
from tool_runtime.processes import command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.unit.tool_runtime.conftest import MakeRouter

SIZES = st.lists(st.integers(1, 60), max_size=8)
LINES = st.lists(st.sampled_from([b"a line\n", b"\n", b"another one \xc3\xa9\n", b"b"]), max_size=60).map(b"".join)
COLOURS = st.lists(st.sampled_from([b"a \x1b[32mgreen\x1b[0m line\n", b"one \x1b[1;31mred\x1b[m\n"]), max_size=30)


def shown(data: bytes, sizes: list[int], limit: int, first: int, last: int) -> tuple[bytes, int]:
    ends = ShownEnds(limit, first, last)
    for chunk in cut(data, sizes):
        ends.add(chunk)
    return ends.end().render(limit), ends.rewritten


def drawn(data: bytes) -> tuple[bytes, int]:
    reducer = Reducer()
    return reducer.feed(data) + reducer.end(), reducer.rewritten


@settings(max_examples=60)
@given(OUTPUT, SIZES, st.integers(0, 200), st.integers(0, 200))
def test_what_fits_is_drawn_whole(data: bytes, sizes: list[int], limit: int, first: int) -> None:
    last = max(1, len(data) - first)
    text, rewritten = drawn(data)
    assert shown(data, sizes, limit, first, last) == (truncate(text, limit), rewritten)


@given(LINES, SIZES, st.integers(0, 100), st.integers(0, 200))
def test_of_plain_text_the_ends_are_the_same(data: bytes, sizes: list[int], limit: int, more: int) -> None:
    """What is looked at has more than the head and the tail: a limit of the thread is far below it."""
    first = limit + more
    last = 2 * (limit + len(b"another one ..\n"))
    text, _ = shown(data, sizes, limit, first, last)
    assert text == truncate(data, limit) or (b"not looked at" in text and len(data) > first + last)


@given(COLOURS, SIZES, st.integers(0, 400))
def test_of_coloured_lines_the_ends_are_those_of_all(lines: list[bytes], sizes: list[int], first: int) -> None:
    data, limit, last = b"".join(lines), 50, 200
    (text, _), (whole, _) = shown(data, sizes, limit, first, last), drawn(data)
    head, tail = text.partition(b"\n[... ")[0], text.rpartition(b" ...]\n")[2]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert text == whole or len(tail) >= limit // 5 or b"not looked at" in text


@given(OUTPUT, SIZES, st.integers(0, 100), st.integers(1, 100))
def test_how_the_stream_is_cut_makes_no_difference(data: bytes, sizes: list[int], first: int, last: int) -> None:
    assert shown(data, sizes, 60, first, last) == shown(data, [], 60, first, last)


def test_what_was_not_looked_at_is_said_where_it_is_missing() -> None:
    bar = b"\r".join(b"%3d%%" % percent for percent in range(100))
    text, rewritten = shown(b"begun\n" + bar + b"\nover\n", [], 1000, 50, 30)
    found = re.fullmatch(rb"begun\n  8%\n\[\.\.\. (\d+) bytes were not looked at \.\.\.\]\n 99%\nover\n", text)
    assert found is not None, text
    assert int(found[1]) == len(b"begun\n" + bar + b"\nover\n") - 50 - 30 + text_before_a_form(bar)
    assert 0 < rewritten < len(bar)


def text_before_a_form(bar: bytes) -> int:
    """What of the last 30 bytes belongs to a form that is cut at its start."""
    last = (bar + b"\nover\n")[-30:]
    return last.index(b"\r") + 1


def test_what_is_left_out_with_the_line_that_says_it_is_counted() -> None:
    ends = HeadTail(100)
    ends.add(b"a" * 200)
    ends.skip(1_000_000)
    ends.add(b"b" * 200)
    text = ends.render(100)
    assert text == b"a" * 80 + marker(1_000_300, 1_000_400) + b"b" * 20


@given(st.integers(0, 120), st.integers(0, 120), st.integers(0, 100))
def test_the_line_that_says_it_is_whole_or_left_out(before: int, after: int, limit: int) -> None:
    ends = HeadTail(100)
    ends.add(b"x" * before)
    ends.skip(1_000)
    ends.add(b"z" * after)
    text = ends.render(limit)
    line = b"\n[... 1000 bytes were not looked at ...]\n"
    left_out = re.search(rb"\n\[\.\.\. truncated (\d+) bytes of \d+ \.\.\.\]\n", text)
    missing = before + after - text.count(b"x") - text.count(b"z")
    assert (0 if left_out is None else int(left_out[1])) == missing + (0 if line in text else 1_000)
    assert (b"looked" in text) == (line in text)


async def test_a_flood_of_pictures_costs_little_and_shows_its_ends(
    make_router: MakeRouter, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIRST_BYTES", 65_536)
    script = workspace / "draw.py"
    script.write_text(
        "import sys\nsys.stdout.write('first\\n')\n"
        "piece = ''.join(f'\\x1b[3A\\x1b[2Ka: {n}\\n\\x1b[2Kb: {n}\\n\\x1b[2Kc: {n}\\n' for n in range(1000))\n"
        "for _ in range(80):\n    sys.stdout.write(piece)\n"
        "sys.stdout.write('last\\n')\n"
    )
    router = make_router()
    result = await router.execute(request("RunCommand", command=f"{sys.executable} {script}"))
    text = text_of(result)
    assert "bytes were not looked at ...]" in text
    assert text.count("\n") < MAX_ROWS
    assert "a: 999\nb: 999\nc: 999\nlast\n" in text
    assert re.search(r"drawn over, and are not shown: \d+ or more\]", text)
