"""The official OpenAI SDK parses everything that the scripted gateway sends on the wire of Responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent_host.testing.gateway import MockGateway, Script
from tests.interaction.test_gateway_chat_sdk import TEXT, TOOL_CALLS, client_of

if TYPE_CHECKING:
    from openai.types.responses import ParsedResponse

pytestmark = pytest.mark.slow  # the SDK takes seconds to import


class Answer(NamedTuple):
    """The response as the SDK assembled it, the text as it streamed by, and the kinds of events seen, in order."""

    response: ParsedResponse[Any]
    streamed: str
    kinds: list[str]


async def ask(*turns: dict[str, Any], items: Any = "hi") -> Answer:
    streamed = ""
    kinds: list[str] = []
    numbers: list[int] = []
    async with MockGateway(Script.from_turns(turns)) as gateway, client_of(gateway) as client:
        async with client.responses.stream(
            model="test-model", max_output_tokens=64, input=items, store=False, include=["reasoning.encrypted_content"]
        ) as stream:
            async for event in stream:
                kinds.append(event.type)
                numbers.append(event.sequence_number)
                if event.type == "response.output_text.delta":
                    streamed += event.delta
        response = await stream.get_final_response() if "response.completed" in kinds else None
    assert gateway.failures == []
    assert numbers == list(range(len(numbers)))
    assert response is not None, kinds[-1]
    return Answer(response, streamed, kinds)


async def last_event(turn: dict[str, Any]) -> Any:
    """The last event of an answer that does not come to its usual end."""
    async with MockGateway(Script.from_turns([turn])) as gateway, client_of(gateway) as client:
        stream = await client.responses.create(model="test-model", input="hi", stream=True)
        events = [event async for event in stream]
    return events[-1]


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("extra", [{}, {"split_bytes": 1}, {"split_bytes": 13}, {"chunk_chars": 1}, {"pings": 9}])
async def test_text_thinking_and_several_tools(extra: dict[str, int]) -> None:
    usage = {"input_tokens": 12, "output_tokens": 34, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 6}
    answer = await ask({"thinking": "Let me see: ✓", "text": TEXT, "tool_calls": TOOL_CALLS, "usage": usage, **extra})
    reasoning, message, first, second = answer.response.output
    assert reasoning.type == "reasoning"
    assert ([part.text for part in reasoning.summary], bool(reasoning.encrypted_content)) == (["Let me see: ✓"], True)
    assert message.type == "message"
    assert answer.response.output_text == answer.streamed == TEXT
    assert first.type == second.type == "function_call"
    assert (first.name, first.arguments) == ("ReadFile", '{"path":"/w/ä.txt","limit":3}')
    assert (second.name, second.arguments) == ("Now", "{}")
    assert first.call_id != second.call_id
    assert (answer.response.status, answer.response.model) == ("completed", "test-model")
    found = answer.response.usage
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (23, 34, 57)
    details = found.input_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (5, 6)
    assert {"response.function_call_arguments.done", "response.reasoning_summary_text.done"} <= {*answer.kinds}


async def test_what_the_sdk_assembled_can_be_sent_back() -> None:
    turns = ({"thinking": "hm", "redacted_thinking": "x", "text": TEXT, "tool_calls": TOOL_CALLS}, {"text": "done"})
    answer = await ask(*turns)
    items: list[Any] = [item.model_dump(exclude_none=True) for item in answer.response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in items
        if item["type"] == "function_call"
    ]
    again = await ask(*turns, items=[{"role": "user", "content": "hi"}, *items, *outputs])
    assert again.streamed == "done"


async def test_a_refusal() -> None:
    answer = await ask({"text": "I cannot.", "stop_reason": "refusal"})
    (message,) = answer.response.output
    assert message.type == "message"
    (part,) = message.content
    assert (part.type, part.type == "refusal" and part.refusal) == ("refusal", "I cannot.")
    assert "response.refusal.done" in answer.kinds


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("max_tokens", "max_output_tokens"),
        ("model_context_window_exceeded", "max_output_tokens"),
        ("pause_turn", "steered"),
        ("content_filter", "content_filter"),
    ],
)
async def test_an_incomplete_response(reason: str, told: str) -> None:
    event = await last_event({"text": "x", "stop_reason": reason})
    assert (event.type, event.response.status) == ("response.incomplete", "incomplete")
    assert event.response.incomplete_details.reason == told
    assert event.response.output[0].content[0].text == "x"


async def test_an_empty_answer() -> None:
    answer = await ask({"text": ""})
    assert (answer.response.output, answer.response.output_text) == ([], "")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (529, "InternalServerError"),
    ],
)
async def test_errors_before_the_stream(status: int, kind: str) -> None:
    import openai

    with pytest.raises(getattr(openai, kind)) as caught:
        await ask({"status": status, "error": {"message": "scripted"}, "headers": {"retry-after": "2"}})
    assert caught.value.status_code == status
    assert caught.value.response.headers["retry-after"] == "2"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"] == "scripted"


@pytest.mark.parametrize("stop", [{}, {"cut_after_events": 2}])
async def test_an_error_inside_the_stream(stop: dict[str, int]) -> None:
    event = await last_event({"text": TEXT, "stream_error": {"type": "overloaded", "message": "Overloaded"}, **stop})
    assert (event.type, event.code, event.message) == ("error", "overloaded", "Overloaded")


@pytest.mark.parametrize("stop", [{}, {"cut_after_events": 2}])
async def test_a_failed_response(stop: dict[str, int]) -> None:
    error = {"type": "server_error", "message": "The model failed.", "failed": True}
    event = await last_event({"text": TEXT, "stream_error": error, **stop})
    assert (event.type, event.response.status) == ("response.failed", "failed")
    assert (event.response.error.code, event.response.error.message) == ("server_error", "The model failed.")


@pytest.mark.parametrize("failed", [False, True])
async def test_a_response_without_streaming(failed: bool) -> None:
    turn: dict[str, Any] = {"text": TEXT, "thinking": "hm", "tool_calls": TOOL_CALLS}
    turns = [{"stream_error": {"message": "No.", "failed": True}}, turn] if failed else [turn]
    async with MockGateway(Script.from_turns(turns)) as gateway, client_of(gateway) as client:
        response = await client.responses.create(model="test-model", input="hi")
        if failed:
            assert (response.status, response.error and response.error.message) == ("failed", "No.")
            response = await client.responses.create(model="test-model", input="hi")
    assert (response.status, response.output_text) == ("completed", TEXT)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]


async def test_a_cut_stream_is_an_error_to_the_sdk() -> None:
    import openai

    with pytest.raises(openai.APIConnectionError):
        await last_event({"text": TEXT, "cut_after_events": 3})
