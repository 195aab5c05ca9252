"""What is tried again, how often and after how long (AH 6.4)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_host.errors import GatewayRejected, GatewayUnavailable, GuardrailBlocked
from agent_host.http import RetryPolicy, call_with_retries
from agent_host.ids import MACHINE

FAST = RetryPolicy(retries=3, base_s=0.002, max_s=0.01)
_ROOT = Path(__file__).parents[3]


class Attempts:
    """Fails with each of `errors` in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.count = 0
        self.told: list[tuple[int, float, GatewayUnavailable]] = []

    async def __call__(self) -> str:
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answer"

    async def run(self, policy: RetryPolicy) -> str:
        return await call_with_retries(
            GatewayUnavailable,
            self,
            policy,
            lambda number, wait, error: self.told.append((number, wait, error)),
            MACHINE,
        )


def faults(count: int, retry_after_s: float | None = None) -> list[GatewayUnavailable]:
    return [GatewayUnavailable(f"fault {number}", retry_after_s=retry_after_s) for number in range(1, count + 1)]


async def test_what_works_is_not_tried_again() -> None:
    attempts = Attempts()
    assert await attempts.run(FAST) == "answer"
    assert (attempts.count, attempts.told) == (1, [])


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_passing_fault_is_tried_again_and_told_before_each_wait(failures: int) -> None:
    errors = faults(failures)
    attempts = Attempts(*errors)
    assert await attempts.run(FAST) == "answer"
    assert attempts.count == failures + 1
    assert [number for number, _, _ in attempts.told] == list(range(1, failures + 1))
    assert [error for _, _, error in attempts.told] == errors
    assert all(FAST.base_s / 2 <= wait <= FAST.max_s for _, wait, _ in attempts.told)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_the_last_error_is_raised_when_no_tries_are_left(retries: int) -> None:
    attempts = Attempts(*faults(10))
    with pytest.raises(GatewayUnavailable, match=f"fault {retries + 1}$"):
        await attempts.run(RetryPolicy(retries=retries, base_s=0.001, max_s=0.002))
    assert attempts.count == retries + 1


async def test_no_retry_is_announced_that_does_not_come() -> None:
    attempts = Attempts(*faults(10))
    with pytest.raises(GatewayUnavailable):
        await attempts.run(FAST)
    assert [number for number, _, _ in attempts.told] == [1, 2, 3]


@pytest.mark.parametrize("error", [GatewayRejected("no"), GuardrailBlocked("no"), ValueError("no")])
@pytest.mark.parametrize("after", [0, 1])
async def test_what_would_fail_again_is_not_tried_again(error: Exception, after: int) -> None:
    attempts = Attempts(*faults(after), error)
    with pytest.raises(type(error), match="no"):
        await attempts.run(FAST)
    assert attempts.count == after + 1


async def test_the_gateways_own_wait_is_honoured() -> None:
    attempts = Attempts(*faults(2, retry_after_s=0.03))
    began = time.monotonic()
    assert await attempts.run(FAST) == "answer"
    assert time.monotonic() - began >= 0.06
    assert [wait for _, wait, _ in attempts.told] == [0.03, 0.03]


async def test_the_gateways_own_wait_is_honoured_up_to_a_bound() -> None:
    attempts = Attempts(*faults(1, retry_after_s=3600))
    policy = RetryPolicy(retries=1, base_s=0.001, max_s=0.002, max_retry_after_s=0.01)
    assert await attempts.run(policy) == "answer"
    assert [wait for _, wait, _ in attempts.told] == [0.01]


@pytest.mark.parametrize("after", [0, 1])
async def test_what_the_gateway_wants_not_repeated_is_not(after: int) -> None:
    attempts = Attempts(*faults(after), GatewayUnavailable("not again", again=False), *faults(3))
    with pytest.raises(GatewayUnavailable, match="not again"):
        await attempts.run(FAST)
    assert attempts.count == after + 1


async def test_a_wait_of_none_is_none() -> None:
    attempts = Attempts(*faults(3, retry_after_s=0))
    assert await attempts.run(RetryPolicy(retries=3, base_s=60, max_s=60)) == "answer"
    assert [wait for _, wait, _ in attempts.told] == [0, 0, 0]


async def test_each_wait_follows_the_error_before_it() -> None:
    first, second = faults(1, retry_after_s=0.02)[0], faults(1)[0]
    attempts = Attempts(first, second)
    await attempts.run(FAST)
    assert attempts.told[0][1] == 0.02
    assert attempts.told[1][1] <= FAST.max_s


@pytest.mark.parametrize("retry_after_s", [None, 60])
async def test_no_wait_for_a_server_that_gets_ready_goes_beyond_its_time(retry_after_s: float | None) -> None:
    attempts = Attempts(*[GatewayUnavailable("loading", gets_ready=True, retry_after_s=retry_after_s)] * 2)
    assert await attempts.run(RetryPolicy(retries=3, base_s=60, max_s=60, max_wait_s=0.02)) == "answer"
    assert all(wait <= 0.02 for _, wait, _ in attempts.told)


async def test_waits_grow_and_differ() -> None:
    firsts, thirds = [], []
    for _ in range(12):
        attempts = Attempts(*faults(3))
        await attempts.run(RetryPolicy(retries=3, base_s=0.0005, max_s=0.01))
        waits = [wait for _, wait, _ in attempts.told]
        firsts.append(waits[0])
        thirds.append(waits[2])
    assert max(firsts) <= 0.0005 * 2
    assert max(thirds) > max(firsts)
    assert len(set(thirds)) > 1


async def test_no_wait_is_above_the_bound() -> None:
    attempts = Attempts(*faults(1))
    await attempts.run(RetryPolicy(retries=1, base_s=0.02, max_s=0.001))
    assert attempts.told[0][1] <= 0.001


def test_only_a_failed_call_pays_for_tenacity() -> None:
    code = """
import asyncio, sys
from agent_host.errors import GatewayUnavailable
from agent_host.http import RetryPolicy, call_with_retries
from agent_host.ids import MACHINE
async def works(): return 1
async def fails(): raise GatewayUnavailable("x")
asyncio.run(call_with_retries(GatewayUnavailable, works, RetryPolicy(), print, MACHINE))
assert "tenacity" not in sys.modules
try:
    asyncio.run(call_with_retries(GatewayUnavailable, fails, RetryPolicy(retries=0), print, MACHINE))
except GatewayUnavailable:
    pass
assert "tenacity" not in sys.modules
try:
    asyncio.run(call_with_retries(GatewayUnavailable, fails, RetryPolicy(1, 0.001, 0.001), lambda *told: None, MACHINE))
except GatewayUnavailable:
    pass
assert "tenacity" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
