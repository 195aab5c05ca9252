"""What is known of models: the shipped limits, and the limits and prices of a user's configuration over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.deferred import KnownModels
from agent_host.llm.models import ROWS, Cost, ModelFacts, ModelLimits, Models, Prices, format_picos
from state.checkpoint import NO_TOKENS, TokenUsage
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping

PRICED = {"price_input": 3.0, "price_output": 15.0, "price_cache_read": 0.3, "price_cache_write": 3.75}


def of(model: str, **entries: Mapping[str, Any]) -> ModelFacts:
    return Models(entries).of(model)


# Limits


@each_row(
    ("model", "context", "output", "cached", "thinks"),
    [
        ("claude-sonnet-4-5", 200_000, 64_000, 1024, True),
        ("claude-sonnet-4-5-20250929", 200_000, 64_000, 1024, True),
        ("anthropic/claude-sonnet-4.5", 200_000, 64_000, 1024, True),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", 200_000, 64_000, 4096, True),
        ("claude-haiku-4-5", 200_000, 64_000, 4096, True),
        ("claude-opus-4-1-20250805", 200_000, 32_000, 1024, True),
        ("claude-opus-4-8", 1_000_000, 128_000, 1024, True),
        ("claude-sonnet-5", 1_000_000, 128_000, 1024, True),
        ("claude-opus-5", 1_000_000, 128_000, 512, True),
        ("claude-3-5-haiku-20241022", 200_000, 8192, 2048, False),
        ("gpt-5", 400_000, 128_000, 1024, True),
        ("gpt-5-mini", 400_000, 128_000, 1024, True),
        ("openai/gpt-4.1-mini", 1_047_576, 32_768, 1024, False),
        ("gpt-4-1106-preview", 128_000, 4096, None, False),
        ("gpt-4o-2024-08-06", 128_000, 16_384, 1024, False),
        ("GPT-4o", 128_000, 16_384, 1024, False),
        ("openai/o3", 200_000, 100_000, 1024, True),
        ("o4-mini", 200_000, 100_000, 1024, True),
    ],
)
def test_families_have_their_limits(model: str, context: int, output: int, cached: int | None, thinks: bool) -> None:
    assert of(model).limits[:5] == (context, output, cached, model != "gpt-4-1106-preview", thinks)


@each_row("model", ["", "m", "my-claude", "mo3", "llama-3.3-70b", "claude", "*", "x" * 10_000])
def test_of_other_models_nothing_is_known(model: str) -> None:
    assert of(model) == ModelFacts(ModelLimits(), None)


def test_some_models_refuse_a_thread_that_was_changed() -> None:
    bound = {"claude-opus-5-5", "claude-haiku-5-5", "claude-fable-5-1"}
    assert {
        model for model in (*bound, "claude-opus-5", "claude-fable-5", "gpt-5.5") if of(model).limits.thinking_bound
    } == bound


@each_row("row", ROWS, ids=lambda row: row[0])
def test_every_row_is_of_use(row: Any) -> None:
    """No row before it takes all of its names."""
    pattern, context, output = row[:3]
    assert pattern == pattern.lower()
    assert "." not in pattern
    assert 0 < output < context
    assert of(pattern.replace("*", "")).limits == ModelLimits(*row[1:])


def test_a_configuration_goes_over_the_table_and_exact_names_over_patterns() -> None:
    entries = {
        "claude-*": {"context_tokens": 1, "max_output_tokens": 10, "images": False},
        "claude-sonnet-*": {"context_tokens": 2},
        "claude-sonnet-4-5": {"context_tokens": 3, "thinking": False},
    }
    limits = of("claude-sonnet-4-5", **entries).limits
    assert limits == ModelLimits(3, 10, 1024, False, False, False, None)
    assert of("claude-sonnet-4-6", **entries).limits.context_tokens == 2
    assert of("claude-opus-5", **entries).limits.context_tokens == 1
    assert of("Claude-opus-5", **entries).limits.context_tokens == 1_000_000, "they are the user's own words"


@each_row(
    ("pattern", "name", "fits"),
    [
        ("*", "", True), ("*", "m", True), ("a*", "a", True), ("a*a", "a", False), ("a*a", "aa", True),
        ("a*b*c", "axxbxxc", True), ("a*b*c", "acb", False), ("ab", "ab", True), ("ab", "abc", False),
        ("*b*b*", "abc", False), ("*b*b*", "abcb", True), ("a.c", "abc", False), ("**a", "a", True),
    ],
)  # fmt: skip
def test_a_star_stands_for_any_text(pattern: str, name: str, fits: bool) -> None:
    assert (of(name, **{pattern: {"context_tokens": 7}}).limits.context_tokens == 7) is fits


# Prices


def test_prices_are_exact_for_one_token() -> None:
    assert of("m", m=PRICED).prices == Prices(3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000, "USD")


def test_what_a_table_leaves_out_is_taken_for_the_dearest() -> None:
    prices = of("m", m={"price_input": 4, "price_output": 0.5, "currency": "EUR"}).prices
    assert prices == Prices(4_000_000, 500_000, 4_000_000, 5_000_000, 8_000_000, "EUR")


def test_prices_come_whole_from_the_entry_that_says_most() -> None:
    entries: dict[str, Any] = {
        "m*": PRICED,
        "m-1": {"price_input": 1.0, "price_output": 2.0},
        "m-2": {"context_tokens": 5},
    }
    assert of("m-1", **entries).prices == Prices(1_000_000, 2_000_000, 1_000_000, 1_250_000, 2_000_000, "USD")
    assert of("m-2", **entries).prices == of("m", m=PRICED).prices


def test_each_kind_of_token_has_its_price() -> None:
    prices = Prices(1, 10, 100, 1000, 10_000, "USD")
    usage = TokenUsage(
        input_tokens=20, output_tokens=3, cache_read_tokens=4, cache_write_tokens=7, cache_write_1h_tokens=5
    )
    assert prices.of(usage) == 9 * 1 + 3 * 10 + 4 * 100 + 2 * 1000 + 5 * 10_000
    assert prices.most_for_input(2) == 2000
    assert prices._replace(input=5000).most_for_input(2) == 10_000


@given(st.builds(TokenUsage, *[st.integers(0, 10**9)] * 5))
def test_no_count_of_a_gateway_makes_a_cost_negative(usage: TokenUsage) -> None:
    assert Prices(3, 15, 1, 4, 6, "USD").of(usage) >= 0


def test_a_session_costs_what_its_models_cost() -> None:
    models = Models({"a": PRICED, "b": {"price_input": 1, "price_output": 1}})
    one, other = TokenUsage(1_000_000, 100_000), TokenUsage(500_000, 0)
    assert models.cost(one.plus(other), {"a": one, "b": other}) == Cost(5_000_000_000_000, "USD")
    assert models.cost(NO_TOKENS, {}) == Cost(0, "USD")


@pytest.mark.parametrize(
    ("by_model", "why"),
    [
        ({"a": TokenUsage(10, 1)}, "an earlier version did not put on record which model used its tokens"),
        ({"a": TokenUsage(10, 2), "c": TokenUsage(5, 0)}, "c, which it has used, has no price"),
    ],
)
def test_what_is_not_known_costs_nothing_that_is_said(by_model: dict[str, TokenUsage], why: str) -> None:
    models = Models({"a": PRICED})
    assert models.cost(TokenUsage(10, 2), by_model) is None
    assert models.unpriced(TokenUsage(10, 2), by_model) == why


def test_without_prices_nothing_has_a_cost() -> None:
    assert Models({"a": {"context_tokens": 5}}).cost(NO_TOKENS, {}) is None
    assert KnownModels({}).table.cost(NO_TOKENS, {}) is None


@pytest.mark.parametrize(
    ("picos", "said"),
    [
        (0, "0.000000"), (1_234_567, "0.000001"), (12_345_000_000, "0.0123"), (9_999_000_000, "0.009999"),
        (500_000_000_000, "0.5000"), (1_000_000_000_000, "1.00"), (12_345_678_000_000, "12.35"),
    ],
)  # fmt: skip
def test_an_amount_has_more_digits_the_smaller_it_is(picos: int, said: str) -> None:
    assert format_picos(picos) == said
    assert str(Cost(picos, "EUR")) == f"{said} EUR"


def test_a_cost_is_the_number_that_was_meant() -> None:
    cost = Cost(33_800_000_000, "USD")
    assert (cost.amount, cost.to_wire()) == (0.0338, {"cost": 0.0338, "costCurrency": "USD"})
