"""Blocks that go back as they came, through assembler and renderer of the Messages dialect."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from agent_host.llm import ModelTurn, StreamProtocolError
from agent_host.llm.dialects.anthropic import AnthropicAssembler, AnthropicDialect, AnthropicRenderer
from agent_host.llm.raw_json import members
from agent_host.thread.messages import Block, Message
from tests.unit.llm.helpers import ended, event, started, text, tool_use

Events = list[tuple[str, str]]


def assemble(events: Events) -> ModelTurn:
    assembler = AnthropicAssembler()
    for name, data in events:
        assembler.feed(name, data)
    return assembler.finish()


def block(index: int, start: str, *deltas: dict[str, Any], closed: bool = True) -> Events:
    """`start` is JSON, as it stands in the event."""
    events = [("content_block_start", f'{{"type":"content_block_start", "content_block" : {start} ,"index":{index}}}')]
    events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return [*events, event("content_block_stop", index=index)] if closed else events


def thinking(index: int, *parts: str, signature: str = "s/+=") -> Events:
    deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": part} for part in parts]
    deltas.append({"type": "signature_delta", "signature": signature})
    return block(index, '{"type":"thinking","thinking":"","signature":""}', *deltas)


def echoed(turn: ModelTurn, model: str = "m") -> bytes:
    blocks = tuple(one._replace(model="m") for one in turn.blocks)
    message = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
    results = [Message("tool", "ok", 1, tool_call_id=call.call_id) for call in turn.tool_calls]
    return AnthropicDialect().renderer(model).exchange(message, results)


def content(sent: bytes) -> list[Any]:
    found: list[Any] = orjson.loads(b"[" + sent + b"]")[0]["content"]
    return found


def shown(events: Events) -> list[tuple[str, str]]:
    """Text and thinking that each event brings to be shown, where it brings some."""
    assembler = AnthropicAssembler()
    found = []
    for name, data in events:
        piece = assembler.feed(name, data)
        if piece or assembler.thinking:
            found.append((piece or "", assembler.thinking))
    return found


def test_thinking_is_shown_as_it_comes_beside_text() -> None:
    redacted = block(1, '{"type":"redacted_thinking","data":"secret"}')
    events = [started(), *thinking(0, "I ", "", "see."), *redacted, ("ping", "{}"), *text(2, "Yes."), *ended()]
    assert shown(events) == [("", "I "), ("", "see."), ("Yes.", "")]
    assert shown([started(), *block(0, '{"type":"thinking","thinking":"At once."}')]) == [("", "At once.")]


def test_what_is_no_thinking_is_not_shown_as_such() -> None:
    odd = {"type": "summary_delta", "thinking": "x"}
    assert shown([started(), *block(0, '{"type":"server_tool_use","thinking":"x"}', odd)]) == []
    malformed = {"type": "thinking_delta", "thinking": 5}
    assert shown([started(), *block(0, '{"type":"thinking","thinking":null}', malformed)]) == []


def test_halves_of_characters_in_thinking_are_joined_before_they_are_shown() -> None:
    deltas = [{"type": "thinking_delta", "thinking": part} for part in ("a\ud83d", "\ude00b\ude00c", "d\ud83d")]
    halves = [
        *block(0, '{"type":"thinking","thinking":""}', closed=False),
        *[("content_block_delta", json.dumps({"index": 0, "delta": delta})) for delta in deltas],
        event("content_block_stop", index=0),
    ]
    assert shown([started(), *halves, *text(1, "Yes."), *ended()]) == [
        ("", "a"), ("", "😀b\ufffdc"), ("", "d"), ("Yes.", ""),
    ]  # fmt: skip


def test_thinking_and_its_signature_go_back() -> None:
    turn = assemble(
        [started(), *thinking(0, "I \\ ", 'see "é"\n'), *text(1, "Yes."), *tool_use(2, "c", "{}"), *ended()]
    )
    raw = r'{"type":"thinking","thinking":"I \\ see \"é\"\n","signature":"s/+="}'
    assert (turn.blocks, turn.order, turn.text) == ((Block(raw, "anthropic"),), (), "Yes.")
    assert raw.encode() in echoed(turn)
    assert [one["type"] for one in content(echoed(turn))] == ["thinking", "text", "tool_use"]
    assert [one["type"] for one in content(echoed(turn, "other"))] == ["text", "tool_use"]


@pytest.mark.parametrize(
    "raw",
    [
        '{"type":"redacted_thinking","data":"b3A="}',
        '{ "type": "redacted_thinking",\n "data": "\\u00e9\\/" }',
        '{"type":"web_search_tool_result","tool_use_id":"srv","content":[{"n":1.0,"big":123456789012345678901234567890}]}',
        '{"type":"of_tomorrow"}',
    ],
)
def test_a_block_that_comes_at_once_goes_back_as_it_stands(raw: str) -> None:
    turn = assemble([started(), *block(0, raw), *text(1, "x"), *ended()])
    assert [one.raw for one in turn.blocks] == [raw]
    assert raw.encode() in echoed(turn)


def test_what_a_tool_of_the_provider_is_called_with_goes_back() -> None:
    start = '{"type":"server_tool_use","id":"srv","name":"web_search","input":{}}'
    pieces = [{"type": "input_json_delta", "partial_json": part} for part in ('{"q": ', '"a", "n": 1.0}')]
    turn = assemble([started(), *text(0, "I search."), *block(1, start, *pieces), *ended("pause_turn")])
    raw = '{"type":"server_tool_use","id":"srv","name":"web_search","input":{"q": "a", "n": 1.0}}'
    assert ([one.raw for one in turn.blocks], turn.tool_calls, turn.meaning) == ([raw], (), "continue")
    assert content(echoed(turn)) == [{"type": "text", "text": "I search."}, orjson.loads(raw)]


def test_text_goes_back_with_its_citations() -> None:
    cited = {"type": "char_location", "cited_text": "é"}
    delta = event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": cited})
    none = block(2, '{"type":"text","text":"","citations":[]}', {"type": "text_delta", "text": "!"})
    start, first, second, stop = text(0, "It is ", "so.")
    turn = assemble([started(), start, first, delta, second, stop, *text(1, " Yes."), *none, *ended()])
    assert (turn.text, len(turn.blocks)) == ("It is so. Yes.!", 1)
    whole = {"type": "text", "text": "It is so.", "citations": [cited]}
    assert content(echoed(turn)) == [whole, {"type": "text", "text": " Yes."}, {"type": "text", "text": "!"}]
    assert [one["text"] for one in content(echoed(turn, "other"))] == ["It is so.", " Yes.", "!"]


def test_the_order_of_text_thinking_and_calls_is_kept() -> None:
    events = [
        *text(0, "a"),
        *thinking(1, "t"),
        *tool_use(2, "c", "{}"),
        *text(3, "b"),
        *thinking(4, "u"),
        *text(5, "c"),
    ]
    turn = assemble([started(), *events, *ended("tool_use")])
    kinds = ["text", "thinking", "tool_use", "text", "thinking", "text"]
    assert [one["type"] for one in content(echoed(turn))] == kinds
    assert turn.text == "abc"


def test_thinking_alone_is_no_answer() -> None:
    turn = assemble([started(), *thinking(0, "t"), *ended()])
    assert [one["type"] for one in content(echoed(turn))] == ["thinking", "text"]
    assert content(AnthropicRenderer("m").exchange(Message("assistant", "", 1), [])) == [
        {"type": "text", "text": "(no text)"}
    ]


@pytest.mark.parametrize(
    "events",
    [
        thinking(0, "t")[:-1],
        block(0, '{"type":"server_tool_use","id":"s","name":"n","input":{}}', closed=False),
    ],
)
def test_a_block_that_the_answer_ended_in_is_not_kept(events: Events) -> None:
    turn = assemble([started(), *events, *ended("max_tokens")])
    assert (turn.blocks, turn.dropped_blocks) == ((), 0)


@pytest.mark.parametrize(
    "events",
    [
        block(0, r'{"type":"redacted_thinking","data":"\ud800"}'),
        block(0, '{"type":"of_tomorrow"}', {"type": "delta_of_tomorrow", "more": [1]}),
        block(0, '{"type":"server_tool_use","input":{}}', {"type": "input_json_delta", "partial_json": '{"a":'}),
        block(0, '{"type":"thinking","thinking":[]}', {"type": "thinking_delta", "thinking": "x"}),
        block(0, '{"type":"thinking","thinking":""}', {"type": "thinking_delta", "thinking": 5}),
    ],
)
def test_a_block_that_cannot_go_back_unchanged_is_dropped_and_counted(events: Events) -> None:
    turn = assemble([started(), *events, *text(1, "x"), *ended()])
    assert (turn.blocks, turn.dropped_blocks, turn.text) == ((), 1, "x")


@pytest.mark.parametrize(("parts", "dropped"), [(["\ud83d", "\ude00"], 0), (["\ud83d", "x"], 1)])
def test_halves_of_characters_in_thinking_are_joined_or_the_block_is_dropped(parts: list[str], dropped: int) -> None:
    deltas = [
        ("content_block_delta", json.dumps({"index": 0, "delta": {"type": "thinking_delta", "thinking": part}}))
        for part in parts
    ]
    start, *_, stop = thinking(0)
    turn = assemble([started(), start, *deltas, stop, *ended()])
    assert (turn.dropped_blocks, [orjson.loads(one.raw)["thinking"] for one in turn.blocks]) == (
        dropped, [] if dropped else ["😀"]
    )  # fmt: skip


# --- where an answer begins and ends ----------------------------------------------------------------------------------


def test_what_follows_the_end_is_passed_over() -> None:
    assembler = AnthropicAssembler()
    events = [started(), *text(0, "Done."), *ended(), *text(1, "More."), *tool_use(2, "c", "{}"), started(), *ended()]
    shown = [assembler.feed(*one) for one in events]
    turn = assembler.finish()
    assert (turn.text, turn.tool_calls, "More." in shown) == ("Done.", (), False)


def test_a_second_message_is_an_error() -> None:
    with pytest.raises(StreamProtocolError, match="second message"):
        assemble([started(), *text(0, "a"), started(), *ended()])


@pytest.mark.parametrize("given", [None, {"path": "/a"}])
def test_a_call_that_the_answer_ended_in_never_runs(given: Any) -> None:
    parts = [] if given else ['{"path": "/a"}']
    (call,) = assemble([started(), *tool_use(0, "c", *parts, given=given)[:-1], *ended("tool_use")]).tool_calls
    assert (call.call_id, call.name, call.arguments) == ("c", "ReadFile", {})
    assert call.problem == "the answer ended before the call did"


# --- JSON as it stands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ('{"a":1,"b": {"a": 2} }', '{"a": 2}'),
        (' {\n"b" :[1.0, "\\"b\\""],"c":{}}', '[1.0, "\\"b\\""]'),
        ('{"b":1,"b":2}', "2"),
        ('{"a":"b"}', None),
        ("{}", None),
    ],
)
def test_a_member_is_found_as_it_stands(data: str, found: str | None) -> None:
    assert members(data).get("b") == found


@pytest.mark.parametrize("data", ["", '{"b"', '{"b":', '{"b":' + "[" * 100_000])
def test_a_member_of_what_is_no_json(data: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        members(data)
