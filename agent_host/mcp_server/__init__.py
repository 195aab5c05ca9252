"""The host as an MCP server, to which other agents and editors hand tasks (decision 57).

This module has the sessions that run the tasks, each in its own process, and recorded tasks, including those of other
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agent_host.clients.supervisor import RpcFailure, SessionConnection, SessionGone
from agent_host.display_text import clip, one_line
from agent_host.errors import AgentHostError
from agent_host.host.records import Owner, stored_sessions
from agent_host.ids import MACHINE
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp.server import ServerRequestContext

    from agent_host.clients.supervisor import SessionProcess

CANCELLING: Final = "the task is being cancelled"
STATUSES: Final = {
    "task_completed": "TASK_COMPLETED",
    "task_failed": "TASK_FAILED",
    "task_cancelled": "TASK_CANCELLED",
    "session_paused": "SESSION_PAUSED",
    "session_failed": "SESSION_PAUSED",
}
_OVER: Final = ("task_completed", "task_cancelled")
_OF_END: Final = ("reason", "message", "stepCount", "verdict", "endedBy", "retryable")
_REASON_CHARS: Final = 2000
_WHO: Final = {"userId": "local", "tenantId": "local", "executionEnvironment": "desktop", "supportedCapabilities": []}
APPROVAL_REQUIRED: Final = "APPROVAL_REQUIRED"
RUNNING: Final = "RUNNING"
_ELSEWHERE: Final = "another process has the session"
_OF_TASK: Final = (
    "startedAt", "reason", "message", "stepCount", "verdict", "endedBy", "retryable", "text", "denied", "patchMissing",
)  # fmt: skip


class HostedSession:
    """A session and its latest task. `activity` counts the task's steps and tool calls; `doing` describes the latest in
    one line. `questions` wait for an answer. `since` is the time when the task was started or continued, RFC 3339.
    `records` has the task's record after its end."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.session_id = ""
        self.task_id = ""
        self.since = ""
        self.activity = 0
        self.doing = ""
        self.questions: dict[str, WaitingCall] = {}
        self._ending: Mapping[str, Any] | None = None
        self._is_lost = False
        self._process: SessionConnection | None = None
        self._news = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """True if its task is running."""
        return bool(self.task_id) and self._ending is None

    @property
    def is_paused(self) -> bool:
        """True if its task is paused and can be resumed."""
        return self._ending is not None and STATUSES[self._ending["eventType"]] == "SESSION_PAUSED"

    async def open(self, process: SessionProcess, resumes: str | None, *, continues: bool) -> bool:
        """Start a session in the process, or resume the session `resumes`; if `continues`, its open task continues.
        True if a task was open. Raises HostRefused."""
        self._process = SessionConnection(process, self._on_notification)
        self._process.ended.add_done_callback(lambda _: self._lost())
        if resumes is None:
            client = {"name": "mcp"}
            self.session_id = (await self._ask("CreateSession", **_WHO, clientInfo=client))["sessionId"]
            return False
        self.session_id = resumes
        found = await self._ask("ResumeSession", sessionId=resumes, autoContinue=continues)
        task = found.get("incompleteTask")
        if task is not None and continues:
            self.task_id, self.since = task["taskId"], MACHINE.stamp()
        return task is not None

    async def start(self, prompt: str, options: Mapping[str, Any]) -> None:
        """Start a task in the session. Raises HostRefused, and the session is then unchanged."""
        if self.is_running:
            raise HostRefused("TASK_ALREADY_RUNNING", "the session has a task that runs: wait for its end")
        task_id = MACHINE.new_id("task")
        before = self.task_id, self._ending, self.since
        self.task_id, self._ending, self.since = task_id, None, MACHINE.stamp()
        try:
            await self._ask("StartTask", sessionId=self.session_id, taskId=task_id, prompt=prompt, taskOptions=options)
        except HostRefused:
            self.task_id, self._ending, self.since = before
            raise

    async def answer(self, approval_id: str, answer: PersonsAnswer) -> None:
        """Answer a question. Raises HostRefused, and the question then stays, for example if the answers do not fit its
        form."""
        question = self.questions.pop(approval_id, None)
        decision = "approved" if answer.approved else "denied"
        extra: dict[str, Any] = {"reason": answer.reason} if answer.reason else {}
        if answer.answers is not None:
            extra["arguments"] = dict(answer.answers)
        try:
            await self._ask("ApproveAction", approvalId=approval_id, decision=decision, scope=answer.scope, **extra)
        except HostRefused:
            if question is not None:
                self.questions[approval_id] = question
            raise

    async def answer_as(self, approval_id: str, answer: PersonsAnswer) -> None:
        """Submit a person's answer. Answers that do not fit the question's form deny it. Raises HostRefused."""
        try:
            await self.answer(approval_id, answer)
        except HostRefused as error:
            if answer.answers is None:
                raise
            await self.answer(approval_id, PersonsAnswer(False, reason=str(error)[:_REASON_CHARS]))

    async def cancel(self) -> None:
        """Cancel its task, if one is running, at the next safe point."""
        if self.is_running:
            self.doing = CANCELLING
            with contextlib.suppress(HostRefused):  # it has ended in the meantime
                await self._ask("CancelTask", sessionId=self.session_id, taskId=self.task_id)

    async def news(self) -> None:
        """Wait for the next event of the session."""
        await self._news.wait()

    async def leave(self) -> None:
        """End the process. The session is closed if its task was completed or cancelled, else it stays resumable."""
        if self._process is None:
            return
        if self._ending is not None and self._ending["eventType"] in _OVER:
            with contextlib.suppress(HostRefused):
                await self._ask("Shutdown")
        await self._process.close()

    async def report(self) -> dict[str, Any]:
        """Report the state of the task, and after its end also its result."""
        named = {"sessionId": self.session_id, "taskId": self.task_id}
        if self._ending is None:
            return _unfinished(named, self.doing, self.questions.values())
        payload = self._ending["payload"]
        known = {name: payload[name] for name in _OF_END if name in payload}
        known["status"] = STATUSES[self._ending["eventType"]]
        try:
            found = await asyncio.to_thread(self._records.report, self.session_id, self.task_id)
        except AgentHostError:  # its record cannot be read
            return {**named, **known, "text": "", "filesChanged": []}
        return found if self._is_lost else {**found, **known}  # after a lost process, the record is more complete

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raises HostRefused, also if the process has ended."""
        if self._process is None:
            raise HostRefused("SESSION_NOT_FOUND", "the session has no process")
        try:
            return await self._process.request(method, params)
        except RpcFailure as failure:
            raise HostRefused(failure.name, failure.message) from failure
        except SessionGone as ended:
            raise HostRefused("INTERNAL_ERROR", str(ended)) from ended

    def _on_notification(self, method: str, params: Mapping[str, Any], _: int) -> None:
        if method == "SessionEvent":
            self._follow(params["eventType"], params)
            self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _follow(self, kind: str, event: Mapping[str, Any]) -> None:
        payload = event["payload"]
        if self._records.owner is None:
            self._records.owner = Owner(event["tenantId"], event["userId"])
        if kind in STATUSES and event.get("taskId", self.task_id) == self.task_id:
            self._ending = event
            self.questions.clear()
        elif kind == "approval_requested":
            question = question_in(payload)
            self.questions[question.approval_id] = question
        elif kind == "approval_resolved":
            self.questions.pop(payload["approvalId"], None)
        elif kind in ("step_started", "tool_requested"):
            self.activity += 1
            is_step = kind == "step_started"
            self.doing = "the model is asked" if is_step else one_line(str(payload["toolName"]))

    def _lost(self) -> None:
        self.questions.clear()
        if self.is_running:
            message = "the process of the session has ended; the task can be resumed"
            payload, self._is_lost = {"reason": "INTERNAL_ERROR", "message": message}, True
            self._ending = {"eventType": "session_failed", "payload": payload}
        self._notify()


class HostRefused(Exception):
    """A request that the host refused. `name` is the documented code (interface section 2), `str()` the reason."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Records:
    """The recorded sessions of `owner` in `state_dir`. `owner` may be None until the first session's events name the
    user."""

    def __init__(self, state_dir: str, owner: Owner | None) -> None:
        self._state_dir = state_dir
        self.owner = owner

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return the last 20 sessions. Raises AgentHostError."""
        return [one.to_wire() for one in stored_sessions(self._state_dir).all(self.owner)[:20]]

    def session_of(self, task_id: str) -> str | None:
        """Return the session of the task, or None if none is recorded."""
        return stored_sessions(self._state_dir).session_of(task_id, self.owner)

    def refuse_others(self, session_id: str) -> None:
        """Raise SessionNotFound for a session that is not recorded or not the owner's."""
        stored_sessions(self._state_dir).record(session_id, self.owner)

    def report(self, session_id: str, task_id: str | None = None) -> dict[str, Any]:
        """Report the state of a task of the session, by default the last. For a session without a task, return its row
        in lists. Raises SessionNotFound, UsageError for an unknown task, CheckpointUnreadable."""
        record = stored_sessions(self._state_dir).record(session_id, self.owner)
        ids = record.task_ids
        if task_id is None and not ids:
            return record.row.to_wire()
        task = record.task(task_id or ids[-1])
        found: dict[str, Any] = {"sessionId": session_id, "taskId": task["taskId"], "status": task["status"]}
        if task["status"] == TaskPhase.RUNNING and record.is_live:
            asked = (question_in(one) for one in record.pending if one["taskId"] == task["taskId"])
            return _unfinished(found, _ELSEWHERE, asked)
        if task["status"] == TaskPhase.RUNNING:
            found["status"] = SessionStatus.PAUSED
        task = record.whole_task(task["taskId"])
        found |= {name: task[name] for name in _OF_TASK if task.get(name) is not None}
        found["filesChanged"] = [
            {"path": file["filePath"], **{name: file[name] for name in ("status", "additions", "deletions")}}
            for file in task["filesChanged"]
        ]
        return {**found, "usage": record.session_state()["tokenUsage"]}


def _unfinished(named: Mapping[str, Any], doing: str, questions: Iterable[WaitingCall]) -> dict[str, Any]:
    waiting = [question.wire for question in questions]
    status = APPROVAL_REQUIRED if waiting else RUNNING
    return {**named, "status": status, "doing": doing, **({"approvals": waiting} if waiting else {})}


# Approvals of calls in tasks of MCP clients, given by the client's user through elicitation.

_NO_ANSWER: Final = "the client did not answer, or with nothing that is an answer"
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "deny"], "description": "Whether the call may run"},
        "scope": {
            "type": "string",
            "enum": ["once", "task", "session"],
            "default": "once",
            "description": "How far it holds for the same action",
        },
        "reason": {"type": "string", "maxLength": 2000, "description": "What the model is to know"},
    },
    "required": ["decision"],
}


class PersonsAnswer(NamedTuple):
    """A person's answer to a question; `answers` are the values of a form's fields."""

    approved: bool
    scope: str = "once"
    reason: str = ""
    answers: Mapping[str, Any] | None = None


UNATTENDED_DENIAL: Final = PersonsAnswer(False, reason="no approver is present: the client has no elicitation")


def can_elicit(context: ServerRequestContext[Any, Any]) -> bool:
    """True if the client can show forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None  # with neither, forms are meant


async def elicit(context: ServerRequestContext[Any, Any], question: WaitingCall) -> PersonsAnswer:
    """Elicit an answer within a request, from a client that accepts requests. Without an answer, the call is denied."""
    try:
        message, form = message_of(question), _form_of(question)
        result = await context.session.elicit_form(message, form, related_request_id=context.request_id)
    except (MCPError, ValidationError):
        return PersonsAnswer(False, reason=_NO_ANSWER)
    return answer_in(question, result)


def form_request(question: WaitingCall) -> types.ElicitRequest:
    """Return the question for a client that is asked in the response to its own request (MCP 2026-07-28)."""
    shown = types.ElicitRequestFormParams(message=message_of(question), requested_schema=_form_of(question))
    return types.ElicitRequest(params=shown)


def _form_of(question: WaitingCall) -> dict[str, Any]:
    """Return the form of a question: of an approval, or of an elicitation by an MCP server that the task uses."""
    return _FORM if question.form is None else dict(question.form)


def message_of(question: WaitingCall) -> str:
    """Return the text that the person reads."""
    wire = question.wire
    why = "" if wire["description"] in ("", wire["actionSummary"]) else f"\n{wire['description']}"
    return f"{wire['title']}: {wire['actionSummary']}{why}\n\nrisk: {wire['riskLevel']}\n{wire['details']}"


def answer_in(question: WaitingCall, result: types.ElicitResult) -> PersonsAnswer:
    """Read the answer from a form's result. Anything except an approval is a denial."""
    content: Mapping[str, Any] = result.content or {}
    if question.form is not None:
        return PersonsAnswer(result.action == "accept", answers=content)
    scope, reason = content.get("scope"), content.get("reason")
    return PersonsAnswer(
        result.action == "accept" and content.get("decision") == "approve",
        scope if scope in ("once", "task", "session") else "once",
        reason[:2000] if isinstance(reason, str) else "",
    )


# Questions that wait for a person in a session: approvals of calls, and elicitations by an MCP server during a call.

_DETAILS_BYTES: Final = 8000
_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""The form of a request to open a page: it is accepted or declined, and has no fields."""


class WaitingCall(NamedTuple):
    """A call that waits for a person. `wire` is sent to the client: the texts of `approval_requested` without
    unprintable characters. `form` is the JSON Schema of an elicitation by an MCP server during a call."""

    approval_id: str
    wire: Mapping[str, Any]
    form: Mapping[str, Any] | None = None


def question_in(payload: Mapping[str, Any]) -> WaitingCall:
    """Return the question in the payload of an `approval_requested`."""
    details = dict(payload["details"])
    form = details.pop("form", _NO_FIELDS) if "isQuestion" in payload else None
    if form is not None:
        del details["question"]  # the description contains it
    lines = [*payload["risks"], *(f"{name}: {value}" for name, value in details.items())]
    wire = {
        "approvalId": payload["approvalId"],
        "title": one_line(payload["title"]),
        "actionSummary": one_line(payload["actionSummary"]),
        "description": clip(payload["description"], _DETAILS_BYTES),
        "riskLevel": payload["riskLevel"],
        "details": clip("\n".join(lines), _DETAILS_BYTES),
    }
    return WaitingCall(payload["approvalId"], wire if form is None else {**wire, "form": form}, form)
