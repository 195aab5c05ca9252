"""What observers did not get (invariant 9): counted by each of them, and reported to the person who works with the
session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S = 30.0
"""An observer that goes on losing is reported once in so long."""


class Counting(Protocol):
    """An observer that counts what it did not deliver, and never will."""

    @property
    def dropped(self) -> int:
        """How many records those are so far."""
        ...


class Loss(NamedTuple):
    """`records` did not reach `observer`."""

    observer: str
    records: int

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.records} records did not reach {self.observer}"

    def to_wire(self) -> dict[str, Any]:
        """{observer, records, message}."""
        return {"observer": self.observer, "records": self.records, "message": str(self)}


class Losses:
    """The observers of one session, and what of their losses has been reported. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._observers: list[tuple[str, Counting]] = []
        self._reported: dict[int, tuple[int, float]] = {}  # by place: the number, and when it was reported
        self._clock = clock

    def watch(self, name: str, observer: Counting) -> None:
        """Count what `observer` loses, under a name that a person knows it by."""
        self._observers.append((name, observer))

    def so_far(self) -> list[Loss]:
        """All there are; complete once the observers are closed."""
        return [Loss(name, observer.dropped) for name, observer in self._observers if observer.dropped]

    def news(self) -> list[Loss]:
        """Losses that have grown since they were reported, each with its whole number; an observer comes at most once
        in INTERVAL_S. The caller reports them."""
        found: list[Loss] = []
        for place, (name, observer) in enumerate(self._observers):
            number = observer.dropped
            if not number:
                continue
            reported, at = self._reported.get(place, (0, 0.0))
            now = self._clock()
            if number > reported and (not reported or now - at >= INTERVAL_S):
                self._reported[place] = (number, now)
                found.append(Loss(name, number))
        return found
