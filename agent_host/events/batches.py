"""Events on their way to a service (AH 12): in batches and in order, retried until the service has them.

The Audit Service gets records made of them (SK 7): one for each tool call, and who approved what, as it was said. Use:
`BatchedSink(post, AUDIT_EVENTS, shape=AuditRecords())`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import AgentHostError
from agent_host.events import EventType
from agent_host.ids import rfc3339

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Sequence

    from agent_host.events.emitter import Event

_RETRY_AT_THE_END_S = 0.1
_AS_THEY_ARE = frozenset(
    {
        EventType.SESSION_STARTED,
        EventType.SESSION_RESUMED,
        EventType.SESSION_PAUSED,
        EventType.SESSION_COMPLETED,
        EventType.SESSION_FAILED,
        EventType.SESSION_CANCELLED,
        EventType.TASK_STARTED,
        EventType.TASK_COMPLETED,
        EventType.TASK_FAILED,
        EventType.TASK_CANCELLED,
        EventType.APPROVAL_REQUESTED,
        EventType.APPROVAL_RESOLVED,
        EventType.APPROVAL_TIMEOUT,
        EventType.POLICY_EXPIRED,
    }
)
AUDIT_EVENTS = _AS_THEY_ARE | {EventType.TOOL_REQUESTED, EventType.TOOL_COMPLETED, EventType.ARTIFACT_UPLOADED}
"""Events that are audit records or that audit records are made from."""

# What a record takes from the request: a hash and a summary of the arguments, and not these.
_ASKED = ("capability", "riskLevel", "summary", "argumentsSha256", "decision", "rule", "grantedBy")
# How far an approval reaches, in the words of SK 3.3.
_SCOPES: Final = {"once": "once", "task": "run", "session": "session"}
# Calls that are under way, and answers that later calls may refer to. A host has far fewer of both.
_MAX_REMEMBERED = 4096


class BatchedSink:
    """Hands events of the types `wanted` to `post`, from one background task of the running loop.

    `post` takes up to `max_batch` encoded events, each with its newline, and raises AgentHostError when the service did
    not take them: the same batch is then tried again, after a time that doubles from `retry_base_s` to `retry_max_s`.
    `shape` says how an event is sent, None for not at all; without it the event goes as it is. What waits is bounded by
    `max_pending` and `max_pending_bytes`, and the oldest goes first, except for a batch that is being posted; `dropped`
    counts what the service never got.
    """

    def __init__(
        self,
        post: Callable[[Sequence[bytes]], Awaitable[None]],
        wanted: Container[EventType],
        *,
        max_batch: int = 200,
        max_wait_s: float = 1.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 16 * 1024 * 1024,
        retry_base_s: float = 0.5,
        retry_max_s: float = 30.0,
        shape: Callable[[Event], bytes | None] | None = None,
    ) -> None:
        self._post = post
        self._wanted = wanted
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._retry_s = (retry_base_s, retry_max_s)
        self._shape = shape
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._posting: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self.dropped = 0

    def take(self, event: Event) -> None:
        """Queue the event. The background task starts with the first one."""
        if event.event_type not in self._wanted or self._closing.is_set():
            return
        line = event.line() if self._shape is None else self._shape(event)
        if line is None:
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        while len(self._pending) > self._max_pending or self._pending_bytes > self._max_pending_bytes:
            self._pending_bytes -= len(self._pending.popleft())
            self.dropped += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="events to a service")
        elif len(self._pending) == 1 or len(self._pending) >= self._max_batch:
            self._wake.set()

    def flush(self) -> None:
        """A batch goes when it is full or its time has come; nobody waits for it."""

    async def aclose(self, timeout_s: float) -> None:
        """Post what is pending within `timeout_s`, else give it up and count it as dropped."""
        self._closing.set()
        self._wake.set()
        task = self._task
        if task is not None:
            try:
                await asyncio.wait([task], timeout=timeout_s)
            finally:
                if task.cancel():
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                self.dropped += len(self._pending) + len(self._posting)
                self._pending.clear()
                self._posting = []

    async def _run(self) -> None:
        while await self._batch_is_due():
            self._posting = [self._pending.popleft() for _ in range(min(self._max_batch, len(self._pending)))]
            self._pending_bytes -= sum(map(len, self._posting))
            await self._deliver()

    async def _batch_is_due(self) -> bool:
        """Wait for the next batch; False when all is sent and no more comes."""
        while not self._pending:
            if self._closing.is_set():
                return False
            await self._woken()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_s):
                while len(self._pending) < self._max_batch and not self._closing.is_set():
                    await self._woken()
        return True

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _deliver(self) -> None:
        """Post the batch until it is taken."""
        base_s, max_s = self._retry_s
        wait_s = base_s
        while True:
            try:
                await self._post(self._posting)
            except AgentHostError:
                await self._back_off(wait_s)
                wait_s = min(wait_s * 2, max_s)
            else:
                self._posting = []
                return

    async def _back_off(self, wait_s: float) -> None:
        """Wait before the next try. Closing cuts the wait short, and lets no other one get long."""
        if self._closing.is_set():
            await asyncio.sleep(min(wait_s, _RETRY_AT_THE_END_S))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closing.wait()


class AuditRecords:
    """The shape of audit events. `tool_requested` and the answer are kept until the call's `tool_completed`, which then
    carries the record of SK 7 for its payload:

        {toolCallId, tool, capability?, risk?, ts_start, ts_end, params {summary?, sha256?}, result {ok, status, code?,
        exit_code?, bytes, stdout_ref?, stderr_ref?, storage_refs?, artifact_uris?}, policy {decision?, rule?,
        approved?, approval_scope?, approval_id?}, hashes {output_sha256, stdout_sha256?, stderr_sha256?,
        stored_sha256?}}

    All fields but `toolCallId`, which other events have as well, are named as in SK 7. `approval_scope` is `once`,
    `run` (the task) or `session`, of what was approved. Other outputs than these two streams have names of their own
    in the same way (`body_ref`, `body_sha256`).

    `ts_start` is when the call began to run; for one that did not, when it was requested. A call that another process
    requested has what its end says. An artifact that is uploaded later has a record of its own: `artifact_uploaded`
    with {toolCallId, artifactUri, storageRef?}. The session's history has none, since it belongs to no action.
    """

    def __init__(self) -> None:
        self._requested: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}

    def __call__(self, event: Event) -> bytes | None:
        """The event as the Audit Service gets it; None for what only goes into a later record."""
        payload = event.payload
        if event.event_type is EventType.TOOL_REQUESTED:
            asked = {name: payload[name] for name in _ASKED if name in payload}
            _remember(self._requested, payload["toolCallId"], {**asked, "at": rfc3339(event.at)})
            return None
        if event.event_type is EventType.TOOL_COMPLETED:
            return event.encode(event.envelope_of(self._record(event)))
        if event.event_type is EventType.ARTIFACT_UPLOADED:
            return event.encode(event.envelope_of(_upload_fields(payload))) if "toolCallId" in payload else None
        if event.event_type is EventType.APPROVAL_RESOLVED and "isQuestion" not in payload:
            policy = _policy(payload["decision"] == "approved", payload["scope"], payload["approvalId"])
            _remember(self._answers, payload["approvalId"], policy)
            _remember(self._answers, payload["toolCallId"], policy)
        return event.line()

    def _record(self, event: Event) -> dict[str, Any]:
        done = event.payload
        call_id = done["toolCallId"]
        asked = self._requested.pop(call_id, {})
        ended = rfc3339(event.at)
        granted = asked.get("grantedBy")
        answer = self._answers.pop(call_id, None)
        parts, hashes = done.get("storedParts", {}), done.get("storedSha256", {})
        if answer is None and granted is not None:  # a grant from before a crash says no more than that it is one
            answer = self._answers.get(granted, _policy(True, None, granted))
        return {
            "toolCallId": call_id,
            "tool": done["toolName"],
            **_some(capability=asked.get("capability"), risk=asked.get("riskLevel")),
            "ts_start": done.get("startedAt") or asked.get("at") or ended,
            "ts_end": ended,
            "params": _some(summary=asked.get("summary"), sha256=asked.get("argumentsSha256")),
            "result": {
                "ok": done["status"] == "succeeded",
                "status": done["status"],
                **_some(code=done.get("code"), exit_code=done.get("exitCode")),
                "bytes": done["outputBytes"],
                **{f"{part}_ref": ref for part, ref in parts.items()},
                **_some(storage_refs=done.get("storageRefs"), artifact_uris=done.get("artifactUris")),
            },
            "policy": {**_some(decision=asked.get("decision"), rule=asked.get("rule")), **(answer or {})},
            "hashes": {
                "output_sha256": done["outputSha256"],
                **{f"{part}_sha256": hashes[ref] for part, ref in parts.items()},
                **_some(stored_sha256=hashes or None),
            },
        }


def _upload_fields(payload: dict[str, Any]) -> dict[str, Any]:
    return {name: payload[name] for name in ("toolCallId", "artifactUri", "storageRef") if name in payload}


def _policy(approved: bool, scope: str | None, approval_id: str) -> dict[str, Any]:
    reach = None if scope is None or not approved else _SCOPES[scope]
    return {"approved": approved, **_some(approval_scope=reach), "approval_id": approval_id}


def _some(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _remember(memory: dict[str, dict[str, Any]], key: str, value: dict[str, Any]) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _MAX_REMEMBERED:
        del memory[next(iter(memory))]
