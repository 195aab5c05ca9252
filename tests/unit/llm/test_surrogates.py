"""Halves of characters: joined where they meet, replaced where they stand alone."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.raw_json import loads_with_halves, may_hold_halves, repair, repair_json
from tests.support.rows import each_row


@each_row(
    ("text", "good", "count"),
    [
        ("", "", 0),
        ("größe 😀 \ufffd", "größe 😀 \ufffd", 0),
        ("a\ud83d\ude00b", "a😀b", 0),
        ("\ud800", "\ufffd", 1),
        ("\udc00x", "\ufffdx", 1),
        ("\ude00\ud83d", "\ufffd\ufffd", 2),
        ("\ud83d\ud83d\ude00", "\ufffd😀", 1),
        ("\ufffd\ud800", "\ufffd\ufffd", 1),
    ],
)
def test_text(text: str, good: str, count: int) -> None:
    assert repair(text) == (good, count)


@each_row(
    ("encoded", "value", "count"),
    [
        (r'"\ud83d\ude00"', "😀", 0),
        (r'"\uD83D\uDE00"', "😀", 0),
        (r'"\uD800"', "\ufffd", 1),
        (r'"\\ud800"', r"\ud800", 0),
        (r'"\\\ud800"', "\\\ufffd", 1),
        (r'"\ud83d\n\ude00"', "\ufffd\n\ufffd", 2),
        (r'"\ud83d\\ude00"', "\ufffd\\ude00", 1),
        ('"\ud83d\ude00\ud800"', "😀\ufffd", 1),
        (r'{"\ud800": ["\udfff", "\u00e9", "\""]}', {"\ufffd": ["\ufffd", "é", '"']}, 2),
    ],
)
def test_json(encoded: str, value: object, count: int) -> None:
    good, replaced = repair_json(encoded)
    assert (orjson.loads(good), replaced) == (value, count)


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('\\"u'), max_size=30))
def test_json_says_what_its_text_says(text: str) -> None:
    for ensure_ascii in (True, False):
        encoded = json.dumps(text, ensure_ascii=ensure_ascii)
        good, count = repair_json(encoded)
        assert (orjson.loads(good), count) == repair(text)
        halves = any("\ud800" <= char <= "\udfff" for char in text)
        assert may_hold_halves(encoded) >= halves
        # Python's own reader joins escapes that make a pair.
        assert repair(loads_with_halves(encoded)) == repair(text)


@pytest.mark.parametrize("encoded", ["", "{", '{"a": 1', "[" * 100_000, '"\\ud800', "1" * 5000])
def test_what_is_no_json_is_a_value_error(encoded: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  any of them
        loads_with_halves(encoded)
