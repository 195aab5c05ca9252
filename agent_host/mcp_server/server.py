"""The tools of the MCP server: `run_task`, `session_status`, and `approve` if it is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO, TypeAlias

import anyio
import mcp_types as types
import orjson
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from agent_host.errors import AgentHostError
from agent_host.ids import MACHINE
from agent_host.mcp_server import (
    APPROVAL_REQUIRED,
    RUNNING,
    UNATTENDED_DENIAL,
    HostedSession,
    HostRefused,
    PersonsAnswer,
    answer_in,
    can_elicit,
    elicit,
    form_request,
)
from agent_host.rpc.messages import MAX_LINE_BYTES
from agent_host.version import __version__
from config.json_text import mend_halves

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server import ServerRequestContext

    from agent_host.mcp_server import WaitingCall

    Context: TypeAlias = ServerRequestContext[Any, Any]
    Reply: TypeAlias = dict[str, Any] | types.InputRequiredResult
    from collections.abc import Mapping, Sequence

    from agent_host.clients.supervisor import Starter
    from agent_host.mcp_server import Records


EXTENSION: Final = "io.modelcontextprotocol/tasks"
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
    """The server over `sessions`. With `allow_approve` the client itself may approve; otherwise only its user can,
    through elicitation."""

    def __init__(self, sessions: Sessions, *, allow_approve: bool) -> None:
        self._sessions = sessions
        self._allow_approve = allow_approve
        self._tools: dict[str, tuple[str, type[Arguments], Callable[..., Awaitable[Reply]]]] = {
            "run_task": (_RUN, RunTask, self._run_task),
            "session_status": (_STATUS, SessionStatusParams, self._session_status),
        }
        if allow_approve:
            self._tools["approve"] = (_APPROVE, Approve, self._approve)

    def server(self) -> Server[Any]:
        """Return the SDK's server with the tools, and with tasks for clients that support them."""
        server = Server[Any]("agent-host", version=__version__, instructions=_INSTRUCTIONS, on_list_tools=self._list)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call)
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", _OfTask, self._get_task)
        server.add_request_handler("tasks/update", _Update, self._update_task)
        server.add_request_handler("tasks/cancel", _OfTask, self._cancel_task)
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
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            return _failure("INVALID_REQUEST", f"$.{place}: {first['msg']}" if place else first["msg"])
        try:
            found = await run(context, params, arguments)
        except HostRefused as error:
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
                raise HostRefused("INVALID_REQUEST", "$.prompt: give a prompt, or the session of the task to continue")
            options = {"maxSteps": given.max_steps, "model": given.model}
            session = await self._sessions.run(
                given.prompt, given.session_id, {name: value for name, value in options.items() if value is not None}
            )
            if given.wait_s is None and self._wants_tasks(context):
                return {"resultType": "task", **_task(session.task_id, session.since, "working", session.doing)}
        else:
            await self._take_answers(session, params)
        return await self._follow(context, session, given.wait_s)

    async def _session_status(
        self, context: Context, params: types.CallToolRequestParams, given: SessionStatusParams
    ) -> Reply:
        session = self._session_of_answers(params)
        if session is not None:
            await self._take_answers(session, params)
        elif given.session_id is None:
            if given.task_id is not None:
                raise HostRefused("INVALID_REQUEST", "$.taskId: give the session of the task as well")
            return {"sessions": await asyncio.to_thread(self._sessions.records.list_sessions)}
        else:
            session = self._sessions.hosted.get(given.session_id)
        if session is None or given.task_id not in (None, session.task_id) or not session.task_id:
            return await asyncio.to_thread(self._sessions.records.report, str(given.session_id), given.task_id)
        return await self._await_report(context, session, given.wait_s)

    async def _approve(self, context: Context, _: types.CallToolRequestParams, given: Approve) -> Reply:
        session = self._sessions.hosted.get(given.session_id)
        if session is None or given.approval_id not in session.questions:
            raise HostRefused("INVALID_REQUEST", f"nothing waits for the approval {given.approval_id}")
        answer = PersonsAnswer(given.decision == "approved", given.scope, given.reason, given.answers)
        await session.answer(given.approval_id, answer)
        return await self._follow(context, session, given.wait_s)

    async def _follow(self, context: Context, session: HostedSession, wait_s: float | None) -> Reply:
        """Do as `_await_report` does; a client that cancels this call cancels the task."""
        try:
            return await self._await_report(context, session, wait_s)
        except asyncio.CancelledError:
            self._sessions.cancel_later(session)
            raise

    async def _await_report(self, context: Context, session: HostedSession, wait_s: float | None) -> Reply:
        """Return the report once the task has ended or `wait_s` have passed. Questions go to the client's user; if
        neither the user nor the client can answer, they are denied."""
        now = asyncio.get_running_loop().time
        ends = None if wait_s is None else now() + wait_s
        while True:
            left_s = None if ends is None else max(0.0, ends - now())
            if await self._wait(context, session, left_s) and session.questions:
                question = next(iter(session.questions.values()))
                if not can_elicit(context):
                    if not self._allow_approve:
                        await session.answer(question.approval_id, UNATTENDED_DENIAL)
                        continue
                elif ends is None or now() < ends:
                    if not context.session.can_send_request:
                        asked: types.InputRequests = {key: form_request(one) for key, one in session.questions.items()}
                        return types.InputRequiredResult(input_requests=asked, request_state=session.session_id)
                    await self._elicit(context, session, question, None if ends is None else ends - now())
                    continue
            return await session.report()

    async def _wait(self, context: Context, session: HostedSession, wait_s: float | None) -> bool:
        """Wait, reporting progress, until the task has ended or has a question; False if `wait_s` have passed
        before."""
        shown = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while session.is_running and not session.questions:
                    if session.activity != shown:
                        shown = session.activity
                        await context.session.report_progress(float(shown), None, session.doing)
                    await session.news()
        return not session.is_running or bool(session.questions)

    async def _elicit(
        self, context: Context, session: HostedSession, question: WaitingCall, wait_s: float | None
    ) -> None:
        """Ask the person, for at most `wait_s` and only as long as the question is open."""
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
        """Return the session whose questions the request answers, if it repeats an earlier one (MCP 2026-07-28), else
        None."""
        if params.request_state is None:
            return None
        session = self._sessions.hosted.get(params.request_state)
        if session is None:
            raise HostRefused("SESSION_NOT_FOUND", "the session of this request is over")
        return session

    async def _take_answers(self, session: HostedSession, params: types.CallToolRequestParams) -> None:
        for approval_id, response in (params.input_responses or {}).items():
            question = session.questions.get(approval_id)
            if question is not None and isinstance(response, types.ElicitResult):
                await session.answer_as(approval_id, answer_in(question, response))

    # The tasks extension of MCP 2026-07-28 (SEP-2663): `run_task` immediately returns a task that the client polls. The
    # SDK does not implement tasks, but it accepts unknown methods and kinds of results. The extension's task is the
    # session's task, with the same id. Its input requests are the questions that wait for a person.

    @staticmethod
    def _wants_tasks(context: Context) -> bool:
        capabilities = context.session.client_capabilities
        known = {} if capabilities is None else capabilities.extensions or {}
        return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in known

    async def _get_task(self, context: Context, params: _OfTask) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            report = await self._read_report(params.task_id)
            since = report.get("startedAt", MACHINE.stamp())
            if report["status"] in (RUNNING, APPROVAL_REQUIRED):
                return _task(params.task_id, since, "working", report["doing"])
            return self._over(params.task_id, since, report)
        if session.questions and not can_elicit(context) and not self._allow_approve:
            for approval_id in list(session.questions):
                await self._refusable(session.answer(approval_id, UNATTENDED_DENIAL))
        if not session.is_running:
            return self._over(session.task_id, session.since, await session.report())
        if session.questions and can_elicit(context):
            asked = {
                one.approval_id: form_request(one).model_dump(mode="json", by_alias=True, exclude_none=True)
                for one in session.questions.values()
            }
            task = _task(session.task_id, session.since, "input_required", "waiting for an answer")
            return {**task, "inputRequests": asked}
        doing = "APPROVAL_REQUIRED: see session_status" if session.questions else session.doing
        return _task(session.task_id, session.since, "working", doing)

    async def _update_task(self, context: Context, params: _Update) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session is None:
            await self._read_report(params.task_id)
            return {}
        for approval_id, response in params.input_responses.items():
            question = session.questions.get(approval_id)
            if question is not None:
                try:
                    answer = answer_in(question, types.ElicitResult.model_validate(response))
                except ValidationError as error:
                    raise MCPError(types.INVALID_PARAMS, f"inputResponses.{approval_id}: not an answer") from error
                await self._refusable(session.answer_as(approval_id, answer))
        return {}

    async def _cancel_task(self, context: Context, params: _OfTask) -> dict[str, Any]:
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
        except HostRefused as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error

    async def _read_report(self, task_id: str) -> dict[str, Any]:
        """Return the report of a task that no process of this server runs. Raises MCPError for an unknown task."""
        records = self._sessions.records
        try:
            session_id = await asyncio.to_thread(records.session_of, task_id)
            if session_id is not None:
                return await asyncio.to_thread(records.report, session_id, task_id)
        except AgentHostError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        raise MCPError(types.INVALID_PARAMS, "there is no such task")

    def _session(self, context: Context, task_id: str) -> HostedSession | None:
        """Return the session with this current task, if it has a process here. Raises MCPError if the client lacks the
        extension."""
        if not self._wants_tasks(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            message = f"tasks are for clients with the extension {EXTENSION}"
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)
        return self._sessions.find_by_task(task_id)

    def _over(self, task_id: str, since: str, report: dict[str, Any]) -> dict[str, Any]:
        if report["status"] == "TASK_CANCELLED":
            return _task(task_id, since, "cancelled", str(report.get("message", "")))
        result = _result(report).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**_task(task_id, since, "completed", ""), "result": {"resultType": "complete", **result}}


def _task(task_id: str, since: str, status: str, message: str) -> dict[str, Any]:
    fields = {"statusMessage": message} if message else {}
    return {
        "taskId": task_id,
        "status": status,
        **fields,
        "createdAt": since,
        "lastUpdatedAt": MACHINE.stamp(),
        "ttlMs": 3_600_000,
        "pollIntervalMs": 1000,
    }


def _result(found: dict[str, Any]) -> types.CallToolResult:
    text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
    failed = found.get("status") in ("TASK_FAILED", "SESSION_PAUSED") and "taskId" in found
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=found, is_error=failed)


def _failure(code: str, message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=f"{code}: {message}")], is_error=True)


# Arguments of the tools of the MCP server. The models are also their input schemas.

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
    """Base of all arguments; unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


class RunTask(Arguments):
    """Arguments of `run_task`."""

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


class SessionStatusParams(Arguments):
    """Arguments of `session_status`."""

    session_id: Annotated[SessionId | None, Field(description="Default: all sessions on record, newest first")] = None
    task_id: Annotated[
        str | None, Field(min_length=1, max_length=128, description="Default: the session's last task")
    ] = None
    wait_s: Annotated[
        float, Field(ge=0, le=_MAX_WAIT_S, description="Seconds to wait for the task to be over. Default: 0")
    ] = 0.0


class Approve(Arguments):
    """Arguments of `approve`."""

    session_id: SessionId
    approval_id: Annotated[str, Field(min_length=1, max_length=128)]
    decision: Literal["approved", "denied"]
    scope: Annotated[
        Literal["once", "task", "session"], Field(description="How far it holds for the same action. Default: once")
    ] = "once"
    reason: Annotated[str, Field(max_length=2000)] = ""
    answers: Annotated[
        dict[str, str | int | float | bool | list[str]] | None,
        Field(description="Of an approval with `form`: what is filled in"),
    ] = None
    wait_s: WaitS = None


class _OfTask(types.RequestParams):
    task_id: str


class _Update(_OfTask):
    input_responses: dict[str, Any]


# The sessions of one server: their processes, their tasks, and the choice of a process to end for another.

MAX_SESSIONS: Final = 8
"""Maximum number of processes. To start one more, the idle process that was used least recently is ended."""
_NO_TASK: Final = "the session has no open task: give a prompt"


class Sessions:
    """The sessions of one server. `starter` starts the process of each, with the options `arguments` of `serve`;
    `records` has their records and those of other sessions."""

    def __init__(self, starter: Starter, arguments: Sequence[str], records: Records) -> None:
        self._starter = starter
        self._arguments = ("serve", *arguments)
        self.records = records
        self.hosted: dict[str, HostedSession] = {}
        """Sessions that have a process here, by id, in order of last use."""
        self._background: set[asyncio.Task[None]] = set()
        self._starting = 0
        """Number of sessions whose process is being started."""
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Locks by session, so that only one caller at a time hands it a task or ends its process."""
        self.closing = False

    def find_by_task(self, task_id: str) -> HostedSession | None:
        """Return the session with this current task."""
        return next((one for one in self.hosted.values() if one.task_id == task_id), None)

    async def run(self, prompt: str | None, session_id: str | None, options: Mapping[str, Any]) -> HostedSession:
        """Hand a task to a new session or to the given one; without a prompt, the latter's open task continues. Raises
        HostRefused, OSError if no process can be started."""
        if session_id is None:
            return await self._hand_over(prompt, None, options)
        async with self._turn(session_id):
            return await self._hand_over(prompt, session_id, options)

    def _turn(self, session_id: str) -> asyncio.Lock:
        return self._turns.setdefault(session_id, asyncio.Lock())

    async def _hand_over(self, prompt: str | None, session_id: str | None, options: Mapping[str, Any]) -> HostedSession:
        session = self.hosted.get(session_id or "")
        if session is None and session_id is not None:
            await asyncio.to_thread(self.records.refuse_others, session_id)
        if session is not None and session.is_paused and prompt is None:
            await self._end(session)
            session = None
        if session is None:
            session = await self._open_session(session_id, continues=prompt is None)
        elif prompt is None and not session.is_running:
            raise HostRefused("INVALID_REQUEST", _NO_TASK)
        self.hosted[session.session_id] = self.hosted.pop(session.session_id, session)
        if prompt is not None:
            await session.start(prompt, options)
        return session

    def cancel_later(self, session: HostedSession) -> None:
        """Cancel the session's task in the background, for a client that no longer waits for it."""

        async def cancel() -> None:
            if not self.closing:  # a client that disconnects cancels nothing
                await session.cancel()

        task = asyncio.create_task(cancel())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def aclose(self) -> None:
        """End all processes. Running tasks stay resumable."""
        self.closing = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*(session.leave() for session in self.hosted.values()))
        self.hosted.clear()
        await self._starter.aclose()

    async def _open_session(self, session_id: str | None, *, continues: bool) -> HostedSession:
        await self._make_room()
        self._starting += 1
        session = HostedSession(self.records)
        try:
            environment = dict(os.environ)  # passes tokens, which the process table does not show
            process = await self._starter.start(self._arguments, environment=environment, directory=os.getcwd())
            had_task = await session.open(process, session_id, continues=continues)
            if had_task and not continues:
                message = "the session has an open task: leave out the prompt to continue it"
                raise HostRefused("INVALID_REQUEST", message)
            if session_id is not None and continues and not had_task:
                raise HostRefused("INVALID_REQUEST", _NO_TASK)
        except BaseException:
            await session.leave()
            raise
        finally:
            self._starting -= 1
        self.hosted[session.session_id] = session
        return session

    async def _make_room(self) -> None:
        """Make room for one more process. There is no await between the last check and the return."""
        while len(self.hosted) + self._starting >= MAX_SESSIONS:
            free = (one for key, one in self.hosted.items() if not one.is_running and not self._turn(key).locked())
            idle = next(free, None)
            if idle is None:
                raise HostRefused("RATE_LIMITED", f"{MAX_SESSIONS} tasks are running; wait for one of them")
            async with self._turn(idle.session_id):
                await self._end(idle)

    async def _end(self, session: HostedSession) -> None:
        self.hosted.pop(session.session_id, None)  # the server may have ended before
        await session.leave()


# One connection of the MCP server, from the first byte to the end of the last session.


async def serve(
    sessions: Sessions, streams: tuple[TextIO, TextIO], stop: asyncio.Future[int], *, allow_approve: bool
) -> int | None:
    """Serve a client until it disconnects (return None) or `stop` is set (return its result). `streams` are the input
    and the output. Tasks that run at the end stay resumable."""
    read_from, write_to = streams
    server = TaskServer(sessions, allow_approve=allow_approve).server()

    async def connection() -> None:
        lines = _Lines(read_from, sessions)
        async with stdio_server(lines, anyio.wrap_file(write_to)) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    serving = asyncio.ensure_future(connection())
    try:
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        return stop.result() if stop.done() else None
    finally:
        await sessions.aclose()
        if serving.done():
            await serving
        else:
            serving.cancel()


class _Lines(anyio.AsyncFile[str]):
    """Standard input in lines of at most 32 MiB. If the client disconnects, the sessions close and no task is
    cancelled."""

    def __init__(self, file: TextIO, sessions: Sessions) -> None:
        super().__init__(file)
        self._file = file
        self._sessions = sessions

    async def readline(self) -> str:
        """Return the next line, empty at the end; a line that is too long ends the connection."""
        line = await anyio.to_thread.run_sync(self._file.readline, MAX_LINE_BYTES + 1, abandon_on_cancel=True)
        if len(line) > MAX_LINE_BYTES:
            line = ""
        if not line:
            self._sessions.closing = True
        return mend_halves(line)
