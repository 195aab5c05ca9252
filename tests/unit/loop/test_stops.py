"""What the end of a turn does to its task (AH 4.4): a full window, a word that nobody knows, a refusal, a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.loop.task import MAX_FULL_WINDOWS, add_note, commit, take_turn
from agent_host.thread.messages import CONTINUE_IN_NEW_WINDOW, Block, decode
from tests.support.loop import Loop
from tests.support.loop_parts import calls, says, shell

if TYPE_CHECKING:
    from pathlib import Path

FULL = "model_context_window_exceeded"


def filled(folder: Path, *turns: Any, **more: Any) -> Loop:
    """A task with sixty notes behind its prompt."""
    loop = Loop(folder, *turns, **more)
    loop.begin(max_steps=20)
    for number in range(60):
        add_note(loop.ctx, f"note {number} " * 20)
    return loop


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [block["text"] for message in messages for block in message["content"] if block["type"] == "text"]


# A full window


async def test_a_full_window_is_cut_and_the_answer_goes_on(tmp_path: Path) -> None:
    loop = filled(tmp_path, says("It is ", stop=FULL), says("done."))
    end = await loop.run()
    assert (end.status, end.text) == ("completed", "It is done.")
    first, second = map(texts, loop.model.requests)
    assert second[-2:] == ["It is ", CONTINUE_IN_NEW_WINDOW]
    assert len(first) == 61
    assert len(second) < 40
    (told,) = loop.told(EventType.LLM_WINDOW_CUT)
    assert told["droppedMessages"] > 20
    assert loop.ctx.task.step_count == 2


async def test_a_full_window_behind_calls_is_cut_too(tmp_path: Path) -> None:
    loop = filled(tmp_path, calls(shell("make"), stop=FULL), says("Done."))
    assert (await loop.run()).text == "Done."
    assert loop.tools.ran == ["make"]
    assert len(texts(loop.model.requests[1])) < 40


async def test_a_resume_sends_what_a_full_window_left(tmp_path: Path) -> None:
    loop = filled(tmp_path, says("It is ", stop=FULL), says("done."))
    await loop.run()
    other = filled(tmp_path, says("It is ", stop=FULL))
    commit(other.ctx, await take_turn(other.ctx), [])
    resumed = other.again(says("done."))
    assert (await resumed.run()).text == "It is done."
    assert resumed.model.requests[0] == loop.model.requests[1]


async def test_a_crash_behind_a_turn_that_filled_the_window_cuts_it_once(tmp_path: Path) -> None:
    loop = filled(tmp_path, says("It is ", stop=FULL), says("done."))
    await loop.run()
    other = filled(tmp_path, says("It is ", stop=FULL))
    await take_turn(other.ctx)
    resumed = other.again(says("done."))
    assert (await resumed.run()).text == "It is done."
    assert resumed.model.requests[0] == loop.model.requests[1]


async def test_a_window_that_stays_full_ends_the_task_for_now(tmp_path: Path) -> None:
    loop = filled(tmp_path, *[says("x", stop=FULL)] * 10)
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("failed", True, "LLM_GATEWAY_ERROR")
    assert "maxInputTokens" in str(end.message)
    assert len(loop.model.requests) == MAX_FULL_WINDOWS + 1
    resumed = loop.again(says("Done."))
    assert (await resumed.run()).status == "completed"


async def test_full_windows_are_counted_in_a_row(tmp_path: Path) -> None:
    turns = [turn for n in range(6) for turn in (says("x", stop=FULL), calls(shell(f"step {n}")))]
    loop = filled(tmp_path, *turns, says("Done."))
    assert (await loop.run()).text == "Done."


# A word that nobody knows


async def test_an_unknown_stop_ends_the_task_with_its_word(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Half of", stop="of_next_year"))
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("failed", True, "LLM_GATEWAY_ERROR")
    assert "'of_next_year'" in str(end.message)
    assert loop.on_record() == ("running", "SESSION_RUNNING")
    assert decode(loop.kept().thread[-1]).content == "Half of"
    assert loop.ctx.task.step_count == 1


@pytest.mark.parametrize("word", ["x" * 10_000, "a\nb\u202e", "s3cret-value"])
async def test_an_unknown_word_is_shown_in_short(tmp_path: Path, word: str) -> None:
    end = await Loop(tmp_path, says(stop=word), secrets=("s3cret-value",)).run()
    said = str(end.message)
    assert len(said) < 300
    assert said.isprintable()
    assert "s3cret" not in said


# Refusals and limits


@pytest.mark.parametrize(("detail", "said"), [("", ""), ("cyber: not this", ": cyber: not this")])
async def test_a_refusal_says_why(tmp_path: Path, detail: str, said: str) -> None:
    end = await Loop(tmp_path, says("No.", stop="refusal")._replace(detail=detail)).run()
    assert (end.status, end.resumable, end.reason) == ("failed", False, "LLM_GUARDRAIL_BLOCKED")
    assert end.message == f"the model refused to answer{said}"


async def test_the_details_of_a_refusal_hold_no_secret(tmp_path: Path) -> None:
    turn = says("No.", stop="refusal")._replace(detail="you said s3cret-value")
    loop = Loop(tmp_path, turn, secrets=("s3cret-value",))
    assert (await loop.run()).message == "the model refused to answer: you said [redacted]"
    (told,) = loop.told(EventType.LLM_REQUEST_COMPLETED)
    assert told["stopDetail"] == "you said [redacted]"


async def test_a_cut_answer_is_told_at_which_limit(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Half", stop="max_tokens")._replace(detail="max_tokens"), says(" done."))
    assert (await loop.run()).text == "Half done."
    assert (
        texts(loop.model.requests[1])[-1] == '[Your answer was cut at the limit "max_tokens". Go on where it stopped.]'
    )


@pytest.mark.parametrize("stop", ["pause_turn", "compaction"])
async def test_a_pause_is_answered_with_the_same_blocks_and_nothing_else(tmp_path: Path, stop: str) -> None:
    raw = '{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}'
    turn = says("Let me look.", stop=stop)._replace(blocks=(Block(raw, "anthropic"),))
    loop = Loop(tmp_path, turn, says("Done."))
    assert (await loop.run()).text.endswith("Done.")
    last = loop.model.requests[1][-1]
    assert (last["role"], [block["type"] for block in last["content"]]) == ("assistant", ["server_tool_use", "text"])


@pytest.mark.parametrize(("said", "role"), [("Let me look.", "assistant"), ("", "user")])
async def test_a_pause_of_text_alone_is_sent_back_too_and_one_of_nothing_is_answered(
    tmp_path: Path, said: str, role: str
) -> None:
    loop = Loop(tmp_path, says(said, stop="pause_turn"), says("Done."))
    assert (await loop.run()).text == f"{said}Done."
    last = loop.model.requests[1][-1]
    assert last["role"] == role
    assert (said or "Go on") in str(last["content"])
