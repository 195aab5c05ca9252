"""What a session and its tasks may still cost before a call (docs/costs.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import BudgetExceeded, CostExceeded, UsageError
from agent_host.events import EventType
from agent_host.loop.requests import affordable_output, fitting_request
from state.checkpoint import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import MODEL, calls, says, shell

if TYPE_CHECKING:
    from pathlib import Path

# One token of input costs 0.001, one of output 0.01; a million would cost so much.
PRICES = {MODEL: {"price_input": 1000, "price_output": 10_000, "price_cache_read": 100, "price_cache_write": 1000}}


def at_work(folder: Path, **more: Any) -> Loop:
    loop = Loop(folder, **{"models": PRICES, **more})
    loop.begin()
    return loop


def spend(loop: Loop, usage: TokenUsage, steps: int = 1, model: str = MODEL) -> None:
    """What a task would have left on record."""
    for owner in (loop.ctx.state, loop.ctx.task):
        owner.usage = owner.usage.plus(usage)
        owner.usage_by_model[model] = usage
    loop.ctx.task.step_count += steps


def test_without_a_limit_nothing_is_looked_up(tmp_path: Path) -> None:
    loop = at_work(tmp_path, models={})
    assert affordable_output(loop.ctx, MODEL, 10**9, 500) is None


@pytest.mark.parametrize(
    ("limit", "affordable"),
    [(100, 500), (6, 500), (5.99, 499), (1.16, 16), (1.01, None), (1.159, None), (1, None), (0.5, None)],
)
def test_a_first_answer_has_what_the_input_leaves(tmp_path: Path, limit: float, affordable: int | None) -> None:
    loop = at_work(tmp_path, max_cost=limit)
    if affordable is None:
        with pytest.raises(CostExceeded, match=r"0\.000000 USD spent and about 1\.16 needed"):
            affordable_output(loop.ctx, MODEL, 1000, 500)
    else:
        assert affordable_output(loop.ctx, MODEL, 1000, 500) == affordable


@pytest.mark.parametrize(("limit", "affordable"), [(11.23, None), (11.24, 1024)])
def test_a_model_that_thinks_has_room_to_think(tmp_path: Path, limit: float, affordable: int | None) -> None:
    loop = at_work(tmp_path, max_cost=limit, models={MODEL: {**PRICES[MODEL], "thinking": True}})
    if affordable is None:
        with pytest.raises(CostExceeded, match=r"about 11\.24 needed"):
            affordable_output(loop.ctx, MODEL, 1000, 5000)
    else:
        assert affordable_output(loop.ctx, MODEL, 1000, 5000) == affordable
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 500, "no more than it may"


def test_an_answer_of_the_mean_length_has_to_fit(tmp_path: Path) -> None:
    """Spent are 3 of 7; the next call needs 1 and answers of 67 tokens, which is the mean of 3."""
    loop = at_work(tmp_path, max_cost=7)
    spend(loop, TokenUsage(1000, 200), steps=3)
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 300
    assert affordable_output(loop.ctx, MODEL, 3330, 500) == 67
    with pytest.raises(CostExceeded, match=r"3\.00 USD spent and about 4\.00 needed of 7\.00 \(--max-cost"):
        affordable_output(loop.ctx, MODEL, 3331, 500)


def test_what_came_from_the_cache_was_cheaper_and_what_comes_may_not_be(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=3)
    spend(loop, TokenUsage(10_000, 0, cache_read_tokens=9500))
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 55


def test_the_first_call_may_write_all_of_its_input_to_the_cache(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=3, models={MODEL: {**PRICES[MODEL], "price_cache_write": 2000}})
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 100


def test_an_output_without_a_price_is_not_limited(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=1, models={MODEL: {**PRICES[MODEL], "price_output": 0}})
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 500
    with pytest.raises(CostExceeded):
        affordable_output(loop.ctx, MODEL, 1001, 500)


def test_a_task_has_a_limit_of_its_own_and_what_is_left_is_the_least(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=100)
    spend(loop, TokenUsage(1000, 100))
    loop.ctx.task.options["max_cost"] = 4
    assert affordable_output(loop.ctx, MODEL, 1000, 500) == 100
    loop.ctx.task.options["max_cost"] = 3.99
    with pytest.raises(BudgetExceeded, match=r"taskOptions\.maxCost") as caught:
        affordable_output(loop.ctx, MODEL, 1000, 500)
    assert not isinstance(caught.value, CostExceeded), "a resume would not help it"
    loop.ctx.task.options["max_cost"] = 0
    with pytest.raises(BudgetExceeded):
        affordable_output(loop.ctx, MODEL, 0, 500)


def test_what_is_limited_has_to_be_known(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=100)
    with pytest.raises(UsageError, match="another has no price"):
        affordable_output(loop.ctx, "another", 1, 500)
    spend(loop, TokenUsage(10, 10), model="another")
    with pytest.raises(UsageError, match="another, which it has used, has no price"):
        affordable_output(loop.ctx, MODEL, 1, 500)
    loop.ctx.state.usage_by_model.clear()
    with pytest.raises(UsageError, match="an earlier version"):
        affordable_output(loop.ctx, MODEL, 1, 500)


async def test_the_head_is_encoded_again_only_when_the_limit_of_the_answer_changes(tmp_path: Path) -> None:
    loop = at_work(tmp_path, max_cost=1000)
    talk = loop.ctx.conversation
    heads = []
    for spent in (0, 0, 990_000, 990_000, 992_000, 0):
        loop.ctx.state.usage = TokenUsage(spent)
        loop.ctx.state.usage_by_model[MODEL] = TokenUsage(spent)
        fitting_request(loop.ctx)
        heads.append(talk.head)
    assert heads[0] is heads[1]
    assert heads[2] is heads[3]
    limits = [orjson.loads(head + b"]}")["max_tokens"] for head in heads]
    assert limits[0] == limits[5] == 1000
    assert limits[0] > limits[2] > limits[4] > 16
    assert fitting_request(loop.ctx).most_output == 1000


async def test_a_turn_says_which_model_used_its_tokens(tmp_path: Path) -> None:
    usage = TokenUsage(1000, 20, 100, 50, 30)
    loop = Loop(tmp_path, calls(shell("make"), usage=usage), says(usage=usage), models=PRICES)
    records = loop.watch_records()
    await loop.run()
    turns = [fields for kind, fields in records if kind == "turn"]
    assert [turn["model"] for turn in turns] == [MODEL, MODEL]
    assert turns[0]["usage"]["cacheWrite1hTokens"] == 30
    kept = loop.kept()
    assert kept.task is not None
    assert kept.usage_by_model == kept.task.usage_by_model == {MODEL: usage.plus(usage)}
    assert kept.tokens_known_of == MODEL
    costs = [told["cost"] for told in loop.told(EventType.LLM_REQUEST_COMPLETED)]
    assert costs == [0.85 + 0.01 + 0.02 + 0.06 + 0.2] * 2


async def test_a_session_that_has_spent_its_limit_stays_resumable(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make"), usage=TokenUsage(500, 50)), says(), models=PRICES, max_cost=1.5)
    end = await loop.run()
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_BUDGET_EXCEEDED", True)
    assert loop.on_record() == ("running", "SESSION_RUNNING")
    again = loop.again(says(usage=TokenUsage(500, 50)), models=PRICES, max_cost=5)
    assert (await again.run()).status == "completed"
    assert again.model.heads[0]["max_tokens"] < 400
