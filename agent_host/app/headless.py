"""`run` and `resume`: one task from start to end, as a client of the same session that `serve` offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_host.app.opener import SessionOpener
from agent_host.app.tools import CAPABILITIES
from agent_host.approval.gate import UnattendedGate
from agent_host.errors import UsageError
from agent_host.ids import new_id
from agent_host.services.session import NewSession
from agent_host.session.new_task import NewTask, max_steps_of
from agent_host.session.opening import LOCAL
from agent_host.version import __version__
from policy.rules.options import AS_THE_BUNDLE_SAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.app.assembly import Tokens
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Sink
    from agent_host.loop.context import TaskEnd
    from agent_host.session.lifecycle import Session
    from agent_host.session.opening import Launch
    from policy.rules.options import TaskOptions


@dataclass(frozen=True, slots=True)
class Finished:
    """A headless run that came to an end: the result object, what it changed, and where its records lie."""

    end: TaskEnd
    result: dict[str, Any]
    patch: str
    records: str


class OneLaunch:
    """Launches of a process that runs one: what the command line said."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def new(self, workspace: str | None = None) -> Launch:  # noqa: ARG002  the command line's it is
        """See Launches."""
        return self._launch

    def again(self, session_id: str) -> Launch:  # noqa: ARG002  its options are in it already
        """See Launches."""
        return self._launch


async def run_headless(
    launch: Launch,
    prompt: str | None,
    *,
    max_steps: int | None,
    sinks: Sequence[Sink],
    on_open: Callable[[Session], None],
    on_end: Callable[[Finished], None],
    gate: ApprovalGate | None = None,
    environment: str = "desktop",
    options: TaskOptions = AS_THE_BUNDLE_SAYS,
    tokens: Tokens | None = None,
    owns_process: bool = False,
) -> Finished:
    """One task: `prompt` starts a session, None resumes the one of the launch. `gate` answers what needs an approval;
    without one nobody is there, and what was approved in advance is all that is. `options` narrow a task that starts.
    `tokens` are the environment's, by default read there; `owns_process` as SessionOpener has it.

    `on_end` gets the result while the checkpoint is still there: a process that dies in between leaves a session
    whose resume reports it again. Raises AgentHostError for what keeps the session from starting; everything later is
    in the result.
    """
    unattended = UnattendedGate(launch.approvals, approve_all=launch.approve_all)
    opener = SessionOpener(
        OneLaunch(launch),
        gate=lambda _: gate or unattended,
        watch=lambda _: sinks,
        tokens=tokens,
        owns_process=owns_process,
    )
    if prompt is None:
        if launch.session_id is None:
            raise UsageError("a resume needs the id of its session")
        opened = await opener.resume(launch.session_id, cursor=None)
    else:
        task = NewTask(new_id("task"), prompt, max_steps_of(launch.settings, max_steps), options)
        opened = await opener.create(new_session(launch, environment), task)
    session = opened.session
    if prompt is not None:
        session.announce(environment)
    end: TaskEnd | None = None
    try:
        on_open(session)
        if prompt is None:
            session.go_on(max_steps=max_steps, replay_ids=launch.replays)
        else:
            session.start_recorded_task()
        end = await session.task_ended()
        await session.end_uploads(end)
        finished = Finished(end, session.result(end), session.patch(), session.records)
        on_end(finished)
        return finished
    finally:
        await session.conclude(end)


def new_session(launch: Launch, environment: str) -> NewSession:
    """What a session of this machine's own user is asked for with."""
    client = {"name": "agent-host", "version": __version__}
    return NewSession(LOCAL, LOCAL, environment, (launch.workspace,), client, CAPABILITIES)
