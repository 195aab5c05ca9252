"""What the Telemetry Service gets (AH 12): that things happened, how long they took and how they ended, and nothing
of what they were about. Use: `BatchedSink(post, TELEMETRY_EVENTS, shape=telemetry_line)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events.kinds import LIVE_ONLY, EventType
from agent_host.events.payloads import PAYLOADS

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

TELEMETRY_EVENTS = frozenset(EventType) - LIVE_ONLY
"""Pieces of streams are content, and not sent at all."""

_FIELDS = {
    event_type: tuple(field.name for field in shape.fields if field.telemetry) for event_type, shape in PAYLOADS.items()
}
# A model may call a tool by any name, however long.
_MAX_CHARS = 128


def telemetry_line(event: Event) -> bytes:
    """The event's envelope with only those fields of its payload that are marked for telemetry in `payloads.py`."""
    payload = event.payload
    sent = {name: payload[name] for name in _FIELDS[event.event_type] if name in payload}
    cut = {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in sent.items()}
    return event.encode(event.envelope_of(cut))
