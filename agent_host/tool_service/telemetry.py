"""Reports on calls to the Telemetry Service and the Audit Service (BT, "Tool Invocation Flow"), and the metrics that
Prometheus reads.

Nothing waits for them: events stand in bounded queues, and what is lost is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from agent_host.events import EventType
from agent_host.events.batches import AuditRecords, BatchedSink
from agent_host.events.emitter import Event
from agent_host.events.payloads import telemetry_line
from agent_host.ids import rfc3339
from agent_host.services.http import HttpEventService

if TYPE_CHECKING:
    from agent_host.services.http import ServiceClient
    from agent_host.tool_service.tool import Call

_COMPONENT: Final = "BackendToolService"
CAPABILITY: Final = "BackendTool.Invoke"
METRICS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable for the directory in which several workers combine their metrics; prometheus_client reads it."""
_WANTED: Final = frozenset({EventType.TOOL_REQUESTED, EventType.TOOL_COMPLETED})
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class InvocationOutcome(NamedTuple):
    """The end of a call: `status` of its result, `code` of its error, size and hash of the text that it gave, what was
    stored."""

    status: str
    code: str | None
    output_bytes: int
    output_sha256: str
    artifact_uris: tuple[str, ...]


class Metrics:
    """Numbers for Prometheus. Labels hold names of tenants and tools that the configuration has, so that there are only
    so many."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        if os.environ.get(METRICS_DIRECTORY):
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]  # the library's
            own = CollectorRegistry()  # its numbers are read from the directory
        else:
            own = self._registry
        names = ("tenant", "tool")
        self.calls = Counter(
            "agent_host_tool_calls", "Calls that ran", (*names, "status", "code"), registry=own
        )  # `_total` is added
        self.seconds = Histogram(
            "agent_host_tool_call_seconds", "How long calls took", names, buckets=_BUCKETS, registry=own
        )
        self.running = Gauge(
            "agent_host_tool_calls_running", "Calls that run", ("tenant",), registry=own, multiprocess_mode="livesum"
        )
        self.refused = Counter("agent_host_tool_requests_refused", "Requests refused", ("status",), registry=own)
        self.repeated = Counter(
            "agent_host_tool_calls_repeated", "Requests answered from a key that was known", ("tenant",), registry=own
        )
        self.lost_events = Gauge(
            "agent_host_events_lost", "Events that a service did not get", ("service",), registry=own,
            multiprocess_mode="livesum",
        )  # fmt: skip

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class CallEvent(Event):
    """An event of this service. `requested` is what the call's record in the Audit Service begins with."""

    requested: CallEvent | None = None

    def envelope_of(self, payload: dict[str, Any]) -> dict[str, Any]:
        """See Event."""
        return {**super().envelope_of(payload), "component": _COMPONENT}


def _audit_record(event: Event) -> bytes | None:
    """The record of one call (SK 7). Ids of calls are unique within a session only, so no call's record is made with
    what is remembered of others."""
    records = AuditRecords()
    if not isinstance(event, CallEvent) or event.requested is None:
        return None
    records(event.requested)
    return records(event)


class Watchers:
    """Tells the services. Each of `telemetry` and `audit` may be None."""

    def __init__(self, telemetry: ServiceClient | None, audit: ServiceClient | None, metrics: Metrics) -> None:
        self._clients = [client for client in (telemetry, audit) if client is not None]
        self._telemetry = self._audit = None
        if telemetry is not None:
            post = HttpEventService(telemetry, "/telemetry/events").post
            self._telemetry = BatchedSink(post, _WANTED, shape=telemetry_line)
        if audit is not None:
            post = HttpEventService(audit, "/audit/events").post
            self._audit = BatchedSink(post, _WANTED, shape=_audit_record)
        self._metrics = metrics
        self._numbers = itertools.count(1)

    def requested(self, call: Call, fingerprint: str, *, high_risk: bool) -> CallEvent:
        """A call is about to run; `fingerprint` is the SHA-256 of its arguments."""
        payload = {
            "toolCallId": call.key or f"{call.task_id}/{call.step_id}",
            "toolName": call.tool_name,
            "capability": CAPABILITY,
            "argumentsSha256": fingerprint,
            "decision": "ALLOWED",
            "riskLevel": "high" if high_risk else "low",
        }
        event = self._event(EventType.TOOL_REQUESTED, payload, call)
        if self._telemetry is not None:
            self._telemetry.take(event)
        return event

    def completed(self, call: Call, requested: CallEvent, outcome: InvocationOutcome, *, high_risk: bool) -> None:
        """A call has ended; `requested` is what was told at its beginning."""
        payload: dict[str, Any] = {
            "toolCallId": requested.payload["toolCallId"],
            "toolName": call.tool_name,
            "status": outcome.status,
            "startedAt": rfc3339(requested.at),
            "outputBytes": outcome.output_bytes,
            "outputSha256": outcome.output_sha256,
            "latencyMs": round((time.time() - requested.at) * 1000),
        }
        if outcome.code is not None:
            payload["code"] = outcome.code
        if outcome.artifact_uris:
            payload["artifactUris"] = list(outcome.artifact_uris)
        event = self._event(EventType.TOOL_COMPLETED, payload, call)
        event.requested = requested
        for name, sink in (("telemetry", self._telemetry), ("audit", self._audit if high_risk else None)):
            if sink is not None:
                sink.take(event)
                self._metrics.lost_events.labels(name).set(sink.dropped)

    async def aclose(self, timeout_s: float) -> None:
        """Deliver what waits, for so long."""
        sinks = [sink for sink in (self._telemetry, self._audit) if sink is not None]
        await asyncio.gather(*(sink.aclose(timeout_s) for sink in sinks))
        await asyncio.gather(*(client.aclose() for client in self._clients))

    def _event(self, kind: EventType, payload: dict[str, Any], call: Call) -> CallEvent:
        chain = {
            "tenantId": call.tenant,
            "userId": call.user_id,
            "workspaceId": call.workspace_id,
            "sessionId": call.session_id,
        }
        number = next(self._numbers)
        return CallEvent(number, kind, payload, chain, at=time.time(), task_id=call.task_id, step_id=call.step_id)
