"""Events leave here (AH 12): numbered, with the full chain of ids, handed to each sink at once.

A sink takes an event in memory and returns; none of them may wait, for the loop never waits for an observer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agent_host import lenient_json
from agent_host.events.kinds import EventType, source_of
from agent_host.stamps import now_rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence


class Event:
    """One event: the envelope of interface section 2. Encoded at most once, and only if a sink asks for it."""

    __slots__ = ("_line", "envelope", "event_type", "payload")

    def __init__(self, event_type: EventType, payload: dict[str, Any], envelope: dict[str, Any]) -> None:
        self.event_type = event_type
        self.payload = payload
        self.envelope = envelope
        self._line: bytes | None = None

    def line(self) -> bytes:
        """The envelope as one line of JSON with its newline."""
        if self._line is None:
            self._line = lenient_json.dumps(self.envelope, option=orjson.OPT_APPEND_NEWLINE)
        return self._line


class Sink(Protocol):
    """Something that watches."""

    def take(self, event: Event) -> None:
        """Take the event without waiting."""
        ...

    def flush(self) -> None:
        """Called at the end of each step and of the session; must not raise."""
        ...


class Emitter:
    """Numbers events and hands them on. Cheap when nobody listens."""

    def __init__(self, *, session_id: str, workspace_id: str, tenant_id: str, user_id: str, first_id: int = 1) -> None:
        self._chain = {
            "tenantId": tenant_id,
            "userId": user_id,
            "workspaceId": workspace_id,
            "sessionId": session_id,
        }
        self._sinks: tuple[Sink, ...] = ()
        self._next_id = first_id

    def attach(self, sinks: Sequence[Sink]) -> None:
        """Add watchers."""
        self._sinks = (*self._sinks, *sinks)

    def emit(
        self, event_type: EventType, payload: dict[str, Any], *, task_id: str | None = None, step_id: str | None = None
    ) -> None:
        """Hand one event to every sink. `payload` is not to be changed afterwards."""
        component, severity = source_of(event_type)
        envelope: dict[str, Any] = {
            "eventId": self._next_id,
            "eventType": event_type,
            "timestamp": now_rfc3339(),
            **self._chain,
        }
        if task_id is not None:
            envelope["taskId"] = task_id
        if step_id is not None:
            envelope["stepId"] = step_id
        envelope["component"] = component
        envelope["severity"] = severity
        envelope["payload"] = payload
        self._next_id += 1
        event = Event(event_type, payload, envelope)
        for sink in self._sinks:
            sink.take(event)

    def flush(self) -> None:
        """Let the sinks write what they gathered."""
        for sink in self._sinks:
            sink.flush()
