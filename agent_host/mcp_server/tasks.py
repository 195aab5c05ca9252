"""The tasks extension of MCP 2026-07-28 (SEP-2663): `run_task` answers at once with a task that the client asks about.

The SDK has no tasks of its own; it takes methods and kinds of results that it does not know. The task of the extension
is the task of the session, by its id. What waits for a person is what the task asks for (`input_required`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent_host.errors import AgentHostError
from agent_host.ids import now_rfc3339
from agent_host.mcp_server.approving import NOBODY, answer_in, can_elicit, form_request
from agent_host.mcp_server.child import Refused
from agent_host.mcp_server.records import APPROVAL_REQUIRED, RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import Server, ServerRequestContext

    from agent_host.mcp_server.hosted import HostedSession
    from agent_host.mcp_server.sessions import Sessions

    Context: TypeAlias = ServerRequestContext[Any, Any]

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_POLL_MS: Final = 1000
_TTL_MS: Final = 3_600_000


class _OfTask(types.RequestParams):
    task_id: str


class _Update(_OfTask):
    input_responses: dict[str, Any]


class TaskExtension:
    """The methods of the extension over `sessions`. `result_of` makes the tool's result of a report. With
    `allow_approve` the client has a tool to approve with, where it has no elicitation."""

    def __init__(
        self, sessions: Sessions, result_of: Callable[[dict[str, Any]], types.CallToolResult], *, allow_approve: bool
    ) -> None:
        self._sessions = sessions
        self._result_of = result_of
        self._allow_approve = allow_approve

    def add_to(self, server: Server[Any]) -> None:
        """Have the server say that it has the extension, and serve it."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", _OfTask, self._get)
        server.add_request_handler("tasks/update", _Update, self._update)
        server.add_request_handler("tasks/cancel", _OfTask, self._cancel)

    @staticmethod
    def is_wanted(context: Context) -> bool:
        """True if the client takes a task for an answer."""
        capabilities = context.session.client_capabilities
        known = {} if capabilities is None else capabilities.extensions or {}
        return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in known

    def created(self, session: HostedSession) -> dict[str, Any]:
        """The answer to the call that has begun the task."""
        return {"resultType": "task", **self._task(session.task_id, session.since, "working", session.doing)}

    async def _get(self, context: Context, params: _OfTask) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            report = await self._on_record(params.task_id)
            since = report.get("startedAt", now_rfc3339())
            if report["status"] in (RUNNING, APPROVAL_REQUIRED):
                return self._task(params.task_id, since, "working", report["doing"])
            return self._over(params.task_id, since, report)
        if session.questions and not can_elicit(context) and not self._allow_approve:
            for approval_id in list(session.questions):
                await self._refusable(session.answer(approval_id, approved=False, reason=NOBODY))
        if not session.is_running:
            return self._over(session.task_id, session.since, await session.report())
        if session.questions and can_elicit(context):
            asked = {
                one.approval_id: form_request(one).model_dump(mode="json", by_alias=True, exclude_none=True)
                for one in session.questions.values()
            }
            said = self._task(session.task_id, session.since, "input_required", "somebody is asked")
            return {**said, "inputRequests": asked}
        doing = "APPROVAL_REQUIRED: see session_status" if session.questions else session.doing
        return self._task(session.task_id, session.since, "working", doing)

    async def _update(self, context: Context, params: _Update) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            await self._on_record(params.task_id)
        for approval_id, response in params.input_responses.items() if session is not None else ():
            question = None if session is None else session.questions.get(approval_id)
            if session is not None and question is not None:
                try:
                    said = answer_in(question, types.ElicitResult.model_validate(response))
                except ValidationError as error:
                    raise MCPError(types.INVALID_PARAMS, f"inputResponses.{approval_id}: not an answer") from error
                await self._refusable(session.answer_as(approval_id, said))
        return {}

    async def _cancel(self, context: Context, params: _OfTask) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            await self._on_record(params.task_id)
        else:
            await session.cancel()
        return {}

    @staticmethod
    async def _refusable(answering: Any) -> None:
        try:
            await answering
        except Refused as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error

    async def _on_record(self, task_id: str) -> dict[str, Any]:
        """The report of a task that no process of this server has. Raises MCPError for one that nobody knows."""
        records = self._sessions.records
        try:
            session_id = await asyncio.to_thread(records.session_of, task_id)
            if session_id is not None:
                return await asyncio.to_thread(records.report, session_id, task_id)
        except AgentHostError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        raise MCPError(types.INVALID_PARAMS, "there is no such task")

    def _session(self, context: Context, task_id: str) -> HostedSession | None:
        """The session whose present task it is, None where none has a process here. Raises MCPError for a client that
        has not said that it has the extension."""
        if not self.is_wanted(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            message = f"tasks are for clients with the extension {EXTENSION}"
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)
        return self._sessions.with_task(task_id)

    def _over(self, task_id: str, since: str, report: dict[str, Any]) -> dict[str, Any]:
        if report["status"] == "TASK_CANCELLED":
            return self._task(task_id, since, "cancelled", str(report.get("message", "")))
        result = self._result_of(report).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**self._task(task_id, since, "completed", ""), "result": {"resultType": "complete", **result}}

    @staticmethod
    def _task(task_id: str, since: str, status: str, message: str) -> dict[str, Any]:
        said = {"statusMessage": message} if message else {}
        return {
            "taskId": task_id,
            "status": status,
            **said,
            "createdAt": since,
            "lastUpdatedAt": now_rfc3339(),
            "ttlMs": _TTL_MS,
            "pollIntervalMs": _POLL_MS,
        }
