"""The block at a terminal that shows a running call with the last lines of its output, redrawn in place."""

from __future__ import annotations

import itertools
import re
from collections import deque
from typing import TYPE_CHECKING

from agent_host.display_text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.cli.progress import Clock, Running, Timer
    from agent_host.cli.screen import Block

REDRAW_S = 0.1
"""At least, between two times that the block is drawn; the first comes so long after a call began."""
TICK_S = 1.0
"""At most, while a call runs: the block says for how long."""


class LiveView:
    """Draws on `block` what of `running` printed last, or began first. `outputs` has the output of each call,
    `prefix` stands before its lines, and `titled` makes the line above them of a call's label."""

    def __init__(
        self,
        block: Block,
        running: Running,
        outputs: Mapping[str, OutputLines],
        clock: Clock,
        *,
        titled: Callable[[str], str],
        prefix: str,
    ) -> None:
        self._block = block
        self._running = running
        self._outputs = outputs
        self._clock = clock
        self._titled = titled
        self._prefix = prefix
        self._latest = ""
        self._drawn_at = 0.0
        self._timer: Timer | None = None
        self._timer_due = 0.0

    def began(self) -> None:
        """A call was requested."""
        if self._timer is None:
            self._drawn_at = self._clock.now()
            self._draw_at(self._drawn_at + TICK_S)

    def note_output(self, call_id: str) -> None:
        """A call has printed something."""
        self._latest = call_id
        self._draw_at(self._drawn_at + REDRAW_S)

    def clear(self) -> None:
        """Take the block away, for something else to be printed; it comes back below that, if a call still runs."""
        self._block.clear()
        if self._timer is not None:
            self._draw_at(self._drawn_at + REDRAW_S)

    def stop(self) -> None:
        """Take the block away and leave no timer."""
        self._block.clear()
        self._cancel()

    def _draw_at(self, due: float) -> None:
        if self._timer is not None and self._timer_due <= due:
            return
        self._cancel()
        self._timer_due = due
        self._timer = self._clock.later(max(0.0, due - self._clock.now()), self._draw)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _draw(self) -> None:
        self._timer = None
        self._drawn_at = self._clock.now()
        calls = self._running.calls
        active = {call_id: call for call_id, call in calls.items() if not call.asked}
        if not active or len(active) < len(calls):  # over, or a question stands there
            self._block.clear()
            return
        call_id = self._latest if self._latest in active else next(iter(active))
        output = self._outputs.get(call_id)
        lines = [] if output is None else [f"{self._prefix}{line}" for line in output.last()]
        call = active[call_id]
        self._block.draw(self._titled(call.label), self._running.state(call, others=len(active) - 1), lines)
        self._draw_at(self._drawn_at + TICK_S)


# What a command prints, in lines for a person: the state that a progress bar was left in, and nothing that steers.

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
        still_open = [_render(text) for text in self._open.values()]
        whole = [line for _, line in sorted(itertools.chain(*self._last.values()))]
        return [*whole, *(line for line in still_open if line.strip())][-KEPT_LINES:]

    def last_of_each(self) -> list[str]:
        """The same once the output has ended, but with at least two lines of each stream: it is unknown which of two
        streams came last, and the error may stand in either."""
        self.end()
        newest_first = [sorted(lines, reverse=True) for lines in self._last.values()]
        ends = [line for lines in newest_first for line in lines[:_OF_EACH]]
        others = sorted((line for lines in newest_first for line in lines[_OF_EACH:]), reverse=True)
        return [line for _, line in sorted((ends + others)[:KEPT_LINES])]

    def _keep(self, stream: str, whole: list[str]) -> list[str]:
        lines = [_render(line) for line in whole]
        kept = self._last.setdefault(stream, deque(maxlen=KEPT_LINES))
        for line in lines:
            if line.strip():
                self._count += 1
                kept.append((self._count, line))
        return lines


def _render(line: str) -> str:
    return escape(_last_state(_STYLE.sub("", line)), keep="\t").expandtabs()


def _last_state(line: str) -> str:
    """The last state of a line that was written over with carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]
