"""Secrets taken out of what is too large for memory, piece by piece (AH 8.7).

A piece ends where it makes no difference: what is cleaned on both sides of the cut is what is cleaned as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.detectors.redaction import as_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PIECE_BYTES: Final = 512 * 1024
"""What is looked at at once, besides the overlap."""
OVERLAP_BYTES: Final = 64 * 1024
"""What is looked at twice. Of what is found and is longer than this, as a rule of a bundle may find it, a part may stay
where it is cut. A private key has some kilobytes."""
_TRIES: Final = 8


def clean_pieces(clean: Callable[[bytes], bytes], chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What comes in `chunks`, of any length, without what `clean` takes out of bytes. Memory is bounded, unless what is
    found leaves no place for a cut: then more is looked at at once."""
    held, wanted = b"", PIECE_BYTES
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            held += chunk[start : start + PIECE_BYTES]
            if len(held) < wanted + OVERLAP_BYTES:
                continue
            cut, before = _cut(clean, held)
            if cut:
                yield before
                held, wanted = held[cut:], PIECE_BYTES
            else:
                wanted = 2 * len(held)
    yield clean(held)


def _cut(clean: Callable[[bytes], bytes], data: bytes) -> tuple[int, bytes]:
    """Where to cut, and what is before it, cleaned; (0, b"") where no place is found. What begins near the end of
    `data` may end behind it, so the end stays for the next piece."""
    whole = clean(data)
    limit = len(data) - OVERLAP_BYTES
    for _ in range(_TRIES):
        cut = _line_end(data, limit)
        if whole == data:
            return cut, data[:cut]
        before = clean(data[:cut])
        # Colours go where they stand inside of what is found, from all that is looked at.
        if as_shown(before) + as_shown(clean(data[cut:])) == as_shown(whole):
            return cut, before
        limit = cut - OVERLAP_BYTES // 2
        if limit <= 0:
            break
    return 0, b""


def _line_end(data: bytes, limit: int) -> int:
    """Where the last line ends before `limit`; in a long line, where a character does."""
    found = data.rfind(b"\n", max(0, limit - OVERLAP_BYTES), limit) + 1
    if found:
        return found
    while limit > 1 and 0x80 <= data[limit] < 0xC0:
        limit -= 1
    return limit
