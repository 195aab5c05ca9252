"""What stderr shows while a task runs, whatever the form of output: that it still runs, and what commands print."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from agent_host.cli.output_lines import OutputLines
from agent_host.cli.running import Clock, Heartbeat, LoopClock, Running
from agent_host.cli.screen import in_ci
from agent_host.cli.streams import put
from agent_host.events.kinds import EventType
from agent_host.shown_text import escaped

if TYPE_CHECKING:
    from typing import TextIO

    from agent_host.cli.live_view import LiveView
    from agent_host.events.emitter import Event

OUTPUT_PREFIX = f"{'':13}| "
_MAX_HELD_CHARS = 256 * 1024
_THINKING = "thinking"
_ENDS = frozenset({EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED})


class Progress:
    """A sink that prints to `progress` a line now and then where that is no terminal, so that a log does not look as
    if the task hung, and with `verbose` all that commands print and the model thinks.

    `asks`: approvals are asked for on the same terminal. What comes while a question stands there is printed behind
    its answer.
    """

    def __init__(
        self,
        progress: TextIO | None = None,
        *,
        verbose: bool = False,
        asks: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._progress = sys.stderr if progress is None else progress
        self._verbose = verbose
        self._asks = asks
        self._clock = LoopClock() if clock is None else clock
        self._began = self._clock.now()
        self._running = Running(self._clock)
        self._outputs: dict[str, OutputLines] = {}
        self._thoughts: OutputLines | None = None
        self._printed_last: str | None = None
        self._held: deque[str] = deque()
        self._left_out = 0
        self._started = False
        self._heartbeat = Heartbeat(self._clock, self._beat) if self._beats() else None
        self._view: LiveView | None = None

    def take(self, event: Event) -> None:
        """Show the event, if it has something to show."""
        kind = event.event_type
        if kind in _ENDS:
            self.stop()
        elif not self._started:
            self._started = True
            if self._heartbeat is not None:
                self._heartbeat.start()
        self._running.take(event)
        self._show(event)
        if kind is EventType.TOOL_COMPLETED:
            self._running.over(event.payload["toolCallId"])
            self._outputs.pop(event.payload["toolCallId"], None)
        elif kind in (EventType.TOOL_REQUESTED, EventType.APPROVAL_RESOLVED) and self._view is not None:
            self._view.began()

    def flush(self) -> None:
        """All that was taken is printed already."""

    def clear(self) -> None:
        """Take away what is redrawn on the terminal, for something else to be printed there."""
        if self._view is not None:
            self._view.clear()

    def stop(self) -> None:
        """The task is over: no timer stays, and what waited for an answer is printed."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._view is not None:
            self._view.stop()
        self._heartbeat = self._view = None
        self._asks = False
        self._release()

    def _beats(self) -> bool:
        """True if nothing else says that the task still runs."""
        return not self._progress.isatty() or in_ci()

    def _beat(self) -> None:
        if not self._is_asking():
            put(self._progress, self._stamped(f"  {self._running.line()}"))

    def _show(self, event: Event) -> None:
        kind = event.event_type
        if self._verbose:
            self._show_thinking(event)
        if kind is EventType.TOOL_OUTPUT_CHUNK and self._verbose:
            self._take_output(event)
        elif kind is EventType.TOOL_COMPLETED and self._verbose:
            call_id = event.payload["toolCallId"]
            if call_id in self._outputs:
                self._print_output(call_id, self._outputs[call_id].end())
        elif kind is EventType.TOOLS_UNAVAILABLE:
            self._put(self._stamped(f"  warning {escaped(event.public_payload['message'], keep='')}"))
        elif kind is EventType.APPROVAL_REQUESTED:
            self.clear()
        elif kind is EventType.APPROVAL_RESOLVED:
            self._release()

    def _show_thinking(self, event: Event) -> None:
        """The lines that the event brings of what the model thinks; any other event ends the last of them."""
        lines: list[str] = []
        if event.event_type is EventType.THINKING_CHUNK:
            self._thoughts = self._thoughts or OutputLines()
            lines = self._thoughts.add(_THINKING, event.public_payload["text"])
        elif self._thoughts is not None:
            lines, self._thoughts = self._thoughts.end(), None
        self._print_lines(_THINKING, "  model   thinks", lines)

    def _take_output(self, event: Event) -> None:
        call_id = event.payload["toolCallId"]
        if call_id not in self._running.calls:
            return
        payload = event.public_payload
        lines = self._outputs.setdefault(call_id, OutputLines()).add(payload["stream"], payload["text"])
        if self._verbose:
            self._print_output(call_id, lines)
        elif self._view is not None:
            self._view.printed(call_id)

    def _print_output(self, call_id: str, lines: list[str]) -> None:
        self._print_lines(call_id, f"  output  {self._running.label(call_id)}", lines)

    def _print_lines(self, source: str, title: str, lines: list[str]) -> None:
        """The lines, under a title where their source was not the last to print."""
        if not lines:
            return
        if source != self._printed_last:
            self._put(self._stamped(title))
        self._put("".join(f"{OUTPUT_PREFIX}{line}\n" for line in lines))
        self._printed_last = source

    def _stamped(self, line: str) -> str:
        return f"[{self._clock.now() - self._began:7.2f}s] {line}\n"

    def _put(self, text: str) -> None:
        """Print `text`, lines with their ends; while a question stands on the terminal, behind its answer."""
        self._printed_last = None
        if self._is_asking():
            self._hold(text)
            return
        self.clear()
        put(self._progress, text)
        if self._heartbeat is not None:
            self._heartbeat.printed()

    def _is_asking(self) -> bool:
        return self._asks and any(call.asked for call in self._running.calls.values())

    def _hold(self, text: str) -> None:
        self._held.append(text)
        while len(self._held) > 1 and sum(map(len, self._held)) > _MAX_HELD_CHARS:
            self._left_out += self._held.popleft().count("\n")

    def _release(self) -> None:
        if self._held and not self._is_asking():
            text = "".join(self._held)
            if self._left_out:
                text = f"{OUTPUT_PREFIX}[... {self._left_out} lines left out ...]\n{text}"
            self._held.clear()
            self._left_out = 0
            self._put(text)
