"""Spans and metrics of model calls and of tool calls, and how every span of a session begins and ends, at the times
of events. `otel_export` has the spans around them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    from agent_host.events.emitter import Event

SCOPE = "agent-host"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The names of attributes and metrics are those of this version, the last one of the conventions for generative AI for
which OpenTelemetry has published a schema. Later ones rename some of them."""
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
LATEST = "gen_ai_latest_experimental"
"""The word in that variable for the names of v0.1.0 of the conventions for generative AI in their own repository, which
publishes no schema. docs/opentelemetry.md has both."""
INTERRUPTED = "interrupted"
"""`error.type` of what did not come to its own end."""
SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
"""The buckets that the conventions advise for durations."""
# As in `telemetry.py`: a model may call a tool by any name, however long.
_MAX_CHARS = 128

NON_ZERO_EXIT = "NON_ZERO_EXIT"
"""`error.type` of a command that ran to its end and says that it failed."""
ASKED_AGAIN = "ASKED_AGAIN"
"""`error.type` of a model call that was given up for another one in its step."""
_TOKENS = [4**power for power in range(14)]  # what the conventions advise
_STATUS = "agent_host.tool.status"
_POLICY = {
    "capability": "agent_host.policy.capability",
    "decision": "agent_host.policy.decision",
    "riskLevel": "agent_host.policy.risk_level",
}

_NATIVE = "cp__"
"""The beginning of the names of the native tools, which NT counts by themselves."""


def is_latest(opted_in: str) -> bool:
    """True if the comma-separated list asks for the latest names."""
    return LATEST in (word.strip() for word in opted_in.split(","))


class Endpoint(NamedTuple):
    """Whom the spans are about: the provider in the words of the conventions, and the gateway's host and port, where
    they are known."""

    provider: str
    address: str = ""
    port: int = 0

    @property
    def server(self) -> dict[str, str | int]:
        """The attributes of the gateway; none where its address is not known."""
        return {"server.address": self.address, "server.port": self.port} if self.address else {}


class SpanMaker:
    """Begins and ends the spans of one session. `now` is the time of the current event, in seconds since the epoch;
    `latest`: with the names of v0.1.0, in which the provider is on calls of the model alone."""

    def __init__(self, tracer: Tracer, endpoint: Endpoint, *, latest: bool = False) -> None:
        self._tracer = tracer
        self.latest = latest
        self.written = "write" if latest else "creation"
        self._common = {} if latest else {"gen_ai.provider.name": endpoint.provider}
        self.now = 0.0

    def at(self, event: Event) -> None:
        """Take the time of the event, and the session that it is of."""
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
        began: float | None = None,
    ) -> Span:
        """A span that began at `began`, else now. A link that is None is left out."""
        # Whatever the thread's own context holds is not ours.
        context = set_span_in_context(INVALID_SPAN if parent is None else parent, Context())
        return self._tracer.start_span(
            name[:_MAX_CHARS],
            context,
            kind,
            {**self._common, **cut(attributes)},
            links=[Link(link) for link in links if link is not None],
            start_time=nanoseconds(self.now if began is None else began),
            record_exception=False,
        )

    def end(self, span: Span, error: str | None = None) -> None:
        """End the span now, with `error` as the type of what went wrong."""
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(nanoseconds(self.now))


def cut(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes, strings cut to 128 characters."""
    return {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in attributes.items()}


def nanoseconds(at: float) -> int:
    """Seconds since the epoch as the SDK takes them."""
    return int(at * 1_000_000_000)


class ModelCalls:
    """The call of the model that is under way: `chat {model}`, from the request to the end of the answer, with all
    its retries."""

    def __init__(self, maker: SpanMaker, meter: Meter, endpoint: Endpoint) -> None:
        self._maker = maker
        self._endpoint = endpoint
        name = "inference" if maker.latest else "operation"
        self._durations = meter.create_histogram(
            f"gen_ai.client.{name}.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip
        self._count = _counts_by_kind(meter) if maker.latest else _counts_in_one(meter)
        self._span: Span | None = None
        self._began = 0.0
        self._measured: dict[str, Any] = {}

    def started(self, event: Event, step: Span) -> None:
        """`llm_request_started`: a span below that of the step."""
        self.end(ASKED_AGAIN)  # in one step: shorter, or another model
        model = event.payload["model"]
        self._began = event.at
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
        """`llm_retry`: an event of the span."""
        if self._span is not None:
            details = {
                "agent_host.retry.attempt": event.payload["attempt"],
                "agent_host.retry.wait_ms": event.payload["waitMs"],
            }
            self._span.add_event("agent_host.llm_retry", details, nanoseconds(event.at))

    def completed(self, event: Event) -> None:
        """`llm_request_completed`: what the answer cost, who gave it, and the end of the span."""
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
            self._measured |= cut({"gen_ai.response.model": payload["responseModel"]})
        self._span.set_attributes(cut(attributes))
        self._count(payload, self._measured)
        self.end(None)

    def end(self, error: str | None) -> None:
        """End the span, where one is open; `error` where the answer did not come to its end."""
        if self._span is not None:
            attributes = self._measured if error is None else {**self._measured, "error.type": error}
            self._durations.record(max(0.0, self._maker.now - self._began), attributes)
            self._maker.end(self._span, error)
            self._span = None


def _counts_in_one(meter: Meter) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """The metric of tokens of the conventions 1.41.0: one histogram by `gen_ai.token.type`."""
    tokens = meter.create_histogram(
        "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
        explicit_bucket_boundaries_advisory=_TOKENS,
    )  # fmt: skip

    def count(payload: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
        for kind, field in (("input", "inputTokens"), ("output", "outputTokens")):
            tokens.record(payload[field], {**measured, "gen_ai.token.type": kind})

    return count


def _counts_by_kind(meter: Meter) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """The metrics of tokens of v0.1.0: a counter of each kind, whose modality no gateway says, and a histogram of the
    tokens of one operation in each direction."""
    kinds = {"input": "inputTokens", "output": "outputTokens",
             "cache_read.input": "cachedInputTokens", "cache_write.input": "cacheWriteTokens"}  # fmt: skip
    counters = {
        field: meter.create_counter(f"gen_ai.client.inference.usage.{kind}_tokens", "{token}", f"Tokens used: {kind}.")
        for kind, field in kinds.items()
    }
    spreads = {
        field: meter.create_histogram(
            f"gen_ai.client.inference.operation.{kind}_tokens", "{token}", f"Tokens of an operation: {kind}.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        ) for kind, field in (("input", "inputTokens"), ("output", "outputTokens"))
    }  # fmt: skip

    def count(payload: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
        for field, counter in counters.items():
            if payload.get(field):
                counter.add(payload[field], {**measured, "gen_ai.token.modality": "unknown"})
        for field, spread in spreads.items():
            spread.record(payload[field], measured)

    return count


@dataclass(slots=True)
class _TracedCall:
    """A tool call that has no result yet. `ready` is when it could begin at the earliest, None while it waits for a
    person, which `wait` is the span of."""

    step: Span
    attributes: dict[str, Any]
    ready: float | None
    wait: Span | None = None


class ToolCalls:
    """The tool calls that are under way. `execute_tool {name}` lasts from when the call began to run to its result; a
    call that is not run has one without duration. The wait for a person is `agent_host.approval`, a span beside it.

    A span is made when its end is known, since only the result says when the call began."""

    def __init__(self, maker: SpanMaker, meter: Meter) -> None:
        self._maker = maker
        self._durations = meter.create_histogram(
            "gen_ai.execute_tool.duration", "s", "GenAI tool execution duration.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip
        self._counted = meter.create_counter("agent_host.tool.calls", "{call}", "Number of tool calls that ended.")
        self._native = {
            succeeded: meter.create_counter(f"cp_tool_{word}_total", "{call}", f"Native tool calls that {what}.")
            for succeeded, word, what in ((True, "success", "succeeded"), (False, "error", "did not succeed"))
        }
        self._calls: dict[str, _TracedCall] = {}

    def requested(self, event: Event, step: Span) -> None:
        """`tool_requested`: the call is known; again for one whose arguments were edited."""
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
        """`approval_requested`: the wait for a person begins."""
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
                call.wait.set_attributes(cut(_approval(event)))
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
            error = error or (NON_ZERO_EXIT if payload["exitCode"] else None)
        self._end(call, error, _seconds(payload.get("startedAt")))

    def end(self) -> None:
        """End the spans of all calls that have no result."""
        for call in self._calls.values():
            if call.wait is not None:
                self._maker.end(call.wait, INTERRUPTED)
            self._end(call, INTERRUPTED, 0.0)
        self._calls.clear()

    def _end(self, call: _TracedCall, error: str | None, started: float) -> None:
        now = self._maker.now
        began = now if call.ready is None else min(now, max(call.ready, started))
        name = call.attributes["gen_ai.tool.name"]
        skill = f" {call.attributes['gen_ai.skill.name']}" if "gen_ai.skill.name" in call.attributes else ""
        agent = {"gen_ai.agent.name": SCOPE} if self._maker.latest else {}
        attributes = {**call.attributes, **agent}
        span = self._maker.begin(f"execute_tool {name}{skill}", call.step, attributes, began=began)
        self._maker.end(span, error)
        measured = cut({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **agent})
        measured = measured if error is None else {**measured, "error.type": error}
        self._durations.record(now - began, measured)
        status = call.attributes.get(_STATUS, INTERRUPTED)
        self._counted.add(1, {**measured, "agent_host.tool.status": status})
        if name.startswith(_NATIVE):
            self._native[status == "succeeded"].add(1, measured)


def _approval(event: Event) -> dict[str, str]:
    attributes = {"agent_host.approval.id": event.payload["approvalId"]}
    if "decision" in event.payload:
        attributes["agent_host.approval.decision"] = event.payload["decision"]
    return attributes


def _seconds(moment: str | None) -> float:
    """A moment in RFC 3339 in seconds since the epoch; 0 without one."""
    return 0.0 if moment is None else datetime.fromisoformat(moment).timestamp()
