"""Messages and Responses with events in any order and of any shape: nothing is raised but what is documented, and each
turn that comes of it can be put on record, sent back, and is what was shown. Chat Completions has its own test
(test_openai_chat_streams).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from httpx_sse import EventSource
from hypothesis import example, given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError
from agent_host.llm.dialects.anthropic import AnthropicAssembler, AnthropicDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from agent_host.llm.network import BoundedStream, decoder
from agent_host.testing.dialects import ANTHROPIC
from agent_host.testing.dialects import read_request as read_messages
from agent_host.testing.dialects.openai_responses import read_request as read_responses
from agent_host.testing.script import Script
from agent_host.thread.messages import Message, decode, encode
from tests.unit.llm.helpers import LIMITS, VIEW
from tests.unit.llm.test_openai_chat_streams import ANY_VALUE, COUNTS, ODD_TEXTS, TEXTS, fields, mostly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import httpx

    from agent_host.llm import ModelTurn
    from agent_host.llm.dialects import Dialect

Stream = list[tuple[str, dict[str, Any]]]
INDEXES = st.sampled_from([0, 0, 1, 2])


def turn_of(dialect: Dialect, events: Stream) -> tuple[ModelTurn, str] | None:
    """The turn and the text that was shown of it; None where the stream gives none."""
    assembler, shown = dialect.assembler(40), ""
    try:
        for name, data in events:
            shown += assembler.feed(name, json.dumps({"type": name, **data})) or ""
        return assembler.finish(), shown
    except (StreamFault, StreamProtocolError, AnswerTooLarge):
        return None


def sent(dialect: Dialect, turn: ModelTurn) -> Any:
    """The request that goes on behind the turn, once it was on record."""
    blocks = tuple(block._replace(model="m") for block in turn.blocks)
    message = Message("assistant", turn.text, 1, turn.tool_calls, blocks=blocks, order=turn.order)
    assert decode(encode(message, MACHINE, session_id="s")) == message
    renderer = dialect.renderer("m")
    results = [Message("tool", "ok", 1, tool_call_id=one.call_id) for one in turn.tool_calls]
    head = dialect.head(model="m", max_output_tokens=99, system="s", tools=())
    units = [renderer.user([Message("user", "hi", 1)]), renderer.exchange(message, results)]
    if not results:
        units.append(renderer.user([Message("user", "Go on.", 1)]))
    return json.loads(head + b",".join(units) + dialect.tail)


# --- Messages ---------------------------------------------------------------------------------------------------------

BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": ODD_TEXTS, "name": ODD_TEXTS, "input": ANY_VALUE}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS, "signature": st.sampled_from(["", "s"])}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": TEXTS}),
    fields(type=st.sampled_from(["text", "server_tool_use", "tool_use"]), text=ANY_VALUE, id=ANY_VALUE),
)
DELTAS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text_delta"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("input_json_delta"), "partial_json": TEXTS}),
    st.fixed_dictionaries({"type": st.just("thinking_delta"), "thinking": TEXTS}),
    st.fixed_dictionaries({"type": st.just("signature_delta"), "signature": st.sampled_from(["s", "\ud83d"])}),
    fields(type=st.sampled_from(["text_delta", "citations_delta", "x"]), text=ANY_VALUE, citation=ANY_VALUE),
)
COUNTED = fields(
    input_tokens=COUNTS, output_tokens=COUNTS, cache_read_input_tokens=COUNTS, cache_creation_input_tokens=COUNTS,
    cache_creation=fields(ephemeral_1h_input_tokens=COUNTS, ephemeral_5m_input_tokens=COUNTS),
)  # fmt: skip
STOPS = st.sampled_from([None, "end_turn", "tool_use", "max_tokens", "refusal", "odd"])
MIDDLE: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("content_block_start"), st.fixed_dictionaries({"index": INDEXES, "content_block": BLOCKS})),
    st.tuples(st.just("content_block_delta"), st.fixed_dictionaries({"index": INDEXES, "delta": DELTAS})),
    st.tuples(st.just("content_block_stop"), st.fixed_dictionaries({"index": INDEXES})),
    st.tuples(st.just("ping"), st.just({})),
    st.tuples(st.just("message_delta"), st.fixed_dictionaries({"delta": fields(stop_reason=STOPS), "usage": COUNTED})),
)
MESSAGES = st.tuples(st.lists(MIDDLE, max_size=9), STOPS, COUNTED).map(
    lambda made: [
        ("message_start", {"message": {"id": "a", "usage": made[2]}}),
        *made[0],
        ("message_delta", {"delta": {"stop_reason": made[1]}, "usage": made[2]}),
        ("message_stop", {}),
    ]
)


@given(MESSAGES)
def test_messages(events: Stream) -> None:
    found = turn_of(AnthropicDialect(), events)
    if found is None:
        return
    turn, shown = found
    assert sorted(turn.text) == sorted(shown), "blocks that come at once are shown as they come"
    usage = turn.usage
    assert 0 <= usage.cache_read_tokens + usage.cache_write_tokens <= usage.input_tokens
    assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
    request = sent(AnthropicDialect(), turn)
    assert read_messages(request, {}).turn_index == 1


ANSWERS = [
    {"text": "Grüße, 世界 🌍", "chunk_chars": 3, "pings": 4},
    {"thinking": "Hm ✓", "text": "Now.", "tool_calls": [{"name": "X", "arguments": {"ü": "👋"}, "id": "c"}]},
    {"redacted_thinking": "x" * 50, "tool_calls": [{"name": "X", "raw_arguments": '{"a": "b'}, {"name": "Y"}]},
    {"text": "No.", "stop_reason": "refusal"},
    {"text": "So", "stream_error": {"message": "Overloaded"}},
]


async def read(pieces: Iterable[bytes]) -> tuple[Any, str, str]:
    async def each() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    assembler, shown, thoughts = AnthropicAssembler(1000), "", ""
    try:
        stream = BoundedStream(each(), decoder(""), LIMITS)
        async for event in EventSource(cast("httpx.Response", stream)).aiter_sse():
            shown += assembler.feed(event.event, event.data) or ""
            thoughts += assembler.thinking
        return assembler.finish(), shown, thoughts
    except (StreamFault, StreamProtocolError) as error:
        return str(error), shown, thoughts


@given(
    st.sampled_from(ANSWERS),
    st.lists(st.integers(0, 3000), max_size=8).map(sorted),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
async def test_where_a_stream_of_messages_is_cut_into_pieces_makes_no_difference(
    answer: dict[str, Any], cuts: list[int], line_end: bytes
) -> None:
    turn = Script.from_turns([answer]).turns[0]
    stream = b"".join(ANTHROPIC.stream_events(turn, VIEW))
    other = b"\xef\xbb\xbf" + stream.replace(b"\n", line_end)
    pieces = [other[a:b] for a, b in zip([0, *cuts], [*cuts, len(other)], strict=True)]
    assert await read(pieces) == await read([stream])


# --- Responses --------------------------------------------------------------------------------------------------------

IDS = st.sampled_from(["", "a", "b"])
PLACES = {"output_index": INDEXES, "item_id": IDS}
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("output_text"), "text": TEXTS})
    | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXTS}),
    max_size=2,
)
ITEMS = st.one_of(
    st.fixed_dictionaries({"type": st.just("message"), "id": IDS, "role": st.just("assistant"), "content": PARTS}),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "id": IDS, "call_id": ODD_TEXTS, "name": ODD_TEXTS},
        optional={"arguments": TEXTS | st.just({"a": 1}), "status": ODD_TEXTS | st.just("completed"), "x": ANY_VALUE},
    ),
    st.fixed_dictionaries(
        {"type": st.just("reasoning"), "id": IDS, "summary": st.just([])}, optional={"encrypted_content": st.just("g")}
    ),
    fields(type=st.sampled_from(["message", "function_call", "computer_call"]), content=ANY_VALUE, name=ANY_VALUE),
)
TOLD: st.SearchStrategy[Any] = st.one_of(
    st.tuples(
        st.sampled_from(
            ["response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta",
             "response.reasoning_summary_text.delta", "response.reasoning_text.delta"]
        ),
        st.fixed_dictionaries({"delta": mostly(TEXTS)}, optional=PLACES),
    ),
    st.tuples(
        st.sampled_from(["response.output_item.added", "response.output_item.done"]),
        st.fixed_dictionaries({"item": mostly(ITEMS)}, optional={"output_index": INDEXES}),
    ),
    st.tuples(
        st.just("response.function_call_arguments.done"), st.fixed_dictionaries({"arguments": TEXTS}, optional=PLACES)
    ),
    st.tuples(st.sampled_from(["response.in_progress", "response.of_tomorrow"]), st.just({})),
)  # fmt: skip
USED = fields(
    input_tokens=COUNTS, output_tokens=COUNTS,
    input_tokens_details=fields(cached_tokens=COUNTS, cache_write_tokens=COUNTS),
)  # fmt: skip
RESPONSES = st.tuples(
    st.lists(TOLD, max_size=9), st.sampled_from(["completed", "completed", "incomplete", "failed"]), USED
).map(
    lambda made: [
        ("response.created", {"response": {"id": "r"}}),
        *made[0],
        (f"response.{made[1]}", {"response": {"status": made[1], "usage": made[2]}}),
    ]
)


KNOWN = {"message", "function_call", "function_call_output", "reasoning"}


@given(RESPONSES)
@example([("response.completed", {"response": None})])
def test_responses(events: Stream) -> None:
    found = turn_of(ResponsesDialect(), events)
    if found is None:
        return
    turn, _ = found
    assert 0 <= turn.usage.cache_read_tokens + turn.usage.cache_write_tokens <= turn.usage.input_tokens
    request = sent(ResponsesDialect(), turn)
    if not {item.get("type", "message") for item in request["input"]} <= KNOWN:
        return  # an item of tomorrow goes back as it came, and the scripted gateway is of today
    assert read_responses(request, {}).turn_index >= 1, "a message behind a call counts as another"
