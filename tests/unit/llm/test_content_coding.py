"""Bodies decompressed in small pieces, whatever one chunk of them may grow to."""

from __future__ import annotations

import gzip
import zlib

import pytest

from agent_host.llm import StreamProtocolError
from agent_host.llm.network import UnknownCoding, decoder
from tests.support.rows import each_row

DATA = b"".join(b"line %d\n" % n for n in range(50_000))


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.slow
@each_row(
    ("coding", "body"),
    [
        ("", DATA),
        ("identity", DATA),
        ("gzip", gzip.compress(DATA)),
        ("x-gzip", gzip.compress(DATA)),
        (" GZIP , identity", gzip.compress(DATA)),
        ("deflate", zlib.compress(DATA)),
        ("deflate", bare_deflate(DATA)),
        ("gzip", gzip.compress(DATA) + b"what nobody reads"),
    ],
)
@each_row("cut", [1, 1000, 1 << 20])
def test_what_was_packed_comes_out(coding: str, body: bytes, cut: int) -> None:
    pieces_of = decoder(coding)
    assert b"".join(piece for n in range(0, len(body), cut) for piece in pieces_of(body[n : n + cut])) == DATA


def test_a_chunk_that_holds_megabytes_comes_in_pieces() -> None:
    pieces = decoder("gzip")(gzip.compress(bytes(20 << 20)))
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) == 65_536
    assert sum(sizes) == 20 << 20


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip, br", "compress"])
def test_other_codings_are_unknown(coding: str) -> None:
    with pytest.raises(UnknownCoding, match=coding):
        decoder(coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_damage_is_an_error_of_the_stream(coding: str) -> None:
    with pytest.raises(StreamProtocolError, match="cannot be decompressed"):
        list(decoder(coding)(b"nope"))
