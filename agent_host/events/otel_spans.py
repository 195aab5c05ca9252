"""Events into spans and metrics, by the OpenTelemetry semantic conventions for generative AI. No message contents.

    agent_host.session                 a process that has the session
    └── invoke_agent agent-host        a task
        └── agent_host.step            one model turn and its calls
            ├── chat {model}
            ├── agent_host.approval    the wait for a person
            └── execute_tool {name}

A process that was killed sends no end of what it had open. The spans of the next one are in the same trace, and its
`agent_host.session` is linked to the last span of the process before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events.kinds import EventType
from agent_host.events.otel_calls import ModelCalls, ToolCalls
from agent_host.events.otel_parts import INTERRUPTED, SCOPE, SpanMaker

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar

    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, SpanContext, Tracer

    from agent_host.events.emitter import Event
    from agent_host.events.otel_last import LastSpan
    from agent_host.events.otel_parts import Endpoint

_TASK_ENDS = frozenset(
    {EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED}
)
_SESSION_ENDS = frozenset({EventType.SESSION_COMPLETED, EventType.SESSION_FAILED, EventType.SESSION_CANCELLED})


class Spans:
    """Takes the events of one session, in order. A span that an event belongs to and that was never begun, since
    another process did it, begins with the event. `last` knows the last span of the process before."""

    def __init__(
        self, tracer: Tracer, meter: Meter, *, endpoint: Endpoint, last: LastSpan, on_session: Callable[[str], None]
    ) -> None:
        self._maker = SpanMaker(tracer, endpoint)
        self._chat = ModelCalls(self._maker, meter, endpoint)
        self._tools = ToolCalls(self._maker, meter)
        self._last = last
        self._on_session = on_session
        self._session: Span | None = None
        self._task: Span | None = None
        self._step: Span | None = None
        self._model = ""
        # What a task that is resumed is linked to: the span before it, in another process or in this one.
        self._before: SpanContext | None = None

    def take(self, event: Event) -> None:
        """What the event means for the spans."""
        self._maker.at(event)
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
        self._on_session(event.chain["sessionId"])
        self._before = self._last.read()
        attributes = {"agent_host.workspace.id": event.chain["workspaceId"]}
        self._session = self._maker.begin("agent_host.session", None, attributes, links=[self._before])
        self._last.write(self._session.get_span_context())

    def _session_started(self, event: Event) -> None:
        self._model = str(event.payload.get("model", ""))
        environment = event.payload.get("executionEnvironment")
        if self._session is not None and environment is not None:
            self._session.set_attribute("agent_host.execution_environment", str(environment))

    def _session_resumed(self, event: Event) -> None:
        if self._session is not None:
            self._session.set_attribute("agent_host.resumed_from_step", event.payload["resumedFromStep"])
        self._task_of(event, self._before)

    def _task_started(self, event: Event) -> None:
        self._task_of(event)

    def _task_of(self, event: Event, before: SpanContext | None = None) -> Span:
        if self._task is None:
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": SCOPE,
                "agent_host.task.id": event.task_id or "",
            }
            if self._model:
                attributes["gen_ai.request.model"] = self._model
            self._task = self._maker.begin(f"invoke_agent {SCOPE}", self._session, attributes, links=[before])
        return self._task

    def _end_task(self, event: Event) -> None:
        failed = event.event_type in (EventType.TASK_FAILED, EventType.SESSION_PAUSED)
        reason = str(event.payload.get("reason") or event.event_type)
        task = self._task_of(event)
        self._end_step(reason if failed else INTERRUPTED)
        task.set_attribute("agent_host.task.outcome", event.event_type.value)
        task.set_attribute("agent_host.task.steps", event.payload.get("stepCount", 0))
        self._maker.end(task, reason if failed else None)
        self._before = task.get_span_context()
        self._task = None

    def _end_session(self, error: str | None) -> None:
        self._end_step(INTERRUPTED)
        if self._task is not None:
            self._maker.end(self._task, INTERRUPTED)
            self._task = None
        if self._session is not None:
            self._maker.end(self._session, error)
            self._session = None

    # Steps

    def _step_started(self, event: Event) -> None:
        self._end_step(INTERRUPTED)
        self._step_of(event).set_attribute("agent_host.step.number", event.payload["stepCount"])

    def _step_completed(self, event: Event) -> None:
        self._step_of(event)
        self._end_step(None)

    def _step_of(self, event: Event) -> Span:
        if self._step is None:
            attributes = {"agent_host.step.id": event.step_id or ""}
            self._step = self._maker.begin("agent_host.step", self._task_of(event), attributes)
        return self._step

    def _end_step(self, error: str | None) -> None:
        """A step ends with what is open in it; `error` where it did not come to its own end."""
        self._chat.end(error or INTERRUPTED)
        self._tools.end()
        if self._step is not None:
            self._maker.end(self._step, error)
            self._step = None

    # Calls

    def _llm_started(self, event: Event) -> None:
        self._model = event.payload["model"]
        self._chat.started(event, self._step_of(event))

    def _llm_retried(self, event: Event) -> None:
        self._chat.retried(event)

    def _llm_completed(self, event: Event) -> None:
        self._chat.completed(event)

    def _tool_requested(self, event: Event) -> None:
        self._tools.requested(event, self._step_of(event))

    def _tool_completed(self, event: Event) -> None:
        self._tools.completed(event, self._step_of(event))

    def _approval_requested(self, event: Event) -> None:
        self._tools.approval_requested(event)

    def _approval_resolved(self, event: Event) -> None:
        self._tools.approval_resolved(event)

    _HANDLERS: ClassVar[dict[EventType, Callable[[Spans, Event], None]]] = {
        EventType.SESSION_STARTED: _session_started,
        EventType.SESSION_RESUMED: _session_resumed,
        EventType.TASK_STARTED: _task_started,
        EventType.STEP_STARTED: _step_started,
        EventType.STEP_COMPLETED: _step_completed,
        EventType.LLM_REQUEST_STARTED: _llm_started,
        EventType.LLM_RETRY: _llm_retried,
        EventType.LLM_REQUEST_COMPLETED: _llm_completed,
        EventType.TOOL_REQUESTED: _tool_requested,
        EventType.TOOL_COMPLETED: _tool_completed,
        EventType.APPROVAL_REQUESTED: _approval_requested,
        EventType.APPROVAL_RESOLVED: _approval_resolved,
    }
