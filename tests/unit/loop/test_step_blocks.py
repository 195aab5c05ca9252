"""Parts of a turn that only its provider reads: on record, sent back, and left out where they hold a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agent_host.events import EventType
from agent_host.faults.disk import SimulatedDisk
from agent_host.loop.task import take_turn
from agent_host.thread.messages import Block, decode
from state.checkpoint import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import MODEL, calls, says, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.llm import ModelTurn

SECRET = "s3cret-value"


def thought(text: str, **more: Any) -> Block:
    return Block(
        orjson.dumps({"type": "thinking", "thinking": text, "signature": "c2ln"}).decode(), "anthropic", **more
    )


def thinks(turn: ModelTurn, *blocks: Block, **more: Any) -> ModelTurn:
    return turn._replace(blocks=blocks, **more)


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


async def test_blocks_are_on_record_for_their_model_and_are_sent_again(tmp_path: Path) -> None:
    turn = thinks(
        calls(shell("make"), text="ab"), thought("one"), thought("two"), order=("block", 1, "call", "block", 1)
    )
    loop = Loop(tmp_path, turn, says(), disk=SimulatedDisk())
    assert (await loop.run()).status == "completed"
    kept = decode(loop.kept().thread[-3])
    assert kept.blocks == (thought("one", model=MODEL), thought("two", model=MODEL))
    sent = loop.model.requests[1][1]
    assert kinds(sent) == ["thinking", "text", "tool_use", "thinking", "text"]
    assert [orjson.dumps(sent["content"][place]).decode() for place in (0, 3)] == [block.raw for block in turn.blocks]
    assert loop.told(EventType.LLM_BLOCK_DROPPED) == []


async def test_a_block_with_a_secret_is_left_out_whole_and_reported(tmp_path: Path) -> None:
    blocks = thought("fine"), thought(f"the password is {SECRET}")
    turn = thinks(calls(shell("make"), text="Now."), *blocks, order=("block", 4, "block", "call"))
    loop = Loop(tmp_path, turn, says(), secrets=(SECRET,))
    assert (await loop.run()).status == "completed"
    assert decode(loop.kept().thread[-3]).blocks == (thought("fine", model=MODEL),)
    assert kinds(loop.model.requests[1][1]) == ["thinking", "text", "tool_use"]
    (told,) = loop.told(EventType.LLM_BLOCK_DROPPED)
    assert (told["count"], "held a secret" in told["message"]) == (1, True)
    assert SECRET not in str(loop.kept().thread)


async def test_a_text_with_a_secret_keeps_its_place(tmp_path: Path) -> None:
    """The block that has the text in it, too, goes; a secret across two texts makes them one."""
    held = thought(f"a {SECRET}", holds_text=True)
    text = f"a {SECRET}then b"
    turn = thinks(calls(shell("make"), text=text), held, order=("block", len(text) - 6, "call", 6))
    split = thinks(calls(shell("make"), text=f"x {SECRET} y"), thought("t"), order=(4, "block", "call", len(SECRET)))
    loop = Loop(tmp_path, turn, split, says(), secrets=(SECRET,))
    assert (await loop.run()).status == "completed"
    first, second = loop.model.requests[2][1], loop.model.requests[2][3]
    assert (kinds(first), first["content"][0]["text"]) == (["text", "tool_use", "text"], "a [redacted]")
    assert first["content"][2]["text"] == "then b"
    assert (kinds(second), second["content"][0]["text"]) == (["text", "thinking", "tool_use"], "x [redacted] y")


async def test_what_a_dialect_could_not_keep_is_reported(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says()._replace(dropped_blocks=2))
    assert (await loop.run()).status == "completed"
    (told,) = loop.told(EventType.LLM_BLOCK_DROPPED)
    assert (told["count"], "could not be read whole" in told["message"]) == (2, True)


async def test_a_pause_is_sent_back_as_it_is(tmp_path: Path) -> None:
    search = Block('{"type":"server_tool_use","id":"s","name":"web_search","input":{}}', "anthropic")
    paused = thinks(says("I search.", stop="pause_turn"), search, order=(9, "block"))
    loop = Loop(tmp_path, paused, says(" Found."))
    end = await loop.run()
    assert (end.status, end.text) == ("completed", "I search. Found.")
    assert [message["role"] for message in loop.model.requests[1]] == ["user", "assistant"]
    assert loop.model.requests[1][1]["content"][1] == orjson.loads(search.raw)


async def test_a_turn_that_was_blocked_keeps_none(tmp_path: Path) -> None:
    loop = Loop(
        tmp_path, thinks(calls(shell("make"), text="No.", stop="refusal"), thought("t"), order=("block", 3, "call"))
    )
    assert (await loop.run()).reason == "LLM_GUARDRAIL_BLOCKED"
    assert decode(loop.kept().thread[-1]).blocks == ()


async def test_blocks_count_where_the_gateway_does_not(tmp_path: Path) -> None:
    turn = thinks(says("x", usage=TokenUsage()), thought("word " * 500))
    loop = Loop(tmp_path, turn)
    loop.begin()
    await take_turn(loop.ctx)
    assert loop.ctx.state.usage.output_tokens > 500
