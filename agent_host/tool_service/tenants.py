"""The tenants of a running service: who sends a request, and the tools, limits and storage that are that tenant's
own."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.errors import ErrorCode, UsageError
from agent_host.tool_service.admission import Admission
from agent_host.tool_service.storage import Bucket
from agent_host.tool_service.tool import HttpRefusal, OpenedSecret, TenantServices, ToolFault
from agent_host.tool_service.tools import VaultRead, VaultReadTool
from tool_runtime.foreign_schema import foreign_judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent_host.tool_service.admission import Slots
    from agent_host.tool_service.configuration import Configuration, Tenant
    from agent_host.tool_service.storage import Storage
    from agent_host.tool_service.tool import BackendTool, RunningTool
    from tool_runtime.schema import Judge

    StorageOf = Callable[[Bucket | None], Storage]


_BEARER: Final = "bearer "


class TenantTool:
    """A tool of a tenant: what it is, what judges its arguments, what runs it."""

    def __init__(self, kind: BackendTool, running: RunningTool) -> None:
        self.kind = kind
        self.running = running
        self.judge: Judge = foreign_judge(kind.input_schema)

    def to_wire(self) -> dict[str, Any]:
        """As GET /tools has it."""
        return {
            "toolName": self.kind.name,
            "description": self.kind.description,
            "inputSchema": self.kind.input_schema,
            "requiresCapability": "BackendTool.Invoke",
        }


class ServedTenant:
    """A tenant that is served. Raises UsageError for a tool that cannot be built from its configuration."""

    def __init__(self, tenant: Tenant, kinds: Mapping[str, BackendTool], key: bytes, storage: StorageOf) -> None:
        self.name = tenant.name
        self.limits = tenant.limits
        self.admission: Admission
        self._bucket = None if tenant.bucket is None else Bucket(tenant.bucket)
        self.storage: Storage = storage(self._bucket)
        self._handles = Handles(key, tenant.name)
        self.tools: dict[str, TenantTool] = {}
        services = TenantServices(tenant.name, self._secret, self._open, self._handles.seal)
        for name, configuration in tenant.tools.items():
            try:
                self.tools[name] = TenantTool(kinds[name], kinds[name].build(configuration, services))
            except ValueError as error:
                raise UsageError(f"the tool {name} of the tenant {tenant.name} cannot be used: {error}") from None

    def open(self, slots: Slots) -> None:
        """Take calls, which hold `slots` while they run."""
        self.admission = Admission(self.name, self.limits, slots)

    async def aclose(self) -> None:
        """Release what the tenant's tools hold."""
        for tool in self.tools.values():
            await tool.running.aclose()
        if self._bucket is not None:
            await self._bucket.aclose()

    def _vault(self) -> VaultRead:
        tool = self.tools.get(VaultReadTool.name)
        if tool is None or not isinstance(tool.running, VaultRead):
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "no vault is configured")
        return tool.running

    async def _secret(self, name: str) -> str:
        return await self._vault().value(name, None)

    async def _open(self, handle: str) -> OpenedSecret:
        named = self._handles.unseal(handle)
        return OpenedSecret(named.name, await self._vault().value(named.name, named.version))


class Tenants:
    """All tenants, by their tokens."""

    def __init__(self, tenants: Iterable[ServedTenant], configuration: Configuration) -> None:
        self.all = {tenant.name: tenant for tenant in tenants}
        # Digests have one length: comparing them tells nothing of a token, not even how long it is.
        self._digests = [(_digest(one.token), self.all[one.name]) for one in configuration.tenants.values()]

    def find(self, authorization: str | None) -> ServedTenant:
        """The tenant whose token stands in an Authorization header. Every token is compared, each in constant time.
        Raises Refusal 401."""
        found: ServedTenant | None = None
        if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
            sent = _digest(authorization[len(_BEARER) :].strip())
            for digest, tenant in self._digests:
                if hmac.compare_digest(digest, sent):
                    found = tenant
        if found is None:
            raise HttpRefusal(401, ErrorCode.UNAUTHORIZED, "a bearer token of a tenant is needed")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# Handles of secrets: what a model holds in place of a value. A handle names secret, version and tenant under a MAC,
# so that it opens for its tenant alone and nobody can make one up.

PREFIX: Final = "secret:"
_MAX_CHARS: Final = 4096


class SecretName(NamedTuple):
    """A version of a secret."""

    name: str
    version: int


class Handles:
    """Makes and reads the handles of one tenant. `key` is the service's key of grants, from which one for handles is
    derived, so that neither can stand for the other."""

    def __init__(self, key: bytes, tenant: str) -> None:
        self._key = hmac.new(key, b"agent-host secret handles", hashlib.sha256).digest()
        self._tenant = tenant

    def seal(self, name: str, version: int) -> str:
        """The handle of a version of a secret."""
        payload = base64.urlsafe_b64encode(orjson.dumps([name, version])).rstrip(b"=").decode()
        return f"{PREFIX}{payload}.{self._mac(payload)}"

    def unseal(self, handle: str) -> SecretName:
        """Open a handle of this tenant. Raises ToolFault for any other text."""
        payload, _, mac = handle.removeprefix(PREFIX).partition(".")
        right = handle.isascii() and handle.startswith(PREFIX) and len(handle) <= _MAX_CHARS
        if not right or not hmac.compare_digest(mac, self._mac(payload)):
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "this is no handle of a secret that you may use")
        name, version = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return SecretName(name, version)

    def _mac(self, payload: str) -> str:
        # The tenant is of a length of its own before the payload: no two pairs give one text.
        text = b"%d:%s:%s" % (len(self._tenant.encode()), self._tenant.encode(), payload.encode())
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
