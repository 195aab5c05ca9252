"""Turns that do nothing for the task, and calls that are repeated without any effect, end the task in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.llm import ModelTurn
from agent_host.thread.messages import ToolCall
from state.checkpoint import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import Tools, calls, do, read, says, shell, succeeded

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult

READ = {"name": "ReadFile", "arguments": {"path": "a.txt"}}
AS_TEXT = [
    orjson.dumps(READ).decode(),
    "```json\n" + orjson.dumps(READ).decode() + "\n```",
    '<tool_call>\n{"name": "ReadFile", "arguments": {"path": "a.txt"}}\n</tool_call>',
    "<tool_call>ReadFile",
    '{"name": "ReadFile", "parameters": {"path": "a.txt"}}',
    '{"name": "ReadFile", "arguments": "{\\"path\\": \\"a.txt\\"}"}',
    '{"type": "function", "function": {"name": "ReadFile", "arguments": {"path": "a.txt"}}}',
    '[{"name": "ReadFile", "arguments": {"path": "a.txt"}}]',
    '[TOOL_CALLS] [{"name": "ReadFile", "arguments": {"path": "a.txt"}}]',
]


def empty(stop: str = "end_turn", text: str = "") -> ModelTurn:
    return ModelTurn(text, (), stop, "empty" if stop == "tool_use" else "complete", TokenUsage(100, 20))


def notes(loop: Loop) -> list[str]:
    """The texts of the host in the last request, behind the prompt."""
    last = loop.model.requests[-1][-1]["content"]
    return [part["text"] for part in last if part["type"] == "text"] if isinstance(last, list) else [last]


@pytest.mark.parametrize("turn", [empty(), empty(text=" \n"), empty("tool_use"), empty("tool_use", "I call it now.")])
async def test_an_answer_with_nothing_is_asked_for_once_more_and_two_in_a_row_end_the_task(
    tmp_path: Path, turn: ModelTurn
) -> None:
    loop = Loop(tmp_path, turn, turn)
    end = await loop.run()
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_EMPTY_ANSWER", True)
    assert "had no text and no tool call" in notes(loop)[-1]
    resumed = loop.again(turn, says("Done."))
    assert (await resumed.run()).text == "Done."


async def test_a_model_that_answers_after_the_note_completes_its_task(tmp_path: Path) -> None:
    loop = Loop(tmp_path, empty(), calls(shell("make")), empty(), says("Done."))
    end = await loop.run()
    assert (end.status, end.text, loop.tools.ran) == ("completed", "Done.", ["make"])


@pytest.mark.parametrize("text", AS_TEXT)
async def test_a_call_as_text_is_never_run_and_ends_the_task_after_one_word(tmp_path: Path, text: str) -> None:
    loop = Loop(tmp_path, says(text), says(text))
    end = await loop.run()
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_CALL_AS_TEXT", True)
    assert loop.tools.ran == []
    assert "as plain text" in notes(loop)[-1]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "NoSuchTool", "arguments": {}}',
        '{"name": "ReadFile"}',
        '{"files": ["a.txt"]}',
        "A model writes `<tool_call>` where it has no parser.",
        "[1, 2]",
        "[]",
        '{"name": "ReadFile", "arguments": [1]}',
    ],
)
async def test_text_that_is_no_call_is_an_answer(tmp_path: Path, text: str) -> None:
    end = await Loop(tmp_path, says(text)).run()
    assert (end.status, end.text) == ("completed", text)


async def test_a_turn_on_record_that_did_nothing_is_followed_by_its_note_after_a_crash(tmp_path: Path) -> None:
    loop = Loop(tmp_path, empty())
    records = loop.watch_records()
    with pytest.raises(IndexError):
        await loop.run()
    turn = next(fields for kind, fields in records if kind == "turn")
    assert turn["meaning"] == "empty"


# Loops


async def test_the_same_call_with_the_same_result_gets_a_note_and_then_ends_the_task(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    loop = Loop(tmp_path, *[calls(read(tmp_path / "a.txt")) for _ in range(10)])
    end = await loop.run(max_steps=30)
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_REPEATED_CALL", True)
    assert len(loop.model.requests) == 10
    (result,) = loop.model.requests[3][-1]["content"]
    assert result["content"].startswith("x\n[You have called ReadFile 3 times in a row")
    assert "3 times in a row" not in str(loop.model.requests[2])
    resumed = loop.again(says("Done."))
    assert (await resumed.run()).status == "completed"


async def test_another_call_or_another_result_begins_a_new_row(tmp_path: Path) -> None:
    count = 0

    def run(request: ToolRequest) -> ToolResult:
        nonlocal count
        count += 1
        return succeeded(request, f"{count}") if request.arguments["command"] == "date" else do(request)

    turns = [calls(shell("date")) for _ in range(6)]
    for _ in range(6):
        turns += [calls(shell("make")), calls(shell("ls"))]
    loop = Loop(tmp_path, *turns, says("Done."), tools=Tools(run), repeats=(3, 4))
    assert (await loop.run(max_steps=40)).status == "completed"
    assert "in a row" not in str(loop.model.requests[-1])


async def test_calls_of_one_turn_count_like_those_of_several(tmp_path: Path) -> None:
    """The task does not end before the model could read the note."""
    many = calls(*[shell("make", f"c{i}") for i in range(12)])
    loop = Loop(tmp_path, many, calls(shell("make")))
    assert (await loop.run()).reason == "LLM_REPEATED_CALL"
    assert len(loop.tools.ran) == 13
    other = Loop(tmp_path, many, says("Done."))
    assert (await other.run()).status == "completed"


async def test_without_limits_a_call_may_be_repeated(tmp_path: Path) -> None:
    loop = Loop(tmp_path, *[calls(shell("make")) for _ in range(12)], says("Done."), repeats=(0, 0))
    assert (await loop.run(max_steps=30)).status == "completed"


async def test_calls_that_cannot_be_read_are_repeated_calls_too(tmp_path: Path) -> None:
    wrong = [calls(ToolCall(f"c{i}", "ReadFile", {}, "the arguments are not JSON")) for i in range(4)]
    loop = Loop(tmp_path, *wrong, repeats=(3, 4))
    assert (await loop.run()).reason == "LLM_REPEATED_CALL"
