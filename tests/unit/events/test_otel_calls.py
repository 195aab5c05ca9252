"""Spans of tool calls: how long they last, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events import EventType as E
from tests.support.events import emitter
from tests.support.otel import READ, at, begin, sink_for, step

if TYPE_CHECKING:
    from agent_host.events.emitter import Emitter
    from agent_host.events.otel import OtelSink
    from tests.support.otlp import Receiver, SpanSeen

WRITE = {"toolCallId": "c1", "toolName": "WriteFile"}
DONE = {"outputBytes": 3, "outputSha256": "ab", "latencyMs": 62_000}


def ask(sink: OtelSink) -> None:
    at(sink, 100, E.TOOL_REQUESTED, **WRITE, riskLevel="high", summary="secret")
    at(sink, 100, E.APPROVAL_REQUESTED, approvalId="a", toolCallId="c1", title="secret")


def answer(sink: OtelSink, decision: str) -> None:
    at(sink, 160, E.APPROVAL_RESOLVED, approvalId="a", toolCallId="c1", decision=decision, reason="secret")


async def test_a_call_that_waited_for_a_person_lasts_as_long_as_it_ran(seen: Receiver) -> None:
    sink = sink_for(seen.url)
    ask(sink)
    answer(sink, "approved")
    at(sink, 160, E.TOOL_REQUESTED, **WRITE, edited=True)
    started = "1970-01-01T00:02:40.500Z"
    at(sink, 162.5, E.TOOL_COMPLETED, **WRITE, **DONE, status="succeeded", startedAt=started)
    await sink.aclose(20)
    tool, wait = seen.named("execute_tool WriteFile"), seen.named("agent_host.approval")
    assert (tool.start, tool.end) == (160_500_000_000, 162_500_000_000)
    assert (wait.start, wait.end) == (100_000_000_000, 160_000_000_000)
    ((_, count, total),) = seen.metrics["gen_ai.execute_tool.duration"]
    assert (count, total) == (1, 2.0)
    assert seen.tree()["agent_host.approval"] == seen.tree()["execute_tool WriteFile"] == "agent_host.step"
    for span in (tool, wait):
        assert span.error is None
        assert span.attributes["gen_ai.tool.call.id"] == "c1"
        assert span.attributes["agent_host.approval.id"] == "a"
        assert span.attributes["agent_host.approval.decision"] == "approved"
    assert "secret" not in repr(seen.spans)


async def test_a_call_that_was_denied_takes_no_time(seen: Receiver) -> None:
    sink = sink_for(seen.url)
    ask(sink)
    answer(sink, "denied")
    at(sink, 160, E.TOOL_COMPLETED, **WRITE, **DONE, status="denied", code="APPROVAL_DENIED")
    await sink.aclose(20)
    tool, wait = seen.named("execute_tool WriteFile"), seen.named("agent_host.approval")
    assert (tool.end - tool.start, tool.error) == (0, "APPROVAL_DENIED")
    assert (wait.error, wait.attributes["agent_host.approval.decision"]) == (None, "denied")
    assert "secret" not in repr(seen.spans)


async def test_a_question_that_nobody_has_answered(seen: Receiver) -> None:
    sink = sink_for(seen.url)
    ask(sink)
    at(sink, 200, E.SESSION_PAUSED, stepCount=1, totalTokens=3, reason="SHUTDOWN")
    await sink.aclose(20)
    tool, wait = seen.named("execute_tool WriteFile"), seen.named("agent_host.approval")
    assert (tool.end - tool.start, tool.error) == (0, "interrupted")
    assert (wait.end - wait.start, wait.error) == (100_000_000_000, "interrupted")


async def test_a_tool_does_not_start_before_its_request(seen: Receiver) -> None:
    sink = sink_for(seen.url)
    at(sink, 100.0004, E.TOOL_REQUESTED, **WRITE)  # times in payloads are cut to milliseconds
    at(sink, 101, E.TOOL_COMPLETED, **WRITE, **DONE, status="succeeded", startedAt="1970-01-01T00:01:40.000Z")
    await sink.aclose(20)
    assert seen.named("execute_tool WriteFile").start == int(100.0004 * 1_000_000_000)


async def test_a_command_with_another_exit_code_than_0_is_an_error(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    run = {"toolName": "RunCommand", "status": "succeeded"}
    step(made, 1, {**run, "toolCallId": "c1", "exitCode": 2})
    failed = await closed(made, seen)
    assert (failed.error, failed.attributes["process.exit.code"]) == ("NON_ZERO_EXIT", 2)
    seen.spans.clear()
    made = emitter(sink_for(seen.url))
    step(made, 1, {**run, "toolCallId": "c1", "exitCode": 0})
    assert (await closed(made, seen)).error is None


async def closed(made: Emitter, seen: Receiver) -> SpanSeen:
    await made.aclose(20)
    return seen.named("execute_tool RunCommand")


async def test_a_name_that_a_model_made_up_is_cut(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    step(made, 1, {**READ, "toolName": "x" * 1000})
    await made.aclose(20)
    assert max(len(span.attributes.get("gen_ai.tool.name", "")) for span in seen.spans) == 128
    assert max(len(span.name) for span in seen.spans) == 128
