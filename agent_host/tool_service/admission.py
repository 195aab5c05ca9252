"""How many calls of a tenant run at once, and how many wait for that. What is beyond both is refused at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.errors import ErrorCode
from agent_host.tool_service.refusals import Refusal

if TYPE_CHECKING:
    from types import TracebackType

    from agent_host.tool_service.configuration import Limits

_RETRY_AFTER_S = 1


class Admission:
    """The calls of one tenant in this worker."""

    def __init__(self, limits: Limits) -> None:
        self._slots = asyncio.Semaphore(limits.max_concurrent)
        self._most = limits.max_concurrent + limits.max_queued
        self._inside = 0

    def enter(self) -> Visit:
        """A place among those that run or wait. Raises Refusal 429 where there is none."""
        if self._inside >= self._most:
            raise Refusal(
                429,
                ErrorCode.RATE_LIMITED,
                f"the tenant has {self._most} calls under way; try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._inside += 1
        return Visit(self)

    def leave(self) -> None:
        """Give a place back."""
        self._inside -= 1

    @property
    def slots(self) -> asyncio.Semaphore:
        """What a call holds while it runs."""
        return self._slots


class Visit:
    """One place. `async with` it around the call; `with` it around everything."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave()

    @property
    def slot(self) -> asyncio.Semaphore:
        """What the call holds while it runs, once one is free."""
        return self._admission.slots
