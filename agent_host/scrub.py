"""Secrets that this process holds, kept away from everything it writes.

The gateway's token is the one secret that the host itself has. It is taken out of the environment, its bytes in this
process's own environment block are overwritten (a child could read them under /proc), and should its value turn up in
what a tool brings back, it is replaced before that is recorded, shown or sent.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

REDACTED = "[redacted]"
# Shorter values would be found in innocent text; a token that short protects nothing.
_MIN_CHARS = 8


class Scrubber:
    """Replaces known secret values."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        self._secrets = tuple(secret for secret in secrets if secret is not None and len(secret) >= _MIN_CHARS)

    def text(self, text: str) -> str:
        """`text` without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def data(self, data: bytes) -> bytes:
        """`data` without the secrets."""
        for secret in self._secrets:
            data = data.replace(secret.encode(), REDACTED.encode())
        return data


def take_from_environment(variable: str) -> str | None:
    """The value of `variable`, which is gone from the environment afterwards; None when it is not set or empty."""
    value = os.environ.get(variable)
    if not value:
        return None
    _overwrite(variable, len(os.fsencode(value)))
    del os.environ[variable]
    return value


def _overwrite(variable: str, length: int) -> None:
    """Blank the value where the kernel shows a process's environment: in the block it was started with."""
    if sys.platform == "win32":
        return
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(os.fsencode(variable))
    if address:
        ctypes.memset(address, ord("*"), length)
