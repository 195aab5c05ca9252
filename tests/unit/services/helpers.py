"""Service clients in few words."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agent_host.ids import MACHINE
from agent_host.services.http import ServiceClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = "tok-very-secret-0123456789"


@asynccontextmanager
async def client(url: str, token: str | None = TOKEN, **settings: Any) -> AsyncIterator[ServiceClient]:
    """A client with short waits."""
    settings = {"timeout_s": 10.0, "retries": 2, "retry_base_s": 0.001, "retry_max_s": 0.01, **settings}
    made = ServiceClient(url, token, outside=MACHINE, **settings)
    try:
        yield made
    finally:
        await made.aclose()
