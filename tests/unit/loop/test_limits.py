"""What is checked before a model call, and the notice of a task that runs out of steps."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import BudgetExceeded, PolicyDenied, PolicyExpired
from agent_host.events.kinds import EventType
from agent_host.loop.limits import check_before_call, estimated_input, warn_of_step_limit
from agent_host.thread.messages import Message
from state.usage import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import NOW, bundle, calls, says, shell

if TYPE_CHECKING:
    from pathlib import Path


def at_work(folder: Path, **more: Any) -> Loop:
    """A loop with a task, whose request is as large as this says."""
    loop = Loop(folder, **more)
    loop.begin()
    return loop


def test_a_request_costs_its_head_and_its_thread(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    estimate = loop.ctx.conversation.head_tokens + loop.ctx.conversation.thread.tokens
    assert check_before_call(loop.ctx, "st") == math.ceil(1.25 * estimate), "nobody has counted for this model yet"
    assert loop.ctx.conversation.head_tokens > 0


async def test_what_the_gateway_counted_corrects_the_estimate(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says())
    await loop.run(max_steps=1)
    known = loop.ctx.state.tokens_known
    assert known is not None
    assert known[0] == 100
    now = loop.ctx.conversation.head_tokens + loop.ctx.conversation.thread.tokens
    assert estimated_input(loop.ctx) == 100 + math.ceil(100 / known[1] * (now - known[1]))
    loop.ctx.state.tokens_known = (0, 10**6)
    assert estimated_input(loop.ctx) == 0


@pytest.mark.parametrize(("counted", "scale"), [(500, 0.5), (2500, 2.5), (499, 1), (2501, 1), (0, 1), (1300, 1.3)])
def test_only_a_count_that_can_be_one_of_the_text_is_taken_for_a_scale(
    tmp_path: Path, counted: int, scale: float
) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.tokens_known = (counted, 1000)
    loop.ctx.conversation.thread.add_note(Message("system", "note", 4000))
    more = loop.ctx.conversation.tokens - 1000
    assert estimated_input(loop.ctx) == counted + math.ceil(scale * more)


def test_what_one_model_s_gateway_counted_says_nothing_of_another(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.tokens_known, loop.ctx.state.tokens_known_of = (1000, 1000), "another"
    assert estimated_input(loop.ctx) == math.ceil(1.25 * loop.ctx.conversation.tokens)
    loop.ctx.state.tokens_known_of = loop.ctx.conversation.model
    assert estimated_input(loop.ctx) == loop.ctx.conversation.tokens


def test_an_exact_count_is_not_raised(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.conversation.count = len
    assert estimated_input(loop.ctx) == loop.ctx.conversation.tokens


def test_the_window_is_filled_by_the_gateway_s_own_count(tmp_path: Path) -> None:
    """With tokens twice as many as estimated half as much fits."""
    kept = {}
    for counted in (1000, 2000):
        loop = at_work(tmp_path, policy=bundle(tmp_path, max_input=4000))
        for number in range(100):
            loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
        loop.ctx.state.tokens_known = (counted, 1000)
        assert check_before_call(loop.ctx, "st") <= 4000
        kept[counted] = loop.ctx.conversation.tokens
    assert 0.4 < kept[2000] / kept[1000] < 0.6


def test_input_and_answer_fit_the_model_s_context(tmp_path: Path) -> None:
    limits = {"context_tokens": 3000, "max_output_tokens": 400}
    loop = at_work(tmp_path, models={"m": limits})
    for number in range(100):
        loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
    assert check_before_call(loop.ctx, "st") <= 2600
    assert orjson.loads(loop.ctx.conversation.head + b"]}")["max_tokens"] == 400


def test_an_expired_policy_is_told_and_refused(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.now = NOW + timedelta(days=1)
    with pytest.raises(PolicyExpired):
        check_before_call(loop.ctx, "st")
    (event,) = [event for event in loop.watcher.events if event.event_type is EventType.POLICY_EXPIRED]
    assert event.step_id == "st"


@pytest.mark.parametrize("without", [["LLM.Call"], []])
def test_what_policy_does_not_allow_is_not_sent(tmp_path: Path, without: list[str]) -> None:
    loop = at_work(tmp_path, policy=bundle(tmp_path, without=without))
    loop.ctx.conversation.model = "m" if without else "another"
    with pytest.raises(PolicyDenied):
        check_before_call(loop.ctx, "st")
    assert loop.told(EventType.POLICY_EXPIRED) == []


def test_the_window_leaves_room_for_the_head(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    for number in range(50):
        loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
    limit = loop.ctx.conversation.head_tokens + 1000
    loop.ctx.judge.bundle = bundle(tmp_path, max_input=limit)
    assert check_before_call(loop.ctx, "st") <= limit
    assert loop.ctx.conversation.thread.dropped > 0


def test_the_budget_covers_what_it_says(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.usage = TokenUsage(400, 100)
    needed = estimated_input(loop.ctx)
    loop.ctx.judge.bundle = bundle(tmp_path, max_session=500 + needed)
    assert check_before_call(loop.ctx, "st") == needed
    loop.ctx.judge.bundle = bundle(tmp_path, max_session=500 + needed - 1)
    with pytest.raises(BudgetExceeded, match="500 tokens used"):
        check_before_call(loop.ctx, "st")


@pytest.mark.parametrize(("limit", "told_at"), [(1, 0), (5, 4), (10, 8), (12, 9)])
def test_one_notice_at_four_fifths_of_the_steps(tmp_path: Path, limit: int, told_at: int) -> None:
    loop = Loop(tmp_path)
    loop.begin(max_steps=limit)
    for count in range(1, limit + 1):
        loop.ctx.task.step_count = count
        warn_of_step_limit(loop.ctx, "st")
    notices = [{"stepCount": told_at, "maxSteps": limit}] if told_at else []
    assert loop.told(EventType.STEP_LIMIT_APPROACHING) == notices
