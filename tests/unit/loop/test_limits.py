"""What is checked before a model call, and the notice of a task that runs out of steps."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import BudgetExceeded, PolicyDenied, PolicyExpired, RequestTooLong
from agent_host.events import EventType
from agent_host.loop import requests
from agent_host.loop.requests import estimate_input, fitting_request, warn_of_step_limit
from agent_host.thread.messages import Message, estimate
from state.checkpoint import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import NOW, Tools, bundle, calls, says, shell, succeeded

if TYPE_CHECKING:
    from pathlib import Path


def at_work(folder: Path, **more: Any) -> Loop:
    """A loop with a task, whose request is as large as this says."""
    loop = Loop(folder, **more)
    loop.begin()
    return loop


def test_a_request_costs_its_head_and_its_thread(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    tokens = loop.ctx.conversation.head_tokens + loop.ctx.conversation.thread.tokens
    assert fitting_request(loop.ctx).needed == math.ceil(1.25 * tokens), "nobody has counted for this model yet"
    assert loop.ctx.conversation.head_tokens > 0


async def test_what_the_gateway_counted_corrects_the_estimate(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says())
    await loop.run(max_steps=1)
    known = loop.ctx.state.tokens_known
    assert known is not None
    assert known[0] == 100
    now = loop.ctx.conversation.head_tokens + loop.ctx.conversation.thread.tokens
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == 100 + math.ceil(100 / known[1] * (now - known[1]))
    loop.ctx.state.tokens_known = (0, 10**6)
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == 0


@pytest.mark.parametrize(("counted", "scale"), [(500, 0.5), (2500, 2.5), (499, 1), (2501, 1), (0, 1), (1300, 1.3)])
def test_only_a_count_that_can_be_one_of_the_text_is_taken_for_a_scale(
    tmp_path: Path, counted: int, scale: float
) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.tokens_known = (counted, 1000)
    loop.ctx.conversation.thread.add_note(Message("system", "note", 4000))
    more = loop.ctx.conversation.tokens - 1000
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == max(counted, 500) + math.ceil(scale * more), (
        "half of the estimate at least"
    )


def test_what_one_model_s_gateway_counted_says_nothing_of_another(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.tokens_known, loop.ctx.state.tokens_known_of = (1000, 1000), "another"
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == math.ceil(1.25 * loop.ctx.conversation.tokens)
    loop.ctx.state.tokens_known_of = loop.ctx.conversation.model
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == loop.ctx.conversation.tokens


def test_an_exact_count_is_not_raised(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.conversation.count = len
    assert estimate_input(loop.ctx, loop.ctx.conversation.tokens) == loop.ctx.conversation.tokens


def test_the_window_is_filled_by_the_gateway_s_own_count(tmp_path: Path) -> None:
    """With tokens twice as many as estimated half as much fits."""
    kept = {}
    for counted in (1000, 2000):
        loop = at_work(tmp_path, policy=bundle(tmp_path, max_input=4000))
        for number in range(100):
            loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
        loop.ctx.state.tokens_known = (counted, 1000)
        assert fitting_request(loop.ctx).needed <= 4000
        kept[counted] = loop.ctx.conversation.tokens
    assert 0.4 < kept[2000] / kept[1000] < 0.6


def test_input_and_answer_fit_the_model_s_context(tmp_path: Path) -> None:
    loop = at_work(tmp_path, models={"m": {"context_tokens": 3000, "max_output_tokens": 400}})
    for number in range(100):
        loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
    assert fitting_request(loop.ctx).needed <= 2600
    assert orjson.loads(loop.ctx.conversation.head + b"]}")["max_tokens"] == 400


def test_an_expired_policy_is_told_and_refused(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.now = NOW + timedelta(days=1)
    loop.ctx.step_id = "st"
    with pytest.raises(PolicyExpired):
        fitting_request(loop.ctx)
    (event,) = [event for event in loop.watcher.events if event.event_type is EventType.POLICY_EXPIRED]
    assert event.step_id == "st"


@pytest.mark.parametrize("without", [["LLM.Call"], []])
def test_what_policy_does_not_allow_is_not_sent(tmp_path: Path, without: list[str]) -> None:
    loop = at_work(tmp_path, policy=bundle(tmp_path, without=without))
    loop.ctx.conversation.model = "m" if without else "another"
    with pytest.raises(PolicyDenied):
        fitting_request(loop.ctx)
    assert loop.told(EventType.POLICY_EXPIRED) == []


def test_the_window_leaves_room_for_the_head(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    for number in range(50):
        loop.ctx.conversation.thread.add_note(Message("system", f"note {number}", 100))
    limit = loop.ctx.conversation.head_tokens + 1000
    loop.ctx.judge.bundle = bundle(tmp_path, max_input=limit)
    assert fitting_request(loop.ctx).needed <= limit
    assert loop.ctx.conversation.thread.dropped > 0


def test_the_budget_covers_what_it_says(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.state.usage = TokenUsage(400, 100)
    needed = estimate_input(loop.ctx, loop.ctx.conversation.tokens)
    loop.ctx.judge.bundle = bundle(tmp_path, max_session=500 + needed)
    assert fitting_request(loop.ctx).needed == needed
    loop.ctx.judge.bundle = bundle(tmp_path, max_session=500 + needed - 1)
    with pytest.raises(BudgetExceeded, match="500 tokens used"):
        fitting_request(loop.ctx)


@pytest.mark.parametrize(("limit", "told_at"), [(1, 0), (5, 4), (10, 8), (12, 9)])
def test_one_notice_at_four_fifths_of_the_steps(tmp_path: Path, limit: int, told_at: int) -> None:
    loop = Loop(tmp_path)
    loop.begin(max_steps=limit)
    for count in range(1, limit + 1):
        loop.ctx.task.step_count = count
        warn_of_step_limit(loop.ctx)
    notices = [{"stepCount": told_at, "maxSteps": limit}] if told_at else []
    assert loop.told(EventType.STEP_LIMIT_APPROACHING) == notices


# What is really sent


def sent_tokens(loop: Loop) -> list[int]:
    """What each request is estimated to have."""
    return [event["estimatedInputTokens"] for event in loop.told(EventType.LLM_REQUEST_STARTED)]


async def test_what_cannot_be_left_out_and_does_not_fit_is_not_sent(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Never."), policy=bundle(tmp_path, max_input=700))
    loop.begin(prompt="Read this: " + "a line of many words\n" * 300)
    end = await loop.run()
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_BUDGET_EXCEEDED", True)
    assert "llmPolicy.maxInputTokens is 700" in str(end.message)
    assert loop.model.requests == []
    again = loop.again(says("Done."), policy=bundle(tmp_path, max_input=100_000))
    assert (await again.run()).text == "Done."


async def test_the_newest_results_are_shown_in_short_where_they_do_not_fit(tmp_path: Path) -> None:
    text = "line of a result\n" * 3_000
    tools = Tools(lambda request: succeeded(request, text))
    loop = Loop(
        tmp_path, calls(shell("a"), shell("b")), says("Done."), tools=tools, policy=bundle(tmp_path, max_input=4000)
    )
    assert (await loop.run()).text == "Done."
    shown = loop.model.requests[1][-1]["content"]
    assert all(one["content"].startswith("line of a result\n") and "ReadOutput" in one["content"] for one in shown)
    (told,) = loop.told(EventType.CONTEXT_COMPACTED)
    assert told["strategy"] == "clear_tool_results"
    assert told["estimatedAfter"] == sent_tokens(loop)[1] <= 4000
    assert loop.kept().thread[-2].count(b"line of a result") == 3_000, "the record is whole"


async def test_each_cut_is_told_on_the_scale_of_requests(tmp_path: Path) -> None:
    turns = [calls(shell(f"step {number}"), text="I think. " * 60) for number in range(40)]
    usage = TokenUsage(1000, 200)
    loop = Loop(
        tmp_path,
        *[turn._replace(usage=usage) for turn in turns],
        says("Done."),
        policy=bundle(tmp_path, max_input=3000),
    )
    assert (await loop.run(max_steps=50)).text == "Done."
    told, sent = loop.told(EventType.CONTEXT_COMPACTED), sent_tokens(loop)
    assert len(told) >= 2
    assert {one["strategy"] for one in told} == {"drop_oldest"}
    assert all(one["estimatedAfter"] < one["estimatedBefore"] for one in told)
    assert {one["estimatedAfter"] for one in told} <= set(sent)
    assert max(sent) <= 3000


def test_a_request_has_no_more_bytes_than_any_gateway_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 5_000)
    loop = at_work(tmp_path)
    for number in range(100):
        loop.ctx.conversation.thread.add_note(Message("system", f"note {number} " * 20, 100))
    assert fitting_request(loop.ctx).size_bytes <= 5_000
    assert loop.told(EventType.CONTEXT_COMPACTED)
    loop.ctx.conversation.thread.add_note(Message("system", "x" * 5_000, 100))
    with pytest.raises(RequestTooLong, match="5000"):
        fitting_request(loop.ctx)


# Counts of a gateway


@pytest.mark.parametrize("of_output", ["text", "calls"])
async def test_a_gateway_that_counts_too_low_does_not_raise_the_budget(tmp_path: Path, of_output: str) -> None:
    text = "a sentence of some words that says nothing new. " * 400
    turn = calls(shell("make"), text=text) if of_output == "text" else calls(shell(text))
    spent = estimate(text)
    loop = Loop(tmp_path, *[turn] * 9, policy=bundle(tmp_path, max_session=20_000))
    end = await loop.run(max_steps=20)
    assert (end.status, end.reason) == ("failed", "LLM_BUDGET_EXCEEDED")
    state = loop.ctx.state
    assert state.usage.total == 110 * len(loop.model.requests), "what is shown is what the gateway says"
    assert f"{state.usage.for_limits.total} tokens used" in str(end.message)
    assert "beyond the gateway's count" in str(end.message)
    assert len(loop.model.requests) * spent / 2 < 20_000
    assert loop.again(policy=bundle(tmp_path)).ctx.state.usage == state.usage, "a resume counts the same"


async def test_costs_are_limited_by_the_same_count(tmp_path: Path) -> None:
    prices = {"m": {"price_input": 0.001, "price_output": 1_000_000}}
    turn = calls(shell("make"), text="a sentence of some words that says nothing new. " * 400, usage=TokenUsage(100, 1))
    loop = Loop(tmp_path, *[turn] * 9, models=prices, max_cost=5_500)
    end = await loop.run()
    assert (end.reason, len(loop.model.requests)) == ("LLM_BUDGET_EXCEEDED", 2)
    assert [told["cost"] for told in loop.told(EventType.LLM_REQUEST_COMPLETED)] == [pytest.approx(1), pytest.approx(1)]


async def test_a_count_far_above_the_estimate_stands_and_is_named_once(tmp_path: Path) -> None:
    odd = [calls(shell(f"step {number}"), usage=TokenUsage(100, 9_000)) for number in range(3)]
    loop = Loop(tmp_path, *odd, says("Done."))
    assert (await loop.run()).status == "completed"
    (told,) = loop.told(EventType.LLM_COUNT_ODD)
    assert (told["countedTokens"], told["model"]) == (9_000, "m")
    assert loop.ctx.state.usage.output_tokens == 27_010
