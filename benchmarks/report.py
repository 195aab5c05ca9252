"""The line of a report, and how its figures are made."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MIB = 1024 * 1024


class Row(NamedTuple):
    """One figure. A goal is the most that it may be."""

    what: str
    figure: float
    unit: str = ""
    goal: float | None = None
    note: str = ""

    def __str__(self) -> str:
        goal, verdict = "", ""
        if self.goal is not None:
            goal, verdict = f"≤ {self.goal:g}", "ok" if self.figure <= self.goal else "MISSED"
        return f"{self.what:61}  {self.figure:9.2f} {self.unit:4} {goal:7} {verdict:7} {self.note}".rstrip()


def medians(rows: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The median of each column."""
    return tuple(map(statistics.median, zip(*rows, strict=True)))


def milliseconds(work: Callable[[], object]) -> float:
    """Time one run of `work`."""
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6
