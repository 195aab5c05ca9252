"""The timeline of a session and its charts, as positions and sizes in a drawing of 1,000 units; templates draw them.

Long idle stretches, such as a night between two processes, are shortened, because they would leave no room for the
rest. Bars narrower than a unit are joined with their neighbour, so that a drawing has a bounded size.
"""

from __future__ import annotations

import bisect
import itertools
import math
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.display_text import count_noun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from agent_host import Item, Wait

WIDTH: Final = 1000
_ROW: Final = 18
_MOST_ROWS: Final = 8
_SHORT: Final = 24
_LEAST_GAP_S: Final = 20.0
STALL_S: Final[Mapping[str, float]] = {"model": 30, "tool": 60, "person": 10, "slot": 10, "service": 30}
"""A wait of at least this many seconds is listed."""
_LANES: Final = (("model", "Model"), ("tool", "Tools"), ("person", "Person"), ("service", "Services"))


class Bar(NamedTuple):
    """A wait in the drawing. `href` links to its item, "" for none."""

    x: float
    y: int
    width: float
    kind: str
    label: str
    href: str
    is_stall: bool


class Timeline(NamedTuple):
    """The drawing: {name, y, height} of each lane, and {x, kind, label, href} of marks, which are moments across all
    lanes. `gaps` are shortened stretches: {x, width, kind, label}. `stalls` are the longest waits."""

    height: int
    lanes: list[tuple[str, int, int]]
    bars: list[Bar]
    marks: list[tuple[float, str, str, str]]
    gaps: list[dict[str, Any]]
    ticks: list[tuple[float, str]]
    stalls: list[Bar]


def seconds(moment: str) -> float:
    """A moment in RFC 3339 as seconds since the epoch; 0 if it is not one."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0


def duration_text(spent_s: float) -> str:
    """`840 ms`, `4.2 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if spent_s < 1:
        return f"{spent_s * 1000:.0f} ms"
    if spent_s < 60:
        return f"{spent_s:.1f} s"
    total_s = int(spent_s)
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60:02} s"
    if total_s < 86_400:
        return f"{total_s // 3600} h {total_s % 3600 // 60:02} min"
    return f"{total_s // 86_400} d {total_s % 86_400 // 3600} h"


def draw(waits: Sequence[Wait], items: Sequence[Item], links: Mapping[str, str]) -> Timeline | None:
    """Return the timeline; None if no times are known. `links` has the page's link to an item or a step by its id; open
    spans end at the last known moment."""
    moments = [seconds(item["timestamp"]) for item in items]
    moments += [seconds(moment) for wait in waits for moment in (wait.started_at, wait.ended_at) if moment]
    if not moments or min(moments) == max(moments):
        return None
    last = max(moments)
    spans = [(seconds(wait.started_at), seconds(wait.ended_at) if wait.ended_at else last, wait) for wait in waits]
    scale = _Scale(min(moments), last, [(start, end) for start, end, wait in spans if wait.on != "process"])
    y, lanes, bars = 0, list[tuple[str, int, int]](), list[Bar]()
    for kind, name in _LANES:
        mine = [span for span in spans if (span[2].on if span[2].on != "slot" else "tool") == kind]
        if not mine:
            continue
        rows = _rows(mine)
        height = (max(rows) + 1) * _ROW + 6
        bars += _joined(_bar(span, scale, y + 3 + row * _ROW, links) for span, row in zip(mine, rows, strict=True))
        lanes.append((name, y, height))
        y += height
    marks = [
        (scale.x(seconds(item["timestamp"])), item["mark"], item["mark"].replace("_", " "), links[item["itemId"]])
        for item in items
        if item["kind"] == "mark" and item["itemId"] in links and item["mark"] in MARKED
    ]
    no_process = [(start, end) for start, end, wait in spans if wait.on == "process"]
    gaps = []
    for kind, start, end in [*(("idle", *gap) for gap in scale.gaps), *(("away", *gap) for gap in no_process)]:
        x, label = scale.x(start), duration_text(end - start)
        gaps.append({"x": x, "width": max(scale.x(end) - x, 1), "kind": kind, "label": label})
    stalls = sorted((bar for bar in bars if bar.is_stall), key=lambda bar: -bar.width)[:8]
    return Timeline(y, lanes, bars, marks, gaps, scale.ticks(), stalls)


MARKED: Final = frozenset(
    ("crashed", "session_resumed", "session_paused", "context_compacted", "task_failed", "task_cancelled",
     "task_completed", "llm_retry", "task_steered")
)  # fmt: skip
"""Marks that the timeline shows."""


class _Scale:
    """Maps time to position: proportional, except in gaps."""

    def __init__(self, first: float, last: float, busy: Iterable[tuple[float, float]]) -> None:
        self.gaps: list[tuple[float, float]] = []
        least, at = max(_LEAST_GAP_S, (last - first) * 0.02), first
        for start, end in sorted(busy):
            if start - at > least:
                self.gaps.append((at, start))
            at = max(at, end)
        if last - at > least:
            self.gaps.append((at, last))
        shown = (last - first) - sum(end - start for start, end in self.gaps)
        self.gaps = self.gaps if shown > 0 and len(self.gaps) * _SHORT < WIDTH / 2 else []
        shown = (last - first) - sum(end - start for start, end in self.gaps)
        self._rate = (WIDTH - _SHORT * len(self.gaps)) / shown
        self._knots, self._places = [first], [0.0]
        for start, end in [*self.gaps, (last, last)]:
            self._knots += [start, end]
            place = self._places[-1] + (start - self._knots[-3]) * self._rate
            self._places += [place, place + (_SHORT if end > start else 0)]

    def x(self, moment: float) -> float:
        at = min(max(bisect.bisect_right(self._knots, moment) - 1, 0), len(self._knots) - 2)
        (start, end), (low, high) = self._knots[at : at + 2], self._places[at : at + 2]
        share = 0.0 if end <= start else min(max((moment - start) / (end - start), 0.0), 1.0)
        return round(low + share * (high - low), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Some positions, with the time since the start."""
        first, last = self._knots[0], self._knots[-1]
        shown = last - first - sum(end - start for start, end in self.gaps)
        wanted = next((one for one in _TICKS if shown / one <= 8), _TICKS[-1])
        found: list[tuple[float, str]] = []
        for number in range(1, int((last - first) // wanted) + 1 if (last - first) / wanted < 10_000 else 0):
            moment = first + number * wanted
            place = self.x(moment)
            if any(start < moment < end for start, end in self.gaps) or place > WIDTH - 40:
                continue
            if not found or place - found[-1][0] > 80:
                found.append((place, duration_text(number * wanted)))
        return found


_TICKS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)


def _rows(spans: Sequence[tuple[float, float, Wait]]) -> list[int]:
    """The row of each span of a lane: a free one, or the last if too many run at once."""
    free: list[float] = []
    rows = []
    for start, end, _ in spans:
        row = next((place for place, until in enumerate(free) if until <= start), len(free))
        row = min(row, _MOST_ROWS - 1)
        if row == len(free):
            free.append(end)
        else:
            free[row] = max(free[row], end)
        rows.append(row)
    return rows


def _bar(span: tuple[float, float, Wait], scale: _Scale, y: int, links: Mapping[str, str]) -> Bar:
    start, end, wait = span
    x = scale.x(start)
    href = links.get(wait.item_id or "", links.get(wait.step_id or "", ""))
    label = f"{_WORDS[wait.on]}{f' {wait.what}' if wait.what else ''}, {duration_text(end - start)}"
    return Bar(x, y, max(scale.x(end) - x, 1.0), wait.on, label, href, end - start >= STALL_S.get(wait.on, 1e9))


_WORDS: Final = {
    "model": "model", "tool": "tool", "person": "waits for a person:", "slot": "waits for a slot:",
    "service": "service", "process": "no process",
}  # fmt: skip


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """Drop bars that would cover the previous one of their row and kind, except stalls."""
    shown: list[Bar] = []
    last: dict[tuple[int, str], int] = {}
    for bar in bars:
        before = last.get((bar.y, bar.kind))
        if before is not None and not bar.is_stall and bar.x + bar.width - shown[before].x <= 1.5:
            continue
        last[bar.y, bar.kind] = len(shown)
        shown.append(bar)
    return shown


# Charts over the steps.


class Chart(NamedTuple):
    """A chart 1,000 units wide and 120 high: stacked bars of `series`, or a line. `top` is the value at its top;
    `points` is a line in SVG syntax."""

    title: str
    top: str
    bars: list[tuple[float, float, float, float, str]]
    points: str
    legend: list[tuple[str, str]]
    caption: str


_HEIGHT: Final = 120
_MOST_BARS: Final = 250
_WIDEST: Final = 50.0
_KINDS: Final = (("cached", "cached input"), ("input", "other input"), ("output", "output"))


def tokens_chart(steps: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Tokens by kind for each step; with many steps, means of several."""
    rows = []
    for step in steps:
        if "inputTokens" in step:
            cached = int(step.get("cachedInputTokens") or 0)
            rows.append((cached, max(int(step["inputTokens"]) - cached, 0), int(step.get("outputTokens") or 0)))
    if not rows:
        return None
    size = -(-len(rows) // _MOST_BARS)
    groups = [rows[at : at + size] for at in range(0, len(rows), size)]
    means = [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups]
    top = max(sum(mean) for mean in means) or 1
    width = min(WIDTH / len(means), _WIDEST)
    bars = []
    for place, mean in enumerate(means):
        y = float(_HEIGHT)
        for (kind, _), value in zip(_KINDS, mean, strict=True):
            height = value / top * _HEIGHT
            y -= height
            if height >= 0.1:
                bars.append((round(place * width, 1), round(y, 1), round(width * 0.86, 1), round(height, 1), kind))
    total = [sum(column) for column in zip(*rows, strict=True)]
    totals = ", ".join(f"{value:,} {name}" for (_, name), value in zip(_KINDS, total, strict=True))
    each = "" if size == 1 else f" (means of {size} steps)"
    caption = f"{totals}, over {count_noun(len(rows), 'step')}{each}"
    return Chart("Tokens of each step", f"{top:,.0f}", bars, "", list(_KINDS), caption)


def cost_chart(steps: Sequence[Mapping[str, Any]]) -> Chart | None:
    """The cumulated cost over the steps; None if it is unknown."""
    costs = [float(step["cost"]) for step in steps if step.get("cost") is not None]
    if not costs or not sum(costs):
        return None
    sums = [0.0, *itertools.accumulate(costs)]
    every = max(1, len(sums) // 500)
    places = [*range(0, len(sums) - 1, every), len(sums) - 1]
    points = " ".join(
        f"{place / (len(sums) - 1) * WIDTH:.1f},{_HEIGHT - sums[place] / sums[-1] * _HEIGHT:.1f}" for place in places
    )
    currency = next((str(step["costCurrency"]) for step in steps if step.get("costCurrency")), "")
    dearest = max(range(len(costs)), key=costs.__getitem__)
    caption = f"{sums[-1]:.4g} {currency} in all; the dearest step is {dearest + 1}, {costs[dearest]:.4g} {currency}"
    return Chart("Cost so far", f"{sums[-1]:.4g} {currency}", [], points, [], caption)


def spread_chart(title: str, values: Sequence[float | None], words: Callable[[float], str]) -> Chart | None:
    """A histogram of values; None for fewer than two. Ranges grow by the same factor, because one session may cost a
    thousand times as much as another."""
    known = sorted(value for value in values if value is not None and value > 0)
    if len(known) < 2:
        return None
    low, high = known[0], known[-1]
    ranges = 20 if high > low else 1
    factor = (high / low) ** (1 / ranges) if ranges > 1 else 1.0
    counts = [0] * ranges
    for value in known:
        counts[min(int(math.log(value / low, factor)) if factor > 1 else 0, ranges - 1)] += 1
    width = min(WIDTH / ranges, 4 * _WIDEST)
    bars = [
        (round(place * width, 1), round(_HEIGHT - count / max(counts) * _HEIGHT, 1), round(width * 0.86, 1),
         round(count / max(counts) * _HEIGHT, 1), "input")
        for place, count in enumerate(counts) if count
    ]  # fmt: skip
    middle = known[len(known) // 2]
    caption = f"{words(low)} to {words(high)}, half of them below {words(middle)}, {words(sum(known))} in all"
    return Chart(title, count_noun(max(counts), "session"), bars, "", [], caption)
