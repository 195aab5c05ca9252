"""Long options as getopt and its like read them: any beginning of a name may stand for the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def may_mean(text: str, names: Iterable[str], whole: frozenset[str] = frozenset()) -> bool:
    """Whether the argument `--x` or `--x=value` may be one of the options `names` (without dashes): the beginning of
    one, or one with something behind it. Names in `whole` are options of their own and mean none of them."""
    given = text.partition("=")[0].removeprefix("--")
    if not given or not text.startswith("--") or given in whole:
        return False
    return any(name.startswith(given) or given.startswith(name) for name in names)
