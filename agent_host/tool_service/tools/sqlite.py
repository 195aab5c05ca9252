"""One read-only query on an SQLite file: opened read-only, with an authorizer that lets reading through and nothing
else."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from agent_host.errors import ErrorCode
from agent_host.tool_service.tool import ToolFault
from agent_host.tool_service.tools.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.tool_service.tools.tables import Caps

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
            connection.set_authorizer(_authorized)
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


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:  # noqa: ARG001  sqlite3's form
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
