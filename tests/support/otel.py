"""A session's events for the OpenTelemetry sink, made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.events import EventType as E
from agent_host.events.emitter import Event
from agent_host.events.otel import OtelSink, otel_sink

if TYPE_CHECKING:
    from agent_host.events.emitter import Emitter


def sink_for(url: str, **more: str) -> OtelSink:
    sink = otel_sink({"OTEL_EXPORTER_OTLP_ENDPOINT": url}, **more)
    assert isinstance(sink, OtelSink)
    return sink


def begin(made: Emitter) -> None:
    made.emit(E.SESSION_STARTED, {"executionEnvironment": "ci", "workspace": "/secret/place", "model": "m-1"})
    made.emit(E.TASK_STARTED, {"maxSteps": 40}, task_id="t")


def step(made: Emitter, number: int, *tools: dict[str, Any]) -> None:
    where: dict[str, Any] = {"task_id": "t", "step_id": f"s{number}"}
    made.emit(E.STEP_STARTED, {"stepId": f"s{number}", "stepCount": number}, **where)
    made.emit(E.LLM_REQUEST_STARTED, {"model": "m-1", "estimatedInputTokens": 9, "maxOutputTokens": 64}, **where)
    made.emit(E.TEXT_CHUNK, {"text": "secret words"}, **where)
    answer = {"model": "m-1", "inputTokens": 10, "outputTokens": 5, "cachedInputTokens": 4, "cacheWriteTokens": 3}
    more = {"latencyMs": 7, "responseId": f"msg_{number}", "responseModel": "m-1-0815"}
    made.emit(E.LLM_REQUEST_COMPLETED, {**answer, **more, "stopReason": "tool_use" if tools else "end_turn"}, **where)
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


def at(sink: OtelSink, seconds: float, event_type: E, **payload: Any) -> None:
    """An event so many seconds after the epoch."""
    chain = {"sessionId": "s", "workspaceId": "w"}
    sink.take(Event(1, event_type, payload, chain, at=seconds, task_id="t", step_id="s1"))
