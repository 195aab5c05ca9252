"""The interface of a backend tool. Packages add tools through the entry point group `agent_host.backend_tools`: each
entry names one `BackendTool`.

A tool is built once for each tenant that configures it, and only from that tenant's configuration, so that no call can
access another tenant's resources.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from agent_host.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import Artifact
    from config.shapes import Shape


class BucketSettings(NamedTuple):
    """A bucket and its access settings. Without `access_key_id`, access is anonymous. Keys begin with `prefix`."""

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    prefix: str = ""
    path_style: bool = False


class TenantLimits(NamedTuple):
    """Limits of a tenant. `max_concurrent` calls run at once, across all workers that share a database, and
    `max_queued` wait in each worker. `max_request_bytes` limits a request and `timeout_s` a call. Text above
    `max_inline_bytes` is stored, and cut in the answer; a call stores at most `max_stored_bytes` in total."""

    max_concurrent: int = 32
    max_queued: int = 256
    max_request_bytes: int = 1024 * 1024
    timeout_s: float = 110.0
    max_inline_bytes: int = 100_000
    max_stored_bytes: int = 1024 * 1024 * 1024


def as_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of the tenants file under the names of fields: `max_rows` for `maxRows`."""
    return {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): one for name, one in value.items()}


ENTRY_POINTS = "agent_host.backend_tools"


class ToolFault(Exception):
    """A failure of a call. The model reads `message`, which quotes no configuration. `code` is an ErrorCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message


class Call(NamedTuple):
    """One checked invocation: the grant allows the tool, and the arguments fit its schema. It may take `timeout_s`."""

    tenant: str
    session_id: str
    task_id: str
    step_id: str
    workspace_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    key: str | None
    user_id: str
    timeout_s: float


class Output(NamedTuple):
    """Text for the model, and artifacts to store in the Workspace Service. Text above the tenant's limit is stored too,
    and cut in the answer. The service closes the artifacts."""

    text: str
    artifacts: tuple[Artifact, ...] = ()


class RunningTool(Protocol):
    """A tool of one tenant, ready for calls."""

    async def run(self, call: Call) -> Output:
        """Run one call; any number may run at once. Raises ToolFault for errors that the model should read."""

    async def aclose(self) -> None:
        """Release the tool's resources."""


class TenantServices(NamedTuple):
    """Services for a tenant's tool: `secret` returns a value of the vault by name, `opened` the name and value for a
    handle; both raise ToolFault. `sealed` creates a handle of a version of a secret."""

    tenant: str
    secret: Callable[[str], Awaitable[str]]
    opened: Callable[[str], Awaitable[OpenedSecret]]
    sealed: Callable[[str, int], str]
    bucket: BucketSettings | None = None


class OpenedSecret(NamedTuple):
    """The secret that a handle refers to."""

    name: str
    value: str


class BackendTool(Protocol):
    """A kind of tool. `shape` is the shape of its configuration with values resolved. Calls of a `high_risk` tool are
    reported to the Audit Service. If `repeatable`, an interrupted call may run again."""

    @property
    def name(self) -> str: ...  # noqa: D102  see the class

    @property
    def description(self) -> str: ...  # noqa: D102  what the model reads

    @property
    def input_schema(self) -> Mapping[str, Any]: ...  # noqa: D102  a JSON Schema object

    @property
    def shape(self) -> Shape: ...  # noqa: D102  see the class

    @property
    def high_risk(self) -> bool: ...  # noqa: D102  see the class

    @property
    def repeatable(self) -> bool: ...  # noqa: D102  see the class

    def build(self, configuration: Mapping[str, Any], services: TenantServices) -> RunningTool:
        """Build the tool for one tenant without connecting to anything. Raises ValueError, whose text quotes no
        configuration."""


# Errors before a tool runs, with the common error body of the services: {code, message, retryable, details?}.


class HttpRefusal(Exception):
    """An error response to a request. `retry_after_s` is the value of Retry-After."""

    def __init__(self, status: int, code: ErrorCode, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


def database_unreachable() -> HttpRefusal:
    """Return the refusal of a call that must not run while the database is unreachable."""
    return HttpRefusal(503, ErrorCode.INTERNAL_ERROR, "the database of answers cannot be reached", retry_after_s=5)


# Database results, within caps, as JSON for the model.


class Caps(NamedTuple):
    """Limits of a query: number of rows, bytes of their text, characters of one field, and run time."""

    max_rows: int = 1000
    max_bytes: int = 1024 * 1024
    max_field_chars: int = 8192
    timeout_s: float = 30.0

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Caps:
        """Return the caps in a connection's settings of the tenants file."""
        return cls(**{name: one for name, one in as_fields(value).items() if name in cls._fields})

    def field_chars(self, columns: int) -> int:
        """Return the number of characters to request per field, so that a row of `columns` fields stays within
        `max_bytes`."""
        return max(64, min(self.max_field_chars, self.max_bytes // (4 * max(columns, 1))))


class Table:
    """The rows of a result, up to the caps."""

    def __init__(self, columns: Sequence[str], caps: Caps) -> None:
        self.columns = list(columns)
        self.rows: list[list[Any]] = []
        self.truncated = False
        self._caps = caps
        self._bytes = 0
        self._field_chars = caps.field_chars(len(columns))

    def add(self, row: Sequence[Any]) -> bool:
        """Add a row; False if a cap is reached and no more rows fit."""
        if len(self.rows) >= self._caps.max_rows:
            self.truncated = True
            return False
        fields = [self._cut(value) for value in row]
        self._bytes += sum(len(value) if isinstance(value, str) else 8 for value in fields)
        if self._bytes > self._caps.max_bytes:
            self.truncated = True
            return False
        self.rows.append(fields)
        return True

    def output(self, secrets: Mapping[str, str]) -> Output:
        """Return {columns, rows, rowCount, truncated} as JSON; `secrets` maps secret values that were passed in to
        their replacements."""
        value = {"columns": self.columns, "rows": self.rows, "rowCount": len(self.rows), "truncated": self.truncated}
        if secrets:
            value = replace_secrets(value, secrets)
        return Output(orjson.dumps(value).decode())

    def _cut(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > self._field_chars:
            return f"{value[: self._field_chars]}… [cut]"
        return value


def replace_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """Return `value` with each secret replaced in every text."""
    if isinstance(value, str):
        for secret, replacement in secrets.items():
            value = value.replace(secret, replacement)
        return value
    if isinstance(value, list):
        return [replace_secrets(item, secrets) for item in value]
    if isinstance(value, dict):
        return {name: replace_secrets(item, secrets) for name, item in value.items()}
    return value
