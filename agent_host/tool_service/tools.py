"""The built-in tools of the service.

`CloudDbQuery` runs read-only SQL on the databases that a tenant has configured, PostgreSQL or SQLite by the URL's
scheme; `ObjectRead` reads and lists objects of S3; `VaultRead` returns handles for secrets of HashiCorp Vault.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sqlite3
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import orjson

from agent_host import http
from agent_host.contracts import Artifact
from agent_host.errors import ErrorCode, UsageError
from agent_host.http import TlsContext, is_loopback, usable_in_header
from agent_host.services import check_service_url
from agent_host.services.workspace import StoredFile
from agent_host.tool_service.storage import BUCKET_SHAPE, Bucket
from agent_host.tool_service.tool import BucketSettings, Caps, Output, Table, ToolFault, as_fields, replace_secrets
from config import json_text
from config.shapes import TEXT, AnyOf, ListOf, MapOf, Record, Text, integer, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from agent_host.tool_service.postgres_query import PostgresDatabase
    from agent_host.tool_service.tool import Call, TenantServices


def _object(properties: dict[str, Any], *required: str, **extra: Any) -> dict[str, Any]:
    """Return the JSON schema of an object with these properties and no others."""
    head = {"type": "object", "properties": properties, "required": list(required)}
    return {**head, **extra, "additionalProperties": False}


_SCALAR: Final = {"type": ["string", "number", "boolean", "null"]}
_HANDLE: Final = _object({"secret": {"type": "string", "description": "a handle of VaultRead"}}, "secret")
_QUERY_SCHEMA: Final = _object(
    {
        "query": {"type": "string", "minLength": 1, "maxLength": 100_000, "description": "one statement that reads"},
        "connectionName": {"type": "string", "minLength": 1, "maxLength": 128},
        "parameters": {
            "type": "array",
            "maxItems": 1000,
            "items": {"anyOf": [_SCALAR, _HANDLE]},
            "description": "values of $1, $2 … (PostgreSQL) or of ? (SQLite)",
        },
    },
    "query",
    "connectionName",
)
_TEXT_OR_SECRET: Final = AnyOf(Text(1, 4096), Record({"vault": Text(1, 512)}, closed=True))
_CONNECTION: Final = Record(
    {"url": _TEXT_OR_SECRET},
    {
        "password": _TEXT_OR_SECRET,
        "functions": ListOf(Text(1, 63)),
        "secrets": ListOf(Text(1, 512)),
        "maxRows": integer(1, 100_000),
        "maxBytes": integer(1024, 64 * 1024 * 1024),
        "maxFieldChars": integer(64, 1_000_000),
        "timeoutS": number(0.1, 600),
    },
    closed=True,
)


class _Database(NamedTuple):
    database: PostgresDatabase | SqliteDatabase
    caps: Caps
    secrets: frozenset[str]


class ShippedTool:
    """A built-in tool: the class is the `BackendTool`, and an instance is the tool of one tenant."""

    high_risk: ClassVar = True
    repeatable: ClassVar = True

    def __init__(self, configuration: Mapping[str, Any], services: TenantServices) -> None:
        raise NotImplementedError

    @classmethod
    def build(cls, configuration: Mapping[str, Any], services: TenantServices) -> Self:
        """See BackendTool."""
        return cls(configuration, services)


class CloudDbQuery(ShippedTool):
    """The databases of one tenant."""

    name: ClassVar = "CloudDbQuery"
    description: ClassVar = (
        "Run one read-only SQL query on a configured database. The answer is JSON: columns, rows, rowCount, and "
        "truncated where there were more rows or bytes than are given."
    )
    input_schema: ClassVar = _QUERY_SCHEMA
    shape: ClassVar = Record({"connections": MapOf(_CONNECTION)}, closed=True)

    def __init__(self, configuration: Mapping[str, Any], services: TenantServices) -> None:
        connections = configuration["connections"]
        self._connections = {name: _connection(name, value, services) for name, value in connections.items()}
        self._services = services

    async def run(self, call: Call) -> Output:
        """See RunningTool."""
        connection = self._connections.get(call.arguments["connectionName"])
        if connection is None:
            known = ", ".join(sorted(self._connections)) or "none"
            raise ToolFault(ErrorCode.INVALID_REQUEST, f"there is no such connection; there are: {known}")
        secrets: dict[str, str] = {}
        given = call.arguments.get("parameters", ())
        parameters = [await self._parameter(value, connection, secrets) for value in given]
        try:
            table = await connection.database.query(call.arguments["query"], parameters, connection.caps)
        except ToolFault as fault:  # a database may quote its parameters
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
    """Return a connection's database, caps and secrets. Raises ValueError, with no value in its text."""
    url, caps = value["url"], Caps.read(value)
    secrets = frozenset(value.get("secrets", ()))
    if isinstance(url, str) and url.startswith("sqlite:"):
        path = unquote(urlsplit(url).path)
        if not path.startswith("/") or urlsplit(url).netloc:
            raise ValueError(f"connections.{name}.url: an SQLite file is named as sqlite:///PATH")
        return _Database(SqliteDatabase("/" + path.lstrip("/")), caps, secrets)
    if isinstance(url, str) and not url.startswith(("postgresql:", "postgres:")):
        raise ValueError(f"connections.{name}.url: must begin with postgresql: or sqlite:")
    # Imported for the first such connection: psycopg takes 60 ms, and is not needed for SQLite alone.
    from agent_host.tool_service.postgres_query import PostgresDatabase

    async def conninfo() -> str:
        from psycopg.conninfo import make_conninfo

        address = await _reveal(url, services)
        password = value.get("password")
        extra = {} if password is None else {"password": await _reveal(password, services)}
        return make_conninfo(address, **extra)

    return _Database(PostgresDatabase(conninfo, value.get("functions", ())), caps, secrets)


async def _reveal(value: Any, services: TenantServices) -> str:
    """Return a text of the configuration, or the value of the vault's secret that it names."""
    return value if isinstance(value, str) else await services.secret(value["vault"])


# One read-only query on an SQLite file, which is opened read-only, with an authorizer that permits only reading.

_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "eval"})
_STEPS_BETWEEN_LOOKS: Final = 1000


class SqliteDatabase:
    """One database file of a tenant. Each query opens it again, in a thread."""

    def __init__(self, path: str) -> None:
        self._uri = f"file:{quote(os.path.abspath(path))}?mode=ro"

    async def query(self, text: str, parameters: Sequence[Any], caps: Caps) -> Table:
        """Run a query and return its rows. Raises ToolFault."""
        stopped = threading.Event()
        try:
            return await asyncio.to_thread(self._query, text, parameters, caps, stopped)
        finally:
            stopped.set()  # ends the thread of a cancelled call soon

    async def aclose(self) -> None:
        """Do nothing: no resources are kept."""

    def _query(self, text: str, parameters: Sequence[Any], caps: Caps, stopped: threading.Event) -> Table:
        until = time.monotonic() + caps.timeout_s
        try:
            connection = sqlite3.connect(self._uri, uri=True, timeout=2.0, isolation_level=None)
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
    return ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the database reports: {error}")


# `ObjectRead`: reads and lists objects of S3. Text up to 64 KiB is part of the answer, anything else is stored.

_INLINE_BYTES: Final = 64 * 1024
_MAX_OBJECT_BYTES: Final = 512 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_OBJECTS_SCHEMA: Final = _object(
    {
        "store": {"type": "string", "description": "name of the configured store"},
        "key": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "the object to read"},
        "list": {"type": "string", "maxLength": 1024, "description": "in place of key: list keys that begin so"},
        "offset": {"type": "integer", "minimum": 0, "description": "first byte to read (0)"},
        "length": {"type": "integer", "minimum": 1, "description": "how many bytes (all)"},
    },
    "store",
    oneOf=[{"required": ["key"]}, {"required": ["list"]}],
)


class ObjectRead(ShippedTool):
    """The stores of one tenant. Keys are below each store's `prefix` and cannot leave it, because S3 has no `..`."""

    name: ClassVar = "ObjectRead"
    description: ClassVar = (
        "Read an object of a configured S3 store, or list its keys. Text up to 64 KiB comes with the answer; larger "
        "objects and other content are stored as artifacts."
    )
    input_schema: ClassVar = _OBJECTS_SCHEMA
    shape: ClassVar = Record({"stores": MapOf(BUCKET_SHAPE)}, {"maxObjectBytes": integer(1)}, closed=True)
    high_risk: ClassVar = False

    def __init__(self, configuration: Mapping[str, Any], services: TenantServices) -> None:  # noqa: ARG002  ShippedTool's
        self._stores = {name: Bucket(BucketSettings(**as_fields(one))) for name, one in configuration["stores"].items()}
        self._max_object_bytes = configuration.get("maxObjectBytes", _MAX_OBJECT_BYTES)

    async def run(self, call: Call) -> Output:
        """See RunningTool."""
        store = self._stores.get(call.arguments["store"])
        if store is None:
            known = ", ".join(sorted(self._stores)) or "none"
            raise ToolFault(ErrorCode.INVALID_REQUEST, f"there is no such store; there are: {known}")
        if "list" in call.arguments:
            return await _list(store, call.arguments["list"])
        return await self._read(store, call.arguments)

    async def aclose(self) -> None:
        """See RunningTool."""
        for store in self._stores.values():
            await store.aclose()

    async def _read(self, store: Bucket, arguments: Mapping[str, Any]) -> Output:
        key, offset, length = arguments["key"], arguments.get("offset", 0), arguments.get("length")
        wanted = {"Key": store.settings.prefix + key}
        if offset or length is not None:
            wanted["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        answer = await store.ask("get_object", **wanted)
        size = answer["ContentLength"]
        with contextlib.closing(answer["Body"]) as body:
            if size > self._max_object_bytes:
                message = (
                    f"the object has {size:,} bytes and at most {self._max_object_bytes:,} are read: ask for a part "
                    "of it with offset and length"
                )
                raise ToolFault(ErrorCode.FILE_TOO_LARGE, message)
            content = await asyncio.to_thread(_spool, body, size)
        kind, name = answer.get("ContentType", "application/octet-stream"), key.rpartition("/")[2] or key
        if isinstance(content, bytes):
            with contextlib.suppress(UnicodeDecodeError):
                return Output(content.decode())
        text = f"{name}: {size:,} bytes, {kind}; stored as an artifact"
        return Output(text, (Artifact("tool_output", name, kind, content),))


async def _list(store: Bucket, beginning: str) -> Output:
    prefix = store.settings.prefix
    answer = await store.ask("list_objects_v2", Prefix=prefix + beginning, MaxKeys=1000)
    rows = [
        {"key": one["Key"].removeprefix(prefix), "size": one["Size"], "modified": one["LastModified"].isoformat()}
        for one in answer.get("Contents", ())
    ]
    return Output(orjson.dumps({"objects": rows, "truncated": bool(answer.get("IsTruncated"))}).decode())


def _spool(body: Any, size: int) -> bytes | StoredFile:
    """Read the content, into memory if it is small, else into an unnamed file. Raises ToolFault."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    try:
        if size <= _INLINE_BYTES:
            small: bytes = body.read()
            return small
        with contextlib.ExitStack() as unfinished:
            file = unfinished.enter_context(tempfile.TemporaryFile())
            file.writelines(iter(lambda: body.read(_PIECE_BYTES), b""))
            file.flush()
            unfinished.pop_all()
            return StoredFile(file)
    except (BotoCoreError, HTTPError, OSError) as error:
        message = f"the object could not be read whole ({type(error).__name__})"
        raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, message) from None


# `VaultRead`: secrets of HashiCorp Vault's KV version 2, as handles. Results never contain a value: handles are
# resolved as parameters of `CloudDbQuery`, and a tenant's connection settings may name secrets of its vault.

_MAX_ANSWER_BYTES: Final = 1024 * 1024
_SECRETS_SCHEMA: Final = _object(
    {
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "description": "path#field of the secret; the field may be left out where the secret has one",
        }
    },
    "name",
)


class VaultRead(ShippedTool):
    """The vault of one tenant. Only secrets listed in `names` are requested: exact names, `path` or `path#field`."""

    name: ClassVar = "VaultRead"
    description: ClassVar = (
        "Read a secret of the vault. The answer is a handle {name, version, handle} and never the value: pass the "
        "handle where a tool takes one, such as in the parameters of CloudDbQuery."
    )
    input_schema: ClassVar = _SECRETS_SCHEMA
    shape: ClassVar = Record(
        {"address": Text(1, 2048), "token": Text(1, 4096), "names": ListOf(Text(1, 512))},
        {"mount": Text(1, 256), "namespace": TEXT},
        closed=True,
    )

    def __init__(self, configuration: Mapping[str, Any], services: TenantServices) -> None:
        try:
            self._address = check_service_url(configuration["address"], "address")
        except UsageError:
            raise ValueError("address is not an http or https URL") from None
        if not usable_in_header(configuration["token"]):
            raise ValueError("token contains characters that no header can carry")
        self._mount = configuration.get("mount", "secret")
        self._names = frozenset(configuration["names"])
        self._headers = {"x-vault-token": configuration["token"], "accept-encoding": "identity"}
        if "namespace" in configuration:
            self._headers["x-vault-namespace"] = configuration["namespace"]
        self._services = services
        self._http: http.httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def run(self, call: Call) -> Output:
        """See RunningTool."""
        name = call.arguments["name"]
        _, version = await self._read(name, None)
        handle = self._services.sealed(name, version)
        return Output(orjson.dumps({"name": name, "version": version, "handle": handle}).decode())

    async def value(self, name: str, version: int | None) -> str:
        """Return the value of a secret in the given version, or the newest. Raises ToolFault."""
        return (await self._read(name, version))[0]

    async def aclose(self) -> None:
        """See RunningTool."""
        if self._http is not None:
            await self._http.aclose()

    async def _read(self, name: str, version: int | None) -> tuple[str, int]:
        """Return the value and the version of a secret. Raises ToolFault."""
        if name not in self._names:
            message = "the tenant's vault has no secret of this name that may be used"
            raise ToolFault(ErrorCode.PERMISSION_DENIED, message)
        path, _, field = name.partition("#")
        asked = "" if version is None else f"?version={version}"
        status, body = await self._get(f"/v1/{quote(self._mount)}/data/{quote(path)}{asked}")
        if status == 404:
            message = "the vault has no such secret, or not this version of it any more"
            raise ToolFault(ErrorCode.FILE_NOT_FOUND, message)
        if status == 403:
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "the vault does not let this service read the secret")
        if status != 200:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the vault answered with HTTP {status}")
        return _secret_of(body, field)

    async def _get(self, path: str) -> tuple[int, bytes]:
        async with self._making:
            if self._http is None:
                self._http = await asyncio.to_thread(_client_of, self._address)
            client = self._http
        try:
            async with (
                asyncio.timeout(10.0),
                client.stream("GET", self._address + path, headers=self._headers) as response,
            ):
                body = bytearray()
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the vault's answer is too large")
                return response.status_code, bytes(body)
        except (http.httpx.RequestError, TimeoutError):  # their text contains the address, which is configuration
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the vault cannot be reached") from None


def _client_of(address: str) -> http.httpx.AsyncClient:
    direct = is_loopback(http.httpx.URL(address).host)
    return http.httpx.AsyncClient(verify=TlsContext(address).get(), follow_redirects=False, trust_env=not direct)


def _secret_of(body: bytes, field: str) -> tuple[str, int]:
    """Read {"data": {"data": {field: value}, "metadata": {"version": n}}}. Raises ToolFault."""
    wrong = ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the vault's answer is not that of a KV version 2 store")
    try:
        data = json_text.loads(body)["data"]
        fields, version = data["data"], data["metadata"]["version"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise wrong from None
    if not isinstance(fields, dict) or type(version) is not int:
        raise wrong
    if not field:
        if len(fields) != 1:
            raise ToolFault(ErrorCode.INVALID_REQUEST, "the secret has several fields: name one as path#field")
        (field,) = fields
    value = fields.get(field)
    if not isinstance(value, str):
        raise ToolFault(ErrorCode.FILE_NOT_FOUND, "the secret has no text in this field")
    return value, version
