"""The tenants of a running service: authentication of requests, and each tenant's tools, limits and storage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import tomllib
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.errors import ErrorCode, UsageError
from agent_host.http import usable_in_header
from agent_host.tool_service.answers import Admission
from agent_host.tool_service.storage import BUCKET_SHAPE, Bucket
from agent_host.tool_service.tool import (
    BucketSettings,
    HttpRefusal,
    OpenedSecret,
    TenantLimits,
    TenantServices,
    ToolFault,
    as_fields,
)
from agent_host.tool_service.tools import VaultRead
from config import json_text
from config.shapes import OBJECT, TEXT, MapOf, Record, Text, integer, list_problems, number
from tool_runtime.foreign_schema import foreign_judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent_host.tool_service.answers import Slots
    from agent_host.tool_service.storage import Storage
    from agent_host.tool_service.tool import BackendTool, RunningTool
    from tool_runtime.schema import Judge

    StorageOf = Callable[[Bucket | None], Storage]
    from config.shapes import Shape


_BEARER: Final = "bearer "


class TenantTool(NamedTuple):
    """A tool of a tenant: its kind, its running instance, and the validator of its arguments."""

    kind: BackendTool
    running: RunningTool
    judge: Judge

    def to_wire(self) -> dict[str, Any]:
        """Return the tool as GET /tools lists it."""
        return {
            "toolName": self.kind.name,
            "description": self.kind.description,
            "inputSchema": self.kind.input_schema,
            "requiresCapability": "BackendTool.Invoke",
        }


class ServedTenant:
    """A served tenant. Raises UsageError for a tool that cannot be built from its configuration."""

    def __init__(self, tenant: Tenant, kinds: Mapping[str, BackendTool], key: bytes, storage: StorageOf) -> None:
        self.name = tenant.name
        self.limits = tenant.limits
        # Digests have the same length, so comparing them reveals nothing about a token, not even its length.
        self.digest = _digest(tenant.token)
        self.admission: Admission
        self._bucket = None if tenant.bucket is None else Bucket(tenant.bucket)
        self.storage: Storage = storage(self._bucket)
        self._handles = Handles(key, tenant.name)
        self.tools: dict[str, TenantTool] = {}
        services = TenantServices(tenant.name, self._secret, self._open, self._handles.seal)
        for name, configuration in tenant.tools.items():
            kind = kinds[name]
            try:
                running = kind.build(configuration, services)
                self.tools[name] = TenantTool(kind, running, foreign_judge(kind.input_schema))
            except ValueError as error:
                raise UsageError(f"the tool {name} of the tenant {tenant.name} cannot be used: {error}") from None

    def open(self, slots: Slots) -> None:
        """Accept calls, which occupy `slots` while they run."""
        self.admission = Admission(self.name, self.limits, slots)

    async def aclose(self) -> None:
        """Release the resources of the tenant's tools."""
        for tool in self.tools.values():
            await tool.running.aclose()
        if self._bucket is not None:
            await self._bucket.aclose()

    def _vault(self) -> VaultRead:
        tool = self.tools.get(VaultRead.name)
        if tool is None or not isinstance(tool.running, VaultRead):
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "no vault is configured")
        return tool.running

    async def _secret(self, name: str) -> str:
        return await self._vault().value(name, None)

    async def _open(self, handle: str) -> OpenedSecret:
        name, version = self._handles.unseal(handle)
        return OpenedSecret(name, await self._vault().value(name, version))


def find_tenant(tenants: Iterable[ServedTenant], authorization: str | None) -> ServedTenant:
    """Return the tenant whose token is in the Authorization header; all are compared in constant time. Raises
    HttpRefusal 401."""
    found: ServedTenant | None = None
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        sent = _digest(authorization[len(_BEARER) :].strip())
        for tenant in tenants:
            if hmac.compare_digest(tenant.digest, sent):
                found = tenant
    if found is None:
        raise HttpRefusal(401, ErrorCode.UNAUTHORIZED, "a bearer token of a tenant is needed")
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# Handles of secrets, which a model gets in place of values. A MAC covers the handle's secret, version and tenant, so a
# handle works only for its tenant and cannot be forged.

PREFIX: Final = "secret:"
_MAX_CHARS: Final = 4096


class Handles:
    """Creates and reads the handles of one tenant. `key` is the service's key of grants; the key of handles is derived
    from it, so that neither can be used as the other."""

    def __init__(self, key: bytes, tenant: str) -> None:
        self._key = hmac.new(key, b"agent-host secret handles", hashlib.sha256).digest()
        self._tenant = tenant

    def seal(self, name: str, version: int) -> str:
        """Return the handle of a version of a secret."""
        payload = base64.urlsafe_b64encode(orjson.dumps([name, version])).rstrip(b"=").decode()
        return f"{PREFIX}{payload}.{self._mac(payload)}"

    def unseal(self, handle: str) -> tuple[str, int]:
        """Return the name and version of the secret of this tenant's handle. Raises ToolFault for any other text."""
        payload, _, mac = handle.removeprefix(PREFIX).partition(".")
        right = handle.isascii() and handle.startswith(PREFIX) and len(handle) <= _MAX_CHARS
        if not right or not hmac.compare_digest(mac, self._mac(payload)):
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "this is not a handle of a secret that you may use")
        name, version = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return name, version

    def _mac(self, payload: str) -> str:
        # The tenant is prefixed with its length, so no two pairs of tenant and payload have the same text.
        text = b"%d:%s:%s" % (len(self._tenant.encode()), self._tenant.encode(), payload.encode())
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


# The tenants file of the Backend Tool Service, JSON or TOML:
#
#     {tenants: {NAME: {token, tools: {TOOL: {…}}, limits?: {…}, bucket?: {…}}}, service?: {answers?: {url}}}
#
# {env: VARIABLE} or {file: PATH} may replace any value. Problems are reported by their path in the file; no value of
# the file is ever quoted.

_MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_SECRET_BYTES: Final = 64 * 1024
_MAX_LEVELS: Final = 16
_LEAST_TOKEN: Final = 16


class Tenant(NamedTuple):
    """The configuration of one tenant, with values resolved."""

    name: str
    token: str
    tools: Mapping[str, Mapping[str, Any]]
    limits: TenantLimits = TenantLimits()
    bucket: BucketSettings | None = None


class Configuration(NamedTuple):
    """The tenants by name; `answers_url` is the PostgreSQL database for the answers of several workers."""

    tenants: Mapping[str, Tenant]
    answers_url: str | None = None


_LIMITS = Record(
    {},
    {
        "maxConcurrent": integer(1, 10_000),
        "maxQueued": integer(0, 100_000),
        "maxRequestBytes": integer(1024, 64 * 1024 * 1024),
        "timeoutS": number(0.1, 3600),
        "maxInlineBytes": integer(1000, 10_000_000),
        "maxStoredBytes": integer(0),
    },
    closed=True,
)
_TENANT = Record(
    {"token": Text(_LEAST_TOKEN, 4096), "tools": MapOf(OBJECT)},
    {"limits": _LIMITS, "bucket": BUCKET_SHAPE},
    closed=True,
)
_FILE = Record(
    {"tenants": MapOf(_TENANT)},
    {"service": Record({}, {"answers": Record({"url": TEXT}, closed=True)}, closed=True)},
    closed=True,
)


def read_configuration(path: str, environ: Mapping[str, str], tools: Mapping[str, BackendTool]) -> Configuration:
    """Read the file at `path`; paths of {file: PATH} are relative to its directory. Raises UsageError that lists every
    problem by its path in the file, without values."""
    content = _content(path)
    problems: list[str] = []
    resolved = _Resolver(environ, os.path.dirname(os.path.abspath(path)), problems).resolve(content, "", 0)
    if not problems:
        problems += strip_values(_FILE, resolved, "")
    if not problems:
        problems += _cross_check(resolved["tenants"], tools)
    if problems:
        raise UsageError(f"the tenants file {path} cannot be used: {list_problems(problems)}")
    answers = resolved.get("service", {}).get("answers", {}).get("url")
    return Configuration({name: _tenant(name, value) for name, value in resolved["tenants"].items()}, answers)


def strip_values(shape: Shape, value: Any, path: str) -> list[str]:
    """Return the problems of a value, without the value itself."""
    if shape.fits(value):
        return []
    return [f"{one.path or 'it'}: {one.text.partition(', not ')[0]}" for one in shape.problems(value, path)]


def _content(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the tenants file {path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"the tenants file {path} has more than {_MAX_FILE_BYTES:,} bytes")
    try:
        data = data.removeprefix(BOM_UTF8)
        return tomllib.loads(data.decode()) if path.endswith(".toml") else json_text.loads(data)
    except (ValueError, RecursionError) as error:
        # A parser's message quotes the text that it could not read.
        where = f"line {error.lineno}" if isinstance(error, orjson.JSONDecodeError) else "see a TOML checker"
        kind = "TOML" if path.endswith(".toml") else "JSON"
        raise UsageError(f"the tenants file {path} is not {kind} ({where})") from None


class _Resolver(NamedTuple):
    """Replaces {env: VARIABLE} and {file: PATH} by their values."""

    environ: Mapping[str, str]
    directory: str
    problems: list[str]

    def resolve(self, value: Any, path: str, level: int) -> Any:
        """Return `value`, resolved. A part that cannot be resolved is added to the problems and returned unchanged."""
        if level > _MAX_LEVELS:
            self.problems.append(f"{path}: has too many levels")
            return value
        if isinstance(value, list):
            return [self.resolve(item, f"{path}[{place}]", level + 1) for place, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (name, source), *_ = value.items()
            if name in ("env", "file") and isinstance(source, str):
                found, problem = self._variable(source) if name == "env" else self._file(source)
                if problem:
                    self.problems.append(f"{path}: {problem}")
                return value if problem else found
        return {name: self.resolve(item, f"{path}.{name}" if path else name, level + 1) for name, item in value.items()}

    def _variable(self, name: str) -> tuple[str, str]:
        value = self.environ.get(name, "")
        return value, "" if value else f"the environment has no {name}"

    def _file(self, name: str) -> tuple[str, str]:
        try:
            with open(os.path.join(self.directory, name), "rb") as file:
                data = file.read(_MAX_SECRET_BYTES + 1)
            if len(data) > _MAX_SECRET_BYTES:
                return "", f"the file {name} is too large"
            return data.decode().removesuffix("\n").removesuffix("\r"), ""
        except OSError as error:
            return "", f"the file {name} cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            return "", f"the file {name} is not UTF-8"


def _cross_check(tenants: Mapping[str, Mapping[str, Any]], tools: Mapping[str, BackendTool]) -> list[str]:
    """Return problems that shapes do not detect: tokens that two tenants share or that no header can contain, and
    unknown tools."""
    problems: list[str] = []
    holders: dict[str, str] = {}
    for name, tenant in tenants.items():
        token = tenant["token"]
        if not usable_in_header(token):
            problems.append(f"tenants.{name}.token: must be printable ASCII without spaces around it")
        if token in holders:
            problems.append(f"tenants.{name}.token: is the same as that of {holders[token]}")
        holders[token] = name
        for tool, configuration in tenant["tools"].items():
            path = f"tenants.{name}.tools.{tool}"
            if tool in tools:
                problems += strip_values(tools[tool].shape, configuration, path)
            else:
                problems.append(f"{path}: there is no such tool; there are {', '.join(sorted(tools))}")
    return problems


def _tenant(name: str, value: Mapping[str, Any]) -> Tenant:
    limits = TenantLimits(**as_fields(value.get("limits", {})))
    bucket = BucketSettings(**as_fields(value["bucket"])) if "bucket" in value else None
    return Tenant(name, value["token"], value["tools"], limits, bucket)
