"""A turn out of the chunks of one Chat Completions stream (AH 6.3), or a clear reason why there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects.openai_chat import _FAILED, _MEANINGS, ChatAssembler, ChatRenderer
from agent_host.thread.messages import Block, Message, ToolCall, encode
from state.checkpoint import TokenUsage
from tests.support.rows import each_row
from tests.unit.llm.chat_helpers import DONE, assemble, call, called, chunk, data_of, ended

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wires" / "chat"


def fixture(name: str) -> list[str]:
    lines = (FIXTURES / f"{name}.sse").read_text("utf-8").split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def sent_back(turn: ModelTurn) -> dict[str, Any]:
    """The assistant's message as the next request has it."""
    blocks = tuple(block._replace(model="m") for block in turn.blocks)
    message = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
    found: dict[str, Any] = orjson.loads(ChatRenderer("m").exchange(message, []))
    return found


# --- text, and what the turn is called --------------------------------------------------------------------------------


def test_text_is_shown_piece_by_piece_and_given_whole() -> None:
    shown: list[str] = []
    turn = assemble(*data_of({"text": "Good morning to you", "chunk_chars": 5, "pings": 4}), shown=shown)
    named = turn._replace(response_id="", response_model="")
    assert named == ModelTurn("Good morning to you", (), "stop", "complete", TokenUsage(100, 20, 0))
    assert shown == ["Good ", "morni", "ng to", " you"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": "chatcmpl-1", "model": "m-1"}, ("chatcmpl-1", "m-1")),
        ({}, ("", "")),
        ({"id": 7, "model": None}, ("", "")),
        ({"id": "x" * 256, "model": ["m"]}, ("x" * 256, "")),
        ({"id": "x" * 257, "model": "m"}, ("", "m")),
    ],
)
def test_the_answer_and_its_model_are_named_as_far_as_the_gateway_does(
    given: dict[str, Any], expected: tuple[str, str]
) -> None:
    turn = assemble(chunk({"content": "a"}, **given), ended())
    assert (turn.response_id, turn.response_model) == expected


@pytest.mark.parametrize(
    ("content", "text", "unread"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", 0),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "b"}], "b", 1),
        ([], "", 0),
    ],
)
def test_text_may_come_in_parts(content: Any, text: str, unread: int) -> None:
    turn = assemble(chunk({"content": content}), ended())
    assert (turn.text, turn.dropped_blocks) == (text, unread)


def test_one_choice_is_read() -> None:
    other = {"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}
    both = {"choices": [other, {"index": 0, "delta": {"content": "A"}, "finish_reason": None}]}
    turn = assemble(json.dumps(both), json.dumps({"choices": [other]}), ended())
    assert (turn.text, turn.stop_reason) == ("A", "stop")


@pytest.mark.parametrize("choices", [[], None])
def test_chunks_without_choices_are_read_for_what_else_is_in_them(choices: Any) -> None:
    usage = json.dumps({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    filters = json.dumps({"choices": choices, "prompt_filter_results": [{}]})
    assert assemble(filters, chunk({"content": "a"}), ended(), usage, DONE).usage == TokenUsage(3, 4)


# --- how it ends ------------------------------------------------------------------------------------------------------


@each_row(
    ("reason", "meaning"),
    [
        ("stop", "complete"), ("tool_calls", "empty"), ("function_call", "empty"), ("length", "cut"),
        ("content_filter", "blocked"),
        ("eos", "complete"), ("eos_token", "complete"), ("end_turn", "complete"), ("stop_sequence", "complete"),
        ("tool_use", "empty"), ("max_tokens", "cut"), ("model_length", "cut"), ("safety", "blocked"),
        ("sensitive", "blocked"), ("recitation", "blocked"), ("guardrail", "blocked"), ("refusal", "blocked"),
        ("of_tomorrow", "unknown"),
    ],
)  # fmt: skip
def test_the_stop_reason_is_handed_on_with_what_it_means(reason: str, meaning: str) -> None:
    turn = assemble(chunk({"content": "a"}), ended(reason))
    assert (turn.stop_reason, turn.meaning) == (reason, meaning)


@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "insufficient_system_resource", "overloaded"])
def test_an_answer_that_the_server_gave_up_is_no_answer(reason: str) -> None:
    with pytest.raises(StreamProtocolError, match=reason):
        assemble(chunk({"content": "a"}), ended(reason), DONE)


def test_a_stop_with_calls_is_a_turn_with_calls() -> None:
    turn = assemble(called(call(0, "a", "X", "{}")), ended("stop"))
    assert (turn.meaning, len(turn.tool_calls)) == ("complete", 1)


def test_an_empty_reason_counts_when_the_stream_says_that_it_is_done() -> None:
    """Servers that send one have it in every chunk."""
    chunks = [chunk({"content": "a"}, ""), chunk({"content": "b"}, "")]
    turn = assemble(*chunks, DONE)
    assert (turn.text, turn.stop_reason, turn.meaning) == ("ab", "", "complete")
    with pytest.raises(StreamProtocolError, match="ended before the answer did"):
        assemble(*chunks)
    assert assemble(*chunks, ended("length"), chunk({}, "")).stop_reason == "length"


@pytest.mark.parametrize("end", [[], [DONE], [chunk({}, None)]])
def test_without_a_reason_the_answer_is_cut(end: list[str]) -> None:
    with pytest.raises(StreamProtocolError, match="ended before the answer did"):
        assemble(chunk({"content": "a"}), called(call(0, "a", "X", "{}")), *end)


def test_a_stream_of_something_else_says_so() -> None:
    with pytest.raises(StreamProtocolError, match="check --dialect"):
        assemble('{"type":"message_start","message":{}}', '{"type":"message_stop"}')


def test_what_is_behind_the_end_is_ignored() -> None:
    behind = [chunk({"content": "more"}), "nonsense", json.dumps({"error": "late"}), ended("length")]
    assert assemble(chunk({"content": "a"}), ended(), DONE, *behind).text == "a"


def test_between_the_reason_and_the_end_all_is_read() -> None:
    turn = assemble(called(call(None, "a", "X", "{}")), ended("tool_calls"), called(call(None, "b", "Y", "{}")), DONE)
    assert [one.name for one in turn.tool_calls] == ["X", "Y"]


def test_a_refusal_blocks_and_is_read() -> None:
    shown: list[str] = []
    parts = [chunk({"content": None, "refusal": part}) for part in ("", "I ", "cannot.")]
    turn = assemble(chunk({"content": "Well. "}), *parts, ended(), shown=shown)
    assert (turn.text, turn.meaning, turn.stop_reason) == ("Well. I cannot.", "blocked", "refusal")
    assert "".join(shown) == turn.text
    assert turn.detail == "I cannot."


def test_the_end_is_told_in_one_line() -> None:
    assert assemble(chunk({"refusal": "a\n" * 900 + "\ud800"}), ended()).detail == ("a " * 250)[:500]
    assert assemble(chunk({"refusal": "a\n\ud800"}), ended()).detail == "a \ufffd"
    assert assemble(chunk({"content": "a"}), ended("content_filter")).detail == "content_filter"
    assert assemble(chunk({"content": "a"}), ended("length")).detail == "length"
    assert assemble(chunk({"content": "a"}), ended("stop")).detail == ""


# --- usage ------------------------------------------------------------------------------------------------------------

COUNTS = {"prompt_tokens": 1500, "completion_tokens": 40, "total_tokens": 1540}


@each_row(
    ("usage", "counted"),
    [
        (COUNTS, TokenUsage(1500, 40)),
        (COUNTS | {"prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 8}}, TokenUsage(1500, 40, 7, 8)),
        (COUNTS | {"prompt_tokens_details": None}, TokenUsage(1500, 40)),
        (COUNTS | {"prompt_cache_hit_tokens": 9}, TokenUsage(1500, 40, 9)),
        (COUNTS | {"cache_read_input_tokens": 9, "cache_creation_input_tokens": 4}, TokenUsage(1500, 40, 9, 4)),
        (COUNTS | {"completion_tokens_details": {"reasoning_tokens": 30}}, TokenUsage(1500, 40)),
        (COUNTS | {"total_tokens": 1600}, TokenUsage(1500, 100)),  # reasoning stands in the total only
        ({"total_tokens": 1600, "completion_tokens": 3}, TokenUsage(0, 3)),
        (COUNTS | {"prompt_tokens_details": {"cached_tokens": 1600}}, TokenUsage(1500, 40, 1500)),
        ({"prompt_tokens": -1, "completion_tokens": "x", "total_tokens": True}, TokenUsage(0, 0)),
        ({"prompt_tokens": 10**15, "completion_tokens": 1}, TokenUsage(10**9, 1)),
        ([1], TokenUsage(0, 0)),
    ],
)
def test_usage(usage: Any, counted: TokenUsage) -> None:
    assert assemble(chunk({"content": "a"}), ended(usage=usage)).usage == counted


@pytest.mark.parametrize("place", ["before", "beside", "behind", "in the choice"])
def test_usage_stands_in_any_chunk_and_the_last_counts(place: str) -> None:
    early = {"prompt_tokens": 1500, "completion_tokens": 1}
    first = chunk({"content": "a"}, usage=COUNTS if place == "before" else early)
    finish = ended(usage=COUNTS if place == "beside" else None)
    last = [json.dumps({"choices": [], "usage": COUNTS})] if place == "behind" else []
    if place == "in the choice":
        last = [json.dumps({"choices": [{"index": 0, "delta": {}, "usage": COUNTS}]})]
    assert assemble(first, finish, *last, chunk({}, usage={}), DONE).usage == TokenUsage(1500, 40)


# --- calls ------------------------------------------------------------------------------------------------------------


def told(turn: ModelTurn) -> list[tuple[str, dict[str, Any]]]:
    assert all(one.problem is None for one in turn.tool_calls), turn.tool_calls
    return [(one.name, one.arguments) for one in turn.tool_calls]


A, B = ("X", {"a": 1}), ("X", {"b": 2})
JSON_A, JSON_B = '{"a":1}', '{"b":2}'


@each_row(
    ("entries", "expected"),
    [
        # as OpenAI sends them
        ([call(0, "i", "X", ""), call(0, None, None, '{"a"'), call(0, None, None, ":1}"), call(1, "j", "X", JSON_B)],
         [A, B]),
        # two at once, in turns
        ([call(0, "i", "X"), call(1, "j", "X"), call(1, None, None, JSON_B), call(0, None, None, JSON_A)], [A, B]),
        # index 0 for each
        ([call(0, "i", "X", JSON_A), call(0, "j", "X", JSON_B)], [A, B]),
        ([call(0, "i", "X", '{"a":'), call(0, "i", "X", "1}"), call(0, "j", "X", JSON_B)], [A, B]),
        ([call(0, None, "X", JSON_A), call(0, None, "Y", JSON_B)], [A, ("Y", {"b": 2})]),
        # no index
        ([call(None, "i", "X", JSON_A), call(None, "j", "X", JSON_B)], [A, B]),
        ([call(None, "i", "X", '{"a"'), call(None, None, None, ":1}"), call(None, "i", None, " ")], [A]),
        # neither index nor id
        ([call(None, None, "X", JSON_A), call(None, "", "X", JSON_B)], [A, B]),
        ([call(None, None, "X", JSON_A), call(None, "j", "X", JSON_B)], [A, B]),
        # the id later than the name, and the name than the arguments
        ([call(0, None, "X", ""), call(0, "i", None, JSON_A)], [A]),
        ([call(0, "i", None, JSON_A), call(0, None, "X")], [A]),
        # arguments as an object, missing, null
        ([call(0, "i", "X", {"a": 1}), call(1, "j", "X", {})], [A, ("X", {})]),
        ([call(0, "i", "X"), {"index": 1, "id": "j", "function": {"name": "Y", "arguments": None}}],
         [("X", {}), ("Y", {})]),
        ([call(0, "i", "X", {}), call(0, None, None, JSON_A)], [A]),
        # what brings nothing begins no call
        ([call(0, "i", "X", JSON_A), call(1), {"index": 2, "function": None}, call(None, "", "", "")], [A]),
        # an index that is none
        ([call("0", "i", "X", JSON_A), call(True, "j", "X", JSON_B)], [A, B]),  # type: ignore[arg-type]
    ],
)  # fmt: skip
@each_row("together", [True, False])
def test_which_delta_belongs_to_which_call(
    entries: list[Any], expected: list[tuple[str, dict[str, Any]]], *, together: bool
) -> None:
    deltas = [called(*entries)] if together else [called(entry) for entry in entries]
    assert told(assemble(*deltas, ended("tool_calls"))) == expected


@pytest.mark.parametrize("ids", [["a", "a"], [None, None], ["x" * 65, "a b"], [7, {}], ["", "a"]])
def test_every_call_gets_a_usable_id_of_its_own(ids: list[Any]) -> None:
    turn = assemble(*(called(call(index, one, "X", "{}")) for index, one in enumerate(ids)), ended())
    found = [one.call_id for one in turn.tool_calls]
    assert len({*found}) == 2
    assert all(0 < len(one) <= 64 and one.isascii() and " " not in one for one in found)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"path": "a.t', "not complete JSON"), (JSON_A + JSON_B, "more follows"), ("[1]", "not a JSON object"),
        ("null", "not a JSON object"), ([1], "not a JSON object"), (5, "not a JSON object"),
        ('{"a": 1, "a": 2}', "twice"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_keep_the_call_and_say_why(arguments: Any, problem: str) -> None:
    (one,) = assemble(called(call(0, "c", "X", arguments)), ended("length")).tool_calls
    assert (one.call_id, one.name, one.arguments) == ("c", "X", {})
    assert problem in str(one.problem)


def test_an_object_is_read_as_it_stands() -> None:
    """A field that comes twice is seen, which is lost when the chunk is read."""
    raw = called(call(0, "c", "X", "RAW")).replace('"RAW"', '{"a": 1, "a": 2}')
    (one,) = assemble(raw, ended()).tool_calls
    assert "twice" in str(one.problem)
    (one,) = assemble(called(call(0, "c", "X", {"a": 1})), called(call(0, "c", None, {"a": 1})), ended()).tool_calls
    assert (one.arguments, one.problem) == ({"a": 1}, None)


def test_a_call_that_the_limit_cut_before_its_arguments_does_not_run() -> None:
    begun = [called(call(0, "a", "X", "")), called(call(1, "b", "Y", ""))]
    first, last = assemble(*begun, ended("length")).tool_calls
    assert (first.problem, last.problem) == (None, "the answer ended before the call did")
    assert [one.problem for one in assemble(*begun, ended("tool_calls")).tool_calls] == [None, None]


def test_the_form_before_tool_calls_is_read() -> None:
    first = chunk({"function_call": {"name": "X", "arguments": '{"a"'}})
    turn = assemble(first, chunk({"function_call": {"arguments": ":1}"}}), ended("function_call"))
    assert told(turn) == [A]
    assert told(assemble(chunk({"function_call": {"name": "X", "arguments": {"a": 1}}}), ended())) == [A]


@pytest.mark.parametrize("parts", [['{"a":"', "é" * 20, '"}'], ['{"a":"' + "x" * 40 + '"}'], [{"a": "x" * 39}]])
def test_arguments_of_a_call_have_a_limit_in_bytes(parts: list[Any]) -> None:
    deltas = [called(call(index, f"c{index}", "X", part)) for index in (0, 1) for part in parts]
    assert len(assemble(*deltas, ended(), limit=48).tool_calls) == 2
    with pytest.raises(AnswerTooLarge, match=r"47 bytes \(llm\.max_call_arguments_bytes\)"):
        assemble(*deltas, limit=47)


@each_row("depth", [1, 240, 252, 260, 400])
@each_row("whole", [True, False])
def test_arguments_that_nest_too_deep_to_be_recorded_are_a_problem(depth: int, *, whole: bool) -> None:
    deep = '{"a":' + "[" * depth + "]" * depth + "}"
    delta = called(call(0, "c", "X", "DEEP")).replace('"DEEP"', deep if whole else json.dumps(deep))
    (one,) = assemble(delta, ended()).tool_calls
    assert (one.problem is None) == (one.arguments != {})
    assert one.problem is None or depth > 200
    encode(Message("assistant", "", 1, (one,)), MACHINE, session_id="s")


# --- what goes back as it came ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_and_goes_back_under_its_name(name: str) -> None:
    thoughts: list[str] = []
    parts = [chunk({"content": "", name: part}) for part in ("I ", "", 'plan "é"\n')]
    turn = assemble(*parts, chunk({"content": "Yes.", name: None}), ended(), thoughts=thoughts)
    assert (turn.text, thoughts) == ("Yes.", ["I ", 'plan "é"\n'])
    assert sent_back(turn) == {"role": "assistant", "content": "Yes.", name: 'I plan "é"\n'}


def test_reasoning_under_two_names_is_shown_once() -> None:
    thoughts: list[str] = []
    turn = assemble(chunk({"reasoning": "Hm", "reasoning_content": "Hm"}), ended(), thoughts=thoughts)
    assert thoughts == ["Hm"]
    assert sent_back(turn).items() >= {"reasoning": "Hm", "reasoning_content": "Hm"}.items()


def test_reasoning_details_that_stand_alone_are_shown() -> None:
    details = [{"type": "reasoning.text", "text": "Let", "index": 0}, {"type": "reasoning.encrypted", "data": "x"}, 5]
    thoughts: list[str] = []
    assemble(chunk({"reasoning_details": details}), ended(), thoughts=thoughts)
    assert thoughts == ["Let"]


def test_fragments_of_reasoning_details_are_put_together() -> None:
    """A signature holds for the whole text only (agno-agi/agno#8794)."""
    base = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    fragments = [
        [{**base, "text": "Let"}],
        [{**base, "text": " me", "signature": None}, {"type": "reasoning.summary", "index": 1}],
        [{**base, "signature": "Et8"}], [{"type": "reasoning.encrypted", "data": "é", "index": 0}, "odd"],
        [{"type": "reasoning.text", "text": "alone"}, {"type": "reasoning.text", "text": "too"}],
    ]  # fmt: skip
    turn = assemble(*(chunk({"reasoning_details": one}) for one in fragments), ended())
    assert sent_back(turn)["reasoning_details"] == [
        {**base, "text": "Let me", "signature": "Et8"},
        {"type": "reasoning.summary", "index": 1},
        {"type": "reasoning.encrypted", "data": "é", "index": 0},
        "odd",
        {"type": "reasoning.text", "text": "alone"},
        {"type": "reasoning.text", "text": "too"},
    ]


def test_fragments_of_thinking_blocks_are_put_together_up_to_a_signature() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b", "signature": None},
        {"type": "thinking", "thinking": "", "signature": "s1"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "c"}, {"type": "thinking", "signature": "s2"},
    ]  # fmt: skip
    turn = assemble(*(chunk({"thinking_blocks": [part]}) for part in parts), ended())
    assert sent_back(turn)["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "s1"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "c", "signature": "s2"},
    ]


def test_unknown_fields_go_back_byte_for_byte() -> None:
    odd = '{"a": 1.0,\t"b":"\\u00e9\\/", "c":12345678901234567890123}'
    first = chunk({"content": "Yes", "x": "ODD", "empty": "", "none": None, "zero": 0}).replace('"ODD"', odd)
    turn = assemble(first, chunk({"x": "ODD", "list": [1]}).replace('"ODD"', odd), chunk({"list": [{}]}), ended())
    (block,) = turn.blocks
    assert block.raw == f'{{"message":{{"x":{odd},"zero":0,"list":[1,{{}}]}}}}'
    sent = ChatRenderer("").exchange(Message("assistant", "Yes", 1, blocks=(block,)), [])
    assert sent == f'{{"role":"assistant","content":"Yes","x":{odd},"zero":0,"list":[1,{{}}]}}'.encode()


def test_fields_of_a_call_go_back_in_it() -> None:
    signature = {"google": {"thought_signature": "CiQB+/=="}}
    entries = [
        call(0, "a", "X", "{}", extra_content=signature, provider_specific_fields=None),
        call(1, "b", "X", "{}"),
        {"index": 2, "id": "c", "function": {"name": "X", "arguments": "{}", "provider_specific_fields": signature}},
    ]
    turn = assemble(chunk({"reasoning": "Hm"}), *map(called, entries), ended())
    assert [block.raw for block in turn.blocks] == [
        '{"message":{"reasoning":"Hm"}}',
        f'{{"call":{{"extra_content":{json.dumps(signature)}}}}}',
        f'{{"function":{{"provider_specific_fields":{json.dumps(signature)}}}}}',
    ]
    assert turn.order == ("block", "call", "block", "call", "call", "block")
    sent = sent_back(turn)["tool_calls"]
    assert [one.get("extra_content") for one in sent] == [signature, None, None]
    assert [one["function"].get("provider_specific_fields") for one in sent] == [None, None, signature]


@pytest.mark.parametrize("raw", [r'{"a":"\ud83d"}', '{"a":"\ud83d"}', r'["\ude00"]', r'{"\ud83d":1}'])
def test_a_field_with_half_of_a_character_is_dropped_and_counted(raw: str) -> None:
    turn = assemble(chunk({"content": "a", "x": "RAW", "y": 1}).replace('"RAW"', raw), ended())
    assert turn.dropped_blocks == 1
    assert [block.raw for block in turn.blocks] == ['{"message":{"y":1}}']


def test_only_the_same_dialect_and_model_get_them() -> None:
    turn = assemble(chunk({"reasoning": "Hm"}), called(call(0, "a", "X", "{}", extra_content={"x": 1})), ended())
    for dialect, model in (("anthropic", "m"), ("openai", "other")):
        blocks = tuple(Block(block.raw, dialect, model) for block in turn.blocks)
        message = Message("assistant", "", 1, turn.tool_calls, blocks=blocks, order=turn.order)
        sent = orjson.loads(ChatRenderer("m").exchange(message, []))
        assert sent.keys() == {"role", "content", "tool_calls"}
        assert sent["tool_calls"][0].keys() == {"id", "type", "function"}


# --- the wires that there are -----------------------------------------------------------------------------------------

USAGE = TokenUsage(1500, 40, 1024, 256)


SERVERS: list[tuple[str, str, list[str], str, str, TokenUsage]] = [
    ("text", "Good morning, é 😀.", [], "stop", "complete", USAGE),
    ("tool-calls", "I look.", ["call_a", "call_b"], "tool_calls", "complete", USAGE),
    ("length", "It is lo", [], "length", "cut", USAGE),
    ("content-filter", "Half of", [], "content_filter", "blocked", USAGE),
    ("refusal", "I can't help with that.", [], "refusal", "blocked", USAGE),
    ("finish-without-done", "Done.", [], "stop", "complete", TokenUsage()),
    ("reasoning-content", "", ["call_a"], "tool_calls", "complete", USAGE),
    ("reasoning-details", "", ["call_a"], "tool_calls", "complete", USAGE),
    ("reasoning-same-index", "", ["call_a", "call_b"], "stop", "complete", TokenUsage(900, 30)),
    ("extra-content", "", ["function-call-1", "function-call-2"], "stop", "complete", TokenUsage(700, 112)),
]


@each_row(("name", "text", "calls", "stop", "meaning", "usage"), SERVERS)
def test_the_streams_of_servers(
    name: str, text: str, calls: list[str], stop: str, meaning: str, usage: TokenUsage
) -> None:
    turn = assemble(*fixture(name))
    assert (turn.text, [one.call_id for one in turn.tool_calls]) == (text, calls)
    assert (turn.stop_reason, turn.meaning, turn.usage) == (stop, meaning, usage)
    assert all(one.problem is None for one in turn.tool_calls)


def test_all_streams_of_servers_are_tried() -> None:
    broken = {"cut", "error-midway"}
    assert {path.stem for path in FIXTURES.glob("*.sse")} == broken | {name for name, *_ in SERVERS}
    with pytest.raises(StreamProtocolError, match="ended before the answer did"):
        assemble(*fixture("cut"))
    with pytest.raises(StreamFault, match="server_error: The server had an error") as caught:
        assemble(*fixture("error-midway"))
    assert caught.value.retryable


# --- halves of characters ---------------------------------------------------------------------------------------------

HIGH, LOW = r"\ud83d", r"\ude00"


def raw_text(*encoded: str, field: str = "content") -> list[str]:
    """Chunks with JSON strings as they go over the wire."""
    return [f'{{"choices":[{{"index":0,"delta":{{"{field}":"{part}"}}}}]}}' for part in encoded]


@each_row(
    ("parts", "shown", "replaced"),
    [
        (["a" + HIGH, LOW + "b"], ["a", "😀b"], 0),
        (["a" + HIGH, "b"], ["a", "\ufffdb"], 1),
        ([HIGH, HIGH, LOW], ["\ufffd", "😀"], 1),
        ([HIGH, "", LOW], ["😀"], 0),
        ([LOW + HIGH], ["\ufffd", "\ufffd"], 2),
        (["x", "y" + HIGH], ["x", "y", "\ufffd"], 1),
        ([HIGH + LOW, "plain"], ["😀", "plain"], 0),
        (["\ud83d", LOW], ["😀"], 0),
    ],
)
@each_row("end", [[ended()], [ended(), DONE]])
def test_halves_in_text_are_joined_or_replaced(
    parts: list[str], shown: list[str], replaced: int, end: list[str]
) -> None:
    seen: list[str] = []
    turn = assemble(*raw_text(*parts), *end, shown=seen)
    assert (turn.text, seen, turn.replaced) == ("".join(shown), shown, replaced)


def test_halves_in_reasoning_are_joined_or_replaced() -> None:
    thoughts: list[str] = []
    turn = assemble(*raw_text("a" + HIGH, LOW + "b", LOW, field="reasoning"), ended(), thoughts=thoughts)
    assert (thoughts, turn.replaced) == (["a", "😀b", "\ufffd"], 1)
    assert sent_back(turn)["reasoning"] == "a😀b\ufffd"


@pytest.mark.parametrize(
    ("parts", "value", "replaced"),
    [
        ([r'{"a": "\ud800"}'], "\ufffd", 1),
        (['{"a": "\ud800"}'], "\ufffd", 1),
        ([r'{"a": "\ud83d', r'\ude00"}'], "😀", 0),
        (['{"a": "\ud83d', '\ude00"}'], "😀", 0),
        ([r'{"a": "\\ud800"}'], r"\ud800", 0),
        ([{"a": "\ud800"}], "\ufffd", 1),
    ],
)
def test_halves_in_arguments(parts: list[Any], value: str, replaced: int) -> None:
    turn = assemble(*(called(call(0, "c", None, part)) for part in parts), called(call(0, "c", "X")), ended())
    (one,) = turn.tool_calls
    assert (one.arguments, one.problem, turn.replaced) == ({"a": value}, None, replaced)


def test_halves_in_names() -> None:
    entry = call(0, "c\ud800", "R\ud800", "{}", **{"x\ud800": 1})
    turn = assemble(called(entry), chunk({"y\ud800": 1}), chunk({}, "stop\udc00", id="\ud800"))
    (one,) = turn.tool_calls
    assert (one.name, turn.stop_reason, turn.response_id, turn.meaning) == (
        "R\ufffd",
        "stop\ufffd",
        "\ufffd",
        "unknown",
    )
    assert one.call_id.isascii()
    assert (turn.replaced, turn.dropped_blocks) == (3, 2)


# --- streams that are no answer ---------------------------------------------------------------------------------------


@each_row(
    ("error", "text", "retryable"),
    [
        ({"message": "boom", "type": "server_error", "code": None}, "server_error: boom", True),
        ({"message": "boom", "type": "server_error", "code": 502}, "server_error: boom", True),
        ({"message": "boom", "code": 429}, "429: boom", True),
        ({"message": "boom", "code": "408"}, "408: boom", True),
        ({"message": "boom", "type": "requests", "code": "rate_limit_exceeded"}, "requests: boom", True),
        ({"message": "boom", "type": "of_tomorrow"}, "of_tomorrow: boom", True),
        ({"message": None}, "error: ", True),
        ("boom", "boom", True),
        (["boom"], "boom", True),
        ({"message": "boom \ud800", "type": "x"}, "x: boom \ufffd", True),
        ({"message": "boom", "type": "tokens", "code": "insufficient_quota"}, "tokens: boom", False),
        ({"message": "boom", "type": "insufficient_quota", "code": 429}, "insufficient_quota: boom", False),
        ({"message": "boom", "type": "invalid_request_error"}, "invalid_request_error: boom", False),
        ({"message": "boom", "code": "context_length_exceeded"}, "context_length_exceeded: boom", False),
        ({"message": "boom", "type": "BAD", "code": 400}, "BAD: boom", False),
        ({"message": "boom", "code": "401"}, "401: boom", False),
        ({"message": "boom", "type": "authentication_error"}, "authentication_error: boom", False),
    ],
)
def test_an_error_in_the_stream_says_whether_to_try_again(error: Any, text: str, *, retryable: bool) -> None:
    events = [("message", {"error": error, "choices": []}), ("message", {"choices": [{"error": error}]})]
    if isinstance(error, dict):
        events.append(("error", error))
    for event, data in events:
        assembler = ChatAssembler()
        assembler.feed("message", chunk({"content": "Hel"}))
        with pytest.raises(StreamFault) as caught:
            assembler.feed(event, json.dumps(data))
        assert text in str(caught.value)
        assert caught.value.retryable is retryable


@pytest.mark.parametrize("error", [None, {}, ""])
def test_an_error_that_is_none_is_none(error: Any) -> None:
    assert assemble(chunk({"content": "a"}, error=error), ended()).text == "a"


@each_row(
    "data",
    [
        "nonsense", "[]", "5", '"x"', "null", '{"choices": 5}', '{"choices": [5]}', '{"choices": {"a": 1}}',
        '{"choices": [{"delta": [1]}]}', '{"choices": [{"delta": {"content": 5}}]}',
        '{"choices": [{"delta": {"content": ["x"]}}]}', '{"choices": [{"delta": {"tool_calls": [5]}}]}',
        '{"choices": [{"delta": {"tool_calls": {"a": {}}}}]}', '{"choices": [{"finish_reason": 5}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]}', "[" * 100_000,
        '{"choices": [{"delta": {"x": ' + "[" * 900 + '"\\ud800"' + "]" * 900 + "}}]}",
    ],
)  # fmt: skip
def test_a_malformed_chunk_breaks_the_answer(data: str) -> None:
    with pytest.raises(StreamProtocolError, match=r"malformed|ended before"):
        assemble(chunk({"content": "a"}), data)


@each_row("event", ["ping", "keepalive", "of_tomorrow"])
@each_row("data", ["", " ", "{}", "not json", "[]"])
def test_other_events_are_skipped(event: str, data: str) -> None:
    assembler = ChatAssembler()
    assembler.feed("message", chunk({"content": "a"}))
    assert assembler.feed(event, data) is None
    assembler.feed("message", ended())
    assert assembler.finish().text == "a"


def test_content_is_what_brings_something_of_the_answer() -> None:
    assembler = ChatAssembler()

    def grows(data: str, event: str = "message") -> bool:
        before = assembler.content
        assembler.feed(event, data)
        return assembler.content > before

    bringing = [
        chunk({"content": "x"}), chunk({"refusal": "x"}), chunk({"reasoning": "x"}), called(call(0, "a", "X", "")),
        called(call(0, None, None, "{}")), chunk({"x": {"y": 1}}), called(call(0, None, None, None, extra={"y": 1})),
    ]  # fmt: skip
    empty = [
        chunk({"role": "assistant", "content": ""}), chunk({"reasoning": "", "x": [], "y": {}}), chunk({}), "{}", "",
        called(call(0, None, None, "")), called(), json.dumps({"choices": [], "usage": {"prompt_tokens": 1}}),
        json.dumps({"choices": [{"index": 1, "delta": {"content": "x"}}]}),
    ]  # fmt: skip
    for data in bringing:
        assert grows(data), data
    for data in empty:
        assert not grows(data), data
    assert [grows(ended()), grows(ended()), grows(DONE)] == [True, False, False]


def test_assembled_calls_are_values_of_the_thread() -> None:
    (one,) = assemble(*data_of({"tool_calls": [{"name": "ReadFile", "arguments": {"p": 1}, "id": "c"}]})).tool_calls
    assert one == ToolCall("c", "ReadFile", {"p": 1})


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_word_and_says_what_it_means() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gateways.md").read_text("utf-8")
    table = page.split("How a turn ends")[1].split("\n\n")[1]
    told: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        _, words, meaning, _ = line.split("|")
        told |= dict.fromkeys(re.findall(r"`(\w+)`", words), meaning.strip())
    known = {**_MEANINGS, **dict.fromkeys(_FAILED, "the server gave up")}
    assert told.keys() | {""} == known.keys()
    assert all(told[word].startswith(known[word]) for word in told)
