"""A backend tool as the service sees it. Packages bring more of them by the entry point group
`agent_host.backend_tools`: each entry names one `BackendTool`.

A tool is built once for each tenant that configures it, from that tenant's configuration and nothing else: no call can
reach what another tenant has.
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
    """A bucket and how it is reached. Without `access_key_id` it is read as anybody may. Keys begin with `prefix`."""

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    prefix: str = ""
    path_style: bool = False


class TenantLimits(NamedTuple):
    """Limits of a tenant. So many calls run at once, over all workers that share a database, and wait in each worker;
    so large is a request, so long does a call take. Text above `max_inline_bytes` is stored, and cut in the answer;
    what a call stores has at most `max_stored_bytes` in all."""

    max_concurrent: int = 32
    max_queued: int = 256
    max_request_bytes: int = 1024 * 1024
    timeout_s: float = 110.0
    max_inline_bytes: int = 100_000
    max_stored_bytes: int = 1024 * 1024 * 1024


def as_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the tenants file by the names that fields have here: `max_rows` for `maxRows`."""
    return {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): one for name, one in value.items()}


ENTRY_POINTS = "agent_host.backend_tools"


class ToolFault(Exception):
    """The call has failed; the model reads `message`, which quotes no configuration. `code` is an ErrorCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message


class Call(NamedTuple):
    """One invocation, checked: arguments fit the tool's schema, the grant names the tool. It may take `timeout_s`."""

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
    """Text for the model, and what is stored in the Workspace Service. Text beyond the tenant's limit is stored as
    well, and cut in the answer. The service closes the artifacts."""

    text: str
    artifacts: tuple[Artifact, ...] = ()


class RunningTool(Protocol):
    """A tool of one tenant, ready for calls."""

    async def run(self, call: Call) -> Output:
        """Run one call; any number at once. Raises ToolFault for what the model should read."""

    async def aclose(self) -> None:
        """Release what the tool holds."""


class TenantServices(NamedTuple):
    """The means of a tenant's tool besides its own configuration: `secret` gives a value of the vault by name, `opened`
    one by its handle, with the name; both raise ToolFault. `sealed` makes a handle of a version of a secret."""

    tenant: str
    secret: Callable[[str], Awaitable[str]]
    opened: Callable[[str], Awaitable[OpenedSecret]]
    sealed: Callable[[str, int], str]
    bucket: BucketSettings | None = None


class OpenedSecret(NamedTuple):
    """The secret behind a handle."""

    name: str
    value: str


class BackendTool(Protocol):
    """A kind of tool. `shape` is what its configuration has to look like, values resolved. A `high_risk` tool's calls
    are reported to the Audit Service. With `repeatable`, a call that was cut off may be run again."""

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
        """The tool of one tenant. Connects to nothing. Raises ValueError, whose text quotes no configuration."""


# Errors before a tool runs, with the error body of all services: {code, message, retryable, details?}.


class HttpRefusal(Exception):
    """A request that is answered with an error. `retry_after_s` goes into Retry-After."""

    def __init__(self, status: int, code: ErrorCode, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


def database_is_away() -> HttpRefusal:
    """The refusal of what must not run while nobody counts it."""
    return HttpRefusal(503, ErrorCode.INTERNAL_ERROR, "the database of answers cannot be reached", retry_after_s=5)


# Results of databases, within caps, as JSON for the model.


class Caps(NamedTuple):
    """Caps on a query's rows: rows, bytes of their text, characters of one field; and how long it may run."""

    max_rows: int = 1000
    max_bytes: int = 1024 * 1024
    max_field_chars: int = 8192
    timeout_s: float = 30.0

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Caps:
        """From the tenants file."""
        return cls(**{name: one for name, one in as_fields(value).items() if name in cls._fields})

    def field_chars(self, columns: int) -> int:
        """The number of characters of a field to ask for, so that a row of so many columns stays within `max_bytes`."""
        return max(64, min(self.max_field_chars, self.max_bytes // (4 * max(columns, 1))))


class Table:
    """Rows as they come, up to the caps."""

    def __init__(self, columns: Sequence[str], caps: Caps) -> None:
        self.columns = list(columns)
        self.rows: list[list[Any]] = []
        self.truncated = False
        self._caps = caps
        self._bytes = 0
        self._field_chars = caps.field_chars(len(columns))

    def add(self, row: Sequence[Any]) -> bool:
        """Take a row; False where there is no room for it, nor for any other."""
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
        """{columns, rows, rowCount, truncated} as JSON; `secrets` are values that were given, by what replaces each."""
        value = {"columns": self.columns, "rows": self.rows, "rowCount": len(self.rows), "truncated": self.truncated}
        if secrets:
            value = replace_secrets(value, secrets)
        return Output(orjson.dumps(value).decode())

    def _cut(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > self._field_chars:
            return f"{value[: self._field_chars]}… [cut]"
        return value


def replace_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """`value` with each secret replaced, wherever a text has it."""
    if isinstance(value, str):
        for secret, said in secrets.items():
            value = value.replace(secret, said)
        return value
    if isinstance(value, list):
        return [replace_secrets(item, secrets) for item in value]
    if isinstance(value, dict):
        return {name: replace_secrets(item, secrets) for name, item in value.items()}
    return value
