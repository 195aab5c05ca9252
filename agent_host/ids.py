"""Ids and times of messages, events and records, and the clock and random numbers for them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

REPLAY_PREFIX = "replay_"
"""Prefix of the ids of denied calls, by which a resume can run them."""

OWN_PREFIX = ".agent-host-"
"""Prefix of the host's temporary files, before they are renamed into place."""
_OWN_SUFFIX = ".tmp"


class Outside(NamedTuple):
    """The clock and random numbers of one session, injected by composition (decision 0110). Timers, sockets and worker
    threads come from the event loop that the process has chosen.

    `time` returns seconds since the epoch, `monotonic` those of the monotonic clock, `random_bytes` unpredictable
    bytes.
    """

    time: Callable[[], float]
    monotonic: Callable[[], float]
    random_bytes: Callable[[int], bytes]

    def now(self) -> datetime:
        """The present moment in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def stamp(self) -> str:
        """The present moment in UTC, milliseconds, `Z` at the end."""
        return rfc3339(self.time())

    def new_id(self, prefix: str) -> str:
        """An opaque id such as `msg_9f2c...`; 64 random bits, unique within a session for all practical purposes."""
        return f"{prefix}_{self.random_bytes(8).hex()}"

    def ms_since(self, started: float) -> int:
        """Whole milliseconds since `started`, a value of `monotonic`."""
        return int((self.monotonic() - started) * 1000)

    def fraction(self) -> float:
        """A number from 0 to 1, without 1; each is as likely."""
        return int.from_bytes(self.random_bytes(6)) / (1 << 48)


MACHINE = Outside(time.time, time.monotonic, os.urandom)
"""The clock and the chance of this machine. Only what composes a session names it; all else is handed its outside."""


def rfc3339(at: float) -> str:
    """The moment `at`, in seconds since the epoch: in UTC, milliseconds, `Z` at the end."""
    second, milliseconds = divmod(int(at * 1000), 1000)
    return f"{_second(second)}.{milliseconds:03}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    """The whole second: many moments share one."""
    return datetime.fromtimestamp(second, UTC).isoformat()[: len("2026-01-01T00:00:00")]


def own_name(digits: str) -> str:
    """The name of an unfinished file; `digits` are 32 hexadecimal ones."""
    return f"{OWN_PREFIX}{digits}{_OWN_SUFFIX}"


def is_own_name(name: str) -> bool:
    """True for what `own_name` gives."""
    digits = name.removeprefix(OWN_PREFIX).removesuffix(_OWN_SUFFIX)
    return len(digits) == 32 and name == own_name(digits) and not digits.strip("0123456789abcdef")
