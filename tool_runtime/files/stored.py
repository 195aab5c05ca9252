"""A part of what an earlier call left: lines by number, or those that match. Blocking: callers run it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from tool_runtime.files.read import refuse_abandoned
from tool_runtime.output.terminal import Reducer, strip_controls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.patterns import Pattern
    from tool_runtime.tool import Abandoned

MAX_LINE_CHARS: Final = 2000
_CHUNK_BYTES: Final = 256 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024
"""A longer line is read in parts, which count as lines."""


class StoredParams(NamedTuple):
    """`offset` is a line number from 1, or with a `pattern` counts matches from 1. `limit` is a number of lines."""

    offset: int = 1
    limit: int = 200
    pattern: Pattern | None = None


class StoredPart(NamedTuple):
    """`lines` with their numbers. `more`: there are further ones; `seen` lines were read."""

    lines: list[tuple[int, str]]
    more: bool
    seen: int


def read_stored(file: BinaryIO, params: StoredParams, max_bytes: int, abandoned: Abandoned) -> StoredPart:
    """The lines, at most some `max_bytes` of them; in bounded memory. Lines are as a terminal would show them in the
    end. Raises OSError, and ToolFault for a call that has been given up."""
    found: list[tuple[int, str]] = []
    number = matched = size = 0
    for line in _lines(file, abandoned):
        number += 1
        if params.pattern is not None and params.pattern.search(line) is None:
            continue
        matched += 1
        if matched < params.offset:
            continue
        if len(found) == params.limit or size > max_bytes:
            return StoredPart(found, True, number)
        text = _cut(line.decode("utf-8", "replace"))
        size += len(text)
        found.append((number, text))
    return StoredPart(found, False, number)


def _lines(file: BinaryIO, abandoned: Abandoned) -> Iterator[bytes]:
    """The lines without their ends, as they are shown in the thread."""
    reducer, begun = Reducer(), b""
    while chunk := file.read(_CHUNK_BYTES):
        refuse_abandoned(abandoned)
        *lines, begun = (begun + reducer.feed(chunk)).split(b"\n")
        yield from map(_plain, lines)
        if len(begun) > _MAX_LINE_BYTES:
            yield _plain(begun)
            begun = b""
    *lines, begun = (begun + reducer.end()).split(b"\n")
    yield from map(_plain, [*lines, begun] if begun else lines)


def _plain(line: bytes) -> bytes:
    return strip_controls(line).rstrip(b"\r")


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… [{len(line)} characters]"
