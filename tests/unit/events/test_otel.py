"""Spans and metrics as a real receiver gets them, from events alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType as E
from agent_host.events.otel import OtelSink, otel_sink
from tests.support.events import Watcher, emitter
from tests.support.otel import FAILED, READ, begin, end, sink_for, step

if TYPE_CHECKING:
    from tests.support.otlp import Receiver

INTERNAL, CLIENT = 1, 3


async def test_a_session_is_a_tree_of_spans(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url, gateway="https://user:secret@llm.example:8443/secret?secret"))
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
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "s",
        "server.address": "llm.example",
        "server.port": 8443,
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.model": "m-1-0815",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 3,
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
    assert {span.attributes["gen_ai.provider.name"] for span in seen.spans} == {"anthropic"}
    assert {span.attributes["gen_ai.conversation.id"] for span in seen.spans} == {"s"}
    assert seen.schemas == {"https://opentelemetry.io/schemas/1.41.0"}
    assert "secret" not in repr((seen.spans, seen.metrics, seen.resource))


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        ("https://llm.example", ("llm.example", 443)),
        ("http://[::1]/v1", ("::1", 80)),
        ("", (None, None)),
        ("http://[1:2]", (None, None)),
    ],
)
async def test_the_server_is_the_gateway(seen: Receiver, gateway: str, expected: tuple[str | None, int | None]) -> None:
    made = emitter(sink_for(seen.url, gateway=gateway))
    begin(made)
    step(made, 1)
    await made.aclose(20)
    attributes = seen.named("chat m-1").attributes
    assert (attributes.get("server.address"), attributes.get("server.port")) == expected


async def test_metrics_of_the_conventions(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url, gateway="http://llm.example"))
    begin(made)
    step(made, 1, READ, FAILED)
    step(made, 2)
    end(made)
    await made.aclose(20)
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m-1",
        "gen_ai.response.model": "m-1-0815",
        "server.address": "llm.example",
        "server.port": 80,
    }
    ((attributes, count, total),) = seen.metrics["gen_ai.client.operation.duration"]
    assert (attributes, count) == (chat, 2)
    assert 0 <= total < 5
    tokens = {point[0]["gen_ai.token.type"]: point for point in seen.metrics["gen_ai.client.token.usage"]}
    assert tokens["input"] == ({**chat, "gen_ai.token.type": "input"}, 2, 20)
    assert tokens["output"][1:] == (2, 10)
    tools = {point[0]["gen_ai.tool.name"]: point for point in seen.metrics["gen_ai.execute_tool.duration"]}
    assert tools["ReadFile"][:2] == ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "ReadFile"}, 1)
    assert tools["RunCommand"][0]["error.type"] == "TOOL_EXECUTION_FAILED"
    counted = {point[0]["gen_ai.tool.name"]: point for point in seen.metrics["agent_host.tool.calls"]}
    assert counted["ReadFile"][0]["agent_host.tool.status"] == "succeeded"
    assert counted["RunCommand"][0] == {**tools["RunCommand"][0], "agent_host.tool.status": "failed"}
    assert {point[1] for point in counted.values()} == {1}


async def test_native_tools_are_counted_by_themselves(seen: Receiver) -> None:
    """A program that ends with another code than 0 has succeeded as a call."""
    made = emitter(sink_for(seen.url))
    begin(made)
    native = ({**READ, "toolName": "cp__read_file", "toolCallId": "n1"},
              {**FAILED, "toolName": "cp__exec", "toolCallId": "n2"})  # fmt: skip
    step(made, 1, READ, *native)
    end(made)
    await made.aclose(20)
    for name, tool in (("cp_tool_success_total", "cp__read_file"), ("cp_tool_error_total", "cp__exec")):
        ((attributes, count, *_),) = seen.metrics[name]
        assert (attributes["gen_ai.tool.name"], count) == (tool, 1)


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


async def test_a_call_that_gave_way_to_another_ends_before_it(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    where: dict[str, Any] = {"task_id": "t", "step_id": "s1"}
    made.emit(E.STEP_STARTED, {"stepId": "s1", "stepCount": 1}, **where)
    made.emit(E.LLM_REQUEST_STARTED, {"model": "m-2", "estimatedInputTokens": 9}, **where)
    made.emit(E.LLM_FALLBACK, {"model": "m-2", "fallbackModel": "m-3", "message": "busy"}, **where)
    made.emit(E.LLM_REQUEST_STARTED, {"model": "m-3", "estimatedInputTokens": 9}, **where)
    end(made, E.TASK_FAILED, reason="LLM_GATEWAY_ERROR", message="no")
    await made.aclose(20)
    assert [seen.named(f"chat {name}").error for name in ("m-2", "m-3")] == ["ASKED_AGAIN", "LLM_GATEWAY_ERROR"]


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


AWAY = """
import asyncio, os, time
from agent_host.events.emitter import Emitter
from agent_host.events import EventType
from agent_host.events.otel import otel_sink

async def run():
    made = Emitter(time=time.time, session_id="s", workspace_id="w", tenant_id="t", user_id="u")
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


@pytest.mark.slow
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


async def test_the_latest_names_are_sent_where_they_are_asked_for(
    seen: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
    made = emitter(sink_for(seen.url))
    begin(made)
    loads = {**READ, "toolCallId": "c3", "skill": "code-review"}
    step(made, 1, loads, {"toolCallId": "c4", "toolName": "RunCommand", "status": "succeeded", "exitCode": 3})
    end(made)
    await made.aclose(20)
    chat = seen.named("chat m-1").attributes
    assert chat["gen_ai.provider.name"] == "anthropic"
    assert chat["gen_ai.usage.cache_write.input_tokens"] == 3
    assert "gen_ai.usage.cache_creation.input_tokens" not in chat
    task = seen.named("invoke_agent agent-host").attributes
    assert task["gen_ai.agent.name"] == "agent-host"
    assert "gen_ai.provider.name" not in task, "the provider is on calls of the model alone"
    skill = seen.named("execute_tool ReadFile code-review").attributes
    assert (skill["gen_ai.skill.name"], skill["gen_ai.agent.name"]) == ("code-review", "agent-host")
    command = seen.named("execute_tool RunCommand")
    assert (command.attributes["process.exit.code"], command.error) == (3, "NON_ZERO_EXIT")
    kinds = ("input", "output", "cache_read.input", "cache_write.input")
    counters = {f"gen_ai.client.inference.usage.{kind}_tokens" for kind in kinds}
    spreads = {f"gen_ai.client.inference.operation.{kind}_tokens" for kind in kinds[:2]}
    times = {"gen_ai.client.inference.duration", "gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"}
    assert set(seen.metrics) == counters | spreads | times | {"agent_host.tool.calls"}
    ((attributes, *_),) = seen.metrics["gen_ai.client.inference.usage.input_tokens"]
    assert attributes["gen_ai.token.modality"] == "unknown"
