"""Messages and request heads as the Messages API takes them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import Subject, ToolSpec
from agent_host.ids import MACHINE
from agent_host.llm.dialects import sendable_name
from agent_host.llm.dialects.anthropic import AnthropicDialect, AnthropicRenderer
from agent_host.thread.messages import Message, ToolCall, encode
from tests.support.pictures import image
from tests.unit.llm.helpers import prompt
from tests.unit.thread.strategies import results, said, texts, turns

blanks = st.sampled_from(["", " ", "\n\t ", "\u2003"])


def rendered(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(b"[" + data + b"]")
    return found


def exchange(assistant: Message, *results: Message) -> list[dict[str, Any]]:
    return rendered(AnthropicRenderer().exchange(assistant, results))


def result(call_id: str, content: str, *, is_error: bool = False) -> Message:
    return Message("tool", content, 1, tool_call_id=call_id, is_error=is_error)


def test_a_user_message_has_a_block_for_each_text() -> None:
    assert rendered(AnthropicRenderer().user([prompt("one"), prompt("two")])) == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    ]


@pytest.mark.parametrize("empty", ["", " ", "\n\t "])
def test_no_block_of_text_is_ever_empty(empty: str) -> None:
    (user,) = rendered(AnthropicRenderer().user([prompt(empty)]))
    assert user["content"][0]["text"].strip()
    (assistant,) = exchange(Message("assistant", empty, 1))
    assert assistant["content"][0]["text"].strip()
    turn, _ = exchange(Message("assistant", empty, 1, (ToolCall("c", "X", {}),)), result("c", "ok"))
    assert [block["type"] for block in turn["content"]] == ["tool_use"]


@pytest.mark.parametrize(("content", "texts"), [("A picture.", ["A picture."]), (" ", [])])
def test_pictures_stand_in_the_result_behind_its_text(content: str, texts: list[str]) -> None:
    pictures = (image(4, 3), image(5, 5, 1000))
    _, answer = exchange(
        Message("assistant", "", 1, (ToolCall("c", "ReadFile", {}),)), result("c", content)._replace(images=pictures)
    )
    assert answer["content"][0]["content"] == [{"type": "text", "text": text} for text in texts] + [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64encode(one.data).decode()}}
        for one in pictures
    ]


def test_an_exchange_is_a_turn_and_one_message_with_all_results() -> None:
    calls = (ToolCall("c1", "ReadFile", {"path": "/ü"}), ToolCall("c2", "RunCommand", {}, "not complete JSON"))
    assert exchange(
        Message("assistant", "I look.", 1, calls), result("c1", "text"), result("c2", "FAILED", is_error=True)
    ) == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "ReadFile", "input": {"path": "/ü"}},
                {"type": "tool_use", "id": "c2", "name": "RunCommand", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "text"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "FAILED", "is_error": True},
            ],
        },
    ]


def test_a_result_without_output_has_no_content() -> None:
    _, answers = exchange(Message("assistant", "", 1, (ToolCall("c", "X", {}),)), result("c", ""))
    assert answers["content"] == [{"type": "tool_result", "tool_use_id": "c"}]


@given(st.lists(said | (texts | blanks).map(prompt), min_size=1, max_size=3))
def test_texts_are_sent_as_though_they_were_encoded_in_one_go(messages: list[Message]) -> None:
    blocks = [
        {"type": "text", "text": message.content if message.content.strip() else "(no text)"} for message in messages
    ]
    assert AnthropicRenderer().user(messages) == orjson.dumps({"role": "user", "content": blocks})


@pytest.mark.slow
@given(turns, blanks | st.none(), st.lists(results, max_size=3), st.booleans())
def test_an_exchange_is_sent_as_though_it_was_encoded_in_one_go(
    turn: Message, blank: str | None, results: list[Message], recorded: bool
) -> None:
    turn = turn if blank is None else turn._replace(content=blank)
    if recorded:
        for message in (turn, *results):
            encode(message, MACHINE, session_id="s")
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": call.call_id, "name": sendable_name(call.name), "input": call.arguments}
        for call in turn.tool_calls
    ]
    if turn.content.strip():
        blocks.insert(0, {"type": "text", "text": turn.content})
    elif not blocks:
        blocks.append({"type": "text", "text": "(no text)"})
    answers = [
        {"type": "tool_result", "tool_use_id": result.tool_call_id}
        | ({"content": result.content} if result.content else {})
        | ({"is_error": True} if result.is_error else {})
        for result in results
    ]
    wire = orjson.dumps({"role": "assistant", "content": blocks})
    if answers:
        wire += b"," + orjson.dumps({"role": "user", "content": answers})
    assert AnthropicRenderer().exchange(turn, results) == wire


def test_what_is_on_record_is_what_is_sent() -> None:
    """Nothing is encoded a second time: arguments that a tool changed meanwhile are sent as the model made them."""
    arguments = {"path": "/f"}
    turn = Message("assistant", "", 1, (ToolCall("c", "X", arguments),))
    encode(turn, MACHINE, session_id="s")
    arguments["path"] = "/changed"
    (sent,) = exchange(turn)
    assert sent["content"][0]["input"] == {"path": "/f"}


def test_a_request_is_head_messages_and_tail() -> None:
    dialect = AnthropicDialect()
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = ToolSpec("ReadFile", "Reads.", schema, "File.Read", Subject("path", "path"), "none", "files")
    head = dialect.head(model="m", max_output_tokens=9, system="Be careful.", tools=[tool])
    assert orjson.loads(head + dialect.renderer("m").user([prompt("hi")]) + dialect.tail) == {
        "model": "m",
        "max_tokens": 9,
        "stream": True,
        "system": [{"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "ReadFile", "description": "Reads.", "input_schema": schema}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }


def test_without_tools_none_are_named() -> None:
    dialect = AnthropicDialect()
    request = orjson.loads(dialect.head(model="m", max_output_tokens=9, system="s", tools=[]) + dialect.tail)
    assert "tools" not in request
