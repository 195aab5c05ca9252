"""A turn out of the events of one stream (AH 6.3), or a clear reason why there is none."""

from __future__ import annotations

import json
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects.anthropic import AnthropicAssembler
from agent_host.thread.messages import Message, ToolCall, encode
from state.checkpoint import TokenUsage
from tests.support.rows import each_row
from tests.unit.llm.helpers import ended, event, events_of, started, text, tool_use

Events = list[tuple[str, str]]


def assemble(events: Events, shown: list[str] | None = None) -> ModelTurn:
    assembler = AnthropicAssembler()
    for name, data in events:
        piece = assembler.feed(name, data)
        if piece and shown is not None:
            shown.append(piece)
    return assembler.finish()


def test_text_is_shown_piece_by_piece_and_given_whole() -> None:
    shown: list[str] = []
    turn = assemble(events_of({"text": "Good morning to you", "chunk_chars": 5, "pings": 4}), shown)
    named = turn._replace(response_id="", response_model="")
    assert named == ModelTurn("Good morning to you", (), "end_turn", "complete", TokenUsage(100, 20, 0))
    assert shown == ["Good ", "morni", "ng to", " you"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"id": "msg_1", "model": "m-20260101"}, ("msg_1", "m-20260101")),
        ({}, ("", "")),
        ({"id": 7, "model": None}, ("", "")),
        ({"id": "x" * 256, "model": {"name": "m"}}, ("x" * 256, "")),
        ({"id": "x" * 257, "model": "m"}, ("", "m")),
    ],
)
def test_the_answer_and_its_model_are_named_as_far_as_the_gateway_does(
    message: dict[str, Any], expected: tuple[str, str]
) -> None:
    turn = assemble([event("message_start", message=message), *text(0, "a"), *ended()])
    assert (turn.response_id, turn.response_model) == expected


def test_calls_come_whole_in_their_order_and_are_not_shown() -> None:
    calls = [
        {"name": "ReadFile", "arguments": {"path": f"/{n}", "deep": [{"ü": None}]}, "id": f"c{n}"} for n in range(3)
    ]
    shown: list[str] = []
    turn = assemble(events_of({"text": "ok", "tool_calls": calls, "chunk_chars": 3}), shown)
    assert turn.tool_calls == tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in calls)  # type: ignore[arg-type]
    assert turn.stop_reason == "tool_use"
    assert "".join(shown) == "ok"


def test_thinking_is_neither_shown_nor_said() -> None:
    shown: list[str] = []
    turn = assemble(events_of({"text": "yes", "thinking": "hmm " * 30}), shown)
    assert turn.text == "".join(shown) == "yes"


def test_several_texts_are_put_together_in_the_order_of_their_index() -> None:
    turn = assemble([started(), *text(2, "c"), *text(0, "a", "b"), *tool_use(1, "x", "{}"), *ended()])
    assert turn.text == "abc"


def test_text_that_comes_with_the_start_of_its_block_counts() -> None:
    block = event("content_block_start", index=0, content_block={"type": "text", "text": "Hel"})
    rest = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"})
    shown: list[str] = []
    assert assemble([started(), block, rest, *ended()], shown).text == "Hello"
    assert shown == ["Hel", "lo"]


@each_row(
    ("first", "last", "counted"),
    [
        ({"input_tokens": 7, "output_tokens": 1}, {"output_tokens": 30}, TokenUsage(7, 30, 0)),
        (
            {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 3, "output_tokens": 1},
            {"output_tokens": 5},
            TokenUsage(100, 5, 90, 3),
        ),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4, "other": 7}},
            {"output_tokens": 5},
            TokenUsage(9, 5, 0, 9, 4),
        ),
        (
            {"cache_creation_input_tokens": 3, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            {},
            TokenUsage(3, 0, 0, 3, 3),
        ),
        (
            {"cache_creation_input_tokens": 3, "cache_creation": {"ephemeral_1h_input_tokens": -4}},
            {},
            TokenUsage(3, 0, 0, 3),
        ),
        ({"cache_creation_input_tokens": 3, "cache_creation": [4]}, {}, TokenUsage(3, 0, 0, 3)),
        ({"input_tokens": 7}, {"input_tokens": 9, "output_tokens": 5}, TokenUsage(9, 5, 0)),
        ({}, {}, TokenUsage(0, 0, 0)),
        ({"input_tokens": None, "service_tier": "standard"}, {"output_tokens": 2}, TokenUsage(0, 2, 0)),
    ],
)
def test_usage_is_cumulative_and_counts_what_the_cache_gave(
    first: dict[str, Any], last: dict[str, Any], counted: TokenUsage
) -> None:
    assert assemble([started(**first), *text(0, "x"), *ended(**last)]).usage == counted


@each_row(
    ("reason", "meaning"),
    [
        ("end_turn", "complete"), ("tool_use", "empty"), ("stop_sequence", "complete"), ("max_tokens", "cut"),
        ("model_context_window_exceeded", "window"), ("pause_turn", "continue"), ("compaction", "continue"),
        ("refusal", "blocked"), ("of_tomorrow", "unknown"),
    ],
)  # fmt: skip
def test_the_stop_reason_is_handed_on_with_what_it_means(reason: str, meaning: str) -> None:
    turn = assemble([started(), *ended(reason)])
    assert (turn.stop_reason, turn.meaning) == (reason, meaning)


@pytest.mark.slow
def test_every_stop_reason_of_the_official_sdk_has_a_row() -> None:
    from anthropic.types.beta import BetaStopReason  # which takes a second, in the worker that needs it

    assert [reason for reason in get_args(BetaStopReason) if AnthropicAssembler.meaning_of(reason) == "unknown"] == []


def test_a_cut_answer_says_at_which_limit() -> None:
    assert assemble([started(), *ended("max_tokens")]).detail == "max_tokens"


@each_row(
    ("details", "said"),
    [
        ({"type": "refusal", "category": "cyber", "explanation": "Not\nthis."}, "cyber: Not this."),
        ({"category": None, "explanation": "Not this."}, "Not this."),
        ({"category": "cyber"}, "cyber"),
        ({"category": 5, "explanation": ["x"]}, ""),
        ({"explanation": "x" * 10_000}, "x" * 500),
        ({}, ""), (None, ""), ("x", ""), ([1], ""),
    ],
)  # fmt: skip
def test_a_refusal_says_why(details: Any, said: str) -> None:
    delta = {"stop_reason": "refusal", "stop_details": details}
    turn = assemble([started(), event("message_delta", delta=delta), event("message_stop")])
    assert (turn.meaning, turn.detail) == ("blocked", said)


# --- arguments --------------------------------------------------------------------------------------------------------


@each_row(
    ("parts", "problem"),
    [
        (['{"path": "a.t'], "not complete JSON"),
        (['{"path"', ': "a"'], "not complete JSON"),
        (["nonsense"], "not JSON"),
        (['{"a": NaN}'], "NaN"),
        (['{"a": "\\ud800'], "not complete JSON"),
        (["[1]"], "not a JSON object"),
        (["null"], "not a JSON object"),
        (['"text"'], "not a JSON object"),
    ],
)
def test_arguments_that_cannot_be_used_keep_the_call_and_say_why(parts: list[str], problem: str) -> None:
    (call,) = assemble([started(), *tool_use(0, "c", *parts), *ended("max_tokens")]).tool_calls
    assert (call.call_id, call.name, call.arguments) == ("c", "ReadFile", {})
    assert problem in str(call.problem)


@pytest.mark.parametrize(
    ("parts", "given", "arguments"),
    [([], {"path": "/f"}, {"path": "/f"}), ([""], {}, {}), ([], "text", {}), (["{}"], {"path": "/f"}, {})],
)
def test_arguments_may_stand_in_the_start_of_the_block(parts: list[str], given: Any, arguments: dict[str, Any]) -> None:
    (call,) = assemble([started(), *tool_use(0, "c", *parts, given=given), *ended()]).tool_calls
    assert call == ToolCall("c", "ReadFile", arguments)


@pytest.mark.parametrize("ids", [["a", "a", "b"], ["", "", "b"], [None, "b", "b"], ["a", "a", "a"]])
def test_every_call_gets_an_id_of_its_own(ids: list[str | None]) -> None:
    events = [part for index, call_id in enumerate(ids) for part in tool_use(index, call_id, f'{{"n":{index}}}')]
    calls = assemble([started(), *events, *ended("tool_use")]).tool_calls
    assert len({call.call_id for call in calls}) == 3
    assert all(call.call_id for call in calls)
    assert [call.arguments["n"] for call in calls] == [0, 1, 2]
    first_of_each = [call_id for number, call_id in enumerate(ids) if call_id and call_id not in ids[:number]]
    assert [call.call_id for call in calls if call.call_id in ids] == first_of_each


@each_row("in_start", [True, False])
@each_row("depth", [1, *range(240, 260), 400])
def test_arguments_that_nest_too_deep_to_be_recorded_are_a_problem_of_the_call(depth: int, in_start: bool) -> None:
    deep = '{"a":' + "[" * depth + "]" * depth + "}"
    block = tool_use(0, "c", given=orjson.Fragment(deep)) if in_start else tool_use(0, "c", deep)
    (call,) = assemble([started(), *block, *ended("tool_use")]).tool_calls
    assert (call.problem is None) == (call.arguments != {})
    assert call.problem is None or depth > 200
    data = encode(Message("assistant", "", 1, (call,)), MACHINE, session_id="s")
    assert orjson.dumps(orjson.loads(data)) == data  # as a checkpoint gives it back


# --- limits and progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [['{"a":"', "é" * 20, '"}'], ['{"a":"' + "x" * 40 + '"}']])
def test_arguments_of_a_call_have_a_limit_in_bytes(parts: list[str]) -> None:
    first, *rest = [started(), *tool_use(0, "a", *parts), *tool_use(1, "b", *parts)]
    wide, narrow = AnthropicAssembler(48), AnthropicAssembler(47)
    for one in [first, *rest, *ended("tool_use")]:
        wide.feed(*one)
    assert len(wide.finish().tool_calls) == 2
    for one in [first, *tool_use(0, "a", *parts[:-1])[:-1]]:
        narrow.feed(*one)
    with pytest.raises(AnswerTooLarge, match=r"47 bytes \(llm\.max_call_arguments_bytes\)"):
        narrow.feed(*tool_use(0, "a", parts[-1])[1])


def test_arguments_in_the_start_of_a_block_have_it_too() -> None:
    assembler = AnthropicAssembler(20)
    for one in [started(), *tool_use(0, "a", given={"path": "x" * 20}), *ended("tool_use")]:
        assembler.feed(*one)
    with pytest.raises(AnswerTooLarge):
        assembler.finish()


def test_content_is_what_brings_something_of_the_answer() -> None:
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    empty = [
        event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}),
    ]
    assembler = AnthropicAssembler()

    def grows(one: tuple[str, str]) -> bool:
        before = assembler.content
        assembler.feed(*one)
        return assembler.content > before

    for one in [started(), text(0)[0], text(0, "x")[1], tool_use(1, "c", "{}")[0], tool_use(1, "c", "{}")[1], thinking]:
        assert grows(one), one
    for one in [event("ping"), event("tomorrow"), ("", ""), text(0)[0], *empty]:
        assert not grows(one), one
    assert [grows(one) for one in [ended()[0], ended()[0]]] == [True, False]


# --- halves of characters ---------------------------------------------------------------------------------------------

HIGH, LOW = r"\ud83d", r"\ude00"


def raw_text(*encoded: str, index: int = 0) -> Events:
    """Deltas of JSON strings as they go over the wire."""
    return [
        text(index)[0],
        *(
            ("content_block_delta", f'{{"index":{index},"delta":{{"type":"text_delta","text":"{part}"}}}}')
            for part in encoded
        ),
    ]


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
def test_halves_in_text_are_joined_or_replaced(parts: list[str], shown: list[str], replaced: int) -> None:
    seen: list[str] = []
    turn = assemble([started(), *raw_text(*parts), *ended()], seen)
    assert (turn.text, seen, turn.replaced) == ("".join(shown), shown, replaced)


def test_a_half_at_the_end_of_a_block_waits_for_no_other_block() -> None:
    seen: list[str] = []
    turn = assemble([started(), *raw_text("a" + HIGH), *raw_text(LOW + "b", index=1), *ended()], seen)
    assert turn.text == "".join(seen) == "a\ufffd\ufffdb"
    assert turn.replaced == 2


@pytest.mark.parametrize(
    ("parts", "value", "replaced"),
    [
        ([r'{"a": "\ud800"}'], "\ufffd", 1),
        (['{"a": "\ud800"}'], "\ufffd", 1),
        ([r'{"a": "\ud83d', r'\ude00"}'], "😀", 0),
        (['{"a": "\ud83d', '\ude00"}'], "😀", 0),
        ([r'{"a": "\\ud800"}'], r"\ud800", 0),
    ],
)
def test_halves_in_arguments(parts: list[str], value: str, replaced: int) -> None:
    deltas = [
        ("content_block_delta", json.dumps({"index": 0, "delta": {"type": "input_json_delta", "partial_json": part}}))
        for part in parts
    ]
    start, stop = tool_use(0, "c")
    turn = assemble([started(), start, *deltas, stop, *ended("tool_use")])
    (call,) = turn.tool_calls
    assert (call.arguments, call.problem, turn.replaced) == ({"a": value}, None, replaced)


def test_halves_in_the_start_of_a_block_and_in_its_end() -> None:
    block = r'{"index":0,"content_block":{"type":"tool_use","id":"c\ud800","name":"R\ud800","input":{"\ud800":[1]}}}'
    end = ("message_delta", r'{"delta":{"stop_reason":"tool\udc00"}}')
    turn = assemble([started(), ("content_block_start", block), tool_use(0, "")[1], end, ended()[1]])
    (call,) = turn.tool_calls
    assert (call.name, call.arguments, turn.stop_reason) == ("R\ufffd", {"\ufffd": [1]}, "tool\ufffd")
    assert call.call_id.isascii()
    assert turn.replaced == 4


def test_halves_in_an_error_are_no_second_error() -> None:
    with pytest.raises(StreamFault, match="overloaded_error: \ufffd"):
        assemble([("error", r'{"error":{"type":"overloaded_error","message":"\ud800"}}')])


# --- streams that are no answer ---------------------------------------------------------------------------------------


def test_an_error_in_the_stream_is_handed_on_as_it_is() -> None:
    stream = events_of({"text": "Hello"})
    error = {"type": "overloaded_error", "message": "boom", "details": {"error_code": "x"}}
    with pytest.raises(StreamFault, match="overloaded_error: boom") as caught:
        assemble([*stream[:2], event("error", error=error)])
    assert caught.value.body == {"type": "error", "error": error}


@each_row("name", ["ping", "content_block_of_tomorrow", "message", ""])
@each_row("data", ["{}", "not json", ""])
def test_unknown_events_are_skipped_whatever_they_hold(name: str, data: str) -> None:
    stream = events_of({"text": "Hello"})
    assert assemble([stream[0], (name, data), *stream[1:]]).text == "Hello"


def test_unknown_blocks_and_deltas_are_skipped() -> None:
    block = event("content_block_start", index=0, content_block={"type": "server_tool_use", "id": "x", "name": "web"})
    delta = event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {}})
    turn = assemble([started(), block, delta, event("content_block_stop", index=0), *text(1, "x"), *ended()])
    assert (turn.text, turn.tool_calls) == ("x", ())


@each_row(
    "bad",
    [
        ("message_start", "{}"),
        ("message_start", "[]"),
        ("message_start", "null"),
        ("message_start", "{"),
        ("message_start", ""),
        event("message_start", message={"usage": [1]}),
        event("content_block_start", index=0),
        event("content_block_start", content_block={"type": "text"}),
        event("content_block_start", index="x", content_block={"type": "text"}),
        event("content_block_start", index=0, content_block="text"),
        event("content_block_start", index=0, content_block={}),
        event("content_block_delta", index=0, delta={"type": "text_delta"}),
        event("content_block_delta", index=0, delta=None),
        event("content_block_delta", index=[], delta={}),
        event("message_delta"),
        event("message_delta", delta=[]),
        event("error"),
        event("error", error="overloaded"),
        event("error", error={"type": []}),
    ],
)
def test_a_malformed_event_breaks_the_stream_off(bad: tuple[str, str]) -> None:
    assembler = AnthropicAssembler()
    for name, data in [started(), text(0, "x")[0]] if bad[0] != "message_start" else []:
        assembler.feed(name, data)
    with pytest.raises(StreamProtocolError, match=bad[0]) as caught:
        assembler.feed(*bad)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is None, "its frames would keep what was read of the event"


@pytest.mark.parametrize(
    "events",
    [
        [event("content_block_start", index=0, content_block={"type": "text", "text": 5})],
        [text(0)[0], event("content_block_delta", index=0, delta={"type": "text_delta", "text": None})],
        [
            tool_use(0, "c")[0],
            event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": None}),
        ],
        tool_use(0, ["c"]),
    ],
    ids=["text of a block", "text", "arguments", "id"],
)
def test_a_value_of_the_wrong_type_breaks_the_stream_off_too(events: Events) -> None:
    with pytest.raises(StreamProtocolError):
        assemble([started(), *events, *ended()])


@pytest.mark.parametrize("reason", [5, ["end_turn"], {"why": "end_turn"}, True])
def test_a_stop_reason_that_is_no_string_breaks_the_stream_off(reason: Any) -> None:
    with pytest.raises(StreamProtocolError):
        assemble(
            [started(), *text(0, "x"), event("message_delta", delta={"stop_reason": reason}), event("message_stop")]
        )


def test_a_stream_without_a_start_or_a_stop_reason_is_no_turn() -> None:
    for events in (
        [*text(0, "x"), *ended()],
        [started(), *text(0, "x"), event("message_stop")],
        [started(), *text(0, "x"), *ended(None)],
        [started(), *text(0, "x"), ended()[0]],
        [],
    ):
        with pytest.raises(StreamProtocolError, match="ended before"):
            assemble(events)


answers = st.fixed_dictionaries(
    {
        "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda text: text.replace("${", "")),
        "chunk_chars": st.integers(1, 10),
        "pings": st.integers(0, 3),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["ReadFile", "X"]),
                    "arguments": st.dictionaries(st.text("ab"), st.integers(0, 9)),
                }
            ),
            max_size=3,
        ),
    }
)


@given(answers, st.data())
def test_a_stream_cut_anywhere_is_no_turn(answer: dict[str, Any], data: st.DataObject) -> None:
    events = events_of(answer)
    whole = assemble(events)
    assert whole.text == answer["text"]
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [
        (call["name"], call["arguments"]) for call in answer["tool_calls"]
    ]
    cut = data.draw(st.integers(0, len(events) - 1))
    with pytest.raises(StreamProtocolError):
        assemble(events[:cut])


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["text", "tool_use", "text_delta", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["index", "delta", "content_block", "type", "message", "usage", "error", "text"]), inner
        )
    ),
    max_leaves=8,
)
_names = st.sampled_from([*AnthropicAssembler._HANDLERS, "ping"])


@given(st.lists(st.tuples(_names, _json.map(lambda value: orjson.dumps(value).decode())), max_size=6))
def test_no_event_raises_anything_else(events: Events) -> None:
    assembler = AnthropicAssembler()
    for name, data in events:
        try:
            assembler.feed(name, data)
        except (StreamProtocolError, StreamFault):
            return


def test_events_without_a_name_say_in_their_data_what_they_are() -> None:
    events = events_of({"text": "Hello", "tool_calls": [{"name": "ReadFile", "arguments": {"path": "a"}}]})
    named, unnamed = AnthropicAssembler(), AnthropicAssembler()
    for kind, data in events:
        assert named.feed(kind, data) == unnamed.feed("message", data)
    assert unnamed.finish().text == "Hello"
    with pytest.raises(StreamFault, match="Overloaded"):
        AnthropicAssembler().feed(
            "message", '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
        )
    for nothing in ("", "[]", "{}", '{"type": 5}', "not JSON"):
        assert AnthropicAssembler().feed("message", nothing) is None


# Streams as they really are


def _fed(*events: tuple[str, dict[str, Any]], stop: str = "end_turn") -> ModelTurn:
    made = AnthropicAssembler()
    message = {"id": "m", "model": "x", "usage": {"input_tokens": 1, "output_tokens": 1}}
    for name, data in (
        ("message_start", {"message": message}),
        *events,
        ("message_delta", {"delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}}),
        ("message_stop", {}),
    ):
        made.feed(name, json.dumps({"type": name, **data}))
    return made.finish()


def test_events_of_a_block_that_never_began_are_ignored() -> None:
    delta = {"index": 7, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    assert _fed(("content_block_delta", delta)).tool_calls == ()


@pytest.mark.parametrize(("stop", "kept"), [("max_tokens", 0), ("end_turn", 1)])
def test_unsigned_thinking_of_an_answer_that_was_cut_does_not_go_back(stop: str, kept: int) -> None:
    start = {"index": 0, "content_block": {"type": "thinking", "thinking": "hm", "signature": ""}}
    found = _fed(("content_block_start", start), ("content_block_stop", {"index": 0}), stop=stop)
    assert len(found.blocks) == kept


def test_a_call_without_arguments_at_the_limit_does_not_run() -> None:
    start = {"index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "ReadFile", "input": {}}}
    found = _fed(("content_block_start", start), ("content_block_stop", {"index": 0}), stop="max_tokens")
    assert found.tool_calls[0].problem is not None


def test_a_field_twice_in_arguments_at_the_start_does_not_run() -> None:
    made = AnthropicAssembler()
    made.feed("message_start", '{"type":"message_start","message":{"id":"m","model":"x","usage":{}}}')
    block = '{"type":"tool_use","id":"t","name":"X","input":{"path":"a","path":"b"}}'
    made.feed("content_block_start", f'{{"type":"content_block_start","index":0,"content_block":{block}}}')
    made.feed("content_block_stop", '{"type":"content_block_stop","index":0}')
    made.feed("message_delta", '{"type":"message_delta","delta":{"stop_reason":"tool_use"}}')
    made.feed("message_stop", '{"type":"message_stop"}')
    assert "twice" in str(made.finish().tool_calls[0].problem)


def test_an_event_without_a_name_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(StreamProtocolError):
        AnthropicAssembler().feed("message", '{"type": "content_block_del')
