"""The section `[models]`: what it may hold, and what is wrong with it where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.providers import MODELS_SHAPE
from config.shapes import first_problem
from tests.support.rows import each_row

PRICED = {"price_input": 3, "price_output": 15.0}
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        PRICED,
        {**PRICED, "price_cache_read": 0, "price_cache_write": 3.75, "price_cache_write_1h": 6, "currency": "EUR"},
        {"context_tokens": 1, "max_output_tokens": 10**9, "cache_minimum_tokens": 0, "images": True, "thinking": False},
        {"thinking_bound": True, "tokenizer": "o200k_base"},
    ],
)
def test_what_an_entry_may_say(entry: dict[str, Any]) -> None:
    assert first_problem(MODELS_SHAPE, {"m*": entry, "other": entry}, "models") is None


@each_row(
    ("table", "said"),
    [
        ({"m": 3}, "models.m must be an object, not 3"),
        ([], 'models must be a table of tables: [models."NAME"], not a list of 0'),
        ({"m": {**PRICED, "price_input": -1}}, "models.m.price_input must be a number from 0 to 1,000,000, not -1"),
        ({"m": {**PRICED, "price_input": True}}, "models.m.price_input must be a number from 0 to 1,000,000, not true"),
        ({"m": {**PRICED, "price_input": "3"}}, 'models.m.price_input must be a number from 0 to 1,000,000, not "3"'),
        ({"m": {"price_output": 1}}, "models.m has a price, and so needs price_input as well"),
        ({"m": {"price_cache_read": 1}}, "models.m has a price, and so needs price_input and price_output as well"),
        ({"m": {"price": 1}}, "models.m.price is not known; did you mean price_input?"),
        ({"m": {**PRICED, "currency": "US $"}}, "models.m.currency must be a word of up to 16 letters, such as USD"),
        ({"m": {"context_tokens": 0}}, "models.m.context_tokens must be a whole number from 1 to 1,000,000,000, not 0"),
        ({"m": {"context_tokens": 1.5}}, "models.m.context_tokens must be a whole number"),
        ({"m": {"tokenizer": "x"}}, "models.m.tokenizer must be one of estimate, o200k_base, cl100k_base"),
        ({"": {}}, 'the name "" in models must not be empty'),
        ({"a\0b": {}}, "must not contain a NUL character"),
        ({"x" * 257: {}}, "must have at most 256 characters"),
        ({str(number): {} for number in range(1001)}, "models must have at most 1,000 entries, not 1,001"),
        (
            {"m": PRICED, "n": {**PRICED, "currency": "EUR"}},
            "models.n has prices in EUR, and models.m in USD: give all in one, since they are added",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(table: Any, said: str) -> None:
    problem = first_problem(MODELS_SHAPE, table, "models")
    assert problem is not None
    assert said in problem.sentence


def test_limits_without_a_price_have_no_currency() -> None:
    table = {"m": {**PRICED, "currency": "EUR"}, "n": {"context_tokens": 5}}
    assert first_problem(MODELS_SHAPE, table, "models") is None


@given(ANY_VALUE | st.dictionaries(st.text(max_size=5), ANY_VALUE, max_size=3))
def test_nothing_breaks_the_check(value: Any) -> None:
    assert MODELS_SHAPE.fits(value) == (first_problem(MODELS_SHAPE, value, "models") is None)
