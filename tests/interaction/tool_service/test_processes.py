"""The service as processes: how it starts, drains and dies, and what several workers know of each other's calls."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import psutil  # type: ignore[import-untyped]  # it has none
import psycopg
import pytest

from agent_host.testing.services import MockServices
from agent_host.tool_service.answers import IdempotencyScope, Known
from agent_host.tool_service.postgres import PostgresAnswers
from tests.support.process import eventually as until
from tests.support.tool_service import (
    ACME,
    KEY_ENVIRONMENT,
    PATIENCE_S,
    Caller,
    caller,
    grant,
    process,
    tenants,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tool_service import Postgres

WATCHERS_TOKEN = "services-token-0123456789"
pytestmark = [pytest.mark.slow, pytest.mark.peer]


def sleeping(shop: str, answers: str | None = None) -> dict[str, Any]:
    """A tenants file with a query that can take long, and one that counts how often it ran."""
    connection = {"url": shop, "functions": ["pg_sleep"], "timeoutS": 60}
    file = tenants({"CloudDbQuery": {"connections": {"shop": connection}}})
    return file if answers is None else {**file, "service": {"answers": {"url": answers}}}


def watched(url: str) -> dict[str, str]:
    """The variables of a service whose calls are reported to `url`."""
    return {"TELEMETRY_SERVICE_URL": url, "AUDIT_SERVICE_URL": url, "AGENT_HOST_SERVICES_TOKEN": WATCHERS_TOKEN}


def query(text: str) -> dict[str, Any]:
    return {"connectionName": "shop", "query": text}


async def eventually(service: Caller, key: str, status: int) -> httpx.Response:
    """The answer about a key, once it has this status."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await service.find("CloudDbQuery", key)
            if found.status_code == status:
                return found


async def test_a_call_that_runs_ends_before_the_service_does(tmp_path: Path, shop: str) -> None:
    with process(tmp_path, sleeping(shop)) as service:
        async with caller(service.url) as client:
            call = asyncio.create_task(client.invoke("CloudDbQuery", query("SELECT pg_sleep(1), 7"), key="k"))
            await eventually(client, "k", 202)
            service.terminate()
            assert orjson.loads((await call).json()["outputText"])["rows"] == [["", 7]]
        assert service.wait() == 0
        assert service.errors() == ""


async def test_a_call_that_outlasts_the_drain_is_told_and_one_that_waits_has_not_run(
    tmp_path: Path, shop: str, database: str
) -> None:
    file = sleeping(shop, database)
    file["tenants"]["acme"]["limits"] = {"maxConcurrent": 4}
    watchers = MockServices(token=WATCHERS_TOKEN)
    with watchers.in_thread() as url, process(tmp_path, file, "--drain-s", "1", environ=watched(url)) as service:
        async with caller(service.url) as client:
            slow = query("SELECT pg_sleep(60)")
            run = [asyncio.create_task(client.invoke("CloudDbQuery", slow, key=f"k{n}")) for n in range(4)]
            for n in range(4):
                await eventually(client, f"k{n}", 202)
            waits = asyncio.create_task(client.invoke("CloudDbQuery", query("SELECT 1"), key="w"))
            again = asyncio.create_task(client.invoke("CloudDbQuery", slow, key="k0"))
            await eventually(client, "w", 202)
            service.terminate()
            for answer in await asyncio.gather(*run):
                result = answer.json()
                assert (result["status"], result["error"]["code"]) == ("failed", "TOOL_INTERRUPTED")
                assert "the service was stopped" in result["error"]["message"]
            refused = await waits
            assert (refused.status_code, refused.json()["retryable"]) == (503, True)
            assert (await again).status_code == 500  # after which a host asks, and does not send
        assert service.wait() == 0
        assert service.errors().startswith("Cancel 6 running task(s)")
        assert "Traceback" not in service.errors()
    audited = [event["payload"] for event in watchers.audit_events]
    assert sorted(payload["toolCallId"] for payload in audited) == ["k0", "k1", "k2", "k3"]
    ended = [event["payload"]["code"] for event in watchers.telemetry_events if event["eventType"] == "tool_completed"]
    assert ended == ["TOOL_INTERRUPTED"] * 4


async def test_a_service_that_was_killed_refuses_what_it_may_have_run(tmp_path: Path, shop: str) -> None:
    headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant("CloudDbQuery"), "idempotency-key": "k"}
    with process(tmp_path, sleeping(shop)) as service:
        async with caller(service.url) as client:
            epoch = (await client.http.get("/tools", headers=headers)).headers["x-tool-service-epoch"]
            call = asyncio.create_task(client.invoke("CloudDbQuery", query("SELECT pg_sleep(60)"), key="k"))
            await eventually(client, "k", 202)
            service.kill()
            with pytest.raises(httpx.TransportError):
                await call
        port = service.url.rpartition(":")[2]
    with process(tmp_path, sleeping(shop), "--port", port) as again:
        async with caller(again.url) as client:
            assert (await client.find("CloudDbQuery", "k")).status_code == 404
            client.http.headers["x-tool-service-epoch"] = epoch
            refused = await client.invoke("CloudDbQuery", query("SELECT pg_sleep(60)"), key="k")
            assert (refused.status_code, refused.json()["code"]) == (412, "TOOL_INTERRUPTED")


async def test_two_workers_answer_each_others_keys_and_know_when_one_died(
    tmp_path: Path, shop: str, database: str
) -> None:
    with process(tmp_path, sleeping(shop, database), "--workers", "2") as service:
        async with caller(service.url) as client:
            # Each client that is new may come to the other worker.
            answers = await asyncio.gather(
                *(once(service.url, query("SELECT random()"), f"k{n % 5}") for n in range(20))
            )
            assert len({answer.content for answer in answers}) == 5
            lines = (await client.http.get("/metrics")).text.splitlines()
            total = 'agent_host_tool_calls_total{code="",status="succeeded",tenant="acme",tool="CloudDbQuery"} 5.0'
            assert total in lines  # of both workers

            call = asyncio.create_task(once(service.url, query("SELECT pg_sleep(60)"), "long"))
            await eventually(client, "long", 202)
            for pid in workers_of(service.pid):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await call
        async with caller(service.url) as client:  # of the workers that took their places
            lost = await asyncio.wait_for(patiently(client, "long"), PATIENCE_S)
            assert (lost.status_code, lost.json()["code"]) == (410, "TOOL_INTERRUPTED")
            # What was answered before is still known.
            known = await client.invoke("CloudDbQuery", query("SELECT random()"), key="k1")
            assert known.content in {answer.content for answer in answers}
        service.terminate()
        assert service.wait() == 0


async def test_workers_that_die_while_the_database_is_away_serve_once_it_is_back(
    tmp_path: Path, shop: str, database: str, server: Postgres
) -> None:
    with process(tmp_path, sleeping(shop, database), "--workers", "2") as service:
        async with caller(service.url) as client:
            await status_of(service.url, 200)
            answered = await client.invoke("CloudDbQuery", query("SELECT random()"), key="k")
            server.stop("fast")  # a crash of it may lose the answer
            try:
                for _ in range(2):
                    for pid in workers_of(service.pid):
                        os.kill(pid, signal.SIGKILL)
                    await status_of(service.url, 503)
                refused = await once(service.url, query("SELECT 1"), "new")
                assert (refused.status_code, refused.json()["retryable"]) == (503, True)
                assert "x-tool-service-epoch" not in refused.headers
            finally:
                server.start()
            async with asyncio.timeout(PATIENCE_S):
                while (again := await once(service.url, query("SELECT random()"), "k")).status_code == 503:
                    await status_of(service.url, 200)
            assert (again.content, again.headers["x-tool-service-epoch"]) == (
                answered.content,
                answered.headers["x-tool-service-epoch"],
            )
        service.terminate()
        assert service.wait() == 0
        assert "Traceback" not in service.errors()


async def test_a_worker_that_cannot_start_is_tried_again_beside_those_that_serve(
    tmp_path: Path, shop: str, database: str
) -> None:
    with process(tmp_path, file := sleeping(shop, database), "--workers", "2") as service:
        await status_of(service.url, 200)
        first = workers_of(service.pid)[0]
        os.kill(first, signal.SIGSTOP)
        await status_of(service.url, 200)  # of the other one, which must not read the file any more
        (tmp_path / "tenants.json").write_text("{")
        os.kill(first, signal.SIGKILL)
        until(lambda: "is tried again" in service.errors(), "a start that failed")
        await status_of(service.url, 200)
        (tmp_path / "tenants.json").write_bytes(orjson.dumps(file))
        until(lambda: len(workers_of(service.pid)) == 2, "the worker's second life")
        service.terminate()
        assert service.wait() == 0
        assert "Traceback" not in service.errors()


async def status_of(url: str, wanted: int) -> None:
    """Wait until every worker that answers `/readyz` says this."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await asyncio.gather(*(ready(url) for _ in range(8)))
            if set(found) == {wanted}:
                return


async def ready(url: str) -> int:
    async with caller(url) as client:
        try:
            return (await client.http.get("/readyz")).status_code
        except httpx.TransportError:
            return 0


async def once(url: str, arguments: dict[str, Any], key: str) -> httpx.Response:
    async with caller(url) as client:
        return await client.invoke("CloudDbQuery", arguments, key=key)


async def patiently(client: Caller, key: str) -> httpx.Response:
    """As `find`, from a service whose workers are just being started."""
    while True:
        try:
            found = await client.find("CloudDbQuery", key)
        except httpx.TransportError:
            continue
        if found.status_code != 202:
            return found


def workers_of(pid: int) -> list[int]:
    """The processes that a service has started to take requests."""
    children = psutil.Process(pid).children()
    found = [child.pid for child in children if any("spawn_main" in word for word in child.cmdline())]
    assert found
    return found


PLACE = IdempotencyScope("acme", "sess_1", "Tool", "k")


async def test_answers_in_a_database(database: str) -> None:
    one, two = await PostgresAnswers.open(database), await PostgresAnswers.open(database)
    try:
        assert one.epoch == two.epoch
        assert await one.claim(PLACE, "f", repeatable=False) == Known("new")
        assert await two.claim(PLACE, "f", repeatable=False) == Known("running")
        assert await two.claim(PLACE, "g", repeatable=False) == Known("other_arguments")
        waiting = asyncio.create_task(two.wait(PLACE, PATIENCE_S))
        await one.answer(PLACE, b"done")
        assert await waiting == Known("answered", b"done")
        assert await two.claim(PLACE, "f", repeatable=True) == Known("answered", b"done")
        other = PLACE._replace(key="other")
        assert await one.claim(other, "f", repeatable=False) == Known("new")
        await one.release(other)
        assert await two.find(other) is None
    finally:
        await one.aclose()
        await two.aclose()


async def test_a_call_whose_worker_is_gone_is_lost_and_a_repeatable_one_is_new_again(database: str) -> None:
    one, two = await PostgresAnswers.open(database), await PostgresAnswers.open(database)
    try:
        await one.claim(PLACE, "f", repeatable=False)
        await one.aclose()
        assert await two.wait(PLACE, PATIENCE_S) == Known("lost")
        assert await two.claim(PLACE, "f", repeatable=False) == Known("lost")
        assert await two.claim(PLACE, "f", repeatable=True) == Known("new")
        assert await two.find(PLACE) == Known("running")
    finally:
        await two.aclose()


async def test_a_worker_whose_connection_was_cut_goes_on_under_another_number(database: str) -> None:
    answers = await PostgresAnswers.open(database)
    try:
        await answers.claim(PLACE, "f", repeatable=False)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
            )
        assert await answers.wait(PLACE, PATIENCE_S) == Known("lost")
        # What is new is its own again; and an answer that comes late is better than none.
        other = PLACE._replace(key="other")
        assert await answers.claim(other, "f", repeatable=False) == Known("new")
        assert await answers.find(other) == Known("running")
        assert await answers.find(PLACE) == Known("lost")
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(DISTINCT worker) FROM agent_host_invocations").fetchone() == (2,)
    finally:
        await answers.aclose()


@pytest.mark.parametrize(
    ("file", "options", "environ", "said"),
    [
        (tenants({}), (), {"AGENT_HOST_GRANT_KEY": ""}, "set AGENT_HOST_GRANT_KEY to the key of capability grants"),
        (tenants({}), (), {"AGENT_HOST_GRANT_KEY": "xyz"}, "AGENT_HOST_GRANT_KEY must be hexadecimal"),
        (tenants({}), ("--workers", "2"), {}, "several workers keep the answers of calls in PostgreSQL"),
        (tenants({"Nope": {}}), (), {}, "there is no such tool; there are CloudDbQuery, ObjectRead, VaultRead"),
        (tenants({}), ("--host", "192.0.2.1"), {}, "cannot listen on 192.0.2.1:0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, file: dict[str, Any], options: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    path = tmp_path / "tenants.json"
    path.write_bytes(orjson.dumps(file))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agent_host", "tool-service", "--tenants", str(path), *options],
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), **KEY_ENVIRONMENT, **environ},
        capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_database_of_answers_that_is_away_is_told_without_its_url(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    away = "postgresql://user:hunter2@127.0.0.1:9/x"
    path.write_bytes(orjson.dumps({**tenants({}), "service": {"answers": {"url": away}}}))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agent_host", "tool-service", "--tenants", str(path)],
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), **KEY_ENVIRONMENT},
        capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the database of service.answers cannot be used" in done.stderr
    assert "hunter2" not in done.stderr
    assert "127.0.0.1" not in done.stderr
