"""Progress on stderr while a task runs, for every form of output: heartbeat lines and the output of commands; on a
terminal a block of lines that is redrawn in place."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from agent_host.cli import put
from agent_host.display_text import escape
from agent_host.events import RUN_ENDS, EventType
from agent_host.terminal import DIFF_COLOURS, DIM, MIN_COLUMNS, PLAIN, cells, cut, is_in_ci, wants_style

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from agent_host.events.emitter import Event

OUTPUT_PREFIX = f"{'':13}| "
_MAX_QUEUED_CHARS = 256 * 1024
_THINKING = "thinking"
_BEGINNINGS = (EventType.LLM_REQUEST_STARTED, EventType.TOOL_REQUESTED, EventType.APPROVAL_RESOLVED)


class ProgressLines:
    """A sink that prints a heartbeat line to `progress` if that is not a terminal, so that a log does not look as if
    the task hung, and with `verbose` all output of commands and the model's thinking.

    `asks`: approvals are asked for on the same terminal. Output that arrives while a question is open is printed after
    its answer.
    """

    def __init__(
        self, progress: TextIO | None = None, *, verbose: bool = False, asks: bool = False, clock: Clock | None = None
    ) -> None:
        self._progress = sys.stderr if progress is None else progress
        self._verbose = verbose
        self._asks = asks
        self._clock = clock or Clock()
        self._started_at = self._clock.now()
        self._running = Running(self._clock)
        self._thoughts: OutputLines | None = None
        self._printed_last: str | None = None
        self._queued: deque[str] = deque()
        self._left_out = 0
        self._started = False
        self._heartbeat = Heartbeat(self._clock, self._beat)
        self._view: LiveView | None = None

    def take(self, event: Event) -> None:
        """Show the event, if it has something to show."""
        kind = event.event_type
        if kind in RUN_ENDS:
            self.stop()
        elif not self._started:
            self._started = True
            if self._beats():
                self._heartbeat.start()
        self._running.take(event)
        self._show(event)
        if kind is EventType.TOOL_COMPLETED:
            self._running.calls.pop(event.payload["toolCallId"], None)
        elif kind in _BEGINNINGS and self._view is not None:
            self._view.note_request()

    def flush(self) -> None:
        """Do nothing: output is printed at once."""

    def clear(self) -> None:
        """Erase the redrawn block on the terminal, so that something else can be printed."""
        if self._view is not None:
            self._view.clear()

    def stop(self) -> None:
        """Stop all timers and print output that waited for an answer, because the task is over."""
        self._heartbeat.stop()
        if self._view is not None:
            self._view.stop()
        self._view = None
        self._asks = False
        self._release()

    def _beats(self) -> bool:
        """True if no other output shows progress."""
        return not self._progress.isatty() or is_in_ci()

    def _beat(self) -> None:
        if not self._is_asking():
            put(self._progress, self._stamp(f"  {self._running.line()}"))

    def _show(self, event: Event) -> None:
        kind = event.event_type
        if self._verbose:
            self._show_all(event)
        if kind is EventType.TOOLS_UNAVAILABLE:
            self._put(self._stamp(f"  warning {escape(event.public_payload['message'], keep='')}"))
        elif kind is EventType.APPROVAL_REQUESTED:
            self.clear()
        elif kind is EventType.APPROVAL_RESOLVED:
            self._release()

    def _show_all(self, event: Event) -> None:
        """Show an event's piece of the model's thinking, which any other event ends, or of a command's output."""
        lines: list[str] = []
        if event.event_type is EventType.THINKING_CHUNK:
            self._thoughts = self._thoughts or OutputLines()
            lines = self._thoughts.add(_THINKING, event.public_payload["text"])
        elif self._thoughts is not None:
            lines, self._thoughts = self._thoughts.end(), None
        self._print_lines(_THINKING, "  model   thinks", lines)
        call = self._running.calls.get(event.payload.get("toolCallId", ""))
        if call is not None:
            is_over = event.event_type is EventType.TOOL_COMPLETED
            lines = call.output.end() if is_over else self._take_output(event)
            self._print_lines(event.payload["toolCallId"], f"  output  {call.label}", lines)

    def _take_output(self, event: Event) -> list[str]:
        """The lines that a piece of output completes; none for an unknown call or another event."""
        call_id = event.payload["toolCallId"]
        call = self._running.calls.get(call_id)
        if call is None or event.event_type is not EventType.TOOL_OUTPUT_CHUNK:
            return []
        if self._view is not None:
            self._view.note_output(call_id)
        return call.output.add(event.public_payload["stream"], event.public_payload["text"])

    def _print_lines(self, source: str, title: str, lines: list[str]) -> None:
        """Print lines, under a title if another source printed last."""
        if not lines:
            return
        if source != self._printed_last:
            self._put(self._stamp(title))
        self._put("".join(f"{OUTPUT_PREFIX}{line}\n" for line in lines))
        self._printed_last = source

    def _stamp(self, line: str) -> str:
        return f"[{self._clock.now() - self._started_at:7.2f}s] {line}\n"

    def _put(self, text: str) -> None:
        """Print `text`, lines with their ends; if a question is open on the terminal, after its answer."""
        self._printed_last = None
        if self._is_asking():
            self._queued.append(text)
            while len(self._queued) > 1 and sum(map(len, self._queued)) > _MAX_QUEUED_CHARS:
                self._left_out += self._queued.popleft().count("\n")
            return
        self.clear()
        put(self._progress, text)
        self._heartbeat.note_output()

    def _is_asking(self) -> bool:
        return self._asks and any(call.asked for call in self._running.calls.values())

    def _release(self) -> None:
        if self._queued and not self._is_asking():
            text = "".join(self._queued)
            if self._left_out:
                text = f"{OUTPUT_PREFIX}[... {self._left_out} lines left out ...]\n{text}"
            self._queued.clear()
            self._left_out = 0
            self._put(text)


# A task's current activity and its duration, from its events, for a person who waits.

HEARTBEAT_AFTER_S = 10.0
HEARTBEAT_EVERY_S = 30.0
_SUBJECT_CHARS = 100


class Clock:
    """The running event loop's time, in seconds since an arbitrary moment, and its timers."""

    def now(self) -> float:
        """Return the current time."""
        return time.monotonic()

    def later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make `call` in `delay_s` seconds. Returns a function that cancels it, and does nothing if it was made
        already."""
        return asyncio.get_running_loop().call_later(delay_s, call).cancel


class CallProgress:
    """A tool call without a result, from the event of its request: `since` is the time from which it has run or waited
    for an approval, `answered_ms` the duration of that wait; with its output so far."""

    def __init__(self, requested: Event, since: float) -> None:
        self.requested = requested
        self.since = since
        self.asked = False
        self.answered_ms = 0
        self.output = OutputLines()

    @property
    def label(self) -> str:
        """Tool and subject, redacted and on one line."""
        payload: dict[str, Any] = self.requested.public_payload
        subject = " ".join(str(payload.get("summary", "")).split())
        subject = f"{subject[:_SUBJECT_CHARS]}…" if len(subject) > _SUBJECT_CHARS else subject
        return escape(f"{payload['toolName']} {subject}".rstrip(), keep="")


class Running:
    """Running calls, or the model, which has an open request since `model_since`; steps count from 1. Tokens and cost
    are those of the task, including the estimate for the open request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._step = 0
        self._request: Event | None = None
        self.model_since: float | None = None
        self._tokens = self._expected = 0
        self._cost: dict[str, float] = {}
        self.calls: dict[str, CallProgress] = {}

    def take(self, event: Event) -> None:
        """Update from an event."""
        payload = event.payload
        match event.event_type:
            case EventType.SESSION_RESUMED:
                self._step = payload["resumedFromStep"] + 1
            case EventType.STEP_STARTED:
                self._step, self.model_since = payload["stepCount"], None
            case EventType.LLM_REQUEST_STARTED:
                self._request = event  # its text is redacted when it is shown, as the search for secrets is costly
                self._expected = payload.get("estimatedInputTokens", 0)
                self.model_since = self._clock.now()
            case EventType.LLM_REQUEST_COMPLETED:
                self.model_since, self._expected = None, 0
                self._tokens += payload.get("inputTokens", 0) + payload.get("outputTokens", 0)
                if "cost" in payload:
                    currency = event.public_payload.get("costCurrency", "")
                    self._cost[currency] = self._cost.get(currency, 0.0) + payload["cost"]
            case EventType.TOOL_REQUESTED:
                self.calls[payload["toolCallId"]] = CallProgress(event, self._clock.now())
            case EventType.APPROVAL_REQUESTED | EventType.APPROVAL_RESOLVED:
                call = self.calls.get(payload["toolCallId"])
                if call is not None:
                    call.asked, call.since = event.event_type is EventType.APPROVAL_REQUESTED, self._clock.now()
                    call.answered_ms += payload.get("latencyMs", 0)

    def line(self) -> str:
        """The step, its running or awaited call, and the duration."""
        step = f" step {self._step}" if self._step else " the task"
        asked = [call for call in self.calls.values() if call.asked]
        active = [call for call in self.calls.values() if not call.asked]
        if first := next(iter(active or asked), None):
            state = f"{first.label}{self.state(first, others=len(active or asked) - 1)}"
            return f"running{step}: {state}" if active else f"waiting{step}: approval of {state}"
        if self.model_since is not None:
            return f"waiting{step}: {self.awaited()}"
        return f"running{step}"

    def awaited(self) -> str:
        """The awaited model, the duration of the wait, and the task's usage."""
        since = self._clock.now() if self.model_since is None else self.model_since
        asked: dict[str, Any] = {} if self._request is None else self._request.public_payload
        parts = [escape(str(asked.get("model") or "the model"), keep=""), self._spent(since)]
        parts += [f"{self._tokens + self._expected:,} tokens"] if self._tokens + self._expected else []
        parts += [f"{cost:.2f} {currency}" for currency, cost in self._cost.items()]
        return ", ".join(parts)

    def state(self, call: CallProgress, *, others: int) -> str:
        """The text after a call's label: the time in its current state, and the number of other calls."""
        suffix = f" (and {others} more)" if others else ""
        return f", {self._spent(call.since)} so far{suffix}"

    def _spent(self, since: float) -> str:
        seconds = int(self._clock.now() - since)
        return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60} s"


class Heartbeat:
    """Calls `beat` after HEARTBEAT_AFTER_S without output, and every HEARTBEAT_EVERY_S from then on."""

    def __init__(self, clock: Clock, beat: Callable[[], None]) -> None:
        self._clock = clock
        self._beat = beat
        self._due = 0.0
        self.stop: Callable[[], None] = lambda: None
        """Stop the timer."""

    def start(self) -> None:
        """Start the timer."""
        self.note_output()
        self._wait()

    def note_output(self) -> None:
        """Note that something was just printed."""
        self._due = self._clock.now() + HEARTBEAT_AFTER_S

    def _wait(self) -> None:
        self.stop = self._clock.later(max(0.0, self._due - self._clock.now()), self._look)

    def _look(self) -> None:
        if self._clock.now() >= self._due:
            self._beat()
            self._due = self._clock.now() + HEARTBEAT_EVERY_S
        self._wait()


# The block at a terminal that shows a running call with the last lines of its output, redrawn in place.

REDRAW_S = 0.1
"""Minimum time between two redraws of the block, and from the start of a call to the first one."""
TICK_S = 1.0
"""Maximum time between two redraws while a call runs, because the block shows the duration."""


class LiveView:
    """Draws at the bottom of the terminal `stream` the call of `running` that printed last, or else started first, or
    the wait for the model. `stamp` adds the time to a line. Nothing is drawn while `is_busy`, because a line is still
    open there."""

    def __init__(
        self, stream: TextIO, running: Running, clock: Clock, stamp: Callable[[str], str], is_busy: Callable[[], bool]
    ) -> None:
        self._stream = stream
        self._widths: list[int] = []
        self._running = running
        self._clock = clock
        self._stamp = stamp
        self._is_busy = is_busy
        self._latest = ""
        self._drawn_at = self._due = 0.0
        self._drop: Callable[[], None] | None = None

    def note_request(self) -> None:
        """Note that a call or the model was requested."""
        if self._drop is None:
            self._drawn_at = self._clock.now()
            self._draw_at(self._drawn_at + TICK_S)

    def note_output(self, call_id: str) -> None:
        """Note that a call has printed something."""
        self._latest = call_id
        self._draw_at(self._drawn_at + REDRAW_S)

    def clear(self) -> None:
        """Erase the block, so that something else can be printed; it is redrawn below that if a call still runs."""
        self._erase()
        if self._drop is not None:
            self._draw_at(self._drawn_at + REDRAW_S)

    def stop(self) -> None:
        """Erase the block and stop all timers."""
        self._erase()
        if self._drop is not None:
            self._drop()

    def _draw_at(self, due: float) -> None:
        if self._drop is not None:
            if self._due <= due:
                return
            self._drop()
        self._due, self._drop = due, self._clock.later(max(0.0, due - self._clock.now()), self._draw)

    def _draw(self) -> None:
        self._drop = None
        self._drawn_at = self._clock.now()
        calls = self._running.calls
        active = {call_id: call for call_id, call in calls.items() if not call.asked}
        if self._running.model_since is not None and not calls:
            if not self._is_busy():
                self._show(f"waiting for {self._running.awaited()}", "", [])
        elif not active or len(active) < len(calls):  # over, or a question is open there
            self._erase()
            return
        else:
            call_id = self._latest if self._latest in active else next(iter(active))
            call = active[call_id]
            lines = [f"{OUTPUT_PREFIX}{line}" for line in call.output.last()]
            self._show(f"tool    {call.label}", self._running.state(call, others=len(active) - 1), lines)
        self._draw_at(self._drawn_at + TICK_S)

    def _show(self, title: str, state: str, lines: Sequence[str]) -> None:
        """Replace the block by `title`, followed by `state`, and dimmed `lines`; each printable. Text that is too long
        is cut, except the state; a terminal that has become too small shows nothing."""
        columns, rows = _size(self._stream)
        erase, shown = self._erasing(columns), []
        if _large_enough(columns, rows):
            head = self._stamp(f"  {title}").rstrip("\n")
            shown = [cut(head, columns - 1 - cells(state)) + state, *(cut(line, columns - 1) for line in lines)]
        self._widths = [cells(line) for line in shown]
        begin, end = (DIM, PLAIN) if wants_style() else ("", "")
        body = "".join(f"{line}\n" if at == 0 else f"{begin}{line}{end}\n" for at, line in enumerate(shown))
        if erase or body:
            put(self._stream, f"{erase}{_NO_WRAP}{body}{_WRAP}")

    def _erase(self) -> None:
        if self._widths:
            put(self._stream, self._erasing(_size(self._stream)[0]))
            self._widths = []

    def _erasing(self, columns: int) -> str:
        """The sequence that moves the cursor to the block's first row and erases from there. A terminal that has become
        narrower has wrapped the lines."""
        rows = sum(max(1, -(-width // max(columns, 1))) for width in self._widths)
        return f"\x1b[{rows}A\r{_ERASE_BELOW}" if rows else ""


# Smaller terminals show too little of a line, or scroll the block's first line out of reach.
_MIN_ROWS = 10
_MAX_COLUMNS = 100
# Without wrapping a line uses one row, even if the terminal computes another width for a character.
_NO_WRAP = "\x1b[?7l"
_WRAP = "\x1b[?7h"
_ERASE_BELOW = "\x1b[J"


def renders(stream: TextIO) -> bool:
    """True if Markdown on `stream` should be rendered, because it is a terminal with styles."""
    return stream.isatty() and wants_style() and not is_in_ci()


def columns_of(stream: TextIO) -> int:
    """The columns to fill: those of the terminal, up to a readable width."""
    return min(max(_size(stream)[0], MIN_COLUMNS), _MAX_COLUMNS)


def colour_diff(text: str) -> str:
    """The lines of a patch, in the usual colours of diffs if the user wants colours."""
    if not wants_style():
        return text
    return "".join(
        f"{DIFF_COLOURS[line[0]]}{line}{PLAIN}\n" if line[:1] in DIFF_COLOURS else f"{line}\n"
        for line in text.splitlines()
    )


def can_draw(stream: TextIO) -> bool:
    """True if lines on `stream` can be redrawn in place."""
    if sys.platform == "win32" or is_in_ci() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty() and _large_enough(*_size(stream))


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.columns, size.lines


def _large_enough(columns: int, rows: int) -> bool:
    return columns >= MIN_COLUMNS and rows >= _MIN_ROWS


# The output of a command as lines for a person: the last state of a progress bar, and no control sequences.

KEPT_LINES = 5
_OF_EACH = 2
# Longer text without a line end counts as a line.
_MAX_OPEN_CHARS = 16 * 1024
# Colours, and erasing the end of a line: the text means the same without them.
_STYLE = re.compile(r"\x1b\[[0-9;:]*[mK]")


class OutputLines:
    """The output of one call. Lines are escaped and have no line ends."""

    def __init__(self) -> None:
        self._last: dict[str, deque[tuple[int, str]]] = {}
        self._open: dict[str, str] = {}
        self._count = 0

    def add(self, stream: str, text: str) -> list[str]:
        """Return the lines that the next `text` of `stream` completes."""
        *complete, still_open = (self._open.get(stream, "") + text).split("\n")
        if len(still_open) > _MAX_OPEN_CHARS:
            still_open = _last_state(still_open)
        if len(still_open) > _MAX_OPEN_CHARS:
            complete.append(still_open)
            still_open = ""
        self._open[stream] = still_open
        return self._keep(stream, complete)

    def end(self) -> list[str]:
        """Return the unfinished lines at the end of the output."""
        still_open, self._open = self._open, {}
        return [line for stream, text in still_open.items() if text for line in self._keep(stream, [text])]

    def last(self) -> list[str]:
        """The last lines that are not blank, at most KEPT_LINES, including unfinished ones."""
        still_open = [_render(text) for text in self._open.values()]
        complete = [line for _, line in sorted(itertools.chain(*self._last.values()))]
        return [*complete, *(line for line in still_open if line.strip())][-KEPT_LINES:]

    def last_of_each(self) -> list[str]:
        """The same after the end of the output, but with at least two lines of each stream, because it is unknown which
        stream was last, and the error may be in either."""
        self.end()
        newest_first = [sorted(lines, reverse=True) for lines in self._last.values()]
        ends = [line for lines in newest_first for line in lines[:_OF_EACH]]
        others = sorted((line for lines in newest_first for line in lines[_OF_EACH:]), reverse=True)
        return [line for _, line in sorted((ends + others)[:KEPT_LINES])]

    def _keep(self, stream: str, complete: list[str]) -> list[str]:
        lines = [_render(line) for line in complete]
        kept = self._last.setdefault(stream, deque(maxlen=KEPT_LINES))
        for line in lines:
            if line.strip():
                self._count += 1
                kept.append((self._count, line))
        return lines


def _render(line: str) -> str:
    return escape(_last_state(_STYLE.sub("", line)), keep="\t").expandtabs()


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
