"""Watching events in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.events import EventType
from agent_host.events.emitter import Emitter
from agent_host.events.payloads import PAYLOADS
from agent_host.ids import MACHINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.events.emitter import Event, Sink

_KINDS: dict[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "true": bool,
    "boolean": bool,
    "list of strings": list,
    "object": dict,
}


class Watcher:
    """A sink that keeps what it sees."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.flushes = 0

    def take(self, event: Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        self.flushes += 1


def emitter(*sinks: Sink, **more: Any) -> Emitter:
    """An emitter with `sinks` attached."""
    made = Emitter(session_id="s", workspace_id="w", tenant_id="t", user_id="u", **{"time": MACHINE.time, **more})
    made.attach(sinks)
    return made


def problems(event: Mapping[str, Any]) -> list[str]:
    """What is wrong with an event's payload, by the table in `agent_host/events/payloads.py`."""
    name, payload = event["eventType"], event["payload"]
    fields = {field.name: field for field in PAYLOADS[EventType(name)].fields}
    found = [f"{name}: {key} is not in the table" for key in payload.keys() - fields.keys()]
    for key, field in fields.items():
        if key not in payload:
            found += [] if field.optional else [f"{name}: {key} is missing"]
        elif type(payload[key]) is not _KINDS[field.kind]:
            found.append(f"{name}: {key} is no {field.kind}: {payload[key]!r}")
    return sorted(found)
