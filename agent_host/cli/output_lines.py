"""What a command prints, in lines for a person: the state that a progress bar was left in, and nothing that steers."""

from __future__ import annotations

import itertools
import re
from collections import deque

from agent_host.shown_text import escaped

KEPT_LINES = 5
_OF_EACH = 2
# What is longer without an end counts as a line.
_MAX_OPEN_CHARS = 16 * 1024
# Colours, and the end of a line erased: without them the text says the same.
_STYLE = re.compile(r"\x1b\[[0-9;:]*[mK]")


class OutputLines:
    """The output of one call. Lines are given escaped, without their ends."""

    def __init__(self) -> None:
        self._last: dict[str, deque[tuple[int, str]]] = {}
        self._open: dict[str, str] = {}
        self._count = 0

    def add(self, stream: str, text: str) -> list[str]:
        """The lines that the next `text` of `stream` completes."""
        *whole, still_open = (self._open.get(stream, "") + text).split("\n")
        if len(still_open) > _MAX_OPEN_CHARS:
            still_open = _last_state(still_open)
        if len(still_open) > _MAX_OPEN_CHARS:
            whole.append(still_open)
            still_open = ""
        self._open[stream] = still_open
        return self._keep(stream, whole)

    def end(self) -> list[str]:
        """The lines that had no end when the output ended."""
        still_open, self._open = self._open, {}
        return [line for stream, text in still_open.items() if text for line in self._keep(stream, [text])]

    def last(self) -> list[str]:
        """The last lines that are not blank, at most KEPT_LINES; those that have no end yet too."""
        still_open = [_shown(text) for text in self._open.values()]
        whole = [line for _, line in sorted(itertools.chain(*self._last.values()))]
        return [*whole, *(line for line in still_open if line.strip())][-KEPT_LINES:]

    def last_of_each(self) -> list[str]:
        """The same once the output has ended, but with two lines of each stream at least: nobody knows which of two
        streams came last, and the error may stand in either."""
        self.end()
        newest_first = [sorted(lines, reverse=True) for lines in self._last.values()]
        ends = [line for lines in newest_first for line in lines[:_OF_EACH]]
        others = sorted((line for lines in newest_first for line in lines[_OF_EACH:]), reverse=True)
        return [line for _, line in sorted((ends + others)[:KEPT_LINES])]

    def _keep(self, stream: str, whole: list[str]) -> list[str]:
        lines = [_shown(line) for line in whole]
        kept = self._last.setdefault(stream, deque(maxlen=KEPT_LINES))
        for line in lines:
            if line.strip():
                self._count += 1
                kept.append((self._count, line))
        return lines


def _shown(line: str) -> str:
    return escaped(_last_state(_STYLE.sub("", line)), keep="\t").expandtabs()


def _last_state(line: str) -> str:
    """The last state of a line that was written over with carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]
