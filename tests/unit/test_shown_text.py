"""What a model writes is shown as it is, and does nothing."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent_host.display_text import clip, escape, json_size, one_line

ANY = st.text(st.characters(exclude_categories=()))


def test_what_steers_a_terminal_or_turns_the_text_around_is_escaped() -> None:
    assert escape("rm \x1b[2K\u202etxt.exe\u2066\u200b\r\n\t\ud800") == (
        "rm \\x1b[2K\\u202etxt.exe\\u2066\\u200b\\r\n\t\\ud800"
    )
    assert escape("für 你好 ✓") == "für 你好 ✓"


def test_what_shows_nothing_is_escaped() -> None:
    hidden = "".join(map(chr, (0xE0100, 0xE01EF, 0xFE00, 0x3164, 0x2800, 0x115F, 0x34F, 0x180B)))
    assert escape(f"eval('{hidden}')\n") == (
        "eval('\\U000e0100\\U000e01ef\\ufe00\\u3164\\u2800\\u115f\\u034f\\u180b')\n"
    )
    assert escape("a\ufe0f \ufe0e") == "a\\ufe0f \\ufe0e"
    assert escape("⚠\ufe0f\ufe0f") == "⚠\ufe0f\\ufe0f"
    assert escape("葛\U000e0100葛\U000e0101 Ж\ufe0f") == "葛\U000e0100葛\\U000e0101 Ж\\ufe0f"
    seen = "⚠️ ✔︎ 1️⃣ 👁️ é 葛\U000e0100"
    assert escape(seen) == seen


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\tc\u2028d") == "a\\nb\\tc\\u2028d"
    assert one_line("x" * 300, 200) == "x" * 200 + "…"
    assert one_line("\n" * 300, 9) == "\\n" * 3 + "…"


def test_a_cut_says_how_much_is_missing() -> None:
    assert clip("abc\n", 100) == "abc\n"
    assert clip("x" * 100, 10) == "x" * 10 + "\n[… 90 more characters are not shown]"
    assert clip("\x01" * 10, 15) == "\\x01" * 3 + "\n[… 7 more characters are not shown]"


@given(ANY, st.integers(0, 60))
def test_nothing_is_longer_than_it_may_be(text: str, limit: int) -> None:
    shown = clip(text, limit)
    orjson.dumps(shown)
    assert all(char in "\n\t" or char.isprintable() for char in shown)
    start, note, _ = shown.partition("\n[… ") if json_size(escape(text)) > limit else (shown, "", "")
    assert json_size(start) <= limit or not note
    assert escape(text).startswith(start)
