"""Emitter of events (AH 12): numbers them, adds the full chain of ids, and passes them to each sink at once.

A sink stores an event in memory and returns; it must not wait or raise, because the loop never waits for an observer
and handles none of its failures.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import orjson

from agent_host.events import COUNTING, LIVE_ONLY, EventType
from agent_host.ids import rfc3339
from config import json_text
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.contracts import ToolRequest

# Undelivered records of observers (invariant 9): each observer counts them, and the person who works with the session
# gets a report.

INTERVAL_S = 30.0
"""Minimum time between two reports of one observer that keeps losing records."""


class Counting(Protocol):
    """An observer that counts records that it will never deliver."""

    @property
    def dropped(self) -> int:
        """The number of those records so far."""
        ...


class Loss(NamedTuple):
    """`records` did not reach `observer`."""

    observer: str
    records: int

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.records} records did not reach {self.observer}"

    def to_wire(self) -> dict[str, Any]:
        """{observer, records, message}."""
        return {"observer": self.observer, "records": self.records, "message": str(self)}


class Losses:
    """The observers of one session, and what of their losses has been reported. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._observers: list[tuple[str, Counting]] = []
        self._reported: dict[int, tuple[int, float]] = {}  # by place: the number, and when it was reported
        self._clock = clock

    def watch(self, name: str, observer: Counting) -> None:
        """Report losses of `observer` under this name."""
        self._observers.append((name, observer))

    def so_far(self) -> list[Loss]:
        """All there are; complete once the observers are closed."""
        return [Loss(name, observer.dropped) for name, observer in self._observers if observer.dropped]

    def news(self) -> list[Loss]:
        """Losses that have grown since they were reported, each with its whole number; an observer comes at most once
        in INTERVAL_S. The caller reports them."""
        found: list[Loss] = []
        for place, (name, observer) in enumerate(self._observers):
            number = observer.dropped
            if not number:
                continue
            reported, at = self._reported.get(place, (0, 0.0))
            now = self._clock()
            if number > reported and (not reported or now - at >= INTERVAL_S):
                self._reported[place] = (number, now)
                found.append(Loss(name, number))
        return found


_CANCELLING_S = 0.5  # for a sink to obey after its time to close is over


_NOTHING: Mapping[str, Any] = {}


class Event:
    """One event. Its envelope (interface section 2) is built and encoded on demand, at most once.

    `chain` are the ids that all events of a session share, `at` is in seconds since the epoch, and `scrub` redacts the
    encoded event; `payload` may contain secrets. `extra` are members of the envelope after the payload, `encoded` is
    the line if it was already built.
    """

    __slots__ = (
        "_scrub", "at", "chain", "encoded", "event_id", "event_type", "extra", "payload", "step_id", "task_id"
    )  # fmt: skip

    def __init__(
        self,
        event_id: int,
        event_type: EventType,
        payload: dict[str, Any],
        chain: Mapping[str, str],
        *,
        at: float,
        task_id: str | None = None,
        step_id: str | None = None,
        scrub: Callable[[bytes], bytes] | None = None,
        extra: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.event_id = event_id
        self.event_type = event_type
        self.payload = payload
        self.chain = chain
        self.at = at
        self.task_id = task_id
        self.step_id = step_id
        self.extra = extra
        self.encoded: bytes | None = None
        self._scrub = scrub

    @property
    def envelope(self) -> dict[str, Any]:
        """The event as sent on the wire, in a new dict."""
        envelope = self.envelope_of(self.payload)
        if self.extra:
            envelope.update(self.extra)
        return envelope

    def envelope_of(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The envelope around another payload, for an observer that may not see all of it."""
        envelope: dict[str, Any] = {
            "eventId": self.event_id,
            "eventType": self.event_type,
            "timestamp": rfc3339(self.at),
            **self.chain,
        }
        if self.task_id is not None:
            envelope["taskId"] = self.task_id
        if self.step_id is not None:
            envelope["stepId"] = self.step_id
        envelope["component"], envelope["severity"] = self.event_type.component, self.event_type.severity
        envelope["payload"] = payload
        return envelope

    def line(self) -> bytes:
        """The envelope as one line of JSON with its newline, without secrets."""
        if self.encoded is None:
            self.encoded = self.encode(self.envelope)
        return self.encoded

    @staticmethod
    def lines(events: Sequence[Event], are_clean: Callable[[bytes], bool]) -> list[bytes]:
        """The lines of all `events`; `are_clean` returns True if several lines certainly contain no secret."""
        fresh = [event for event in events if event.encoded is None]
        if len(fresh) > 1:
            made = [json_text.dumps(event.envelope, option=orjson.OPT_APPEND_NEWLINE) for event in fresh]
            searched = map(_secret_part, fresh, made)
            if are_clean(b"".join((json_text.dumps(fresh[0].chain), *searched))):
                for event, line in zip(fresh, made, strict=True):
                    event.encoded = json_text.copy_to_keep(line)
        return [event.line() for event in events]

    @property
    def public_payload(self) -> dict[str, Any]:
        """The payload without secrets, as it comes from the wire."""
        if self._scrub is None:
            return self.payload
        payload: dict[str, Any] = json.loads(self.line())["payload"]
        return payload

    def encode(self, value: dict[str, Any]) -> bytes:
        """A payload about this event as one line of JSON with its newline, without secrets."""
        line = json_text.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
        return json_text.copy_to_keep(line if self._scrub is None else self._scrub(line))

    def trim(self, *, first_id: int | None = None, text: str | None = None, dropped: int = 0) -> Event:
        """This event for one client. `text` is the joined text of the stream's pieces from the event `first_id` to this
        one; `dropped` is the number of events directly before them that the client does not get."""
        extra = dict(self.extra)
        if first_id is not None:
            extra["firstEventId"] = first_id
        if dropped:
            extra["droppedEvents"] = dropped
        sent = copy(self)
        sent.encoded, sent.extra = None, extra
        if text is not None:
            sent.payload = {**self.payload, "text": text}
        return sent


def _secret_part(event: Event, line: bytes) -> bytes:
    """The part of an event's line that may contain a secret. For `COUNTING` events that is their texts, and the task's
    id, which a client may choose."""
    if event.event_type not in COUNTING or event.extra:
        return line
    texts = [one for one in event.payload.values() if not isinstance(one, int | float)]
    return json_text.dumps([event.task_id, *texts])


class Sink(Protocol):
    """Something that watches."""

    def take(self, event: Event) -> None:
        """Take the event without waiting; must not raise."""
        ...

    def flush(self) -> None:
        """Called once each request to the model is out, before a call that takes time, and at the ends of task and
        session; must not raise, nor wait."""
        ...


@runtime_checkable
class ClosingSink(Protocol):
    """A sink that has something left to do at the end."""

    async def aclose(self, timeout_s: float) -> None:
        """Finish within `timeout_s`, or give up. It may be cancelled."""
        ...


class Emitter:
    """Numbers events and passes them to the sinks. `time` returns seconds since the epoch.

    `scrub` redacts one encoded event and is called once for each. `losses` are reported with the next event that is not
    a piece of a stream.
    """

    def __init__(
        self,
        *,
        session_id: str,
        workspace_id: str,
        tenant_id: str,
        user_id: str,
        time: Callable[[], float],
        first_id: int = 1,
        scrub: Callable[[bytes], bytes] | None = None,
        losses: Losses | None = None,
    ) -> None:
        self._losses = losses
        self._time = time
        self._chain = {"tenantId": tenant_id, "userId": user_id, "workspaceId": workspace_id, "sessionId": session_id}
        self._sinks: tuple[Sink, ...] = ()
        self._next_id = first_id
        self._scrub = scrub

    def attach(self, sinks: Sequence[Sink]) -> None:
        """Add watchers."""
        self._sinks = (*self._sinks, *sinks)

    def emit(
        self, event_type: EventType, payload: dict[str, Any], *, task_id: str | None = None, step_id: str | None = None
    ) -> None:
        """Hand one event to every sink. `payload` is not to be changed afterwards."""
        news = None if self._losses is None or event_type in LIVE_ONLY else self._losses.news()
        event = Event(
            self._next_id,
            event_type,
            payload,
            self._chain,
            at=self._time(),
            task_id=task_id,
            step_id=step_id,
            scrub=self._scrub,
            extra={"undelivered": [loss.to_wire() for loss in news]} if news else _NOTHING,
        )
        self._next_id += 1
        for sink in self._sinks:
            sink.take(event)

    def flush(self) -> None:
        """Flush the sinks."""
        for sink in self._sinks:
            sink.flush()

    async def aclose(self, timeout_s: float) -> None:
        """Flush and close all sinks concurrently, within `timeout_s`. A sink that fails or does not end loses only its
        own remaining events; only a cancellation of the caller raises."""
        self.flush()
        ending = [sink for sink in self._sinks if isinstance(sink, ClosingSink)]
        closing = [asyncio.ensure_future(sink.aclose(timeout_s)) for sink in ending]
        if not closing:
            return
        try:
            await asyncio.wait(closing, timeout=timeout_s)
        finally:
            late = [one for one in closing if one.cancel()]
            if late:
                await asyncio.wait(late, timeout=_CANCELLING_S)
            for one in closing:
                if one.done() and not one.cancelled():
                    one.exception()  # retrieved, so that asyncio does not warn about it


# Live output of tools for the observers, limited to what a person can read.
#
# A command that prints gigabytes causes a few events a second; the result has the whole output. Of too much output the
# beginning and the end are kept, because the last lines often show how a command ended.
#
# Secrets are detected by their form, so they must not be cut: an incomplete last line is delayed until its end, and a
# private key until its last line, unless no output follows for a while.

PAUSE_S: Final = 0.05
"""Time between two pieces of one stream. Output in between is joined."""
MAX_PIECE_BYTES: Final = 8 * 1024
"""Maximum size of one piece. Of more output the middle is omitted, and the piece contains the omitted size."""
VERBOSE_PIECE_BYTES: Final = 1024 * 1024
"""The same where all output is to be seen: 20 MB a second."""

_KEY_BEGINS = r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY"
_KEY_ENDS = "-----END"


class LiveOutput:
    """Hands pieces of output, of at most `max_bytes`, to `emitter` as `tool_output_chunk`. Used on the event loop."""

    def __init__(self, emitter: Emitter, max_bytes: int = MAX_PIECE_BYTES) -> None:
        self._emitter = emitter
        self._max_bytes = max_bytes
        self._streams: dict[str, dict[str, _Stream]] = {}

    def take(self, request: ToolRequest, stream: str, data: bytes) -> None:
        """Take new output of the call on `stream`, which is `stdout` or `stderr`."""
        of_call = self._streams.setdefault(request.tool_call_id, {})
        if stream not in of_call:
            of_call[stream] = _Stream(self._emitter, request, stream, self._max_bytes)
        of_call[stream].take(data)

    def end(self, tool_call_id: str) -> None:
        """The call is over; what still waits goes out now."""
        for stream in self._streams.pop(tool_call_id, {}).values():
            stream.end()


class _Stream:
    def __init__(self, emitter: Emitter, request: ToolRequest, name: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._emitter = emitter
        self._request = request
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = bytearray()
        self._left_out = 0
        self._incomplete = ""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        excess = len(self._waiting) + len(data) - self._max_bytes
        if excess > 0:
            half = self._max_bytes // 2
            first = max(0, half - len(self._waiting))
            last = min(len(data), self._max_bytes - half)
            middle = max(first, len(data) - last)
            self._waiting += data[:first]
            self._waiting += data[middle:]
            over = len(self._waiting) - self._max_bytes
            del self._waiting[half : half + max(0, over)]
            self._left_out += excess
        else:
            self._waiting += data
        if self._timer is None:
            self._emit_and_pause()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._emit(final=True)

    def _over(self) -> None:
        self._timer = None
        if self._waiting or self._incomplete:
            self._emit_and_pause(silent=not self._waiting)

    def _emit_and_pause(self, *, silent: bool = False) -> None:
        self._emit(silent=silent)
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._over)

    def _emit(self, *, final: bool = False, silent: bool = False) -> None:
        """`silent`: nothing came since the last piece, so what waits for its end may be a prompt."""
        if self._left_out:
            text = self._around_the_gap(final=final)
        else:
            decoded = self._incomplete + self._decoder.decode(bytes(self._waiting), final)
            end = len(decoded) if final or silent else self._emittable_length(decoded)
            text, self._incomplete = decoded[:end], decoded[end:]
        self._waiting.clear()
        self._left_out = 0
        if text:
            request = self._request
            payload = {"toolCallId": request.tool_call_id, "stream": self._name, "text": text}
            self._emitter.emit(EventType.TOOL_OUTPUT_CHUNK, payload, task_id=request.task_id, step_id=request.step_id)

    def _around_the_gap(self, *, final: bool) -> str:
        """The lines before and after the omitted part. A line that it cuts is omitted entirely, if possible."""
        half = self._max_bytes // 2
        before = self._incomplete + self._decoder.decode(bytes(self._waiting[:half]), final=True)
        self._decoder.reset()
        after = self._decoder.decode(bytes(self._waiting[half:]), final)
        end = self._emittable_length(before) or len(before)
        start = _first_line_start(after)
        stop = len(after) if final else max(start, self._emittable_length(after))
        self._incomplete = after[stop:]
        left_out = self._left_out + len(before[end:].encode()) + len(after[:start].encode())
        return f"{before[:end]}\n[... {left_out} bytes left out ...]\n{after[start:stop]}"

    def _emittable_length(self, text: str) -> int:
        """Return how much of `text` may be emitted: whole lines, including states of a progress bar, and no part of a
        private key. A long text without line ends is emitted as it is."""
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        key_starts = [found.start() for found in re.finditer(_KEY_BEGINS, text[:end])] if "PRIVATE KEY" in text else []
        if key_starts and _KEY_ENDS not in text[key_starts[-1] : end]:
            end = key_starts[-1]
        return end if len(text) - end <= self._max_bytes else len(text)


def _first_line_start(text: str) -> int:
    """The first character of the first line that is whole, and no rest of a private key."""
    start = text.find("\n") + 1 or len(text)
    key_ends = text.find(_KEY_ENDS)
    if key_ends >= 0 and re.search(_KEY_BEGINS, text[:key_ends]) is None:
        start = max(start, text.find("\n", key_ends) + 1 or len(text))
    return start
