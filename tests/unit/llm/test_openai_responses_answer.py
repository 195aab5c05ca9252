"""Answers of the Responses dialect: items, ends, what goes back, and what is wrong with a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm import AnswerTooLarge, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects.openai_responses import ResponsesAssembler, ResponsesDialect, ResponsesRenderer
from agent_host.llm.network import complete_events
from agent_host.testing.dialects.openai_responses import RESPONSES, read_request
from agent_host.testing.script import Script
from agent_host.thread.messages import Message, ToolCall
from state.checkpoint import TokenUsage
from tests.support.pictures import image
from tests.unit.llm.helpers import VIEW

STREAMS = Path(__file__).parents[2] / "fixtures" / "wires" / "responses"
USAGE = TokenUsage(1500, 40, 1024, 256)
Event = tuple[str, dict[str, Any]]
CREATED: Event = ("response.created", {"response": {"id": "resp_1", "model": "m"}})


def done(item: dict[str, Any], index: int = 0) -> Event:
    return "response.output_item.done", {"output_index": index, "item": item}


def added(item: dict[str, Any], index: int = 0) -> Event:
    return "response.output_item.added", {"output_index": index, "item": item}


def call(arguments: Any = "{}", **beside: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "ReadFile", "arguments": arguments, **beside}


def ended(status: str = "completed", **response: Any) -> Event:
    return f"response.{status}", {"response": {"status": status, **response}}


def delta(text: str, kind: str = "output_text", index: int = 0) -> Event:
    return f"response.{kind}.delta", {"output_index": index, "item_id": "x", "delta": text}


def assemble(
    *events: Event, shown: list[str] | None = None, thoughts: list[str] | None = None, limit: int | None = None
) -> ModelTurn:
    assembler = ResponsesAssembler(limit)
    for name, fields in events:
        text = assembler.feed(name, json.dumps({"type": name, **fields}))
        if text and shown is not None:
            shown.append(text)
        if assembler.thinking and thoughts is not None:
            thoughts.append(assembler.thinking)
    return assembler.finish()


def of_file(name: str) -> ModelTurn:
    assembler = ResponsesAssembler()
    for kind, data in complete_events((STREAMS / f"{name}.sse").read_bytes()):
        assembler.feed(kind, data)
    return assembler.finish()


def sent_back(turn: ModelTurn, model: str = "m", results: tuple[Message, ...] = ()) -> list[dict[str, Any]]:
    blocks = tuple(block._replace(model="m") for block in turn.blocks)
    message = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
    answers = results or tuple(Message("tool", "ok", 1, tool_call_id=one.call_id) for one in turn.tool_calls)
    raw = ResponsesRenderer(model).exchange(message, answers)
    items: list[dict[str, Any]] = orjson.loads(b"[" + raw + b"]")
    return items


# --- what servers send ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "stop", "meaning"),
    [
        ("text", "Good morning, é 😀.", "completed", "complete"),
        ("text-without-phase", None, "completed", "complete"),
        ("refusal", "I can't help with that.", "refusal", "blocked"),
        ("incomplete", "It is lo", "max_output_tokens", "cut"),
        ("content-filter", None, "content_filter", "blocked"),
        ("message-behind-a-call", None, "completed", "complete"),
        ("reasoning-and-tool-calls", "I read both files.", "completed", "complete"),
    ],
)
def test_recorded_streams(name: str, text: str | None, stop: str, meaning: str) -> None:
    turn = of_file(name)
    assert (turn.stop_reason, turn.meaning) == (stop, meaning)
    assert text is None or turn.text == text
    assert turn.detail == (text if stop == "refusal" else "" if meaning == "complete" else stop)
    assert turn.dropped_blocks == 0


def test_all_counts_and_items_of_a_turn() -> None:
    turn = of_file("reasoning-and-tool-calls")
    assert turn.usage == USAGE
    assert turn.tool_calls == (
        ToolCall("call_a", "ReadFile", {"path": "/a"}),
        ToolCall("call_b", "ReadFile", {"path": "/b"}),
    )
    assert (turn.response_id, turn.response_model) == ("resp_1", "gpt-test")


@pytest.mark.parametrize("name", ["cut"])
def test_a_stream_that_breaks_off(name: str) -> None:
    with pytest.raises(StreamProtocolError, match="ended before"):
        of_file(name)


@pytest.mark.parametrize(
    ("name", "said", "retryable"), [("failed", "server_error: The model failed", True), ("error", "rate_limit", True)]
)
def test_errors_of_a_stream(name: str, said: str, retryable: bool) -> None:
    with pytest.raises(StreamFault, match=said) as caught:
        of_file(name)
    assert caught.value.retryable is retryable
    assert caught.value.body["error"]["message"]


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("server_error", True), ("rate_limit_exceeded", True), ("insufficient_quota", False), ("invalid_prompt", False)],
)
def test_what_another_try_may_not_meet(code: str, retryable: bool) -> None:
    for event in (ended("failed", error={"code": code, "message": "m"}), ("error", {"code": code, "message": "m"})):
        with pytest.raises(StreamFault) as caught:
            assemble(CREATED, event)
        assert caught.value.retryable is retryable


# --- what goes back ---------------------------------------------------------------------------------------------------


def test_items_go_back_byte_for_byte_to_their_model() -> None:
    turn = of_file("reasoning-and-tool-calls")
    raw = (STREAMS / "reasoning-and-tool-calls.sse").read_text()
    items = sent_back(turn)
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"] + [
        "function_call_output"
    ] * 2
    assert all(block.raw in raw for block in turn.blocks if not block.raw.startswith('{"beside"'))
    assert items[1]["phase"] == "commentary"
    assert items[2] == {
        "type": "function_call", "call_id": "call_a", "name": "ReadFile", "arguments": '{"path":"/a"}', "id": "fc_1",
        "status": "completed",
    }  # fmt: skip


def test_another_model_gets_text_and_calls() -> None:
    items = sent_back(of_file("reasoning-and-tool-calls"), model="other")
    assert items[0] == {"role": "assistant", "content": "I read both files."}
    assert [set(item) for item in items[1:3]] == [{"type", "call_id", "name", "arguments"}] * 2


def test_reasoning_by_itself_is_followed_by_a_message() -> None:
    turn = assemble(CREATED, done({"type": "reasoning", "encrypted_content": "x", "summary": []}), ended())
    assert [item.get("type", "message") for item in sent_back(turn)] == ["reasoning", "message"]


def test_unknown_items_are_kept_as_they_came() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "é"}}
    said = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    turn = assemble(CREATED, done(item), done(said, 1), ended())
    assert sent_back(turn)[0] == item


def test_pictures_and_errors_of_results() -> None:
    turn = assemble(CREATED, done(call()), ended())
    failed = Message("tool", "no", 1, tool_call_id="c", is_error=True, images=(image(4, 3),))
    (_, output) = sent_back(turn, results=(failed,))
    assert output["output"][0] == {"type": "input_text", "text": "[error] no"}
    assert output["output"][1]["image_url"].startswith("data:image/png;base64,")


def test_a_request_is_one_that_stores_nothing() -> None:
    dialect = ResponsesDialect()
    head = dialect.head(model="m", max_output_tokens=99, system="Be careful.", tools=(), session_id="s")
    body = orjson.loads(head + ResponsesRenderer().user([Message("user", "Go.", 1)]) + dialect.tail)
    assert (body["store"], body["include"], body["prompt_cache_key"]) == (False, ["reasoning.encrypted_content"], "s")
    assert body["input"][0] == {"role": "system", "content": "Be careful."}
    assert "instructions" not in body
    assert read_request(body, {}).system == "Be careful."
    assert "prompt_cache_key" not in orjson.loads(
        ResponsesDialect(names_cache=False).head(model="m", max_output_tokens=16, system="", tools=(), session_id="s")
        + dialect.tail
    )


# --- calls that cannot run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([added(call("")), delta('{"path"', "function_call_arguments")], "ended before the call did"),
        ([done(call('{"path": "a', status="incomplete"))], "ended before the call did"),
        ([done(call('{"path": "a'))], "not complete JSON"),
        ([done(call('{"a": 1, "a": 2}'))], "twice"),
        ([done(call("[]"))], "not a JSON object"),
    ],
)
def test_a_call_that_is_not_whole_does_not_run(events: list[Event], problem: str) -> None:
    turn = assemble(CREATED, *events, ended("incomplete", incomplete_details={"reason": "max_output_tokens"}))
    (one,) = turn.tool_calls
    assert (one.name, one.arguments) == ("ReadFile", {})
    assert problem in str(one.problem)


def test_arguments_have_a_limit() -> None:
    with pytest.raises(AnswerTooLarge):
        assemble(CREATED, *[delta("x" * 6, "function_call_arguments")] * 2, limit=10)


def test_ids_are_made_distinct() -> None:
    turn = assemble(CREATED, done(call()), done(call(), 1), done(call(call_id="x" * 65), 2), ended())
    assert len({one.call_id for one in turn.tool_calls}) == 3
    assert all(len(one.call_id) <= 64 for one in turn.tool_calls)


# --- text, thinking, ends ---------------------------------------------------------------------------------------------


def test_text_and_thinking_are_shown_as_they_come() -> None:
    shown: list[str] = []
    thoughts: list[str] = []
    thinking = (delta("Hm", "reasoning_summary_text"), delta("m", "reasoning_text"))
    said = (delta("He", index=1), delta("llo", index=1))
    turn = assemble(CREATED, *thinking, *said, ended(), shown=shown, thoughts=thoughts)
    assert (shown, thoughts, turn.text) == (["He", "llo"], ["Hm", "m"], "Hello")


def test_text_that_did_not_stream_is_taken_from_its_item() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
    assert assemble(CREATED, done(item), ended()).text == "Hello"


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [("max_messages", "cut"), ("steered", "continue"), ("of_tomorrow", "unknown"), (None, "unknown")],
)
def test_every_end_has_a_meaning(reason: str | None, meaning: str) -> None:
    turn = assemble(CREATED, delta("x"), ended("incomplete", incomplete_details={"reason": reason}))
    assert (turn.stop_reason, turn.meaning) == (reason or "incomplete", meaning)


def test_halves_of_characters_meet_over_deltas() -> None:
    turn = assemble(CREATED, delta("a\ud83d"), delta("\ude00b\ud83d"), ended())
    assert (turn.text, turn.replaced) == ("a😀b\ufffd", 1)


def test_an_item_with_half_of_a_character_does_not_go_back() -> None:
    content = [{"type": "output_text", "text": "\ud800"}]
    item = {"type": "message", "role": "assistant", "content": content, "phase": "x"}
    turn = assemble(CREATED, delta("\ud800"), done(item), ended())
    assert (turn.text, turn.blocks, turn.dropped_blocks) == ("\ufffd", (), 1)


def test_what_comes_behind_the_end_is_ignored_and_a_second_beginning_is_an_error() -> None:
    assert assemble(CREATED, delta("x"), ended(), delta("y"), CREATED).text == "x"
    with pytest.raises(StreamProtocolError, match="a second response"):
        assemble(CREATED, CREATED)


def test_events_without_a_name_say_what_they_are() -> None:
    assembler = ResponsesAssembler()
    for name, fields in (CREATED, delta("x"), ("response.of.tomorrow", {}), ended()):
        assembler.feed("message", json.dumps({"type": name, **fields}))
    assert assembler.finish().text == "x"


@given(st.lists(st.tuples(
    st.sampled_from([*ResponsesAssembler._HANDLERS, "message", "other"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "item", "output_index", "delta", "response", "content", "text", "error", "call_id",
                             "arguments", "usage", "status", "incomplete_details", "reason", "id", "name"]),
            inner, max_size=5,
        ),
        max_leaves=12,
    ),
), max_size=8))  # fmt: skip
def test_nothing_but_documented_errors_comes_of_any_events(events: list[tuple[str, Any]]) -> None:
    assembler = ResponsesAssembler(1000)
    try:
        for name, value in events:
            assembler.feed(name, json.dumps(value))
        turn = assembler.finish()
    except (StreamProtocolError, StreamFault, AnswerTooLarge):
        return
    sent_back(turn)


@pytest.mark.parametrize(
    "turn",
    [
        {"text": "Hello", "chunk_chars": 2},
        {"thinking": "Hm.", "text": "Now.", "tool_calls": [{"name": "ReadFile", "arguments": {"path": "é"}}]},
        {"redacted_thinking": "sealed", "tool_calls": [{"name": "A"}, {"name": "B"}], "pings": 5},
        {"text": "I cannot.", "stop_reason": "refusal"},
    ],
)
def test_the_scripted_gateway_says_it_so(turn: dict[str, Any]) -> None:
    script = Script.from_turns([turn]).turns[0]
    stream = b"".join(RESPONSES.stream_events(script, VIEW))
    assembler = ResponsesAssembler()
    for name, data in complete_events(stream):
        assembler.feed(name, data)
    got = assembler.finish()
    assert got.text == turn.get("text", "")
    assert [one.name for one in got.tool_calls] == [one["name"] for one in turn.get("tool_calls", [])]
    items = [{"role": "user", "content": "go"}, *sent_back(got)]
    assert read_request({"model": "m", "input": items}, {}).turn_index == 1
    assert orjson.loads(RESPONSES.message(script, VIEW))["output"]
