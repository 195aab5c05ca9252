"""What is kept of sessions, and for how long: the choice by age, count and size (SK 6/7, AH 9.6).

Pure; `state.session_pruner` looks at what lies on disk and removes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Standing(StrEnum):
    """What a session is to pruning."""

    ENDED = "ended"
    RESUMABLE = "resumable"
    DAMAGED = "damaged"  # an unreadable checkpoint, or only quarantined ones
    HELD = "held"  # by a live process, or about to be
    FOREIGN = "foreign"  # of a newer program, or not to be made out: never ours to remove


class Reason(StrEnum):
    """Which limit a session is over; the first of them in this order."""

    AGE = "age"
    COUNT = "count"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Stored:
    """One session on disk. `last_used` in seconds since the epoch, `size_bytes` of all its files but the lock."""

    session_id: str
    last_used: float
    size_bytes: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Limits:
    """What may stay: sessions used within `max_age_s`, the newest `max_sessions`, the newest that together have
    `max_bytes`. None: no such limit."""

    max_age_s: float | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A session that goes, and why."""

    stored: Stored
    reason: Reason


def choose(rows: Iterable[Stored], limits: Limits, *, now: float, resumable: bool = False) -> list[Chosen]:
    """The sessions to remove, oldest first (SK 6/7).

    Only ended sessions are counted, and resumable and damaged ones together with them when `resumable`; what is held or
    foreign neither goes nor takes another's place. What is exactly at a limit stays. Once one is over the count or the
    size, every older one is too. `now` in seconds since the epoch.
    """
    standings = {Standing.ENDED} | ({Standing.RESUMABLE, Standing.DAMAGED} if resumable else set())
    pool = [row for row in rows if row.standing in standings]
    pool.sort(key=lambda row: (row.last_used, row.session_id), reverse=True)
    chosen: list[Chosen] = []
    total = 0
    for newer, row in enumerate(pool):
        total += row.size_bytes
        if limits.max_age_s is not None and now - row.last_used > limits.max_age_s:
            chosen.append(Chosen(row, Reason.AGE))
        elif limits.max_sessions is not None and newer >= limits.max_sessions:
            chosen.append(Chosen(row, Reason.COUNT))
        elif limits.max_bytes is not None and total > limits.max_bytes:
            chosen.append(Chosen(row, Reason.SIZE))
    return chosen[::-1]
