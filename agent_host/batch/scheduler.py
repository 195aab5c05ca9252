"""Scheduling of a batch's tasks: run several at once, and retry failures of the infrastructure, until all have ended.

- An attempt whose result is retryable is repeated up to `retries` times, with growing delays. Only the result decides
  that, not the exit code.
- With a spending limit, a session starts with a slice of the remainder, and is resumed with another slice when that is
  used up. The possible cost of all sessions together never exceeds the limit.
- The circuit breaker: if the infrastructure ended all of the latest attempts, no new ones start. Single probes then
  follow, with growing delays; the third that fails ends the batch.
- An interrupted batch closes the input of its processes: each finishes its step and leaves its session resumable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.batch.ledger import COMPLETED, INFRASTRUCTURE, SPENDING_LIMIT, Row, is_over
from agent_host.batch.workspaces import Parcel, WorkspaceUnavailable
from agent_host.display_text import one_line
from agent_host.errors import AgentHostError, ErrorCode, SessionHeld
from agent_host.host.records import remove_session
from agent_host.ids import MACHINE
from agent_host.loop import MAX_COST
from config import json_text
from config.lean_typing import NamedTuple
from state.disk import LOCAL_DISK, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.batch import BatchTask
    from agent_host.batch.ledger import Ledger, Row, Stop
    from agent_host.batch.workspaces import Depot, Workspaces


_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 60.0
_HELD_S: Final = 1.0
_HELD_TRIES: Final = 120
_PROBES: Final = 3
_FEWEST_ATTEMPTS: Final = 5


class Waiting(NamedTuple):
    """A task to attempt: `tries` counts retries, `held` attempts that found the session held by another process; it
    does not start before `not_before`."""

    task: BatchTask
    tries: int = 0
    held: int = 0
    not_before: float = 0.0


class Budget:
    """A limit of the total cost of sessions; None for no limit. During an attempt a session reserves its grant,
    afterwards its actual cost; `spent` is their earlier cost, by task id."""

    def __init__(self, limit: float | None, jobs: int, spent: Mapping[str, float]) -> None:
        self.limit = limit
        self._jobs = jobs
        self._reserved = dict(spent)
        self._before: dict[str, float] = {}
        """Amount that a session had reserved before its last grant."""
        self._too_little: dict[str, float] = {}
        """Remainder of a session's grant at its end: too little for its next call."""

    @property
    def left(self) -> float:
        """The part of the limit that no session has reserved."""
        return 0.0 if self.limit is None else self.limit - sum(self._reserved.values())

    def grant(self, task: BatchTask) -> float | None:
        """Grant the task's session a slice and return its new cost limit. None if no slice is left; without a batch
        limit, the task's own limit."""
        spent = self._before[task.id] = self._reserved.get(task.id, 0.0)
        if self.limit is None:
            return task.max_cost
        slice_ = min(self.left, max(self.left / (2 * self._jobs), 2 * self._too_little.get(task.id, 0.0)))
        if task.max_cost is not None:
            slice_ = min(slice_, task.max_cost - spent)
        if slice_ <= self._least:
            return None
        self._reserved[task.id] = spent + slice_
        return spent + slice_

    def settle(self, task: BatchTask, row: Row, granted: float | None) -> bool:
        """Account for the session's cost; True if it stopped because it needs another slice."""
        if granted is None:
            return False
        # If the cost is unknown, the whole grant counts as spent: a lost process may have called the model.
        cost = self._reserved[task.id] = float(row["cost"]) if "cost" in row else granted
        self._too_little[task.id] = max(0.0, granted - cost)
        return bool(row["reason"] == SPENDING_LIMIT)

    def refund(self, task: BatchTask) -> float:
        """Take back the last grant of a session that did not call the model, and return the session's earlier cost."""
        cost = self._reserved[task.id] = self._before[task.id]
        return cost

    def has_slice_for(self, task: BatchTask) -> bool:
        """True if a session that needs another slice can get one larger than the remainder that was too little."""
        return self.left > self._least + self._too_little.get(task.id, 0.0)

    @property
    def _least(self) -> float:
        """The threshold below which an amount counts as zero, because sums of costs are inexact."""
        return (self.limit or 0.0) * 1e-9


class Scheduler:
    """One run over the tasks of a batch. `on_row` gets each row once it is recorded. `spent` is the cost in the
    sessions' own records, because a killed batch has no rows for its running sessions."""

    def __init__(
        self,
        tasks: Sequence[BatchTask],
        ledger: Ledger,
        attempts: Attempts,
        *,
        jobs: int,
        retries: int,
        max_cost: float | None,
        on_row: Callable[[Row], None],
        spent: Mapping[str, float] | None = None,
    ) -> None:
        rows = ledger.rows
        self._ledger = ledger
        self._attempts = attempts
        self._jobs = jobs
        self._retries = retries
        self._on_row = on_row
        self._waiting = deque(Waiting(task) for task in tasks if task.id not in rows or not is_over(rows[task.id]))
        self._running: dict[asyncio.Task[None], Waiting] = {}
        self._last = deque[bool](maxlen=max(_FEWEST_ATTEMPTS, 2 * jobs))
        self._failed_probes = 0
        self._probe_at = 0.0
        on_record = spent or {}
        costs = {one.id: max(float(rows.get(one.id, {}).get("cost", 0.0)), on_record.get(one.id, 0.0)) for one in tasks}
        self._budget = Budget(max_cost, jobs, costs)
        self._unwritten: list[Row] = []
        self._fault: BaseException | None = None
        self._stop: Stop = ""
        self._news = asyncio.Event()

    @property
    def running(self) -> int:
        """The number of running tasks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for their first or next attempt."""
        return len(self._waiting)

    def interrupt(self) -> None:
        """Start no more attempts, and stop running ones so that they can be resumed."""
        self._stop = "interrupted"
        for running in self._running:
            running.cancel()
        self._news.set()

    async def run(self) -> Stop:
        """Run until each task has ended, or the batch stops early. Raises an unexpected error of an attempt."""
        try:
            while (self._waiting or self._running) and not self._stop and self._fault is None:
                self._news.clear()
                self._start_ready()
                await self._await_news()
        finally:
            for running in list(self._running):
                if not self._stop:  # `interrupt` has cancelled them already, and they are finishing a step
                    running.cancel()
            if self._running:
                await asyncio.wait(list(self._running))
        self._write_again()
        if self._fault is not None:
            raise self._fault
        return "unwritten" if self._unwritten and not self._stop else self._stop

    @property
    def _is_broken(self) -> bool:
        """True if the infrastructure ended all of the latest attempts."""
        return len(self._last) == self._last.maxlen and all(self._last)

    def _start_ready(self) -> None:
        now = MACHINE.monotonic()
        if self._is_broken:
            if not self._running and self._failed_probes >= _PROBES:
                self._stop = "broken"
            elif not self._running and now >= self._probe_at:
                self._start_one(self._waiting.popleft())
            return
        for _ in range(len(self._waiting)):
            if len(self._running) >= self._jobs:
                return
            one = self._waiting.popleft()
            if one.not_before > now:
                self._waiting.append(one)
            else:
                self._start_one(one)

    def _start_one(self, one: Waiting) -> None:
        granted = self._budget.grant(one.task)
        if granted is None and self._budget.limit is not None:
            self._record(self._unpaid(one.task))
            return
        running = asyncio.ensure_future(self._attempt(one, granted))
        self._running[running] = one
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.pop(running, None)
        if not running.cancelled():
            self._fault = self._fault or running.exception()
        self._news.set()

    async def _attempt(self, one: Waiting, granted: float | None) -> None:
        task = one.task
        before = self._ledger.rows.get(task.id, {}).get("attempts", 0)
        row, has_asked = await self._attempts.run(task, number=before + 1, max_cost=granted)
        needs_slice = self._budget.settle(task, row, granted)
        if not has_asked and granted is not None:
            row = {**row, "cost": self._budget.refund(task)}
        if row["reason"] == "SESSION_HELD" and one.held < _HELD_TRIES:
            self._wait(one._replace(held=one.held + 1), _HELD_S)
            return
        self._note(row)
        self._record(row)
        if needs_slice and self._budget.has_slice_for(task):
            self._waiting.appendleft(one)  # first in line: finish started tasks before others start
        elif row["retryable"] and not needs_slice and one.tries < self._retries:
            self._wait(one._replace(tries=one.tries + 1), _backoff_s(one.tries))
        elif self._ledger.rows.get(task.id) is row:  # else it could not be written
            await self._attempts.tidy(task, row)

    def _wait(self, one: Waiting, wait_s: float) -> None:
        self._waiting.append(one._replace(not_before=MACHINE.monotonic() + wait_s))

    def _note(self, row: Row) -> None:
        failed = row["endedBy"] == INFRASTRUCTURE
        was_broken = self._is_broken
        self._last.append(failed)
        if not failed:
            self._failed_probes = 0
        elif was_broken:
            self._failed_probes += 1
        if self._is_broken:
            self._probe_at = MACHINE.monotonic() + _backoff_s(2 + self._failed_probes)

    def _record(self, row: Row) -> None:
        self._unwritten.append(row)
        self._write_again()

    def _write_again(self) -> None:
        """Record rows that could not be written before: a full disk may have space now."""
        while self._unwritten:
            try:
                self._ledger.add(self._unwritten[0])
            except OSError:
                return
            self._on_row(self._unwritten.pop(0))

    def _unpaid(self, task: BatchTask) -> Row:
        known = self._ledger.rows.get(task.id, {})
        row: Row = {
            "id": task.id,
            "sessionId": self._ledger.session_id(task),
            "status": "SESSION_PAUSED",
            "usage": {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0},
            "exitCode": 3,
            "attempts": 0,
            "durationMs": 0,
        }
        return {**row, **known, "reason": SPENDING_LIMIT, "endedBy": "limit", "retryable": True}

    async def _await_news(self) -> None:
        if self._stop or not (self._waiting or self._running):
            return
        due = None
        if self._is_broken:
            due = None if self._running else self._probe_at
        elif self._waiting and len(self._running) < self._jobs:
            due = min(one.not_before for one in self._waiting)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), None if due is None else max(0.0, due - MACHINE.monotonic()))


def _backoff_s(tries: int) -> float:
    """Return the delay after this many failures, with random jitter."""
    return float(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**tries) * (0.5 + MACHINE.fraction()))


# One attempt at a task of a batch: workspace, setup, session, patch, check, and the row with the result.
#
# All work runs in processes of `agent-host run`, started by an `Engine`. `setup` and `check` are sessions too, whose
# gateway is a script of one call: so the policy and the sandbox apply to them as to a model's calls, and a call that
# needs approval is denied.

HELD: Final = 75
MOST_OUTPUT: Final = 64 * 1024**2
"""Maximum bytes of a process's standard output."""
_LEAST_COST: Final = 1e-9
"""A limit that no call fits; 0 would mean no limit."""
_FAILED: Final = "TASK_FAILED"
_MESSAGE_CHARS: Final = 1000
_OF_RESULT: Final = (
    "status", "reason", "endedBy", "retryable", "usage", "cost", "costCurrency", "model", "message", "answer",
)  # fmt: skip


class ProcessEnd(NamedTuple):
    """The end of a process: exit code (negative for a signal), standard output, and the end of standard error."""

    exit_code: int
    output: bytes
    last_words: str


class Engine(Protocol):
    """An executor of a batch's processes."""

    async def run(self, name: str, arguments: Sequence[str], *, directory: str, parcel: Parcel) -> ProcessEnd:
        """Run `agent-host` with these arguments until it ends, under `name`; `parcel` is the data that it needs on
        another disk. Cancelling closes its input and waits until it has finished its step. Raises EngineFailed."""

    async def aclose(self) -> None:
        """Release resources."""


class EngineFailed(Exception):
    """A process could not be started, or was lost with its worker or node."""


class BatchLaunch(NamedTuple):
    """The options of all sessions: `common` for all processes (policy, sandbox, approvals, state directory), `model`
    for those that call a model; limits that a task's own can only lower; and the maximum time of a command in seconds.
    Relative paths in them are relative to `directory`; `files` are files of the batch's directory that a node needs."""

    directory: str
    state_dir: str
    common: tuple[str, ...]
    model: tuple[str, ...]
    max_steps: int
    timeout_s: float | None
    command_s: int
    keeps_all: bool
    files: tuple[str, ...]


class LineEnd(NamedTuple):
    """The end of a shell command of the batch: its exit code, or why it has none. `denied` is the error code of a
    denial. If `is_held`, another process still runs the command for an earlier attempt."""

    exit_code: int | None
    why: str = ""
    denied: str = ""
    is_held: bool = False


class Attempted(NamedTuple):
    """The row of an attempt. `has_asked`: the model may have been called, so the attempt may have a cost."""

    row: Row
    has_asked: bool


class Attempts:
    """Makes attempts at tasks, any number at once. `depot` is given if the engine sends sessions as parcels."""

    def __init__(
        self, ledger: Ledger, launch: BatchLaunch, workspaces: Workspaces, engine: Engine, depot: Depot | None = None
    ) -> None:
        self._depot = depot
        self._ledger = ledger
        self._launch = launch
        self._workspaces = workspaces
        self._engine = engine
        os.makedirs(ledger.at("work"), exist_ok=True)

    async def run(self, task: BatchTask, *, number: int, max_cost: float | None) -> Attempted:
        """Run the task's session until it ends; `number` counts attempts from 1, `max_cost` is the session's limit."""
        started = MACHINE.monotonic()
        fields: Row = {}
        try:
            ended = await self._make_attempt(task, fields, max_cost)
        except OSError as error:  # for example a full disk, of the batch's own files
            ended = Attempted(_failure("DISK_FAILED", f"{self._ledger.path}: {error.strerror or error}"), True)
        row = {"id": task.id, "sessionId": self._ledger.session_id(task), **ended.row, **fields, "attempts": number}
        row["durationMs"] = int((MACHINE.monotonic() - started) * 1000)
        return ended._replace(row={**row, **self._ledger.patch_row(task)})

    async def _make_attempt(self, task: BatchTask, fields: Row, max_cost: float | None) -> Attempted:
        """Return the part of the row about the session's end; the fields of setup and check are added to `fields`.
        Raises OSError."""
        if self._depot is not None:
            await asyncio.to_thread(self._depot.finish, task.key)
            self._depot.costs.settle(task.key)
        unready = await self._get_ready(task, fields)
        if unready is not None:
            return Attempted(unready, has_asked=False)
        row = await self._run_session(task, max_cost)
        if row["endedBy"] != INFRASTRUCTURE and task.check and not row["retryable"]:
            checked = await self._run_line(task, "check")
            if checked.is_held:  # the next attempt's session repeats its result, and `check` is tried again
                return Attempted({**row, **_failure(ErrorCode.SESSION_HELD, checked.why)}, has_asked=True)
            fields["check"] = {"exitCode": checked.exit_code, **({"why": checked.why} if checked.why else {})}
        return Attempted(row, has_asked=row["reason"] != ErrorCode.SESSION_HELD)

    async def tidy(self, task: BatchTask, row: Row) -> None:
        """Remove the workspace of a completed task whose row and patch are stored, unless all are kept."""
        if row["status"] == COMPLETED and not self._launch.keeps_all:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._workspaces.remove, task.key)

    async def _get_ready(self, task: BatchTask, fields: Row) -> Row | None:
        """Prepare the workspace for the session; return a failure row if that is impossible. `fields` gets the fields
        of setup."""
        marker, path = self._ledger.at("work", f"{task.key}.ready"), self._workspaces.path_of(task.key)
        known = _take_known(marker, path)
        if known is not None:
            fields.update(known)
            return None
        reason = await asyncio.to_thread(self._forget_line, task, "setup") if task.setup else None
        if reason is not None:  # the setup of a killed batch is still running there
            return _failure(ErrorCode.SESSION_HELD, reason)
        try:
            await asyncio.to_thread(self._workspaces.make, task.key, task.workspace)
        except WorkspaceUnavailable as error:
            return _failure("WORKSPACE_UNAVAILABLE", str(error))
        if task.setup:
            end = await self._run_line(task, "setup")
            fields["setup"] = {"exitCode": end.exit_code}
            if end.is_held:
                return _failure(ErrorCode.SESSION_HELD, end.why)
            if end.denied:
                return {**_failure(end.denied, end.why), "endedBy": "policy", "retryable": False}
            if end.exit_code != 0:
                return _failure("SETUP_FAILED", end.why or f"setup ended with exit code {end.exit_code}")
        _write_json(marker, fields)
        return None

    async def _run_session(self, task: BatchTask, max_cost: float | None) -> Row:
        """Run the session and return its row when it has ended or was left resumable."""
        launch, ledger = self._launch, self._ledger
        order = ledger.at("work", f"{task.key}.order")
        _write_json(order, {"prompt": task.prompt, "policy": task.policy})
        limits = [value for value in (launch.timeout_s, task.timeout_s) if value is not None]
        lost = 0.0 if self._depot is None else self._depot.costs.total(task.key)
        had = float(ledger.rows.get(task.id, {}).get("cost", 0.0))
        risk = 0.0 if max_cost is None else max(0.0, max_cost - max(had, lost))
        arguments = [
            "run", "-", "--order", order, "--session-id", ledger.session_id(task), "--or-resume",
            "--output", "json", "--no-input", "--no-summary", "--patch", ledger.patch_of(task),
            "--workspace", self._workspaces.path_of(task.key), *launch.common, *launch.model,
            "--max-steps", str(min(launch.max_steps, task.max_steps or launch.max_steps)),
            *(["--model", task.model] if task.model else []),
            *([] if max_cost is None else ["--max-cost", repr(max(_LEAST_COST, max_cost - lost))]),
            *(["--timeout", repr(min(limits))] if limits else []),
        ]  # fmt: skip
        try:
            parcel = Parcel(task.key, ledger.session_id(task), (order, *launch.files), ledger.patch_of(task), risk)
            end = await self._engine.run(task.id, arguments, directory=launch.directory, parcel=parcel)
        except EngineFailed as error:
            return _failure("INTERRUPTED", str(error))
        result = _result_in(end.output)
        if result is None:
            return _unfinished(end)
        row = {
            **{name: result[name] for name in _OF_RESULT if result.get(name) is not None},
            "reason": result.get("reason"),
            "exitCode": end.exit_code,
        }
        if lost:
            row["cost"] = row.get("cost", 0.0) + lost
        is_slice = max_cost is not None and (task.max_cost is None or max_cost < task.max_cost)
        # It stopped because its limit does not cover its next call: a higher limit lets it continue.
        has_spent_all = result.get("reason") == ErrorCode.LLM_BUDGET_EXCEEDED and MAX_COST in str(result.get("message"))
        return {**row, "reason": SPENDING_LIMIT, "retryable": True} if is_slice and has_spent_all else row

    async def _run_line(self, task: BatchTask, which: str) -> LineEnd:
        launch, ledger = self._launch, self._ledger
        line, session_id = getattr(task, which), f"{ledger.session_id(task)}-{which}"
        script, order = ledger.at("work", f"{task.key}.{which}.toml"), ledger.at("work", f"{task.key}.{which}.order")
        call = f'[{{name = "RunCommand", arguments = {{command = "${{line}}", timeout = {launch.command_s}}}}}]'
        turns = f'[[turn]]\ntool_calls = {call}\n[[turn]]\ntext = "Done."\n'
        # A JSON string is also a TOML string.
        replace_atomically(LOCAL_DISK, script, [b"[vars]\nline = ", orjson.dumps(line), b"\n", turns.encode()])
        _write_json(order, {"prompt": f"The {which} of {task.id}", "policy": task.policy})
        reason = await asyncio.to_thread(self._forget_line, task, which)
        if reason is not None:
            return LineEnd(None, reason, is_held=True)
        arguments = [
            "run", "-", "--order", order, "--session-id", session_id, "--output", "json", "--no-input", "--no-summary",
            "--gateway", f"mock:{script}", "--toolset", "desktop",
            "--workspace", self._workspaces.path_of(task.key), *launch.common,
        ]  # fmt: skip
        try:
            parcel = Parcel(task.key, session_id, (script, order, *launch.files))
            end = await self._engine.run(f"{task.id} {which}", arguments, directory=launch.directory, parcel=parcel)
        except EngineFailed as error:
            return LineEnd(None, str(error))
        found = _line_end(end)
        if found.exit_code == 0:
            await asyncio.to_thread(self._forget_line, task, which)
        return found

    def _forget_line(self, task: BatchTask, which: str) -> str | None:
        """Remove the session of an earlier `setup` or `check`, if there is one. Returns the reason if a process still
        has it."""
        try:
            remove_session(self._launch.state_dir, f"{self._ledger.session_id(task)}-{which}", resumable=True)
        except SessionHeld as error:
            return str(error)
        except AgentHostError:  # there is none, or the new run reports the problem
            pass
        return None


def _line_end(end: ProcessEnd) -> LineEnd:
    result = _result_in(end.output)
    if result is None:
        return LineEnd(None, _last_line(end.last_words) or f"ended with exit code {end.exit_code}")
    for call in result.get("toolCalls", ()):
        if result["deniedApprovals"]:
            why = "it needs an approval, and no person can give one in a batch"
            return LineEnd(None, why, ErrorCode.APPROVAL_REQUIRED)
        if call["status"] == "denied":
            return LineEnd(None, "the policy denies it", str(call.get("code", ErrorCode.CAPABILITY_DENIED)))
        if "exitCode" in call:
            return LineEnd(call["exitCode"])
        return LineEnd(None, str(call.get("code", call["status"])))
    return LineEnd(None, one_line(str(result.get("message") or result.get("reason") or "it did not run")))


def _unfinished(end: ProcessEnd) -> Row:
    message = _last_line(end.last_words)
    if end.exit_code == HELD:
        return _failure(ErrorCode.SESSION_HELD, message)
    if end.exit_code == 2:
        return {**_failure(ErrorCode.INVALID_REQUEST, message), "retryable": False}
    how = f"signal {-end.exit_code}" if end.exit_code < 0 else f"exit code {end.exit_code}"
    return {**_failure("INTERRUPTED", f"the process ended by {how}: {message}"), "exitCode": end.exit_code}


def _failure(reason: str, message: str) -> Row:
    """Return the row of an attempt that the infrastructure ended before the session had a result."""
    return {
        "status": _FAILED,
        "reason": str(reason),
        "endedBy": INFRASTRUCTURE,
        "retryable": True,
        "exitCode": 3,
        "usage": {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0},
        "message": one_line(message, _MESSAGE_CHARS),
    }


def _last_line(text: str) -> str:
    return one_line(text.strip().rpartition("\n")[2], _MESSAGE_CHARS)


def _result_in(output: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = json_text.loads(output)
        if isinstance(value, dict) and "endedBy" in value:
            return value
    return None


def _take_known(marker: str, workspace: str) -> dict[str, Any] | None:
    """Return the recorded fields of a prepared workspace; None if it is not prepared or a part is missing."""
    if os.path.isdir(workspace):
        with contextlib.suppress(OSError, orjson.JSONDecodeError), open(marker, "rb") as file:
            known = json_text.loads(file.read())
            if isinstance(known, dict):
                return known
    with contextlib.suppress(FileNotFoundError):
        os.unlink(marker)
    return None


def _write_json(path: str, value: Row) -> None:
    replace_atomically(LOCAL_DISK, path, [orjson.dumps(value)])
