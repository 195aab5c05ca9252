"""A server with an event loop and a thread of its own, for code that has none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


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
