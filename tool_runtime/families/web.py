"""The HTTP client of a family, made when its first request comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolRequest
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.web.http import HttpClient, HttpOutcome


class Web:
    """Gives the client. Without `tls_checks` it takes any certificate."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, *, tls_checks: bool = True) -> None:
        self._settings = settings
        self._pool = pool
        self._tls_checks = tls_checks
        self._client: HttpClient | None = None
        self._lock = asyncio.Lock()

    async def client(self) -> HttpClient:
        """The one client. It is made in a thread: httpx and a TLS context cost some 80 ms."""
        async with self._lock:
            if self._client is None:
                self._client = await self._pool.run(self._make)
        return self._client

    async def fetch(
        self,
        request: ToolRequest,
        body: bytes,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        cut_bytes: int | None = None,
        saved_bytes: int | None = None,
    ) -> HttpOutcome:
        """The answer to the request that the call's `url` and `method` name; for the limits see HttpParams. Raises
        ToolFault."""
        client = await self.client()
        from tool_runtime.web.connections import DomainScope
        from tool_runtime.web.http import HttpParams

        arguments, limits = request.arguments, request.constraints
        params = HttpParams(
            url=arguments["url"],
            method=arguments.get("method", "GET"),
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            domains=DomainScope(limits.allowed_domains, limits.blocked_domains),
            cut_body_bytes=cut_bytes,
            max_saved_bytes=saved_bytes,
        )
        return await client.fetch(params)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if self._client is not None:
            await self._client.aclose()

    def _make(self) -> HttpClient:
        from policy.addresses import address_is_public
        from tool_runtime.web.connections import Network
        from tool_runtime.web.http import HttpClient, HttpLimits

        settings, allowed = self._settings, self._settings.address_allowed
        proxies = {"http": settings.http_proxy, "https": settings.https_proxy}
        network = Network(
            address_is_public if allowed is None else allowed,
            local_names=allowed is not None,
            proxies={scheme: url for scheme, url in proxies.items() if url is not None},
            tls_checks=self._tls_checks,
        )
        return HttpClient(self._pool, HttpLimits(settings.http_max_body_bytes, settings.http_max_redirects), network)
