"""`CloudDbQuery`: read-only SQL on the databases that a tenant has configured, PostgreSQL or SQLite by the URL's
scheme."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from agent_host.errors import ErrorCode
from agent_host.tool_service.tables import Caps, Table, replace_secrets
from agent_host.tool_service.tool import Output, ToolFault
from config.shapes import AnyOf, ListOf, MapOf, Record, Text, number, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.tool_service.tool import Call, TenantServices

_SCALAR: Final = {"type": ["string", "number", "boolean", "null"]}
_HANDLE: Final = {
    "type": "object",
    "properties": {"secret": {"type": "string", "description": "a handle of VaultRead"}},
    "required": ["secret"],
    "additionalProperties": False,
}
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 100_000, "description": "one statement that reads"},
        "connectionName": {"type": "string", "minLength": 1, "maxLength": 128},
        "parameters": {
            "type": "array",
            "maxItems": 1000,
            "items": {"anyOf": [_SCALAR, _HANDLE]},
            "description": "values of $1, $2 … (PostgreSQL) or of ? (SQLite)",
        },
    },
    "required": ["query", "connectionName"],
    "additionalProperties": False,
}
_TEXT_OR_SECRET: Final = AnyOf(Text(1, 4096), Record({"vault": Text(1, 512)}, closed=True))
_CONNECTION: Final = Record(
    {"url": _TEXT_OR_SECRET},
    {
        "password": _TEXT_OR_SECRET,
        "functions": ListOf(Text(1, 63)),
        "secrets": ListOf(Text(1, 512)),
        "maxRows": whole(1, 100_000),
        "maxBytes": whole(1024, 64 * 1024 * 1024),
        "maxFieldChars": whole(64, 1_000_000),
        "timeoutS": number(0.1, 600),
    },
    closed=True,
)


class Database(Protocol):
    """The target of queries."""

    async def query(self, text: str, parameters: Sequence[Any], caps: Caps) -> Table: ...  # noqa: D102  see the class

    async def aclose(self) -> None: ...  # noqa: D102  as RunningTool


class _Database(NamedTuple):
    database: Database
    caps: Caps
    secrets: frozenset[str]


class CloudDbQueryTool:
    """See `agent_host.tool_service.tool.BackendTool`."""

    name = "CloudDbQuery"
    description = (
        "Run one read-only SQL query on a configured database. The answer is JSON: columns, rows, rowCount, and "
        "truncated "
        "where there were more rows or bytes than are given."
    )
    input_schema: Mapping[str, Any] = _SCHEMA
    shape = Record({"connections": MapOf(_CONNECTION)}, closed=True)
    high_risk = True
    repeatable = True

    def build(self, configuration: Mapping[str, Any], services: TenantServices) -> CloudDbQuery:
        """See BackendTool."""
        connections = configuration["connections"]
        return CloudDbQuery({name: _connection(name, value, services) for name, value in connections.items()}, services)


class CloudDbQuery:
    """The databases of one tenant."""

    def __init__(self, connections: Mapping[str, _Database], services: TenantServices) -> None:
        self._connections = connections
        self._services = services

    async def run(self, call: Call) -> Output:
        """See RunningTool."""
        connection = self._connections.get(call.arguments["connectionName"])
        if connection is None:
            known = ", ".join(sorted(self._connections)) or "none"
            raise ToolFault(ErrorCode.INVALID_REQUEST, f"there is no such connection; there are: {known}")
        secrets: dict[str, str] = {}
        parameters = [
            await self._parameter(value, connection, secrets) for value in call.arguments.get("parameters", ())
        ]
        try:
            table = await connection.database.query(call.arguments["query"], parameters, connection.caps)
        except ToolFault as fault:  # a database may quote what it was given
            raise ToolFault(fault.code, replace_secrets(fault.message, secrets)) from None
        return table.output(secrets)

    async def aclose(self) -> None:
        """See RunningTool."""
        for connection in self._connections.values():
            await connection.database.aclose()

    async def _parameter(self, value: Any, connection: _Database, secrets: dict[str, str]) -> Any:
        if not isinstance(value, dict):
            return value
        opened = await self._services.opened(value["secret"])
        if opened.name not in connection.secrets:
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "this connection takes no parameter from this secret")
        secrets[opened.value] = f"[secret {opened.name}]"
        return opened.value


def _connection(name: str, value: Mapping[str, Any], services: TenantServices) -> _Database:
    """Raises ValueError, with no value in its text."""
    url, caps = value["url"], Caps.read(value)
    secrets = frozenset(value.get("secrets", ()))
    if isinstance(url, str) and url.startswith("sqlite:"):
        path = unquote(urlsplit(url).path)
        if not path.startswith("/") or urlsplit(url).netloc:
            raise ValueError(f"connections.{name}.url: an SQLite file is named as sqlite:///PATH")
        return _Database(SqliteDatabase("/" + path.lstrip("/")), caps, secrets)
    if isinstance(url, str) and not url.startswith(("postgresql:", "postgres:")):
        raise ValueError(f"connections.{name}.url: must begin with postgresql: or sqlite:")
    # Imported with the first such connection: psycopg takes 60 ms, and who has SQLite alone need not have it.
    from agent_host.tool_service.postgres_query import PostgresDatabase

    async def conninfo() -> str:
        from psycopg.conninfo import make_conninfo

        address = await _reveal(url, services)
        password = value.get("password")
        extra = {} if password is None else {"password": await _reveal(password, services)}
        return make_conninfo(address, **extra)

    return _Database(PostgresDatabase(conninfo, value.get("functions", ())), caps, secrets)


async def _reveal(value: Any, services: TenantServices) -> str:
    """A text of the configuration, or the secret of the tenant's vault that it names."""
    return value if isinstance(value, str) else await services.secret(value["vault"])


# One read-only query on an SQLite file: opened read-only, with an authorizer that lets reading through and nothing
# else.

_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "eval"})
_STEPS_BETWEEN_LOOKS: Final = 1000
_BUSY_S: Final = 2.0


class SqliteDatabase:
    """One file of a tenant. Each query opens it anew, in a thread."""

    def __init__(self, path: str) -> None:
        self._uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
        self._path = path

    async def query(self, text: str, parameters: Sequence[Any], caps: Caps) -> Table:
        """The rows of a query. Raises ToolFault."""
        stopped = threading.Event()
        try:
            return await asyncio.to_thread(self._query, text, parameters, caps, stopped)
        finally:
            stopped.set()  # the thread of a call that nobody waits for any more ends soon

    async def aclose(self) -> None:
        """Nothing is held."""

    def _query(self, text: str, parameters: Sequence[Any], caps: Caps, stopped: threading.Event) -> Table:
        until = time.monotonic() + caps.timeout_s
        try:
            connection = sqlite3.connect(self._uri, uri=True, timeout=_BUSY_S, isolation_level=None)
        except sqlite3.Error:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the database cannot be opened") from None
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4 * caps.max_bytes)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.set_authorizer(_authorize)
            connection.set_progress_handler(lambda: stopped.is_set() or time.monotonic() > until, _STEPS_BETWEEN_LOOKS)
            cursor = connection.execute(text, list(parameters))
            table = Table([column[0] for column in cursor.description or ()], caps)
            for row in cursor:
                if not table.add([_value(field) for field in row]):
                    break
            return table
        except sqlite3.Warning as error:  # more than one statement, in Python 3.11
            raise ToolFault(ErrorCode.INVALID_REQUEST, f"the query cannot be run: {error}") from None
        except sqlite3.Error as error:
            raise _fault(error) from None
        finally:
            connection.close()


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:  # noqa: ARG001  sqlite3's form
    if action not in _READING or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _value(field: Any) -> Any:
    if isinstance(field, bytes):
        return f"\\x{field.hex()}"
    return field if not isinstance(field, float) or math.isfinite(field) else str(field)


def _fault(error: sqlite3.Error) -> ToolFault:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_INTERRUPT":
        return ToolFault(ErrorCode.TOOL_EXECUTION_TIMEOUT, "the query was ended: it ran for too long")
    if name in ("SQLITE_AUTH", "SQLITE_READONLY"):
        return ToolFault(ErrorCode.PERMISSION_DENIED, "only queries that read are run here")
    if name in ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_IOERR"):
        return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the database cannot be opened")
    if isinstance(error, sqlite3.ProgrammingError):
        return ToolFault(ErrorCode.INVALID_REQUEST, f"the query cannot be run: {error}")
    return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the database says: {error}")
