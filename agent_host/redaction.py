"""Redaction of secrets in everything that this process writes, displays or sends.

The host's own secrets, its tokens, are known by value. They are removed from the environment, their bytes in this
process's environment block are overwritten (a child could read them under /proc), and they are replaced in results of
tools. All others are detected by their form (`policy.redaction`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from policy.redaction import strip_terminal_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from policy.redaction import Redaction

REDACTED = "[redacted]"
# Shorter values would be found in innocent text; a token that short protects nothing.
_MIN_CHARS = 8
# An event may quote a call whose argument is JSON itself.
_NESTED_JSON = 3


class Scrubber:
    """Replaces known secret values, and the matches of `redaction`. A session has one scrubber; a new bundle brings a
    new `redaction`."""

    def __init__(self, secrets: Iterable[str | None], redaction: Redaction | None = None) -> None:
        self.redaction = redaction
        self._secrets: tuple[str, ...] = ()
        self.add(secrets)

    def add(self, secrets: Iterable[str | None]) -> None:
        """Replace these values as well from now on."""
        known = {*self._secrets, *(one for one in secrets if one is not None and len(one) >= _MIN_CHARS)}
        # The longest first: a spelling with another level of escapes, or a longer secret, may contain the other.
        spellings = sorted({form for secret in known for form in _spellings(secret)}, key=len)[::-1]
        self._in_json = tuple({_escape(form, ascii_only=ascii_only).encode("utf-8", "surrogateescape")
                               for form in spellings for ascii_only in (False, True)})  # fmt: skip
        self._spellings = spellings
        self._secrets = tuple(sorted(known, key=lambda one: (-len(one), one)))

    def text(self, text: str) -> str:
        """`text` without the secrets."""
        if not text:
            return text
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text if self.redaction is None else self.redaction.text(text)

    def data(self, data: bytes) -> bytes:
        """`data` without the secrets."""
        for secret in self._secrets:
            data = data.replace(secret.encode(), REDACTED.encode())
        return data if self.redaction is None else self.redaction.data(data)

    def pieces(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Clean the `chunks` of secrets in bounded memory; see `clean_pieces`."""
        return clean_pieces(self.data, chunks)

    def value(self, value: Any, *, is_event: bool = False) -> Any:
        """A JSON value without the secrets, in new containers."""
        known = self._clean(value)
        return known if self.redaction is None else self.redaction.value(known, is_event=is_event)

    def json(self, data: bytes, *, is_event: bool = False) -> bytes:
        """Redact encoded JSON, including secrets that JSON spells with escapes, also in nested JSON. Cheap if there is
        none; otherwise the JSON is decoded and encoded again, because a match may begin inside of an escape."""
        holds_known = any(form in data for form in self._in_json)
        if not holds_known and (self.redaction is None or not self.redaction.concerns(data, is_event=is_event)):
            return data
        value = json.loads(data)
        clean = self.value(value, is_event=is_event)
        if clean == value:
            return data
        end = b"\n" if data.endswith(b"\n") else b""
        return json.dumps(clean, separators=(",", ":")).encode() + end

    def are_clean(self, lines: bytes) -> bool:
        """True if several lines of encoded JSON certainly contain no secret: one search for many short lines. If False,
        each line must be searched."""
        if any(form in lines for form in self._in_json):
            return False
        return self.redaction is None or not self.redaction.may_concern(lines)

    def event(self, data: bytes) -> bytes:
        """An encoded event without the secrets, its envelope's own numbers as they are; see `Redaction.value`."""
        return self.json(data, is_event=True)

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            for form in self._spellings:
                value = value.replace(form, REDACTED)
            return value
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item) for key, item in value.items()}
        return value


def _spellings(secret: str) -> Iterator[str]:
    """`secret`, and its spellings in JSON inside of a text."""
    for ascii_only in (False, True):
        form = secret
        for _ in range(_NESTED_JSON):
            yield form
            form = _escape(form, ascii_only=ascii_only)


def _escape(text: str, *, ascii_only: bool) -> str:
    """`text` as spelled inside of a JSON string; `ascii_only` is the fallback of `json_text.dumps`."""
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def hide_in_process_table(variables: Iterable[str]) -> None:
    """Overwrite the values of `variables` in the process's initial environment block, which the kernel exposes.
    `os.environ` keeps them. Call it before anything changes the environment; does nothing on Windows, which exposes no
    such block."""
    present = [(name, os.environ[name]) for name in variables if os.environ.get(name)]
    if not present or sys.platform == "win32":
        return
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name, value in present:
        address = libc.getenv(os.fsencode(name))
        if address:
            ctypes.memset(address, ord("*"), len(os.fsencode(value)))


# Redaction of data that is too large for memory, in pieces (AH 8.7).
#
# A piece is cut at a place where redacting both sides separately gives the same result as redacting the whole.

PIECE_BYTES: Final = 512 * 1024
"""Size of a searched piece, without the overlap."""
OVERLAP_BYTES: Final = 64 * 1024
"""Size of the part that is searched twice. If a bundle's rule matches more than this, part of the match may remain at a
cut. A private key has some kilobytes."""
_TRIES: Final = 8


def clean_pieces(clean: Callable[[bytes], bytes], chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Redact the `chunks`, of any length, by `clean`. Memory is bounded, unless matches leave no place for a cut: then
    pieces get larger."""
    pending, wanted = b"", PIECE_BYTES
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            pending += chunk[start : start + PIECE_BYTES]
            if len(pending) < wanted + OVERLAP_BYTES:
                continue
            cut, before = _cut(clean, pending)
            if cut:
                yield before
                pending, wanted = pending[cut:], PIECE_BYTES
            else:
                wanted = 2 * len(pending)
    yield clean(pending)


def _cut(clean: Callable[[bytes], bytes], data: bytes) -> tuple[int, bytes]:
    """Return the place of a cut, and the redacted data before it; (0, b"") if there is no place. A secret near the end
    of `data` may continue after it, so the end stays for the next piece."""
    cleaned = clean(data)
    limit = len(data) - OVERLAP_BYTES
    for _ in range(_TRIES):
        cut = _line_end(data, limit)
        if cleaned == data:
            return cut, data[:cut]
        before = clean(data[:cut])
        # Colour codes inside of a match are removed from all searched data.
        if strip_terminal_codes(before) + strip_terminal_codes(clean(data[cut:])) == strip_terminal_codes(cleaned):
            return cut, before
        limit = cut - OVERLAP_BYTES // 2
        if limit <= 0:
            break
    return 0, b""


def _line_end(data: bytes, limit: int) -> int:
    found = data.rfind(b"\n", max(0, limit - OVERLAP_BYTES), limit) + 1
    if found:
        return found
    while limit > 1 and 0x80 <= data[limit] < 0xC0:
        limit -= 1
    return limit
