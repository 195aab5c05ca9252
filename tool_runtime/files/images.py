"""Headers of pictures: PNG, JPEG, GIF and WebP. Pure, and nothing is decompressed.

A gateway refuses a whole request for one picture that it cannot read, and every later request with it. So a file that
is cut short or whose checksums are wrong is found here, as far as that shows without decompressing it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES: Final = 5 * 1024 * 1024 * 3 // 4
"""Of a picture's file. Providers take 5 MiB of base64, which is four thirds of it."""
MAX_SIDE: Final = 8000  # pixels of a side that providers take

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_STANDALONE: Final = frozenset((0x01, *range(0xD0, 0xD8)))  # JPEG markers without a length
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # those that give the size


class Header(NamedTuple):
    """Sides are in pixels, 0 if unknown. `is_complete`: nothing is missing, as far as its structure shows."""

    media_type: str
    width: int = 0
    height: int = 0
    is_complete: bool = False


class ImageFile(NamedTuple):
    """A file that begins like a picture. `data` is all of it; None if no model should get it, because of `problem`."""

    header: Header
    data: bytes | None
    problem: str = ""


def header_of(data: bytes) -> Header | None:
    """Read the header of the picture in `data`, a file or its beginning; None if it does not begin like one. The name
    of the file is irrelevant."""
    for starts, media_type, read in _FORMATS:
        if starts(data):
            width, height, is_complete = read(data)
            sized = width > 0 and height > 0
            return Header(media_type, width, height, is_complete) if sized else Header(media_type)
    return None


def check_image(data: bytes) -> ImageFile | None:
    """The picture in `data`, or the reason why no model should get it; None if it is not a picture."""
    header = header_of(data)
    if header is None:
        return None
    problem = ""
    if len(data) > MAX_BYTES:
        problem = f"a picture may have at most {MAX_BYTES} bytes"
    elif max(header.width, header.height) > MAX_SIDE:
        problem = f"a side may have at most {MAX_SIDE} pixels"
    elif not header.is_complete:
        problem = "the file is damaged or cut short"
    return ImageFile(header, None if problem else data, problem)


def _png(data: bytes) -> tuple[int, int, bool]:
    """Chunks of length, type, content and CRC; the first is IHDR, the last IEND, and pixels are in IDAT."""
    if len(data) < 33 or data[8:16] != b"\0\0\0\rIHDR":
        return 0, 0, False
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    view, at, has_pixels = memoryview(data), len(_PNG), False
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4])
        if data[end : end + 4] != zlib.crc32(view[at + 4 : end]).to_bytes(4):
            break
        kind = data[at + 4 : at + 8]
        if kind == b"IEND":
            return width, height, has_pixels
        has_pixels = has_pixels or kind == b"IDAT"
        at = end + 4
    return width, height, False


def _jpeg(data: bytes) -> tuple[int, int, bool]:
    """Segments of a marker and a length up to the frame header; the end marker follows the last scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
            continue
        if marker in _STANDALONE:
            at += 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4])
        if marker in _FRAMES and length >= 8 and at + 9 <= len(data):
            height, width = int.from_bytes(data[at + 5 : at + 7]), int.from_bytes(data[at + 7 : at + 9])
            return width, height, data.rfind(b"\xff\xd9") >= at + 2 + length
        if length < 2 or marker in (0xD9, 0xDA):
            break
        at += 2 + length
    return 0, 0, False


def _gif(data: bytes) -> tuple[int, int, bool]:
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    return width, height, len(data) > 13 and data.rstrip(b"\0").endswith(b";")


def _webp(data: bytes) -> tuple[int, int, bool]:
    """RIFF with its length, WEBP, and a first chunk that has the size in one of three forms."""
    kind, at = data[12:16], 20
    if len(data) < at + 10:
        return 0, 0, False
    is_complete = len(data) >= 8 + int.from_bytes(data[4:8], "little") >= at + int.from_bytes(data[16:20], "little")
    if kind == b"VP8 " and data[at + 3 : at + 6] == b"\x9d\x01\x2a":
        sides = int.from_bytes(data[at + 6 : at + 10], "little")
        return sides & 0x3FFF, sides >> 16 & 0x3FFF, is_complete
    if kind == b"VP8L" and data[at] == 0x2F:
        sides = int.from_bytes(data[at + 1 : at + 5], "little")
        return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1, is_complete
    if kind == b"VP8X":
        sides = int.from_bytes(data[at + 4 : at + 10], "little")
        return (sides & 0xFFFFFF) + 1, (sides >> 24) + 1, is_complete
    return 0, 0, False


_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], str, Callable[[bytes], tuple[int, int, bool]]], ...]] = (
    (lambda data: data.startswith(_PNG), "image/png", _png),
    (lambda data: data.startswith(b"\xff\xd8\xff"), "image/jpeg", _jpeg),
    (lambda data: data.startswith((b"GIF87a", b"GIF89a")), "image/gif", _gif),
    (lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", "image/webp", _webp),
)
