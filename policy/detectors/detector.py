"""One kind of secret, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Detector(NamedTuple):
    """One kind of secret. Any match of `pattern` holds one of `anchors`: those with a capital letter as they are, the
    others in any letter case. The group `secret` of `pattern` is what is taken out, the whole match where it has none;
    `confirms` gets the match's text, the secret, and the byte behind the secret, and has the last word. `in_json` also
    fits wherever JSON encodes a text that `pattern` fits; None where no such expression is known."""

    kind: str
    pattern: str
    anchors: tuple[str, ...]
    confirms: Callable[[bytes, bytes, bytes], bool] | None = None
    in_json: str | None = None


EDGE = r"(?:\b|\\[nrtbf])"
"""Where a word begins, also behind the escaped end of a line."""
