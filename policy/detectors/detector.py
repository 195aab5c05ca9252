"""One kind of secret, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Detector(NamedTuple):
    """One kind of secret. The group `secret` of `pattern` is what is taken out, the whole match where it has none;
    `confirms` gets the match's text, the secret, and the byte behind the secret, and has the last word."""

    kind: str
    pattern: str
    anchors: tuple[str, ...]
    confirms: Callable[[bytes, bytes, bytes], bool] | None = None


EDGE = r"(?:\b|\\[nrtbf])"
"""Where a word begins, also behind the escaped end of a line."""
