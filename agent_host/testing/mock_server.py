"""The common part of mock servers: each listens on loopback, on the event loop that is there or in a thread of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

from agent_host.testing.http1 import HttpServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
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


# A server with an event loop and a thread of its own, for code that has none.


@contextlib.contextmanager
def in_thread(
    start: Callable[[], Awaitable[str]], aclose: Callable[[], Awaitable[None]], *, name: str
) -> Iterator[str]:
    """Run `start`, which listens and returns the base URL, in a thread called `name`; `aclose` when the block is left.

    Raises:
        OSError: the address cannot be had.
    """
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        try:
            url = await start()
        except OSError as error:
            ready.set_exception(error)
            return
        ready.set_result((url, asyncio.get_running_loop(), stop))
        await stop.wait()
        await aclose()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name=name, daemon=True)
    thread.start()
    try:
        url, loop, stop = ready.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(stop.set)
    finally:
        thread.join()
