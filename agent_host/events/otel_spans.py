"""Events into spans and metrics, by the OpenTelemetry semantic conventions for generative AI. No message contents.

    agent_host.session
    └── invoke_agent agent-host        a task
        └── agent_host.step            one model turn and its calls
            ├── chat {model}
            └── execute_tool {name}

A process that was killed sends no end of what it had open; the spans of the next one stand in the same trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode, set_span_in_context

from agent_host.events.kinds import EventType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar

    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    from agent_host.events.emitter import Event

SCOPE = "agent-host"

# What the conventions advise.
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_TOKENS = [4**power for power in range(14)]

_TASK_ENDS = frozenset(
    {EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED}
)
_SESSION_ENDS = frozenset({EventType.SESSION_COMPLETED, EventType.SESSION_FAILED, EventType.SESSION_CANCELLED})
_NOT_ENDED = "interrupted"


class Spans:
    """Takes the events of one session, in order. A span that an event belongs to and that was never begun, since
    another process did it, begins with the event."""

    def __init__(self, tracer: Tracer, meter: Meter, *, provider: str, on_session: Callable[[str], None]) -> None:
        self._tracer = tracer
        self._provider = provider
        self._on_session = on_session
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip
        self._tool_durations = meter.create_histogram(
            "gen_ai.execute_tool.duration", "s", "GenAI tool execution duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._session: Span | None = None
        self._task: Span | None = None
        self._step: Span | None = None
        self._chat: Span | None = None
        self._chat_began = 0.0
        self._model = ""
        self._tools: dict[str, Span] = {}
        self._last_at = 0.0

    def take(self, event: Event) -> None:
        """What the event means for the spans."""
        self._last_at = event.at
        if self._session is None:
            self._begin_session(event)
        if event.event_type in _TASK_ENDS:
            self._end_task(event)
        elif event.event_type in _SESSION_ENDS:
            self._end_session(event.payload.get("reason") if event.event_type is EventType.SESSION_FAILED else None)
        else:
            handler = self._HANDLERS.get(event.event_type)
            if handler is not None:
                handler(self, event)

    def close(self) -> None:
        """End what is open: the process goes."""
        if self._session is not None:
            self._end_session(None)

    # Sessions and tasks

    def _begin_session(self, event: Event) -> None:
        session_id = event.chain["sessionId"]
        self._on_session(session_id)
        attributes = {"gen_ai.conversation.id": session_id, "agent_host.workspace.id": event.chain["workspaceId"]}
        self._session = self._begin("agent_host.session", None, event, attributes)

    def _session_started(self, event: Event) -> None:
        self._model = str(event.payload.get("model", ""))
        environment = event.payload.get("executionEnvironment")
        if self._session is not None and environment is not None:
            self._session.set_attribute("agent_host.execution_environment", str(environment))

    def _session_resumed(self, event: Event) -> None:
        if self._session is not None:
            self._session.set_attribute("agent_host.resumed_from_step", event.payload["resumedFromStep"])
        self._task_of(event)

    def _task_started(self, event: Event) -> None:
        self._task_of(event)

    def _task_of(self, event: Event) -> Span:
        if self._task is None:
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": SCOPE,
                "agent_host.task.id": event.task_id or "",
                **self._common(event),
            }
            if self._model:
                attributes["gen_ai.request.model"] = self._model
            self._task = self._begin(f"invoke_agent {SCOPE}", self._session, event, attributes)
        return self._task

    def _end_task(self, event: Event) -> None:
        failed = event.event_type in (EventType.TASK_FAILED, EventType.SESSION_PAUSED)
        reason = str(event.payload.get("reason") or event.event_type)
        task = self._task_of(event)
        self._end_step(reason if failed else _NOT_ENDED)
        task.set_attribute("agent_host.task.outcome", event.event_type.value)
        task.set_attribute("agent_host.task.steps", event.payload.get("stepCount", 0))
        self._end(task, reason if failed else None)
        self._task = None

    def _end_session(self, error: str | None) -> None:
        self._end_step(_NOT_ENDED)
        if self._task is not None:
            self._end(self._task, _NOT_ENDED)
            self._task = None
        if self._session is not None:
            self._end(self._session, error)
            self._session = None

    # Steps

    def _step_started(self, event: Event) -> None:
        self._end_step(_NOT_ENDED)
        self._step_of(event).set_attribute("agent_host.step.number", event.payload["stepCount"])

    def _step_completed(self, event: Event) -> None:
        self._step_of(event)
        self._end_step(None)

    def _step_of(self, event: Event) -> Span:
        if self._step is None:
            attributes = {"agent_host.step.id": event.step_id or "", **self._common(event)}
            self._step = self._begin("agent_host.step", self._task_of(event), event, attributes)
        return self._step

    def _end_step(self, error: str | None) -> None:
        """A step ends with what is open in it; `error` where it did not come to its own end."""
        if self._chat is not None:
            self._end_chat(error or _NOT_ENDED)
        for tool in self._tools.values():
            self._end(tool, _NOT_ENDED)
        self._tools.clear()
        if self._step is not None:
            self._end(self._step, error)
            self._step = None

    # Model calls

    def _llm_started(self, event: Event) -> None:
        self._model = event.payload["model"]
        self._chat_began = event.at
        attributes = {**self._chat_attributes(), **self._common(event)}
        self._chat = self._begin(f"chat {self._model}", self._step_of(event), event, attributes, SpanKind.CLIENT)

    def _llm_retry(self, event: Event) -> None:
        if self._chat is not None:
            details = {
                "agent_host.retry.attempt": event.payload["attempt"],
                "agent_host.retry.wait_ms": event.payload["waitMs"],
            }
            self._chat.add_event("agent_host.llm_retry", details, _ns(event.at))

    def _llm_completed(self, event: Event) -> None:
        chat, payload = self._chat, event.payload
        if chat is None:
            return
        chat.set_attributes(
            {
                "gen_ai.usage.input_tokens": payload["inputTokens"],
                "gen_ai.usage.output_tokens": payload["outputTokens"],
                "gen_ai.usage.cache_read.input_tokens": payload["cachedInputTokens"],
                "gen_ai.usage.cache_creation.input_tokens": payload.get("cacheWriteTokens", 0),
                "gen_ai.response.finish_reasons": [payload["stopReason"]],
            }
        )
        for kind, field in (("input", "inputTokens"), ("output", "outputTokens")):
            self._tokens.record(payload[field], {**self._chat_attributes(), "gen_ai.token.type": kind})
        self._end_chat(None)

    def _end_chat(self, error: str | None) -> None:
        if self._chat is not None:
            attributes = self._chat_attributes() if error is None else {**self._chat_attributes(), "error.type": error}
            self._durations.record(max(0.0, self._last_at - self._chat_began), attributes)
            self._end(self._chat, error)
            self._chat = None

    def _chat_attributes(self) -> dict[str, str]:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._provider,
            "gen_ai.request.model": self._model,
        }

    # Tools

    def _tool_requested(self, event: Event) -> None:
        payload = event.payload
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": payload["toolName"],
            "gen_ai.tool.call.id": payload["toolCallId"],
            "gen_ai.tool.type": "function",
            **self._common(event),
        }
        for name in ("capability", "decision", "riskLevel"):
            if name in payload:
                attributes[f"agent_host.policy.{_SNAKE[name]}"] = payload[name]
        span = self._tools.get(payload["toolCallId"])
        if span is not None:  # its arguments were edited: the same call, judged again
            span.set_attributes(attributes)
            return
        span = self._begin(f"execute_tool {payload['toolName']}", self._step_of(event), event, attributes)
        self._tools[payload["toolCallId"]] = span

    def _tool_completed(self, event: Event) -> None:
        payload = event.payload
        call_id, name = payload["toolCallId"], payload["toolName"]
        error = None if payload["status"] == "succeeded" else str(payload.get("code") or payload["status"])
        measured: dict[str, str] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        if error is not None:
            measured["error.type"] = error
        self._tool_durations.record(payload["latencyMs"] / 1000, measured)
        if call_id not in self._tools:  # cut off in another process; here it only got its verdict
            self._tool_requested(event)
        span = self._tools.pop(call_id)
        span.set_attribute("agent_host.tool.status", payload["status"])
        span.set_attribute("agent_host.tool.output_bytes", payload["outputBytes"])
        self._end(span, error)

    def _approval(self, event: Event) -> None:
        span = self._tools.get(event.payload.get("toolCallId", ""))
        if span is not None:
            details = {"agent_host.approval.id": event.payload["approvalId"]}
            if "decision" in event.payload:
                details["agent_host.approval.decision"] = event.payload["decision"]
            span.add_event(f"agent_host.{event.event_type}", details, _ns(event.at))

    # Spans

    def _common(self, event: Event) -> dict[str, str]:
        return {"gen_ai.conversation.id": event.chain["sessionId"]}

    def _begin(
        self,
        name: str,
        parent: Span | None,
        event: Event,
        attributes: dict[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        # Whatever the thread's own context holds is not ours.
        context = set_span_in_context(INVALID_SPAN if parent is None else parent, Context())
        return self._tracer.start_span(
            name, context, kind, attributes, start_time=_ns(event.at), record_exception=False
        )

    def _end(self, span: Span, error: str | None) -> None:
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_ns(self._last_at))

    _HANDLERS: ClassVar[dict[EventType, Callable[[Spans, Event], None]]] = {
        EventType.SESSION_STARTED: _session_started,
        EventType.SESSION_RESUMED: _session_resumed,
        EventType.TASK_STARTED: _task_started,
        EventType.STEP_STARTED: _step_started,
        EventType.STEP_COMPLETED: _step_completed,
        EventType.LLM_REQUEST_STARTED: _llm_started,
        EventType.LLM_RETRY: _llm_retry,
        EventType.LLM_REQUEST_COMPLETED: _llm_completed,
        EventType.TOOL_REQUESTED: _tool_requested,
        EventType.TOOL_COMPLETED: _tool_completed,
        EventType.APPROVAL_REQUESTED: _approval,
        EventType.APPROVAL_RESOLVED: _approval,
    }


def _ns(at: float) -> int:
    return int(at * 1_000_000_000)


_SNAKE = {"capability": "capability", "decision": "decision", "riskLevel": "risk_level"}
