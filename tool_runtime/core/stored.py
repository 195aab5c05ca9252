"""A part of what an earlier call left: lines by number, or those that match. Blocking: callers run it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from tool_runtime.core.files import refuse_abandoned
from tool_runtime.output.terminal import reduced

if TYPE_CHECKING:
    from policy.patterns import Pattern
    from tool_runtime.tool import Abandoned

MAX_LINE_CHARS: Final = 2000
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
    """The lines, at most some `max_bytes` of them; in bounded memory. Lines are as a terminal would show them. Raises
    OSError, and ToolFault for a call that has been given up."""
    found: list[tuple[int, str]] = []
    number = matched = size = 0
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        if number % 1000 == 0:
            refuse_abandoned(abandoned)
        plain = reduced(line).rstrip(b"\r\n")
        if params.pattern is not None and params.pattern.search(plain) is None:
            continue
        matched += 1
        if matched < params.offset:
            continue
        if len(found) == params.limit or size > max_bytes:
            return StoredPart(found, True, number)
        text = _cut(plain.decode("utf-8", "replace"))
        size += len(text)
        found.append((number, text))
    return StoredPart(found, False, number)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… [{len(line)} characters]"
