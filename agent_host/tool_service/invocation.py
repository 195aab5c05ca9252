"""One invocation, from an authenticated request to a recorded answer (BT, "Tool Invocation Flow")."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from agent_host.capability_grants import KEY_VARIABLE, GrantRefused, verify
from agent_host.contracts import Artifact
from agent_host.errors import ErrorCode
from agent_host.events import EventType
from agent_host.events.emitter import Event
from agent_host.events.outbox import BatchedSink
from agent_host.events.payloads import AuditRecords, telemetry_line
from agent_host.ids import rfc3339
from agent_host.services.http import HttpEventService
from agent_host.tool_service.answers import IdempotencyScope, Known
from agent_host.tool_service.tool import Call, HttpRefusal, Output, ToolFault
from config import json_text
from config.shapes import OBJECT, Leaf, Record, Text, first_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.capability_grants import CapabilityGrant
    from agent_host.services.http import ServiceClient
    from agent_host.tool_service.answers import MemoryAnswers
    from agent_host.tool_service.postgres import PostgresAnswers
    from agent_host.tool_service.tenants import ServedTenant, TenantTool

    Answers = MemoryAnswers | PostgresAnswers

_ID: Final = Leaf(
    "1 to 128 of A-Z a-z 0-9 _ -",
    lambda value: type(value) is str and 0 < len(value) <= 128 and value.replace("_", "a").replace("-", "a").isalnum()
    and value.isascii(),
)  # fmt: skip
MAX_KEY_CHARS: Final = 256
_REQUEST: Final = Record(
    {
        "sessionId": _ID,
        "taskId": Text(1, 128),
        "stepId": Text(1, 128),
        "workspaceId": _ID,
        "toolName": Text(1, 128),
        "arguments": OBJECT,
    }
)
_LOOK: Final = "its effects are unknown. Inspect what it may have changed before you call it again"
_LOST: Final = f"the service was stopped while the call ran, or its answer is not kept any more: {_LOOK}"
_STOPPED: Final = f"the service was stopped, and the time for calls to end was over: {_LOOK}"


class InvocationRequest(NamedTuple):
    """An unparsed request for an invocation: the tool of the path, the body's bytes, and headers."""

    tool_name: str
    body: bytes
    grant: str | None
    key: str | None
    epoch: str | None


class InvocationResult(NamedTuple):
    """The outcome of a tool's run: a status, text or an error (its code and message), and the URIs of stored
    artifacts."""

    status: str
    text: str | None
    error: tuple[str, str] | None
    artifact_uris: tuple[str, ...] = ()

    def body(self, call: Call) -> bytes:
        """Return the ToolResult of BT as JSON; BT allows no other fields in it."""
        wire: dict[str, Any] = {
            "toolName": call.tool_name,
            "sessionId": call.session_id,
            "taskId": call.task_id,
            "stepId": call.step_id,
            "status": self.status,
        }
        if self.text is not None:
            wire["outputText"] = self.text
        if self.artifact_uris:
            wire["artifactUris"] = list(self.artifact_uris)
        if self.error is not None:
            wire["error"] = {"code": self.error[0], "message": self.error[1]}
        return orjson.dumps(wire)


class Invoker(NamedTuple):
    """Runs invocations. `key` is the key of grants; `clock` returns seconds since the Unix epoch."""

    key: bytes
    answers: Answers
    watchers: Watchers
    metrics: Metrics
    clock: Callable[[], float] = time.time

    async def invoke(self, tenant: ServedTenant, request: InvocationRequest) -> bytes:
        """Run an invocation and return its ToolResult as JSON. Raises HttpRefusal if no tool ran."""
        tool = tool_of(tenant, request.tool_name)
        grant = self.read_grant(tenant, request.tool_name, request.grant)
        call = _call(tenant, request, grant)
        wrong = tool.judge(call.arguments)
        if wrong is not None:
            return _failed(ErrorCode.INVALID_REQUEST, f"the arguments are wrong: {wrong}").body(call)
        if request.epoch is not None and request.epoch != self.answers.epoch:
            message = "the service has started anew and may not know of the call any more"
            raise HttpRefusal(412, ErrorCode.TOOL_INTERRUPTED, message)
        fingerprint = hashlib.sha256(orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
        place = None if call.key is None else IdempotencyScope(tenant.name, call.session_id, call.tool_name, call.key)
        with tenant.admission.enter():
            known = Known("new")
            if place is not None:
                known = await self.answers.claim(place, fingerprint, repeatable=tool.kind.repeatable)
            if place is None or known.state == "new":
                return await self._run_first(tenant, tool, call, fingerprint, place)
        self.metrics.repeated.labels(tenant.name).inc()
        return await self._answer_known(call, place, known)

    def read_grant(self, tenant: ServedTenant, tool_name: str, text: str | None) -> CapabilityGrant:
        """Verify the grant of a request. Raises HttpRefusal 403 if it does not allow this tenant to use the tool
        now."""
        try:
            if not text:
                raise GrantRefused(f"a capability grant is needed: the host signs one where it has {KEY_VARIABLE}")
            grant = verify(text, self.key)
            if grant.tenant_id != tenant.name:
                raise GrantRefused(
                    "the capability grant is not for this tenant: tenantId of the session's policy must be the name of "
                    "the tenant whose token is sent"
                )
            now = self.clock()
            if grant.expires_at <= now:
                raise GrantRefused(
                    f"the capability grant has expired; this service's clock is at {rfc3339(now)}: if it was signed "
                    "just now, the clocks differ"
                )
            if tool_name not in grant.tool_names:
                raise GrantRefused("the capability grant does not name this tool")
        except GrantRefused as refused:
            raise HttpRefusal(403, ErrorCode.CAPABILITY_DENIED, str(refused)) from None
        return grant

    async def _run_first(
        self, tenant: ServedTenant, tool: TenantTool, call: Call, fingerprint: str, place: IdempotencyScope | None
    ) -> bytes:
        try:
            slot = await tenant.admission.acquire()
        except BaseException as error:
            if place is not None:
                await self.answers.release(place)  # it never started
            if isinstance(error, asyncio.CancelledError):
                message = "the service is being stopped; the tool did not run"
                raise HttpRefusal(503, ErrorCode.INTERNAL_ERROR, message, retry_after_s=1) from None
            raise
        try:
            body = await self._run(tenant, tool, call, fingerprint)
            if place is not None:
                await self.answers.answer(place, body)
            return body
        finally:
            await tenant.admission.release(slot)

    async def _answer_known(self, call: Call, place: IdempotencyScope, known: Known) -> bytes:
        if known.state == "other_arguments":
            message = "this idempotency key was sent before, for other arguments of the tool"
            raise HttpRefusal(409, ErrorCode.INVALID_REQUEST, message)
        if known.state == "running":
            found = await self.answers.wait(place, call.timeout_s)
            if found is None or found.state == "running":
                message = "the call of this key still runs; ask again"
                raise HttpRefusal(503, ErrorCode.TOOL_EXECUTION_TIMEOUT, message, retry_after_s=1)
            known = found
        if known.state == "answered" and known.body is not None:
            return known.body
        return _failed(ErrorCode.TOOL_INTERRUPTED, _LOST).body(call)  # its outcome is unknown

    async def _run(self, tenant: ServedTenant, tool: TenantTool, call: Call, fingerprint: str) -> bytes:
        requested = self.watchers.requested(call, fingerprint, high_risk=tool.kind.high_risk)
        start = time.perf_counter()
        running = self.metrics.running.labels(tenant.name)
        running.inc()
        try:
            result = await self._result(tenant, tool, call)
        finally:
            running.dec()
        names = (tenant.name, call.tool_name)
        self.metrics.seconds.labels(*names).observe(time.perf_counter() - start)
        self.metrics.calls.labels(*names, result.status, "" if result.error is None else result.error[0]).inc()
        self.watchers.completed(call, requested, result, high_risk=tool.kind.high_risk)
        return result.body(call)

    async def _result(self, tenant: ServedTenant, tool: TenantTool, call: Call) -> InvocationResult:
        try:
            async with asyncio.timeout(call.timeout_s):
                output = await tool.running.run(call)
                return await _store(tenant, call, output)
        except ToolFault as fault:
            return _failed(fault.code, fault.message)
        except asyncio.CancelledError:  # only by uvicorn, when the drain time is over; the caller gets an answer
            return _failed(ErrorCode.TOOL_INTERRUPTED, _STOPPED)
        except TimeoutError:
            return _failed(ErrorCode.TOOL_EXECUTION_TIMEOUT, f"the tool did not end within {call.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  a foreign tool's message may contain configuration
            return _failed(ErrorCode.INTERNAL_ERROR, f"the tool failed ({type(error).__name__})")


def _failed(code: str, message: str) -> InvocationResult:
    return InvocationResult("failed", None, (code, message))


def tool_of(tenant: ServedTenant, name: str) -> TenantTool:
    """Return the tenant's tool. Raises HttpRefusal 404."""
    tool = tenant.tools.get(name)
    if tool is None:
        raise HttpRefusal(404, ErrorCode.TOOL_NOT_FOUND, "the tenant has no tool of this name")
    return tool


def _call(tenant: ServedTenant, request: InvocationRequest, grant: CapabilityGrant) -> Call:
    """Parse and check the call of a request. Raises HttpRefusal."""
    try:
        body = json_text.loads(request.body)
    except orjson.JSONDecodeError:
        raise HttpRefusal(400, ErrorCode.INVALID_REQUEST, "the body is not JSON") from None
    problem = first_problem(_REQUEST, body)
    if problem is not None:
        raise HttpRefusal(400, ErrorCode.INVALID_REQUEST, problem.sentence)
    if body["toolName"] != request.tool_name:
        raise HttpRefusal(400, ErrorCode.INVALID_REQUEST, "toolName is not the tool of the path")
    if body["sessionId"] != grant.session_id:
        raise HttpRefusal(403, ErrorCode.CAPABILITY_DENIED, "the capability grant is for another session")
    if grant.workspace_id and body["workspaceId"] != grant.workspace_id:
        raise HttpRefusal(403, ErrorCode.CAPABILITY_DENIED, "the capability grant is for another workspace")
    session, task, step, workspace = (body[name] for name in ("sessionId", "taskId", "stepId", "workspaceId"))
    name, key, timeout_s = request.tool_name, request.key, tenant.limits.timeout_s
    return Call(tenant.name, session, task, step, workspace, name, body["arguments"], key, grant.user_id, timeout_s)


async def _store(tenant: ServedTenant, call: Call, output: Output) -> InvocationResult:
    """Return the result of an output. Large text is stored, and the result's text names its URI. If storing fails, the
    result is a failure with as much of the text as fits."""
    limits, encoded = tenant.limits, output.text.encode("utf-8", "replace")
    is_inline = len(encoded) <= limits.max_inline_bytes
    text = output.text if is_inline else encoded[: limits.max_inline_bytes].decode("utf-8", "ignore")
    artifacts = list(output.artifacts)
    if not is_inline:
        name = f"{call.tool_name}-output.txt"
        artifacts.append(Artifact("tool_output", name, "text/plain; charset=utf-8", encoded))
    uris: list[str] = []
    try:
        total = sum(artifact.size for artifact in artifacts)
        if total > limits.max_stored_bytes:
            message = f"the output has {total:,} bytes, and {limits.max_stored_bytes:,} of a call are stored"
            raise ToolFault(ErrorCode.FILE_TOO_LARGE, message)
        for artifact in artifacts:
            uris.append(await tenant.storage.store(call, artifact))  # noqa: PERF401  on failure, keeps those stored
    except ToolFault as fault:
        cut = text if is_inline else f"{text}\n[cut: {len(encoded):,} bytes in all; the rest is lost]"
        return InvocationResult("failed", cut, (fault.code, f"the tool has run, but {fault.message}"), tuple(uris))
    finally:
        for artifact in output.artifacts:
            artifact.close()
    if not is_inline:
        text = f"{text}\n[cut: {len(encoded):,} bytes in all; the whole output is stored as {uris[-1]}]"
    return InvocationResult("succeeded", text, None, tuple(uris))


# Reports on calls to the Telemetry Service and the Audit Service (BT, "Tool Invocation Flow"), and the metrics that
# Prometheus reads.
#
# Calls do not wait for them: events are queued in bounded queues, and lost events are counted.

CAPABILITY: Final = "BackendTool.Invoke"
METRICS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of the directory in which several workers combine their metrics; prometheus_client reads it."""
_WANTED: Final = frozenset({EventType.TOOL_REQUESTED, EventType.TOOL_COMPLETED})
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Metrics for Prometheus. Labels are names from the configuration, so their number is bounded."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        if os.environ.get(METRICS_DIRECTORY):
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]  # the library's
            own = CollectorRegistry()  # its values are read from the directory
        else:
            own = self._registry
        names = ("tenant", "tool")
        # `_total` is added to the names of counters.
        self.calls = Counter("agent_host_tool_calls", "Calls that ran", (*names, "status", "code"), registry=own)
        self.seconds = Histogram(
            "agent_host_tool_call_seconds", "How long calls took", names, buckets=_BUCKETS, registry=own
        )
        self.running = Gauge(
            "agent_host_tool_calls_running", "Calls that run", ("tenant",), registry=own, multiprocess_mode="livesum"
        )
        self.refused = Counter("agent_host_tool_requests_refused", "Requests refused", ("status",), registry=own)
        self.repeated = Counter(
            "agent_host_tool_calls_repeated", "Requests answered from a key that was known", ("tenant",), registry=own
        )
        self.lost_events = Gauge(
            "agent_host_events_lost", "Events that a service did not get", ("service",), registry=own,
            multiprocess_mode="livesum",
        )  # fmt: skip

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class CallEvent(Event):
    """An event of this service. `requested` is the event that starts the call's record in the Audit Service."""

    requested: CallEvent | None = None

    def envelope_of(self, payload: dict[str, Any]) -> dict[str, Any]:
        """See Event."""
        return {**super().envelope_of(payload), "component": "BackendToolService"}


def _audit_record(event: Event) -> bytes | None:
    """Return the record of one call (SK 7). No state is shared between calls, because ids are unique only within a
    session."""
    records = AuditRecords()
    if not isinstance(event, CallEvent) or event.requested is None:
        return None
    records(event.requested)
    return records(event)


class Watchers:
    """Reports calls to the services. `telemetry` and `audit` may each be None."""

    def __init__(self, telemetry: ServiceClient | None, audit: ServiceClient | None, metrics: Metrics) -> None:
        self._clients = [client for client in (telemetry, audit) if client is not None]
        self._telemetry = self._audit = None
        if telemetry is not None:
            post = HttpEventService(telemetry, "/telemetry/events").post
            self._telemetry = BatchedSink(post, _WANTED, shape=telemetry_line)
        if audit is not None:
            post = HttpEventService(audit, "/audit/events").post
            self._audit = BatchedSink(post, _WANTED, shape=_audit_record)
        self._metrics = metrics
        self._numbers = itertools.count(1)

    def requested(self, call: Call, fingerprint: str, *, high_risk: bool) -> CallEvent:
        """Report a call that is about to run; `fingerprint` is the SHA-256 of its arguments."""
        payload = {
            "toolCallId": call.key or f"{call.task_id}/{call.step_id}",
            "toolName": call.tool_name,
            "capability": CAPABILITY,
            "argumentsSha256": fingerprint,
            "decision": "ALLOWED",
            "riskLevel": "high" if high_risk else "low",
        }
        event = self._event(EventType.TOOL_REQUESTED, payload, call)
        if self._telemetry is not None:
            self._telemetry.take(event)
        return event

    def completed(self, call: Call, requested: CallEvent, result: InvocationResult, *, high_risk: bool) -> None:
        """Report a call that has ended; `requested` is the event of its start."""
        text = (result.text or "").encode()
        payload: dict[str, Any] = {
            "toolCallId": requested.payload["toolCallId"],
            "toolName": call.tool_name,
            "status": result.status,
            "startedAt": rfc3339(requested.at),
            "outputBytes": len(text),
            "outputSha256": hashlib.sha256(text).hexdigest(),
            "latencyMs": round((time.time() - requested.at) * 1000),
        }
        if result.error is not None:
            payload["code"] = result.error[0]
        if result.artifact_uris:
            payload["artifactUris"] = list(result.artifact_uris)
        event = self._event(EventType.TOOL_COMPLETED, payload, call)
        event.requested = requested
        for name, sink in (("telemetry", self._telemetry), ("audit", self._audit if high_risk else None)):
            if sink is not None:
                sink.take(event)
                self._metrics.lost_events.labels(name).set(sink.dropped)

    async def aclose(self, timeout_s: float) -> None:
        """Deliver queued events for at most `timeout_s`, then close the clients."""
        sinks = [sink for sink in (self._telemetry, self._audit) if sink is not None]
        await asyncio.gather(*(sink.aclose(timeout_s) for sink in sinks))
        await asyncio.gather(*(client.aclose() for client in self._clients))

    def _event(self, kind: EventType, payload: dict[str, Any], call: Call) -> CallEvent:
        names = ("tenantId", "userId", "workspaceId", "sessionId")
        chain = dict(zip(names, (call.tenant, call.user_id, call.workspace_id, call.session_id), strict=True))
        number = next(self._numbers)
        return CallEvent(number, kind, payload, chain, at=time.time(), task_id=call.task_id, step_id=call.step_id)
