"""A request that is too long is cut and sent once more; an overloaded model gives way to the next (AH 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import (
    ContextTooLong,
    GatewayRejected,
    GatewayUnavailable,
    ModelOverloaded,
)
from agent_host.events import EventType
from agent_host.http import RetryPolicy
from agent_host.loop.task import add_note
from agent_host.states import TaskPhase
from agent_host.thread.messages import Block
from tests.support.loop import Loop
from tests.support.loop_parts import MODEL, TASK, bundle, calls, says, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.states import TaskEnd

TOO_LONG = ContextTooLong("the request is too long for the model")
BUSY = ModelOverloaded("the gateway is overloaded")
MODELS = (MODEL, "second", "third")
AT_ONCE = RetryPolicy(1, 0.0, 0.0)


def filled(folder: Path, *turns: Any, **more: Any) -> Loop:
    """A task with sixty notes behind its prompt."""
    loop = Loop(folder, *turns, **more)
    loop.begin()
    for number in range(60):
        add_note(loop.ctx, f"note {number} " * 20)
    return loop


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [block["text"] for message in messages for block in message["content"] if block["type"] == "text"]


def models(loop: Loop) -> list[str]:
    return [head["model"] for head in loop.model.heads]


def how(end: TaskEnd) -> tuple[str, bool, str | None]:
    return end.status, end.resumable, end.reason


# Too long


async def test_a_request_that_is_too_long_is_cut_in_half_and_sent_once_more(tmp_path: Path) -> None:
    loop = filled(tmp_path, TOO_LONG, says("Done."))
    before = loop.ctx.conversation.thread.tokens
    assert (await loop.run()).text == "Done."
    first, second = map(texts, loop.model.requests)
    assert len(first) == 61
    assert second[:2] == ["Do it.", f"[Earlier conversation truncated — {61 - len(second) + 1} messages removed]"]
    assert second[2:] == first[-len(second) + 2 :]
    assert 0.3 * before < sum(map(len, second)) * before / sum(map(len, first)) <= 0.5 * before
    (told,) = loop.told(EventType.LLM_WINDOW_CUT)
    assert told["droppedMessages"] == 61 - len(second) + 1
    started = [one["estimatedInputTokens"] for one in loop.told(EventType.LLM_REQUEST_STARTED)]
    assert started[0] > started[1]
    assert loop.kept().dropped_messages == 61 - len(second) + 2


async def test_what_the_first_try_said_is_taken_back(tmp_path: Path) -> None:
    loop = filled(tmp_path, GatewayUnavailable("down", retry_after_s=0.0), TOO_LONG, says("Done."), retry=AT_ONCE)
    await loop.run()
    assert [(told["attempt"], told["waitMs"]) for told in loop.told(EventType.LLM_RETRY)] == [(1, 0), (2, 0)]
    assert [told["attempt"] for told in loop.told(EventType.TEXT_CHUNK)] == [3]


async def test_a_request_that_is_too_long_twice_ends_the_task_for_now(tmp_path: Path) -> None:
    loop = filled(tmp_path, TOO_LONG, TOO_LONG, says())
    assert how(await loop.run()) == ("failed", True, "LLM_GATEWAY_ERROR")
    assert len(loop.model.requests) == 2
    assert loop.ctx.phase.state is TaskPhase.FAILED
    assert loop.on_record() == ("running", "SESSION_RUNNING")
    assert (await loop.again(says("Done.")).run()).text == "Done."


async def test_a_conversation_of_one_message_is_not_cut(tmp_path: Path) -> None:
    loop = Loop(tmp_path, TOO_LONG, says())
    assert how(await loop.run()) == ("failed", True, "LLM_GATEWAY_ERROR")
    assert len(loop.model.requests) == 1
    assert loop.told(EventType.LLM_WINDOW_CUT) == []


async def test_the_next_request_may_be_cut_again(tmp_path: Path) -> None:
    loop = filled(tmp_path, TOO_LONG, calls(shell("make")), TOO_LONG, says("Done."))
    assert (await loop.run()).text == "Done."
    assert len(loop.told(EventType.LLM_WINDOW_CUT)) == 2


async def test_what_the_model_takes_decides_where_it_is_known(tmp_path: Path) -> None:
    loop = filled(tmp_path, ContextTooLong("no", limit=600), says("Done."))
    await loop.run()
    talk = loop.ctx.conversation
    assert talk.head_tokens + loop.told(EventType.LLM_REQUEST_STARTED)[1]["estimatedInputTokens"] <= 600


async def test_a_limit_below_the_head_leaves_the_last_message(tmp_path: Path) -> None:
    loop = filled(tmp_path, ContextTooLong("no", limit=10), says("Done."))
    assert (await loop.run()).text == "Done."
    assert texts(loop.model.requests[1])[2:] == ["note 59 " * 20]


async def test_a_resume_sends_what_the_cut_left(tmp_path: Path) -> None:
    loop = filled(tmp_path, TOO_LONG, calls(shell("make")), says("Done."))
    await loop.run()
    other = filled(tmp_path, TOO_LONG, calls(shell("make")), GatewayUnavailable("down"))
    assert (await other.run()).status == "paused"
    resumed = other.again(says("Done."))
    await resumed.run()
    sent, again = loop.model.requests[2], resumed.model.requests[0]
    assert texts(again) == texts(sent)
    assert len(again) == len(sent) < 62


# Overloaded


async def test_the_next_model_is_asked_after_the_retries(tmp_path: Path) -> None:
    policy = bundle(tmp_path, models=MODELS)
    turns = (BUSY, BUSY, calls(shell("one")), calls(shell("two")), says("Done."))
    loop = Loop(tmp_path, *turns, policy=policy, retry=AT_ONCE, fallbacks=MODELS[1:])
    assert (await loop.run()).text == "Done."
    assert models(loop) == [MODEL, MODEL, "second", "second", "second"]
    (told,) = loop.told(EventType.LLM_FALLBACK)
    assert (told["model"], told["fallbackModel"]) == (MODEL, "second")
    assert [one["model"] for one in loop.told(EventType.LLM_REQUEST_STARTED)] == [MODEL, "second", "second", "second"]
    assert [one["model"] for one in loop.told(EventType.LLM_REQUEST_COMPLETED)] == ["second"] * 3
    assert [one["attempt"] for one in loop.told(EventType.LLM_RETRY)] == [1, 2]
    assert loop.kept().task == loop.ctx.task
    assert loop.ctx.task.options == {"model": "second"}


async def test_without_another_model_the_session_pauses(tmp_path: Path) -> None:
    loop = Loop(tmp_path, BUSY, says())
    assert how(await loop.run()) == ("paused", True, "LLM_GATEWAY_ERROR")
    assert loop.told(EventType.LLM_FALLBACK) == []


async def test_each_model_is_asked_once_a_step(tmp_path: Path) -> None:
    policy = bundle(tmp_path, models=MODELS)
    names = ("third", MODEL, "second", "third")
    loop = Loop(tmp_path, BUSY, BUSY, BUSY, says(), policy=policy, fallbacks=names)
    assert how(await loop.run()) == ("paused", True, "LLM_GATEWAY_ERROR")
    assert models(loop) == [MODEL, "third", "second"]


@pytest.mark.parametrize("error", [GatewayUnavailable("down"), GatewayRejected("no")])
async def test_other_faults_ask_no_other_model(tmp_path: Path, error: Exception) -> None:
    loop = Loop(tmp_path, error, says(), policy=bundle(tmp_path, models=MODELS), fallbacks=MODELS[1:])
    assert (await loop.run()).resumable
    assert models(loop) == [MODEL]


async def test_a_model_that_the_policy_does_not_allow_is_not_asked(tmp_path: Path) -> None:
    loop = Loop(tmp_path, BUSY, says(), fallbacks=("second",))
    assert how(await loop.run()) == ("failed", False, "CAPABILITY_DENIED")
    assert models(loop) == [MODEL]


async def test_a_resume_stays_with_the_other_model_and_the_next_task_does_not(tmp_path: Path) -> None:
    policy = bundle(tmp_path, models=MODELS)
    loop = Loop(tmp_path, BUSY, calls(shell("one")), GatewayUnavailable("down"), policy=policy, fallbacks=MODELS[1:])
    assert (await loop.run()).status == "paused"
    resumed = loop.again(says("Done."), says("Again."), fallbacks=MODELS[1:])
    resumed.ctx.begin_task(resumed.ctx.task)
    assert (await resumed.run()).text == "Done."
    resumed.ctx.phase.fire("settle")
    resumed.ctx.conversation.use_model(None, resumed.ctx.judge)
    resumed.begin("second-task")
    await resumed.run()
    assert models(resumed) == ["second", MODEL]
    assert resumed.ctx.task.options == {}


async def test_the_other_model_gets_no_blocks_of_the_first(tmp_path: Path) -> None:
    raw = '{"type":"thinking","thinking":"Hm.","signature":"s"}'
    thought = calls(shell("one"))._replace(blocks=(Block(raw, "anthropic"),))
    loop = Loop(tmp_path, thought, BUSY, says("Done."), policy=bundle(tmp_path, models=MODELS), fallbacks=("second",))
    await loop.run()
    kinds = [[block["type"] for block in request[1]["content"]] for request in loop.model.requests[1:]]
    assert kinds == [["thinking", "tool_use"], ["tool_use"]]


async def test_the_other_model_has_a_window_of_its_own(tmp_path: Path) -> None:
    policy = bundle(tmp_path, models=MODELS)
    loop = filled(tmp_path, TOO_LONG, BUSY, TOO_LONG, says("Done."), policy=policy, fallbacks=("second",))
    assert (await loop.run()).text == "Done."
    assert models(loop) == [MODEL, MODEL, "second", "second"]
    assert [len(texts(request)) for request in loop.model.requests][::2] == [61, 61]


async def test_a_gateway_that_wants_no_retry_gets_none(tmp_path: Path) -> None:
    wait = GatewayUnavailable("limited", again=False, code="RATE_LIMITED")
    loop = Loop(tmp_path, wait, says(), retry=AT_ONCE)
    assert how(await loop.run()) == ("paused", True, "RATE_LIMITED")
    assert len(loop.model.requests) == 1


async def test_a_budget_that_does_not_cover_the_other_model_ends_the_task(tmp_path: Path) -> None:
    """Every request is checked, whoever gets it."""
    policy = bundle(tmp_path, models=MODELS)
    loop = Loop(tmp_path, BUSY, says(), policy=policy, fallbacks=("second",))
    loop.model.at_request = lambda: setattr(loop.ctx.judge, "bundle", bundle(tmp_path, models=MODELS, max_session=1))
    assert how(await loop.run()) == ("failed", False, "LLM_BUDGET_EXCEEDED")
    assert loop.ctx.task.task_id == TASK
