"""Every event type there is (AH 12, interface section 2), with who speaks and how loudly: one table, read by all.

What each carries stands in `payloads.py`.
"""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """Names on the wire."""

    SESSION_STARTED = "session_started"
    SESSION_RESUMED = "session_resumed"
    SESSION_PAUSED = "session_paused"
    SESSION_COMPLETED = "session_completed"
    SESSION_FAILED = "session_failed"
    SESSION_CANCELLED = "session_cancelled"
    TASK_QUEUED = "task_queued"
    TASK_STEERED = "task_steered"
    MODE_CHANGED = "mode_changed"
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    TASK_CANCELLED = "task_cancelled"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_LIMIT_APPROACHING = "step_limit_approaching"
    TEXT_CHUNK = "text_chunk"
    THINKING_CHUNK = "thinking_chunk"
    TOOL_OUTPUT_CHUNK = "tool_output_chunk"
    LLM_DIALECT_CHOSEN = "llm_dialect_chosen"
    LLM_SERVER_READ = "llm_server_read"
    LLM_REQUEST_STARTED = "llm_request_started"
    LLM_REQUEST_COMPLETED = "llm_request_completed"
    LLM_ANSWER_REPAIRED = "llm_answer_repaired"
    LLM_COUNT_ODD = "llm_count_odd"
    LLM_BLOCK_DROPPED = "llm_block_dropped"
    LLM_RETRY = "llm_retry"
    CONTEXT_COMPACTED = "context_compacted"
    CONTEXT_SUMMARY_RETRY = "context_summary_retry"
    LLM_WINDOW_CUT = "llm_window_cut"
    LLM_FALLBACK = "llm_fallback"
    TOOL_REQUESTED = "tool_requested"
    TOOL_COMPLETED = "tool_completed"
    COMMAND_ENDED = "command_ended"
    TOOLS_LISTED = "tools_listed"
    TOOLS_CHANGED = "tools_changed"
    TOOLS_HIDDEN = "tools_hidden"
    TOOLS_UNAVAILABLE = "tools_unavailable"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_RESOLVED = "approval_resolved"
    APPROVAL_TIMEOUT = "approval_timeout"
    POLICY_EXPIRED = "policy_expired"
    ARTIFACT_UPLOADED = "artifact_uploaded"
    ARTIFACT_UPLOAD_FAILED = "artifact_upload_failed"
    CHECKPOINT_FAILED = "checkpoint_failed"
    STORAGE_LIMIT_REACHED = "storage_limit_reached"


# (component, severity); what is not named here comes from the loop and is information.
_DEFAULT_SOURCE = ("loop", "info")
_SOURCES: dict[EventType, tuple[str, str]] = {
    EventType.SESSION_STARTED: ("session", "info"),
    EventType.SESSION_RESUMED: ("session", "info"),
    EventType.SESSION_PAUSED: ("session", "warning"),
    EventType.SESSION_COMPLETED: ("session", "info"),
    EventType.SESSION_FAILED: ("session", "error"),
    EventType.SESSION_CANCELLED: ("session", "info"),
    EventType.TASK_FAILED: ("loop", "error"),
    EventType.STEP_LIMIT_APPROACHING: ("loop", "warning"),
    EventType.TEXT_CHUNK: ("llm", "info"),
    EventType.THINKING_CHUNK: ("llm", "info"),
    EventType.LLM_DIALECT_CHOSEN: ("llm", "info"),
    EventType.LLM_SERVER_READ: ("llm", "info"),
    EventType.LLM_REQUEST_STARTED: ("llm", "info"),
    EventType.LLM_REQUEST_COMPLETED: ("llm", "info"),
    EventType.LLM_ANSWER_REPAIRED: ("llm", "warning"),
    EventType.LLM_COUNT_ODD: ("llm", "info"),
    EventType.LLM_BLOCK_DROPPED: ("llm", "warning"),
    EventType.LLM_RETRY: ("llm", "warning"),
    EventType.CONTEXT_COMPACTED: ("llm", "info"),
    EventType.CONTEXT_SUMMARY_RETRY: ("llm", "warning"),
    EventType.LLM_WINDOW_CUT: ("llm", "warning"),
    EventType.LLM_FALLBACK: ("llm", "warning"),
    EventType.TOOL_OUTPUT_CHUNK: ("routing", "info"),
    EventType.TOOL_REQUESTED: ("routing", "info"),
    EventType.TOOL_COMPLETED: ("routing", "info"),
    EventType.COMMAND_ENDED: ("routing", "info"),
    EventType.TOOLS_LISTED: ("routing", "info"),
    EventType.TOOLS_CHANGED: ("routing", "warning"),
    EventType.TOOLS_HIDDEN: ("routing", "warning"),
    EventType.TOOLS_UNAVAILABLE: ("routing", "warning"),
    EventType.APPROVAL_REQUESTED: ("approval", "info"),
    EventType.APPROVAL_RESOLVED: ("approval", "info"),
    EventType.APPROVAL_TIMEOUT: ("approval", "warning"),
    EventType.POLICY_EXPIRED: ("policy", "warning"),
    EventType.ARTIFACT_UPLOADED: ("routing", "info"),
    EventType.ARTIFACT_UPLOAD_FAILED: ("routing", "warning"),
    EventType.CHECKPOINT_FAILED: ("state", "warning"),
    EventType.STORAGE_LIMIT_REACHED: ("state", "warning"),
}

RUN_ENDS = frozenset(
    {EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED}
)
"""The last event of a run of a task."""
# Pieces of a stream: shown live, never kept, since the whole is kept elsewhere.
LIVE_ONLY = frozenset({EventType.TEXT_CHUNK, EventType.THINKING_CHUNK, EventType.TOOL_OUTPUT_CHUNK})


COUNTING = frozenset({
    EventType.STEP_STARTED, EventType.STEP_COMPLETED, EventType.LLM_REQUEST_STARTED, EventType.LLM_REQUEST_COMPLETED,
})  # fmt: skip
"""Payloads of numbers and few texts, under names that are the host's own: in these a number is no secret."""


def source_of(event_type: EventType) -> tuple[str, str]:
    """(component, severity) of `event_type`."""
    return _SOURCES.get(event_type, _DEFAULT_SOURCE)
