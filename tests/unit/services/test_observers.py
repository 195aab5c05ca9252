"""Events over HTTP: in one request where the service takes that, else one by one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agent_host.errors import ServiceRejected, ServiceUnavailable
from agent_host.services.http import HttpEventService
from agent_host.testing.http1 import HttpRequest, MockServer, Reply
from agent_host.testing.services import MockServices
from tests.unit.services.helpers import client


def event(number: int) -> bytes:
    envelope = {
        "eventId": number, "eventType": "step_started", "timestamp": "2026-01-01T00:00:00Z", "sessionId": "s",
        "component": "loop", "severity": "info", "payload": {},
    }  # fmt: skip
    return orjson.dumps(envelope)


def numbers(events: Any) -> list[int]:
    return [one["eventId"] for one in events]


@pytest.mark.parametrize("path", ["/audit/events", "/telemetry/events"])
async def test_one_event_is_an_object_and_several_are_an_array(path: Any) -> None:
    async with MockServices() as services, client(services.url) as made:
        sink = HttpEventService(made, path)
        await sink.post([])
        await sink.post([event(1)])
        await sink.post([event(2), event(3)])
    assert [request.path for request in services.requests] == [path, path]
    assert services.requests[0].body["eventId"] == 1
    assert numbers(services.requests[1].body) == [2, 3]
    taken, other = services.audit_events, services.telemetry_events
    assert numbers(taken if path == "/audit/events" else other) == [1, 2, 3]
    assert not (other if path == "/audit/events" else taken)


@pytest.mark.parametrize("status", [400, 404, 415, 422])
async def test_a_service_that_takes_no_arrays_gets_one_event_a_request(status: int) -> None:
    bodies: list[Any] = []

    async def handle(request: HttpRequest, reply: Reply) -> None:
        bodies.append(orjson.loads(request.body or b""))
        await reply.send(status if isinstance(bodies[-1], list) else 202, {}, b"")

    server = MockServer(handle)
    url = await server.start()
    async with client(url) as made:
        sink = HttpEventService(made, "/audit/events")
        await sink.post([event(1), event(2)])
        await sink.post([event(3), event(4)])
    await server.aclose()
    assert numbers(bodies[0]) == [1, 2]
    assert numbers(bodies[1:]) == [1, 2, 3, 4]


async def test_what_is_posted_again_is_known_by_its_key() -> None:
    async with MockServices() as services, client(services.url) as made:
        sink = HttpEventService(made, "/audit/events")
        for _ in range(2):
            await sink.post([event(1), event(2)])
    assert numbers(services.audit_events) == [1, 2]


async def test_failures_are_the_client_s() -> None:
    async with MockServices() as services, client(services.url, retries=0) as made:
        sink = HttpEventService(made, "/telemetry/events")
        services.fail("/telemetry", 503)
        with pytest.raises(ServiceUnavailable):
            await sink.post([event(1)])
        services.fail("/telemetry", 403)
        with pytest.raises(ServiceRejected):
            await sink.post([event(1), event(2)])
        services.fail("/telemetry", 400)
        with pytest.raises(ServiceRejected):
            await sink.post([event(1)])
        await sink.post([event(1), event(2)])
    assert isinstance(services.requests[-1].body, list)
