"""Limits of the skills family (SK 5, 6)."""

from __future__ import annotations

from typing import Final

from tool_runtime.core.skills import MAX_EXCERPT_CHARS as EXCERPT_CHARS
from tool_runtime.core.skills import MAX_RESOURCE_BYTES as FILE_BYTES

__all__ = [
    "ARGUMENTS",
    "ARGUMENT_CHARS",
    "BODY_BYTES",
    "ENTRIES",
    "EXCERPT_CHARS",
    "FILE_BYTES",
    "MAX_ENTRIES",
    "MAX_RESULTS",
    "OUTPUT_CHARS",
    "RESULTS",
    "SCRIPT_TIMEOUT_S",
]

ENTRIES: Final = 200
MAX_ENTRIES: Final = 1000
RESULTS: Final = 100
MAX_RESULTS: Final = 1000
OUTPUT_CHARS: Final = 10_000
ARGUMENTS: Final = 100
ARGUMENT_CHARS: Final = 4096
SCRIPT_TIMEOUT_S: Final = 30
BODY_BYTES: Final = 2 * 1024 * 1024
"""Of the answer to a request."""
