"""The conversation as it is sent: always sendable (invariant 4), whatever was dropped and wherever it was resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.dialects.anthropic import AnthropicRenderer
from agent_host.testing.dialects import read_request
from agent_host.thread import Thread
from agent_host.thread.messages import Message, ToolCall

if TYPE_CHECKING:
    from agent_host.testing.script import RequestView


def sent(thread: Thread) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(b"[" + b"".join(thread.encode_window()) + b"]")
    return found


def checked(thread: Thread) -> RequestView:
    """The thread as the mock gateway reads it, which refuses what the real endpoint would refuse."""
    return read_request({"model": "m", "max_tokens": 1, "messages": sent(thread)}, {})


def task(text: str, tokens: int = 5) -> Message:
    return Message("user", text, tokens)


def exchange(name: str, calls: int = 1, tokens: int = 100) -> tuple[Message, list[Message]]:
    made = tuple(ToolCall(f"{name}_{n}", "ReadFile", {"path": name}) for n in range(calls))
    results = [Message("tool", f"{name} {n}", tokens, tool_call_id=f"{name}_{n}") for n in range(calls)]
    return Message("assistant", f"turn {name}", tokens, made), results


def filled(steps: int, calls: int = 1) -> Thread:
    thread = Thread(AnthropicRenderer())
    thread.add_task(task("the task"))
    for step in range(steps):
        thread.add_exchange(*exchange(f"c{step}", calls))
    return thread


def test_all_of_a_short_thread_is_sent_as_it_was_encoded() -> None:
    thread = filled(2)
    assert [message["role"] for message in sent(thread)] == ["user", "assistant", "user", "assistant", "user"]
    assert thread.fit(10_000) == 0
    assert thread.encode_window() == filled(2).encode_window()
    assert thread.tokens == 5 + 2 * 200


def test_results_stand_in_call_order_in_one_message() -> None:
    *_, results = sent(filled(1, calls=3))
    assert [block["tool_use_id"] for block in results["content"]] == ["c0_0", "c0_1", "c0_2"]


def test_dropping_keeps_pairs_the_task_and_counts_messages() -> None:
    thread = filled(10, calls=2)  # a step: 3 messages, 300 tokens
    dropped = thread.fit(1500)
    assert dropped == 3 * 6
    first, *rest = sent(thread)
    prompt, marker = first["content"]
    assert prompt["text"] == "the task"
    assert marker["text"] == f"[Earlier conversation truncated — {dropped} messages removed]"
    assert [block["text"] for block in (message["content"][0] for message in rest[::2])] == [
        f"turn c{n}" for n in range(6, 10)
    ]
    checked(thread)


def test_the_marker_counts_all_that_ever_went() -> None:
    thread = filled(10)
    went = thread.fit(1500)
    for step in range(10, 20):
        thread.add_exchange(*exchange(f"c{step}"))
        went += thread.fit(1500)
    assert went > 10
    assert f"truncated — {went} messages removed]" in sent(thread)[0]["content"][-1]["text"]


def test_a_thread_that_was_not_cut_has_no_marker() -> None:
    thread = filled(3)
    thread.fit(10_000)
    assert "truncated" not in str(sent(thread))


def test_the_task_is_not_said_twice_while_it_is_in_sight() -> None:
    thread = filled(10)
    thread.add_task(task("the second task"))
    thread.add_exchange(*exchange("last"))
    thread.fit(600)
    texts = str(sent(thread))
    assert texts.count("the second task") == 1
    assert "'the task'" not in texts
    checked(thread)


def test_the_present_task_stays_when_its_own_message_went() -> None:
    thread = filled(3)
    thread.add_task(task("the second task"))
    for step in range(10):
        thread.add_exchange(*exchange(f"d{step}"))
    thread.fit(600)
    assert sent(thread)[0]["content"][0]["text"] == "the second task"


def test_the_last_exchange_is_sent_even_when_nothing_fits() -> None:
    thread = filled(5, calls=3)
    thread.fit(1)
    assert [message["role"] for message in sent(thread)] == ["user", "assistant", "user"]
    checked(thread)


def test_the_prompt_that_is_kept_in_sight_takes_its_part_of_the_budget() -> None:
    thread = Thread(AnthropicRenderer())
    thread.add_task(task("long " * 800, tokens=800))
    for step in range(10):
        thread.add_exchange(*exchange(f"c{step}"))
    thread.fit(1000)
    messages = sent(thread)
    assert messages[0]["content"][0]["text"].startswith("long ")
    exchanges = sum(message["role"] == "assistant" for message in messages)
    assert 800 + 200 * exchanges <= 1000
    assert thread.tokens >= 800 + 200 * exchanges


# --- restore ----------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("task"), st.integers(0, 0), st.integers(1, 300)),
        st.tuples(st.just("note"), st.integers(0, 0), st.integers(1, 300)),
        st.tuples(st.just("exchange"), st.integers(0, 3), st.integers(1, 300)),
    ),
    max_size=15,
)


def live_and_recorded(script: list[tuple[str, int, int]]) -> tuple[Thread, list[Message]]:
    thread, recorded = Thread(AnthropicRenderer()), [task("first")]
    thread.add_task(recorded[0])
    for number, (kind, calls, tokens) in enumerate(script):
        if kind == "exchange":
            assistant, results = exchange(f"c{number}", calls, tokens)
            thread.add_exchange(assistant, results)
            recorded += [assistant, *results]
        elif kind == "task":
            recorded.append(task(f"task {number}", tokens))
            thread.add_task(recorded[-1])
        else:
            recorded.append(Message("system", f"note {number}", tokens))
            thread.add_note(recorded[-1])
    return thread, recorded


@given(steps, st.integers(0, 3000))
def test_a_restored_thread_is_the_live_one(script: list[tuple[str, int, int]], budget: int) -> None:
    live, recorded = live_and_recorded(script)
    restored = Thread(AnthropicRenderer())
    restored.restore(recorded)
    assert restored.encode_window() == live.encode_window()
    assert restored.tokens == live.tokens
    assert restored.fit(budget) == live.fit(budget)
    assert restored.encode_window() == live.encode_window()
    assert restored.tokens == live.tokens


@given(steps, st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.integers(0, 3000))
def test_a_restored_window_starts_where_the_live_one_does(
    script: list[tuple[str, int, int]], budgets: list[int], next_budget: int
) -> None:
    live, recorded = live_and_recorded(script)
    for budget in budgets:
        live.fit(budget)
    restored = Thread(AnthropicRenderer())
    restored.restore(recorded, dropped=live.dropped)
    assert (restored.encode_window(), restored.tokens, restored.dropped) == (
        live.encode_window(),
        live.tokens,
        live.dropped,
    )
    for thread in (live, restored):
        thread.add_exchange(*exchange("next", 2, 200))
    assert restored.fit(next_budget) == live.fit(next_budget)
    assert (restored.encode_window(), restored.tokens, restored.dropped) == (
        live.encode_window(),
        live.tokens,
        live.dropped,
    )


@given(steps, st.lists(st.tuples(st.booleans(), st.integers(-500, 3000)), min_size=1, max_size=4))
def test_a_hard_cut_is_sendable_and_restored_as_any_other(
    script: list[tuple[str, int, int]], moves: list[tuple[bool, int]]
) -> None:
    live, recorded = live_and_recorded(script)
    for hard, budget in moves:
        before, seen = live.tokens, live.dropped
        went = live.cut(budget) if hard else live.fit(budget)
        assert went >= 0
        if hard:
            assert (live.tokens < before) == (live.dropped > seen)
        checked(live)
    restored = Thread(AnthropicRenderer())
    restored.restore(recorded, dropped=live.dropped)
    assert (restored.encode_window(), restored.tokens, restored.dropped) == (
        live.encode_window(),
        live.tokens,
        live.dropped,
    )


def test_a_hard_cut_leaves_no_more_than_its_budget() -> None:
    thread = filled(10)  # a step: 2 messages, 200 tokens
    assert thread.tokens == 2005
    assert thread.cut(1000) == 12
    assert thread.tokens == 20 + 5 + 4 * 200
    assert thread.cut(1000) == 0
    assert thread.cut(1) == 6
    assert [message["role"] for message in sent(thread)] == ["user", "assistant", "user"]
    assert thread.cut(0) == 0


def test_a_hard_cut_that_saves_nothing_moves_nothing() -> None:
    thread = Thread(AnthropicRenderer())
    thread.add_task(task("the task", 50))
    thread.add_note(Message("system", "note", 5))
    before = thread.encode_window()
    assert (thread.cut(10), thread.dropped, thread.encode_window()) == (0, 0, before)


def test_a_restored_window_keeps_the_last_unit_of_a_thread_that_lost_its_end() -> None:
    thread = Thread(AnthropicRenderer())
    thread.restore([task("first"), Message("assistant", "a", 9), Message("assistant", "b", 9)], dropped=9)
    assert [message["role"] for message in sent(thread)] == ["user", "assistant"]


@given(steps, st.lists(st.integers(0, 3000), max_size=4))
def test_a_thread_is_sendable_after_any_cuts(script: list[tuple[str, int, int]], budgets: list[int]) -> None:
    thread, _ = live_and_recorded(script)
    checked(thread)
    for budget in budgets:
        thread.fit(budget)
        checked(thread)


@pytest.mark.parametrize("calls", [0, 2])
def test_the_turn_of_an_open_step_waits_for_its_end(calls: int) -> None:
    assistant, results = exchange("open", calls=calls)
    thread = Thread(AnthropicRenderer())
    thread.restore([task("first"), assistant], still_open=1)
    assert len(sent(thread)) == 1
    thread.add_exchange(assistant, results)
    whole = Thread(AnthropicRenderer())
    whole.restore([task("first"), assistant, *results])
    assert thread.encode_window() == whole.encode_window()


@pytest.mark.parametrize("calls", [0, 2])
def test_a_note_that_came_while_a_step_was_open_goes_before_its_turn(calls: int) -> None:
    """On record it stands behind the turn, and before the results where there are any."""
    assistant, results = exchange("open", calls=calls)
    note = Message("system", "meanwhile", 3)
    thread = Thread(AnthropicRenderer())
    thread.restore([task("first"), assistant, note], still_open=1)
    thread.add_exchange(assistant, results)
    checked(thread)
    again = Thread(AnthropicRenderer())
    again.restore([task("first"), assistant, note, *results])
    checked(again)
    if calls:
        assert again.encode_window() == thread.encode_window()


def test_a_turn_whose_calls_were_never_answered_is_not_sent() -> None:
    assistant, results = exchange("lost", calls=2)
    thread = Thread(AnthropicRenderer())
    thread.restore([task("first"), assistant, results[0], task("second")])
    checked(thread)
    assert [message["role"] for message in sent(thread)] == ["user", "user"]


def test_a_turn_without_calls_is_there_at_once() -> None:
    thread = Thread(AnthropicRenderer())
    thread.restore([task("first"), Message("assistant", "Done.", 3)])
    assert sent(thread)[-1] == {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}
