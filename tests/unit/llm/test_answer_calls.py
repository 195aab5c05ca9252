"""Calls of an answer: whole arguments, and ids that can be sent back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.answer_calls import CallReader, with_usable_ids
from agent_host.llm.limits import AnswerTooLarge
from agent_host.thread.messages import ToolCall

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4))
def test_whole_arguments_come_back(arguments: dict[str, Any]) -> None:
    text = orjson.dumps(arguments).decode()
    assert CallReader().call("c", "X", text) == CallReader().call("c", "X", arguments) == ToolCall("c", "X", arguments)


@pytest.mark.parametrize("nothing", ["", "  ", None, "{}", {}])
def test_no_arguments_are_an_empty_object(nothing: str | dict[str, Any] | None) -> None:
    assert CallReader().call("c", "X", nothing) == ToolCall("c", "X", {})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"path": "a', "not complete"),
        ('{"path": "a"} {}', "not complete"),
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
    kept = [call.call_id for call in with_usable_ids(ToolCall(one, "X", {}) for one in ids)]
    assert (kept[0], kept[-1]) == ("call_1", "functions.Read:0")
    assert len(set(kept)) == len(ids)
    assert not set(kept[1:-1]) & set(ids)
