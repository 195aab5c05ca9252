"""Spans and metrics as a real receiver gets them, from events alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events.kinds import EventType as E
from agent_host.events.otel import OtelSink, otel_sink
from tests.support.events import Watcher, emitter
from tests.support.otlp import receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.events.emitter import Emitter
    from tests.support.otlp import Receiver

INTERNAL, CLIENT = 1, 3


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def sink_for(url: str) -> OtelSink:
    sink = otel_sink({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert isinstance(sink, OtelSink)
    return sink


def begin(made: Emitter) -> None:
    made.emit(E.SESSION_STARTED, {"executionEnvironment": "ci", "workspace": "/secret/place", "model": "m-1"})
    made.emit(E.TASK_STARTED, {"maxSteps": 40}, task_id="t")


def step(made: Emitter, number: int, *tools: dict[str, Any]) -> None:
    where: dict[str, Any] = {"task_id": "t", "step_id": f"s{number}"}
    made.emit(E.STEP_STARTED, {"stepId": f"s{number}", "stepCount": number}, **where)
    made.emit(E.LLM_REQUEST_STARTED, {"model": "m-1", "estimatedInputTokens": 9}, **where)
    made.emit(E.TEXT_CHUNK, {"text": "secret words"}, **where)
    answer = {"model": "m-1", "inputTokens": 10, "outputTokens": 5, "cachedInputTokens": 4, "latencyMs": 7}
    made.emit(E.LLM_REQUEST_COMPLETED, {**answer, "stopReason": "tool_use" if tools else "end_turn"}, **where)
    for tool in tools:
        asked = {"toolCallId": tool["toolCallId"], "toolName": tool["toolName"], "summary": "secret argument"}
        made.emit(E.TOOL_REQUESTED, {**asked, "capability": "File.Read", "decision": "ALLOWED"}, **where)
    for tool in tools:
        made.emit(E.TOOL_COMPLETED, {"outputBytes": 3, "outputSha256": "ab", "latencyMs": 250, **tool}, **where)
    made.emit(E.STEP_COMPLETED, {"stepId": f"s{number}", "stepCount": number}, **where)


def end(made: Emitter, event_type: E = E.TASK_COMPLETED, **payload: Any) -> None:
    made.emit(event_type, {"stepCount": 2, "totalTokens": 30, **payload}, task_id="t")


READ = {"toolCallId": "c1", "toolName": "ReadFile", "status": "succeeded"}
FAILED = {"toolCallId": "c2", "toolName": "RunCommand", "status": "failed", "code": "TOOL_EXECUTION_FAILED"}


async def test_a_session_is_a_tree_of_spans(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    step(made, 1, READ)
    end(made)
    made.emit(E.SESSION_COMPLETED, {"taskCount": 1, "totalTokens": 15, "durationMs": 9})
    await made.aclose(20)
    assert seen.tree() == {
        "agent_host.session": None,
        "invoke_agent agent-host": "agent_host.session",
        "agent_host.step": "invoke_agent agent-host",
        "chat m-1": "agent_host.step",
        "execute_tool ReadFile": "agent_host.step",
    }
    assert len({span.trace_id for span in seen.spans}) == 1
    assert seen.resource["service.name"] == "agent-host"
    chat = seen.named("chat m-1")
    assert (chat.kind, chat.error) == (CLIENT, None)
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m-1",
        "gen_ai.conversation.id": "s",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.response.finish_reasons": ["tool_use"],
    }
    tool = seen.named("execute_tool ReadFile")
    assert (tool.kind, tool.error) == (INTERNAL, None)
    assert (
        tool.attributes.items()
        >= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "ReadFile",
            "gen_ai.tool.call.id": "c1",
            "gen_ai.tool.type": "function",
            "agent_host.policy.decision": "ALLOWED",
        }.items()
    )
    task = seen.named("invoke_agent agent-host")
    assert (
        task.attributes.items()
        >= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "agent-host",
            "gen_ai.conversation.id": "s",
            "agent_host.task.id": "t",
            "agent_host.task.outcome": "task_completed",
        }.items()
    )
    assert task.start <= chat.start <= chat.end <= tool.start <= tool.end <= task.end
    assert "secret" not in repr(seen.spans)


async def test_metrics_of_the_conventions(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    step(made, 1, READ, FAILED)
    step(made, 2)
    end(made)
    await made.aclose(20)
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "m-1"}
    ((attributes, count, total),) = seen.metrics["gen_ai.client.operation.duration"]
    assert (attributes, count) == (chat, 2)
    assert 0 <= total < 5
    tokens = {point[0]["gen_ai.token.type"]: point for point in seen.metrics["gen_ai.client.token.usage"]}
    assert tokens["input"] == ({**chat, "gen_ai.token.type": "input"}, 2, 20)
    assert tokens["output"][1:] == (2, 10)
    tools = {point[0]["gen_ai.tool.name"]: point for point in seen.metrics["gen_ai.execute_tool.duration"]}
    assert tools["ReadFile"][1:] == (1, 0.25)
    assert tools["RunCommand"][0]["error.type"] == "TOOL_EXECUTION_FAILED"


async def test_what_fails_says_so(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    step(made, 1, FAILED)
    where: dict[str, Any] = {"task_id": "t", "step_id": "s2"}
    made.emit(E.STEP_STARTED, {"stepId": "s2", "stepCount": 2}, **where)
    made.emit(E.LLM_REQUEST_STARTED, {"model": "m-2", "estimatedInputTokens": 9}, **where)
    made.emit(E.LLM_RETRY, {"attempt": 1, "waitMs": 5, "message": "secret"}, **where)
    end(made, E.TASK_FAILED, reason="LLM_GATEWAY_ERROR", message="secret")
    await made.aclose(20)
    assert seen.named("execute_tool RunCommand").error == "TOOL_EXECUTION_FAILED"
    chat = seen.named("chat m-2")
    assert chat.error == chat.attributes["error.type"] == "LLM_GATEWAY_ERROR"
    assert chat.events == ["agent_host.llm_retry"]
    task = seen.named("invoke_agent agent-host")
    assert task.error == task.attributes["error.type"] == "LLM_GATEWAY_ERROR"
    assert [span.error for span in seen.spans if span.name == "agent_host.step"] == [None, "LLM_GATEWAY_ERROR"]
    failed = [point for point in seen.metrics["gen_ai.client.operation.duration"] if "error.type" in point[0]]
    assert [(point[0]["error.type"], point[1]) for point in failed] == [("LLM_GATEWAY_ERROR", 1)]
    assert "secret" not in repr(seen.spans)


async def test_an_approval_stands_in_the_span_of_its_call(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    where: dict[str, Any] = {"task_id": "t", "step_id": "s1"}
    made.emit(E.TOOL_REQUESTED, {"toolCallId": "c1", "toolName": "WriteFile", "riskLevel": "high"}, **where)
    made.emit(E.APPROVAL_REQUESTED, {"approvalId": "a", "toolCallId": "c1", "title": "secret"}, **where)
    made.emit(E.APPROVAL_RESOLVED, {"approvalId": "a", "toolCallId": "c1", "decision": "denied", "reason": "secret"})
    denied = {"toolCallId": "c1", "toolName": "WriteFile", "status": "denied", "code": "APPROVAL_DENIED"}
    made.emit(E.TOOL_COMPLETED, {"outputBytes": 3, "outputSha256": "ab", "latencyMs": 2, **denied}, **where)
    await made.aclose(20)
    span = seen.named("execute_tool WriteFile")
    assert span.events == ["agent_host.approval_requested", "agent_host.approval_resolved"]
    assert span.error == "APPROVAL_DENIED"
    assert "secret" not in repr(seen.spans)


async def test_a_resumed_session_goes_on_in_the_same_trace(seen: Receiver) -> None:
    first = emitter(sink_for(seen.url))
    begin(first)
    step(first, 1)
    await first.aclose(20)  # as far as a killed process comes: its task has no end of its own
    assert seen.named("invoke_agent agent-host").error == "interrupted"
    before = {span.trace_id for span in seen.spans}
    seen.spans.clear()
    second = emitter(sink_for(seen.url), first_id=100_000)
    second.emit(E.SESSION_RESUMED, {"resumedFromStep": 1}, task_id="t")
    cut_off = {
        **READ,
        "status": "failed",
        "code": "TOOL_INTERRUPTED",
        "outputBytes": 1,
        "outputSha256": "a",
        "latencyMs": 0,
    }
    second.emit(E.TOOL_COMPLETED, cut_off, task_id="t", step_id="s2")
    second.emit(E.STEP_COMPLETED, {"stepId": "s2", "stepCount": 2}, task_id="t", step_id="s2")
    end(second)
    await second.aclose(20)
    assert {span.trace_id for span in seen.spans} == before
    assert seen.named("agent_host.session").attributes["agent_host.resumed_from_step"] == 1
    assert seen.tree()["execute_tool ReadFile"] == "agent_host.step"
    assert seen.named("execute_tool ReadFile").error == "TOOL_INTERRUPTED"
    assert seen.named("invoke_agent agent-host").error is None


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


AWAY = """
import asyncio, os, time
from agent_host.events.emitter import Emitter
from agent_host.events.kinds import EventType
from agent_host.events.otel import otel_sink

async def run():
    made = Emitter(session_id="s", workspace_id="w", tenant_id="t", user_id="u")
    made.attach([otel_sink(os.environ)])
    began = time.monotonic()
    made.emit(EventType.SESSION_STARTED, {"model": "m"})
    for number in range(5000):
        made.emit(EventType.TASK_STARTED, {"maxSteps": 1}, task_id="t")
        made.emit(EventType.TASK_COMPLETED, {"stepCount": 1, "totalTokens": 2}, task_id="t")
    told = time.monotonic()
    await made.aclose(0.5)
    print(told - began, time.monotonic() - told)

asyncio.run(run())
"""


def test_a_receiver_that_is_away_costs_no_time_and_no_word() -> None:
    began = time.monotonic()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": closed_port()}
    done = subprocess.run([sys.executable, "-c", AWAY], capture_output=True, text=True, env=env, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    telling, closing = map(float, done.stdout.split())
    assert telling < 1
    assert closing < 3
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "console"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_watched_unless_it_is_asked_for(environ: dict[str, str]) -> None:
    assert otel_sink(environ) is None


async def test_one_signal_can_be_asked_for_alone(seen: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    variable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    monkeypatch.setenv(variable, f"{seen.url}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    sink = otel_sink({variable: seen.url})
    assert sink is not None
    made = emitter(sink)
    begin(made)
    step(made, 1)
    await made.aclose(20)
    assert {span.name for span in seen.spans} >= {"chat m-1", "agent_host.session"}
    assert seen.metrics == {}
    assert seen.resource["service.name"] == "mine"


def test_the_decision_imports_nothing() -> None:
    code = """
import sys
from agent_host.events.otel import otel_sink
before = set(sys.modules)
sink = otel_sink({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
assert sink is not None
assert set(sys.modules) == before, set(sys.modules) - before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = OtelSink(frozenset({"traces"}), provider="anthropic")
    sink._thread = object()  # type: ignore[assignment]  # one that never takes anything
    watcher = Watcher()
    emitter(watcher).emit(E.POLICY_EXPIRED, {})
    for _ in range(30_000):
        sink.take(watcher.events[0])
    assert sink.dropped == 10_000
