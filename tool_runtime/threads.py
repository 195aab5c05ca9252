"""A small pool of daemon threads for blocking work.

`concurrent.futures` joins its threads when the interpreter exits, so one read that hangs on a dead network disk would
keep the whole process alive; these threads do not. The event loop passes the work to the pool, as with
`asyncio.to_thread`, so a test's loop may run it in its own thread instead (decision 110).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
_Future = asyncio.Future[Any]
_Work = tuple[Callable[[], Any], _Future, asyncio.AbstractEventLoop]


class DaemonPool(Executor):
    """At most `limit` threads, started when needed and kept for the next call; `close` ends them."""

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work()` in a thread and return its result or raise its exception. If the caller is cancelled, the result
        is dropped."""
        return await asyncio.get_running_loop().run_in_executor(self, work)

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:  # type: ignore[override]  # see below
        """Start `work` for the running loop. The loop uses its own future without wrapping it; an Executor's future has
        a lock and a condition, which cost half as much as the whole hop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1
        if self._busy > self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._serve, name="tool-io", daemon=True).start()
        self._work.put((work, future, loop))
        return future

    def close(self) -> None:
        """End every thread after its current work."""
        for _ in range(self._threads):
            self._work.put(None)
        self._threads = 0

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            self._serve_one(*item)
            del item  # or the last result would live until the next call

    def _serve_one(self, function: Callable[[], Any], future: _Future, loop: asyncio.AbstractEventLoop) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            if not future.cancelled():
                result = function()
        except BaseException as raised:  # noqa: BLE001 - handed unchanged to the caller that waits for it
            error = raised
        try:
            loop.call_soon_threadsafe(self._deliver, future, result, error)
        except RuntimeError:
            return  # the loop is closed, so no caller waits any more

    def _deliver(self, future: _Future, result: object, error: BaseException | None) -> None:
        self._busy -= 1  # here and not when the caller is cancelled, so that a stuck thread still counts as busy
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def run_in_fresh_thread(work: Callable[[], T]) -> T:
    """Run `work()` in a new thread, which may give up its rights because it ends afterwards. Exceptions are raised
    here."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed unchanged to the caller that waits for it
            done.set_exception(error)

    thread = threading.Thread(target=run, name="sandbox-start")
    thread.start()
    thread.join()
    return done.result()
