"""The places that a family keeps its tools to, whatever else policy allows: the two together as one scope. Pure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from policy.paths import is_under, normalize
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.core.paths import Scope


@functools.lru_cache(maxsize=64)
def within(scope: Scope, roots: tuple[str, ...]) -> Scope:
    """What is in the scope and under one of the roots, which are absolute real paths."""
    if scope.allowed is None:
        return scope._replace(allowed=roots)
    both = [place for place in scope.allowed if _is_in(place, roots)]
    both += [root for root in roots if _is_in(root, scope.allowed)]
    return scope._replace(allowed=tuple(dict.fromkeys(both)))


def _is_in(place: str, others: Sequence[str]) -> bool:
    return any(is_under(normalize(place, OS_FAMILY), normalize(one, OS_FAMILY), OS_FAMILY) for one in others)
