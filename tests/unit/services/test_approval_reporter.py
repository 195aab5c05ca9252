"""Decisions leave in the background, in order; what cannot be delivered is counted and never waited for."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent_host.errors import ServiceRejected, ServiceUnavailable
from agent_host.services.session import ApprovalDecision, ApprovalReporter, HttpApprovalService
from agent_host.testing.services import MockServices
from tests.unit.services.helpers import client
from tests.unit.tool_runtime.conftest import until


def decision(number: int) -> ApprovalDecision:
    return ApprovalDecision(f"a{number}", "s", "t", "u", "t", "w", "approved", "x", "2026-01-01T00:00:00Z")


class Service:
    """Answers each decision with the next of `faults`; `gate` holds it up when it is not set."""

    def __init__(self, *faults: Exception | None) -> None:
        self._faults = list(faults)
        self.asked: list[str] = []
        self.kept: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def record(self, decision: ApprovalDecision) -> None:
        self.asked.append(decision.approval_id)
        await self.gate.wait()
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise fault
        self.kept.append(decision.approval_id)


def away() -> Exception:
    return ServiceUnavailable("away")


async def test_they_are_delivered_in_order() -> None:
    service = Service()
    reporter = ApprovalReporter(service)
    for number in range(5):
        reporter.take(decision(number))
    assert service.asked == []
    await reporter.aclose(10)
    assert service.kept == ["a0", "a1", "a2", "a3", "a4"]
    assert (reporter.dropped, reporter.pending) == (0, 0)


async def test_it_works_again_after_a_quiet_time() -> None:
    service = Service()
    reporter = ApprovalReporter(service)
    for number in range(3):
        reporter.take(decision(number))
        await until(lambda number=number: len(service.kept) == number + 1)  # type: ignore[misc]  # bound on purpose
    await reporter.aclose(10)


async def test_one_that_finds_the_service_away_stays_first_in_line() -> None:
    service = Service(away(), away())
    reporter = ApprovalReporter(service, pause_s=0.001)
    for number in range(2):
        reporter.take(decision(number))
    await until(lambda: len(service.kept) == 2)
    assert service.asked == ["a0", "a0", "a0", "a1"]
    await reporter.aclose(10)
    assert reporter.dropped == 0


async def test_one_that_is_refused_is_dropped_and_the_next_goes() -> None:
    service = Service(ServiceRejected("no", status=400))
    reporter = ApprovalReporter(service)
    for number in range(2):
        reporter.take(decision(number))
    await reporter.aclose(10)
    assert service.kept == ["a1"]
    assert reporter.dropped == 1


@pytest.mark.parametrize("delivered", [True, False])
async def test_a_full_line_drops_the_oldest(delivered: bool) -> None:
    service = Service(*([] if delivered else [ServiceRejected("no", status=400)]))
    service.gate.clear()
    reporter = ApprovalReporter(service, max_pending=2)
    reporter.take(decision(0))
    await until(lambda: service.asked == ["a0"])
    for number in range(1, 5):  # pushes out the one that is under way, and two more
        reporter.take(decision(number))
    assert (reporter.dropped, reporter.pending) == (3, 2)
    service.gate.set()
    await reporter.aclose(10)
    assert service.kept == (["a0", "a3", "a4"] if delivered else ["a3", "a4"])
    assert reporter.dropped == (2 if delivered else 3)


async def test_closing_does_not_wait_out_a_pause_and_tries_once_more() -> None:
    service = Service(away())
    reporter = ApprovalReporter(service, pause_s=600)
    reporter.take(decision(0))
    await until(lambda: service.asked == ["a0"])
    async with asyncio.timeout(10):
        await reporter.aclose(600)
    assert service.kept == ["a0"]


async def test_closing_is_bounded_and_counts_what_is_left() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.hang("/approvals")
        reporter = ApprovalReporter(HttpApprovalService(made))
        for number in range(3):
            reporter.take(decision(number))
        began = time.monotonic()
        await reporter.aclose(0.05)
        assert time.monotonic() - began < 20
    assert (reporter.dropped, reporter.pending) == (3, 0)
    reporter.take(decision(9))
    assert reporter.dropped == 4
    await reporter.aclose(0)


async def test_closing_with_nothing_to_do() -> None:
    await ApprovalReporter(Service()).aclose(10)


async def test_a_cancelled_close_leaves_no_task() -> None:
    service = Service()
    service.gate.clear()
    reporter = ApprovalReporter(service)
    reporter.take(decision(0))
    closing = asyncio.create_task(reporter.aclose(600))
    await until(lambda: service.asked == ["a0"])
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert len(asyncio.all_tasks()) == 1
