"""A session that goes on, in the same process or in another: one trace, and links between its parts."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from agent_host.events import EventType as E
from tests.support.events import emitter
from tests.support.otel import READ, begin, end, sink_for, step

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.otlp import Receiver


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


async def test_a_resume_is_linked_to_the_last_span_of_the_process_before(seen: Receiver, tmp_path: Path) -> None:
    kept = tmp_path / "trace.json"
    first = emitter(sink_for(seen.url, trace_file=str(kept)))
    begin(first)
    step(first, 1)
    await first.aclose(20)
    before = seen.named("agent_host.session")
    assert before.links == []
    link = {"traceId": before.trace_id, "spanId": before.span_id}
    assert json.loads(kept.read_text()) == link
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    seen.spans.clear()
    second = emitter(sink_for(seen.url, trace_file=str(kept)), first_id=100_000)
    second.emit(E.SESSION_RESUMED, {"resumedFromStep": 1}, task_id="t")
    end(second)
    second.emit(E.TASK_STARTED, {"maxSteps": 40}, task_id="t2")
    end(second)
    await second.aclose(20)
    after = seen.named("agent_host.session")
    assert after.links == [(before.trace_id, before.span_id)]
    assert (after.trace_id, after.parent_id) == (before.trace_id, "")
    tasks = [span for span in seen.spans if span.name == "invoke_agent agent-host"]
    assert [span.links for span in tasks] == [after.links, []]
    assert os.listdir(tmp_path) == ["trace.json"]


async def test_a_task_that_goes_on_after_a_pause_is_linked_to_its_first_part(seen: Receiver) -> None:
    made = emitter(sink_for(seen.url))
    begin(made)
    end(made, E.SESSION_PAUSED, reason="BUDGET_EXCEEDED")
    made.emit(E.SESSION_RESUMED, {"resumedFromStep": 0}, task_id="t")
    end(made)
    await made.aclose(20)
    first, second = (span for span in seen.spans if span.name == "invoke_agent agent-host")
    assert second.links == [(first.trace_id, first.span_id)]
    assert seen.named("agent_host.session").links == []


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"traceId": "x", "spanId": "1"}', '{"traceId": "1", "spanId": "0"}'])
async def test_what_is_kept_and_cannot_be_read_costs_the_link(seen: Receiver, tmp_path: Path, kept: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(kept)
    made = emitter(sink_for(seen.url, trace_file=str(path)))
    begin(made)
    await made.aclose(20)
    assert seen.named("agent_host.session").links == []
    assert json.loads(path.read_text())["spanId"] == seen.named("agent_host.session").span_id


async def test_a_disk_that_keeps_nothing_costs_the_link(seen: Receiver, tmp_path: Path) -> None:
    made = emitter(sink_for(seen.url, trace_file=str(tmp_path / "missing" / "trace.json")))
    begin(made)
    await made.aclose(20)
    assert seen.named("agent_host.session").links == []
