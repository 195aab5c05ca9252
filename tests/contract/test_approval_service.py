"""What the host may expect of every ApprovalService (AH 10.4), of the one over HTTP, and of the one on this disk."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import ServiceRejected, ServiceUnavailable
from agent_host.services.session import (
    ApprovalDecision,
    ApprovalService,
    EmbeddedApprovalService,
    HttpApprovalService,
)
from agent_host.testing.services import MockServices
from tests.unit.services.helpers import client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

DECISION = ApprovalDecision(
    "appr_1", "s", "t", "jo", "acme", "ws", "approved", "RunCommand ls", "2026-01-01T00:00:00.000Z"
)
WIRE = {
    "approvalId": "appr_1",
    "sessionId": "s",
    "taskId": "t",
    "userId": "jo",
    "tenantId": "acme",
    "workspaceId": "ws",
    "decision": "approved",
    "actionSummary": "RunCommand ls",
    "clientTimestamp": "2026-01-01T00:00:00.000Z",
}
Kept = list[dict[str, Any]]


def lines(path: Path) -> Kept:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(params=["embedded", "http"])
async def home(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[ApprovalService, Callable[[], Kept]]]:
    if request.param == "embedded":
        path = tmp_path / "approvals.jsonl"
        yield EmbeddedApprovalService(str(path)), lambda: lines(path)
    else:
        async with MockServices() as services, client(services.url) as made:
            yield HttpApprovalService(made), lambda: [dict(one) for one in services.approvals]


async def test_decisions_are_kept_in_order(home: tuple[ApprovalService, Callable[[], Kept]]) -> None:
    service, kept = home
    more = DECISION._replace(
        approval_id="appr_2", decision="denied", step_id="p", reason="no\nway \ud800", risk_level="high"
    )
    await service.record(DECISION)
    await service.record(more)
    assert kept()[0] == WIRE
    assert kept()[1]["stepId"] == "p"
    assert kept()[1]["riskLevel"] == "high"
    assert (kept()[1]["decision"], kept()[1]["reason"].encode("utf-8", "replace")) == ("denied", b"no\nway ?")


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def test_a_decision_sent_again_is_kept_once() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/approvals", 503)
        for _ in range(2):
            await HttpApprovalService(made).record(DECISION)
        await HttpApprovalService(made).record(DECISION._replace(decision="denied"))
    assert [one["decision"] for one in services.approvals] == ["approved", "denied"]


async def test_failures_are_the_client_s() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/approvals", 503, times=3)
        with pytest.raises(ServiceUnavailable):
            await HttpApprovalService(made).record(DECISION)
        services.fail("/approvals", 422)
        with pytest.raises(ServiceRejected):
            await HttpApprovalService(made).record(DECISION)


# --- on this disk -----------------------------------------------------------------------------------------------------


async def test_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "approvals.jsonl"
    await EmbeddedApprovalService(str(path)).record(DECISION)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    gone = tmp_path / "gone" / "approvals.jsonl"
    with pytest.raises(ServiceUnavailable, match="appr_1 was not kept"):
        await EmbeddedApprovalService(str(gone)).record(DECISION)
    assert not gone.parent.exists(), "a folder that was removed is not made anew"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_nothing_in_its_place_is_followed_or_waited_for(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    for name, put in (
        ("link", lambda path: os.symlink(tmp_path / "target", path)),
        ("pipe", os.mkfifo),
        ("folder", os.mkdir),
    ):
        put(tmp_path / name)
        with pytest.raises(ServiceUnavailable, match="appr_1 was not kept"):
            await EmbeddedApprovalService(str(tmp_path / name)).record(DECISION)
    assert (tmp_path / "target").read_text() == "mine"
