"""How many lines differ in texts that are too large for a diff. Reads them in slices, so that any size will do."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SLICE_BYTES: Final = 1024 * 1024


def replaced_lines(before: bytes, size: int, read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """(put in, taken out) when all between the common first and last lines is replaced; None for what is no UTF-8 text.

    The new text has `size` bytes; `read` gives at most so many of them (the second number) from an offset on. Raises
    what `read` raises.
    """
    lines = _count(size, read)
    if lines is None:
        return None
    shorter = min(len(before), size)
    start = before.rfind(b"\n", 0, _common_start(before, shorter, read)) + 1
    end = _common_end(before, size, shorter - start, read)
    behind = before[len(before) - end :]
    # The common end begins with a line, unless it is in the middle of one on either side.
    at_old, at_new = len(before) - end, size - end
    if not (_begins_line(at_old, lambda at: before[at : at + 1]) and _begins_line(at_new, lambda at: read(at, 1))):
        behind = behind.partition(b"\n")[2]
    common = before.count(b"\n", 0, start) + _lines_in(behind)
    return lines - common, _lines_in(before) - common


def _count(size: int, read: Callable[[int, int], bytes]) -> int | None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, last = 0, b"\n"
    for at in range(0, size, _SLICE_BYTES):
        part = read(at, _SLICE_BYTES)
        try:
            decoder.decode(part, final=at + _SLICE_BYTES >= size)
        except UnicodeDecodeError:
            return None
        if b"\0" in part:
            return None
        lines += part.count(b"\n")
        last = part[-1:] or last
    return lines + (last != b"\n")


def _lines_in(data: bytes) -> int:
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


def _begins_line(at: int, byte: Callable[[int], bytes]) -> bool:
    return at == 0 or byte(at - 1) == b"\n"


def _common_start(before: bytes, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for at in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - at)
        old, new = before[at : at + length], read(at, length)
        if old != new:
            return at + _equal_bytes(old, new)
    return shorter


def _common_end(before: bytes, size: int, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for behind in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - behind)
        at = len(before) - behind - length
        old, new = before[at : at + length], read(size - behind - length, length)
        if old != new:
            return behind + _equal_bytes(old[::-1], new[::-1])
    return max(shorter, 0)


def _equal_bytes(old: bytes, new: bytes) -> int:
    return next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), len(new))
