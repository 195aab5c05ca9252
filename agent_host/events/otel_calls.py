"""Spans and metrics of model calls and of tool calls; `otel_spans.py` has those around them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from agent_host.events.otel_parts import INTERRUPTED, SECONDS, cut, nanoseconds

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span

    from agent_host.events.emitter import Event
    from agent_host.events.otel_parts import Endpoint, SpanMaker

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


class ModelCalls:
    """The call of the model that is under way: `chat {model}`, from the request to the end of the answer, with all
    its retries."""

    def __init__(self, maker: SpanMaker, meter: Meter, endpoint: Endpoint) -> None:
        self._maker = maker
        self._endpoint = endpoint
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip
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
            "gen_ai.usage.cache_creation.input_tokens": payload.get("cacheWriteTokens", 0),
            "gen_ai.response.finish_reasons": [payload["stopReason"]],
        }
        if "responseId" in payload:
            attributes["gen_ai.response.id"] = payload["responseId"]
        if "responseModel" in payload:
            attributes["gen_ai.response.model"] = payload["responseModel"]
            self._measured |= cut({"gen_ai.response.model": payload["responseModel"]})
        self._span.set_attributes(cut(attributes))
        for kind, field in (("input", "inputTokens"), ("output", "outputTokens")):
            self._tokens.record(payload[field], {**self._measured, "gen_ai.token.type": kind})
        self.end(None)

    def end(self, error: str | None) -> None:
        """End the span, where one is open; `error` where the answer did not come to its end."""
        if self._span is not None:
            attributes = self._measured if error is None else {**self._measured, "error.type": error}
            self._durations.record(max(0.0, self._maker.now - self._began), attributes)
            self._maker.end(self._span, error)
            self._span = None


@dataclass(slots=True)
class _Call:
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
        self._calls: dict[str, _Call] = {}

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
        call = self._calls.setdefault(payload["toolCallId"], _Call(step, {}, event.at))
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

    def _call_of(self, event: Event) -> _Call | None:
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

    def _end(self, call: _Call, error: str | None, started: float) -> None:
        now = self._maker.now
        began = now if call.ready is None else min(now, max(call.ready, started))
        name = call.attributes["gen_ai.tool.name"]
        span = self._maker.begin(f"execute_tool {name}", call.step, call.attributes, began=began)
        self._maker.end(span, error)
        measured = cut({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name})
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
