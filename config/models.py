"""The section `[models]` of a user's configuration: what a model costs and what it takes, by its name or by a pattern.

    [models."claude-sonnet-4-5*"]
    price_input = 3.0        # a million tokens
    price_output = 15.0

An entry's name may hold `*`. docs/costs.md says what each key means and which entry counts (`agent_host.llm.models`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from config.shapes import FLAG, Leaf, Problem, Record, Text, display, member_path, number, one_of, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.shapes import Shape

CURRENCY = "USD"
"""The currency of prices that name none."""
PRICES = ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")
"""Keys of prices, each for a million tokens."""

_MAX_ENTRIES = 1000
# Prices are kept in millionths of a millionth of the currency for one token.
_PRICE = number(0, 10**6)
_TOKENS = whole(1, 10**9)
_CURRENCY = Leaf(
    "a word of up to 16 letters, such as USD",
    lambda value: type(value) is str and re.fullmatch(r"[A-Za-z]{1,16}", value) is not None,
)
_ENTRY = Record(
    {},
    {
        **dict.fromkeys(PRICES, _PRICE),
        "currency": _CURRENCY,
        "context_tokens": _TOKENS,
        "max_output_tokens": _TOKENS,
        "cache_minimum_tokens": whole(0, 10**9),
        "images": FLAG,
        "thinking": FLAG,
        "thinking_bound": FLAG,
        "tokenizer": one_of("estimate", "o200k_base", "cl100k_base"),
    },
    closed=True,
)
_NAME = Text(1, 256)


class _ModelTable:
    """Entries by name. An entry with a price has those of input and output; all prices are in one currency, since they
    are added up."""

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return next(self.problems(value, ""), None) is None

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if type(value) is not dict:
            yield Problem(path, f'must be a table of tables: [{path}."NAME"], not {display(value)}')
            return
        if len(value) > _MAX_ENTRIES:
            yield Problem(path, f"must have at most {_MAX_ENTRIES:,} entries, not {len(value):,}")
            return
        currencies: dict[str, str] = {}
        for name, entry in value.items():
            where = member_path(path, name)
            yield from _NAME.problems(name, f"the name {display(name)} in {path}")
            if not _ENTRY.fits(entry):
                yield from _ENTRY.problems(entry, where)
                continue
            if not any(key in entry for key in PRICES):
                continue
            missing = [key for key in PRICES[:2] if key not in entry]
            if missing:
                yield Problem(where, f"has a price, and so needs {' and '.join(missing)} as well")
            currencies.setdefault(entry.get("currency", CURRENCY), where)
        if len(currencies) > 1:
            (first, one), (second, other), *_ = currencies.items()
            yield Problem(other, f"has prices in {second}, and {one} in {first}: give all in one, since they are added")


TABLE: Shape = _ModelTable()
"""Shape of `[models]`."""
