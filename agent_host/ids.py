"""Ids and times as they stand in every message, event and record."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from functools import lru_cache

REPLAY_PREFIX = "replay_"
"""What the ids of denied calls begin with, by which a resume can run them."""

OWN_PREFIX = ".agent-host-"
"""What the names of files begin with that the host has not yet put in their places."""
_OWN_SUFFIX = ".tmp"


def new_id(prefix: str) -> str:
    """An opaque id such as `msg_9f2c...`; 64 random bits, unique within a session for all practical purposes."""
    return f"{prefix}_{os.urandom(8).hex()}"


def now_rfc3339() -> str:
    """The present moment in UTC, milliseconds, `Z` at the end."""
    return rfc3339(time.time())


def rfc3339(at: float) -> str:
    """The moment `at`, in seconds since the epoch, written like `now_rfc3339`."""
    second, milliseconds = divmod(int(at * 1000), 1000)
    return f"{_second(second)}.{milliseconds:03}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    """The whole second: many moments share one."""
    return datetime.fromtimestamp(second, UTC).isoformat()[: len("2026-01-01T00:00:00")]


def own_name(digits: str) -> str:
    """The name of a file that is not yet what it is to be; `digits` are 32 hexadecimal ones."""
    return f"{OWN_PREFIX}{digits}{_OWN_SUFFIX}"


def is_own_name(name: str) -> bool:
    """True for what `own_name` gives."""
    digits = name.removeprefix(OWN_PREFIX).removesuffix(_OWN_SUFFIX)
    return len(digits) == 32 and name == own_name(digits) and not digits.strip("0123456789abcdef")
