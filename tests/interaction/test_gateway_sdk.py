"""The official SDK of the dialect parses everything that the scripted gateway sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.gateway import MockGateway, Script

if TYPE_CHECKING:
    from anthropic.types import Message, MessageParam

pytestmark = pytest.mark.slow  # the SDK takes seconds to import

TEXT = "Grüße, 世界 🌍"
TOOL_CALLS = [
    {"name": "ReadFile", "arguments": {"path": "/w/ä.txt", "limit": 3}},
    {"name": "Now", "arguments": {}},
]


async def ask(*turns: dict[str, Any], messages: list[MessageParam] | None = None) -> tuple[Message, str, list[str]]:
    """The message as the SDK assembled it, the text as it streamed by, and the kinds of raw events seen."""
    import anthropic

    streamed = ""
    kinds: list[str] = []
    async with (
        MockGateway(Script.from_turns(turns)) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=10) as client,
    ):
        question: list[MessageParam] = messages or [{"role": "user", "content": "hi"}]
        async with client.messages.stream(model="test-model", max_tokens=64, messages=question) as stream:
            async for event in stream:
                kinds.append(event.type)
                if event.type == "text":
                    streamed += event.text
            message = await stream.get_final_message()
    assert gateway.failures == []
    return message, streamed, kinds


@pytest.mark.slow
@pytest.mark.many_rows(3)
@pytest.mark.parametrize("extra", [{}, {"split_bytes": 1}, {"split_bytes": 13}, {"chunk_chars": 1}, {"pings": 9}])
async def test_text_thinking_and_several_tools(extra: dict[str, int]) -> None:
    usage = {"input_tokens": 12, "output_tokens": 34, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 6,
             "cache_creation_1h_input_tokens": 4}  # fmt: skip
    turn = {"thinking": "Let me see: ✓", "text": TEXT, "tool_calls": TOOL_CALLS, "usage": usage, **extra}
    message, streamed, _ = await ask(turn)
    thinking, text, first, second = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("Let me see: ✓", True)
    assert text.type == "text"
    assert text.text == streamed == TEXT
    assert first.type == second.type == "tool_use"
    assert (first.name, first.input) == ("ReadFile", {"path": "/w/ä.txt", "limit": 3})
    assert (second.name, second.input) == ("Now", {})
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    assert message.model == "test-model"
    found = message.usage
    assert (found.input_tokens, found.output_tokens) == (12, 34)
    assert (found.cache_read_input_tokens, found.cache_creation_input_tokens) == (5, 6)
    assert found.cache_creation is not None
    by_time = found.cache_creation
    assert (by_time.ephemeral_5m_input_tokens, by_time.ephemeral_1h_input_tokens) == (2, 4)


async def test_what_the_sdk_assembled_can_be_sent_back() -> None:
    turns = ({"thinking": "hm", "text": TEXT, "tool_calls": TOOL_CALLS}, {"text": "done"})
    message, _, _ = await ask(*turns)
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
        for block in message.content
        if block.type == "tool_use"
    ]
    thread: list[MessageParam] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    _, streamed, _ = await ask(*turns, messages=thread)
    assert streamed == "done"


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "stop_sequence", "pause_turn", "refusal"])
async def test_stop_reasons(reason: str) -> None:
    message, _, kinds = await ask({"text": "x", "stop_reason": reason})
    assert message.stop_reason == reason
    assert kinds[-1] == "message_stop"


async def test_an_empty_answer() -> None:
    message, _, _ = await ask({"text": ""})
    assert message.content == []
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (529, "InternalServerError"),
    ],
)
async def test_errors_before_the_stream(status: int, kind: str) -> None:
    import anthropic

    with pytest.raises(getattr(anthropic, kind)) as caught:
        await ask({"status": status, "error": {"message": "scripted"}, "headers": {"retry-after": "2"}})
    assert caught.value.status_code == status
    assert caught.value.response.headers["retry-after"] == "2"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["message"] == "scripted"


@pytest.mark.parametrize("stop", [{}, {"cut_after_events": 2}])
async def test_an_error_inside_the_stream(stop: dict[str, int]) -> None:
    import anthropic

    turn = {"text": TEXT, "stream_error": {"type": "overloaded_error", "message": "Overloaded"}, **stop}
    with pytest.raises(anthropic.APIStatusError) as caught:
        await ask(turn)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"] == {"type": "overloaded_error", "message": "Overloaded"}


async def test_a_message_without_streaming() -> None:
    import anthropic

    async with (
        MockGateway(Script.from_turns([{"text": TEXT, "tool_calls": TOOL_CALLS}])) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=10) as client,
    ):
        message = await client.messages.create(
            model="test-model", max_tokens=64, messages=[{"role": "user", "content": "hi"}]
        )
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == 20


async def test_a_cut_stream_is_an_error_to_the_sdk() -> None:
    with pytest.raises(Exception, match=r"(?i)incomplete|closed|disconnected"):
        await ask({"text": TEXT, "cut_after_events": 3})
