"""A session that tasks are handed to, in a process of its own, and how far its task is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import one_line
from agent_host.errors import AgentHostError
from agent_host.host.records import Owner
from agent_host.ids import new_id, now_rfc3339
from agent_host.mcp_server.approving import question_in
from agent_host.mcp_server.child import HostChild, HostRefused
from agent_host.mcp_server.records import APPROVAL_REQUIRED, RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.mcp_server.approving import PersonsAnswer, Question
    from agent_host.mcp_server.records import Records

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


class HostedSession:
    """A session and the task that it was handed last. `activity` counts what the task has done, `doing` is the last of
    it in one line. `questions` wait for an answer. `since` is when the task was begun or gone on with, RFC 3339.
    `records` has what is left of it once it is over."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.session_id = ""
        self.task_id = ""
        self.since = ""
        self.activity = 0
        self.doing = ""
        self.questions: dict[str, Question] = {}
        self._ending: Mapping[str, Any] | None = None
        self._is_lost = False
        self._child: HostChild | None = None
        self._news = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """True if its task goes on."""
        return bool(self.task_id) and self._ending is None

    @property
    def is_paused(self) -> bool:
        """True if its task has stopped where a resume goes on."""
        return self._ending is not None and STATUSES[self._ending["eventType"]] == "SESSION_PAUSED"

    async def open(self, argv: Sequence[str], resumes: str | None, *, goes_on: bool) -> bool:
        """Start the process and its session, or resume the one named `resumes`; with `goes_on` the task that is open
        there goes on. Whether one was open. Raises Refused, and OSError where no process can be started."""
        child = self._child = await HostChild.start(argv, self._take)
        if resumes is None:
            client = {"name": "mcp"}
            self.session_id = (await child.call("CreateSession", **_WHO, clientInfo=client))["sessionId"]
            return False
        self.session_id = resumes
        found = await child.call("ResumeSession", sessionId=resumes, autoContinue=goes_on)
        task = found.get("incompleteTask")
        if task is not None and goes_on:
            self.task_id, self.since = task["taskId"], now_rfc3339()
        return task is not None

    async def start(self, prompt: str, options: Mapping[str, Any]) -> None:
        """Hand it a task. Raises Refused, and is then as it was before."""
        if self.is_running:
            raise HostRefused("TASK_ALREADY_RUNNING", "the session has a task that runs: wait for its end")
        task_id = new_id("task")
        before = self.task_id, self._ending, self.since
        self.task_id, self._ending, self.since = task_id, None, now_rfc3339()
        try:
            await self._host.call(
                "StartTask", sessionId=self.session_id, taskId=task_id, prompt=prompt, taskOptions=options
            )
        except HostRefused:
            self.task_id, self._ending, self.since = before
            raise

    async def answer(
        self,
        approval_id: str,
        *,
        approved: bool,
        scope: str = "once",
        reason: str = "",
        answers: Mapping[str, Any] | None = None,
    ) -> bool:
        """Answer a question; False where nobody waits for it any more. Raises Refused, and for `answers` that are none
        to its form the question stays."""
        question = self.questions.pop(approval_id, None)
        decision = "approved" if approved else "denied"
        said: dict[str, Any] = {"reason": reason} if reason else {}
        if answers is not None:
            said["arguments"] = dict(answers)
        try:
            reply = await self._host.call(
                "ApproveAction", approvalId=approval_id, decision=decision, scope=scope, **said
            )
        except HostRefused:
            if question is not None:
                self.questions[approval_id] = question
            raise
        return bool(reply["status"] == "delivered")

    async def answer_as(self, approval_id: str, said: PersonsAnswer) -> None:
        """Answer as a person did. What is no answer to the question's form is a denial. Raises Refused."""
        try:
            await self.answer(
                approval_id, approved=said.approved, scope=said.scope, reason=said.reason, answers=said.answers
            )
        except HostRefused as error:
            if said.answers is None:
                raise
            await self.answer(approval_id, approved=False, reason=str(error)[:_REASON_CHARS])

    async def cancel(self) -> None:
        """Cancel its task, where one goes on, at the next safe point."""
        if self.is_running:
            self.doing = CANCELLING
            with contextlib.suppress(HostRefused):  # it has ended meanwhile
                await self._host.call("CancelTask", sessionId=self.session_id, taskId=self.task_id)

    async def news(self) -> None:
        """Wait until something has happened."""
        await self._news.wait()

    async def leave(self) -> None:
        """End the process. The session is over where its task was completed or cancelled, else it stays resumable."""
        if self._child is None:
            return
        if self._ending is not None and self._ending["eventType"] in _OVER:
            with contextlib.suppress(HostRefused):
                await self._child.call("Shutdown")
        await self._child.leave()

    async def report(self) -> dict[str, Any]:
        """Report the state of the task, and once it is over all that is known of it. Raises Refused."""
        named = {"sessionId": self.session_id, "taskId": self.task_id}
        if self._ending is None:
            waiting = [question.wire for question in self.questions.values()]
            status = APPROVAL_REQUIRED if waiting else RUNNING
            return {**named, "status": status, "doing": self.doing, **({"approvals": waiting} if waiting else {})}
        payload = self._ending["payload"]
        known = {name: payload[name] for name in _OF_END if name in payload}
        known["status"] = STATUSES[self._ending["eventType"]]
        if self._is_lost:
            await self._host.await_end()
        try:
            found = await asyncio.to_thread(self._records.report, self.session_id, self.task_id)
        except AgentHostError:  # nothing is left of its record
            return {**named, **known, "text": "", "filesChanged": []}
        return found if self._is_lost else {**found, **known}  # of a process that has ended only the record knows more

    @property
    def _host(self) -> HostChild:
        if self._child is None:
            raise HostRefused("SESSION_NOT_FOUND", "the session has no process")
        return self._child

    def _take(self, event: dict[str, Any] | None) -> None:
        if event is None:
            self._lost()
        else:
            self._follow(event["eventType"], event)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _follow(self, kind: str, event: dict[str, Any]) -> None:
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
            self.doing = _doing(kind, event)

    def _lost(self) -> None:
        """The process has ended: a task that went on can be resumed."""
        self.questions.clear()
        if self.is_running:
            message = "the process of the session has ended; the task can be resumed"
            payload, self._is_lost = {"reason": "INTERNAL_ERROR", "message": message}, True
            self._ending = {"eventType": "session_failed", "payload": payload}


def _doing(kind: str, event: Mapping[str, Any]) -> str:
    if kind == "step_started":
        return "the model is asked"
    return one_line(str(event["payload"]["toolName"]))
