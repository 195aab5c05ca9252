"""Where requests are marked for the provider's cache, and what that saves."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_host.thread as wire
from agent_host.llm.dialects.anthropic import AnthropicDialect, AnthropicRenderer
from agent_host.testing.dialects import ANTHROPIC, Counts, PromptCache
from agent_host.thread import Thread, UnitMark, WireBuffer
from agent_host.thread.messages import Block, Message, ToolCall

SYSTEM = "Be careful. " * 500
DIALECT = AnthropicDialect()


def request(thread: Thread) -> dict[str, Any]:
    head = DIALECT.head(model="m", max_output_tokens=10, system=SYSTEM, tools=())
    found: dict[str, Any] = orjson.loads(b"".join([head, *thread.encode_window(), DIALECT.tail]))
    return found


def counted(cache: PromptCache, thread: Thread) -> Counts:
    return cache.count("m", ANTHROPIC.pieces(request(thread)), has_marks=True)


def marked(thread: Thread) -> list[int]:
    """The messages whose last block has a mark; nothing else in them has one."""
    found = []
    for number, message in enumerate(request(thread)["messages"]):
        *before, last = message["content"]
        assert not any("cache_control" in block for block in before)
        if "cache_control" in last:
            found.append(number)
    return found


def new_thread() -> Thread:
    thread = Thread(AnthropicRenderer())
    thread.add_task(Message("user", "Go.", 5))
    return thread


def step(thread: Thread, number: int, calls: int = 1, size: int = 2000) -> None:
    made = tuple(ToolCall(f"c{number}_{call}", "ReadFile", {"path": "a"}) for call in range(calls))
    results = [Message("tool", f"{call.call_id} " * (size // 8), size // 4, tool_call_id=call.call_id) for call in made]
    thread.add_exchange(Message("assistant", "", 10, made), results)


def test_this_end_and_the_end_before_are_marked() -> None:
    thread = new_thread()
    assert marked(thread) == [0]
    step(thread, 1)
    assert marked(thread) == [0, 2]
    step(thread, 2)
    assert marked(thread) == [2, 4]
    thread.add_note(Message("system", "a note", 5))
    assert marked(thread) == [2, 5]
    thread.add_task(Message("user", "Go on.", 5))
    assert marked(thread) == [2, 6]


def test_a_turn_that_is_sent_back_as_it_came_is_not_marked() -> None:
    thread = new_thread()
    step(thread, 1)
    thread.add_exchange(Message("assistant", "I pause.", 5), [])
    assert marked(thread) == [2]


def test_a_resumed_thread_has_the_marks_that_it_would_have_had() -> None:
    before, after = new_thread(), Thread(AnthropicRenderer())
    messages = [Message("user", "Go.", 5)]
    for number in range(5):
        call = ToolCall(f"c{number}", "ReadFile", {})
        results = [Message("tool", "x", 5, tool_call_id=call.call_id)]
        messages += [Message("assistant", "", 5, (call,)), *results]
        before.add_exchange(Message("assistant", "", 5, (call,)), results)
    after.restore(messages)
    assert b"".join(after.encode_window()) == b"".join(before.encode_window())


def test_one_hour_is_said_where_it_is_wanted() -> None:
    dialect = AnthropicDialect("1h")
    thread = Thread(dialect.renderer("m"))
    thread.add_task(Message("user", "Go.", 5))
    head = dialect.head(model="m", max_output_tokens=10, system=SYSTEM, tools=())
    body = orjson.loads(b"".join([head, *thread.encode_window(), dialect.tail]))
    marks = [body["system"][0]["cache_control"], body["messages"][0]["content"][0]["cache_control"]]
    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 2


def test_no_mark_is_set_where_less_stands_before_it_than_a_provider_caches() -> None:
    thread = Thread(AnthropicRenderer(), marks_from=lambda: 100)
    thread.add_task(Message("user", "Go.", 5))
    seen = []
    for number in range(3):
        step(thread, number, size=200)
        sent = orjson.loads(b"[%b]" % b"".join(thread.encode_window(20)))
        seen.append([at for at, message in enumerate(sent) if "cache_control" in message["content"][-1]])
    assert seen == [[], [4], [4, 6]]
    assert b"cache_control" in b"".join(thread.encode_window(0))
    assert b"cache_control" not in AnthropicDialect().head(
        model="m", max_output_tokens=10, system="s", tools=(), is_marked=False
    )


@pytest.mark.parametrize("calls", [1, 30])
def test_all_but_the_newest_step_is_read_from_the_cache(calls: int) -> None:
    """Also where one turn has more blocks than a provider looks back."""
    cache, thread = PromptCache(), new_thread()
    last = counted(cache, thread)
    assert (last.read, last.written) == (0, last.total)
    for number in range(6):
        step(thread, number, calls)
        now = counted(cache, thread)
        assert now.read == last.total
        assert now.written == now.total - last.total
        last = now


def test_a_cut_writes_what_is_left_once() -> None:
    cache, thread, cuts = PromptCache(), new_thread(), 0
    counted(cache, thread)
    for number in range(100):
        step(thread, number)
        cut = thread.fit(10_000)
        counts = counted(cache, thread)
        cuts += bool(cut)
        if cut:
            assert counts.total - counts.read < 7_000
        else:
            assert counts.total - counts.read < 600
    assert 3 <= cuts <= 10


def test_a_request_with_five_marks_is_refused_by_the_simulated_provider() -> None:
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    payload = {"system": [block], "messages": [{"role": "user", "content": [block] * 4}]}
    with pytest.raises(ValueError, match="has 5"):
        PromptCache().count("m", ANTHROPIC.pieces(payload), has_marks=True)


def test_in_front_of_thinking_that_is_verified_nothing_is_edited() -> None:
    """What was there when something was left out goes as text; what comes after goes as it came."""
    block = Block('{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic", "m")
    messages = [Message("user", "Go.", 5)]
    for number in range(4):
        call = ToolCall(f"c{number}", "ReadFile", {"path": str(number)})
        messages.append(Message("assistant", f"Turn {number}.", 5, (call,), blocks=(block,)))
        messages.append(Message("tool", f"result {number}", 5, tool_call_id=call.call_id, is_error=number == 1))
    thread = Thread(AnthropicRenderer("m"))
    thread.restore(messages, dropped=1, thinking_from=7)
    sent = request(thread)["messages"]
    assert [message["role"] for message in sent] == ["user", "user", "user", "user", "assistant", "user"]
    plain = sent[2]["content"][0]["text"]
    assert 'Turn 1.\n[You called ReadFile with {"path":"1"}. It failed:]\nresult 1' in plain
    assert sent[4]["content"][0]["type"] == "thinking"
    assert "signature" not in str(sent[:4])
    assert thread.has_call("c0")
    assert thread.tokens == 4 * 10 + 20 + 5


@given(
    st.lists(st.binary(min_size=3, max_size=30), min_size=1, max_size=40),
    st.integers(1, 80),
    st.sets(st.integers(0, 39), max_size=3),
    st.integers(1, 3),
    st.data(),
)
def test_marks_stand_in_front_of_the_last_bytes_of_their_units(
    units: list[bytes], block_bytes: int, marks: set[int], before: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(units) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_BLOCK_BYTES", block_bytes)
        buffer = WireBuffer()
        for unit in units:
            buffer.append(unit)
    marks = {number for number in marks if number < len(units)}
    shown = [
        unit[:-before] + b"MARK" + unit[-before:] if number in marks else unit for number, unit in enumerate(units)
    ]
    assert b"".join(buffer.chunks(start, marks, UnitMark(b"MARK", before))) == b",".join(shown[start:])
    assert b"".join(buffer.chunks(start)) == b",".join(units[start:])
    assert [buffer.unit(number) for number in range(len(units))] == units
