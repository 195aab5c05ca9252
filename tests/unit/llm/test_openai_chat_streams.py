"""Chat Completions as bytes: wherever they are cut, and whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from httpx_sse import EventSource
from hypothesis import example, given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError
from agent_host.llm.dialects.openai_chat import ChatAssembler, ChatRenderer
from agent_host.llm.network import BoundedStream, decoder
from agent_host.testing.dialects.openai_chat import read_request
from agent_host.thread.messages import Message, decode, encode
from tests.support.rows import each_row
from tests.unit.llm.chat_helpers import DONE, chunk, stream_of
from tests.unit.llm.helpers import LIMITS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import httpx

    from agent_host.llm import ModelTurn

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "wires" / "chat").glob("*.sse"))
SCRIPTED: list[dict[str, Any]] = [
    {"text": "Grüße, 世界 🌍", "chunk_chars": 3, "pings": 4},
    {"thinking": "Hm ✓", "redacted_thinking": "x", "tool_calls": [{"name": "X", "arguments": {"ü": "👋"}}]},
    {"text": "No.", "stop_reason": "refusal"},
    {"text": "Half", "stop_reason": "max_tokens", "tool_calls": [{"name": "X", "raw_arguments": '{"a'}]},
]  # fmt: skip
STREAMS = [path.read_bytes() for path in FIXTURES] + [stream_of(turn) for turn in SCRIPTED]

Outcome = tuple[Any, str, str]


async def each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def read(*pieces: bytes) -> Outcome:
    """The turn with the ids that were made up left out, or the error; and the text and the thinking that were shown."""
    assembler = ChatAssembler(1000)
    shown = thoughts = ""
    stream = BoundedStream(each(pieces), decoder(""), LIMITS)
    turn: ModelTurn | str
    try:
        async for event in EventSource(cast("httpx.Response", stream)).aiter_sse():
            shown += assembler.feed(event.event, event.data) or ""
            thoughts += assembler.thinking
        turn = assembler.finish()
    except (StreamFault, StreamProtocolError) as error:
        return str(error), shown, thoughts
    return turn, shown, thoughts


@each_row("stream", STREAMS, ids=range(len(STREAMS)))
@each_row("line_end", [b"\n", b"\r\n", b"\r"])
async def test_line_ends_a_byte_order_mark_comments_and_names_make_no_difference(
    stream: bytes, line_end: bytes
) -> None:
    whole = await read(stream)
    other = b"\xef\xbb\xbf: hi\n\n" + stream.replace(b"data: ", b"id: 1\nevent: message\ndata:").replace(
        b"\n\n", b"\n\n:\n\n"
    )
    assert await read(other.replace(b"\n", line_end)) == whole


@each_row("stream", STREAMS, ids=range(len(STREAMS)))
async def test_a_stream_may_come_byte_by_byte(stream: bytes) -> None:
    assert await read(*(stream[at : at + 1] for at in range(len(stream)))) == await read(stream)


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 3000), max_size=8).map(sorted))
async def test_where_a_stream_is_cut_into_pieces_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert await read(*pieces) == await read(stream)


# What stands where something else is expected, and what is expected.
SMALL = st.sampled_from(
    [None, True, -1, 0, 1, 2.5, [], {}, [1], {"a": 1}, "", "a", "\ud83d", "\ude00", '{"a":', "1}", "[DONE]"]
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One in twenty is anything: a stream with more of it would be refused at once."""
    return st.integers(0, 19).flatmap(lambda number: good if number else SMALL)


def fields(**of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these."""
    return st.fixed_dictionaries({}, optional={name: mostly(one) for name, one in of.items()})


TEXTS = st.sampled_from(["", "a", "é", "\ud83d", "\ude00", '{"a":', "1}", "{}"])
ODD_TEXTS = st.sampled_from([None, "", "a", "b", "\ud83d", "x" * 70])
ANY_VALUE: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1.5, "a", "\ud83d", [], [1], {}, {"a": "\ude00"}, [[{}]]])
FUNCTIONS = fields(name=ODD_TEXTS, arguments=TEXTS | st.just({"a": 1}), x=ANY_VALUE)
ENTRIES = fields(
    index=st.sampled_from([None, 0, 0, 1, 2]), id=ODD_TEXTS, type=st.just("function"), function=FUNCTIONS,
    extra_content=ANY_VALUE,
)  # fmt: skip
DETAILS = fields(
    type=st.sampled_from(["reasoning.text", "reasoning.encrypted", "thinking"]), index=st.sampled_from([0, 1]),
    text=TEXTS, data=TEXTS, thinking=TEXTS, signature=ODD_TEXTS,
)  # fmt: skip
DELTAS = fields(
    content=TEXTS | st.lists(fields(type=st.just("text"), text=TEXTS), max_size=2), refusal=ODD_TEXTS,
    tool_calls=st.lists(mostly(ENTRIES), max_size=3), function_call=FUNCTIONS,
    reasoning=TEXTS, reasoning_content=TEXTS, x=ANY_VALUE, y=ANY_VALUE,
    reasoning_details=st.lists(mostly(DETAILS), max_size=3), thinking_blocks=st.lists(mostly(DETAILS), max_size=3),
)  # fmt: skip
REASONS = st.sampled_from([None, None, "stop", "tool_calls", "length", "content_filter", "error", "", "odd", "\ud83d"])
COUNTS = st.sampled_from([None, 0, 5, 10, 10**12, "1"])
USAGE = fields(
    prompt_tokens=COUNTS, completion_tokens=COUNTS, total_tokens=COUNTS,
    prompt_tokens_details=fields(cached_tokens=COUNTS, cache_write_tokens=COUNTS),
)  # fmt: skip
CHOICES = fields(index=st.sampled_from([0, 0, 0, None, 1]), delta=DELTAS, finish_reason=REASONS, usage=USAGE)
CHUNKS = fields(id=ODD_TEXTS, model=ODD_TEXTS, choices=st.lists(mostly(CHOICES), max_size=2), usage=USAGE)
DATA = (
    CHUNKS.map(lambda made: json.dumps(made, ensure_ascii=False))
    | DELTAS.map(chunk)
    | st.sampled_from([DONE, chunk({}, "stop"), chunk({}, "tool_calls"), '{"error": {"code": 429}}', "nonsense"])
)
EVENTS = st.tuples(mostly(st.just("message")).map(str), DATA)
ENDS = st.sampled_from([[], [DONE], [chunk({}, "stop")], [chunk({}, "tool_calls"), DONE], [chunk({}, "length")]])


@given(st.lists(EVENTS, max_size=7), ENDS)
@example([("message", chunk({"tool_calls": [{"id": "a", "x": 1}]}))], [chunk({}, "stop")])
def test_no_stream_raises_anything_but_what_is_documented_and_each_turn_can_be_kept_and_sent(
    events: list[tuple[str, str]], end: list[str]
) -> None:
    assembler = ChatAssembler(20)
    shown = ""
    try:
        for event, data in [*events, *(("message", data) for data in end)]:
            shown += assembler.feed(event, data) or ""
        turn = assembler.finish()
    except (StreamFault, StreamProtocolError, AnswerTooLarge):
        return
    assert turn.text.startswith(shown)
    assert turn.text[len(shown) :] in ("", "\ufffd")
    assert 0 <= turn.usage.cache_read_tokens + turn.usage.cache_write_tokens <= turn.usage.input_tokens
    blocks = tuple(block._replace(model="m") for block in turn.blocks)
    message = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
    assert decode(encode(message, MACHINE, session_id="s")) == message
    results = [Message("tool", "ok", 1, tool_call_id=one.call_id) for one in turn.tool_calls]
    renderer = ChatRenderer("m")
    sent = b"[" + renderer.user([Message("user", "hi", 1)]) + b"," + renderer.exchange(message, results) + b"]"
    assert read_request({"model": "m", "messages": json.loads(sent)}, {}).turn_index == 1
