"""Facts about models: limits from the shipped table and the user's configuration, prices from the configuration only.

Money is counted in whole picos, millionths of a millionth of the currency: a price of 3.00 for a million tokens is
3,000,000 picos per token, and the cost of tokens is never rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from config.lean_typing import NamedTuple
from config.settings import CURRENCY, PRICES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state.checkpoint import TokenUsage

PICOS = 10**12
# The highest price factors of providers for a token that is written to their cache for five minutes and for an hour.
_CACHE_WRITE, _CACHE_WRITE_1H = 1.25, 2.0


class ModelLimits(NamedTuple):
    """Limits of a model; None for unknown ones. `context_tokens` are input and answer together, and
    `cache_minimum_tokens` is the shortest prefix that its provider caches. `thinking_bound`: its provider refuses a
    thread in which anything before its thinking was changed. `tokenizer` is the name of its tiktoken encoding."""

    context_tokens: int | None = None
    max_output_tokens: int | None = None
    cache_minimum_tokens: int | None = None
    images: bool | None = None
    thinking: bool | None = None
    thinking_bound: bool | None = None
    tokenizer: str | None = None


class Prices(NamedTuple):
    """Prices of one token, in picos of `currency`: of uncached input, of output, and of input that is read from the
    provider's cache or written to it, for five minutes or for an hour."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_1h: int
    currency: str

    def of(self, usage: TokenUsage) -> int:
        """Return the cost of `usage`."""
        read, written, long = usage.cache_read_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens
        return (
            max(0, usage.input_tokens - read - written) * self.input
            + read * self.cache_read
            + max(0, written - long) * self.cache_write
            + long * self.cache_write_1h
            + usage.output_tokens * self.output
        )

    def most_for_input(self, tokens: int) -> int:
        """Return the highest cost of this many input tokens: none are read from the cache, and all may be written to
        it."""
        return tokens * max(self.input, self.cache_write)


class ModelFacts(NamedTuple):
    """Limits and prices of one model; `prices` is None if the user configured none."""

    limits: ModelLimits = ModelLimits()
    prices: Prices | None = None


class Cost(NamedTuple):
    """An amount of money in picos of `currency`."""

    picos: int
    currency: str

    @property
    def amount(self) -> float:
        """The cost in units of the currency."""
        return self.picos / PICOS

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form in results, events and lists."""
        return {"cost": self.amount, "costCurrency": self.currency}

    def __str__(self) -> str:
        return f"{format_picos(self.picos)} {self.currency}"


class Models:
    """Facts about all models: the shipped table, overridden by `configured`, the checked section `[models]`."""

    def __init__(self, configured: Mapping[str, Mapping[str, Any]]) -> None:
        # The most specific entry comes first.
        self._configured = sorted(configured.items(), key=lambda item: ("*" in item[0], -len(item[0])))
        self._known: dict[str, ModelFacts] = {}

    def of(self, model: str) -> ModelFacts:
        """Return the facts about `model`. Each limit comes from the first entry that has it, the prices from the first
        entry that has any."""
        if model not in self._known:
            self._known[model] = self._look_up(model)
        return self._known[model]

    def is_configured(self, model: str, field: str) -> bool:
        """True if the user's configuration for `model` has this field."""
        return any(field in entry for name, entry in self._configured if fits(name, model))

    def cost(self, usage: TokenUsage, by_model: Mapping[str, TokenUsage]) -> Cost | None:
        """Return the cost of `usage`, whose parts are `by_model`; None if a part has no model with a price. No usage
        costs 0, in the currency of the prices."""
        currency = next((entry.get("currency", CURRENCY) for _, entry in self._configured if _has_price(entry)), None)
        if currency is None or self.unpriced(usage, by_model) is not None:
            return None
        priced = ((self.of(model).prices, used) for model, used in by_model.items())
        return Cost(sum(prices.of(used) for prices, used in priced if prices is not None), currency)

    def unpriced(self, usage: TokenUsage, by_model: Mapping[str, TokenUsage]) -> str | None:
        """Return the reason why the cost of `usage` is unknown, None if it is known."""
        if usage.total > sum(used.total for used in by_model.values()):
            return "an earlier version did not put on record which model used its tokens"
        without = [model for model in by_model if self.of(model).prices is None]
        return f"{without[0]}, which it has used, has no price" if without else None

    def _look_up(self, model: str) -> ModelFacts:
        entries = [entry for name, entry in self._configured if fits(name, model)]
        spelled = model.lower().replace(".", "-")
        names = (spelled, spelled.rpartition("/")[2])  # openai/o3
        shipped: tuple[Any, ...] = next(
            (row[1:] for row in ROWS if any(fits(row[0], name) for name in names)), ModelLimits()
        )
        known = {field: value for field, value in zip(ModelLimits._fields, shipped, strict=True) if value is not None}
        for entry in reversed(entries):
            known |= {field: entry[field] for field in ModelLimits._fields if field in entry}
        return ModelFacts(ModelLimits(**known), next((_prices(entry) for entry in entries if _has_price(entry)), None))


def format_picos(picos: int) -> str:
    """Format an amount for display; smaller amounts have more digits."""
    amount = picos / PICOS
    digits = 2 if amount >= 1 else 4 if amount >= 0.01 else 6
    return f"{amount:.{digits}f}"


def fits(pattern: str, name: str) -> bool:
    """True if `name` matches `pattern`, in which `*` matches any text."""
    if "*" not in pattern:
        return pattern == name
    first, *others, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in others:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _has_price(entry: Mapping[str, Any]) -> bool:
    return any(key in entry for key in PRICES)


def _prices(entry: Mapping[str, Any]) -> Prices:
    """Return the prices of an entry. Missing ones are set to the highest that providers charge."""
    given = entry["price_input"]

    def price(price: float) -> int:
        return round(price * PICOS / 1_000_000)

    return Prices(
        price(given),
        price(entry["price_output"]),
        price(entry.get("price_cache_read", given)),
        price(entry.get("price_cache_write", given * _CACHE_WRITE)),
        price(entry.get("price_cache_write_1h", given * _CACHE_WRITE_1H)),
        entry.get("currency", CURRENCY),
    )


# Limits of models by family, as published by their providers in October 2026. It has no prices: those are configured by
# the user (`[models]`), and change more often than this program.
#
# The first row whose pattern matches a name applies; `*` matches anything. Names are compared in lower case and with
# `-` instead of `.`, because gateways use both `claude-sonnet-4.5` and `claude-sonnet-4-5`.

_O200K, _CL100K = "o200k_base", "cl100k_base"

# Pattern; context (input and answer together) and longest answer in tokens; shortest prefix that is cached, in tokens;
# whether it accepts images, thinks, and refuses a thread that was changed before its thinking; its tiktoken encoding,
# if any.
Row = tuple[str, int, int, int | None, bool, bool, bool, str | None]

ROWS: Final[tuple[Row, ...]] = (
    ("*claude-fable-5-1*", 1_000_000, 128_000, 512, True, True, True, None),
    ("*claude-*-5-5*", 1_000_000, 128_000, 512, True, True, True, None),
    ("*claude-sonnet-5*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-fable-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-mythos-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-opus-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-opus-4-8*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-opus-4-7*", 1_000_000, 128_000, 2048, True, True, False, None),
    ("*claude-opus-4-6*", 1_000_000, 128_000, 4096, True, True, False, None),
    ("*claude-sonnet-4-6*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-opus-4-5*", 200_000, 64_000, 4096, True, True, False, None),
    ("*claude-haiku-4-5*", 200_000, 64_000, 4096, True, True, False, None),
    ("*claude-opus-4*", 200_000, 32_000, 1024, True, True, False, None),
    ("*claude-sonnet-4*", 200_000, 64_000, 1024, True, True, False, None),
    ("*claude-3-7*", 200_000, 64_000, 1024, True, True, False, None),
    ("*claude-3-5-haiku*", 200_000, 8192, 2048, True, False, False, None),
    ("*claude-3-5*", 200_000, 8192, 1024, True, False, False, None),
    ("*claude-3-haiku*", 200_000, 4096, 2048, True, False, False, None),
    ("*claude-3*", 200_000, 4096, 1024, True, False, False, None),
    ("*gpt-6*", 1_050_000, 128_000, 1024, True, True, False, None),
    ("*gpt-5-6*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4-mini*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4-nano*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-5*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-chat*", 128_000, 16_384, 1024, True, False, False, _O200K),
    ("*gpt-5*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-4o*", 128_000, 16_384, 1024, True, False, False, _O200K),
    ("*gpt-4-1106*", 128_000, 4096, None, False, False, False, _CL100K),
    ("*gpt-4-1*", 1_047_576, 32_768, 1024, True, False, False, _O200K),
    ("*gpt-4-turbo*", 128_000, 4096, None, True, False, False, _CL100K),
    ("*gpt-4", 8192, 4096, None, False, False, False, _CL100K),
    ("*gpt-3-5-turbo*", 16_385, 4096, None, False, False, False, _CL100K),
    ("o3-mini*", 200_000, 100_000, 1024, False, True, False, _O200K),
    ("o4-mini*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("o3*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("o1*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("*gemini-2-5*", 1_048_576, 65_536, 2048, True, True, False, None),
    ("*gemini-3*", 1_048_576, 65_536, 4096, True, True, False, None),
    ("*deepseek-reasoner*", 131_072, 65_536, None, False, True, False, None),
    ("*deepseek-chat*", 131_072, 8192, None, False, False, False, None),
)
