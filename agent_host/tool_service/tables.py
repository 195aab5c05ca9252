"""Results of databases, within caps, as JSON for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.tool_service.tool import Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Caps(NamedTuple):
    """Caps on a query's rows: rows, bytes of their text, characters of one field; and how long it may run."""

    max_rows: int = 1000
    max_bytes: int = 1024 * 1024
    max_field_chars: int = 8192
    timeout_s: float = 30.0

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Caps:
        """From the tenants file."""
        names = {
            "maxRows": "max_rows",
            "maxBytes": "max_bytes",
            "maxFieldChars": "max_field_chars",
            "timeoutS": "timeout_s",
        }
        return cls()._replace(**{field: value[name] for name, field in names.items() if name in value})

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
        """{columns, rows, rowCount, truncated} as JSON. `secrets` are values that the query was given, by what stands
        in the place of each."""
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
