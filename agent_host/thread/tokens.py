"""Estimates of the tokens that a text will cost, before the gateway says so (AH 5.3).

The built-in estimate is a sum over kinds of characters and over the places where one kind follows another, since that
is where tokenizers cut: a word behind a space, a capital behind a small letter, a digit behind a letter. Its weights
were fitted to OpenAI's encodings on prose, code, listings, logs, numbers, hex and base64, and raised by a tenth: it
errs high, and by about the same share on each of them. What the gateway counts then tells that share (`loop.requests`).
Bytes divided by four would be half of the truth for hex, base64 and file listings, which is what tool output is made
of.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PER_MESSAGE_OVERHEAD = 6
_PIXELS_PER_TOKEN = 750
_MAX_IMAGE_TOKENS = 4784
_PER_CALL_OVERHEAD = 12

# What a character is, by the first byte of its UTF-8; all are punctuation (".") that are nothing else.
_KINDS: tuple[tuple[bytes, range], ...] = (
    (b"a", range(0x61, 0x7B)),  # small letters
    (b"A", range(0x41, 0x5B)),  # capitals
    (b"0", range(0x30, 0x3A)),
    (b"n", range(0x0A, 0x0E)),
    (b"s", range(0x20, 0x21)),
    (b"s", range(0x09, 0x0A)),
    (b"M", range(0xC2, 0xE0)),  # letters of two bytes: with accents, Greek, Cyrillic, Hebrew, Arabic
    (b"C", range(0xE0, 0xF0)),  # letters of three bytes, most of them Chinese, Japanese or Korean
    (b"S", range(0xE2, 0xE3)),  # quotation marks, lines, arrows
    (b"S", range(0xF0, 0x100)),  # emoji
)
_KIND_OF = bytearray(b"." * 256)
for _kind, _first_bytes in _KINDS:
    for _byte in _first_bytes:
        _KIND_OF[_byte] = _kind[0]
_FURTHER_BYTES = bytes(range(0x80, 0xC0))
# Hundredths of a token for each place where these kinds stand in a row. Long runs of letters are no words.
_WEIGHTS: tuple[tuple[bytes, int], ...] = (
    (b"a", 6), (b"A", 21), (b"0", 30), (b".", 35), (b"n", 78), (b"s", 1), (b"M", 53), (b"S", 132), (b"C", 100),
    (b"sa", 98), (b".a", 98), (b".A", 23), (b"Aa", 81), (b"aA", 85),
    (b"0A", 82), (b"0a", 35), (b"a0", 167), (b"A0", 126), (b"s0", 220), (b".0", 151), (b"s.", 101),
    (b"a" * 12, 328), (b"A" * 12, 246),
)  # fmt: skip

AUTO, ESTIMATE = "auto", "estimate"


_RANK_FILES_AT = "https://openaipublic.blob.core.windows.net/encodings"


class _RankFile:
    """tiktoken's file of an encoding: its name in TIKTOKEN_CACHE_DIR, which is the SHA-1 of its URL, and the SHA-256
    that tiktoken asks of it."""

    def __init__(self, name: str, sha256: str) -> None:
        self.name = name
        self.sha256 = sha256


_RANK_FILES = {
    "o200k_base": _RankFile(
        "fb374d419588a4632f3f557e76b4b70aebbca790", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
    ),
    "cl100k_base": _RankFile(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
    ),
}
ENCODINGS = tuple(_RANK_FILES)
"""The encodings of tiktoken that can be chosen."""


class TokenizerUnavailable(Exception):
    """The tokenizer asked for cannot be had without a download."""


def estimate(text: str) -> int:
    """Tokens of `text`, about; linear in its length."""
    kinds = text.encode("utf-8", "replace").translate(_KIND_OF, _FURTHER_BYTES)
    hundredths = 0
    for pattern, weight in _WEIGHTS:
        hundredths += weight * kinds.count(pattern)
    return (hundredths + 99) // 100


def message_tokens(count: Callable[[str], int], content: str, encoded_calls: tuple[str, ...] = ()) -> int:
    """Tokens of a message with `content` and the JSON of its tool calls."""
    return PER_MESSAGE_OVERHEAD + count(content) + sum(_PER_CALL_OVERHEAD + count(call) for call in encoded_calls)


def image_tokens(width: int, height: int) -> int:
    """Tokens of a picture of so many pixels, by Anthropic's rule. A large one is scaled down before it is counted, to
    at most 4784 tokens with the models that see most of it."""
    return min(_MAX_IMAGE_TOKENS, -(-width * height // _PIXELS_PER_TOKEN))


def counter(name: str, encoding: str | None = None) -> Callable[[str], int]:
    """The counter called `name`: `estimate`, an encoding of tiktoken whose rank file lies in TIKTOKEN_CACHE_DIR, or
    `auto`: the model's `encoding` where that can be had, else the estimate. Raises TokenizerUnavailable."""
    if name == ESTIMATE:
        return estimate
    if name != AUTO:
        return _load_tiktoken(name)
    try:
        return estimate if encoding is None else _load_tiktoken(encoding)
    except TokenizerUnavailable:
        return estimate


def _load_tiktoken(name: str) -> Callable[[str], int]:
    """tiktoken downloads a rank file that is missing or damaged, without any time-out: so it is not asked for one
    before its rank file has been looked at."""
    if name not in _RANK_FILES:
        raise TokenizerUnavailable(f"unknown tokenizer {name!r}: choose {', '.join((AUTO, ESTIMATE, *ENCODINGS))}")
    file, folder = _RANK_FILES[name], os.environ.get("TIKTOKEN_CACHE_DIR", "")
    path = os.path.join(folder, file.name)
    if not folder or not os.path.isfile(path):
        where = folder or "TIKTOKEN_CACHE_DIR, which is not set,"
        raise TokenizerUnavailable(f"{where} holds no rank file {file.name} for {name}; {advice(name, folder)}")
    import hashlib

    import tiktoken

    with open(path, "rb") as handle:
        is_whole = hashlib.file_digest(handle, "sha256").hexdigest() == file.sha256
    if not is_whole:
        raise TokenizerUnavailable(f"{folder} holds a damaged rank file {file.name} for {name}; {advice(name, folder)}")
    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode_ordinary(text))


def advice(encoding: str, folder: str) -> str:
    """Explain how to get the rank file of an encoding, which this program never downloads, in `folder` ("": one to
    choose): by tiktoken itself, or by hand for a machine without a network."""
    file, there = _RANK_FILES[encoding], folder or "DIR"
    command = f"python -c 'import tiktoken; tiktoken.get_encoding(\"{encoding}\")'"
    path = os.path.join(there, file.name)
    by_hand = f"save {_RANK_FILES_AT}/{encoding}.tiktoken as {path} (SHA-256 {file.sha256})"
    keep = "" if folder else ", and keep TIKTOKEN_CACHE_DIR=DIR set"
    return f"to have it, run once with TIKTOKEN_CACHE_DIR={there}: {command}, or {by_hand}{keep}"
