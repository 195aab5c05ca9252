"""Events on their way to a service (AH 12): in batches, in order, again until they are taken, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from agent_host.errors import AgentHostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Sequence

    from agent_host.events.emitter import Event
    from agent_host.events.kinds import EventType

_RETRY_AT_THE_END_S = 0.1


class BatchedSink:
    """Hands events of the types `wanted` to `post`, from one background task of the running loop.

    `post` takes up to `max_batch` encoded events, each with its newline, and raises AgentHostError when the service did
    not take them: the same batch is then tried again, after a time that doubles from `retry_base_s` to `retry_max_s`.
    `shape` says how an event is sent, None for not at all; without it the event goes as it is. What waits is bounded by
    `max_pending` and `max_pending_bytes`, and the oldest goes first, except for a batch that is being posted; `dropped`
    counts what the service never got.
    """

    def __init__(
        self,
        post: Callable[[Sequence[bytes]], Awaitable[None]],
        wanted: Container[EventType],
        *,
        max_batch: int = 200,
        max_wait_s: float = 1.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 16 * 1024 * 1024,
        retry_base_s: float = 0.5,
        retry_max_s: float = 30.0,
        shape: Callable[[Event], bytes | None] | None = None,
    ) -> None:
        self._post = post
        self._wanted = wanted
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._retry_s = (retry_base_s, retry_max_s)
        self._shape = shape
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._posting: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self.dropped = 0

    def take(self, event: Event) -> None:
        """Queue the event. The background task starts with the first one."""
        if event.event_type not in self._wanted or self._closing.is_set():
            return
        line = event.line() if self._shape is None else self._shape(event)
        if line is None:
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        while len(self._pending) > self._max_pending or self._pending_bytes > self._max_pending_bytes:
            self._pending_bytes -= len(self._pending.popleft())
            self.dropped += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="events to a service")
        elif len(self._pending) == 1 or len(self._pending) >= self._max_batch:
            self._wake.set()

    def flush(self) -> None:
        """A batch goes when it is full or its time has come; nobody waits for it."""

    async def aclose(self, timeout_s: float) -> None:
        """Post what is pending within `timeout_s`, else give it up and count it as dropped."""
        self._closing.set()
        self._wake.set()
        task = self._task
        if task is not None:
            try:
                await asyncio.wait([task], timeout=timeout_s)
            finally:
                if task.cancel():
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                self.dropped += len(self._pending) + len(self._posting)
                self._pending.clear()
                self._posting = []

    async def _run(self) -> None:
        while await self._batch_is_due():
            self._posting = [self._pending.popleft() for _ in range(min(self._max_batch, len(self._pending)))]
            self._pending_bytes -= sum(map(len, self._posting))
            await self._deliver()

    async def _batch_is_due(self) -> bool:
        """Wait for the next batch; False when all is sent and no more comes."""
        while not self._pending:
            if self._closing.is_set():
                return False
            await self._woken()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_s):
                while len(self._pending) < self._max_batch and not self._closing.is_set():
                    await self._woken()
        return True

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _deliver(self) -> None:
        """Post the batch until it is taken."""
        base_s, max_s = self._retry_s
        wait_s = base_s
        while True:
            try:
                await self._post(self._posting)
            except AgentHostError:
                await self._back_off(wait_s)
                wait_s = min(wait_s * 2, max_s)
            else:
                self._posting = []
                return

    async def _back_off(self, wait_s: float) -> None:
        """Wait before the next try. Closing cuts the wait short, and lets no other one get long."""
        if self._closing.is_set():
            await asyncio.sleep(min(wait_s, _RETRY_AT_THE_END_S))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closing.wait()
