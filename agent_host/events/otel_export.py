"""The SDK, set up: where spans and metrics go. Imported by the thread in `otel.py`, never by the loop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import RandomIdGenerator, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from agent_host.events import EventType
from agent_host.events.otel_calls import (
    INTERRUPTED,
    OPT_IN,
    SCHEMA_URL,
    SCOPE,
    Endpoint,
    ModelCalls,
    SpanMaker,
    ToolCalls,
    cut,
    is_latest,
)
from agent_host.safe_open import open_regular
from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ClassVar

    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, Tracer

    from agent_host.events.emitter import Event


class Export:
    """Providers of their own, not the process's global ones. `spans` takes the events. See `otel_sink` for the rest."""

    def __init__(self, signals: frozenset[str], *, provider: str, gateway: str, trace_file: str) -> None:
        # Without a handler Python would print the SDK's warnings on stderr, where one line is one error of ours.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        latest = is_latest(os.environ.get(OPT_IN, ""))
        schema = None if latest else SCHEMA_URL
        ours = Resource({"service.name": SCOPE, "service.version": __version__}, schema)
        resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._ends: list[Callable[[], None]] = []
        ids = _OneTrace()
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        last = LastSpan(trace_file if "traces" in signals else "")
        if "traces" in signals:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = BatchSpanProcessor(DeliveredSpans(OTLPSpanExporter(), last))
            tracers.add_span_processor(processor)
            self._ends.append(processor.shutdown)
        meters: MeterProvider | NoOpMeterProvider = NoOpMeterProvider()
        if "metrics" in signals:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            self._ends.append(reader.shutdown)
        self.spans = Spans(
            tracers.get_tracer(SCOPE, __version__, schema),
            meters.get_meter(SCOPE, __version__, schema),
            latest=latest,
            endpoint=_endpoint(provider, gateway),
            last=last,
            on_session=ids.use,
        )

    def close(self, timeout_s: float) -> None:
        """End the open spans and send all there is. No signal waits for another, whose receiver may be away."""
        self.spans.close()
        threads = [threading.Thread(target=end, name="otel end", daemon=True) for end in self._ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)


def _endpoint(provider: str, gateway: str) -> Endpoint:
    """The provider behind the gateway's URL, of which nothing but host and port is used."""
    try:
        url = urlsplit(gateway)
        return Endpoint(provider, url.hostname or "", url.port or (443 if url.scheme.lower() == "https" else 80))
    except ValueError:  # no request goes to such a URL
        return Endpoint(provider)


class _OneTrace(RandomIdGenerator):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """A session is one trace, whichever of its processes a span comes from: its id is made from the session's."""

    def __init__(self) -> None:
        self._trace_id: int | None = None

    def use(self, session_id: str) -> None:
        """Take the trace id of the session from here on."""
        self._trace_id = int.from_bytes(sha256(session_id.encode()).digest()[:16]) or 1

    def generate_trace_id(self) -> int:
        return int(super().generate_trace_id()) if self._trace_id is None else self._trace_id


# Events into spans and metrics, by the OpenTelemetry semantic conventions for generative AI. No message contents.
#
#     agent_host.session                 a process that has the session
#     └── invoke_agent agent-host        a task
#         └── agent_host.step            one model turn and its calls
#             ├── chat {model}
#             ├── agent_host.approval    the wait for a person
#             └── execute_tool {name}
#
# A process that was killed sends no end of what it had open. The spans of the next one are in the same trace, and its
# `agent_host.session` is linked to the last span of the process before.

_TASK_ENDS = frozenset(
    {EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED}
)
_SESSION_ENDS = frozenset({EventType.SESSION_COMPLETED, EventType.SESSION_FAILED, EventType.SESSION_CANCELLED})


class Spans:
    """Takes the events of one session, in order. A span that an event belongs to and that was never begun, since
    another process did it, begins with the event. `last` knows the last span of the process before."""

    def __init__(
        self,
        tracer: Tracer,
        meter: Meter,
        *,
        endpoint: Endpoint,
        last: LastSpan,
        on_session: Callable[[str], None],
        latest: bool = False,
    ) -> None:
        self._maker = SpanMaker(tracer, endpoint, latest=latest)
        self._chat = ModelCalls(self._maker, meter, endpoint)
        self._tools = ToolCalls(self._maker, meter)
        self._agents = _agent_durations(meter) if latest else None
        self._task_began = 0.0
        self._last = last
        self._on_session = on_session
        self._session: Span | None = None
        self._task: Span | None = None
        self._step: Span | None = None
        self._model = ""
        # What a task that is resumed is linked to: the span before it, in another process or in this one.
        self._before: SpanContext | None = None

    def take(self, event: Event) -> None:
        """Translate the event into spans."""
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
            self._task_began = event.at
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
        if self._agents is not None:
            model = {"gen_ai.request.model": self._model} if self._model else {}
            failure = {"error.type": reason} if failed else {}
            measured = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": SCOPE, **model, **failure}
            self._agents.record(max(0.0, self._maker.now - self._task_began), cut(measured))
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


def _agent_durations(meter: Meter) -> Any:
    buckets = [0.1 * 2**power for power in range(13)]
    return meter.create_histogram(
        "gen_ai.invoke_agent.duration", "s", "GenAI agent invocation duration.",
        explicit_bucket_boundaries_advisory=buckets,
    )  # fmt: skip


# The last span of a process, kept for the process that resumes its session: that one links to it.

_MAX_BYTES = 1024


class LastSpan:
    """{"traceId", "spanId"} in hexadecimal digits, in the file at `path`; "" keeps nothing. What the disk refuses costs
    the link, and no more."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> SpanContext | None:
        """The span that was kept; None where there is none to be read."""
        try:
            with os.fdopen(open_regular(self._path, os.O_RDONLY), "rb") as handle:
                kept = json.loads(handle.read(_MAX_BYTES))
            context = SpanContext(
                int(kept["traceId"], 16), int(kept["spanId"], 16), is_remote=True, trace_flags=TraceFlags(0x01)
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return context if context.is_valid else None

    def write(self, context: SpanContext) -> None:
        """Keep the span in place of the one before. The file is replaced as a whole."""
        if not self._path:
            return
        kept = {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}
        new = f"{self._path}.new"
        with contextlib.suppress(OSError):
            with os.fdopen(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as handle:
                handle.write(json.dumps(kept).encode() + b"\n")
            os.replace(new, self._path)


class DeliveredSpans(SpanExporter):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """Exports with `exporter`, and keeps the last span of each batch that the receiver took: a link to it leads
    somewhere, also after a kill."""

    def __init__(self, exporter: SpanExporter, last: LastSpan) -> None:
        self._exporter = exporter
        self._last = last

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS and spans:
            self._last.write(spans[-1].get_span_context())
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See SpanExporter."""
        return bool(self._exporter.force_flush(timeout_millis))
