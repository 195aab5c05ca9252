"""Trying again what may be tried again (AH 6.4, 11)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

from agent_host.errors import GatewayUnavailable, ServiceUnavailable
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from agent_host.ids import Outside

_MOST_DOUBLED: Final = 62
T = TypeVar("T")
Passing = TypeVar("Passing", GatewayUnavailable, ServiceUnavailable)
"""A fault that may have gone by the next try; it is not tried again where its `again` is false."""


class RetryPolicy(NamedTuple):
    """`retries` after the first try; exponential back-off from `base_s` with jitter, no wait above `max_s`. A
    Retry-After of the server replaces the back-off, up to `max_retry_after_s`. A server that `gets_ready` is waited for
    up to `max_wait_s` from its first such answer, with as many further tries as that takes, unless `retries` is 0;
    None: it is no exception."""

    retries: int = 3
    base_s: float = 1.0
    max_s: float = 30.0
    max_retry_after_s: float = 120.0
    max_wait_s: float | None = None


async def call_with_retries(
    passing: type[Passing],
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, Passing], None],
    outside: Outside,
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
    return await _again(passing, attempt, policy, on_retry, first, outside)


async def _again(
    passing: type[Passing],
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, Passing], None],
    first: Passing,
    outside: Outside,
) -> T:
    # Only a call that failed pays for the import.
    from tenacity import AsyncRetrying, retry_if_exception

    pending = [first]
    waiting = _Waiting(policy, outside)

    def error_of(state: RetryCallState) -> Passing:
        error = state.outcome.exception() if state.outcome is not None else None
        return error if isinstance(error, passing) else first

    def wait(state: RetryCallState) -> float:
        error = error_of(state)
        if error.retry_after_s is not None:
            return waiting.bound(error, min(error.retry_after_s, policy.max_retry_after_s))
        # Jitter over the upper half only: a wait of nothing would not help a server that is overrun.
        longest_s = min(policy.max_s, math.ldexp(policy.base_s, min(state.attempt_number - 1, _MOST_DOUBLED)))
        jittered_s = policy.base_s / 2 + longest_s * outside.fraction() / 2
        return waiting.bound(error, min(policy.max_s, jittered_s))

    def report(state: RetryCallState) -> None:
        if state.next_action is not None:
            on_retry(state.attempt_number, state.next_action.sleep, error_of(state))

    async def next_try() -> T:
        if pending:  # the first failure happened outside; raising it here gives it its wait like any other
            raise pending.pop()
        return await attempt()

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, passing) and error.again),
        stop=lambda state: waiting.is_over(error_of(state)),
        wait=wait,
        before_sleep=report,
        reraise=True,
    )
    return await retrying(next_try)


class _Waiting:
    """The count of failed tries, and the time since a server first said that it gets ready."""

    def __init__(self, policy: RetryPolicy, outside: Outside) -> None:
        self._policy = policy
        self._now = outside.monotonic
        self._left = policy.retries
        self._until: float | None = None

    def is_over(self, error: GatewayUnavailable | ServiceUnavailable) -> bool:
        """True if the failure `error` is the last; called once for each."""
        self._left -= 1
        until = self._deadline_for(error)
        return self._left < 0 and (until is None or self._now() >= until)

    def bound(self, error: GatewayUnavailable | ServiceUnavailable, wait_s: float) -> float:
        """The wait behind `error`: none goes beyond the time, so that the last try is made when it is up."""
        until = self._deadline_for(error)
        return wait_s if until is None else max(0.0, min(wait_s, until - self._now()))

    def _deadline_for(self, error: GatewayUnavailable | ServiceUnavailable) -> float | None:
        """The end of the wait for a server that gets ready, from its first such answer on; None for any other."""
        if not error.gets_ready or self._policy.max_wait_s is None:
            return None
        if self._until is None:  # tenacity asks for the wait before it asks whether to stop
            self._until = self._now() + self._policy.max_wait_s
        return self._until
