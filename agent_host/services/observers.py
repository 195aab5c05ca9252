"""Audit and Telemetry Service over HTTP: encoded events in, one request out (AH 12)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from agent_host.errors import ServiceRejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.services.http import ServiceClient

EventPath = Literal["/audit/events", "/telemetry/events"]
# What a service answers that takes one event a request: the interface promises no more than that.
_TAKES_NO_ARRAY = frozenset({400, 404, 415, 422})


class HttpEventService:
    """Posts event envelopes to `path`: one as it is, several as a JSON array, as long as the service takes arrays."""

    def __init__(self, client: ServiceClient, path: EventPath) -> None:
        self._client = client
        self._path = path
        self._takes_arrays = True

    async def post(self, events: Sequence[bytes]) -> None:
        """Deliver `events`, each an encoded envelope without newline, in order. Raises ServiceUnavailable,
        ServiceRejected; those that went before the one that failed have been delivered, and are known by their
        Idempotency-Key should they come again."""
        if len(events) > 1 and self._takes_arrays:
            try:
                await self._send(b"[" + b",".join(events) + b"]")
            except ServiceRejected as error:
                if error.status not in _TAKES_NO_ARRAY:
                    raise
                self._takes_arrays = False
            else:
                return
        for event in events:
            await self._send(event)

    async def _send(self, body: bytes) -> None:
        await self._client.post(self._path, body, idempotency_key=hashlib.sha256(body).hexdigest())
