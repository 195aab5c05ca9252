"""A clock that a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_host.cli.progress import Clock

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class DueCall:
    """A call that is due at `at`."""

    at: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class SetClock(Clock):
    """Stands at 0 until `advance`. `waiting` are the calls that are due later."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[DueCall] = []

    @property
    def waiting(self) -> list[DueCall]:
        return [due for due in self._calls if not due.cancelled]

    def now(self) -> float:
        return self._now

    def later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        self._calls.append(DueCall(self._now + delay_s, call))
        return self._calls[-1].cancel

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and make the calls that are due meanwhile, each at its time."""
        end = self._now + seconds
        while due := sorted((call for call in self.waiting if call.at <= end + 1e-9), key=lambda call: call.at):
            self._calls.remove(due[0])
            self._now = max(self._now, due[0].at)
            due[0].call()
        self._now = end
