"""Small pictures, put together by hand: their structure is right, and their pixels are as many as they say."""

from __future__ import annotations

import random
import struct
import zlib

from agent_host.contracts import Image


def png(width: int = 4, height: int = 3, size: int = 0) -> bytes:
    """A grey PNG of so many pixels; a private chunk of noise brings it to about `size` bytes."""
    pixels = zlib.compress((b"\0" + b"\x80" * width) * height)
    noise = random.Random(size).randbytes(size)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"noIs", noise),
        (b"IDAT", pixels),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks if data or kind != b"noIs")


def jpeg(width: int = 4, height: int = 3, frame: int = 0xC0) -> bytes:
    """The segments of a JPEG, whose scan is none that can be decoded."""
    head = _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") + _segment(0xDB, b"\0" * 65)
    sof = _segment(frame, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")
    return b"\xff\xd8" + head + b"\xff" + sof + _segment(0xDA, b"\1\1\0\0\x3f\0") + b"\x12\x34" + b"\xff\xd9"


def gif(width: int = 4, height: int = 3) -> bytes:
    """A GIF of one frame."""
    size = struct.pack("<HH", width, height)
    return b"GIF89a" + size + b"\x80\0\0\0\0\0\xff\xff\xff" + b",\0\0\0\0" + size + b"\0\2\2D\1\0;"


def webp(width: int = 4, height: int = 3, kind: bytes = b"VP8 ") -> bytes:
    """A WebP with a first chunk of `kind`: `VP8 `, `VP8L` or `VP8X`."""
    if kind == b"VP8 ":
        body = b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    elif kind == b"VP8L":
        body = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 5
    else:
        body = b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def image(width: int = 4, height: int = 3, size: int = 0) -> Image:
    """A PNG as a tool gives it."""
    return Image("image/png", width, height, png(width, height, size))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data
