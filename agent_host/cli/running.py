"""What a task does at the moment, from its events, and for how long: what a person who waits wants to know."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agent_host.events.kinds import EventType
from agent_host.shown_text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar

    from agent_host.events.emitter import Event

HEARTBEAT_AFTER_S = 10.0
HEARTBEAT_EVERY_S = 30.0
_SUBJECT_CHARS = 100


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Drop it; nothing happens where it was made already."""
        ...


class Clock(Protocol):
    """The time, and calls that are due later."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Make `call` in `delay_s` seconds."""
        ...


class LoopClock:
    """That of the running event loop."""

    def now(self) -> float:
        """See Clock."""
        return time.monotonic()

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """See Clock."""
        return asyncio.get_running_loop().call_later(delay_s, call)


@dataclass(slots=True)
class Call:
    """A tool call that has no result yet, by the event of its request: `since` when it runs, or waits for an
    approval."""

    requested: Event
    since: float
    asked: bool = False

    @property
    def label(self) -> str:
        """Tool and subject, without secrets and on one line."""
        payload: dict[str, Any] = self.requested.public_payload
        subject = " ".join(str(payload.get("summary", "")).split())
        subject = f"{subject[:_SUBJECT_CHARS]}…" if len(subject) > _SUBJECT_CHARS else subject
        return escaped(f"{payload['toolName']} {subject}".rstrip(), keep="")


class Running:
    """What runs: the calls that were requested, or the model; `step` counts from 1."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._step = 0
        self._model_since: float | None = None
        self.calls: dict[str, Call] = {}

    def take(self, event: Event) -> None:
        """Follow the event."""
        handler = self._HANDLERS.get(event.event_type)
        if handler is not None:
            handler(self, event)

    def over(self, call_id: str) -> None:
        """The call has its result, and that has been shown."""
        self.calls.pop(call_id, None)

    def label(self, call_id: str) -> str:
        """Tool and subject of a call; empty for one that is not known."""
        call = self.calls.get(call_id)
        return "" if call is None else call.label

    def line(self) -> str:
        """Which step, what runs or is waited for, and for how long."""
        step = f" step {self._step}" if self._step else " the task"
        asked = [call for call in self.calls.values() if call.asked]
        active = [call for call in self.calls.values() if not call.asked]
        if active:
            return f"running{step}: {active[0].label}{self.state(active[0], others=len(active) - 1)}"
        if asked:
            return f"waiting{step}: approval of {asked[0].label}{self.state(asked[0], others=len(asked) - 1)}"
        if self._model_since is not None:
            return f"waiting{step}: the model, {self._spent(self._model_since)} so far"
        return f"running{step}"

    def state(self, call: Call, *, others: int) -> str:
        """For how long a call has been what it is, and how many others there are: what stands behind its label."""
        more = f" (and {others} more)" if others else ""
        return f", {self._spent(call.since)} so far{more}"

    def _spent(self, since: float) -> str:
        seconds = int(self._clock.now() - since)
        return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60} s"

    def _resumed(self, event: Event) -> None:
        self._step = event.payload["resumedFromStep"] + 1

    def _step_started(self, event: Event) -> None:
        self._step, self._model_since = event.payload["stepCount"], None

    def _model_asked(self, _: Event) -> None:
        self._model_since = self._clock.now()

    def _model_answered(self, _: Event) -> None:
        self._model_since = None

    def _requested(self, event: Event) -> None:
        self.calls[event.payload["toolCallId"]] = Call(event, self._clock.now())

    def _asked(self, event: Event) -> None:
        self._set_asked(event, asked=True)

    def _answered(self, event: Event) -> None:
        self._set_asked(event, asked=False)

    def _set_asked(self, event: Event, *, asked: bool) -> None:
        call = self.calls.get(event.payload["toolCallId"])
        if call is not None:
            call.asked, call.since = asked, self._clock.now()

    _HANDLERS: ClassVar[dict[EventType, Callable[[Running, Event], None]]] = {
        EventType.SESSION_RESUMED: _resumed,
        EventType.STEP_STARTED: _step_started,
        EventType.LLM_REQUEST_STARTED: _model_asked,
        EventType.LLM_REQUEST_COMPLETED: _model_answered,
        EventType.TOOL_REQUESTED: _requested,
        EventType.APPROVAL_REQUESTED: _asked,
        EventType.APPROVAL_RESOLVED: _answered,
    }


class Heartbeat:
    """Calls `beat` when nothing was printed for HEARTBEAT_AFTER_S, and every HEARTBEAT_EVERY_S from then on."""

    def __init__(self, clock: Clock, beat: Callable[[], None]) -> None:
        self._clock = clock
        self._beat = beat
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to wait."""
        self.printed()
        self._wait()

    def printed(self) -> None:
        """Something was printed just now."""
        self._due = self._clock.now() + HEARTBEAT_AFTER_S

    def stop(self) -> None:
        """Leave no timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._clock.later(max(0.0, self._due - self._clock.now()), self._look)

    def _look(self) -> None:
        if self._clock.now() >= self._due:
            self._beat()
            self._due = self._clock.now() + HEARTBEAT_EVERY_S
        self._wait()
