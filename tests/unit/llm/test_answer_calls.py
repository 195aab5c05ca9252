"""Calls of an answer: whole arguments, and ids that can be sent back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge
from agent_host.llm.dialects import CallReader, keep_spelling, mend_ids
from agent_host.llm.dialects.openai_chat import ChatDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from agent_host.thread.messages import Message, ToolCall, decode, encode
from tests.support.rows import each_row

if TYPE_CHECKING:
    from agent_host.llm.dialects import Dialect

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4))
def test_whole_arguments_come_back(arguments: dict[str, Any]) -> None:
    text = orjson.dumps(arguments).decode()
    assert CallReader().call("c", "X", text) == CallReader().call("c", "X", arguments) == ToolCall("c", "X", arguments)


@given(
    st.dictionaries(st.text(), _VALUES, max_size=4),
    st.sampled_from([None, (",", ":"), (" , ", " :\t")]),
    st.sampled_from([None, 0, 2, "\r\n"]),
    st.booleans(),
)
def test_arguments_go_back_as_they_were_written(
    arguments: dict[str, Any], separators: tuple[str, str] | None, indent: int | str | None, ascii_only: bool
) -> None:
    """However the model spells them, over both wires that send them as text, and through the record."""
    text = json.dumps(arguments, separators=separators, indent=indent, ensure_ascii=ascii_only)
    calls = [{"id": "c", "index": 0, "function": {"name": "X", "arguments": text}}]
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "X", "arguments": text}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    streams: dict[Dialect, list[tuple[str, dict[str, Any]]]] = {
        ChatDialect(): [("message", chunk)],
        ResponsesDialect(): [
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": {}}),
        ],
    }
    for dialect, events in streams.items():
        assembler = dialect.assembler()
        for name, fields in events:
            assembler.feed(name, json.dumps(fields))
        turn = assembler.finish()
        blocks = tuple(block._replace(model="m") for block in turn.blocks)
        made = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
        read = decode(encode(made, MACHINE, session_id="s"))
        for model, sent in (("m", text), ("other", orjson.dumps(arguments).decode())):
            unit = dialect.renderer(model).exchange(read, [Message("tool", "x", 1, tool_call_id="c")])
            first = orjson.loads(b"[%b]" % unit)[0]
            function = first["tool_calls"][0]["function"] if "tool_calls" in first else first
            assert function["arguments"] == sent


@pytest.mark.parametrize("nothing", ["", "  ", None, "{}", {}])
def test_no_arguments_are_an_empty_object(nothing: str | dict[str, Any] | None) -> None:
    assert CallReader().call("c", "X", nothing) == ToolCall("c", "X", {})


@each_row(
    ("arguments", "problem"),
    [
        ('{"path": "a', "not complete"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"path": "a", "path": "b"}', "'path' twice"),
        ('{"edits": [{"oldText": "a", "oldText": "b"}]}', "'oldText' twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' twice"),
        ('{"a":' + "[" * 800 + "]" * 800 + "}", "nested too deep"),
    ],
)
def test_unusable_arguments_are_a_problem(arguments: str, problem: str) -> None:
    call = CallReader().call("c", "X", arguments)
    assert call.arguments == {}
    assert problem in str(call.problem)


def test_halves_of_characters_are_replaced_and_counted() -> None:
    reader = CallReader()
    assert reader.call("c", "X", '{"a": "\\ud800"}').arguments == {"a": "\ufffd"}
    assert reader.replaced == 1


def test_arguments_have_a_limit() -> None:
    with pytest.raises(AnswerTooLarge, match="max_call_arguments_bytes"):
        CallReader(10).call("c", "X", {"path": "0123456789"})


def test_every_call_has_an_id_of_its_own_that_gateways_take() -> None:
    ids = ["call_1", "", "call_1", "x" * 65, "a b", "é", "functions.Read:0"]
    kept = [call.call_id for call in mend_ids(ToolCall(one, "X", {}) for one in ids)]
    assert (kept[0], kept[-1]) == ("call_1", "functions.Read:0")
    assert len(set(kept)) == len(ids)
    assert not set(kept[1:-1]) & set(ids)


@each_row(
    ("text", "said"),
    [
        ('{"path": "a\nb"}', "raw newline"),
        ('{"path": "a",}', "comma too many"),
        ('{"edits": [1, 2,]}', "comma too many"),
        ("{'path': 'a'}", "single quotes"),
        ('{"raw": True}', "true or false"),
        ('{"path": "C:\\dir"}', "backslash"),
        ('{"path": "a', "not complete JSON"),
        ('{"path": "a"', "not complete JSON"),
        ('{"path": "a"} and more', "more follows"),
        ('{"path": "a"}{"path": "b"}', "more follows"),
        ('{"n": NaN}', "NaN"),
        ("read the file", "not JSON"),
    ],
)
def test_what_is_no_json_is_said(text: str, said: str) -> None:
    call = CallReader().call("c", "ReadFile", text)
    assert call.arguments == {}
    assert said in str(call.problem)


@pytest.mark.parametrize(
    "text", ['{}{"path": "a"}', '{"path": "a"}{}', '{"path": "a"}\n{"path": "a"}', '{} {} {"path": "a"}']
)
def test_several_whole_objects_are_the_last_that_is_not_empty(text: str) -> None:
    call = CallReader().call("c", "ReadFile", text)
    assert (call.arguments, call.problem) == ({"path": "a"}, None)
    assert keep_spelling(call, text, "anthropic") is None
