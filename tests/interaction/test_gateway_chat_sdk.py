"""The official OpenAI SDK parses everything that the scripted gateway sends on the wire of Chat Completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.gateway import MockGateway, Script

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

pytestmark = pytest.mark.slow  # the SDK takes seconds to import

TEXT = "Grüße, 世界 🌍"
TOOL_CALLS = [
    {"name": "ReadFile", "arguments": {"path": "/w/ä.txt", "limit": 3}},
    {"name": "Now", "arguments": {}},
]


def client_of(gateway: MockGateway) -> openai.AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=10)


async def ask(
    *turns: dict[str, Any], messages: list[ChatCompletionMessageParam] | None = None
) -> tuple[ChatCompletion, str, list[str]]:
    """The completion as the SDK assembled it, the text as it streamed by, and the kinds of events seen."""
    streamed = ""
    kinds: list[str] = []
    async with MockGateway(Script.from_turns(turns)) as gateway, client_of(gateway) as client:
        question: list[ChatCompletionMessageParam] = messages or [{"role": "user", "content": "hi"}]
        async with client.chat.completions.stream(
            model="test-model",
            max_completion_tokens=64,
            messages=question,
            stream_options={"include_usage": True},
        ) as stream:
            async for event in stream:
                kinds.append(event.type)
                if event.type == "content.delta":
                    streamed += event.delta
            completion = await stream.get_final_completion()
    assert gateway.failures == []
    return completion, streamed, kinds


@pytest.mark.parametrize("extra", [{}, {"split_bytes": 1}, {"split_bytes": 13}, {"chunk_chars": 1}, {"pings": 9}])
async def test_text_thinking_and_several_tools(extra: dict[str, int]) -> None:
    usage = {"input_tokens": 12, "output_tokens": 34, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 6}
    turn = {"thinking": "Let me see: ✓", "text": TEXT, "tool_calls": TOOL_CALLS, "usage": usage, **extra}
    completion, streamed, kinds = await ask(turn)
    (choice,) = completion.choices
    message = choice.message
    assert message.content == streamed == TEXT
    assert (message.model_extra or {})["reasoning_content"] == "Let me see: ✓"
    first, second = message.tool_calls or (None, None)
    assert first is not None
    assert second is not None
    assert first.type == "function"
    assert second.type == "function"
    assert (first.function.name, first.function.arguments) == ("ReadFile", '{"path":"/w/ä.txt","limit":3}')
    assert (second.function.name, second.function.arguments) == ("Now", "{}")
    assert first.id != second.id
    assert (choice.finish_reason, completion.model) == ("tool_calls", "test-model")
    found = completion.usage
    assert found is not None
    assert found.prompt_tokens_details is not None
    assert (found.prompt_tokens, found.completion_tokens, found.total_tokens) == (23, 34, 57)
    assert (found.prompt_tokens_details.cached_tokens, found.prompt_tokens_details.cache_write_tokens) == (5, 6)
    assert "tool_calls.function.arguments.done" in kinds


async def test_what_the_sdk_assembled_can_be_sent_back() -> None:
    turns = ({"thinking": "hm", "redacted_thinking": "x", "text": TEXT, "tool_calls": TOOL_CALLS}, {"text": "done"})
    completion, _, _ = await ask(*turns)
    message: Any = completion.choices[0].message.model_dump(exclude_none=True)
    for call in message["tool_calls"]:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    results: Any = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]
    _, streamed, _ = await ask(*turns, messages=[{"role": "user", "content": "hi"}, message, *results])
    assert streamed == "done"


@pytest.mark.parametrize("reason", ["stop", "end_turn"])
async def test_the_usual_end(reason: str) -> None:
    completion, _, kinds = await ask({"text": "x", "stop_reason": reason})
    assert completion.choices[0].finish_reason == "stop"
    assert "content.done" in kinds


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("content_filter", "ContentFilterFinishReasonError"),
        ("max_tokens", "LengthFinishReasonError"),
        ("length", "LengthFinishReasonError"),
    ],
)
async def test_ends_that_the_sdk_names(reason: str, kind: str) -> None:
    import openai

    with pytest.raises(getattr(openai, kind)):
        await ask({"text": "x", "stop_reason": reason})


async def test_a_refusal() -> None:
    completion, streamed, kinds = await ask({"text": "I cannot.", "stop_reason": "refusal"})
    assert (completion.choices[0].message.refusal, streamed) == ("I cannot.", "")
    assert "refusal.done" in kinds


async def test_chunks_without_counts() -> None:
    script = Script.from_turns([{"text": "Hal", "stop_reason": "max_tokens"}])
    async with MockGateway(script) as gateway, client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_an_empty_answer() -> None:
    completion, _, _ = await ask({"text": ""})
    assert not completion.choices[0].message.content
    assert completion.choices[0].finish_reason == "stop"


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
    import openai

    turn = {"text": TEXT, "stream_error": {"type": "overloaded", "message": "Overloaded"}, **stop}
    with pytest.raises(openai.APIError) as caught:
        await ask(turn)
    assert (caught.value.message, caught.value.code) == ("Overloaded", "overloaded")


async def test_a_completion_without_streaming() -> None:
    turn = {"text": TEXT, "thinking": "hm", "tool_calls": TOOL_CALLS}
    async with MockGateway(Script.from_turns([turn])) as gateway, client_of(gateway) as client:
        completion = await client.chat.completions.create(
            model="test-model", messages=[{"role": "user", "content": "hi"}]
        )
    (choice,) = completion.choices
    assert (choice.message.content, len(choice.message.tool_calls or ())) == (TEXT, 2)
    assert (choice.finish_reason, completion.usage and completion.usage.completion_tokens) == ("tool_calls", 20)


async def test_a_cut_stream_is_an_error_to_the_sdk() -> None:
    import openai

    with pytest.raises(openai.APIConnectionError):
        await ask({"text": TEXT, "cut_after_events": 3})
