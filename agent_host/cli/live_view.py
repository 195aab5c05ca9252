"""The block at a terminal that shows a running call with the last lines of its output, redrawn in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.cli.output_lines import OutputLines
    from agent_host.cli.running import Clock, Running, Timer
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

    def printed(self, call_id: str) -> None:
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
