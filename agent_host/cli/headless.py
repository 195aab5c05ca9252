"""`agent-host run` and `agent-host resume`: one task without anybody to ask."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.display import Display
from agent_host.cli.launching import Launcher
from agent_host.cli.sessions import newest_resumable
from agent_host.cli.shared import snapshot_limit
from agent_host.cli.signals import on_signals
from agent_host.cli.streams import notice
from agent_host.errors import (
    CheckpointWriteFailed,
    ErrorCode,
    ServiceError,
    ServiceUnauthorized,
    SessionNotFound,
    UsageError,
)
from agent_host.services.endpoints import TOKEN_VARIABLE
from agent_host.session.handshake import policy_source
from agent_host.session.launched import Begun, find_launched, refuse_another
from agent_host.session.opening import state_errors_translated
from agent_host.session.reports import end_of
from config.policies import BUILT_IN
from state.launch_keys import session_of
from state.locations import SessionPaths

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent_host.app.headless import Finished
    from agent_host.session.launched import Over
    from agent_host.session.lifecycle import Session
    from agent_host.session.opening import Launch
    from state.store import LoadReport

# The disk may have refused records before it refused the end.
_STAYS = (
    "; the session stays resumable, and resuming it goes on from the last record on disk, which does no more than "
    "report this end again if the disk took it: "
)


def run(namespace: argparse.Namespace) -> int:
    """`agent-host run PROMPT`."""
    prompt = _prompt(namespace.prompt)
    launcher = Launcher(namespace)
    if not namespace.or_resume:
        return _start(launcher, prompt)
    if namespace.session_id is None:
        raise UsageError("--or-resume needs --session-id ID: the id says which session is meant")
    return _start_or_resume(launcher, namespace.session_id, prompt)


def _start(launcher: Launcher, prompt: str) -> int:
    try:
        return _drive(launcher, launcher.new(), prompt, None)
    except ServiceError as error:
        notice(f"error: no session was begun: {error}; {_hint(error)}")
        return exit_codes.of_error(error)


def _start_or_resume(launcher: Launcher, key: str, prompt: str) -> int:
    """Once for each id, however often it is asked for. Another process may begin or end the session between a look and
    what follows from it, so a refusal is followed by another look."""
    limit = snapshot_limit()
    while True:
        found = find_launched(launcher.state_dir, key, snapshot_limit_bytes=limit)
        if found is not None:
            policy = policy_source(launcher.new().settings)
            refuse_another(launcher.state_dir, key, found.started, prompt=prompt, policy=policy)
        try:
            if found is None:
                return _start(launcher, prompt)
            if isinstance(found, Begun):
                return _go_on(launcher, found.session_id)
        except (UsageError, SessionNotFound):
            if type(find_launched(launcher.state_dir, key, snapshot_limit_bytes=limit)) is type(found):
                raise
        else:
            return _repeat(launcher, found)


def _repeat(launcher: Launcher, found: Over) -> int:
    """Show the result of a session that ended, as its run did."""
    from agent_host.app.headless import Finished

    display = Display(launcher.new().settings.text("host.output"))
    end = end_of(found.result)
    records = SessionPaths(launcher.state_dir, found.session_id).records
    finished = Finished(end, found.result, "", records)
    display.repeat(finished, launcher.resume_command(found.session_id))
    display.close()
    if end.status == "completed" and display.lost is not None:
        return exit_codes.FAILED
    return exit_codes.of_end(end.status, found.result["deniedApprovals"])


def resume(namespace: argparse.Namespace) -> int:
    """`agent-host resume [SESSION_ID]`: as the session was started, with what is given now over it."""
    launcher = Launcher(namespace)
    if namespace.session_id is not None:
        with state_errors_translated():
            return _go_on(launcher, session_of(launcher.state_dir, namespace.session_id))
    session_id = newest_resumable(launcher.state_dir)
    if session_id is None:
        raise SessionNotFound(f"there is no session to resume under {launcher.state_dir}")
    return _go_on(launcher, session_id)


def _go_on(launcher: Launcher, session_id: str) -> int:
    try:
        launch = launcher.again(session_id)
        return _drive(launcher, launch, None, launcher.max_steps(launch))
    except CheckpointWriteFailed as error:  # of a disk that may take it later
        raise CheckpointWriteFailed(f"{error}; resume with: {launcher.resume_command(session_id)}") from error
    except ServiceError as error:
        notice(
            f"error: the session stays resumable: {error}; {_hint(error)}; "
            f"resume with: {launcher.resume_command(session_id)}"
        )
        return exit_codes.PAUSED


def _hint(error: ServiceError) -> str:
    """What a user can do about the Session Service, which is the only one that a session waits for."""
    if isinstance(error, ServiceUnauthorized):
        return f"check {TOKEN_VARIABLE}"
    return "check SESSION_SERVICE_URL, or try again later" if error.retryable else "check SESSION_SERVICE_URL"


def _prompt(given: str) -> str:
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if given == "-" else given
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text.encode("utf-8", "replace").decode()


def _drive(launcher: Launcher, launch: Launch, prompt: str | None, max_steps: int | None) -> int:
    display = Display(launch.settings.text("host.output"))
    stopped_by: list[int] = []
    finished = asyncio.run(_run(launcher, launch, prompt, max_steps, display, stopped_by))
    display.close()
    if finished is None:
        return exit_codes.BY_SIGTERM if stopped_by == [signal.SIGTERM] else exit_codes.BY_SIGINT
    if finished.end.status == "cancelled" and stopped_by == [signal.SIGTERM]:
        return exit_codes.BY_SIGTERM
    if finished.end.status == "completed" and not finished.result["deniedApprovals"] and display.lost is not None:
        return exit_codes.FAILED
    return exit_codes.of_end(finished.end.status, finished.result["deniedApprovals"])


async def _run(
    launcher: Launcher,
    launch: Launch,
    prompt: str | None,
    max_steps: int | None,
    display: Display,
    stopped_by: list[int],
) -> Finished | None:
    """None when a second signal ended it by force; the session is then as after a crash."""
    from agent_host.app.assembly import Tokens
    from agent_host.app.headless import run_headless

    main_task = asyncio.current_task()
    sessions: list[Session] = []

    def on_open(session: Session) -> None:
        sessions.append(session)
        gc.freeze()
        gc.enable()
        for line in _found_on_disk(session.report):
            notice(line)
        for name in session.unknown_approvals(launch.approvals):
            notice(f"--approve {name}: this policy knows no such rule, tool or capability")
        admits = session.policy_notice() if prompt is not None and display.is_text else None
        if admits is not None:
            notice(admits)

        def stop(number: int) -> None:
            if stopped_by and main_task is not None:
                main_task.cancel()
                return
            stopped_by.append(number)
            session.interrupt()
            notice("stopping once the running tools are done; the same signal again ends them")

        on_signals(stop)

    try:
        finished = await run_headless(
            launch,
            prompt,
            max_steps=max_steps,
            sinks=display.sinks,
            tokens=Tokens.taken(),
            owns_process=True,
            on_open=on_open,
            on_end=lambda finished: display.end(finished, _how_to_resume(launcher, launch, finished)),
        )
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        notice(f"ended; resume with: {launcher.resume_command(sessions[0].session_id)}")
        return None
    for session in sessions:
        _tell_of_losses(session, display, launcher.resume_command(session.session_id))
    return finished


def _how_to_resume(launcher: Launcher, launch: Launch, finished: Finished) -> str:
    """The command; a policy file that has expired has to be replaced by another one."""
    command = launcher.resume_command(finished.result["sessionId"])
    expired = finished.end.reason == ErrorCode.POLICY_EXPIRED and launch.settings.text("host.policy") not in BUILT_IN
    return f"{command} --policy NEW" if expired else command


def _tell_of_losses(session: Session, display: Display, resume_command: str) -> None:
    """What could not be reported or kept at the end, after which the disk has been asked for the last time."""
    ending = session.ending
    if ending.unkept is not None:
        notice(f"{ending.unkept}{_STAYS}{resume_command}" if ending.stays else ending.unkept)
    for line in session.undelivered:
        notice(line)
    if display.lost is not None:
        notice(display.lost if ending.kept_at is None else f"{display.lost}; the result is kept in {ending.kept_at}")


def _found_on_disk(report: LoadReport) -> Iterator[str]:
    """What a user should know about the files that the session was opened from."""
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
