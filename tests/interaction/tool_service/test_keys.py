"""Idempotency keys: a call that is sent again does not run again, whatever was lost in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

from agent_host.tool_service.answers import IdempotencyScope, Known, MemoryAnswers
from tests.support.tool_service import ACME, OTHER, FunctionTool, grant, invocation, served, tenants

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.tool_service.tool import Call


async def count(call: Call) -> str:
    return f"call {call.key}"


async def test_a_key_that_comes_again_has_the_same_answer(tmp_path: Path) -> None:
    tool = FunctionTool("Count", count)
    async with served(tmp_path, tenants({"Count": {}}), tool) as service:
        first = await service.invoke("Count", {"a": 1, "b": 2}, key="call_1")
        again = await service.invoke("Count", {"b": 2, "a": 1}, key="call_1", stepId="step_2")
        assert first.content == again.content
        found = await service.find("Count", "call_1")
        assert (found.status_code, found.content) == (200, first.content)
        assert len(tool.calls) == 1


async def test_a_key_holds_for_its_arguments_tool_session_and_tenant(tmp_path: Path) -> None:
    one, two = FunctionTool("One", count), FunctionTool("Two", count)
    tools: dict[str, Any] = {"One": {}, "Two": {}}
    async with served(tmp_path, tenants(tools, other=tools), one, two) as service:
        await service.invoke("One", {"a": 1}, key="k")
        other_arguments = await service.invoke("One", {"a": 2}, key="k")
        assert other_arguments.status_code == 409
        assert other_arguments.json()["code"] == "INVALID_REQUEST"
        elsewhere = [
            await service.invoke("Two", {"a": 1}, key="k"),
            await service.invoke("One", {"a": 1}, key="k", with_grant=grant("One", session="s2"), sessionId="s2"),
            await service.invoke("One", {"a": 1}, key="k", token=OTHER, with_grant=grant("One", tenant="other")),
        ]
        assert [answer.status_code for answer in elsewhere] == [200, 200, 200]
        assert (len(one.calls), len(two.calls)) == (3, 1)
        # Another tenant's or session's grant finds nothing of it.
        found = await service.find("One", "k", with_grant=grant("One", session="s3"))
        assert found.status_code == 404


async def test_a_call_whose_client_has_gone_runs_once_and_is_answered_later(tmp_path: Path) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(_: Call) -> str:
        begun.set()
        await end.wait()
        return "done"

    tool = FunctionTool("Slow", slow)
    async with served(tmp_path, tenants({"Slow": {}}), tool) as service:
        headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant("Slow"), "idempotency-key": "k"}
        with pytest.raises(httpx.ReadTimeout):
            await service.http.post(
                "/tools/Slow/invoke", content=orjson.dumps(invocation("Slow", {})), headers=headers, timeout=0.2
            )
        await begun.wait()
        running = await service.find("Slow", "k")
        assert (running.status_code, running.json()) == (202, {"status": "running"})
        again = asyncio.create_task(service.invoke("Slow", key="k"))
        end.set()
        assert (await again).json()["outputText"] == "done"
        assert (await service.find("Slow", "k")).json()["outputText"] == "done"
        assert len(tool.calls) == 1


async def test_a_call_is_refused_where_another_epoch_was_expected(tmp_path: Path) -> None:
    tool = FunctionTool("Count", count)
    async with served(tmp_path, tenants({"Count": {}}), tool) as service:
        headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant("Count"), "idempotency-key": "k"}
        body = orjson.dumps(invocation("Count", {}))
        epoch = (await service.http.get("/tools", headers=headers)).headers["x-tool-service-epoch"]
        old = {**headers, "x-tool-service-epoch": "epoch_of_before"}
        refused = await service.http.post("/tools/Count/invoke", content=body, headers=old)
        assert (refused.status_code, refused.json()["code"]) == (412, "TOOL_INTERRUPTED")
        taken = await service.http.post(
            "/tools/Count/invoke", content=body, headers={**headers, "x-tool-service-epoch": epoch}
        )
        assert taken.status_code == 200
        assert len(tool.calls) == 1


def place(key: str) -> IdempotencyScope:
    return IdempotencyScope("acme", "sess_1", "Count", key)


async def test_answers_are_kept_for_so_long_and_no_more_than_so_large() -> None:
    now = 0.0
    answers = MemoryAnswers(kept_s=10, max_bytes=10, max_places=3, clock=lambda: now)
    for key in ("a", "b", "c"):
        assert await answers.claim(place(key), "f", repeatable=False) == Known("new")
        await answers.answer(place(key), b"12345")
    # The oldest text is gone; its key still holds, unless it may run again.
    assert await answers.find(place("a")) == Known("lost")
    assert await answers.claim(place("a"), "f", repeatable=False) == Known("lost")
    assert await answers.find(place("b")) == Known("answered", b"12345")
    assert await answers.claim(place("b"), "g", repeatable=False) == Known("other_arguments")
    assert await answers.claim(place("a"), "f", repeatable=True) == Known("new")
    await answers.release(place("a"))
    now = 11.0
    assert await answers.find(place("c")) is None
    assert await answers.claim(place("c"), "f", repeatable=False) == Known("new")
