"""The order of a batch's tasks: some run at once, failures of the infrastructure again, until each has ended.

- An attempt that its result calls retryable is made again, `retries` times, each time later. Only the result says so;
  exit codes do not.
- With a spending limit a session begins with a slice of what is left, and is resumed with a further one when it has
  used that up. What all sessions may have cost at any time is never above the limit.
- The breaker: if the infrastructure ended the last attempts of all tasks, nothing new begins. Single attempts try it
  again, each later than the one before; the third that fails ends the batch.
- An interrupted batch ends the input of its processes: each finishes its step and leaves its session resumable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from agent_host.batch.ledger import INFRASTRUCTURE, SPENDING_LIMIT, is_over
from agent_host.ids import MACHINE
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.batch import BatchTask
    from agent_host.batch.attempts import Attempts
    from agent_host.batch.ledger import Ledger, Row

Stop = Literal["", "broken", "interrupted", "unwritten"]
"""Why a batch stopped early; "" for one that has come to its end."""

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 60.0
_HELD_S: Final = 1.0
_HELD_TRIES: Final = 120
_PROBES: Final = 3
_FEWEST_ATTEMPTS: Final = 5


class Waiting(NamedTuple):
    """A task that is to be tried: how often it was in this run, how often its session was another process's, and the
    moment before which it waits."""

    task: BatchTask
    tries: int = 0
    held: int = 0
    not_before: float = 0.0


class Budget:
    """A limit of what sessions cost together, in the currency of the prices; None for no limit. A session holds what it
    was granted until its attempt ends, and what it has cost after that; `spent` is what they have cost before, by
    id."""

    def __init__(self, limit: float | None, jobs: int, spent: Mapping[str, float]) -> None:
        self._limit = limit
        self._jobs = jobs
        self._held = dict(spent)
        self._before: dict[str, float] = {}
        """Amount that a session held before its last grant."""
        self._too_little: dict[str, float] = {}
        """Remainder of a session's grant when that did not cover its next call."""

    @property
    def left(self) -> float:
        """The part of the limit that no session holds."""
        return 0.0 if self._limit is None else self._limit - sum(self._held.values())

    def grant(self, task: BatchTask) -> float | None:
        """Grant the task's session a slice; what it may have cost by its end. None if nothing is left for it, or
        without a limit."""
        spent = self._before[task.id] = self._held.get(task.id, 0.0)
        if self._limit is None:
            return task.max_cost
        slice_ = min(self.left, max(self.left / (2 * self._jobs), 2 * self._too_little.get(task.id, 0.0)))
        if task.max_cost is not None:
            slice_ = min(slice_, task.max_cost - spent)
        if slice_ <= self._least:
            return None
        self._held[task.id] = spent + slice_
        return spent + slice_

    def settle(self, task: BatchTask, row: Row, granted: float | None) -> bool:
        """Take what the session has cost; True if it stopped for want of a further slice."""
        if granted is None:
            return False
        # What is not known to have been spent less counts as spent: a process that was lost may have asked the model.
        cost = self._held[task.id] = float(row["cost"]) if "cost" in row else granted
        self._too_little[task.id] = max(0.0, granted - cost)
        return bool(row["reason"] == SPENDING_LIMIT)

    def give_back(self, task: BatchTask) -> float:
        """Take back the last grant of a session whose model was not asked; what the session has cost before."""
        cost = self._held[task.id] = self._before[task.id]
        return cost

    def has_more_for(self, task: BatchTask) -> bool:
        """True if a session that wants a further slice can get one that is larger than what was too little."""
        return self.left > self._least + self._too_little.get(task.id, 0.0)

    @property
    def is_limited(self) -> bool:
        """True if there is a limit."""
        return self._limit is not None

    @property
    def _least(self) -> float:
        """Less than this is nothing: sums of costs are not exact."""
        return (self._limit or 0.0) * 1e-9


class Scheduler:
    """One run over the tasks of a batch. `on_row` gets each row once it is on record. `spent` is what the records of
    sessions say that they have cost: a batch that was killed has no rows of what ran."""

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
        costs = {
            task.id: max(float(rows.get(task.id, {}).get("cost", 0.0)), on_record.get(task.id, 0.0)) for task in tasks
        }
        self._budget = Budget(max_cost, jobs, costs)
        self._unwritten: list[Row] = []
        self._fault: BaseException | None = None
        self._stop: Stop = ""
        self._news = asyncio.Event()

    @property
    def running(self) -> int:
        """The number of tasks that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for their turn, or for their next try."""
        return len(self._waiting)

    def interrupt(self) -> None:
        """Begin nothing more, and end what runs where it can be resumed."""
        self._stop = "interrupted"
        for running in self._running:
            running.cancel()
        self._news.set()

    async def run(self) -> Stop:
        """Run until each task has ended, or the batch stops early. Raises an unexpected error of an attempt,
        once those beside it have been left."""
        try:
            while (self._waiting or self._running) and not self._stop and self._fault is None:
                self._news.clear()
                self._begin_what_may()
                await self._await_news()
        finally:
            for running in list(self._running):
                if not self._stop:  # who interrupts has asked them once, and they are at their last step
                    running.cancel()
            if self._running:
                await asyncio.wait(list(self._running))
        self._write_again()
        if self._fault is not None:
            raise self._fault
        return "unwritten" if self._unwritten and not self._stop else self._stop

    @property
    def _is_broken(self) -> bool:
        """True if the last attempts were all ended by the infrastructure."""
        return len(self._last) == self._last.maxlen and all(self._last)

    def _begin_what_may(self) -> None:
        now = MACHINE.monotonic()
        if self._is_broken:
            if not self._running and self._failed_probes >= _PROBES:
                self._stop = "broken"
            elif not self._running and now >= self._probe_at:
                self._begin_one(self._waiting.popleft())
            return
        for _ in range(len(self._waiting)):
            if len(self._running) >= self._jobs:
                return
            one = self._waiting.popleft()
            if one.not_before > now:
                self._waiting.append(one)
            else:
                self._begin_one(one)

    def _begin_one(self, one: Waiting) -> None:
        granted = self._budget.grant(one.task)
        if granted is None and self._budget.is_limited:
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
        wants_more = self._budget.settle(task, row, granted)
        if not has_asked and granted is not None:
            row = {**row, "cost": self._budget.give_back(task)}
        if row["reason"] == "SESSION_HELD" and one.held < _HELD_TRIES:
            self._wait(one._replace(held=one.held + 1), _HELD_S)
            return
        self._note(row)
        self._record(row)
        if wants_more and self._budget.has_more_for(task):
            self._waiting.appendleft(one)  # before others begin: what has begun is to come to its end
        elif row["retryable"] and not wants_more and one.tries < self._retries:
            self._wait(one._replace(tries=one.tries + 1), _backoff_s(one.tries))
        elif self._ledger.rows.get(task.id) is row:  # else the disk has refused it
            await self._attempts.tidy(task, row)

    def _wait(self, one: Waiting, wait_s: float) -> None:
        self._waiting.append(one._replace(not_before=MACHINE.monotonic() + wait_s))

    def _note(self, row: Row) -> None:
        """Tell the breaker how an attempt ended."""
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
        """Put on record what is not there yet: a disk that was full may take it now."""
        while self._unwritten:
            try:
                self._ledger.add(self._unwritten[0])
            except OSError:
                return
            self._on_row(self._unwritten.pop(0))

    def _unpaid(self, task: BatchTask) -> Row:
        """The row of a task that nothing is left for."""
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
        """Wait until something has ended, or until the next try is due."""
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
    """The wait after so many failures, which differs from task to task."""
    return float(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**tries) * (0.5 + MACHINE.fraction()))
