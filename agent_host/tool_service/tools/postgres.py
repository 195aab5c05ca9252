"""One read-only query on PostgreSQL, with psycopg 3.

Four things hold a query, and each is enough for most of what could go wrong: the statement's own form (`sql_text`), a
read-only transaction, the catalog (functions that the server itself calls volatile are refused, but for a few that
change nothing), and the form in which it is sent: as a subquery of a cursor, in the extended protocol, where neither a
second statement nor one that writes has a place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.raw_cursor import AsyncRawCursor, AsyncRawServerCursor

from agent_host.errors import ErrorCode
from agent_host.tool_service.pools import AsyncConnectionPool, PoolTimeout
from agent_host.tool_service.tool import ToolFault
from agent_host.tool_service.tools.sql_text import UnreadableSql, one_statement
from agent_host.tool_service.tools.tables import Table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from psycopg import AsyncConnection

    from agent_host.tool_service.tools.sql_text import Statement
    from agent_host.tool_service.tools.tables import Caps

_CONNECT_S: Final = 5
_LOCK_MS: Final = 2000
_POOL_SIZE: Final = 16
_IDLE_S: Final = 60.0
_BATCH_BYTES: Final = 8 * 1024 * 1024
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
                    if statement.verb in _AS_IT_IS:
                        return await _as_it_is(connection, statement, parameters, caps)
                    return await _as_subquery(connection, statement, parameters, caps)
                finally:
                    if not connection.closed:
                        await connection.rollback()
        except PoolTimeout:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the database cannot be reached") from None
        except psycopg.Error as error:
            raise _fault(error) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _refuse_volatile(self, connection: AsyncConnection[Any], statement: Statement) -> None:
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
    if statement.verb == "explain" and statement.words & {"analyze", "analyse"}:
        raise ToolFault(ErrorCode.PERMISSION_DENIED, "EXPLAIN ANALYZE runs the statement; EXPLAIN alone is allowed")
    return statement


async def _as_it_is(
    connection: AsyncConnection[Any], statement: Statement, parameters: Sequence[Any], caps: Caps
) -> Table:
    cursor = AsyncRawCursor(connection)
    # Binary results are had in the extended protocol alone, where a second statement has no place.
    await cursor.execute(statement.text, parameters, binary=True)
    table = Table([column.name for column in cursor.description or ()], caps)
    for row in await cursor.fetchall():
        if not table.add(row):
            break
    return table


async def _as_subquery(
    connection: AsyncConnection[Any], statement: Statement, parameters: Sequence[Any], caps: Caps
) -> Table:
    columns = await _columns(connection, statement, parameters)
    table = Table([column.name for column in columns], caps)
    chars = caps.field_chars(len(columns))
    names = [sql.Identifier(f"c{place}") for place in range(len(columns))]
    # The server cuts each field and gives it as text: no value of a gigabyte is ever sent.
    fields = sql.SQL(", ").join(sql.SQL("left({}::text, {})").format(name, sql.Literal(chars + 1)) for name in names)
    aliases = sql.SQL("({})").format(sql.SQL(", ").join(names)) if names else sql.SQL("")
    wrapped = sql.SQL("SELECT {} FROM (\n{}\n) AS q {}").format(fields, sql.SQL(statement.text), aliases)
    batch = max(1, min(_MOST_A_BATCH, _BATCH_BYTES // (4 * chars * max(1, len(columns)))))
    async with AsyncRawServerCursor(connection, "agent_host_query") as cursor:
        await cursor.execute(wrapped.as_string(connection), parameters)
        while rows := await cursor.fetchmany(batch):
            for row in rows:
                if not table.add([_value(field, column) for field, column in zip(row, columns, strict=True)]):
                    return table
            if len(rows) < batch:
                break
    return table


async def _columns(connection: AsyncConnection[Any], statement: Statement, parameters: Sequence[Any]) -> list[_Column]:
    """Names and types of what the query gives; none of its rows are made."""
    cursor = AsyncRawCursor(connection)
    await cursor.execute(f"SELECT * FROM (\n{statement.text}\n) AS q LIMIT 0", parameters, binary=True)  # noqa: S608  the model's own query
    return [_Column(column.name, column.type_code) for column in cursor.description or ()]


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


async def _reset(connection: AsyncConnection[Any]) -> None:
    """Nothing of a call is left for the next one: settings, locks, listeners, temporary tables."""
    await connection.execute("DISCARD ALL")


def _fault(error: psycopg.Error) -> ToolFault:
    """What the server said of the query. Errors without a state are of the connection, and their text names its
    host."""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return ToolFault(ErrorCode.TOOL_EXECUTION_TIMEOUT, "the query was ended: it ran for too long")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ToolFault(ErrorCode.PERMISSION_DENIED, f"the database refuses this: {error.diag.message_primary}")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return ToolFault(ErrorCode.PERMISSION_DENIED, f"only queries that read are run: {error.diag.message_primary}")
    if error.sqlstate is None or error.sqlstate.startswith(("08", "28", "57P")):
        return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the connection to the database failed")
    return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the database says: {error.diag.message_primary}")
