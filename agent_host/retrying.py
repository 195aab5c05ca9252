"""Trying again what may be tried again (AH 6.4, 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent_host.errors import GatewayUnavailable, ServiceUnavailable
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

T = TypeVar("T")
Passing = TypeVar("Passing", GatewayUnavailable, ServiceUnavailable)
"""A fault that may have gone by the next try; it is not tried again where its `again` is false."""


class RetryPolicy(NamedTuple):
    """`retries` after the first try; exponential back-off from `base_s` with jitter, no wait above `max_s`. A
    Retry-After of the server replaces the back-off, up to `max_retry_after_s`."""

    retries: int = 3
    base_s: float = 1.0
    max_s: float = 30.0
    max_retry_after_s: float = 120.0


async def with_retries(
    passing: type[Passing],
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, Passing], None],
) -> T:
    """The result of `attempt`, which is called again when it raises `passing`.

    `on_retry(number, wait_s, error)` is called before each wait. Raises the last error when no tries are left.
    """
    try:
        return await attempt()
    except passing as error:
        if policy.retries == 0 or not error.again:
            raise
        first = error
    return await _again(passing, attempt, policy, on_retry, first)


async def _again(
    passing: type[Passing],
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, Passing], None],
    first: Passing,
) -> T:
    # Only a call that failed pays for the import.
    from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    backoff = wait_random_exponential(multiplier=policy.base_s, max=policy.max_s)
    pending = [first]

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        known = error if isinstance(error, passing) else first
        if known.retry_after_s is not None:
            return min(known.retry_after_s, policy.max_retry_after_s)
        # Jitter over the upper half only: a wait of nothing would not help a server that is overrun.
        return min(policy.max_s, policy.base_s / 2 + backoff(state) / 2)

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if state.next_action is not None and isinstance(error, passing):
            on_retry(state.attempt_number, state.next_action.sleep, error)

    async def next_try() -> T:
        if pending:  # the first failure happened outside; raising it here gives it its wait like any other
            raise pending.pop()
        return await attempt()

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, passing) and error.again),
        stop=stop_after_attempt(policy.retries + 1),
        wait=wait,
        before_sleep=report,
        reraise=True,
    )
    return await retrying(next_try)
