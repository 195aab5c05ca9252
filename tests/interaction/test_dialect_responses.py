"""Whole sessions over Responses: what a user sees is what the other wires give, and the provider stores nothing."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.gateway import MockGateway, Script
from tests.support.pictures import png
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host

RESPONSES = ("--dialect", "responses")
EFFECT = shell("echo ran >> effects")


def effects(host: Host) -> int:
    path = host.workspace / "effects"
    return path.read_text().count("ran") if path.exists() else 0


def test_a_session_of_text_calls_and_parallel_calls(host: Host) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 40}
    one = use(call("WriteFile", path="a.txt", content="héllo"), text="I write.", thinking="First this.", usage=usage)
    both = use(call("ReadFile", path="a.txt"), call("ReadFile", path="missing.txt"), EFFECT, usage=usage)
    expects = {"last_contains": ["héllo", "FILE_NOT_FOUND"], "last_tool_error": True, "message_count": 5}
    with gateway(one, both, say("Done.", usage=usage, expect=expects)) as model:
        outcome = host.task(model.url, *RESPONSES)
        bodies, paths = model.bodies, {record.path for record in model.mock.requests}
    assert outcome.code == 0, outcome.stderr
    assert (outcome.result["text"], outcome.result["stepCount"], effects(host)) == ("Done.", 3, 1)
    assert outcome.result["usage"] == {"inputTokens": 420, "outputTokens": 30, "cachedInputTokens": 120}
    assert paths == {"/v1/responses"}
    assert all(body["store"] is False for body in bodies)
    kinds = [item.get("type", item.get("role")) for item in bodies[2]["input"]]
    assert (
        kinds
        == ["system", "user", "reasoning", "message", "function_call", "function_call_output"]
        + ["function_call"] * 3
        + ["function_call_output"] * 3
    )
    assert bodies[2]["input"][: len(bodies[1]["input"])] == bodies[1]["input"], "a prefix that is cached"


def test_passing_trouble(host: Host) -> None:
    turns: list[dict[str, Any]] = [
        {"status": 429, "headers": {"retry-after": "0"}},
        use(EFFECT),
        {"tool_calls": [EFFECT], "cut_after_events": 4},
        {"text": "So", "stream_error": {"type": "server_error", "message": "Overloaded"}, "times": 1},
        {"text": "So", "stream_error": {"type": "server_error", "message": "It failed.", "failed": True}, "times": 1},
        use(EFFECT),
        say("Done."),
    ]
    with gateway(*turns) as model:
        outcome = host.task(model.url, *RESPONSES)
    assert (outcome.code, outcome.result["text"], effects(host)) == (0, "Done.", 2), outcome.stderr


def test_a_killed_session_goes_on_with_its_reasoning(host: Host) -> None:
    with gateway(use(EFFECT, thinking="Hm."), {"hang": True, "times": 1}, say("Done.")) as model:
        running = host.start_task(model.url, "--session-id", "one", *RESPONSES)
        eventually(lambda: model.count == 2, "the second request")
        os.kill(running.pid, signal.SIGKILL)
        running.finish()
        outcome = host.resume("one")
        before, after = model.bodies[1]["input"], model.bodies[2]["input"]
    assert (outcome.code, outcome.result["text"], effects(host)) == (0, "Done.", 1)
    assert after[: len(before)] == before
    assert before[2]["type"] == "reasoning"


@pytest.mark.parametrize(
    ("turn", "code", "reason"),
    [
        ({"text": "I cannot.", "stop_reason": "refusal"}, 1, "LLM_GUARDRAIL_BLOCKED"),
        ({"text": "So", "stream_error": {"type": "insufficient_quota", "message": "Pay."}}, 1, "LLM_GATEWAY_ERROR"),
        (
            {"text": "So", "stream_error": {"type": "bio_policy", "message": "No.", "failed": True}},
            1,
            "LLM_GUARDRAIL_BLOCKED",
        ),
    ],
)
def test_what_ends_a_task(host: Host, turn: dict[str, Any], code: int, reason: str) -> None:
    with gateway(turn) as model:
        outcome = host.task(model.url, *RESPONSES)
        assert model.count == 1
    assert (outcome.code, outcome.result["reason"]) == (code, reason), outcome


def test_pictures_stand_in_the_output(host: Host) -> None:
    (host.workspace / "a.png").write_bytes(png(4, 3))
    with gateway(use(call("ReadFile", path="a.png")), say("Done.")) as model:
        assert host.task(model.url, *RESPONSES).code == 0
        output = model.bodies[1]["input"][-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]


def test_auto_finds_a_gateway_that_speaks_nothing_else(host: Host) -> None:
    with gateway(say("Done.")) as model:
        outcome = host.task(f"{model.url}/v1/responses", "--dialect", "auto")
    assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome.stderr


@pytest.mark.parametrize(
    "turn",
    [
        {"text": "Grüße, 世界 🌍", "chunk_chars": 3, "pings": 4},
        {"thinking": "Hm.", "text": "Now.", "tool_calls": [{"name": "ReadFile", "arguments": {"path": "ä"}}]},
        {"text": "I cannot.", "stop_reason": "refusal"},
        {"text": "Half", "stop_reason": "max_tokens", "split_bytes": 13},
    ],
)
async def test_the_official_sdk_reads_what_the_scripted_gateway_says(turn: dict[str, Any]) -> None:
    import openai

    kinds = []
    async with (
        MockGateway(Script.from_turns([turn])) as model,
        openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="m", input="go", stream=True, store=False)
        async for event in stream:
            kinds.append(event.type)
            last = event
    assert last.type == ("response.incomplete" if turn.get("stop_reason") == "max_tokens" else "response.completed")
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 20
    assert "response.output_item.done" in kinds
    assert model.failures == []
