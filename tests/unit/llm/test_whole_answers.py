"""Whole answers in one JSON body, of any shape: nothing is raised but what is documented, and each turn that comes of
one can be put on record and sent back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.dialects.openai_chat import ChatDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from tests.unit.llm.test_fuzzed_streams import BLOCKS, sent
from tests.unit.llm.test_openai_chat_streams import ANY_VALUE, COUNTS, ODD_TEXTS, TEXTS, fields, mostly

if TYPE_CHECKING:
    from agent_host.llm.dialects import Dialect

FUNCTIONS = fields(name=ODD_TEXTS, arguments=st.sampled_from(['{"a":1}', '{"a":1,"a":2}', "{", "", {"a": [1]}, 5]))
CALLS = st.lists(fields(id=ODD_TEXTS, type=st.just("function"), function=FUNCTIONS, index=ANY_VALUE), max_size=3)
CHAT = fields(
    role=st.just("assistant"), content=TEXTS, tool_calls=CALLS, reasoning=TEXTS, refusal=TEXTS, annotations=ANY_VALUE
)
ITEMS = st.one_of(
    st.fixed_dictionaries({"type": st.just("function_call"), "call_id": ODD_TEXTS, "name": ODD_TEXTS,
                           "arguments": st.sampled_from(['{"a":1}', "{"]), "status": st.just("completed")}),
    st.fixed_dictionaries({"type": st.just("message"), "role": st.just("assistant"), "id": ODD_TEXTS,
                           "content": st.lists(fields(type=st.just("output_text"), text=TEXTS), max_size=2)}),
    fields(type=st.sampled_from(["reasoning", "x"]), id=ANY_VALUE, summary=ANY_VALUE, encrypted_content=TEXTS),
)  # fmt: skip
CHOICES = mostly(
    st.fixed_dictionaries(
        {"message": CHAT, "finish_reason": st.sampled_from(["stop", "tool_calls", "length", "error", None])},
        optional={"index": st.sampled_from([0, 0, None, 1])},
    )
)
USAGE = mostly(fields(input_tokens=COUNTS, prompt_tokens=COUNTS, output_tokens=COUNTS))
BODIES = {
    "messages": st.fixed_dictionaries(
        {
            "content": mostly(st.lists(BLOCKS, max_size=4)),
            "stop_reason": mostly(st.sampled_from(["end_turn", "tool_use", "refusal", "odd"])),
        },
        optional={"type": st.just("message"), "usage": USAGE, "model": ANY_VALUE},
    ),
    "chat": fields(choices=mostly(st.lists(CHOICES, min_size=1, max_size=2)), usage=USAGE),
    "responses": fields(
        output=mostly(st.lists(ITEMS, max_size=4)), usage=USAGE, error=ANY_VALUE,
        status=mostly(st.sampled_from(["completed", "incomplete", "failed", "in_progress"])),
    ),
}  # fmt: skip


def check(dialect: Dialect, body: dict[str, Any]) -> None:
    try:
        events = list(dialect.events_of_answer(json.dumps(body)))
    except (LookupError, ValueError):
        return
    assembler, shown = dialect.assembler(40), ""
    try:
        for name, data in events:
            shown += assembler.feed(name, data) or ""
        turn = assembler.finish()
    except (StreamFault, StreamProtocolError, AnswerTooLarge):
        return
    assert turn.text == shown
    sent(dialect, turn)


@given(BODIES["messages"])
def test_bodies_of_messages(body: dict[str, Any]) -> None:
    check(AnthropicDialect(), body)


@given(BODIES["chat"])
def test_bodies_of_chat_completions(body: dict[str, Any]) -> None:
    check(ChatDialect(), body)


@given(BODIES["responses"])
def test_bodies_of_responses(body: dict[str, Any]) -> None:
    check(ResponsesDialect(), body)
