"""The table of payloads: one row for each type, and nothing in it that the other tables do not know."""

from __future__ import annotations

from agent_host.events import EventType
from agent_host.events.payloads import PAYLOADS


def test_every_type_has_a_shape_with_each_field_once() -> None:
    assert PAYLOADS.keys() == set(EventType)
    for event_type, shape in PAYLOADS.items():
        names = [field.name for field in shape.fields]
        assert len(names) == len(set(names)), event_type


def test_fields_of_the_specification_are_there() -> None:
    named = {
        "session_started": "executionEnvironment",
        "session_completed": "taskCount totalTokens durationMs",
        "session_failed": "reason",
        "step_started": "stepId stepCount",
        "step_completed": "stepId stepCount",
        "step_limit_approaching": "stepCount maxSteps",
        "text_chunk": "text",
        "llm_request_started": "model estimatedInputTokens",
        "llm_request_completed": "model inputTokens outputTokens latencyMs",
        "tool_requested": "toolName capability",
        "tool_completed": "toolName status latencyMs",
        "approval_requested": "approvalId riskLevel",
        "approval_resolved": "approvalId decision latencyMs",
        "approval_timeout": "approvalId waitedMs",
        "tool_output_chunk": "toolCallId stream text",
    }
    for event_type, fields in named.items():
        assert set(fields.split()) <= {field.name for field in PAYLOADS[EventType(event_type)].fields}, event_type


def test_nothing_that_a_person_or_a_model_wrote_is_marked_for_telemetry() -> None:
    told = {field.name for shape in PAYLOADS.values() for field in shape.fields if field.telemetry}
    words = {"text", "message", "summary", "workspace", "actionSummary", "description", "title", "details", "risks"}
    assert not told & (words | {"argumentsSha256", "outputSha256", "artifactName", "artifactUris", "rule"})
    assert "reason" not in {field.name for field in PAYLOADS[EventType.APPROVAL_RESOLVED].fields if field.telemetry}
