"""The public API, as `import agent_host` offers it: run a task, open or resume a session, approve, watch events.

A program that embeds the host stays as it is: nothing is read from its environment but configuration, no signal handler
is set, and what commands leave behind is ended with the session, not with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_host.app.assembly import Tokens
from agent_host.app.headless import OneLaunch, new_session, run_headless
from agent_host.app.launches import is_text, launch_of, portable, settings_from, state_dir_from
from agent_host.app.opener import SessionOpener
from agent_host.approval.gate import InAdvance, UnattendedGate
from agent_host.approval.request import ApprovalAnswer, ApprovalRequest
from agent_host.errors import NoActiveTask, UsageError
from agent_host.ids import new_id
from agent_host.session.opening import recorded_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from agent_host.events.emitter import Event
    from agent_host.session.lifecycle import Session as OpenSession
    from agent_host.session.opening import Launch

Decision = bool | ApprovalAnswer
Approve = Callable[[ApprovalRequest], Decision | Awaitable[Decision]]
"""Answers one request for approval, as long as it takes. True approves this call once."""
OnEvent = Callable[[Mapping[str, Any]], object]
"""Takes one event as docs/events.md has it, without secrets. It is called from the event loop and never waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session is started or resumed with; None leaves it to the configuration, or to the session on record.

    `policy` is a built-in's name or a bundle file, `gateway` a URL or `mock:FILE`. `token` is the gateway's and
    `services_token` the backend services'; neither is taken from the environment. `settings` are others of
    config/defaults.toml, by `section.name`. `approvals` are what is approved in advance: rule ids, tool and capability
    names. `guard_processes` ends what commands started also when this process is killed; one session at a time may ask
    for it, and it takes every child of this process for its own.
    """

    workspace: str | os.PathLike[str] | None = None
    policy: str | os.PathLike[str] | None = None
    gateway: str | None = None
    model: str | None = None
    max_steps: int | None = None
    token: str | None = None
    services_token: str | None = None
    state_dir: str | os.PathLike[str] | None = None
    session_id: str | None = None
    approvals: Collection[str] = ()
    approve_all: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    guard_processes: bool = False

    @property
    def flags(self) -> dict[str, Any]:
        """The settings that are given, by key."""
        given = {
            "host.policy": None if self.policy is None else os.fspath(self.policy),
            "llm.gateway": self.gateway,
            "llm.model": self.model,
            "host.max_steps": self.max_steps,
        }
        return portable({**self.settings, **{key: value for key, value in given.items() if value is not None}})

    @property
    def tokens(self) -> Tokens:
        """The tokens that were given."""
        return Tokens(self.token or None, self.services_token or None)


@dataclass(frozen=True, slots=True)
class Result:
    """How a task ended. `status` is TASK_COMPLETED, TASK_FAILED, TASK_CANCELLED or SESSION_PAUSED, `reason` a
    documented name where it is not completed, `text` the model's last answer. `details` is the whole result object of
    the command line. `resumable`: `resume_task` can go on with it, or approve what was denied because nobody was
    there."""

    session_id: str
    task_id: str
    status: str
    reason: str | None
    text: str
    step_count: int
    resumable: bool
    details: Mapping[str, Any]

    @property
    def completed(self) -> bool:
        """Whether the model said that it is done."""
        return self.status == "TASK_COMPLETED"


async def run_task(
    prompt: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Start a session, run one task in it to its end, and end the session.

    Without `approve` nobody is there to be asked: what needs an approval that `options` do not give is denied.
    Cancelling leaves the session resumable. Raises AgentHostError for what keeps the session from starting; everything
    later is in the result.
    """
    options = options or SessionOptions()
    return await _run(_new(options), prompt, options, approve, on_event)


async def resume_task(
    session_id: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Go on with the task of a session that another process left, to its end; see `run_task`. Raises SessionNotFound,
    SessionHeld, CheckpointUnreadable and what `run_task` raises."""
    options = options or SessionOptions()
    return await _run(_again(session_id, options), None, options, approve, on_event)


class Session:
    """An open session, for one task after the other. Made by `open_session` and `resume_session`."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        """The session's id, by which it can be resumed."""
        return self._session.session_id

    @property
    def unfinished(self) -> str | None:
        """The prompt of the task that `go_on` goes on with, None where there is none."""
        task = self._session.incomplete_task
        return None if task is None else str(task["prompt"])

    async def run(self, prompt: str, *, max_steps: int | None = None) -> Result:
        """Run a task to its end. Raises TaskAlreadyRunning, SessionNotReady, CheckpointWriteFailed. Cancelling stops
        the task and leaves it open on record."""
        self._session.start_task(new_id("task"), _checked(prompt), max_steps=max_steps)
        return await self._ended()

    async def go_on(self) -> Result:
        """Go on with the unfinished task, to its end; see `run`. Raises NoActiveTask where there is none."""
        if self._session.incomplete_task is None:
            raise NoActiveTask(f"session {self.id} has no unfinished task")
        self._session.go_on()
        return await self._ended()

    def cancel(self, *, force: bool = False) -> None:
        """Cancel the running task for good. It stops when its running tools are done; `force` ends them at once. Does
        nothing where no task runs."""
        task = self._session.incomplete_task
        if task is not None and self._session.busy:
            self._session.cancel_task(task["taskId"], force=force)

    async def _ended(self) -> Result:
        try:
            end = await self._session.task_ended()
        except asyncio.CancelledError:
            self._session.interrupt()
            raise
        return _result(self._session.result(end), resumable=end.resumable)


@contextlib.asynccontextmanager
async def open_session(
    options: SessionOptions | None = None, *, approve: Approve | None = None, on_event: OnEvent | None = None
) -> AsyncIterator[Session]:
    """A new session, which ends with the block: cleanly where the block does, else it stays resumable. Raises
    AgentHostError for what keeps it from starting."""
    options = options or SessionOptions()
    launch = _new(options)
    opener = _opener(launch, options, approve, on_event)
    opened = await opener.create(new_session(launch, "desktop"))
    opened.session.announce("desktop")
    async with _held(opened.session) as session:
        yield session


@contextlib.asynccontextmanager
async def resume_session(
    session_id: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Session]:
    """A session that another process left, as it was started, with `options` over it; see `open_session`."""
    options = options or SessionOptions()
    opener = _opener(_again(session_id, options), options, approve, on_event)
    opened = await opener.resume(session_id, cursor=None)
    async with _held(opened.session) as session:
        yield session


async def _run(
    launch: Launch, prompt: str | None, options: SessionOptions, approve: Approve | None, on_event: OnEvent | None
) -> Result:
    finished = await run_headless(
        launch,
        None if prompt is None else _checked(prompt),
        max_steps=options.max_steps,
        sinks=_sinks(on_event),
        on_open=lambda _: None,
        on_end=lambda _: None,
        gate=_gate(launch, approve),
        tokens=options.tokens,
        owns_process=options.guard_processes,
    )
    await asyncio.sleep(0)  # for the events of the end
    return _result(finished.result, resumable=finished.end.resumable or bool(finished.result["deniedApprovals"]))


def _new(options: SessionOptions) -> Launch:
    return launch_of(
        _flags(options),
        workspace=os.fspath(options.workspace or "."),
        state_dir=_state_dir(options),
        session_id=options.session_id,
        approvals=options.approvals,
        approve_all=options.approve_all,
        given_by=_GIVEN_BY,
    )


def _again(session_id: str, options: SessionOptions) -> Launch:
    state_dir = _state_dir(options)
    limit = settings_from(options.settings, workspace=None, given_by=_GIVEN_BY).integer("host.max_snapshot_bytes")
    recorded = recorded_options(state_dir, session_id, snapshot_limit_bytes=limit)
    return launch_of(
        {**recorded["flags"], **_flags(options)},
        workspace=os.fspath(options.workspace or recorded["workspace"]),
        state_dir=state_dir,
        session_id=session_id,
        approvals=options.approvals,
        approve_all=options.approve_all,
        given_by=_GIVEN_BY,
    )


def _state_dir(options: SessionOptions) -> str:
    return state_dir_from(None if options.state_dir is None else os.fspath(options.state_dir))


def _flags(options: SessionOptions) -> dict[str, Any]:
    """Raises UsageError for a text that no record can hold."""
    flags = options.flags
    for value in (options.session_id, *options.approvals, *flags.values()):
        if isinstance(value, str) and not is_text(value):
            raise UsageError(f"{_GIVEN_BY}: {value!r} is not UTF-8")
    return flags


def _opener(
    launch: Launch, options: SessionOptions, approve: Approve | None, on_event: OnEvent | None
) -> SessionOpener:
    gate = _gate(launch, approve) or UnattendedGate(launch.approvals, approve_all=launch.approve_all)
    return SessionOpener(
        OneLaunch(launch),
        gate=lambda _: gate,
        watch=lambda _: _sinks(on_event),
        tokens=options.tokens,
        owns_process=options.guard_processes,
    )


@contextlib.asynccontextmanager
async def _held(session: OpenSession) -> AsyncIterator[Session]:
    is_clean = False
    try:
        yield Session(session)
        is_clean = True
    finally:
        if is_clean and session.incomplete_task is None:
            await session.shut_down("closed")
        else:
            await session.leave()
        await asyncio.sleep(0)  # for the events of the end


_GIVEN_BY = "SessionOptions"


class _Callback:
    """A gate that asks the embedding program for what was not approved in advance."""

    def __init__(self, launch: Launch, approve: Approve) -> None:
        self._in_advance = InAdvance(launch.approvals, launch.approve_all)
        self._approve = approve

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See ApprovalGate."""
        answer = self._in_advance.answer(request)
        if answer is not None:
            return answer
        decided = self._approve(request)
        if inspect.isawaitable(decided):
            decided = await decided
        return decided if isinstance(decided, ApprovalAnswer) else ApprovalAnswer(bool(decided), "")


def _gate(launch: Launch, approve: Approve | None) -> _Callback | None:
    return None if approve is None else _Callback(launch, approve)


class _EventCallback:
    """A sink that hands events to the embedding program in the next turn of the event loop, where a fault of the
    callback is that program's and stops nothing here."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def take(self, event: Event) -> None:
        """See Sink."""
        asyncio.get_running_loop().call_soon(self._on_event, json.loads(event.line()))

    def flush(self) -> None:
        """See Sink."""


def _sinks(on_event: OnEvent | None) -> list[_EventCallback]:
    return [] if on_event is None else [_EventCallback(on_event)]


def _checked(prompt: str) -> str:
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    return prompt.encode("utf-8", "replace").decode()


def _result(details: Mapping[str, Any], *, resumable: bool) -> Result:
    return Result(
        details["sessionId"],
        details["taskId"],
        details["status"],
        details["reason"],
        details["text"],
        details["stepCount"],
        resumable,
        details,
    )
