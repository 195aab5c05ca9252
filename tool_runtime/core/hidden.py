"""Names that listings and searches pass over, since what has such a name tends to hold secrets (SK 5.2)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from policy.patterns import MAX_CHARACTERS, compiled
from tool_runtime.core.globs import BadGlob, expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policy.patterns import Pattern


class HiddenNames:
    """Globs of paths from where a walk begins; one without a slash means a name at any depth. The case of letters does
    not count. Raises BadGlob for one that means nothing."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._patterns = tuple(_compiled(globs))

    def hides(self, path: str) -> bool:
        """True if the entry at a relative path is passed over, with all that is below it."""
        name = path.encode("utf-8", "surrogateescape")
        return any(pattern.search(name) is not None for pattern in self._patterns)


@functools.lru_cache(maxsize=4)
def hidden_names(globs: tuple[str, ...]) -> HiddenNames:
    """The same for the same globs. Raises BadGlob."""
    return HiddenNames(globs)


def _compiled(globs: Sequence[str]) -> Iterator[Pattern]:
    """Few patterns for many globs: each entry of a walk is held against all of them."""
    together: list[str] = []
    for glob in globs:
        written = f"(?:{expression(glob)})"
        if together and sum(map(len, together)) + len(together) + len(written) > MAX_CHARACTERS - 10:
            yield _pattern(together)
            together = []
        together.append(written)
    if together:
        yield _pattern(together)


def _pattern(alternatives: list[str]) -> Pattern:
    found = compiled(f"(?i)(?:{'|'.join(alternatives)})")
    if found is None:
        raise BadGlob(f"cannot be used: {alternatives[0][:200]}")
    return found
