"""Trying a gateway again (AH 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent_host.errors import GatewayUnavailable
from agent_host.retrying import RetryPolicy, with_retries_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["RetryPolicy", "with_retries"]

T = TypeVar("T")


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, GatewayUnavailable], None],
) -> T:
    """The result of `attempt`, which is called again when it raises GatewayUnavailable.

    `on_retry(number, wait_s, error)` is told before each wait. Raises the last error when no tries are left.
    """
    return await with_retries_on(GatewayUnavailable, attempt, policy, on_retry)
