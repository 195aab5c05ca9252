"""`VaultRead`: secrets of HashiCorp Vault's KV version 2, as handles. A value never enters a result: a handle is
resolved where it is used, by a parameter of `CloudDbQuery` or by the tenant's own connection settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from agent_host import http
from agent_host.errors import ErrorCode, UsageError
from agent_host.http import TlsContext, is_loopback, usable_in_header
from agent_host.services import check_service_url
from agent_host.tool_service.tool import Output, ToolFault
from config import json_text
from config.shapes import TEXT, ListOf, Record, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.tool_service.tool import Call, TenantServices

_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 1024 * 1024
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "description": "path#field of the secret; the field may be left out where the secret has one",
        }
    },
    "required": ["name"],
    "additionalProperties": False,
}


class _Secret(NamedTuple):
    value: str
    version: int


class VaultReadTool:
    """See `agent_host.tool_service.tool.BackendTool`."""

    name = "VaultRead"
    description = (
        "Read a secret of the vault. The answer is a handle {name, version, handle} and never the value: pass the "
        "handle "
        "where a tool takes one, such as in the parameters of CloudDbQuery."
    )
    input_schema: Mapping[str, Any] = _SCHEMA
    shape = Record(
        {"address": Text(1, 2048), "token": Text(1, 4096), "names": ListOf(Text(1, 512))},
        {"mount": Text(1, 256), "namespace": TEXT},
        closed=True,
    )
    high_risk = True
    repeatable = True

    def build(self, configuration: Mapping[str, Any], services: TenantServices) -> VaultRead:
        """See BackendTool."""
        try:
            address = check_service_url(configuration["address"], "address")
        except UsageError:
            raise ValueError("address is no http or https URL") from None
        if not usable_in_header(configuration["token"]):
            raise ValueError("token holds characters that no header can carry")
        return VaultRead(address, configuration, services)


class VaultRead:
    """The vault of one tenant. Only what `names` lists is ever asked for: exact names, `path` or `path#field`."""

    def __init__(self, address: str, configuration: Mapping[str, Any], services: TenantServices) -> None:
        self._address = address
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
        secret = await self._read(name, None)
        handle = self._services.sealed(name, secret.version)
        return Output(orjson.dumps({"name": name, "version": secret.version, "handle": handle}).decode())

    async def value(self, name: str, version: int | None) -> str:
        """The value of a secret, its newest version or the one named. Raises ToolFault."""
        return (await self._read(name, version)).value

    async def aclose(self) -> None:
        """See RunningTool."""
        if self._http is not None:
            await self._http.aclose()

    async def _read(self, name: str, version: int | None) -> _Secret:
        if name not in self._names:
            raise ToolFault(
                ErrorCode.PERMISSION_DENIED, "the tenant's vault has no secret of this name that may be used"
            )
        path, _, field = name.partition("#")
        asked = "" if version is None else f"?version={version}"
        response = await self._get(f"/v1/{quote(self._mount)}/data/{quote(path)}{asked}")
        if response.status_code == 404:
            raise ToolFault(
                ErrorCode.FILE_NOT_FOUND, "the vault has no such secret, or not this version of it any more"
            )
        if response.status_code == 403:
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "the vault does not let this service read the secret")
        if response.status_code != 200:
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the vault answered with HTTP {response.status_code}")
        return _secret_of(response.content, field)

    async def _get(self, path: str) -> http.httpx.Response:
        client = await self._client()
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                client.stream("GET", self._address + path, headers=self._headers) as response,
            ):
                body = bytearray()
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the vault's answer is too large")
                return http.httpx.Response(response.status_code, content=bytes(body))
        except (http.httpx.RequestError, TimeoutError):  # their text has the address in it, which is configuration
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, "the vault cannot be reached") from None

    async def _client(self) -> http.httpx.AsyncClient:
        async with self._making:
            if self._http is None:
                self._http = await asyncio.to_thread(_client_of, self._address)
            return self._http


def _client_of(address: str) -> http.httpx.AsyncClient:
    direct = is_loopback(http.httpx.URL(address).host)
    return http.httpx.AsyncClient(verify=TlsContext(address).get(), follow_redirects=False, trust_env=not direct)


def _secret_of(body: bytes, field: str) -> _Secret:
    """{"data": {"data": {field: value}, "metadata": {"version": n}}}. Raises ToolFault."""
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
    return _Secret(value, version)
