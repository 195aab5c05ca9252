"""The tools of the MCP server: `run_task`, `session_status`, and `approve` where it is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import mcp_types as types
import orjson
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from agent_host.errors import AgentHostError
from agent_host.ids import now_rfc3339
from agent_host.mcp_server.approving import NOBODY, answer_in, can_elicit, elicit, form_request
from agent_host.mcp_server.child import Refused
from agent_host.mcp_server.records import APPROVAL_REQUIRED, RUNNING
from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server import ServerRequestContext

    from agent_host.mcp_server.approving import Question
    from agent_host.mcp_server.hosted import HostedSession
    from agent_host.mcp_server.sessions import Sessions

    Context: TypeAlias = ServerRequestContext[Any, Any]
    Reply: TypeAlias = dict[str, Any] | types.InputRequiredResult


_INSTRUCTIONS: Final = (
    "run_task hands a task to an agent that works in one workspace under a policy. Its answer says how the task ended; "
    "with waitS it may say that the task still runs, and session_status follows it."
)
_RUN: Final = (
    "Hand a task to an agent that reads, changes and runs things in its workspace, as far as its policy allows. The "
    "answer has its status, its last text, what was denied and which files have changed"
)
_STATUS: Final = (
    "How far a task of a session is, with its result once it is over, also of sessions that have ended; without a "
    "session the last ones on record"
)
_APPROVE: Final = "Answer a call that waits for approval (status APPROVAL_REQUIRED), then wait for the task as run_task"


class TaskServer:
    """The server over `sessions`. With `allow_approve` the client itself may approve:
    without it only the person behind it can, by elicitation."""

    def __init__(self, sessions: Sessions, *, allow_approve: bool) -> None:
        self._sessions = sessions
        self._allow_approve = allow_approve
        self._tools: dict[str, tuple[str, type[Arguments], Callable[..., Awaitable[Reply]]]] = {
            "run_task": (_RUN, RunTask, self._run_task),
            "session_status": (_STATUS, SessionStatus, self._session_status),
        }
        self._tasks = TaskExtension(sessions, _result, allow_approve=allow_approve)
        if allow_approve:
            self._tools["approve"] = (_APPROVE, Approve, self._approve)

    def server(self) -> Server[Any]:
        """The SDK's server with the tools, and with tasks for clients that have them."""
        server = Server[Any](
            "agent-host",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list,
        )
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call)
        self._tasks.add_to(server)
        return server

    async def _list(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=description,
                    input_schema=model.model_json_schema(by_alias=True),
                    annotations=types.ToolAnnotations(read_only_hint=name == "session_status"),
                )
                for name, (description, model, _) in self._tools.items()
            ]
        )

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        if params.name not in self._tools:
            return _failure("TOOL_NOT_FOUND", f"there is no tool {params.name[:64]!r}")
        _, model, run = self._tools[params.name]
        try:
            arguments = model.model_validate(params.arguments or {})
        except ValidationError as error:
            return _failure("INVALID_REQUEST", what_is_wrong(error))
        try:
            found = await run(context, params, arguments)
        except Refused as error:
            return _failure(error.name, str(error))
        except AgentHostError as error:
            return _failure(str(error.code), str(error))
        except OSError as error:
            return _failure("INTERNAL_ERROR", f"no process can be started: {error.strerror}")
        if isinstance(found, types.InputRequiredResult) or "resultType" in found:
            return found
        return _result(found)

    async def _run_task(self, context: Context, params: types.CallToolRequestParams, given: RunTask) -> Reply:
        session = self._session_of_answers(params)
        if session is None:
            if given.prompt is None and given.session_id is None:
                raise Refused("INVALID_REQUEST", "$.prompt: give a prompt, or the session whose task is to go on")
            options = {"maxSteps": given.max_steps, "model": given.model}
            session = await self._sessions.run(
                given.prompt, given.session_id, {name: value for name, value in options.items() if value is not None}
            )
            if given.wait_s is None and self._tasks.is_wanted(context):
                return self._tasks.describe_created(session)
        else:
            await self._take_answers(session, params)
        return await self._follow(context, session, given.wait_s)

    async def _session_status(
        self, context: Context, params: types.CallToolRequestParams, given: SessionStatus
    ) -> Reply:
        session = self._session_of_answers(params)
        if session is not None:
            await self._take_answers(session, params)
        elif given.session_id is None:
            if given.task_id is not None:
                raise Refused("INVALID_REQUEST", "$.taskId: give the session of the task as well")
            return {"sessions": await asyncio.to_thread(self._sessions.records.list_sessions)}
        else:
            session = self._sessions.get(given.session_id)
        if session is None or given.task_id not in (None, session.task_id) or not session.task_id:
            return await asyncio.to_thread(self._sessions.records.report, str(given.session_id), given.task_id)
        return await self._await_report(context, session, given.wait_s)

    async def _approve(self, context: Context, _: types.CallToolRequestParams, given: Approve) -> Reply:
        session = self._sessions.get(given.session_id)
        if session is None or given.approval_id not in session.questions:
            raise Refused("INVALID_REQUEST", f"nothing waits for the approval {given.approval_id}")
        approved = given.decision == "approved"
        await session.answer(
            given.approval_id, approved=approved, scope=given.scope, reason=given.reason, answers=given.answers
        )
        return await self._follow(context, session, given.wait_s)

    async def _follow(self, context: Context, session: HostedSession, wait_s: float | None) -> Reply:
        """See `_await_report`; a client that cancels this call cancels the task."""
        try:
            return await self._await_report(context, session, wait_s)
        except asyncio.CancelledError:
            self._sessions.cancel_later(session)
            raise

    async def _await_report(self, context: Context, session: HostedSession, wait_s: float | None) -> Reply:
        """The report once the task is over or `wait_s` are. Who can approve is asked on the way, as long as there is
        time; where nobody can, it is denied."""
        now = asyncio.get_running_loop().time
        ends = None if wait_s is None else now() + wait_s
        while True:
            left_s = None if ends is None else max(0.0, ends - now())
            if await self._wait(context, session, left_s) and session.questions:
                question = next(iter(session.questions.values()))
                if not can_elicit(context):
                    if not self._allow_approve:
                        await session.answer(question.approval_id, approved=False, reason=NOBODY)
                        continue
                elif ends is None or now() < ends:
                    if not context.session.can_send_request:
                        return _input_required(session)
                    await self._elicit(context, session, question, None if ends is None else ends - now())
                    continue
            return await session.report()

    async def _wait(self, context: Context, session: HostedSession, wait_s: float | None) -> bool:
        """Wait until the task is over, or has a question; False where `wait_s` are over before. The client reads on the
        way what the task does."""
        shown = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while session.is_running and not session.questions:
                    if session.activity != shown:
                        shown = session.activity
                        await context.session.report_progress(float(shown), None, session.doing)
                    await session.news()
        return not session.is_running or bool(session.questions)

    async def _elicit(self, context: Context, session: HostedSession, question: Question, wait_s: float | None) -> None:
        """Ask the person, for `wait_s` and as long as the question stands."""
        asking = asyncio.ensure_future(elicit(context, question))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not asking.done() and question.approval_id in session.questions:
                        news = asyncio.ensure_future(session.news())
                        try:
                            await asyncio.wait((asking, news), return_when=asyncio.FIRST_COMPLETED)
                        finally:
                            news.cancel()
            if asking.done() and question.approval_id in session.questions:
                await session.answer_as(question.approval_id, asking.result())
        finally:
            asking.cancel()

    def _session_of_answers(self, params: types.CallToolRequestParams) -> HostedSession | None:
        """The session that the client answers, where the request repeats one (MCP 2026-07-28)."""
        if params.request_state is None:
            return None
        session = self._sessions.get(params.request_state)
        if session is None:
            raise Refused("SESSION_NOT_FOUND", "the session of this request is over")
        return session

    async def _take_answers(self, session: HostedSession, params: types.CallToolRequestParams) -> None:
        for approval_id, response in (params.input_responses or {}).items():
            question = session.questions.get(approval_id)
            if question is not None and isinstance(response, types.ElicitResult):
                await session.answer_as(approval_id, answer_in(question, response))


def _input_required(session: HostedSession) -> types.InputRequiredResult:
    asked: types.InputRequests = {
        question.approval_id: form_request(question) for question in session.questions.values()
    }
    return types.InputRequiredResult(input_requests=asked, request_state=session.session_id)


def _result(found: dict[str, Any]) -> types.CallToolResult:
    text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
    failed = found.get("status") in ("TASK_FAILED", "SESSION_PAUSED") and "taskId" in found
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=found, is_error=failed)


def _failure(code: str, message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=f"{code}: {message}")], is_error=True)


# What the tools of the MCP server take. The models are their input schemas as well.

_MAX_WAIT_S = 86_400.0

SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
WaitS = Annotated[
    float | None,
    Field(
        ge=0,
        le=_MAX_WAIT_S,
        description="Seconds to wait for the task; then the answer is how far it is. Default: until it is over",
    ),
]


class Arguments(BaseModel):
    """Base of all: other names than those given are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


class RunTask(Arguments):
    """Of `run_task`."""

    prompt: Annotated[str | None, Field(min_length=1, max_length=1_000_000, description="What to do")] = None
    session_id: Annotated[
        SessionId | None,
        Field(
            description="Session of an earlier task, which knows what was said there. Without a prompt the task that "
            "is open there goes on. Default: a new session"
        ),
    ] = None
    max_steps: Annotated[int | None, Field(ge=1, le=10_000, description="Limit of steps. Default: the host's")] = None
    model: Annotated[str | None, Field(max_length=256, description="A model that the policy allows")] = None
    wait_s: WaitS = None


class SessionStatus(Arguments):
    """Of `session_status`."""

    session_id: Annotated[SessionId | None, Field(description="Default: all sessions on record, newest first")] = None
    task_id: Annotated[
        str | None, Field(min_length=1, max_length=128, description="Default: the session's last task")
    ] = None
    wait_s: Annotated[
        float, Field(ge=0, le=_MAX_WAIT_S, description="Seconds to wait for the task to be over. Default: 0")
    ] = 0.0


class Approve(Arguments):
    """Of `approve`."""

    session_id: SessionId
    approval_id: Annotated[str, Field(min_length=1, max_length=128)]
    decision: Literal["approved", "denied"]
    scope: Annotated[
        Literal["once", "task", "session"],
        Field(description="How far it holds for the same action. Default: once"),
    ] = "once"
    reason: Annotated[str, Field(max_length=2000)] = ""
    answers: Annotated[
        dict[str, str | int | float | bool | list[str]] | None,
        Field(description="Of an approval with `form`: what is filled in"),
    ] = None
    wait_s: WaitS = None


def what_is_wrong(error: ValidationError) -> str:
    """The first mistake, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"$.{place}: {first['msg']}" if place else first["msg"]


# The tasks extension of MCP 2026-07-28 (SEP-2663): `run_task` answers at once with a task that the client asks about.
#
# The SDK has no tasks of its own; it takes methods and kinds of results that it does not know. The task of the
# extension is the task of the session, by its id. What waits for a person is what the task asks for
# (`input_required`).

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

    def describe_created(self, session: HostedSession) -> dict[str, Any]:
        """The answer to the call that has begun the task."""
        return {"resultType": "task", **self._task(session.task_id, session.since, "working", session.doing)}

    async def _get(self, context: Context, params: _OfTask) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            report = await self._read_report(params.task_id)
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
            await self._read_report(params.task_id)
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
            await self._read_report(params.task_id)
        else:
            await session.cancel()
        return {}

    @staticmethod
    async def _refusable(answering: Any) -> None:
        try:
            await answering
        except Refused as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error

    async def _read_report(self, task_id: str) -> dict[str, Any]:
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
        return self._sessions.find_by_task(task_id)

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
