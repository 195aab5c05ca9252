"""The SDK, set up: where spans and metrics go. Imported by the thread in `otel.py`, never by the loop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import RandomIdGenerator, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agent_host.events import RUN_ENDS, EventType
from agent_host.safe_open import open_regular
from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ClassVar

    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, Tracer

    from agent_host.events.emitter import Event


_SCOPE = "agent-host"
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The names of attributes and metrics are those of this version, the last one of the conventions for generative AI for
which OpenTelemetry has published a schema. Later ones rename some of them."""
_OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST = "gen_ai_latest_experimental"
"""The word in that variable for the names of v0.1.0 of the conventions for generative AI in their own repository, which
publishes no schema. docs/opentelemetry.md has both."""
_INTERRUPTED = "interrupted"
"""`error.type` of what did not come to its own end."""
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
"""The buckets that the conventions advise for durations."""
# As in `telemetry.py`: a model may call a tool by any name, however long.
_MAX_CHARS = 128
_DIRECTIONS = {"input": "inputTokens", "output": "outputTokens"}
_STATUS = "agent_host.tool.status"
_POLICY = {
    "capability": "agent_host.policy.capability",
    "decision": "agent_host.policy.decision",
    "riskLevel": "agent_host.policy.risk_level",
}
_NATIVE = "cp__"
"""The beginning of the names of the native tools, which NT counts by themselves."""


class Export:
    """Providers of their own, not the process's global ones. `spans` takes the events. See `otel_sink` for the rest."""

    def __init__(self, signals: frozenset[str], *, provider: str, gateway: str, trace_file: str) -> None:
        # Without a handler Python would print the SDK's warnings on stderr, which is reserved for our own errors.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        latest = _LATEST in map(str.strip, os.environ.get(_OPT_IN, "").split(","))
        schema = None if latest else _SCHEMA_URL
        ours = Resource({"service.name": _SCOPE, "service.version": __version__}, schema)
        resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._ends: list[Callable[[], None]] = []
        ids = _OneTrace()
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        last = _LastSpan(trace_file if "traces" in signals else "")
        if "traces" in signals:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = BatchSpanProcessor(_DeliveredSpans(OTLPSpanExporter(), last))
            tracers.add_span_processor(processor)
            self._ends.append(processor.shutdown)
        meters: MeterProvider | NoOpMeterProvider = NoOpMeterProvider()
        if "metrics" in signals:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            self._ends.append(reader.shutdown)
        self.spans = _Spans(
            tracers.get_tracer(_SCOPE, __version__, schema),
            meters.get_meter(_SCOPE, __version__, schema),
            latest=latest,
            endpoint=_Endpoint.of(provider, gateway),
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


class _OneTrace(RandomIdGenerator):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """A session is one trace, whichever of its processes a span comes from: its id is made from the session's."""

    def __init__(self) -> None:
        self._trace_id: int | None = None

    def use(self, session_id: str) -> None:
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
# A killed process sends no end of its open spans. The spans of the next one are in the same trace, and its
# `agent_host.session` is linked to the last span of the process before.

_SESSION_ENDS = frozenset({EventType.SESSION_COMPLETED, EventType.SESSION_FAILED, EventType.SESSION_CANCELLED})


class _Spans:
    """Takes the events of one session, in order. If another process started the span of an event, a new span starts
    with the event. `last` stores the last span of the process before."""

    def __init__(
        self,
        tracer: Tracer,
        meter: Meter,
        *,
        endpoint: _Endpoint,
        last: _LastSpan,
        on_session: Callable[[str], None],
        latest: bool = False,
    ) -> None:
        self._maker = _SpanMaker(tracer, endpoint, latest=latest)
        self._chat = _ModelCalls(self._maker, meter, endpoint)
        self._tools = _ToolCalls(self._maker, meter)
        self._agents = None if not latest else meter.create_histogram(
            "gen_ai.invoke_agent.duration", "s", "GenAI agent invocation duration.",
            explicit_bucket_boundaries_advisory=[0.1 * 2**power for power in range(13)],
        )  # fmt: skip
        self._task_started_at = 0.0
        self._last = last
        self._on_session = on_session
        self._session: Span | None = None
        self._task: Span | None = None
        self._step: Span | None = None
        self._model = ""
        # The link of a resumed task: the span before it, in another process or in this one.
        self._before: SpanContext | None = None

    def take(self, event: Event) -> None:
        self._maker.at(event)
        if self._session is None:
            self._begin_session(event)
        if event.event_type in RUN_ENDS:
            self._end_task(event)
        elif event.event_type in _SESSION_ENDS:
            self._end_session(event.payload.get("reason") if event.event_type is EventType.SESSION_FAILED else None)
        else:
            handler = self._HANDLERS.get(event.event_type)
            if handler is not None:
                handler(self, event)

    def close(self) -> None:
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

    def _task_of(self, event: Event, before: SpanContext | None = None) -> Span:
        if self._task is None:
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": _SCOPE,
                "agent_host.task.id": event.task_id or "",
            }
            if self._model:
                attributes["gen_ai.request.model"] = self._model
            self._task_started_at = event.at
            self._task = self._maker.begin(f"invoke_agent {_SCOPE}", self._session, attributes, links=[before])
        return self._task

    def _end_task(self, event: Event) -> None:
        failed = event.event_type in (EventType.TASK_FAILED, EventType.SESSION_PAUSED)
        reason = str(event.payload.get("reason") or event.event_type)
        task = self._task_of(event)
        self._end_step(reason if failed else _INTERRUPTED)
        task.set_attribute("agent_host.task.outcome", event.event_type.value)
        task.set_attribute("agent_host.task.steps", event.payload.get("stepCount", 0))
        self._maker.end(task, reason if failed else None)
        if self._agents is not None:
            model = {"gen_ai.request.model": self._model} if self._model else {}
            failure = {"error.type": reason} if failed else {}
            measured = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": _SCOPE, **model, **failure}
            self._agents.record(max(0.0, self._maker.now - self._task_started_at), _cut(measured))
        self._before = task.get_span_context()
        self._task = None

    def _end_session(self, error: str | None) -> None:
        self._end_step(_INTERRUPTED)
        if self._task is not None:
            self._maker.end(self._task, _INTERRUPTED)
            self._task = None
        if self._session is not None:
            self._maker.end(self._session, error)
            self._session = None

    # Steps

    def _step_started(self, event: Event) -> None:
        self._end_step(_INTERRUPTED)
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
        """End a step and the open spans in it; `error` if it was interrupted."""
        self._chat.end(error or _INTERRUPTED)
        self._tools.end()
        if self._step is not None:
            self._maker.end(self._step, error)
            self._step = None

    # Calls

    def _llm_started(self, event: Event) -> None:
        self._model = event.payload["model"]
        self._chat.started(event, self._step_of(event))

    _HANDLERS: ClassVar[dict[EventType, Callable[[_Spans, Event], object]]] = {
        EventType.SESSION_STARTED: _session_started,
        EventType.SESSION_RESUMED: _session_resumed,
        EventType.TASK_STARTED: lambda self, event: self._task_of(event),
        EventType.STEP_STARTED: _step_started,
        EventType.STEP_COMPLETED: _step_completed,
        EventType.LLM_REQUEST_STARTED: _llm_started,
        EventType.LLM_RETRY: lambda self, event: self._chat.retried(event),
        EventType.LLM_REQUEST_COMPLETED: lambda self, event: self._chat.completed(event),
        EventType.TOOL_REQUESTED: lambda self, event: self._tools.requested(event, self._step_of(event)),
        EventType.TOOL_COMPLETED: lambda self, event: self._tools.completed(event, self._step_of(event)),
        EventType.APPROVAL_REQUESTED: lambda self, event: self._tools.approval_requested(event),
        EventType.APPROVAL_RESOLVED: lambda self, event: self._tools.approval_resolved(event),
    }


# The last span of a process, kept for the process that resumes its session: that one links to it.

_MAX_BYTES = 1024


class _LastSpan:
    """{"traceId", "spanId"} in hexadecimal digits, in the file at `path`; "" stores nothing. A disk failure only loses
    the link."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> SpanContext | None:
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


class _DeliveredSpans(SpanExporter):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """Exports with `exporter`, and keeps the last span of each batch that the receiver took: a link to it leads
    somewhere, also after a kill."""

    def __init__(self, exporter: SpanExporter, last: _LastSpan) -> None:
        self._exporter = exporter
        self._last = last

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS and spans:
            self._last.write(spans[-1].get_span_context())
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


# _Spans and metrics of model calls and of tool calls, and how every span of a session begins and ends, at the times of
# events. `otel_export` has the spans around them.


# Spans and metrics of calls of models and tools, and how every span begins and ends, at the times of events.


class _Endpoint(NamedTuple):
    """The provider as the conventions name it, and the gateway's host and port if known."""

    provider: str
    address: str = ""
    port: int = 0

    @classmethod
    def of(cls, provider: str, gateway: str) -> _Endpoint:
        try:
            url = urlsplit(gateway)
            return cls(provider, url.hostname or "", url.port or (443 if url.scheme.lower() == "https" else 80))
        except ValueError:  # no request goes to such a URL
            return cls(provider)

    @property
    def server(self) -> dict[str, str | int]:
        return {"server.address": self.address, "server.port": self.port} if self.address else {}


class _SpanMaker:
    """Begins and ends the spans of one session. `now` is the time of the current event, in seconds since the epoch;
    `latest`: with the names of v0.1.0, in which the provider is on calls of the model alone."""

    def __init__(self, tracer: Tracer, endpoint: _Endpoint, *, latest: bool = False) -> None:
        self._tracer = tracer
        self.latest = latest
        self.written = "write" if latest else "creation"
        self._common = {} if latest else {"gen_ai.provider.name": endpoint.provider}
        self.now = 0.0

    def at(self, event: Event) -> None:
        self.now = event.at
        self._common["gen_ai.conversation.id"] = event.chain["sessionId"]

    def begin(
        self,
        name: str,
        parent: Span | None,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[SpanContext | None] = (),
        started: float | None = None,
    ) -> Span:
        """Start a span at `started`, else now. A link that is None is omitted."""
        # The thread's own context is not ours.
        context = trace.set_span_in_context(trace.INVALID_SPAN if parent is None else parent, Context())
        return self._tracer.start_span(
            name[:_MAX_CHARS],
            context,
            kind,
            {**self._common, **_cut(attributes)},
            links=[Link(link) for link in links if link is not None],
            start_time=_nanoseconds(self.now if started is None else started),
            record_exception=False,
        )

    def end(self, span: Span, error: str | None = None) -> None:
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_nanoseconds(self.now))


def _cut(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in attributes.items()}


def _nanoseconds(at: float) -> int:
    return int(at * 1_000_000_000)


class _ModelCalls:
    """The call of the model that is under way: `chat {model}`, from the request to the end of the answer, with all
    its retries."""

    def __init__(self, maker: _SpanMaker, meter: Meter, endpoint: _Endpoint) -> None:
        self._maker = maker
        self._endpoint = endpoint
        name = "inference" if maker.latest else "operation"
        self._durations = meter.create_histogram(
            f"gen_ai.client.{name}.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._count = _counts_by_kind(meter) if maker.latest else _counts_in_one(meter)
        self._span: Span | None = None
        self._started_at = 0.0
        self._measured: dict[str, Any] = {}

    def started(self, event: Event, step: Span) -> None:
        self.end("ASKED_AGAIN")  # in one step: shorter, or another model
        model = event.payload["model"]
        self._started_at = event.at
        self._measured = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._endpoint.provider,
            "gen_ai.request.model": model,
            **self._endpoint.server,
        }
        attributes = {**self._measured, "gen_ai.request.stream": True}
        if "maxOutputTokens" in event.payload:
            attributes["gen_ai.request.max_tokens"] = event.payload["maxOutputTokens"]
        self._span = self._maker.begin(f"chat {model}", step, attributes, kind=SpanKind.CLIENT)

    def retried(self, event: Event) -> None:
        if self._span is not None:
            payload = event.payload
            details = {"agent_host.retry.attempt": payload["attempt"], "agent_host.retry.wait_ms": payload["waitMs"]}
            self._span.add_event("agent_host.llm_retry", details, _nanoseconds(event.at))

    def completed(self, event: Event) -> None:
        """`llm_request_completed`: tokens and model of the answer, and the end of the span."""
        if self._span is None:
            return
        payload = event.payload
        attributes = {
            "gen_ai.usage.input_tokens": payload["inputTokens"],
            "gen_ai.usage.output_tokens": payload["outputTokens"],
            "gen_ai.usage.cache_read.input_tokens": payload["cachedInputTokens"],
            f"gen_ai.usage.cache_{self._maker.written}.input_tokens": payload.get("cacheWriteTokens", 0),
            "gen_ai.response.finish_reasons": [payload["stopReason"]],
        }
        if "responseId" in payload:
            attributes["gen_ai.response.id"] = payload["responseId"]
        if "responseModel" in payload:
            attributes["gen_ai.response.model"] = payload["responseModel"]
            self._measured |= _cut({"gen_ai.response.model": payload["responseModel"]})
        self._span.set_attributes(_cut(attributes))
        self._count(payload, self._measured)
        self.end(None)

    def end(self, error: str | None) -> None:
        """End the open span, if any; `error` if the answer was interrupted."""
        if self._span is not None:
            attributes = self._measured if error is None else {**self._measured, "error.type": error}
            self._durations.record(max(0.0, self._maker.now - self._started_at), attributes)
            self._maker.end(self._span, error)
            self._span = None


def _counts_in_one(meter: Meter) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """The metric of tokens of the conventions 1.41.0: one histogram by `gen_ai.token.type`."""
    tokens = _histogram(meter, "gen_ai.client.token.usage", "Number of input and output tokens used.")

    def count(payload: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
        for kind, field in _DIRECTIONS.items():
            tokens.record(payload[field], {**measured, "gen_ai.token.type": kind})

    return count


def _counts_by_kind(meter: Meter) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """The metrics of tokens of v0.1.0: a counter of each kind, whose modality gateways do not report, and a histogram
    of the tokens of one operation in each direction."""
    kinds = {**_DIRECTIONS, "cache_read.input": "cachedInputTokens", "cache_write.input": "cacheWriteTokens"}
    name = "gen_ai.client.inference"
    counters = {
        field: meter.create_counter(f"{name}.usage.{kind}_tokens", "{token}", f"Tokens used: {kind}.")
        for kind, field in kinds.items()
    }
    spreads = {
        field: _histogram(meter, f"{name}.operation.{kind}_tokens", f"Tokens of an operation: {kind}.")
        for kind, field in _DIRECTIONS.items()
    }

    def count(payload: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
        for field, counter in counters.items():
            if payload.get(field):
                counter.add(payload[field], {**measured, "gen_ai.token.modality": "unknown"})
        for field, spread in spreads.items():
            spread.record(payload[field], measured)

    return count


def _histogram(meter: Meter, name: str, description: str) -> Any:
    buckets = [4**power for power in range(14)]  # as the conventions advise
    return meter.create_histogram(name, "{token}", description, explicit_bucket_boundaries_advisory=buckets)


@dataclass(slots=True)
class _TracedCall:
    """A tool call that has no result yet. `ready` is when it could begin at the earliest, None while it waits for a
    person, which `wait` is the span of."""

    step: Span
    attributes: dict[str, Any]
    ready: float | None
    wait: Span | None = None


class _ToolCalls:
    """Tool calls in progress. `execute_tool {name}` lasts from the start of the call to its result; a call that does
    not run has one without duration. The wait for a person is a separate span, `agent_host.approval`.

    A span is created when it ends, because only the result contains the start of the call."""

    def __init__(self, maker: _SpanMaker, meter: Meter) -> None:
        self._maker = maker
        self._durations = meter.create_histogram(
            "gen_ai.execute_tool.duration", "s", "GenAI tool execution duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._counted = meter.create_counter("agent_host.tool.calls", "{call}", "Number of tool calls that ended.")
        self._native = {
            succeeded: meter.create_counter(f"cp_tool_{word}_total", "{call}", f"Native tool calls that {what}.")
            for succeeded, word, what in ((True, "success", "succeeded"), (False, "error", "did not succeed"))
        }
        self._calls: dict[str, _TracedCall] = {}

    def requested(self, event: Event, step: Span) -> None:
        """`tool_requested`: a new call; repeated for a call whose arguments were edited."""
        payload = event.payload
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": payload["toolName"],
            "gen_ai.tool.call.id": payload["toolCallId"],
            "gen_ai.tool.type": "function",
            **{attribute: payload[name] for name, attribute in _POLICY.items() if name in payload},
        }
        call = self._calls.setdefault(payload["toolCallId"], _TracedCall(step, {}, event.at))
        call.attributes |= attributes
        call.ready = event.at

    def approval_requested(self, event: Event) -> None:
        call = self._call_of(event)
        if call is not None:
            attributes = {"gen_ai.tool.call.id": event.payload["toolCallId"], **_approval(event)}
            call.wait = self._maker.begin("agent_host.approval", call.step, attributes)
            call.ready = None

    def approval_resolved(self, event: Event) -> None:
        """`approval_resolved`: the end of the wait; there was none in this process for an answer on record."""
        call = self._call_of(event)
        if call is not None:
            call.attributes |= _approval(event)
            call.ready = event.at
            if call.wait is not None:
                call.wait.set_attributes(_cut(_approval(event)))
                self._maker.end(call.wait)
                call.wait = None

    def _call_of(self, event: Event) -> _TracedCall | None:
        """The call that waits; None for a question in the middle of one, whose time is part of the call's."""
        return None if "isQuestion" in event.payload else self._calls.get(event.payload["toolCallId"])

    def completed(self, event: Event, step: Span) -> None:
        """`tool_completed`: the span of the call. One that another process requested begins and ends here."""
        payload = event.payload
        if payload["toolCallId"] not in self._calls:
            self.requested(event, step)
        call = self._calls.pop(payload["toolCallId"])
        call.attributes[_STATUS] = payload["status"]
        call.attributes["agent_host.tool.output_bytes"] = payload["outputBytes"]
        error = None if payload["status"] == "succeeded" else str(payload.get("code") or payload["status"])
        if self._maker.latest and "skill" in payload:
            call.attributes["gen_ai.skill.name"] = payload["skill"]
        if "exitCode" in payload:  # as in the conventions for the spans of programs, 0 alone is a success
            call.attributes["process.exit.code"] = payload["exitCode"]
            error = error or ("NON_ZERO_EXIT" if payload["exitCode"] else None)
        started = payload.get("startedAt")
        self._end(call, error, 0.0 if started is None else datetime.fromisoformat(started).timestamp())

    def end(self) -> None:
        for call in self._calls.values():
            if call.wait is not None:
                self._maker.end(call.wait, _INTERRUPTED)
            self._end(call, _INTERRUPTED, 0.0)
        self._calls.clear()

    def _end(self, call: _TracedCall, error: str | None, started: float) -> None:
        now = self._maker.now
        start = now if call.ready is None else min(now, max(call.ready, started))
        name = call.attributes["gen_ai.tool.name"]
        skill = f" {call.attributes['gen_ai.skill.name']}" if "gen_ai.skill.name" in call.attributes else ""
        agent = {"gen_ai.agent.name": _SCOPE} if self._maker.latest else {}
        attributes = {**call.attributes, **agent}
        span = self._maker.begin(f"execute_tool {name}{skill}", call.step, attributes, started=start)
        self._maker.end(span, error)
        measured = _cut({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **agent})
        measured = measured if error is None else {**measured, "error.type": error}
        self._durations.record(now - start, measured)
        status = call.attributes.get(_STATUS, _INTERRUPTED)
        self._counted.add(1, {**measured, "agent_host.tool.status": status})
        if name.startswith(_NATIVE):
            self._native[status == "succeeded"].add(1, measured)


def _approval(event: Event) -> dict[str, str]:
    attributes = {"agent_host.approval.id": event.payload["approvalId"]}
    if "decision" in event.payload:
        attributes["agent_host.approval.decision"] = event.payload["decision"]
    return attributes
