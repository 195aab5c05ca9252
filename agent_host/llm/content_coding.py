"""The body of an answer as its sender wrote it, decompressed in pieces: a kilobyte of gzip may hold a megabyte, and
nobody who counts bytes can count them before they exist."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from agent_host.llm.stream import StreamProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ACCEPTED = "gzip, deflate"
"""What a request may say in its accept-encoding."""

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_WBITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class UnknownCoding(Exception):
    """The body is coded in a way that the request did not offer."""


def decoder(content_encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    """What makes pieces of at most 64 KiB of each chunk of a body with this Content-Encoding; a chunk that is not coded
    is its own piece.

    Raises UnknownCoding. What is returned raises StreamProtocolError for what cannot be decompressed.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    coded = [name for name in names if name not in ("", "identity")]
    if not coded:
        return _as_it_is
    wbits = _WBITS.get(coded[0])
    if wbits is None or len(coded) > 1:
        raise UnknownCoding(", ".join(coded))
    return _Inflater(wbits).pieces


def _as_it_is(chunk: bytes) -> Iterable[bytes]:
    return (chunk,)


class _Inflater:
    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)
        self._may_be_bare = wbits == zlib.MAX_WBITS

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """See `decoder`. What stands behind the end of the compressed data is passed over, as clients do."""
        if self._may_be_bare and chunk:
            self._may_be_bare = False
            if not _begins_with_zlib_header(chunk):  # some servers take "deflate" by its word
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        while not self._zlib.eof:
            try:
                piece = self._zlib.decompress(chunk, _PIECE_BYTES)
            except zlib.error as error:
                raise StreamProtocolError(f"it cannot be decompressed: {error}") from error
            if piece:
                yield piece
            chunk = self._zlib.unconsumed_tail
            if len(piece) < _PIECE_BYTES:
                return


def _begins_with_zlib_header(chunk: bytes) -> bool:
    """RFC 1950: method 8 and, where the second byte is there too, a check of both."""
    return chunk[0] & 0x0F == 8 and (len(chunk) == 1 or int.from_bytes(chunk[:2]) % 31 == 0)
