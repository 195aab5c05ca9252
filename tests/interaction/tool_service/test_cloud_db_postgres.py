"""`CloudDbQuery` on a real PostgreSQL, as a superuser: whatever is refused here, the tool itself has refused."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
import psycopg
import pytest
import trustme

from agent_host.tool_service.postgres_query import PostgresDatabase
from agent_host.tool_service.tool import Caps
from tests.support.process import eventually
from tests.support.tool_service import Caller, served, tenants

if TYPE_CHECKING:
    from tests.support.tool_service import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.peer]


def connections(shop: str, **more: Any) -> dict[str, Any]:
    return {"CloudDbQuery": {"connections": {"shop": {"url": shop, **more}}}}


async def ask(service: Caller, query: str, *parameters: Any) -> dict[str, Any]:
    """The ToolResult of a query."""
    arguments: dict[str, Any] = {"connectionName": "shop", "query": query}
    if parameters:
        arguments["parameters"] = list(parameters)
    answer = await service.invoke("CloudDbQuery", arguments)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def table(result: dict[str, Any]) -> dict[str, Any]:
    assert result["status"] == "succeeded", result.get("error")
    found: dict[str, Any] = orjson.loads(result["outputText"])
    return found


async def test_a_query_gives_columns_and_rows(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        counted = table(await ask(service, "SELECT COUNT(*) FROM orders WHERE status = 'pending'"))
        assert counted == {"columns": ["count"], "rows": [[142]], "rowCount": 1, "truncated": False}
        query = "SELECT id, status, amount, paid, weight, NULL, id AS id FROM orders WHERE id = $1"
        typed = table(await ask(service, query, 3))
        assert typed["columns"] == ["id", "status", "amount", "paid", "weight", "?column?", "id"]
        assert typed["rows"] == [[3, "pending", "3.30", True, 0.75, None, 3]]


READS: list[tuple[str, list[list[Any]]]] = [
    ("VALUES (1), (2)", [[1], [2]]),
    ("TABLE orders LIMIT 0", []),
    ("WITH x AS (SELECT 1 AS a) SELECT a FROM x -- a comment", [[1]]),
    ("(SELECT 1) UNION (SELECT 2) ORDER BY 1 DESC;", [[2], [1]]),
    ("SELECT 'a;b', $$c;d$$, E'it\\'s', \"id\" FROM orders WHERE id = 1", [["a;b", "c;d", "it's", 1]]),
    ("SELECT /* a /* nested */ comment */ 1", [[1]]),
    ("SHOW transaction_read_only", [["on"]]),
    ("SELECT '100%'", [["100%"]]),
    ("SELECT random() IS NOT NULL, gen_random_uuid() IS NOT NULL", [[True, True]]),
    ("SELECT 'NaN'::float8, 9007199254740993", [["NaN", 9007199254740993]]),
    ("SELECT pg_catalog.lower('A'), count(*) FILTER (WHERE paid) OVER () FROM orders LIMIT 1", [["a", 94]]),
]


async def test_queries_that_read_are_run(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        for query, rows in READS:
            assert table(await ask(service, query))["rows"] == rows, query


async def test_explain_says_a_plan(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        plan = table(await ask(service, "EXPLAIN SELECT * FROM orders"))
        assert "Seq Scan on orders" in plan["rows"][0][0]


WRITES = [
    "INSERT INTO orders VALUES (1000)",
    "UPDATE orders SET status = 'x'",
    "DELETE FROM orders",
    "TRUNCATE orders",
    "DROP TABLE orders",
    "CREATE TABLE t (a int)",
    "CREATE TEMP TABLE t (a int)",
    "SELECT * INTO t FROM orders",
    "SELECT * FROM orders FOR UPDATE",
    "WITH x AS (DELETE FROM orders RETURNING id) SELECT * FROM x",
    "WITH x AS (INSERT INTO orders VALUES (1000) RETURNING id) SELECT * FROM x",
    "MERGE INTO orders o USING orders p ON o.id = p.id WHEN MATCHED THEN DELETE",
    "COPY orders TO '/tmp/agent-host-copied'",
    "COPY orders TO PROGRAM 'touch /tmp/agent-host-copied'",
    "COPY (SELECT 1) TO STDOUT",
    "COPY orders FROM STDIN",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "EXPLAIN (ANALYZE) SELECT touch()",
    "EXPLAIN (VERBOSE, ANALYZE true) UPDATE orders SET status = 'x'",
    'EXPLAIN ("analyze") SELECT count(*) FROM orders',
    "explain analyse select 1",
    "SET transaction_read_only = off",
    "RESET ALL",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "LISTEN x",
    "NOTIFY x",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "LOCK TABLE orders",
    "VACUUM",
    "DO $$ BEGIN PERFORM touch(); END $$",
    "CALL touch()",
    "GRANT ALL ON orders TO public",
    "SELECT 1; DELETE FROM orders",
    "SELECT 1; SELECT 2",
    "SELECT 1) AS q; DELETE FROM orders; SELECT * FROM (SELECT 1",
    "SELECT 1 /* ; */; DELETE FROM orders",
    "",
    ";",
    "-- nothing",
]
SIDE_EFFECTS = [
    "SELECT touch()",
    "SELECT public.touch()",
    'SELECT "touch"()',
    "SELECT TOUCH /* here */ ()",
    'SELECT "Odd Name"()',
    "SELECT (o).touched FROM orders o",
    "SELECT o.touched FROM orders o",
    "SELECT * FROM orders WHERE touch() = 1",
    "SELECT * FROM touch()",
    "SELECT * FROM ROWS FROM (touch()) r",
    "EXPLAIN SELECT touch()",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 5)",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_try_advisory_lock_shared(1, 2)",
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_sleep(0)",
    "SELECT pg_terminate_backend(0)",
    "SELECT pg_cancel_backend(0)",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_switch_wal()",
    "SELECT pg_notify('a', 'b')",
    "SELECT set_config('statement_timeout', '0', false)",
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT pg_read_binary_file('postgresql.conf')",
    "SELECT pg_ls_dir('.')",
    "SELECT * FROM pg_stat_file('postgresql.conf')",
    "SELECT lo_create(0)",
    "SELECT lo_import('/etc/hostname')",
    "SELECT lo_export(1, '/tmp/agent-host-exported')",
    "SELECT lo_get(1)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_unlink(1)",
    "SELECT query_to_xml('SELECT touch()', true, true, '')",
    "SELECT ts_stat('SELECT touch()')",
    "SELECT pg_stat_reset()",
    "SELECT 1 WHERE 1=1or pg_sleep(0) IS NULL",
    'SELECT U&"t\\006fuch"()',
    "SELECT 1e'\\' , touch() , '",
]


async def test_what_writes_or_has_side_effects_is_refused_and_changes_nothing(tmp_path: Path, shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        async with served(tmp_path, tenants(connections(shop))) as service:
            for query in WRITES + SIDE_EFFECTS:
                before = state_of(connection)
                result = await ask(service, query or " ")
                assert result["status"] == "failed", (query, result)
                if query in SIDE_EFFECTS:
                    assert result["error"]["code"] in ("PERMISSION_DENIED", "INVALID_REQUEST"), (query, result)
                # The next call finds a connection as new.
                assert table(await ask(service, "SHOW transaction_read_only"))["rows"] == [["on"]], query
                assert state_of(connection) == before, query


def state_of(connection: psycopg.Connection[Any]) -> list[Any]:
    queries = (
        "SELECT count(*), md5(string_agg(o::text, ',' ORDER BY id)) FROM orders o",
        "SELECT last_value, is_called FROM numbers",
        "SELECT count(*) FROM pg_largeobject_metadata",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace",
    )
    return [connection.execute(query).fetchone() for query in queries]


NO_STATEMENTS = [
    "SELECT 1) AS q(c0) UNION ALL SELECT repeat('x', 1000000000) FROM (SELECT 1",
    "SELECT 1) AS a, LATERAL (SELECT repeat('x', 1000000000)",
    "SELECT 1) --",
    "SELECT 1)\n--\n",
    "SELECT 1 ) UNION (SELECT 2",
    "SELECT 1) /* ( */ AS q, (SELECT 2",
    "SELECT $$($$) AS q, (SELECT 2",
    "SELECT (1",
    "VALUES (1)) AS q(c0), (VALUES (2)",
    "TABLE orders) AS q, (SELECT 1",
    "WITH x AS (SELECT 1) SELECT * FROM x) AS q, (SELECT 2",
    "SELECT 1) AS q WHERE touched IS NULL OR EXISTS (SELECT 1",
    "SELECT 1 LIMIT 1) AS q OFFSET (0",
    "EXPLAIN SELECT 1) --",
]


async def test_text_that_is_no_statement_by_itself_is_no_part_of_one(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        for query in NO_STATEMENTS:
            result = await ask(service, query)
            assert result["error"]["code"] == "TOOL_EXECUTION_FAILED", (query, result)
            assert "syntax error" in result["error"]["message"], (query, result)
        brackets = 'SELECT $a$)$a$, E\'\\\')\', ")" /* ) */ FROM (SELECT 1 AS ")") z -- )'
        assert table(await ask(service, brackets))["rows"] == [[")", "')", 1]]


CUT = [
    "SELECT repeat($1, 1000000000)",
    "SHOW shop.huge",
    "SELECT to_json(repeat('x', 60000000))",
    "SELECT ARRAY[repeat('x', 60000000)]",
    "SELECT repeat('x', 60000000)::bytea",
    "SELECT repeat('x', 1000000) FROM generate_series(1, 2000)",
]
TOO_LARGE = [
    "EXPLAIN (VERBOSE) SELECT repeat('x', 60000000)",
    "EXPLAIN (VERBOSE, FORMAT JSON) SELECT repeat('x', 60000000)",
    "EXPLAIN SELECT * FROM orders WHERE status = repeat('x', 60000000)",
    "SELECT repeat('x', 60000000)::int",
    "SELECT repeat('x', 60000000)::date FROM orders",
    "SELECT talks()",
]


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak of memory is read there")
@pytest.mark.parametrize("way", ["tcp", "tls", "unix"])
async def test_no_answer_takes_memory(tmp_path: Path, server: Postgres, shop: str, way: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(TALKS)
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE shop SET shop.huge = %L', repeat('s', 50000000)); END $$"
        )
    async with served(tmp_path, tenants(connections(await reached_by(way, server, shop), timeoutS=25))) as service:
        table(await ask(service, "SELECT 1"))
        for query in CUT + TOO_LARGE if way == "tcp" else CUT[1:] + TOO_LARGE[2:]:
            before = memory_now_mb()
            result = await ask(service, query, *(["x"] if "$1" in query else []))
            assert memory_mb("VmHWM") - before < 50, query
            if query in CUT:
                assert "… [cut]" in result["outputText"], (query, result)
            else:
                assert "too large" in result["error"]["message"], (query, result)
        assert table(await ask(service, "SELECT 1"))["rows"] == [[1]]


TALKS = """CREATE OR REPLACE FUNCTION talks() RETURNS int LANGUAGE plpgsql STABLE AS
    $$ BEGIN FOR i IN 1..100 LOOP RAISE NOTICE '%', repeat('n', 1000000); END LOOP; RETURN 1; END $$"""


def memory_now_mb() -> int:
    """What this process has now; its peak counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


def memory_mb(name: str) -> int:
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split(f"{name}:")[1].split()[0]) // 1024


async def reached_by(way: str, server: Postgres, shop: str) -> str:
    """The URL of `shop` over TCP, with TLS, or over the server's own socket."""
    if way == "tls":
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        files = {"server.key": issued.private_key_pem, "server.crt": issued.cert_chain_pems[0]}
        for name, blob in files.items():
            path = server.folder / "data" / name
            path.write_bytes(blob.bytes())
            path.chmod(0o600)
            owner = (server.folder / "data").stat()
            os.chown(path, owner.st_uid, owner.st_gid)
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET ssl = on")
            connection.execute("SELECT pg_reload_conf()")
        return f"{shop}?sslmode=require"
    if way == "unix":
        return f"{shop}?host={quote(str(server.folder), safe='')}"
    return shop


async def test_a_query_that_nobody_waits_for_any_more_ends_on_the_server(shop: str) -> None:
    async def conninfo() -> str:
        return shop

    database = PostgresDatabase(conninfo, ["pg_sleep"])
    try:
        asked = asyncio.create_task(database.query("SELECT pg_sleep(50)", [], Caps()))
        with psycopg.connect(shop, autocommit=True) as connection:
            await asyncio.to_thread(eventually, lambda: running(connection) == 1, "the query runs")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await asyncio.to_thread(eventually, lambda: running(connection) == 0, "the query is ended")
        assert (await database.query("SELECT 1", [], Caps())).rows == [[1]]
    finally:
        await database.aclose()


def running(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").fetchone()
    return int(row[0]) if row else 0


async def test_a_value_is_never_code(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        hostile = "x'; DELETE FROM orders; --"
        assert table(await ask(service, "SELECT $1::text AS t", hostile))["rows"] == [[hostile]]


async def test_rows_bytes_and_fields_have_caps(tmp_path: Path, shop: str) -> None:
    caps = {"maxRows": 100, "maxBytes": 4096, "maxFieldChars": 64}
    async with served(tmp_path, tenants(connections(shop, **caps))) as service:
        many = table(await ask(service, "SELECT 1 FROM generate_series(1, 1000000)"))
        assert (many["rowCount"], many["truncated"]) == (100, True)
        exactly = table(await ask(service, "SELECT 1 FROM generate_series(1, 100)"))
        assert (exactly["rowCount"], exactly["truncated"]) == (100, False)
        long = table(await ask(service, "SELECT repeat('x', 60000000)"))
        assert long["rows"] == [["x" * 64 + "… [cut]"]]
        wide = table(await ask(service, "SELECT repeat('y', 60) FROM generate_series(1, 90)"))
        assert wide["truncated"]
        assert wide["rowCount"] < 90


async def test_an_answer_comes_whole_where_sockets_have_little_room(
    tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = socket.socketpair

    def small(*args: Any) -> tuple[socket.socket, socket.socket]:
        both = pair(*args)
        for one in both:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return both

    monkeypatch.setattr(socket, "socketpair", small)
    async with served(tmp_path, tenants(connections(shop, maxFieldChars=100_000))) as service:
        rows = table(await ask(service, "SELECT i, repeat('x', 30000) FROM generate_series(1, 3) i"))["rows"]
        assert rows == [[number, "x" * 30_000] for number in range(1, 4)]


async def test_a_query_that_runs_too_long_is_ended_on_the_server(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop, timeoutS=0.2, functions=["pg_sleep"]))) as service:
        result = await ask(service, "SELECT pg_sleep(60)")
        assert result["error"]["code"] == "TOOL_EXECUTION_TIMEOUT"
        with psycopg.connect(shop) as connection:
            active = "state = 'active' AND query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
            row = connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {active}").fetchone()
        assert row == (0,)


async def test_errors_tell_the_query_and_nothing_of_the_connection(tmp_path: Path, shop: str) -> None:
    async with served(tmp_path, tenants(connections(shop))) as service:
        wrong = await ask(service, "SELECT nonsense FROM orders")
        assert wrong["error"] == {
            "code": "TOOL_EXECUTION_FAILED",
            "message": 'the database reports: column "nonsense" does not exist',
        }
    nowhere = "postgresql://somebody:hunter2secret@127.0.0.1:9/hidden"
    async with served(tmp_path, tenants(connections(nowhere))) as service:
        away = await ask(service, "SELECT 1")
        assert away["error"] == {"code": "TOOL_EXECUTION_FAILED", "message": "the database cannot be reached"}


async def test_many_queries_at_once(tmp_path: Path, shop: str) -> None:
    file = tenants(connections(shop), limits={"maxConcurrent": 64, "maxQueued": 1000})
    async with served(tmp_path, file) as service:
        found = await asyncio.gather(*(ask(service, "SELECT $1::int * 2", n) for n in range(200)))
        assert [table(result)["rows"] for result in found] == [[[2 * n]] for n in range(200)]
