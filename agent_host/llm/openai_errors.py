"""Errors that servers of OpenAI's wires report in the middle of a stream, behind HTTP 200."""

from __future__ import annotations

from typing import Any, Final

from agent_host.llm.stream import StreamFault
from agent_host.llm.surrogates import repaired

# Errors that would come again; all others are passing troubles of the gateway. By `code` and by `type`.
_PERMANENT: Final = frozenset(
    ("authentication_error", "billing_error", "billing_hard_limit_reached", "billing_not_active", "content_filter",
     "content_policy_violation", "context_length_exceeded", "exceed_context_size_error", "insufficient_quota",
     "invalid_api_key", "invalid_prompt", "invalid_request", "invalid_request_error", "model_not_found",
     "not_found_error", "permission_denied", "permission_error", "unsupported_parameter", "unsupported_value")
)  # fmt: skip
# Of the 4xx, those that pass.
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})


def fault_of(error: Any) -> StreamFault:
    """The fault of an `error` object with `message`, `type` and `code`, or of a text that stands for it."""
    if not isinstance(error, dict):
        return StreamFault(repaired(str(error))[0], retryable=True, body={"error": error})
    kinds = [error.get("code"), error.get("type")]
    message = error.get("message")
    name = next((kind for kind in reversed(kinds) if isinstance(kind, str) and kind), None) or error.get("code")
    said = message if isinstance(message, str) else ""
    text, _ = repaired(f"{name or 'error'}: {said}")
    return StreamFault(text, retryable=not any(map(_is_permanent, kinds)), body={"error": error})


def _is_permanent(kind: Any) -> bool:
    """`kind` is a word, or an HTTP status as a number or a text."""
    if isinstance(kind, str) and kind.isascii() and kind.isdigit():
        kind = int(kind[:4])
    if type(kind) is int:
        return 400 <= kind < 500 and kind not in _PASSING_STATUS
    return isinstance(kind, str) and kind.lower() in _PERMANENT
