"""httpx and its event streams, httpx imported lean."""

from __future__ import annotations

from agent_host.lean_httpx import httpx  # isort: skip  first, since httpx-sse imports httpx itself
from httpx_sse import EventSource

__all__ = ["EventSource", "httpx"]
