"""Errors before a tool runs, with the error body of all services: {code, message, retryable, details?}."""

from __future__ import annotations

from typing import Any

from agent_host.errors import ErrorCode


class Refusal(Exception):
    """A request that is answered with an error. `retry_after_s` goes into Retry-After."""

    def __init__(self, status: int, code: ErrorCode, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The error as it stands on the wire."""
        return {"code": str(self.code), "message": self.message, "retryable": self.status in (429, 503)}


def database_is_away() -> Refusal:
    """The refusal of what must not run while nobody counts it."""
    return Refusal(503, ErrorCode.INTERNAL_ERROR, "the database of answers cannot be reached", retry_after_s=5)
