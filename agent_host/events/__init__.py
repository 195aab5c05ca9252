"""All event types (AH 12, interface section 2), with component and severity: one table for all readers.

`payloads.py` has their fields.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class EventType(StrEnum):
    """Names on the wire, with the `component` that emits the event and its `severity`."""

    component: str
    severity: str

    def __new__(cls, name: str, component: str = "loop", severity: str = "info") -> Self:
        """A name with component and severity, by default the loop and `info`."""
        made = str.__new__(cls, name)
        made._value_, made.component, made.severity = name, component, severity
        return made

    SESSION_STARTED = "session_started", "session"
    SESSION_RESUMED = "session_resumed", "session"
    SESSION_PAUSED = "session_paused", "session", "warning"
    SESSION_COMPLETED = "session_completed", "session"
    SESSION_FAILED = "session_failed", "session", "error"
    SESSION_CANCELLED = "session_cancelled", "session"
    TASK_QUEUED = "task_queued"
    TASK_STEERED = "task_steered"
    MODE_CHANGED = "mode_changed"
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed", "loop", "error"
    TASK_CANCELLED = "task_cancelled"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_LIMIT_APPROACHING = "step_limit_approaching", "loop", "warning"
    TEXT_CHUNK = "text_chunk", "llm"
    THINKING_CHUNK = "thinking_chunk", "llm"
    TOOL_OUTPUT_CHUNK = "tool_output_chunk", "routing"
    LLM_DIALECT_CHOSEN = "llm_dialect_chosen", "llm"
    LLM_SERVER_READ = "llm_server_read", "llm"
    LLM_REQUEST_STARTED = "llm_request_started", "llm"
    LLM_REQUEST_COMPLETED = "llm_request_completed", "llm"
    LLM_ANSWER_REPAIRED = "llm_answer_repaired", "llm", "warning"
    LLM_COUNT_ODD = "llm_count_odd", "llm"
    LLM_BLOCK_DROPPED = "llm_block_dropped", "llm", "warning"
    LLM_RETRY = "llm_retry", "llm", "warning"
    CONTEXT_COMPACTED = "context_compacted", "llm"
    CONTEXT_SUMMARY_RETRY = "context_summary_retry", "llm", "warning"
    LLM_WINDOW_CUT = "llm_window_cut", "llm", "warning"
    LLM_FALLBACK = "llm_fallback", "llm", "warning"
    TOOL_REQUESTED = "tool_requested", "routing"
    TOOL_COMPLETED = "tool_completed", "routing"
    COMMAND_ENDED = "command_ended", "routing"
    TOOLS_LISTED = "tools_listed", "routing"
    TOOLS_CHANGED = "tools_changed", "routing", "warning"
    TOOLS_HIDDEN = "tools_hidden", "routing", "warning"
    TOOLS_UNAVAILABLE = "tools_unavailable", "routing", "warning"
    APPROVAL_REQUESTED = "approval_requested", "approval"
    APPROVAL_RESOLVED = "approval_resolved", "approval"
    APPROVAL_TIMEOUT = "approval_timeout", "approval", "warning"
    POLICY_EXPIRED = "policy_expired", "policy", "warning"
    ARTIFACT_UPLOADED = "artifact_uploaded", "routing"
    ARTIFACT_UPLOAD_FAILED = "artifact_upload_failed", "routing", "warning"
    CHECKPOINT_FAILED = "checkpoint_failed", "state", "warning"
    STORAGE_LIMIT_REACHED = "storage_limit_reached", "state", "warning"


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
