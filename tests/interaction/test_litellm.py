"""Whole sessions through LiteLLM's proxy, where it is installed: what another program makes of our requests, and we of
its answers. The scripted gateway behind it refuses what the real endpoints would."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.litellm_proxy import KEY, PROGRAM, proxy
from tests.support.process import Gateway, bundle, call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="LiteLLM's proxy is not installed"),
]
USAGE = {"input_tokens": 200, "output_tokens": 10, "cache_read_input_tokens": 1000}
TOO_LONG = "This model's maximum context length is 200000 tokens. However, your messages resulted in 200001 tokens."
TURNS = [
    {"status": 429, "error": {"type": "rate_limit_error", "message": "Slow down."}},
    use(
        shell("echo ran >> effects"), call("ReadFile", path="long.txt"), text="Let me see.", thinking="Hm.", usage=USAGE
    ),
    {"text": "This breaks off before it is said", "chunk_chars": 3, "cut_after_events": 6},
    {"text": "So does this", "chunk_chars": 3, "stream_error": {"type": "overloaded_error", "message": "All full."}},
    use(call("ReadFile", path="effects"), thinking="I think more."),
    {"status": 400, "error": {"type": "context_length_exceeded", "message": TOO_LONG}, "when": {"message_count": 5}},
    say("Done."),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str]]:
    with gateway(*TURNS) as model, proxy(tmp_path_factory.mktemp("litellm"), model.url) as url:
        yield model, url


@pytest.mark.parametrize(
    ("dialect", "model", "path"),
    [
        ("openai", "gpt-test", "/v1/chat/completions"),
        ("openai", "claude-test", "/v1/messages"),
        ("anthropic", "claude-test", "/v1/messages"),
        ("responses", "gpt-test", "/v1/responses"),
        ("auto", "claude-test", "/v1/messages"),
    ],
)
def test_a_session_through_the_proxy(
    host: Host, served: tuple[Gateway, str], dialect: str, model: str, path: str
) -> None:
    upstream, url = served
    policy = host.root / "policy.json"
    policy.write_text(json.dumps(bundle(host.workspace, llm={"allowedModels": [model]})))
    (host.workspace / "long.txt").write_text("a line of a long file\n" * 900)
    before = upstream.count
    prompt = f"Do it over {dialect} with {model}."  # the proxy passes no session on: the first message tells it
    outcome = host.run(
        "run", prompt, "--gateway", url, "--dialect", dialect, "--policy", policy, "--output", "json",
        "--session-id", "s", env={"LLM_GATEWAY_AUTH_TOKEN": KEY},
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    result = outcome.result
    assert (result["text"], result["stepCount"]) == ("Done.", 3)
    assert [one["status"] for one in result["toolCalls"]] == ["succeeded"] * 3
    assert (host.workspace / "effects").read_text() == "ran\n"
    assert result["usage"]["cachedInputTokens"] == 1000
    requests = upstream.mock.requests[before:]
    assert {record.path for record in requests} == {path}
    assert [record.status for record in requests] == [429, 200, 200, 200, 200, 400, 200]
    assert upstream.mock.failures == []
    assert "llm_retry" in {one["eventType"] for one in host.event_log("s")}, (
        "the proxy tries some again itself, not all"
    )
