"""One read-only query on PostgreSQL, with psycopg 3.

Five things hold a query, and each is enough for most of what could go wrong: the statement's own form (`sql_text`), a
read-only transaction, the catalog (functions that the server itself calls volatile are refused, but for a few that
change nothing), the server's own parser, which is given the text alone before it stands in anything of ours, and the
form in which it is sent: as a subquery of a cursor, in the extended protocol, where neither a second statement nor one
that writes has a place. The server cuts fields; what it cannot cut (a plan, an error) ends the connection when it grows
beyond a limit.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import generators, pq, sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.raw_cursor import AsyncRawCursor, AsyncRawServerCursor
from psycopg.types.json import set_json_loads

from agent_host.errors import ErrorCode
from agent_host.tool_service.bounded_connection import AnswerTooLarge, BoundedConnection
from agent_host.tool_service.pools import AsyncConnectionPool, PoolTimeout
from agent_host.tool_service.tool import ToolFault
from agent_host.tool_service.tools.sql_text import UnreadableSql, one_statement
from agent_host.tool_service.tools.tables import Table
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from psycopg.pq.abc import PGresult

    from agent_host.tool_service.tools.sql_text import Statement
    from agent_host.tool_service.tools.tables import Caps

_CONNECT_S: Final = 5
_LOCK_MS: Final = 2000
_POOL_SIZE: Final = 16
_IDLE_S: Final = 60.0
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""What the fields of one batch have at most, or the one row that is larger; and what of a plan is read at most."""
_OVERHEAD_BYTES: Final = 1024 * 1024
_MOST_A_BATCH: Final = 500
_AS_SUBQUERY: Final = frozenset({"select", "with", "values", "table"})
_AS_IT_IS: Final = frozenset({"explain", "show"})
HARMLESS: Final = (
    "clock_timestamp", "gen_random_uuid", "pg_column_size", "pg_database_size", "pg_indexes_size", "pg_relation_size",
    "pg_table_size", "pg_tablespace_size", "pg_total_relation_size", "random", "statement_timestamp", "timeofday",
    "transaction_timestamp",
)  # fmt: skip
"""Functions of pg_catalog that are volatile and change nothing."""
# A name behind a dot may be a function of the value before, `(row).f`; those take one argument.
_VOLATILE: Final = """SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.provolatile = 'v' AND (p.proname = ANY($1) OR (p.proname = ANY($2) AND p.pronargs = 1))
    AND NOT (n.nspname = 'pg_catalog' AND p.proname = ANY($3)) AND NOT p.proname = ANY($4) ORDER BY 1 LIMIT 10"""
_BEGIN: Final = sql.SQL(
    "BEGIN READ ONLY; SET LOCAL statement_timeout = {time}; SET LOCAL lock_timeout = {lock};"
    " SET LOCAL idle_in_transaction_session_timeout = {time}; SET LOCAL standard_conforming_strings = on;"
    " SET LOCAL client_encoding = 'UTF8'; SET LOCAL row_security = on"
)
_SETTING: Final = "SELECT pg_catalog.current_setting($1)"
"""SHOW of one setting, in a form in which the server can cut it."""
_INTEGERS: Final = frozenset({20, 21, 23, 26})  # int8, int2, int4, oid
_FLOATS: Final = frozenset({700, 701})
_BOOLEAN: Final = 16


class _Column(NamedTuple):
    name: str
    type_code: int


class PostgresDatabase:
    """One connection of a tenant. `conninfo` gives how to connect, each time that a connection is made; `functions` are
    volatile functions that the tenant allows by name."""

    def __init__(self, conninfo: Callable[[], Awaitable[str]], functions: Sequence[str]) -> None:
        self._functions = list(functions)
        self._pool = AsyncConnectionPool(
            conninfo,
            min_size=0,
            max_size=_POOL_SIZE,
            max_idle=_IDLE_S,
            timeout=_CONNECT_S,
            open=False,
            connection_class=BoundedConnection,
            reset=_reset,
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_S, "prepare_threshold": None},
        )

    async def query(self, text: str, parameters: Sequence[Any], caps: Caps) -> Table:
        """The rows of a query. Raises ToolFault."""
        statement = _readable(text)
        try:
            await self._pool.open()
            async with self._pool.connection() as connection:
                time_ms = max(1, int(caps.timeout_s * 1000))
                await connection.execute(_BEGIN.format(time=sql.Literal(time_ms), lock=sql.Literal(_LOCK_MS)))
                try:
                    await self._refuse_volatile(connection, statement)
                    columns = await _prepared(connection, statement, parameters)
                    if statement.verb == "show" and len(columns) == 1:
                        return await _as_subquery(connection, _SETTING, columns, [columns[0].name], caps)
                    if statement.verb in _AS_IT_IS:
                        return await _as_it_is(connection, statement, parameters, caps)
                    return await _as_subquery(connection, statement.text, columns, parameters, caps)
                finally:
                    connection.limit_bytes = BoundedConnection.limit_bytes
                    if not connection.closed:
                        await connection.rollback()
        except PoolTimeout:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the database cannot be reached") from None
        except psycopg.Error as error:
            raise _fault(error) from None
        except json_text.TooDeep as error:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the plan cannot be given: {error}") from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _refuse_volatile(self, connection: BoundedConnection, statement: Statement) -> None:
        called = [name.text for name in statement.names if name.called]
        members = [name.text for name in statement.names if name.member]
        if not called and not members:
            return
        cursor = AsyncRawCursor(connection)
        await cursor.execute(_VOLATILE, [called, members, list(HARMLESS), self._functions])
        found = [row[0] for row in await cursor.fetchall()]
        if found:
            raise ToolFault(
                ErrorCode.PERMISSION_DENIED,
                f"the query calls what may have side effects: {', '.join(found)}. Only functions that the database "
                f"calls "
                "stable or immutable are allowed here",
            )


def _readable(text: str) -> Statement:
    try:
        statement = one_statement(text)
    except UnreadableSql as error:
        raise ToolFault(ErrorCode.INVALID_REQUEST, f"the query cannot be run: {error}") from None
    if statement.verb not in _AS_SUBQUERY | _AS_IT_IS:
        raise ToolFault(
            ErrorCode.PERMISSION_DENIED,
            "only queries that read are run here: SELECT, WITH, VALUES, TABLE, SHOW, and EXPLAIN of them",
        )
    if statement.verb == "explain" and statement.words & {"analyze", "analyse"} | _options(statement) & {"analyze"}:
        raise ToolFault(ErrorCode.PERMISSION_DENIED, "EXPLAIN ANALYZE runs the statement; EXPLAIN alone is allowed")
    return statement


def _options(statement: Statement) -> set[str]:
    """Names in front of what EXPLAIN explains, quoted ones among them."""
    first = takewhile(lambda name: name.quoted or name.text not in _AS_SUBQUERY, statement.names)
    return {name.text for name in first}


async def _prepared(connection: BoundedConnection, statement: Statement, parameters: Sequence[Any]) -> list[_Column]:
    """Names and types of what the statement gives, from the server, which reads it here as it stands and runs nothing:
    text that is no statement by itself, such as one that closes a parenthesis of ours, gets no further. Raises
    psycopg.Error."""
    given = Transformer(connection)
    given.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
    async with connection.lock:
        connection.pgconn.send_prepare(b"", statement.text.encode(), given.types)
        await _done(connection)
        connection.pgconn.send_describe_prepared(b"")
        found = await _done(connection)
    return [_Column((found.fname(place) or b"").decode(), found.ftype(place)) for place in range(found.nfields)]


async def _done(connection: BoundedConnection) -> PGresult:
    """The answer to what was sent. Raises psycopg.Error."""
    results: list[PGresult] = await connection.wait(generators.execute(connection.pgconn))
    result = results[-1]
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    return result


async def _as_it_is(
    connection: BoundedConnection, statement: Statement, parameters: Sequence[Any], caps: Caps
) -> Table:
    connection.limit_bytes = max(_BATCH_BYTES, caps.max_bytes) + _OVERHEAD_BYTES
    cursor = AsyncRawCursor(connection)
    set_json_loads(json_text.loads, cursor)
    # Binary results are had in the extended protocol alone, where a second statement has no place.
    await cursor.execute(statement.text, parameters, binary=True)
    table = Table([column.name for column in cursor.description or ()], caps)
    for row in await cursor.fetchall():
        if not table.add([value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row]):
            break
    return table


async def _as_subquery(
    connection: BoundedConnection,
    text: str,
    columns: Sequence[_Column],
    parameters: Sequence[Any],
    caps: Caps,
) -> Table:
    table = Table([column.name for column in columns], caps)
    chars = caps.field_chars(len(columns))
    names = [sql.Identifier(f"c{place}") for place in range(len(columns))]
    # The server cuts each field and gives it as text: no value of a gigabyte is ever sent.
    fields = sql.SQL(", ").join(sql.SQL("left({}::text, {})").format(name, sql.Literal(chars + 1)) for name in names)
    aliases = sql.SQL("({})").format(sql.SQL(", ").join(names)) if names else sql.SQL("")
    wrapped = sql.SQL("SELECT {} FROM (\n{}\n) AS q {}").format(fields, sql.SQL(text), aliases)
    row_bytes = 4 * chars * max(1, len(columns))
    batch = max(1, min(_MOST_A_BATCH, _BATCH_BYTES // row_bytes))
    connection.limit_bytes = max(_BATCH_BYTES, row_bytes) + _OVERHEAD_BYTES
    async with AsyncRawServerCursor(connection, "agent_host_query") as cursor:
        await cursor.execute(wrapped.as_string(connection), parameters)
        while rows := await cursor.fetchmany(batch):
            for row in rows:
                if not table.add([_value(field, column) for field, column in zip(row, columns, strict=True)]):
                    return table
            if len(rows) < batch:
                break
    return table


def _value(text: str | None, column: _Column) -> Any:
    """A field as JSON has it. Numbers of any length stay text, so that no digit is lost."""
    if text is None:
        return None
    if column.type_code == _BOOLEAN:
        return text == "true"
    if column.type_code in _INTEGERS:
        return int(text)
    if column.type_code in _FLOATS:
        number = float(text)
        return number if number == number and abs(number) != float("inf") else text
    return text


async def _reset(connection: BoundedConnection) -> None:
    """Nothing of a call is left for the next one: settings, locks, listeners, temporary tables."""
    await connection.execute("DISCARD ALL")


def _fault(error: psycopg.Error) -> ToolFault:
    """What the server said of the query. Errors without a state are of the connection, and their text names its
    host."""
    if isinstance(error, AnswerTooLarge):
        return ToolFault(
            ErrorCode.TOOL_EXECUTION_FAILED, "the database's answer is too large: a plan or an error holds a huge value"
        )
    if isinstance(error, psycopg.errors.QueryCanceled):
        return ToolFault(ErrorCode.TOOL_EXECUTION_TIMEOUT, "the query was ended: it ran for too long")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ToolFault(ErrorCode.PERMISSION_DENIED, f"the database refuses this: {error.diag.message_primary}")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return ToolFault(ErrorCode.PERMISSION_DENIED, f"only queries that read are run: {error.diag.message_primary}")
    if error.sqlstate is None or error.sqlstate.startswith(("08", "28", "57P")):
        return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the connection to the database failed")
    return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the database says: {error.diag.message_primary}")
