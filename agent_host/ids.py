"""Ids and times as they stand in every message, event and record."""

from __future__ import annotations

import os
from datetime import UTC, datetime

REPLAY_PREFIX = "replay_"
"""What the ids of denied calls begin with, by which a resume can run them."""


def new_id(prefix: str) -> str:
    """An opaque id such as `msg_9f2c...`; 64 random bits, unique within a session for all practical purposes."""
    return f"{prefix}_{os.urandom(8).hex()}"


def now_rfc3339() -> str:
    """The present moment in UTC, milliseconds, `Z` at the end."""
    return _written(datetime.now(UTC))


def rfc3339(at: float) -> str:
    """The moment `at`, in seconds since the epoch, written like `now_rfc3339`."""
    return _written(datetime.fromtimestamp(at, UTC))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
