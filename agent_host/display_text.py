"""Text of a model, made safe to show to the person who decides about it: it hides nothing, cannot control the terminal
and has a bounded length.

Characters that a person does not see (control characters, characters that change the writing direction, have no width
or are blank without being a space) are shown as escapes. Text that is too long is cut and marked as cut. Sizes are
those of the text in JSON, its form on the wire.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

LINE_BYTES: Final = 400
KEPT: Final = "\n\t"
UNSEEN: Final = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U00016fe4\U0001d159]"
    "|(?:(?<![\u3400-\u9fff\U00020000-\U0003ffff])|(?<=[\U000e0100-\U000e01ef].))[\U000e0100-\U000e01ef]"
    "|(?<![\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f](?!\u20e3)"
)
"""A pattern of printable characters that show nothing: a program fits between two quotes in variation selectors. One
that chooses how a symbol looks is seen."""


def escape(text: str, keep: str = KEPT) -> str:
    """Replace each character of `text` that is not seen by its Python escape, except those in `keep`. The result has no
    lone surrogates."""
    if not text.isascii():
        text = re.sub(UNSEEN, lambda found: ascii(found[0])[1:-1], text)
    if text.isprintable() or (keep == KEPT and text.replace("\n", "").replace("\t", "").isprintable()):
        return text
    return "".join(char if char in keep or char.isprintable() else repr(char)[1:-1] for char in text)


def name_for_json(path: str) -> str:
    """A path for JSON: the bytes of a name that is not UTF-8 are written as `\\\\xff`."""
    if path.isascii():
        return path
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def count_noun(number: int, noun: str) -> str:
    """A number and its noun: "1 step", "2 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, max_bytes: int = LINE_BYTES) -> str:
    """Return `text` on one line, in at most `max_bytes` of JSON; it ends with `…` if it was cut."""
    kept = _fitting(text, max_bytes, keep="")
    escaped = escape(text[:kept], keep="")
    return escaped if kept == len(text) else escaped + "…"


def clip(text: str, max_bytes: int) -> str:
    """The start of `text`, escaped, in at most `max_bytes` of JSON; if it was cut, followed by a note on its own
    line."""
    kept = _fitting(text, max_bytes)
    escaped = escape(text[:kept])
    return escaped if kept == len(text) else f"{escaped}\n[… {len(text) - kept} more characters are not shown]"


def _fitting(text: str, max_bytes: int, keep: str = KEPT) -> int:
    """The number of characters of `text` that fit into `max_bytes` after escaping and encoding."""
    low, high = 0, min(len(text), max_bytes)
    if json_size(escape(text[:high], keep)) <= max_bytes:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if json_size(escape(text[:middle], keep)) <= max_bytes:
            low = middle
        else:
            high = middle
    return low


def json_size(text: str) -> int:
    """Number of bytes of `text` in JSON, without the quotes."""
    return len(orjson.dumps(text)) - 2


def tokens_in_words(used: Mapping[str, Any], *, cache_last: bool = False) -> str:
    """Tokens and, if known, their cost in one line: `1200 tokens in (800 cached, 100 written), 60 out, 0.0123 USD`;
    with `cache_last` the bracketed part follows the tokens out. `used` has the fields of a usage, and `cost` and
    `costCurrency`."""
    of_cache = ((used.get("cachedInputTokens"), "cached"), (used.get("cacheWriteTokens"), "written"))
    cache = ", ".join(f"{count} {what}" for count, what in of_cache if count)
    cache = f" ({cache})" if cache else ""
    tokens_in, tokens_out = f"{used['inputTokens']} tokens in", f"{used['outputTokens']} out"
    words = f"{tokens_in}, {tokens_out}{cache}" if cache_last else f"{tokens_in}{cache}, {tokens_out}"
    cost = used.get("cost")
    if cost is None:
        return words
    digits = 2 if cost >= 1 else 4 if cost >= 0.01 else 6
    return f"{words}, {cost:.{digits}f} {used.get('costCurrency', '')}"
