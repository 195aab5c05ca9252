"""Tools of the Backend Tool Service: calls over HTTP, each run once however often it is sent (BT, AH 7.6).

The id of the call is its key: a repeated request is answered from the service's stored answer. After a lost answer the
request contains the service's epoch, known from an earlier answer: a service that has lost its calls since has another
epoch, and rejects the request instead of running the call again. If no epoch is known, the service is queried by the
key, and the call is not sent again.

Answers are input from outside like any other, and are checked (BT, "API Endpoints"). The service's answer becomes the
result of a local tool: text and URIs, or a fault.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

import orjson

from agent_host.errors import ErrorCode, ServiceError, ServiceUnavailable, ServiceUnreachable
from agent_host.http import HttpAnswer, RetryPolicy, call_with_retries, retry_after_s
from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import ANYTHING, FLAG, OBJECT, TEXT, ListOf, Nullable, Record, Text, first_problem, one_of
from tool_runtime.output.artifacts import tool_output
from tool_runtime.remote import Definition, Source, ToolList, usable
from tool_runtime.tool import CallContext, FaultKind, ToolFault, ToolOutput, cap_output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.contracts import ToolRequest
    from agent_host.ids import Outside

T = TypeVar("T")
_RUNNING: Final = 202
_UNKNOWN: Final = 404
_CONFLICT: Final = 409
_POLL_S: Final = (0.1, 2.0)
"""The first wait for a call that runs, and the longest: each is half as long again as the one before."""
EPOCH_HEADER: Final = "x-tool-service-epoch"
"""In answers the service's epoch, in a request the one that the service must still have for the call to run."""
_MARGIN_S: Final = 5.0
_HIDDEN: Final = b"[redacted]"
_LOST: Final = "whether it took effect is unknown: inspect before you try again"
CAPABILITY: Final = "BackendTool.Invoke"
_MAX_URIS: Final = 1000
_MAX_CODE_CHARS: Final = 64
_MADE_BY: Final = ("toolName", "sessionId", "taskId", "stepId")
_RESULT: Final = Record(
    {**dict.fromkeys(_MADE_BY, TEXT), "status": one_of("succeeded", "failed", "denied")},
    {
        "outputText": Text(nul=True),
        "artifactUris": ListOf(Text(1, 2048), most=_MAX_URIS),
        "error": Record({"code": TEXT, "message": TEXT}, closed=True),
    },
    closed=True,
)
"""BT, "Tool Result Schema"."""
_TOOLS: Final = Record({"tools": ListOf(ANYTHING)})
_TOOL: Final = Record(
    {"toolName": TEXT, "description": TEXT, "inputSchema": OBJECT},
    {"outputSchema": Nullable(OBJECT), "requiresCapability": TEXT},
)
_ERROR: Final = Record({"code": TEXT, "message": TEXT}, {"retryable": FLAG, "details": ANYTHING})
CODES: Final = frozenset((
    ErrorCode.INVALID_REQUEST, ErrorCode.UNAUTHORIZED, ErrorCode.CAPABILITY_DENIED, ErrorCode.TOOL_NOT_FOUND,
    ErrorCode.TOOL_EXECUTION_FAILED, ErrorCode.TOOL_EXECUTION_TIMEOUT, ErrorCode.TOOL_INTERRUPTED,
    ErrorCode.FILE_NOT_FOUND, ErrorCode.FILE_TOO_LARGE, ErrorCode.PERMISSION_DENIED, ErrorCode.RATE_LIMITED,
    ErrorCode.WORKSPACE_UPLOAD_FAILED, ErrorCode.INTERNAL_ERROR,
))  # fmt: skip
"""Error names that a call may end with. Any other is the service's own, or is about the session, which the service does
not know."""
_BY_STATUS: Final[Mapping[int, ErrorCode]] = {
    **dict.fromkeys((400, 409, 413, 422), ErrorCode.INVALID_REQUEST),
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.CAPABILITY_DENIED,
    404: ErrorCode.TOOL_NOT_FOUND,
    429: ErrorCode.RATE_LIMITED,
}


class Service(Protocol):
    """An HTTP client of the service, which sends the host's token along."""

    async def exchange(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] = {}, timeout_s: float
    ) -> HttpAnswer:
        """One request and its answer. Raises ServiceUnreachable if nothing was sent, ServiceUnavailable without a
        complete answer, ServiceRejected for an unreadable one."""

    def clean(self, text: str) -> str:
        """One short line of the service's answer, without tokens."""


class InvocationTerms(NamedTuple):
    """Settings of calls. `grant` makes the capability grant for a call of one tool, None if the host has no key; the
    header `grant_header` contains it. `timeout_s` limits a whole call (AH 7.4)."""

    grant: Callable[[str], str | None]
    grant_header: str
    workspace_id: str
    timeout_s: float
    retry: RetryPolicy
    outside: Outside


class _Sent(ServiceUnavailable):
    """The request was sent, and its outcome is unknown."""


class _NotAgain(_Sent):
    """The same, and sent again it might run a second time."""

    again = False


class _Taken(Exception):
    """An earlier call of the session, in another step, had this id: the service has its answer, and ran nothing."""


NAME: Final = "backend"  # the name of the source in records and messages


class BackendSource(Source):
    """A Source: listed beside a session's start, called once by the id of each call, and asked after a crash what
    became of one (AH 7.6). `service` is closed by whoever made it."""

    name = NAME

    def __init__(self, service: Service, terms: InvocationTerms) -> None:
        self._service = service
        self._terms = terms
        self._longest_s = terms.timeout_s + _MARGIN_S  # of one request: the call's own time is over first
        self._epoch = ""

    async def list(self) -> ToolList:
        """See Source."""
        try:
            answer = await self._get("/tools")
        except ServiceError as error:
            raise ToolFault(FaultKind.NETWORK, _advise(error)) from error
        if answer.status != 200:
            raise self._refusal(answer)
        return tools_of(answer.body)

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:  # noqa: ARG002 - see Source
        """See Source."""
        return self._output(call, await self._within_time(call.request, self._run))

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:  # noqa: ARG002 - see Source
        """See Source. The service answers by the call's id, and a call that runs is waited for."""
        why = "the service cannot report the outcome of the call"
        found = await self._within_time(call.request, lambda request, key: self._ask(request, key, why))
        return None if found is None else cap_output(self._output(call, found), call)

    def _output(self, call: CallContext, body: bytes) -> ToolOutput:
        """Decode the ToolResult in `body`; a long text is an artifact as well. Raises ToolFault for a failed or denied
        result, and for a result that is not of this call: the tool's effect is then unknown."""
        request, value = call.request, _json(body)
        made_by = request.tool_name, request.session_id, request.task_id, request.step_id
        problem = first_problem(_RESULT, value)
        reason = None if problem is None else problem.sentence
        if reason is None and tuple(map(value.get, _MADE_BY)) != made_by:
            reason = "it is the result of another call"
        if reason is not None:
            message = f"the tool has run, and its result cannot be used: {reason}; inspect before you try again"
            raise ToolFault(FaultKind.INTERRUPTED, message)
        text, uris = value.get("outputText", ""), tuple(filter(str.isprintable, value.get("artifactUris", ())))
        content = text.encode("utf-8", "replace")
        is_long = len(content) > call.settings.artifact_threshold_bytes
        artifacts = (tool_output(request, content, part="result"),) if is_long else ()
        if uris:
            text = f"{text}\n[stored: {', '.join(uris)}]".lstrip("\n")
        output = ToolOutput(text, artifacts, artifact_uris=uris)
        if value["status"] == "succeeded":
            return output
        error = value.get("error", {"code": "", "message": "the service gave no reason"})
        message, is_denied = self._service.clean(error["message"]), value["status"] == "denied"
        raise _fault(error["code"], message, denied=is_denied, partial=output)

    async def _within_time(self, request: ToolRequest, work: Callable[[ToolRequest, str], Awaitable[T]]) -> T:
        """Run the call under its id, or under another one if an earlier step had a call with the same id: ids are
        unique in one answer of a model, and some gateways start from 0 in each."""
        timeout_s = self._terms.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                try:
                    return await work(request, request.tool_call_id)
                except _Taken:
                    return await work(request, f"{request.tool_call_id}.{request.step_id}")
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"{request.tool_name} gave no answer within {timeout_s:g} seconds, and may still run; {_LOST}"
            raise ToolFault(FaultKind.TIMED_OUT, message) from error

    async def _run(self, request: ToolRequest, key: str) -> bytes:
        """The ToolResult of a call, as JSON. Raises ToolFault if it did not run, or if that is unknown."""
        epoch, lost = self._epoch, ""

        async def attempt() -> HttpAnswer:
            nonlocal lost
            try:
                return await self._send(request, key, epoch if lost else "")
            except _Sent as error:
                lost = lost or str(error)
                if epoch:
                    raise
                raise _NotAgain(str(error)) from error

        try:
            answer = await self._retry(attempt)
        except ServiceUnavailable as error:
            if lost:
                return await self._found(request, key, lost)
            kind = FaultKind.RATE_LIMITED if error.status == 429 else FaultKind.NETWORK
            raise ToolFault(kind, f"the tool did not run: {_advise(error)}") from error
        except ServiceError as error:
            raise ToolFault(FaultKind.INTERRUPTED, f"{error}; {_LOST}") from error
        if answer.status == 200:
            return _own(request, answer.body)
        if answer.status == _RUNNING:
            return await self._found(request, key, "the service no longer knows of the call")
        refused = self._refusal(answer)
        if lost:
            raise ToolFault(FaultKind.INTERRUPTED, f"{lost}; {refused}; {_LOST}")
        if answer.status == _CONFLICT:
            raise _Taken from refused
        raise refused

    async def _found(self, request: ToolRequest, key: str, why: str) -> bytes:
        found = await self._ask(request, key, why)
        if found is None:
            raise ToolFault(FaultKind.INTERRUPTED, f"{why}; {_LOST}")
        return found

    async def _send(self, request: ToolRequest, key: str, epoch: str) -> HttpAnswer:
        """One attempt; with an `epoch` only in that epoch. Raises ServiceUnavailable for a call that did not run and
        may be retried, _Sent for one that may have run."""
        body = {
            "sessionId": request.session_id,
            "taskId": request.task_id,
            "stepId": request.step_id,
            "workspaceId": self._terms.workspace_id,
            "toolName": request.tool_name,
            "arguments": dict(request.arguments),
        }
        headers = {"idempotency-key": key, **({EPOCH_HEADER: epoch} if epoch else {})}
        path = f"/tools/{_quote(request.tool_name)}/invoke"
        try:
            answer = await self._exchange("POST", path, headers, request.tool_name, orjson.dumps(body))
        except ServiceUnreachable:
            raise
        except ServiceUnavailable as error:
            raise _Sent(str(error)) from error
        # Such an answer of a proxy is not about the call; the service has rejected it.
        refused = answer.status == 503 and error_of(answer.body)[2] is not None
        if answer.status == 429 or refused:
            raise self._passing(answer)
        if answer.status >= 500:
            passing = self._passing(answer)
            raise _Sent(str(passing), retry_after_s=passing.retry_after_s)
        return answer

    async def _ask(self, request: ToolRequest, key: str, why: str) -> bytes | None:
        """The ToolResult of a call that was sent before, once available; None if the service has no record of it. Runs
        nothing. Raises ToolFault if the service does not know."""
        wait_s, longest_s = _POLL_S
        path = f"/tools/{_quote(request.tool_name)}/invocations/{_quote(key)}"
        while True:
            try:
                answer = await self._get(path, request.tool_name)
            except ServiceError as error:
                reason = why if why in str(error) else f"{why}; {error}"
                raise ToolFault(FaultKind.INTERRUPTED, f"{reason}; {_LOST}") from error
            if answer.status == _UNKNOWN:
                return None
            if answer.status == 200:
                return _own(request, answer.body)
            if answer.status != _RUNNING:  # it is lost to the service, or this host may not ask
                raise ToolFault(FaultKind.INTERRUPTED, f"{why}; {self._refusal(answer)}; {_LOST}")
            asked_for = retry_after_s(answer.headers, self._terms.outside.time)
            await asyncio.sleep(wait_s if asked_for is None else min(asked_for, longest_s))
            wait_s = min(wait_s * 1.5, longest_s)

    async def _get(self, path: str, tool_name: str = "") -> HttpAnswer:
        async def attempt() -> HttpAnswer:
            answer = await self._exchange("GET", path, {}, tool_name)
            if answer.status == 429 or answer.status >= 500:
                raise self._passing(answer)
            return answer

        return await self._retry(attempt)

    async def _retry(self, attempt: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
        """A retry is part of the call: only its end is reported."""
        terms = self._terms
        return await call_with_retries(ServiceUnavailable, attempt, terms.retry, lambda *_: None, terms.outside)

    async def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], tool_name: str, body: bytes = b""
    ) -> HttpAnswer:
        """One request, with the grant if it is about a tool; the answer's epoch is remembered."""
        grant = self._terms.grant(tool_name) if tool_name else None
        granted = {} if grant is None else {self._terms.grant_header: grant}
        answer = await self._service.exchange(
            method, path, body, headers={**headers, **granted}, timeout_s=self._longest_s
        )
        self._epoch = answer.headers.get(EPOCH_HEADER, "") or self._epoch
        if grant is None:
            return answer
        return answer._replace(body=answer.body.replace(grant.encode(), _HIDDEN))  # who refuses a grant may quote it

    def _passing(self, answer: HttpAnswer) -> ServiceUnavailable:
        detail = self._service.clean(error_of(answer.body)[1]) or "no details"
        return ServiceUnavailable(
            f"the Backend Tool Service said HTTP {answer.status}: {detail}",
            status=answer.status,
            retry_after_s=retry_after_s(answer.headers, self._terms.outside.time),
        )

    def _refusal(self, answer: HttpAnswer) -> ToolFault:
        code, message, _ = error_of(answer.body)
        detail = self._service.clean(message) or f"HTTP {answer.status}"
        if answer.status == 401:
            detail = (
                f"the Backend Tool Service does not take this host's token, or got none ({detail}); check "
                "BACKEND_TOOL_SERVICE_TOKEN: it must be the token of your tenant"
            )
        usual = _BY_STATUS.get(answer.status, ErrorCode.TOOL_EXECUTION_FAILED)
        return _fault(code or usual, detail, denied=answer.status == 403)


def _own(request: ToolRequest, body: bytes) -> bytes:
    """`body`, unless it is the result of another step's call. Raises _Taken."""
    value = _json(body)
    step = value.get("stepId") if isinstance(value, dict) else None
    if isinstance(step, str) and step != request.step_id:
        raise _Taken
    return body


def _advise(error: ServiceError) -> str:
    if not isinstance(error, ServiceUnreachable):
        return str(error)
    return f"{error}; check BACKEND_TOOL_SERVICE_URL, and that the service runs"


def _quote(text: str) -> str:
    """`text` as one segment of a path: dots alone would be another one."""
    return quote(text, safe="").replace(".", "%2E")


def tools_of(body: bytes) -> ToolList:
    """The tools of an answer to GET /tools, and why the others cannot be used. Raises ToolFault for no such answer."""
    value = _json(body)
    problem = first_problem(_TOOLS, value)
    if problem is not None:
        raise ToolFault(FaultKind.SYSTEM, f"its list of tools cannot be read: {problem.sentence}")
    found, rejected = [], {}
    for place, tool in enumerate(value["tools"]):
        problem = first_problem(_TOOL, tool)
        if problem is not None:
            name = tool.get("toolName") if isinstance(tool, dict) else None
            rejected[name if isinstance(name, str) else f"tools[{place}]"] = problem.sentence
        elif tool.get("requiresCapability", CAPABILITY) != CAPABILITY:
            rejected[tool["toolName"]] = f"it needs {tool['requiresCapability']}, and not {CAPABILITY}"
        else:
            output = tool.get("outputSchema")
            found.append(Definition(tool["toolName"], tool["description"], tool["inputSchema"], output))
    return usable(found, rejected)


def error_of(body: bytes) -> tuple[str, str, bool | None]:
    """Code, message and `retryable` of an error's body; empty and None if it does not have the documented shape."""
    value = _json(body)
    if not _ERROR.fits(value):
        return "", "", None
    return value["code"], value["message"], value.get("retryable")


def _fault(code: str, message: str, *, denied: bool, partial: ToolOutput | None = None) -> ToolFault:
    if code not in CODES:
        shown = code[:_MAX_CODE_CHARS]
        message = f"{shown}: {message}" if shown.isidentifier() and shown.isascii() else message
        code = ErrorCode.CAPABILITY_DENIED if denied else ErrorCode.TOOL_EXECUTION_FAILED
    kind = FaultKind.REFUSED if denied else FaultKind.SYSTEM
    return ToolFault(kind, message, partial=partial, code=ErrorCode(code))


def _json(body: bytes) -> Any:
    try:
        return json_text.loads(body)
    except orjson.JSONDecodeError:
        return None
