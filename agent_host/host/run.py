"""`run` and `resume`: one task from start to end, as a client of the same session that `serve` offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_host.approval.gate import UnattendedGate
from agent_host.errors import UsageError
from agent_host.host.local_tools import CAPABILITIES
from agent_host.host.opening import SessionOpener
from agent_host.ids import new_id
from agent_host.services.session import NewSession
from agent_host.session.new_task import NewTask
from agent_host.session.opening import LOCAL, FixedOptions
from agent_host.version import __version__
from policy.rules.case import AS_THE_BUNDLE_SAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Sink
    from agent_host.host.secrets import Tokens
    from agent_host.loop.context import TaskEnd
    from agent_host.session.lifecycle import LiveSession
    from agent_host.session.opening import ResolvedOptions
    from policy.rules.case import TaskOptions
    from tool_runtime.families.python_tools import PythonTool


@dataclass(frozen=True, slots=True)
class Finished:
    """A headless run that came to an end: the result object, and where its records lie."""

    end: TaskEnd
    result: dict[str, Any]
    records: str


async def run_headless(
    resolved: ResolvedOptions,
    prompt: str | None,
    *,
    resumes: bool | None = None,
    sinks: Sequence[Sink],
    on_open: Callable[[LiveSession], None],
    on_end: Callable[[Finished], None],
    gate: ApprovalGate | None = None,
    environment: str = "desktop",
    task_options: TaskOptions = AS_THE_BUNDLE_SAYS,
    tokens: Tokens | None = None,
    owns_process: bool = False,
    tools: Sequence[PythonTool] = (),
) -> Finished:
    """One task: `prompt` starts a session, None resumes the one of `resolved`; with `resumes` a prompt is the next task
    of that one, whose last task has to be over. `gate` answers what needs an approval; without one only what was
    approved in advance is approved. `task_options` narrow a task that starts. `tokens` are by default those of the
    environment; `owns_process` and `tools` as SessionOpener has them.

    `on_end` gets the result while the checkpoint is still there: a process that dies in between leaves a session
    whose resume reports it again. Raises AgentHostError for what keeps the session from starting; everything later is
    in the result.
    """
    unattended = UnattendedGate(resolved.approvals, approve_all=resolved.approve_all)
    opener = SessionOpener(
        FixedOptions(resolved),
        gate=lambda _: gate or unattended,
        watch=lambda _: sinks,
        tokens=tokens,
        owns_process=owns_process,
        tools=tools,
    )
    resumes = prompt is None if resumes is None else resumes
    if resumes or prompt is None:
        session = await _resume(opener, resolved)
    else:
        task = NewTask(new_id("task"), prompt, resolved.settings.integer("host.max_steps"), task_options)
        session = (await opener.create(new_session(resolved, environment), task)).session
        session.announce(environment)
    end: TaskEnd | None = None
    try:
        on_open(session)
        if prompt is None:
            approved = session.replays_approved(resolved.approvals, everything=resolved.approve_all)
            session.go_on(max_steps=resolved.max_steps, replay_ids=resolved.replays | approved)
        elif resumes:
            session.announce_return()
            session.start_task(new_id("task"), prompt, max_steps=resolved.max_steps, options=task_options)
        else:
            session.start_recorded_task()
        end = await session.task_ended()
        while session.busy:  # what a client had queued follows
            end = await session.task_ended()
        await session.end_uploads(end)
        finished = Finished(end, session.result(end), session.records)
        on_end(finished)
        return finished
    finally:
        await session.conclude(end)


async def _resume(opener: SessionOpener, resolved: ResolvedOptions) -> LiveSession:
    if resolved.session_id is None:
        raise UsageError("a resume needs the id of its session")
    return (await opener.resume(resolved.session_id, cursor=None)).session


def new_session(resolved: ResolvedOptions, environment: str) -> NewSession:
    """The request for a session of this machine's own user."""
    client = {"name": "agent-host", "version": __version__}
    return NewSession(LOCAL, LOCAL, environment, (resolved.workspace,), client, CAPABILITIES)
