"""The connection to a gateway by a proxy of the environment: httpx's client, which knows the rules of NO_PROXY, tunnels
and SOCKS."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpcore

from agent_host.errors import UsageError
from agent_host.http import displayable_url
from agent_host.lean_httpx import httpx
from agent_host.llm.event_stream import GatewayAnswer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping

    from agent_host.llm.event_stream import GatewayTimeouts


class ByProxy:
    """See `GatewayConnection`. Raises UsageError for a proxy that cannot be used."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext, timeouts: GatewayTimeouts) -> None:
        limits = httpx.Timeout(timeouts.read_s, connect=timeouts.connect_s)
        try:
            self._url = httpx.URL(url)
            self._client = httpx.AsyncClient(headers=headers, timeout=limits, verify=tls)
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            raise UsageError(f"--gateway {displayable_url(url)!r} by the proxy of the environment: {error}") from error

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        """See `GatewayConnection`."""
        request = self._client.build_request("POST", self._url, content=body, headers={"content-length": str(length)})
        with _translate_errors():
            answer = await self._client.send(request, stream=True)
        return GatewayAnswer(answer.status_code, answer.headers, _read(answer), answer.aclose)

    async def aclose(self) -> None:
        """See `GatewayConnection`."""
        await self._client.aclose()


async def _read(answer: httpx.Response) -> AsyncIterator[bytes]:
    with _translate_errors():
        async for chunk in answer.aiter_raw():
            yield chunk


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns httpx's errors into those of the library below it."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise httpcore.TimeoutException(str(error)) from error
    except httpx.RequestError as error:
        raise httpcore.NetworkError(str(error)) from error
