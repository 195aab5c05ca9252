"""Whole sessions with llama.cpp's own server, where it is installed: another program's parser of requests, its way to
read tool calls out of a model's text, and its counts, in each dialect."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.llama_server import PYTHON, serving
from tests.support.text_calls import calls_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="llama.cpp's server is not installed"),
]
SAID = "There is one file, é, and no more."


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("llama"), 32_768) as served:
        yield served


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses", "auto"])
def test_a_session_with_a_call(host: Host, url: str, dialect: str) -> None:
    (host.workspace / "é.txt").write_text("x")
    outcome = host.task(url, "--dialect", dialect, "--session-id", "s")
    assert outcome.code == 0, outcome.stderr
    result = outcome.result
    assert (result["text"], result["stepCount"]) == (SAID, 2)
    assert [(one["toolName"], one["status"]) for one in result["toolCalls"]] == [("ListDirectory", "succeeded")]
    usage = result["usage"]
    assert usage["cachedInputTokens"] > usage["inputTokens"] * 0.4, "the second request begins as the first"
    assert 0 < usage["outputTokens"] < 20
    told = [event["payload"] for event in host.event_log("s") if event["eventType"] == "tool_requested"]
    assert [payload["arguments"] for payload in told] == [{"path": "."}]


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
def test_a_context_that_is_too_small_is_told(
    host: Host, tmp_path_factory: pytest.TempPathFactory, dialect: str
) -> None:
    with serving(tmp_path_factory.mktemp("llama"), 4096) as small:
        outcome = host.task(small, "--dialect", dialect)
    assert outcome.code == 1
    assert outcome.result["reason"] == "LLM_GATEWAY_ERROR"
    assert "the request is too long for the model" in outcome.stderr
    assert outcome.result["resumeCommand"], outcome.result


def test_its_model_and_window_are_read(host: Host, url: str) -> None:
    found = host.run("doctor", "--gateway", url, "--dialect", "openai")
    assert "its window is 32,768 tokens (/props)" in found.text
    outcome = host.task(url, "--dialect", "openai", "--session-id", "s")
    (told,) = [event["payload"] for event in host.event_log("s") if event["eventType"] == "llm_server_read"]
    assert (told["model"], told["contextTokens"]) == (outcome.result["model"], 32_768)


def test_small_tasks_are_run_by_command(host: Host) -> None:
    """With the model that knows one call and one sentence: what the command asserts is what the host did."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.small_model", "--tasks", "3", "--keep", host.root / "tasks"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| completed | 2 |") == 3, done.stdout


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('```json\n{"name": "Grep", "arguments": {"pattern": "a"}}\n```', ['{"pattern": "a"}']),
        ('<tool_call>{{"name": "Grep", "arguments": {}}}</tool_call>', ["{}"]),
        (
            '{"name": "Grep", "arguments": {"pattern": "a\nb"}} {"name": "Grep", "arguments": {}}',
            ['{"pattern": "a\\nb"}', "{}"],
        ),
        ('{"name": "Other", "arguments": {}} {"a": {"name": "Grep"}}', []),
    ],
)
def test_calls_are_found_in_text(text: str, calls: list[str]) -> None:
    assert [call["arguments"] for call in calls_in(text, ["Grep"])] == calls
