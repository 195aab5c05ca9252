"""What runs when, over attempts that end as a test says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.batch import BatchTask, Source
from agent_host.batch import scheduler as module
from agent_host.batch.ledger import Ledger, exit_code_of, is_over, summarize
from agent_host.batch.scheduler import Attempted, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent_host.batch.ledger import Stop

DONE = {"status": "TASK_COMPLETED", "reason": None, "endedBy": "model", "retryable": False}
WRONG = {"status": "TASK_FAILED", "reason": "max_steps_exceeded", "endedBy": "limit", "retryable": False}
LOST = {"status": "SESSION_PAUSED", "reason": "LLM_GATEWAY_ERROR", "endedBy": "infrastructure", "retryable": True}
REFUSED = {"status": "TASK_FAILED", "reason": "UNAUTHORIZED", "endedBy": "infrastructure", "retryable": False}
HELD = {"status": "TASK_FAILED", "reason": "SESSION_HELD", "endedBy": "infrastructure", "retryable": True}
SPENT = {"status": "TASK_FAILED", "reason": "SPENDING_LIMIT", "endedBy": "limit", "retryable": True}

Answer = dict[str, Any]


def tasks_of(count: int, **more: Any) -> list[BatchTask]:
    return [BatchTask(f"t{number}", "Do it.", Source("directory", "/"), **more) for number in range(count)]


class Script:
    """Attempts: `answer(task id, attempt of this run, granted)` says how each ends."""

    def __init__(self, answer: Callable[[str, int, float | None], Answer]) -> None:
        self._answer = answer
        self.made: list[tuple[str, float | None]] = []
        self.at_once = self.most_at_once = 0
        self.tidied: list[str] = []

    async def run(self, task: BatchTask, *, number: int, max_cost: float | None) -> Attempted:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            self.made.append((task.id, max_cost))
            count = sum(one == task.id for one, _ in self.made)
            row = self._answer(task.id, count, max_cost)
        finally:
            self.at_once -= 1
        whole = {"id": task.id, "attempts": number, "usage": {}, "durationMs": 1, "exitCode": 0, **row}
        return Attempted(whole, has_asked=row["reason"] not in ("SESSION_HELD", "SETUP_FAILED"))

    async def tidy(self, task: BatchTask, row: Answer) -> None:
        self.tidied.append(task.id)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "_HELD_S", 0.001)


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Callable[[list[BatchTask]], Ledger]]:
    opened: list[Ledger] = []

    def opener(tasks: list[BatchTask]) -> Ledger:
        opened.append(Ledger(str(tmp_path / "out"), tasks, "ci"))
        return opened[-1]

    yield opener
    for one in opened:
        one.close()


async def run(
    tasks: list[BatchTask], ledger: Ledger, script: Script, *, jobs: int = 2, max_cost: float | None = None
) -> tuple[Stop, int]:
    made: Any = script
    batch = Scheduler(tasks, ledger, made, jobs=jobs, retries=2, max_cost=max_cost, on_row=lambda _: None)
    stop = await asyncio.wait_for(batch.run(), 60)
    return stop, exit_code_of(ledger, stop)


async def test_each_task_ends_and_no_more_than_its_jobs_run_at_once(ledgers: Any) -> None:
    tasks, script = tasks_of(20), Script(lambda *_: DONE)
    ledger = ledgers(tasks)
    assert await run(tasks, ledger, script, jobs=3) == ("", 0)
    assert (len(script.made), script.most_at_once, sorted(script.tidied)) == (20, 3, sorted(one.id for one in tasks))
    again = Script(lambda *_: WRONG)
    assert await run(tasks, ledger, again) == ("", 0)
    assert again.made == []


async def test_only_the_result_says_what_is_tried_again(ledgers: Any) -> None:
    def answer(task: str, count: int, _: object) -> Answer:
        ends = {"t0": LOST if count < 3 else DONE, "t1": WRONG, "t2": REFUSED, "t3": {**LOST, "exitCode": 1}}
        return ends[task]

    tasks, script = tasks_of(4), Script(answer)
    ledger = ledgers(tasks)
    assert await run(tasks, ledger, script, jobs=4) == ("", 3)
    assert {task: sum(one == task for one, _ in script.made) for task, _ in script.made} == {
        "t0": 3, "t1": 1, "t2": 1, "t3": 3,
    }  # fmt: skip
    assert [is_over(ledger.rows[f"t{number}"]) for number in range(4)] == [True, True, False, False]
    assert ledger.rows["t0"]["attempts"] == 3
    assert summarize(ledger, stop="", duration_ms=1)["failed"] == {"limit": 1, "infrastructure": 2}
    healed = Script(lambda *_: DONE)
    assert await run(tasks, ledger, healed) == ("", 1)
    assert sorted(task for task, _ in healed.made) == ["t2", "t3"], "what infrastructure ended is taken up"


async def test_a_session_that_another_process_has_is_waited_for(ledgers: Any) -> None:
    tasks, script = tasks_of(1), Script(lambda _, count, __: HELD if count < 10 else DONE)
    ledger = ledgers(tasks)
    assert await run(tasks, ledger, script) == ("", 0)
    assert (len(script.made), ledger.rows["t0"]["attempts"]) == (10, 1)


async def test_the_breaker_tries_three_single_times(ledgers: Any) -> None:
    tasks, script = tasks_of(50), Script(lambda *_: LOST)
    assert await run(tasks, ledgers(tasks), script, jobs=3) == ("broken", 3)
    most = 6 + 2 + 3  # the last 2 x jobs, what ran then, the probes
    assert 6 + 3 <= len(script.made) <= most


async def test_a_gateway_that_comes_back_closes_the_breaker(ledgers: Any) -> None:
    made: list[str] = []

    def answer(task: str, *_: object) -> Answer:
        made.append(task)
        return LOST if len(made) < 8 else DONE

    tasks = tasks_of(30)
    assert await run(tasks, ledgers(tasks), Script(answer), jobs=3) == ("", 0)


async def test_what_all_sessions_cost_stays_within_the_limit(ledgers: Any) -> None:
    """Each wants 1.0 and asks for its slices; there is enough for some."""
    spent: dict[str, float] = {}

    def answer(task: str, _: int, granted: float | None) -> Answer:
        assert granted is not None
        spent[task] = min(1.0, granted)
        assert sum(spent.values()) <= 5.0 + 1e-9
        return {**(DONE if spent[task] >= 1.0 else SPENT), "cost": spent[task], "costCurrency": "USD"}

    tasks, script = tasks_of(10), Script(answer)
    ledger = ledgers(tasks)
    stop, code = await run(tasks, ledger, script, jobs=2, max_cost=5.0)
    assert (stop, code) == ("", 3)
    assert all(one in ledger.rows for one in (task.id for task in tasks)), "nothing is unreported"
    reasons = {row["reason"] for row in ledger.rows.values() if row["status"] != "TASK_COMPLETED"}
    assert reasons == {"SPENDING_LIMIT"}
    assert summarize(ledger, stop=stop, duration_ms=1)["completed"] >= 4
    more = Script(lambda task, _, granted: {**DONE, "cost": min(1.0, granted or 0)})
    assert await run(tasks, ledger, more, jobs=2, max_cost=50.0) == ("", 0)


async def test_what_is_on_record_of_sessions_counts_though_a_killed_batch_has_no_rows(ledgers: Any) -> None:
    tasks, granted = tasks_of(3), list[float]()

    def answer(task: str, _: int, most: float | None) -> Answer:
        granted.append(most or 0.0)
        return {**DONE, "cost": 0.85 if task == "t0" else 0.11}

    made: Any = Script(answer)
    ledger = ledgers(tasks)
    batch = Scheduler(
        tasks, ledger, made, jobs=1, retries=2, max_cost=1.0, on_row=lambda _: None, spent={"t0": 0.8, "t1": 0.1}
    )
    assert await asyncio.wait_for(batch.run(), 60) == ""
    assert granted == pytest.approx([0.85, 0.125, 0.02]), "what was spent, and half of what is left"


async def test_what_asked_its_model_nothing_costs_nothing(ledgers: Any) -> None:
    """Of a limit of 1.0 each gets all that is left if those before it have given theirs back."""
    ends: dict[str, Answer] = {"t0": {**LOST, "reason": "SETUP_FAILED", "retryable": False}, "t1": HELD, "t2": DONE}
    tasks, script = tasks_of(3), Script(lambda task, count, _: DONE if task == "t1" and count > 1 else ends[task])
    ledger = ledgers(tasks)
    made: Any = script
    batch = Scheduler(
        tasks, ledger, made, jobs=1, retries=0, max_cost=1.0, on_row=lambda _: None, spent={"t0": 0.2}
    )  # fmt: skip
    assert await asyncio.wait_for(batch.run(), 60) == ""
    assert [task for task, _ in script.made][:3] == ["t0", "t1", "t2"]
    # Half of what is left each time: t0 gives its slice back, and so does t1.
    assert [granted for _, granted in script.made][:3] == pytest.approx([0.2 + 0.4, 0.4, 0.4])
    assert ledger.rows["t0"]["cost"] == pytest.approx(0.2), "what was spent before is not given back"


async def test_a_tasks_own_limit_of_cost_is_its_end(ledgers: Any) -> None:
    tasks = tasks_of(1, max_cost=0.2)
    script = Script(lambda _, __, granted: {**WRONG, "reason": "LLM_BUDGET_EXCEEDED", "cost": granted})
    ledger = ledgers(tasks)
    assert await run(tasks, ledger, script, max_cost=100.0) == ("", 1)
    assert (script.made, ledger.rows["t0"]["reason"]) == ([("t0", 0.2)], "LLM_BUDGET_EXCEEDED")


async def test_an_interrupt_begins_nothing_more(ledgers: Any) -> None:
    tasks = tasks_of(20)
    ledger = ledgers(tasks)
    never = asyncio.Event()

    class Endless(Script):
        async def run(self, task: BatchTask, *, number: int, max_cost: float | None) -> Attempted:
            self.made.append((task.id, max_cost))
            batch.interrupt()
            await never.wait()
            return Attempted(DONE, True)

    script: Any = Endless(lambda *_: DONE)
    batch = Scheduler(tasks, ledger, script, jobs=1, retries=2, max_cost=None, on_row=lambda _: None)
    assert await asyncio.wait_for(batch.run(), 60) == "interrupted"
    assert (len(script.made), ledger.rows, exit_code_of(ledger, "interrupted")) == (1, {}, 130)


async def test_rows_that_the_disk_refuses_are_written_later_or_told(
    ledgers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(4)
    ledger = ledgers(tasks)
    refusals = iter([True, True, False])
    add = ledger.add

    def full(row: Answer) -> None:
        if next(refusals, False):
            raise OSError(28, "No space left on device")
        add(row)

    monkeypatch.setattr(ledger, "add", full)
    assert await run(tasks, ledger, Script(lambda *_: DONE), jobs=1) == ("", 0)
    assert len(ledger.rows) == 4
    others = tasks_of(5)
    monkeypatch.setattr(ledger, "add", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    script = Script(lambda *_: DONE)
    stop, code = await run(others, ledger, script)
    assert (stop, code) == ("unwritten", 3)
    assert (len(script.made), script.tidied) == (1, []), "its workspace stays, for the next run"


async def test_an_interrupted_session_finishes_its_step_before_the_batch_ends(ledgers: Any) -> None:
    tasks, finished = tasks_of(3), list[str]()
    begun = asyncio.Event()

    class LastSteps(Script):
        async def run(self, task: BatchTask, *, number: int, max_cost: float | None) -> Attempted:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                finished.append(task.id)
            return await super().run(task, number=number, max_cost=max_cost)

    made: Any = LastSteps(lambda *_: DONE)
    batch = Scheduler(tasks, ledgers(tasks), made, jobs=3, retries=0, max_cost=None, on_row=lambda _: None)
    running = asyncio.ensure_future(batch.run())
    await begun.wait()
    batch.interrupt()
    assert await asyncio.wait_for(running, 60) == "interrupted"
    assert sorted(finished) == ["t0", "t1", "t2"]
