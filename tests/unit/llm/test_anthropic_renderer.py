"""Messages and request heads as the Messages API takes them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agent_host.contracts import ToolDefinition
from agent_host.llm.anthropic import AnthropicDialect, AnthropicRenderer
from agent_host.thread.messages import Message, ToolCall


def rendered(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(b"[" + data + b"]")
    return found


def exchange(assistant: Message, *results: Message) -> list[dict[str, Any]]:
    return rendered(AnthropicRenderer().exchange(assistant, results))


def result(call_id: str, content: str, *, is_error: bool = False) -> Message:
    return Message("tool", content, 1, tool_call_id=call_id, is_error=is_error)


def test_a_user_message_has_a_block_for_each_text() -> None:
    assert rendered(AnthropicRenderer().user(["one", "two"])) == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    ]


@pytest.mark.parametrize("empty", ["", " ", "\n\t "])
def test_no_block_of_text_is_ever_empty(empty: str) -> None:
    (user,) = rendered(AnthropicRenderer().user([empty]))
    assert user["content"][0]["text"].strip()
    (assistant,) = exchange(Message("assistant", empty, 1))
    assert assistant["content"][0]["text"].strip()
    turn, _ = exchange(Message("assistant", empty, 1, (ToolCall("c", "X", {}),)), result("c", "ok"))
    assert [block["type"] for block in turn["content"]] == ["tool_use"]


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


def test_a_request_is_head_messages_and_tail() -> None:
    dialect = AnthropicDialect()
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = ToolDefinition("ReadFile", "Reads.", schema)
    head = dialect.head(model="m", max_tokens=9, system="Be careful.", tools=[tool])
    assert orjson.loads(head + dialect.renderer.user(["hi"]) + dialect.tail) == {
        "model": "m",
        "max_tokens": 9,
        "stream": True,
        "system": [{"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "ReadFile", "description": "Reads.", "input_schema": schema}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }


def test_without_tools_none_are_named() -> None:
    dialect = AnthropicDialect()
    request = orjson.loads(dialect.head(model="m", max_tokens=9, system="s", tools=[]) + dialect.tail)
    assert "tools" not in request


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"type": "error", "error": {"type": "x", "message": "boom"}}, "boom"),
        ({"error": {"message": ""}}, ""),
        ({"error": {"message": 5}}, None),
        ({"error": "boom"}, None),
        ({}, None),
        ([], None),
        (None, None),
        ("boom", None),
    ],
)
def test_the_human_part_of_an_error(body: Any, said: str | None) -> None:
    assert AnthropicDialect().error_message(body) == said
