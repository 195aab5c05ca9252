"""Responses as servers and proxies send them: bytes cut anywhere, items named wrongly, and what may go back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError
from agent_host.llm.dialects.openai_responses import ResponsesAssembler
from agent_host.llm.errors import kind_of_event, read_value
from agent_host.llm.network import BoundedStream, decoder
from agent_host.testing.dialects.openai_responses import RESPONSES, read_request
from agent_host.testing.script import Script
from agent_host.thread.messages import ToolCall
from tests.support.rows import each_row
from tests.unit.llm.helpers import LIMITS, VIEW
from tests.unit.llm.test_openai_responses_answer import (
    CREATED,
    STREAMS,
    Event,
    added,
    assemble,
    call,
    delta,
    done,
    ended,
    sent_back,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import httpx

    from agent_host.llm import ModelTurn

SCRIPTED: list[dict[str, Any]] = [
    {"text": "Grüße, 世界 🌍", "chunk_chars": 3, "pings": 4},
    {"thinking": "Hm ✓", "text": "Now.", "tool_calls": [{"name": "X", "arguments": {"ü": "👋"}, "id": "c"}]},
    {"text": "No.", "stop_reason": "refusal"},
]


def stream_of(turn: dict[str, Any]) -> bytes:
    return b"".join(RESPONSES.stream_events(Script.from_turns([turn]).turns[0], VIEW))


ALL_STREAMS = [path.read_bytes() for path in sorted(STREAMS.glob("*.sse"))] + [stream_of(turn) for turn in SCRIPTED]
CUT = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})


def message(text: str = "Hi", **beside: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "content": content, **beside}


def reasoning(**beside: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA", **beside}


async def each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def read(*pieces: bytes) -> tuple[Any, str, str]:
    """The turn, or the error; and the text and the thinking that were shown."""
    assembler = ResponsesAssembler(1000)
    shown = thoughts = ""
    turn: ModelTurn | str
    try:
        stream = BoundedStream(each(pieces), decoder(""), LIMITS)
        async for event in EventSource(cast("httpx.Response", stream)).aiter_sse():
            shown += assembler.feed(event.event, event.data) or ""
            thoughts += assembler.thinking
        turn = assembler.finish()
    except (StreamFault, StreamProtocolError) as error:
        return str(error), shown, thoughts
    return turn, shown, thoughts


# --- bytes ------------------------------------------------------------------------------------------------------------


@each_row("stream", ALL_STREAMS, ids=range(len(ALL_STREAMS)))
@each_row("line_end", [b"\n", b"\r\n", b"\r"])
@each_row("named", [True, False])
async def test_line_ends_a_byte_order_mark_and_missing_names_make_no_difference(
    stream: bytes, line_end: bytes, named: bool
) -> None:
    lines = [line for line in stream.split(b"\n") if named or not line.startswith(b"event:")]
    other = b"\xef\xbb\xbf: hi\n\n" + b"\n".join(lines)
    assert await read(other.replace(b"\n", line_end)) == await read(stream)


@each_row("stream", ALL_STREAMS, ids=range(len(ALL_STREAMS)))
async def test_a_stream_may_come_byte_by_byte(stream: bytes) -> None:
    assert await read(*(stream[at : at + 1] for at in range(len(stream)))) == await read(stream)


@given(st.sampled_from(ALL_STREAMS), st.lists(st.integers(0, 6000), max_size=8).map(sorted))
async def test_where_a_stream_is_cut_into_pieces_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert await read(*pieces) == await read(stream)


# --- which event belongs to which item --------------------------------------------------------------------------------


def calls_of(*events: Event) -> list[str]:
    return [one.call_id for one in assemble(CREATED, *events, ended()).tool_calls]


def test_items_of_one_place_are_all_read() -> None:
    """LiteLLM and others number some items alike."""
    one, two = call(call_id="a", id="fc_1"), call(call_id="b", id="fc_2")
    assert calls_of(added(one), done(one), added(two), done(two)) == ["a", "b"]
    turn = assemble(CREATED, delta("Hi"), done(message()), done(one), ended())
    assert (turn.text, len(turn.tool_calls)) == ("Hi", 1)


def test_an_item_without_a_place_is_read_as_it_comes() -> None:
    events: list[Event] = [
        ("response.output_item.done", {"item": message()}),
        ("response.output_item.done", {"item": call(call_id="a")}),
        ("response.output_item.done", {"item": call(call_id="b")}),
    ]
    turn = assemble(CREATED, *events, ended())
    assert (turn.text, [one.call_id for one in turn.tool_calls]) == ("Hi", ["a", "b"])


def test_ids_may_change_from_event_to_event() -> None:
    item = call('{"path":"/a"}', call_id="a")
    pieces = ("response.function_call_arguments.delta", {"output_index": 1, "item_id": "third", "delta": '{"path"'})
    events = [added({**item, "id": "first"}, 1), pieces, done({**item, "id": "second"}, 1)]
    assert assemble(CREATED, *events, ended()).tool_calls == (ToolCall("a", "ReadFile", {"path": "/a"}),)


def test_items_stand_in_the_order_of_their_places_and_not_of_their_ends() -> None:
    """OpenRouter ends reasoning behind the call that it led to."""
    turn = assemble(CREATED, added(reasoning()), added(call(), 1), done(call(), 1), done(reasoning()), ended())
    assert [item["type"] for item in sent_back(turn)] == ["reasoning", "function_call", "function_call_output"]


def test_an_item_that_is_done_twice_is_one() -> None:
    item = call(call_id="a", id="fc_1")
    assert calls_of(done(item, 1), done(item, 1)) == ["a"]


def test_an_item_may_be_announced_without_being_named() -> None:
    nothing: Event = ("response.output_item.added", {"output_index": 0, "item": None})
    assert assemble(CREATED, nothing, done(message()), ended()).text == "Hi"


def test_items_that_stand_in_the_end_only_are_read_there() -> None:
    shown: list[str] = []
    turn = assemble(CREATED, ended(output=[reasoning(), message(), call(call_id="a")]), shown=shown)
    assert (turn.text, shown, [one.call_id for one in turn.tool_calls]) == ("Hi", ["Hi"], ["a"])
    assert sent_back(turn)[0] == reasoning()


def test_a_call_that_was_announced_and_never_done_does_not_run_whatever_the_end_says() -> None:
    (one,) = assemble(CREATED, added(call("")), ended(output=[call('{"path":"/a"}')])).tool_calls
    assert one.problem == "the answer ended before the call did"


@pytest.mark.parametrize("index", ["Infinity", "1e999", "null", "true", '"0"', "[]", "9" * 400])
def test_a_place_that_is_no_number_raises_nothing_unknown(index: str) -> None:
    assembler = ResponsesAssembler()
    try:
        assembler.feed("response.output_text.delta", f'{{"output_index":{index},"delta":"a\\ud800"}}')
        assembler.feed("response.completed", '{"response":{}}')
        assert assembler.finish().text == "a\ufffd"
    except StreamProtocolError:
        assert index == "1e999"


# --- what an item says ------------------------------------------------------------------------------------------------


def test_the_end_of_a_message_counts_and_what_was_not_shown_is_shown() -> None:
    shown: list[str] = []
    turn = assemble(CREATED, delta("Hel"), done(message("Hello", phase="final_answer")), ended(), shown=shown)
    assert (turn.text, shown) == ("Hello", ["Hel", "lo"])
    (sent,) = sent_back(turn)
    assert (sent["content"][0]["text"], sent["phase"]) == ("Hello", "final_answer")


def test_thinking_that_did_not_stream_is_shown_and_further_parts_are_paragraphs() -> None:
    thoughts: list[str] = []
    part: Event = ("response.reasoning_summary_part.added", {"output_index": 0, "item_id": "x"})
    told = (part, delta("One.", "reasoning_summary_text"), part, delta("Two.", "reasoning_summary_text"))
    whole = reasoning(summary=[{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}])
    assemble(CREATED, *told, done(whole), ended(), thoughts=thoughts)
    assert "".join(thoughts) == "One.\n\nTwo."
    thoughts.clear()
    assemble(CREATED, done(whole), ended(), thoughts=thoughts)
    assert thoughts == ["One.\n\nTwo."]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"path":"/a","path":"/b"}', "twice"),
        ("0", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("false", "not"),
    ],
)
def test_arguments_that_are_no_text_are_read_as_strictly(arguments: str, problem: str) -> None:
    assembler = ResponsesAssembler()
    item = f'{{"type":"function_call","call_id":"c","name":"X","arguments":{arguments}}}'
    assembler.feed("response.output_item.done", f'{{"output_index":0,"item":{item}}}')
    assembler.feed("response.completed", '{"response":{}}')
    (one,) = assembler.finish().tool_calls
    assert problem in str(one.problem)


@pytest.mark.parametrize("status", ["incomplete", "in_progress", "of_tomorrow"])
def test_a_call_of_another_status_is_not_whole(status: str) -> None:
    (one,) = assemble(CREATED, done(call("{}", status=status)), ended()).tool_calls
    assert one.problem == "the answer ended before the call did"


def test_arguments_that_did_not_stream_have_a_limit_too() -> None:
    with pytest.raises(AnswerTooLarge):
        assemble(CREATED, done(call(json.dumps({"a": "x" * 20}))), limit=20)
    assert assemble(CREATED, done(call('{"a":"é"}')), ended(), limit=10).tool_calls[0].arguments == {"a": "é"}


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_an_end_of_another_status_than_its_event_is_the_worse_of_both() -> None:
    wrong: Event = ("response.completed", {"response": {**CUT[1]["response"]}})
    turn = assemble(CREATED, done(message()), wrong)
    assert (turn.stop_reason, turn.meaning) == ("max_output_tokens", "cut")
    with pytest.raises(StreamFault, match="server_error: no"):
        assemble(CREATED, ("response.completed", ended("failed", error={"code": "server_error", "message": "no"})[1]))
    assert assemble(CREATED, ("response.completed", {"response": {"status": "cancelled"}})).meaning == "unknown"


@given(
    st.lists(st.lists(st.sampled_from(["a", "\ud83d", "\ude00", "\ud83d\ude00", ""]), max_size=4), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.booleans(),
)
def test_what_is_shown_is_what_is_recorded(texts: list[list[str]], are_done: list[bool], late: bool) -> None:
    """Halves of characters at the borders of pieces and of messages included. `late`: all messages are done at once."""
    pieces: list[Event] = []
    ends: list[Event] = []
    for place, (parts, is_done) in enumerate(zip(texts, are_done, strict=False)):
        beside = {"output_index": place, "item_id": f"m{place}", "content_index": 0}
        pieces += [("response.output_text.delta", {**beside, "delta": part}) for part in parts]
        if is_done:
            (ends if late else pieces).append(done(message("".join(parts), id=f"m{place}"), place))
    assembler, shown = ResponsesAssembler(), ""
    for name, fields in [CREATED, *pieces, *ends, ended()]:
        shown += assembler.feed(name, json.dumps({"type": name, **fields})) or ""
    assert shown == assembler.finish().text


def test_a_refusal_is_told() -> None:
    assert assemble(CREATED, delta("I can't.", "refusal"), ended()).detail == "I can't."


@pytest.mark.parametrize(
    ("error", "retryable", "kind"),
    [
        ({"error": {"type": "insufficient_quota", "code": None, "message": "Pay."}}, False, "billing"),
        ({"code": "insufficient_quota", "message": "Pay."}, False, "billing"),
        ({"code": "server_error", "message": "no"}, True, "failed"),
        ({"code": "vector_store_timeout", "message": "no"}, True, "failed"),
        ({"code": "of_tomorrow", "message": "no"}, False, "refused"),
        ({"code": None, "message": "no"}, True, "failed"),
        ({}, True, "failed"),
    ],
)
def test_an_error_means_the_same_in_both_forms(error: dict[str, Any], retryable: bool, kind: str) -> None:
    with pytest.raises(StreamFault) as caught:
        assemble(CREATED, ("error", error))
    assert caught.value.retryable is retryable
    assert kind_of_event(read_value(caught.value.body), passing=retryable) == kind


# --- what goes back is taken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "sent", "dropped"),
    [
        ([reasoning(encrypted_content=None), call()], ["function_call"], 0),
        ([reasoning(encrypted_content=None, content=[{"type": "reasoning_text", "text": "Hm"}]), call()],
         ["reasoning", "function_call"], 0),
        ([call(), reasoning()], ["function_call"], 0),
        ([message(phase="commentary"), reasoning()], ["message"], 0),
        ([reasoning(status="incomplete"), message()], ["message"], 0),
        ([{"type": "custom_tool_call", "call_id": "k", "name": "Y", "input": "z"}, message()], ["message"], 1),
        ([reasoning(), message(), reasoning(), call()], ["reasoning", "message", "reasoning", "function_call"], 0),
    ],
)  # fmt: skip
def test_only_what_is_taken_goes_back(items: list[dict[str, Any]], sent: list[str], dropped: int) -> None:
    turn = assemble(CREATED, *(done(item, place) for place, item in enumerate(items)), CUT)
    assert turn.dropped_blocks == dropped
    back = sent_back(turn)
    assert [item["type"] for item in back if item["type"] != "function_call_output"] == sent
    if not any("content" in item for item in back if item["type"] == "reasoning"):
        thread = [{"role": "user", "content": "go"}, *back, {"role": "user", "content": "go on"}]
        read_request({"model": "m", "input": thread}, {})


def test_an_item_that_looks_like_the_fields_of_a_call_is_an_item() -> None:
    raw = '{"beside":5,"type":"web_search_call"}'
    assembler = ResponsesAssembler()
    assembler.feed("response.output_item.done", json.dumps({"output_index": 0, "item": call()}))
    assembler.feed("response.output_item.done", f'{{"output_index":1,"item":{raw}}}')
    assembler.feed("response.completed", '{"response":{}}')
    assert sent_back(assembler.finish())[1] == json.loads(raw)
