"""What every mock server has: it listens on loopback, on the event loop that is there or in a thread of its own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from agent_host.testing.http1 import HttpServer
from agent_host.testing.in_thread import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from agent_host.testing.http1 import Handler


class MockServer:
    """An async context manager that serves `handler` for as long. `name` is that of its thread, where it has one."""

    def __init__(self, handler: Handler, *, name: str, max_body_bytes: int | None = None) -> None:
        self._server = HttpServer(handler, max_body_bytes=max_body_bytes)
        self._name = name
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the base URL (also in `url`), such as `http://127.0.0.1:54321`.

        Raises:
            OSError: the address cannot be had.
        """
        bound_host, bound_port = await self._server.start(host, port)
        self.url = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        return self.url

    async def aclose(self) -> None:
        """Stop at once, hanging answers included. May be called again."""
        await self._server.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @contextlib.contextmanager
    def in_thread(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve from a thread with an event loop of its own, for code without one. Gives the base URL.

        Raises:
            OSError: the address cannot be had.
        """
        with in_thread(lambda: self.start(host, port), self.aclose, name=self._name) as url:
            yield url
