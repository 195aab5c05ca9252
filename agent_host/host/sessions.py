"""An open session: one task after the other, approvals and events."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_host.approval import ApprovalAnswer, ApprovalRequest
from agent_host.approval.gate import InAdvance, PendingApprovals, UnattendedGate
from agent_host.errors import NoActiveTask, UsageError
from agent_host.host.backends import Tokens
from agent_host.host.environment import CAPABILITIES
from agent_host.host.opening import SessionOpener
from agent_host.host.options import LayeredOptions, SessionOptions
from agent_host.host.records import Result, result_of, stored_sessions
from agent_host.http import displayable_url
from agent_host.services.session import NewSession
from agent_host.session.opening import LOCAL
from agent_host.session.tasks import NewTask, title_of
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from policy.rules import AS_THE_BUNDLE_SAYS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Sequence

    from agent_host.approval.gate import ApprovalGate, OnAsked
    from agent_host.events.emitter import Event, Sink
    from agent_host.host.remote_tools import RecordedToolService
    from agent_host.session.lifecycle import LiveSession
    from agent_host.session.opening import ResolvedOptions
    from agent_host.session.patches import WholePatch
    from agent_host.session.transcript import Item
    from agent_host.states import TaskEnd
    from policy.rules import TaskOptions
    from state.file_session import LoadReport


class Closing(NamedTuple):
    """The leftovers of a session's end. `result_file` is the file with the result, None if there is none; `problem` is
    what failed on the disk, in one line; `resumable` is True if the session can be resumed because of that;
    `undelivered` has one line for each observer that did not get all events."""

    result_file: str | None
    problem: str | None
    resumable: bool
    undelivered: tuple[str, ...]


class Session:
    """An open session, for one task after the other. Made by `open_session` and `resume_session`."""

    def __init__(self, session: LiveSession, resolved: ResolvedOptions, events: _Events | None = None) -> None:
        self._session = session
        self._resolved = resolved
        self._events = events
        approved = session.replays_approved(resolved.approvals, everything=resolved.approve_all)
        self._replays = resolved.replays | approved

    @property
    def id(self) -> str:
        """The session's id, by which it can be resumed."""
        return self._session.session_id

    @property
    def unfinished(self) -> str | None:
        """The prompt of the task that `go_on` continues, None if there is none."""
        task = self._session.incomplete_task
        return None if task is None else str(task["prompt"])

    @property
    def resumed_notice(self) -> str:
        """The resumed session in one line: its id, its directory, and the step and prompt of its task."""
        task = self._session.incomplete_task
        of_task = "" if task is None else f" at step {task['stepCount'] + 1}: {title_of(task['prompt'])}"
        return f"resuming {self.id} in {self._resolved.workspace}{of_task}"

    @property
    def found_on_disk(self) -> tuple[str, ...]:
        """Problems that were repaired in the files of a resumed session, one line each."""
        return tuple(_found(self._session.ctx.journal.store.report))

    @property
    def unknown_approvals(self) -> tuple[str, ...]:
        """Entries of `approvals` that name no rule, tool or capability of the resumed session's policy."""
        return tuple(self._session.unknown_approvals(self._resolved.approvals))

    @property
    def provider_notice(self) -> str | None:
        """The provider, its model and URL, in one line; None for a gateway."""
        provider = self._resolved.settings.provider
        if provider is None:
            return None
        model = self._session.ctx.conversation.model
        return f"{provider.name}: {model} at {displayable_url(provider.base_url)} ({provider.why})"

    @property
    def policy_notice(self) -> str | None:
        """A note on what a bundle of your own allows beyond what it names, in one line; None if there is nothing to
        report."""
        return self._session.policy_notice()

    @property
    def sandbox_notice(self) -> str | None:
        """A warning that commands run without a sandbox, and why, in one line; None with a sandbox, or if none was
        requested."""
        return self._session.sandbox_notice()

    @property
    def closing(self) -> Closing:
        """Its `Closing`; complete once the session has ended."""
        ending = self._session.ending
        return Closing(ending.kept_at, ending.unkept, ending.stays, tuple(self._session.undelivered()))

    async def run(self, prompt: str, *, max_steps: int | None = None, model: str | None = None) -> Result:
        """Run a task to its end, with `model` in place of the session's. Raises UsageError for a model that the policy
        does not allow, TaskAlreadyRunning, SessionNotReady, CheckpointWriteFailed. Cancelling stops the task and leaves
        it open."""
        self._session.start_task(
            self._session.ctx.outside.new_id("task"), check_prompt(prompt), max_steps=max_steps, model=model
        )
        return await self._ended()

    async def go_on(self) -> Result:
        """Continue the unfinished task, to its end; see `run`. Denied calls that `approvals` name are run first; for
        them, a task that had ended is continued as well. Raises NoActiveTask if there is no task, UsageError if there
        is no such call."""
        if self._session.incomplete_task is None and not self._replays:
            raise NoActiveTask(f"session {self.id} has no unfinished task")
        self._session.continue_task(max_steps=self._resolved.max_steps, replay_ids=self._replays)
        self._replays = frozenset()
        return await self._ended()

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events from now on, as `on_event` gets them, until the session is over. An iterator that lags more
        than 10,000 events loses the oldest; `droppedEvents` of the next one has their number. Raises UsageError in a
        process that shows the events itself."""
        if self._events is None:
            raise UsageError("this session's events go to the process that runs it")
        queue = self._events.listen()
        while (event := await queue.get()) is not None:
            yield event

    def cancel(self, *, force: bool = False) -> None:
        """Cancel the running task for good. It stops when its running tools are done; `force` terminates them at once.
        Does nothing if no task runs."""
        task = self._session.incomplete_task
        if task is not None and self._session.tasks.busy:
            self._session.tasks.cancel(task["taskId"], force=force)

    def interrupt(self) -> None:
        """Stop the running task when its running tools are done, and leave it open."""
        self._session.interrupt()

    def end_by_time(self, words: str) -> None:
        """Stop the running task immediately because its time is over, with the reason `words`, and leave it open."""
        self._session.end_by_time(words)

    def cut_off(self) -> Result:
        """Return the result of the running task for a process that is ended by force."""
        return _result(self._session, self._session.cut_off())

    def patch(self, task_id: str | None = None) -> str:
        """Return the changes of the session in its workspace so far, or of one of its tasks, as a unified diff."""
        return self._session.changes.render(task_id)

    def whole_patch(self, without: Collection[str] = ()) -> WholePatch:
        """Return all changes of the session in a form that `git apply` accepts in another copy of its workspace,
        without the files at the real paths of `without`."""
        return self._session.changes.whole_patch(without)

    def transcript(self, task_id: str) -> list[Item]:
        """Return the items of one of its tasks so far, as in `agent-host show --output json`."""
        self._session.ctx.emitter.flush()
        return stored_sessions(self._resolved.state_dir).record(self.id).items(task_id)

    async def _ended(self) -> Result:
        try:
            end = await self._session.tasks.await_end()
        except asyncio.CancelledError:
            self._session.interrupt()
            raise
        return _result(self._session, end)


@contextlib.asynccontextmanager
async def open_session(
    options: SessionOptions | None = None, *, approve: Approve | None = None, on_event: OnEvent | None = None
) -> AsyncIterator[Session]:
    """Open a new session, which ends with the block: cleanly if the block does, else it stays resumable. Raises
    AgentHostError if it cannot start."""
    async with open_recorded(options or SessionOptions(), approve, on_event, None) as session:
        yield session


@contextlib.asynccontextmanager
async def open_recorded(
    options: SessionOptions, approve: Approve | None, on_event: OnEvent | None, recorded: RecordedToolService | None
) -> AsyncIterator[Session]:
    """As `open_session`, with `recorded` in place of the Backend Tool Service."""
    resolved = LayeredOptions(options).new()

    async def begin(opener: SessionOpener) -> LiveSession:
        session = (await opener.create(new_session(resolved))).session
        session.announce("desktop")
        return session

    async with _open(resolved, options, approve, on_event, begin, recorded) as session:
        yield session


@contextlib.asynccontextmanager
async def resume_session(
    session_id: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Session]:
    """Resume a session that another process left, with its own options overridden by `options`; see `open_session`."""
    options = options or SessionOptions()
    resolved = LayeredOptions(options).resolve_resume(session_id)

    async def resume(opener: SessionOpener) -> LiveSession:
        return (await opener.resume(session_id, cursor=None)).session

    async with _open(resolved, options, approve, on_event, resume) as session:
        yield session


def tokens_of(options: SessionOptions) -> Tokens:
    """The tokens that were given, and the key."""
    given = (options.token, options.services_token, options.tools_token, options.grant_key)
    return Tokens(*(one or None for one in given))


def check_prompt(prompt: str) -> str:
    """The prompt as a record can hold it. Raises UsageError for an empty one."""
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    return prompt.encode("utf-8", "replace").decode()


@contextlib.asynccontextmanager
async def _open(
    resolved: ResolvedOptions,
    options: SessionOptions,
    approve: Approve | None,
    on_event: OnEvent | None,
    begin: Callable[[SessionOpener], Awaitable[LiveSession]],
    recorded: RecordedToolService | None = None,
) -> AsyncIterator[Session]:
    events, is_clean = _Events(on_event), False
    session = await begin(_opener(resolved, options, approve, [events], recorded))
    try:
        yield Session(session, resolved, events)
        is_clean = True
    finally:
        if is_clean and session.incomplete_task is None:
            await session.shut_down("closed")
        else:
            await session.detach()
        events.end()
        await asyncio.sleep(0)  # for the events of the end


def _opener(
    resolved: ResolvedOptions,
    options: SessionOptions,
    approve: Approve | None,
    sinks: Sequence[Sink],
    recorded: RecordedToolService | None = None,
) -> SessionOpener:
    return SessionOpener(
        resolved,
        gate=lambda _: gate_of(resolved, approve),
        watch=lambda _: sinks,
        tokens=tokens_of(options),
        owns_process=options.guard_processes,
        tools=tuple(options.tools),
        recorded=recorded,
    )


def _found(report: LoadReport) -> Iterator[str]:
    if report.torn_bytes:
        kept = f"; the files are kept as {report.kept_aside}" if report.kept_aside else ""
        yield f"{report.torn_bytes} bytes of a record that was not whole were dropped{kept}"
    if report.restored:
        kept = f"; it is kept as {report.kept_aside}" if report.kept_aside else ""
        yield f"the newest checkpoint was damaged on disk, and what stands beside it has replaced it{kept}"
    if report.lost_blobs:
        yield f"{len(report.lost_blobs)} large texts of this session are damaged on disk; the model reads where"
    if report.made_private:
        yield "others could read the files of this session; they no longer can"


# Callbacks of an embedding program: approvals and events.

Decision = bool | ApprovalAnswer
Approve = Callable[[ApprovalRequest], Decision | Awaitable[Decision]]
"""Answers an approval request, taking as long as it needs. True approves this call once."""
OnEvent = Callable[[Mapping[str, Any]], object]
"""Takes one event in the form of docs/events.md, without secrets. It is called from the event loop, and nothing waits
for it."""


def gate_of(resolved: ResolvedOptions, approve: Approve | None, on_asked: OnAsked | None = None) -> ApprovalGate:
    """The gate of a session: `approve` decides calls that were not approved in advance; without it they are denied.
    `on_asked` as PendingApprovals has it."""
    if approve is None:
        return UnattendedGate(resolved.approvals, approve_all=resolved.approve_all)

    async def prompt(request: ApprovalRequest) -> ApprovalAnswer:
        decided = approve(request)
        if inspect.isawaitable(decided):
            decided = await decided
        return decided if isinstance(decided, ApprovalAnswer) else ApprovalAnswer(bool(decided), "")

    in_advance = InAdvance(resolved.approvals, resolved.approve_all)
    timeout_s = resolved.settings.approvals.timeout_s
    return PendingApprovals(timeout_s=timeout_s, in_advance=in_advance, prompt=prompt, on_asked=on_asked)


class _Events:
    """A sink that passes events to the embedding program in the next turn of the event loop, so that an exception of
    the callback is that program's and stops nothing here, and to iterators over them."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._queues: list[asyncio.Queue[Mapping[str, Any] | None]] = []
        self._is_over = False

    def listen(self) -> asyncio.Queue[Mapping[str, Any] | None]:
        """A queue of the events from now on; None follows the last one."""
        queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._queues.append(queue)
        if self._is_over:
            queue.put_nowait(None)
        return queue

    def take(self, event: Event) -> None:
        if self._on_event is None and not self._queues:
            return
        line = json.loads(event.line())
        if self._on_event is not None:
            asyncio.get_running_loop().call_soon(self._on_event, line)
        for queue in self._queues:
            dropped = 0
            while queue.qsize() >= _MOST_QUEUED:
                lost = queue.get_nowait() or {}
                dropped += 1 + lost.get("droppedEvents", 0)
            queue.put_nowait({**line, "droppedEvents": dropped} if dropped else line)

    def flush(self) -> None:
        """See Sink."""

    def end(self) -> None:
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)


_MOST_QUEUED = 10_000


# One task from start to end, in a session of its own.
#
# A program that embeds the host stays as it is: only configuration is read from its environment, no signal handler is
# set, and leftover processes of commands are terminated with the session, not with the process.

OnOpen = Callable[[Session], object]
"""Takes the session of a task once it is open, before the task begins."""
OnResult = Callable[[Result], object]
"""Takes the result before the session ends: if the process dies before it returns, a resume gives the same result."""


async def run_task(
    prompt: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
    on_open: OnOpen | None = None,
    on_result: OnResult | None = None,
) -> Result:
    """Start a session, run one task in it to its end, and end the session.

    Without `approve`, calls that need an approval are denied unless `options` give it. `on_open` gets the session,
    which can be interrupted or cancelled, and `on_result` the result before the session ends. Cancelling leaves the
    session resumable. Raises AgentHostError if the session cannot start; later problems are in the result.
    """
    options = options or SessionOptions()
    resolved = LayeredOptions(options).new()
    return await _run(resolved, check_prompt(prompt), options, approve, on_event, on_open, on_result, resumes=False)


async def resume_task(
    session_id: str,
    options: SessionOptions | None = None,
    *,
    prompt: str | None = None,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
    on_open: OnOpen | None = None,
    on_result: OnResult | None = None,
) -> Result:
    """Continue the task of a session that another process left, to its end; see `run_task`. `prompt` is the next task
    of a session whose last task is over, also of a session that has ended. Raises SessionNotFound, SessionHeld,
    CheckpointUnreadable and what `run_task` raises."""
    options = options or SessionOptions()
    source = LayeredOptions(options)
    if prompt is not None:
        prompt = check_prompt(prompt)
    resolved = source.resolve_resume(session_id, ended_too=prompt is not None)
    return await _run(resolved, prompt, options, approve, on_event, on_open, on_result, resumes=True)


async def _run(
    resolved: ResolvedOptions,
    prompt: str | None,
    options: SessionOptions,
    approve: Approve | None,
    on_event: OnEvent | None,
    on_open: OnOpen | None,
    on_result: OnResult | None,
    *,
    resumes: bool,
) -> Result:
    opener = _opener(resolved, options, approve, [] if on_event is None else [_Events(on_event)])
    result = await run_headless(
        opener,
        resolved,
        prompt,
        resumes=resumes,
        on_open=lambda session: None if on_open is None else on_open(Session(session, resolved)),
        on_end=on_result,
    )
    await asyncio.sleep(0)  # for the events of the end
    return result


async def run_headless(
    opener: SessionOpener,
    resolved: ResolvedOptions,
    prompt: str | None,
    *,
    resumes: bool | None = None,
    on_open: Callable[[LiveSession], object] = lambda _: None,
    on_end: OnResult | None = None,
    task_options: TaskOptions = AS_THE_BUNDLE_SAYS,
    mode: Mapping[str, str] | None = None,
) -> Result:
    """One task: `prompt` starts a session, None resumes the one of `resolved`; with `resumes` a prompt is the next task
    of that one, whose last task has to be over. `mode` applies before the task continues: a process that dies in
    between leaves no task that runs without it. `task_options` narrow a task that starts.

    `on_end` gets the result while the checkpoint is still there: a process that dies in between leaves a session whose
    resume reports it again. Raises AgentHostError if the session cannot start; every later error is in the result.
    """
    new_id = opener.outside.new_id
    resumes = prompt is None if resumes is None else resumes
    new_task = None
    if prompt is not None and not resumes:
        new_task = NewTask(new_id("task"), prompt, resolved.settings.host.max_steps, task_options)
    session = await _open_headless(opener, resolved, new_task)
    end: TaskEnd | None = None
    try:
        if mode:
            await opener.set_mode(session, mode)
        on_open(session)
        if prompt is None:
            approved = session.replays_approved(resolved.approvals, everything=resolved.approve_all)
            session.continue_task(max_steps=resolved.max_steps, replay_ids=resolved.replays | approved)
        elif resumes:
            session.announce_return()
            session.start_task(new_id("task"), prompt, max_steps=resolved.max_steps, options=task_options)
        else:
            session.tasks.start_recorded()
        end = await session.tasks.await_end()
        while session.tasks.busy:  # a client's queued tasks follow
            end = await session.tasks.await_end()
        await session.end_uploads(end)
        result = _result(session, end)
        result = dataclasses.replace(result, resumable=end.resumable or bool(result.details["deniedApprovals"]))
        if on_end is not None:
            on_end(_check_resumable(result))
    finally:
        await session.conclude(end)
    return _check_resumable(result)


async def _open_headless(opener: SessionOpener, resolved: ResolvedOptions, new_task: NewTask | None) -> LiveSession:
    """A new session with the task `new_task`, else the one of `resolved`."""
    if new_task is not None:
        session = (await opener.create(new_session(resolved), new_task)).session
        session.announce("desktop")
        return session
    if resolved.session_id is None:
        raise UsageError("a resume needs the id of its session")
    return (await opener.resume(resolved.session_id, cursor=None)).session


def _check_resumable(result: Result) -> Result:
    return dataclasses.replace(result, resumable=result.resumable and os.path.isdir(result.records))


def _result(session: LiveSession, end: TaskEnd) -> Result:
    records, is_open = session.paths.records, end.resumable
    return result_of(session.result(end), end.message, records, unfinished=is_open, resumable=is_open)


def new_session(resolved: ResolvedOptions) -> NewSession:
    """The request for a session of this machine's own user."""
    client = {"name": "agent-host", "version": __version__}
    return NewSession(LOCAL, LOCAL, "desktop", (resolved.workspace,), client, CAPABILITIES)
