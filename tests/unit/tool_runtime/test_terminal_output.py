"""What is left of colours and progress bars in what the model reads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.tool_runtime.conftest import text_of
from tool_runtime.output.terminal import Reducer, has_control, reduced

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"plain\n", b"plain\n"),
        (b"\x1b[1;31mred\x1b[0m\n", b"red\n"),
        (b"10%\r20%\r100%\n", b"100%\n"),
        (b"longer\rabc\n", b"abcger\n"),
        (b"longer\r\x1b[Kabc\n", b"abc\n"),
        (b"longer\x1b[2K\rabc\n", b"abc   \n"),
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
        ("é\rb\n".encode(), "b\udca9\n".encode("utf-8", "surrogateescape")),
    ],
)
def test_what_a_terminal_shows_at_the_end(printed: bytes, shown: bytes) -> None:
    assert reduced(printed) == shown


TEXT = [b"a", b"bc", b"\n", b"\r", b"\r\n", b"\b", b"\xc3\xa9", b"\x00", b"\x07"]
PIECES = st.sampled_from([*TEXT, b"\x1b", b"[", b"31m", b"K", b"\x1b[2K", b"]0;", b"\x1b\\", b"5G"])
OUTPUT = st.lists(PIECES, max_size=30).map(b"".join)


@given(st.lists(OUTPUT, max_size=6))
@example([b"\x1b", b"[3", b"1", b"mred\r", b"\n"])
def test_how_it_is_cut_makes_no_difference(chunks: list[bytes]) -> None:
    reducer = Reducer()
    assert b"".join([*map(reducer.feed, chunks), reducer.end()]) == whole(b"".join(chunks))


def whole(data: bytes) -> bytes:
    reducer = Reducer()
    return reducer.feed(data) + reducer.end()


@given(OUTPUT)
def test_nothing_is_left_that_a_terminal_acts_on(data: bytes) -> None:
    left = reduced(data)
    assert not has_control(left.replace(b"\r\n", b"\n").replace(b"\r", b""))
    assert left.count(b"\n") == data.count(b"\n") or b"]" in data
    assert reduced(left.replace(b"\r", b"")) == left.replace(b"\r", b"")


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])), st.text(alphabet="\t\n ab"))
def test_plain_text_is_not_touched(text: str, more: str) -> None:
    data = (text + more).encode()
    assert reduced(data) == data
    assert whole(data) == data


def test_a_line_of_any_length_is_bounded() -> None:
    reducer = Reducer()
    given = sum(len(reducer.feed(b"x" * 10_000)) for _ in range(100))
    assert given > 900_000
    assert len(reducer.end()) < 100_000


async def test_a_progress_bar_is_one_line_and_the_stored_output_is_whole(call: Call, workspace: Path) -> None:
    script = workspace / "bar.py"
    script.write_text(
        "import sys\nsys.stdout.write('start\\n')\n"
        "for n in range(20000):\n    sys.stdout.write(f'\\r\\x1b[32m{n:6}/20000\\x1b[0m')\n"
        "sys.stdout.write('\\ndone\\n')\n"
    )
    result = await call("RunCommand", command=f"{sys.executable} {script}")
    assert text_of(result) == "Exit code: 0\n--- stdout ---\nstart\n 19999/20000\ndone\n--- stderr ---\n"
    (artifact,) = result.artifacts
    assert artifact.data.count(b"\r") == 20_000
