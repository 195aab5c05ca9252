"""Messages and request heads as Chat Completions takes them."""

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
from agent_host.llm.dialects.openai_chat import ChatDialect, ChatRenderer
from agent_host.testing.dialects.openai_chat import ERROR_MARK, read_request
from agent_host.thread.messages import Block, Message, ToolCall, encode
from tests.support.pictures import image
from tests.unit.llm.chat_helpers import call, called, ended
from tests.unit.llm.helpers import prompt
from tests.unit.thread.strategies import results, said, turns

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(name: str) -> ToolSpec:
    return ToolSpec(name, "Reads.", SCHEMA, "File.Read", Subject("path", "path"), "none", "files")


def rendered(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(b"[" + data + b"]")
    return found


def exchange(assistant: Message, *answers: Message) -> list[dict[str, Any]]:
    return rendered(ChatRenderer("m").exchange(assistant, answers))


def result(call_id: str, content: str, *, is_error: bool = False) -> Message:
    return Message("tool", content, 1, tool_call_id=call_id, is_error=is_error)


@pytest.mark.parametrize(
    ("texts", "content"),
    [
        (["one"], "one"), (["one", "two"], "one\n\ntwo"), (["", "two"], "two"), (["", " "], "(no text)"),
        ([" \n"], "(no text)"), ([" one "], " one "),
    ],
)  # fmt: skip
def test_a_user_message_is_one_text(texts: list[str], content: str) -> None:
    assert rendered(ChatRenderer().user([*map(prompt, texts)])) == [{"role": "user", "content": content}]


def test_an_exchange_is_a_turn_and_a_message_for_each_result() -> None:
    calls = (ToolCall("c1", "ReadFile", {"path": "/ü"}), ToolCall("c2", "RunCommand", {}, "not complete JSON"))
    answers = [result("c1", "text"), result("c2", "FAILED", is_error=True)]
    assert exchange(Message("assistant", "I look.", 1, calls), *answers) == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ReadFile", "arguments": '{"path":"/ü"}'}},
                {"id": "c2", "type": "function", "function": {"name": "RunCommand", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
        {"role": "tool", "tool_call_id": "c2", "content": "[error] FAILED"},
    ]


def test_a_failure_is_said_in_the_text_as_the_gateway_reads_it() -> None:
    (_, answer) = exchange(Message("assistant", "", 1, (ToolCall("c", "X", {}),)), result("c", "", is_error=True))
    assert answer["content"] == ERROR_MARK + "(no text)"


@pytest.mark.parametrize("empty", ["", " ", "\n\t "])
def test_no_text_is_ever_empty(empty: str) -> None:
    assert exchange(Message("assistant", empty, 1)) == [{"role": "assistant", "content": "(no text)"}]
    turn, answer = exchange(Message("assistant", empty, 1, (ToolCall("c", "X", {}),)), result("c", empty))
    assert (turn["content"], answer["content"]) == (None, "(no text)")


def test_pictures_stand_in_a_users_message_behind_all_results() -> None:
    calls = tuple(ToolCall(f"c{number}", "ReadFile", {}) for number in range(3))
    one, two, three = image(4, 3), image(5, 5, 1000), image(6, 6)
    answers = [
        result("c0", "A picture.")._replace(images=(one,)),
        result("c1", "Text."),
        result("c2", "Two.")._replace(images=(two, three)),
    ]
    _, *texts, pictures = exchange(Message("assistant", "", 1, calls), *answers)
    assert [text["content"] for text in texts] == ["A picture.", "Text.", "Two."]

    def part(picture: Any) -> dict[str, Any]:
        data = b64encode(picture.data).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    assert pictures == {
        "role": "user",
        "content": [
            {"type": "text", "text": "[Pictures of the result of c0:]"}, part(one),
            {"type": "text", "text": "[Pictures of the result of c2:]"}, part(two), part(three),
        ],
    }  # fmt: skip


def test_a_long_id_is_the_same_other_one_in_call_and_result() -> None:
    ids = ("x" * 41, "y" * 64, "z" * 40)
    calls = tuple(ToolCall(one, "X", {}) for one in ids)
    answers = [result(one, "ok")._replace(images=(image(1, 1),)) for one in ids]
    turn, *rest = exchange(Message("assistant", "", 1, calls), *answers)
    sent = [one["id"] for one in turn["tool_calls"]]
    assert sent == [one["tool_call_id"] for one in rest[:3]]
    assert sent[2] == ids[2]
    assert len({*sent}) == 3
    assert max(map(len, sent)) <= 40
    labels = [part["text"] for part in rest[3]["content"] if part["type"] == "text"]
    assert labels == [f"[Pictures of the result of {one}:]" for one in sent]


def test_the_text_of_an_answer_of_another_provider_stays_whole() -> None:
    """A block of another dialect holds a part of the text for that dialect only."""
    blocks = (Block('{"type":"text","text":"a","citations":[]}', "anthropic", "m", holds_text=True),)
    calls = (ToolCall("c", "X", {}),)
    turn = Message("assistant", "ab", 1, calls, blocks=blocks, order=("block", 1, "call", 1))
    assert exchange(turn, result("c", "ok"))[0]["content"] == "ab"


def test_blocks_stay_in_their_places_when_the_order_is_lost() -> None:
    """A text that a damaged disk lost has another length; fields of a call are nothing for the message then."""
    blocks = (Block('{"message":{"reasoning":"Hm"}}', "openai", "m"), Block('{"call":{"x":1}}', "openai", "m"))
    turn = Message(
        "assistant", "lost", 1, (ToolCall("c", "X", {}),), blocks=blocks, order=("block", 9, "call", "block")
    )
    sent, _ = exchange(turn, result("c", "ok"))
    assert sent["reasoning"] == "Hm"
    assert "x" not in sent
    assert sent["tool_calls"][0].keys() == {"id", "type", "function"}


@pytest.mark.slow
@given(st.lists(said, max_size=2), turns, st.lists(results, max_size=3), st.booleans())
def test_whatever_is_in_the_messages_the_request_is_taken(
    before: list[Message], turn: Message, answers: list[Message], recorded: bool
) -> None:
    calls = tuple(call.change_id(f"c{number}") for number, call in enumerate(turn.tool_calls))
    turn = turn._replace(tool_calls=calls)
    answers = [
        answer._replace(tool_call_id=call.call_id)
        for answer, call in zip([*answers, *[result("", "ok")] * len(calls)], calls, strict=False)
    ]
    if recorded:
        for message in (turn, *answers):
            encode(message, MACHINE, session_id="s")
    renderer = ChatRenderer("m")
    parts = [renderer.user([prompt("go")]), *(renderer.user([one]) for one in before), renderer.exchange(turn, answers)]
    messages = orjson.loads(b"[" + b",".join(parts) + b"]")
    assert read_request({"model": "m", "messages": messages}, {}).turn_index == 1
    sent = messages[1 + len(before)]
    assert sent["content"] == (turn.content if turn.content.strip() else None if calls else "(no text)")
    made = [(one["function"]["name"], orjson.loads(one["function"]["arguments"])) for one in sent.get("tool_calls", ())]
    assert made == [(sendable_name(one.name), one.arguments) for one in calls]


def test_what_is_on_record_is_what_is_sent() -> None:
    """Nothing is encoded a second time: arguments that a tool changed meanwhile are sent as the model made them."""
    arguments = {"path": "/f"}
    turn = Message("assistant", "", 1, (ToolCall("c", "X", arguments),))
    encode(turn, MACHINE, session_id="s")
    arguments["path"] = "/changed"
    (sent,) = exchange(turn)
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"path":"/f"}'


# --- the head ---------------------------------------------------------------------------------------------------------


def request(dialect: ChatDialect, *tools: ToolSpec, system: str = "Be careful.", session: str = "s1") -> dict[str, Any]:
    head = dialect.head(model="m", max_output_tokens=9, system=system, tools=tools, session_id=session)
    found: dict[str, Any] = orjson.loads(head + dialect.renderer("m").user([prompt("hi")]) + dialect.tail)
    return found


def test_a_request_is_head_messages_and_tail() -> None:
    assert request(ChatDialect(), tool("ReadFile")) == {
        "model": "m",
        "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt_cache_key": "s1",
        "tools": [
            {"type": "function", "function": {"name": "ReadFile", "description": "Reads.", "parameters": SCHEMA}}
        ],
        "messages": [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "hi"}],
    }


def test_what_is_not_there_is_not_named() -> None:
    made = request(ChatDialect(), system=" ", session="")
    assert made.keys() == {"model", "max_completion_tokens", "stream", "stream_options", "messages"}
    assert [message["role"] for message in made["messages"]] == ["user"]


def test_older_servers_get_what_they_know() -> None:
    made = request(ChatDialect(max_tokens_field="max_tokens", names_cache=False))
    assert made["max_tokens"] == 9
    assert not made.keys() & {"max_completion_tokens", "prompt_cache_key"}


def test_a_tool_whose_name_is_not_taken_is_offered_under_another_and_called_by_its_own() -> None:
    dialect = ChatDialect()
    names = ["ReadFile", "github/create_issue", "x" * 65]
    offered = [one["function"]["name"] for one in request(dialect, *map(tool, names))["tools"]]
    assert offered == [sendable_name(name) for name in names]
    assembler = dialect.assembler()
    for index, name in enumerate(offered):
        assembler.feed("message", called(call(index, f"c{index}", name, "{}")))
    assembler.feed("message", ended("tool_calls"))
    turn = assembler.finish()
    assert [one.name for one in turn.tool_calls] == names
    sent, *_ = exchange(Message("assistant", "", 1, turn.tool_calls), *(result(f"c{n}", "ok") for n in range(3)))
    assert [one["function"]["name"] for one in sent["tool_calls"]] == offered
