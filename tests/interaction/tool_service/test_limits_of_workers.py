"""A tenant's calls at once, counted in PostgreSQL over several services."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from agent_host.tool_service.postgres import PostgresSlots
from tests.support.tool_service import PATIENCE_S, FunctionTool, served, tenants

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.tool_service.tool import Call
    from tests.support.tool_service import Caller

pytestmark = [pytest.mark.slow, pytest.mark.peer]
LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"


class Busy:
    """A tool that counts how many of its calls run, and goes on once it is released. `full` is set when as many run as
    it is told."""

    def __init__(self, full_at: int = 1) -> None:
        self.running = self.most = 0
        self.full, self.released = asyncio.Event(), asyncio.Event()
        self._full_at = full_at

    async def __call__(self, _: Call) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self._full_at:
            self.full.set()
        await self.released.wait()
        await asyncio.sleep(0.01)
        self.running -= 1
        return "done"


async def two_services(
    stack: AsyncExitStack, folder: Path, database: str, busy: Busy, **limits: int
) -> tuple[Caller, Caller]:
    file = {**tenants({"Wait": {}}, limits=limits), "service": {"answers": {"url": database}}}
    callers = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        callers.append(await stack.enter_async_context(served(folder / name, file, FunctionTool("Wait", busy))))
    stack.callback(busy.released.set)  # else a service would wait for its calls
    one, two = callers
    return one, two


async def test_a_tenant_runs_as_many_calls_over_all_services_as_it_may(tmp_path: Path, database: str) -> None:
    busy = Busy(3)
    async with AsyncExitStack() as stack:
        one, two = await two_services(stack, tmp_path, database, busy, maxConcurrent=3, maxQueued=50)
        # With keys and without.
        calls = [
            asyncio.create_task(service.invoke("Wait", key=f"k{n}" if n % 2 else None))
            for n in range(20)
            for service in (one, two)
        ]
        await asyncio.wait_for(busy.full.wait(), PATIENCE_S)
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(LOCKS).fetchone() == (3,)
        busy.released.set()
        answers = await asyncio.gather(*calls)
        assert {answer.json()["status"] for answer in answers} == {"succeeded"}
        assert busy.most == 3
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(LOCKS).fetchone() == (0,)


async def test_a_service_that_is_full_elsewhere_says_so(tmp_path: Path, database: str) -> None:
    busy = Busy()
    async with AsyncExitStack() as stack:
        one, two = await two_services(stack, tmp_path, database, busy, maxConcurrent=1, maxQueued=0)
        first = asyncio.create_task(one.invoke("Wait", key="k1"))
        await asyncio.wait_for(busy.full.wait(), PATIENCE_S)
        refused = await two.invoke("Wait", key="k2")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "1 run at once" in refused.json()["message"]
        assert (await two.find("Wait", "k2")).status_code == 404
        busy.released.set()
        assert (await first).status_code == 200
        assert (await two.invoke("Wait", key="k2")).json()["outputText"] == "done"


async def test_slots_of_a_connection_that_was_cut_are_free(database: str) -> None:
    one, two = PostgresSlots(database), PostgresSlots(database)
    try:
        slot = await one.take("acme", 1)
        assert slot is not None
        assert await two.take("acme", 1) is None
        assert await one.take("acme", 1) is None
        assert await two.take("other", 1) is not None
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
            )
        assert await one.take("third", 1) is not None  # which takes a new connection
        anew = await one.take("acme", 1)
        assert anew is not None
        assert anew.number == slot.number
        await one.give(slot)  # of the connection that was cut, and not the new one's
        assert await two.take("acme", 1) is None
        await one.give(anew)
        assert await two.take("acme", 1) is not None
    finally:
        await one.aclose()
        await two.aclose()


async def test_without_the_database_no_call_runs(tmp_path: Path, database: str, server: Any) -> None:
    busy = Busy()
    busy.released.set()
    async with AsyncExitStack() as stack:
        one, _ = await two_services(stack, tmp_path, database, busy, maxConcurrent=1, maxQueued=0)
        assert (await one.invoke("Wait")).status_code == 200
        server.stop()
        try:
            refused = await one.invoke("Wait")
        finally:
            server.start()
        assert (refused.status_code, refused.json()["code"]) == (503, "INTERNAL_ERROR")
        assert busy.most == 1
        assert (await one.invoke("Wait")).json()["status"] == "succeeded"
