"""One read-only query on PostgreSQL, with psycopg 3.

Five measures restrict a query, and each alone prevents most abuse: the check of the statement's form (`one_statement`),
a read-only transaction, the catalog (functions that the server declares volatile are refused, except a few that change
nothing), the server's own parser, which gets the text alone before it is embedded in a statement of ours, and the way
the query is sent: as a subquery of a cursor in the extended protocol, which allows neither a second statement nor one
that writes. The server truncates fields; if data that it cannot truncate (a plan, an error) exceeds a limit, the
connection is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import generators, pq, sql, waiting
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.raw_cursor import AsyncRawCursor, AsyncRawServerCursor
from psycopg.types.json import set_json_loads

from agent_host.errors import ErrorCode
from agent_host.tool_service.postgres import AsyncConnectionPool, PoolTimeout
from agent_host.tool_service.tool import Table, ToolFault
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence

    from psycopg.pq.abc import PGresult

    from agent_host.tool_service.tool import Caps

_CONNECT_S: Final = 5
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Limit for the fields of one batch, unless a single row is larger, and for the text of a plan."""
_OVERHEAD_BYTES: Final = 1024 * 1024
_MOST_A_BATCH: Final = 500
_AS_SUBQUERY: Final = frozenset({"select", "with", "values", "table"})
_AS_IT_IS: Final = frozenset({"explain", "show"})
HARMLESS: Final = (
    "clock_timestamp", "gen_random_uuid", "pg_column_size", "pg_database_size", "pg_indexes_size", "pg_relation_size",
    "pg_table_size", "pg_tablespace_size", "pg_total_relation_size", "random", "statement_timestamp", "timeofday",
    "transaction_timestamp",
)  # fmt: skip
"""Volatile functions of pg_catalog that change nothing."""
# A name after a dot may be a function applied to the value before it, `(row).f`; such functions take one argument.
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
"""SHOW of one setting, in a form that the server can truncate."""
_INTEGERS: Final = frozenset({20, 21, 23, 26})  # int8, int2, int4, oid
_FLOATS: Final = frozenset({700, 701})
_BOOLEAN: Final = 16


class _Column(NamedTuple):
    name: str
    type_code: int


class PostgresDatabase:
    """One configured connection of a tenant. `conninfo` returns the connection string for each new connection;
    `functions` are volatile functions that the tenant allows by name."""

    def __init__(self, conninfo: Callable[[], Awaitable[str]], functions: Sequence[str]) -> None:
        self._functions = list(functions)
        self._pool = AsyncConnectionPool(
            conninfo,
            min_size=0,
            max_size=16,
            max_idle=60.0,
            timeout=_CONNECT_S,
            open=False,
            connection_class=BoundedConnection,
            reset=_reset,
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_S, "prepare_threshold": None},
        )

    async def query(self, text: str, parameters: Sequence[Any], caps: Caps) -> Table:
        """Run a query and return its rows. Raises ToolFault."""
        statement = _readable(text)
        try:
            await self._pool.open()
            async with self._pool.connection() as connection:
                time_ms = max(1, int(caps.timeout_s * 1000))
                await connection.execute(_BEGIN.format(time=sql.Literal(time_ms), lock=sql.Literal(2000)))
                try:
                    await self._refuse_volatile(connection, statement)
                    columns = await _prepare(connection, statement, parameters)
                    if statement.verb == "show" and len(columns) == 1:
                        return await _run_as_subquery(connection, _SETTING, columns, [columns[0].name], caps)
                    if statement.verb in _AS_IT_IS:
                        return await _run_plain(connection, statement, parameters, caps)
                    return await _run_as_subquery(connection, statement.text, columns, parameters, caps)
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
            message = (
                f"the query calls functions that may have side effects: {', '.join(found)}. Only functions that the "
                "database calls stable or immutable are allowed here"
            )
            raise ToolFault(ErrorCode.PERMISSION_DENIED, message)


def _readable(text: str) -> Statement:
    try:
        statement = one_statement(text)
    except UnreadableSql as error:
        raise ToolFault(ErrorCode.INVALID_REQUEST, f"the query cannot be run: {error}") from None
    if statement.verb not in _AS_SUBQUERY | _AS_IT_IS:
        message = "only queries that read are run here: SELECT, WITH, VALUES, TABLE, SHOW, and EXPLAIN of them"
        raise ToolFault(ErrorCode.PERMISSION_DENIED, message)
    if statement.verb == "explain":
        # Names before the explained statement, including quoted ones.
        first = takewhile(lambda name: name.quoted or name.text not in _AS_SUBQUERY, statement.names)
        if statement.words & {"analyze", "analyse"} or "analyze" in {name.text for name in first}:
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "EXPLAIN ANALYZE runs the statement; EXPLAIN alone is allowed")
    return statement


async def _prepare(connection: BoundedConnection, statement: Statement, parameters: Sequence[Any]) -> list[_Column]:
    """Return the names and types of the statement's columns. The server parses the text unchanged and runs nothing, so
    text that would close one of our parentheses fails here. Raises psycopg.Error."""
    given = Transformer(connection)
    given.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
    async with connection.lock:
        connection.pgconn.send_prepare(b"", statement.text.encode(), given.types)
        await _done(connection)
        connection.pgconn.send_describe_prepared(b"")
        found = await _done(connection)
    return [_Column((found.fname(place) or b"").decode(), found.ftype(place)) for place in range(found.nfields)]


async def _done(connection: BoundedConnection) -> PGresult:
    """Return the server's last result for the command that was sent. Raises psycopg.Error."""
    results: list[PGresult] = await connection.wait(generators.execute(connection.pgconn))
    result = results[-1]
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    return result


async def _run_plain(
    connection: BoundedConnection, statement: Statement, parameters: Sequence[Any], caps: Caps
) -> Table:
    connection.limit_bytes = max(_BATCH_BYTES, caps.max_bytes) + _OVERHEAD_BYTES
    cursor = AsyncRawCursor(connection)
    set_json_loads(json_text.loads, cursor)
    # Binary results need the extended protocol, which does not allow a second statement.
    await cursor.execute(statement.text, parameters, binary=True)
    table = Table([column.name for column in cursor.description or ()], caps)
    for row in await cursor.fetchall():
        if not table.add([value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row]):
            break
    return table


async def _run_as_subquery(
    connection: BoundedConnection, text: str, columns: Sequence[_Column], parameters: Sequence[Any], caps: Caps
) -> Table:
    table = Table([column.name for column in columns], caps)
    chars = caps.field_chars(len(columns))
    names = [sql.Identifier(f"c{place}") for place in range(len(columns))]
    # The server truncates each field and sends it as text, so a value of a gigabyte is never sent.
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
    """Convert a field to its JSON value. Arbitrary-precision numbers stay text, so that no digit is lost."""
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
    """Discard settings, locks, listeners and temporary tables of a call before the next one."""
    await connection.execute("DISCARD ALL")


def _fault(error: psycopg.Error) -> ToolFault:
    """Return the fault for a database error. Errors without an SQLSTATE come from the connection; their text, which
    names the host, is not used."""
    code, detail = ErrorCode.TOOL_EXECUTION_FAILED, error.diag.message_primary
    if isinstance(error, RowsTooLarge):
        message = "the database's answer is too large: a plan or an error contains a huge value"
    elif isinstance(error, psycopg.errors.QueryCanceled):
        code, message = ErrorCode.TOOL_EXECUTION_TIMEOUT, "the query was ended: it ran for too long"
    elif isinstance(error, psycopg.errors.InsufficientPrivilege):
        code, message = ErrorCode.PERMISSION_DENIED, f"the database refuses this: {detail}"
    elif isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        code, message = ErrorCode.PERMISSION_DENIED, f"only queries that read are run: {detail}"
    elif error.sqlstate is None or error.sqlstate.startswith(("08", "28", "57P")):
        message = "the connection to the database failed"
    else:
        message = f"the database reports: {detail}"
    return ToolFault(code, message)


# Splits SQL into tokens as PostgreSQL's own scanner does. Pure functions without a database.
#
# The functions that a statement calls are then looked up in the server's catalog (`_refuse_volatile`). So a scanner is
# enough, as long as it never treats as a text or a comment what the server treats as code: if the two could differ, the
# statement is refused.

_MAX_NAME_BYTES: Final = 63
"""PostgreSQL truncates names to this length."""
_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
    | (?P<parameter>\$[0-9]+)
    | (?P<text>(?P<tag>\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$)(?s:.*?)(?P=tag)
        | [eE]'(?:[^'\\]|''|\\(?s:.))*' | [bBxXnN]?'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<dollars>\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$)
    | (?P<quote>[eEbBxXnN]?'|")
    | (?P<escapes>[uU]&['"])
    | (?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
    | (?P<number>0[xXoObB][0-9A-Fa-f_]+|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
    | (?P<sign>(?s:.))
    """,
    re.VERBOSE,
)
_UNREADABLE: Final = {
    "dollars": "a text in dollar quotes does not end",
    "quote": "a quote does not end",
    "escapes": "texts and names with U& escapes are not taken",
}
_GLUED: Final = re.compile(r"[A-Za-z0-9_$'\"\u0080-\U0010ffff]")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


class UnreadableSql(Exception):
    """The text cannot be split with certainty; `str()` is the reason."""


class SqlName(NamedTuple):
    """A name in a statement, as the catalog would store it. `called`: an opening parenthesis follows. `member`: a dot
    precedes it, so it may be a function applied to the value before it."""

    text: str
    called: bool
    member: bool
    quoted: bool


class Statement(NamedTuple):
    """One statement: its text without semicolons at the end, and the names in it."""

    text: str
    names: tuple[SqlName, ...]

    @property
    def verb(self) -> str:
        """The first word in lower case; empty if it is quoted or there is none."""
        return self.names[0].text if self.names and not self.names[0].quoted else ""

    @property
    def words(self) -> frozenset[str]:
        """Unquoted names, including all keywords."""
        return frozenset(name.text for name in self.names if not name.quoted)


class _Token(NamedTuple):
    kind: str
    text: str
    end: int


def one_statement(sql: str) -> Statement:
    """Return the only statement in `sql`. Raises UnreadableSql if there is none, if there are several, or if it cannot
    be split."""
    if "\0" in sql:
        raise UnreadableSql("the statement contains a NUL character")
    tokens = list(_tokens(sql))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise UnreadableSql("the statement is empty")
    if any(token.text == ";" for token in tokens if token.kind == "sign"):
        raise UnreadableSql("one statement at a time: there is a semicolon in the middle")
    names = []
    for place, token in enumerate(tokens):
        if token.kind in ("word", "quoted"):
            after = tokens[place + 1].text if place + 1 < len(tokens) and tokens[place + 1].kind == "sign" else ""
            before = tokens[place - 1].text if place and tokens[place - 1].kind == "sign" else ""
            names.append(SqlName(_fold_name(token), after == "(", before == ".", token.kind == "quoted"))
    return Statement(sql[: tokens[-1].end], tuple(names))


def _fold_name(token: _Token) -> str:
    """Return the name as PostgreSQL stores it: in lower case unless quoted, truncated to 63 bytes. As in a UTF-8
    database, only ASCII letters are lowered."""
    text = token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text
    if token.kind != "quoted":
        text = "".join(char.lower() if char.isascii() else char for char in text)
    return text.encode()[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def _tokens(sql: str) -> Iterator[_Token]:
    place = 0
    while place < len(sql):
        if sql.startswith("/*", place):
            place = _end_of_comment(sql, place)
            continue
        found = _TOKEN.match(sql, place)
        if found is None or found.lastgroup is None:  # unreachable: the last pattern matches any character
            raise UnreadableSql("the statement cannot be split")
        kind, place = found.lastgroup, found.end()
        if kind in _UNREADABLE:
            raise UnreadableSql(_UNREADABLE[kind])
        # Servers before version 15 read `1e'…'` as a number and a text with escapes.
        if kind == "number" and _GLUED.match(sql, place):
            raise UnreadableSql("a number and what follows it need a space between them")
        if kind != "space":
            yield _Token(kind, found.group(), place)


def _end_of_comment(sql: str, place: int) -> int:
    """Return the end of a block comment; these nest."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, place):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise UnreadableSql("a comment does not end")


# A connection to PostgreSQL that limits the bytes of the answer to one request.
#
# libpq keeps each message in memory as a whole and has no limit. The server truncates fields on request, but plans and
# errors quote values of any length. So libpq's socket is replaced by one end of a socket pair, and each byte that the
# server sends is counted before it is passed on; TLS runs on top of that and is unchanged. If socket descriptors cannot
# be exchanged (Windows), there is no such limit.

_PIECE_BYTES: Final = 64 * 1024
_READ, _WRITE, _BOTH = waiting.Wait.R, waiting.Wait.W, waiting.Wait.RW
_READABLE, _WRITABLE = waiting.Ready.R, waiting.Ready.W


class RowsTooLarge(psycopg.OperationalError):
    """The server sent more than `limit_bytes` in answer to one request: rows, a plan, an error, notices."""


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """A connection that ends if the answer to one request has more than `limit_bytes`."""

    limit_bytes: int = 1024 * 1024
    _gate: _Gate | None = None

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ASYNC109  as psycopg has it
        """Wait as psycopg does; a cancelled wait cancels the query. Raises RowsTooLarge."""
        if sys.platform == "win32":
            return await super().wait(gen, interval, timeout)
        if self._gate is None:
            self._gate = _Gate(self.pgconn.socket)
        passing = self._gate.passing(gen, self.limit_bytes)
        try:
            return await waiting.wait_async(passing, self._gate.server.fileno(), interval=interval, timeout=timeout)
        except RowsTooLarge:
            self.pgconn.finish()
            self._gate.close()
            raise
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                try:
                    await self.cancel_safe(timeout=5.0)
                finally:
                    self.pgconn.finish()  # its answer is only partly read
                    self._gate.close()
            raise

    async def close(self) -> None:
        """Close the connection as psycopg does, and the sockets between."""
        await super().close()
        if self._gate is not None:
            self._gate.close()


class _Gate:
    """A relay between libpq and the server. `server` is the socket to the server."""

    def __init__(self, descriptor: int) -> None:
        self.server = socket.socket(fileno=os.dup(descriptor))
        self._libpq, self._ours = socket.socketpair()
        for one in (self.server, self._libpq, self._ours):
            one.setblocking(False)
        os.dup2(self._libpq.fileno(), descriptor, inheritable=False)
        self._pending = b""
        self._rest = b""
        """Bytes from the server that libpq's socket had no room for yet."""

    def passing(self, gen: Generator[Any, Any, Any], limit_bytes: int) -> Generator[Any, Any, Any]:
        """Run `gen`, whose waits are for the server, and return its result."""
        received = 0
        try:
            wanted = next(gen)
            while True:
                pending, unread = self._take_requests(), self._has_answers()
                if wanted & _READ and unread:
                    wanted = gen.send(_READABLE)
                elif wanted & _WRITE and not pending:
                    wanted = gen.send(_WRITABLE)
                else:
                    ready = yield _WRITE if unread else _BOTH if pending else _READ
                    if ready & _READABLE:
                        received += self._pass_answers()
                    if received > limit_bytes:
                        raise RowsTooLarge("the answer is too large")
        except StopIteration as stop:
            while self._take_requests():
                yield _WRITE
            return stop.value

    def _take_requests(self) -> bytes:
        """Send libpq's output to the server as far as there is room. Returns the unsent rest."""
        while True:
            if not self._pending:
                try:
                    self._pending = self._ours.recv(_PIECE_BYTES)
                except BlockingIOError:
                    return b""
            try:
                self._pending = self._pending[self.server.send(self._pending) :]
            except BlockingIOError:
                return self._pending
            except OSError:  # libpq will read the end of the stream
                self._pending = b""
                return b""

    def _has_answers(self) -> bool:
        """True if libpq has not read everything that was passed to it, including the end of the stream."""
        self._pass_on()
        try:
            self._libpq.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def _pass_answers(self) -> int:
        """Pass bytes from the server, or the end of the stream, to libpq. Called only after libpq has read everything
        before."""
        try:
            piece = self.server.recv(_PIECE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            piece = b""
        if piece:
            self._rest = piece
            self._pass_on()
        else:
            self._ours.shutdown(socket.SHUT_WR)
        return len(piece)

    def _pass_on(self) -> None:
        """Pass the rest of the bytes to libpq as far as there is room."""
        if self._rest:
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[self._ours.send(self._rest) :]

    def close(self) -> None:
        if self.server.fileno() >= 0:
            self._take_requests()  # libpq's message that ends the session
        for one in (self.server, self._libpq, self._ours):
            one.close()

    __del__ = close  # the pool drops a broken connection without closing it
