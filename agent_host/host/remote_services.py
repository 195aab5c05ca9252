"""The door to what only sessions with services elsewhere need; it is imported when the first of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events.batches import AUDIT_EVENTS, AuditRecords, BatchedSink
from agent_host.events.otel import otel_sink
from agent_host.events.payloads import TELEMETRY_EVENTS, telemetry_line
from agent_host.services.http import HttpEventService, ServiceClient

if TYPE_CHECKING:
    from agent_host.http import TlsContext
    from agent_host.ids import Outside
    from config.settings import Settings

__all__ = ["audit_sink", "client_of", "otel_sink", "telemetry_sink"]


def client_of(
    url: str, token: str | None, settings: Settings, tls: TlsContext | None, outside: Outside
) -> ServiceClient:
    """A client of the services at `url`, with the time-outs and retries of the settings. Nothing is connected."""
    return ServiceClient(
        url,
        token,
        outside=outside,
        timeout_s=settings.services.timeout_s,
        retries=settings.services.max_retries,
        retry_base_s=settings.services.retry_base_s,
        retry_max_s=settings.services.retry_max_s,
        tls=tls,
    )


def audit_sink(client: ServiceClient) -> BatchedSink:
    """Posts the events of the Audit Service."""
    return BatchedSink(HttpEventService(client, "/audit/events").post, AUDIT_EVENTS, shape=AuditRecords())


def telemetry_sink(client: ServiceClient) -> BatchedSink:
    """Posts the events of the Telemetry Service."""
    return BatchedSink(HttpEventService(client, "/telemetry/events").post, TELEMETRY_EVENTS, shape=telemetry_line)
