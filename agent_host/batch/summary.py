"""The words about a batch for a person: a line while it runs, a table and totals at its end."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from agent_host.batch.ledger import COMPLETED, INFRASTRUCTURE, SPENDING_LIMIT
from agent_host.display_text import count_noun, one_line
from agent_host.ids import MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent_host.batch import BatchTask
    from agent_host.batch.ledger import Ledger, Row
    from agent_host.batch.scheduler import Scheduler, Stop

_LISTED: Final = 50
_EVERY_S: Final = 30.0
_WHO: Final = ("model", "policy", "limit", "infrastructure", "person")


def summarize(tasks: Sequence[BatchTask], ledger: Ledger, *, stop: Stop, duration_ms: int) -> dict[str, Any]:
    """The content of `summary.json`."""
    rows = [ledger.rows[task.id] for task in tasks if task.id in ledger.rows]
    failed = Counter(row["endedBy"] for row in rows if row["status"] != COMPLETED)
    checks = [row["check"]["exitCode"] for row in rows if "check" in row]
    found: dict[str, Any] = {
        "batchId": ledger.batch_id,
        "tasks": len(tasks),
        "completed": sum(row["status"] == COMPLETED for row in rows),
        "failed": {who: failed[who] for who in _WHO if failed[who]},
        "notRun": len(tasks) - len(rows),
        "usage": {
            name: sum(row["usage"].get(name, 0) for row in rows)
            for name in ("inputTokens", "outputTokens", "cachedInputTokens")
        },
        "durationMs": duration_ms,
    }
    if checks:
        found["checks"] = {"passed": sum(code == 0 for code in checks), "failed": sum(code != 0 for code in checks)}
    costs = [row for row in rows if "cost" in row]
    if costs:
        found |= {
            "cost": sum(row["cost"] for row in costs),
            "costCurrency": max(row.get("costCurrency", "") for row in costs),
        }
    return {**found, "stopped": stop} if stop else found


def exit_code_of(tasks: Sequence[BatchTask], ledger: Ledger, stop: Stop) -> int:
    """The exit code of the command (interface, "Batch")."""
    if stop == "interrupted":
        return 130
    rows = [ledger.rows.get(task.id) for task in tasks]
    if stop or any(row is None or row["endedBy"] == INFRASTRUCTURE or row["reason"] == SPENDING_LIMIT for row in rows):
        return 3
    return 0 if all(row is not None and row["status"] == COMPLETED for row in rows) else 1


def table_of(tasks: Iterable[BatchTask], ledger: Ledger, summary: dict[str, Any]) -> str:
    """The summary in lines: what was not completed, or whose check failed, and the totals."""
    rows = [ledger.rows[task.id] for task in tasks if task.id in ledger.rows]
    shown = [row for row in rows if row["status"] != COMPLETED or row.get("check", {"exitCode": 0})["exitCode"] != 0]
    width = max((len(row["id"]) for row in shown[:_LISTED]), default=0)
    lines = [f"{row['id']:<{width}}  {_in_words(row)}" for row in shown[:_LISTED]]
    lines += [f"and {len(shown) - _LISTED} more (results.jsonl)"] if len(shown) > _LISTED else []
    failed = [f"{number} by {who}" for who, number in summary["failed"].items()]
    totals = [f"{summary['completed']} of {count_noun(summary['tasks'], 'task')} completed"]
    totals += [f"ended otherwise: {', '.join(failed)}"] if failed else []
    totals += [f"{summary['notRun']} not run"] if summary["notRun"] else []
    if "checks" in summary:
        totals.append(f"{summary['checks']['passed']} checks passed, {summary['checks']['failed']} failed")
    if "cost" in summary:
        totals.append(f"{summary['cost']:.4f} {summary['costCurrency']}")
    return "".join(f"{line}\n" for line in [*lines, "; ".join(totals)])


def _in_words(row: Row) -> str:
    check = row.get("check")
    parts = [] if row["status"] == COMPLETED else [f"{row['endedBy']}: {row['reason']}", row.get("message", "")]
    parts += [] if check is None else [f"check {check['exitCode'] if check['exitCode'] is not None else check['why']}"]
    return one_line(", ".join(part for part in parts if part), 200)


class Progress:
    """One line on standard error: drawn over at a terminal, else a new one now and then."""

    def __init__(self, tasks: Sequence[BatchTask], ledger: Ledger) -> None:
        self._tasks = tasks
        self._ledger = ledger
        self._began = self._said = MACHINE.monotonic()
        self._at_first = sum(task.id in ledger.rows for task in tasks)
        self._is_drawn = False

    def tell(self, scheduler: Scheduler) -> None:
        """Say how the batch stands, if it is time."""
        now = MACHINE.monotonic()
        if sys.stderr.isatty():
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{self.line(scheduler)[: columns - 1]}")
            self._is_drawn = True
        elif now - self._said >= _EVERY_S:
            self._said = now
            sys.stderr.write(f"agent-host: {self.line(scheduler)}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def line(self, scheduler: Scheduler) -> str:
        """Done, running, failed by whom, rate, cost, time left."""
        rows = [row for task in self._tasks if (row := self._ledger.rows.get(task.id)) is not None]
        failed = Counter(row["endedBy"] for row in rows if row["status"] != COMPLETED)
        done, left = len(rows), scheduler.waiting + scheduler.running
        seconds = MACHINE.monotonic() - self._began
        rate = max(0, done - self._at_first) / seconds if seconds else 0.0
        parts = [f"{done} of {len(self._tasks)} done", f"{scheduler.running} running"]
        parts += [f"{number} ended by {who}" for who, number in failed.items()]
        parts += [f"{60 * rate:.1f} a minute"] if rate else []
        cost = sum(row.get("cost", 0.0) for row in rows)
        parts += [f"cost {cost:.2f}"] if cost else []
        left_s = left / rate if rate else 0.0
        parts += [f"about {f'{left_s / 60:.0f} min' if left_s >= 120 else f'{left_s:.0f} s'} left"] if left_s else []
        return ", ".join(parts)
