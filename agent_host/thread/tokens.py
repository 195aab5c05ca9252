"""How many tokens a text will cost, before the gateway says so (AH 5.3).

The built-in estimate counts what tokenizers of today's models cut at: short runs of letters, up to three digits, single
punctuation marks, runs of white space, single characters beyond ASCII. Bytes divided by four would be half of the truth
for hex, base64 and file listings, which is what tool output is made of; this errs on the high side for prose.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Letters: English words up to eight letters are mostly one token, random letters about one for three; a run cut at six
# lies between the two. A single space before a word belongs to the word.
_PIECE = re.compile(r" ?[A-Za-z]{1,6}|\d{1,3}|\s+|[^\sA-Za-z\d]")

PER_MESSAGE_OVERHEAD = 6
_PIXELS_PER_TOKEN = 750
_MAX_IMAGE_TOKENS = 4784
_PER_CALL_OVERHEAD = 12

# tiktoken downloads a missing rank file without any time-out, so a missing one is an error here, not a download.
_RANK_FILES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}


class TokenizerUnavailable(Exception):
    """The tokenizer asked for cannot be had without a download or a missing package."""


def estimate(text: str) -> int:
    """Tokens of `text`, about; linear in its length."""
    return len(_PIECE.findall(text))


def message_tokens(count: Callable[[str], int], content: str, encoded_calls: tuple[str, ...] = ()) -> int:
    """Tokens of a message with `content` and the JSON of its tool calls."""
    return PER_MESSAGE_OVERHEAD + count(content) + sum(_PER_CALL_OVERHEAD + count(call) for call in encoded_calls)


def image_tokens(width: int, height: int) -> int:
    """Tokens of a picture of so many pixels, by Anthropic's rule. A large one is scaled down before it is counted, to
    at most 4784 tokens with the models that see most of it."""
    return min(_MAX_IMAGE_TOKENS, -(-width * height // _PIXELS_PER_TOKEN))


def counter(name: str) -> Callable[[str], int]:
    """The counter called `name`: `estimate`, or an encoding of tiktoken (extra `tiktoken`) whose rank file lies in
    TIKTOKEN_CACHE_DIR. Raises TokenizerUnavailable."""
    if name == "estimate":
        return estimate
    if name not in _RANK_FILES:
        raise TokenizerUnavailable(f"unknown tokenizer {name!r}: choose estimate, {', '.join(_RANK_FILES)}")
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not cache or not os.path.isfile(os.path.join(cache, _RANK_FILES[name])):
        raise TokenizerUnavailable(f"TIKTOKEN_CACHE_DIR holds no rank file {_RANK_FILES[name]} for {name}")
    try:
        import tiktoken
    except ImportError as error:
        raise TokenizerUnavailable("install agent-host[tiktoken] for this tokenizer") from error
    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode_ordinary(text))
