"""Answers without an end and answers without content: a real process says so in time and takes little memory for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, gateway, say, use
from tests.support.streaming import endless, endless_gzip, paced, streaming

if TYPE_CHECKING:
    from tests.support.process import Host, Outcome
    from tests.support.streaming import Body

pytestmark = pytest.mark.slow

MIB = 1 << 20
BLOCK = b"x" * MIB
GZIP = "content-encoding: gzip\r\n"
START = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":1}}}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def block(kind: str) -> bytes:
    fields = f'{{"type":"{kind}","id":"c","name":"WriteFile","text":"","input":{{}}}}'
    return f'event: content_block_start\ndata: {{"index":0,"content_block":{fields}}}\n\n'.encode()


def delta(kind: str, name: str, text: str) -> bytes:
    return f'event: content_block_delta\ndata: {{"index":0,"delta":{{"type":"{kind}","{name}":"{text}"}}}}\n\n'.encode()


# Longer than what is taken for a loop of the model when it comes again and again.
PIECE = "".join(f"{number:04}" for number in range(300))
TEXT = delta("text_delta", "text", PIECE)
# What the gateway begins with, what it repeats, and the setting that stops it.
ENDLESS = {
    "line": (START + b"event: content_block_delta\ndata: ", BLOCK, "llm.max_line_bytes"),
    "comment": (START + b":", BLOCK, "llm.max_line_bytes"),
    "event": (START, b"data: x\n" * 100_000, "llm.max_event_bytes"),
    "arguments": (
        START + block("tool_use"),
        delta("input_json_delta", "partial_json", "x" * 40) * 1000,
        "llm.max_call_arguments_bytes",
    ),
    "text": (START + block("text"), TEXT * 1000, "llm.max_answer_bytes"),
    "pings": (START, PING * 1000, "llm.max_answer_bytes"),
}


def run(host: Host, url: str) -> tuple[Outcome, int]:
    """A task, and the most memory that its process had, in bytes."""
    host.cold = True  # a process has no other's memory
    peak = host.root / "peak"
    outcome = host.start(
        "run", "Do it.", "--gateway", url, "--policy", "full", "--output", "json",
        env={"PEAK_MEMORY_FILE": str(peak)},
        program="tests.support.peak_memory",
    ).finish()  # fmt: skip
    return outcome, int(peak.read_text()) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is asked for as POSIX does")
@pytest.mark.parametrize("pack", [endless, endless_gzip], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_without_end_is_stopped_in_little_memory(host: Host, kind: str, pack: Any) -> None:
    start, again, setting = ENDLESS[kind]
    if setting == "llm.max_answer_bytes":
        host.configure(max_answer_bytes=8 * MIB)
    with gateway(say("Hello.")) as model:
        _, usual = run(host, model.url)
    with streaming(pack(start, again), headers=GZIP if pack is endless_gzip else "") as model:
        outcome, peak = run(host, model.url)
        assert len(model.requests) == 1, "a retry would fail the same way"
    assert (outcome.code, outcome.result["status"], outcome.result["reason"]) == (1, "TASK_FAILED", "LLM_GATEWAY_ERROR")
    outcome.names_once("agent-host: failed: ", setting)
    assert peak - usual < 40 * MIB, (peak, usual)


WITHOUT_CONTENT = {
    "pings before the answer": (b"", PING),
    "pings in the answer": (START + block("text"), PING),
    "comments": (b"", b": still there\n\n"),
    "a line that drips": (START + b"data: ", b"x"),
    "empty texts": (START + block("text"), delta("text_delta", "text", "")),
    "events of tomorrow": (START, b"event: tomorrow\ndata: {}\n\n"),
}


@pytest.mark.parametrize("kind", WITHOUT_CONTENT)
def test_an_answer_without_content_has_a_deadline(host: Host, kind: str) -> None:
    host.configure(progress_timeout_s=0.3, max_retries=1)
    with streaming(paced(*WITHOUT_CONTENT[kind])) as model:
        outcome = host.task(model.url)
        assert len(model.requests) == 2, "the next try may meet a better gateway"
    stopped(outcome, "sent no content for 0.3 s (llm.progress_timeout_s)")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (paced(START + block("text"), TEXT), ""),
        (endless_gzip(START + block("tool_use"), delta("input_json_delta", "partial_json", " ") * 10_000), GZIP),
    ],
    ids=["drips", "pours"],
)
def test_a_whole_answer_has_a_deadline(host: Host, body: Body, headers: str) -> None:
    host.configure(answer_timeout_s=0.3, max_retries=0, max_answer_bytes=1 << 30)
    with streaming(body, headers=headers) as model:
        outcome = host.task(model.url)
    stopped(outcome, "was not done after 0.3 s (llm.answer_timeout_s)")


def stopped(outcome: Outcome, why: str) -> None:
    result = outcome.result
    assert (outcome.code, result["status"], result["reason"]) == (3, "SESSION_PAUSED", "LLM_GATEWAY_ERROR"), outcome
    outcome.names_once("agent-host: paused: ", why)


def test_a_workspace_may_tighten(host: Host) -> None:
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text("[llm]\nmax_answer_bytes = 2000\n")
    with gateway(say("x" * 4000)) as model:
        outcome = host.task(model.url)
        assert model.count == 1
    assert (outcome.code, outcome.result["reason"]) == (1, "LLM_GATEWAY_ERROR")
    outcome.names_once("an answer of more than 2000 bytes (llm.max_answer_bytes)")
    (host.workspace / ".agent" / "config.toml").unlink()
    with gateway(say("x" * 4000)) as model:
        assert host.resume("--gateway", model.url).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [100, 100 * MIB], ids=["in pieces", "at once"])
def test_an_answer_of_megabytes_passes(host: Host, chunk: int) -> None:
    content = 'print("größe")\n' * (5 * MIB // 16)
    write = call("WriteFile", path=str(host.workspace / "large.py"), content=content)
    policy = host.policy(llm={"maxInputTokens": 10**8, "maxSessionTokens": 10**8})
    with gateway(use(write, text=PIECE * (2 * MIB // len(PIECE)), chunk_chars=chunk), say("Done.")) as model:
        outcome = host.task(model.url, policy=policy)
    assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome.stderr
    assert (host.workspace / "large.py").read_text() == content
