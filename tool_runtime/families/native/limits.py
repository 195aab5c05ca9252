"""Ceilings of the native tools (NT): arguments may lower them, never raise them."""

from __future__ import annotations

from typing import Final

MAX_FILE_BYTES: Final = 1024 * 1024
PAGE_SIZE: Final = 200
MAX_PAGE_SIZE: Final = 10_000
MAX_RESULTS: Final = 1000
MAX_FILES_VISITED: Final = 10_000
EXEC_TIMEOUT_MS: Final = 30_000
STDOUT_BYTES: Final = 2 * 1024 * 1024
STDERR_BYTES: Final = 1024
FETCH_TIMEOUT_MS: Final = 5_000
FETCH_REDIRECTS: Final = 5
FETCH_BODY_BYTES: Final = 2 * 1024 * 1024
