"""The directory of a batch: its tasks, their results, and the output files for the user.

`batch.json` has the batch's random id and the fingerprint of each task id; a lock prevents a second batch in the
directory. When a session ends, a line is appended to `results.jsonl` and made durable before anything that depends on
it starts; the last line of an id counts, and a line that a crash truncated is dropped. A clean end leaves one line per
id, in the order of the tasks, followed by ids of earlier task files, and rewrites `predictions.jsonl` and
`summary.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.display_text import count_noun, one_line
from agent_host.errors import SessionHeld, UsageError
from agent_host.ids import MACHINE
from config import json_text
from config.shapes import list_problems
from state import SessionLocked, WriteFailed
from state.disk import LOCAL_DISK, SessionLock, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent_host.batch import BatchTask

INFRASTRUCTURE: Final = "infrastructure"
SPENDING_LIMIT: Final = "SPENDING_LIMIT"
"""Reason of a session that the batch's `--max-cost` has stopped: a run with a higher limit continues it."""
COMPLETED: Final = "TASK_COMPLETED"
_BATCH_ID: Final = re.compile(r"[0-9a-f]{16}")

Stop = Literal["", "broken", "interrupted", "unwritten"]
"""The reason why a batch stopped early; "" if it completed."""
Row = dict[str, Any]
"""A line of `results.jsonl` (interface, "Batch")."""


def is_over(row: Row) -> bool:
    """True if the id is finished: neither a retry nor another run of the command can help."""
    return row["endedBy"] != INFRASTRUCTURE and not row["retryable"]


class Ledger:
    """The directory `path`, locked until `close`. Raises SessionHeld if another process has locked it, UsageError if it
    belongs to other tasks or cannot be read or written."""

    def __init__(self, path: str, tasks: Sequence[BatchTask], launch: str) -> None:
        self.path = path
        self.tasks = tasks
        try:
            os.makedirs(self.at("patches"), exist_ok=True)
            self._lock = SessionLock.acquire(self.at(".lock"), "batch")
        except SessionLocked as error:
            raise SessionHeld(f"another process ({error.pid}) runs the batch in {path}") from error
        except (OSError, WriteFailed) as error:
            raise UsageError(f"--out {path}: {getattr(error, 'strerror', None) or error}") from error
        with contextlib.ExitStack() as unready:
            unready.callback(self._lock.release, remove=False)
            try:
                self.batch_id = self._identify(launch)
                self.rows = self._read()
                self._file = open(self.at("results.jsonl"), "ab", buffering=0)  # noqa: SIM115  closed by `close`
            except OSError as error:
                raise UsageError(f"--out {path}: {error.strerror}") from error
            unready.pop_all()

    def at(self, *names: str) -> str:
        """Return a path in the directory."""
        return os.path.join(self.path, *names)

    @property
    def task_rows(self) -> list[Row]:
        """The rows of the tasks that have one, in the order of the tasks."""
        return [self.rows[task.id] for task in self.tasks if task.id in self.rows]

    def session_id(self, task: BatchTask) -> str:
        """Return the id of the task's session."""
        return f"b-{self.batch_id}-{task.key}"

    def patch_of(self, task: BatchTask) -> str:
        """Return the path of the patch of the task's session."""
        return self.at("patches", f"{task.id}.patch")

    def patch_row(self, task: BatchTask) -> Row:
        """Return the field of a row that names the patch, if there is one."""
        return {"patchFile": f"patches/{task.id}.patch"} if os.path.exists(self.patch_of(task)) else {}

    def keep_file(self, content: bytes) -> str:
        """Write a file with this content in the directory and return its path. Raises OSError."""
        path = self.at("work", "files", f"{hashlib.sha256(content).hexdigest()[:16]}.json")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_atomically(LOCAL_DISK, path, [content])
        return path

    def add(self, row: Row) -> None:
        """Record a row; on return it is durable. Raises OSError, after an attempt to remove what was written of it."""
        start = os.fstat(self._file.fileno()).st_size
        left = memoryview(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            raise
        self.rows[row["id"]] = row

    def finish(self, summary: Row) -> None:
        """Rewrite the results with one line per id, and the files derived from them. Raises OSError."""
        ids = dict.fromkeys([*(task.id for task in self.tasks if task.id in self.rows), *self.rows])
        rows = [self.rows[one] for one in ids]
        self._replace("results.jsonl", rows)
        self._replace("predictions.jsonl", self._predictions(rows))
        self._replace("summary.json", [summary])

    def close(self) -> None:
        """Release the directory."""
        self._file.close()
        self._lock.release(remove=True)

    def _predictions(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Yield predictions in SWE-bench's format. Tasks that the infrastructure ended are left out, because they do
        not measure the model."""
        for row in rows:
            if row["endedBy"] == INFRASTRUCTURE:
                continue
            patch = b""
            if row.get("patchFile"):
                with contextlib.suppress(OSError), open(self.at(row["patchFile"]), "rb") as file:
                    patch = file.read()
            model = str(row.get("model", "")) or "agent-host"
            text = patch.decode("utf-8", "replace")
            yield {"instance_id": row["id"], "model_name_or_path": model, "model_patch": text}

    def _replace(self, name: str, rows: Iterable[Row]) -> None:
        new = self.at(f"{name}.new")
        with open(new, "wb") as file:
            file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.at(name))

    def _identify(self, launch: str) -> str:
        """Return the batch's id. `launch` identifies the batch's policy, which must stay the same, as the tasks
        must."""
        meant = {task.id: task.fingerprint for task in self.tasks}
        known = self._known()
        if known is None:
            batch_id = MACHINE.new_id("b").removeprefix("b_")[:16]
            self._replace("batch.json", [{"batchId": batch_id, "policy": launch, "tasks": meant}])
            return batch_id
        other = [one for one, what in meant.items() if known["tasks"].get(one, what) != what]
        problems = [f"line of id {one}: another prompt, workspace or policy than before" for one in other]
        if known["policy"] != launch:
            problems.insert(0, "another --policy or batch.node_storage than before")
        if problems:
            raise UsageError(f"{self.path} is of other tasks: {list_problems(problems)}; choose another --out")
        if not meant.keys() <= known["tasks"].keys():
            self._replace("batch.json", [{**known, "tasks": {**known["tasks"], **meant}}])
        return str(known["batchId"])

    def _known(self) -> Row | None:
        try:
            with open(self.at("batch.json"), "rb") as file:
                value = json_text.loads(file.read())
        except FileNotFoundError:
            if os.path.exists(self.at("results.jsonl")):
                raise UsageError(f"{self.path} has results and no batch.json: choose another --out") from None
            return None
        except orjson.JSONDecodeError:
            value = None
        shapes = isinstance(value, dict) and isinstance(value.get("tasks"), dict)
        if not shapes or not _BATCH_ID.fullmatch(str(value.get("batchId"))):
            raise UsageError(f"{self.at('batch.json')} is damaged: choose another --out")
        return {"policy": "", **value}

    def _read(self) -> dict[str, Row]:
        """Return the last row of each id. A line that a crash truncated is dropped, also from the file."""
        rows: dict[str, Row] = {}
        path = self.at("results.jsonl")
        try:
            with open(path, "r+b") as file:
                data = file.read()
                end = data.rfind(b"\n") + 1
                if end < len(data):
                    file.truncate(end)
        except FileNotFoundError:
            return rows
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                row = json_text.loads(line)
                rows[row["id"]] = row
                bool(row["endedBy"] and row["retryable"])
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise UsageError(f"{path}: line {number} is damaged: choose another --out") from error
        return rows


# Output about a batch for the user: a progress line while it runs, a table and totals at its end.

_LISTED: Final = 50
_WHO: Final = ("model", "policy", "limit", "infrastructure", "person")


def summarize(ledger: Ledger, *, stop: Stop, duration_ms: int) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    rows = ledger.task_rows
    failed = Counter(row["endedBy"] for row in rows if row["status"] != COMPLETED)
    checks = [row["check"]["exitCode"] for row in rows if "check" in row]
    found: dict[str, Any] = {
        "batchId": ledger.batch_id,
        "tasks": len(ledger.tasks),
        "completed": sum(row["status"] == COMPLETED for row in rows),
        "failed": {who: failed[who] for who in _WHO if failed[who]},
        "notRun": len(ledger.tasks) - len(rows),
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
        found["cost"] = sum(row["cost"] for row in costs)
        found["costCurrency"] = max(row.get("costCurrency", "") for row in costs)
    return {**found, "stopped": stop} if stop else found


def exit_code_of(ledger: Ledger, stop: Stop) -> int:
    """Return the exit code of the command (interface, "Batch")."""
    if stop == "interrupted":
        return 130
    rows = [ledger.rows.get(task.id) for task in ledger.tasks]
    if stop or any(row is None or row["endedBy"] == INFRASTRUCTURE or row["reason"] == SPENDING_LIMIT for row in rows):
        return 3
    return 0 if all(row is not None and row["status"] == COMPLETED for row in rows) else 1


def table_of(ledger: Ledger, summary: dict[str, Any]) -> str:
    """Return the summary as lines: tasks that were not completed or whose check failed, and the totals."""
    rows = ledger.task_rows
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
    """A progress line on standard error: redrawn in place on a terminal, else a new line every 30 s."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._started_at = self._printed_at = MACHINE.monotonic()
        self._at_first = len(ledger.task_rows)
        self._is_drawn = False

    def print_if_due(self, waiting: int, running: int) -> None:
        """Print the batch's progress, if a line is due."""
        now = MACHINE.monotonic()
        if sys.stderr.isatty():
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{self._line(waiting, running)[: columns - 1]}")
            self._is_drawn = True
        elif now - self._printed_at >= 30.0:
            self._printed_at = now
            sys.stderr.write(f"agent-host: {self._line(waiting, running)}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _line(self, waiting: int, running: int) -> str:
        rows = self._ledger.task_rows
        failed = Counter(row["endedBy"] for row in rows if row["status"] != COMPLETED)
        done, left = len(rows), waiting + running
        seconds = MACHINE.monotonic() - self._started_at
        rate = max(0, done - self._at_first) / seconds if seconds else 0.0
        parts = [f"{done} of {len(self._ledger.tasks)} done", f"{running} running"]
        parts += [f"{number} ended by {who}" for who, number in failed.items()]
        parts += [f"{60 * rate:.1f} a minute"] if rate else []
        cost = sum(row.get("cost", 0.0) for row in rows)
        parts += [f"cost {cost:.2f}"] if cost else []
        left_s = left / rate if rate else 0.0
        parts += [f"about {f'{left_s / 60:.0f} min' if left_s >= 120 else f'{left_s:.0f} s'} left"] if left_s else []
        return ", ".join(parts)
