"""`agent-host run` and `agent-host resume`: one task without anybody to ask."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from agent_host.cli import exit_codes
from agent_host.cli.display import Display
from agent_host.cli.sessions import newest_resumable
from agent_host.cli.shared import SETTING_OPTIONS, anchored, given_settings, state_dir_of
from agent_host.cli.streams import notice
from agent_host.errors import CheckpointWriteFailed, SessionNotFound, UsageError
from config.load import ConfigError, load
from state.locations import default_state_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from agent_host.app import Finished
    from agent_host.session.lifecycle import Session
    from agent_host.session.opening import Launch
    from state.store import LoadReport

# The disk may have refused records before it refused the end.
_STAYS = (
    "; the session stays resumable, and resuming it goes on from the last record on disk, which does no more than tell "
    "this end again if the disk took it: "
)
_MOCK_PREFIX = "mock:"
_SERVICE_VARIABLES = (
    "SESSION_SERVICE_URL",
    "WORKSPACE_SERVICE_URL",
    "APPROVAL_SERVICE_URL",
    "AUDIT_SERVICE_URL",
    "TELEMETRY_SERVICE_URL",
    "BACKEND_TOOL_SERVICE_URL",
)


def run(namespace: argparse.Namespace) -> int:
    """`agent-host run PROMPT`."""
    from agent_host.stamps import new_id

    prompt = _prompt(namespace.prompt)
    flags = _portable(given_settings(namespace))
    launch = _launch(
        flags,
        workspace=namespace.workspace or ".",
        state_dir=state_dir_of(namespace),
        session_id=new_id("sess") if namespace.session_id is None else namespace.session_id,
        approvals=namespace.approve,
        approve_all=namespace.approve_all,
    )
    return _drive(launch, prompt, None, _resume_command(launch.session_id, launch.state_dir))


def resume(namespace: argparse.Namespace) -> int:
    """`agent-host resume [SESSION_ID]`: as the session was started, with what is given now over it."""
    state_dir = state_dir_of(namespace)
    session_id = namespace.session_id or newest_resumable(state_dir)
    if session_id is None:
        raise SessionNotFound(f"there is no session to resume under {state_dir}")
    try:
        return _resume(namespace, session_id, state_dir)
    except CheckpointWriteFailed as error:  # of a disk that may take it later
        command = _resume_command(session_id, state_dir, namespace.workspace)
        raise CheckpointWriteFailed(f"{error}; resume with: {command}") from error


def _resume(namespace: argparse.Namespace, session_id: str, state_dir: str) -> int:
    from agent_host.session.opening import recorded_options

    options = recorded_options(state_dir, session_id)
    given = _portable(given_settings(namespace))
    launch = _launch(
        {**options["flags"], **given},
        workspace=namespace.workspace or options["workspace"],
        state_dir=state_dir,
        session_id=session_id,
        approvals=[*options["approvals"], *namespace.approve],
        approve_all=namespace.approve_all or options["approveAll"],
    )
    # As the workspace may have tightened it, where it was given at all.
    asked = launch.settings.integer("host.max_steps") if "host.max_steps" in given else None
    moved = None if launch.workspace == options["workspace"] else launch.workspace
    return _drive(launch, None, asked, _resume_command(session_id, state_dir, moved))


def _prompt(given: str) -> str:
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if given == "-" else given
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text.encode("utf-8", "replace").decode()


def _portable(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that mean the same from another directory, so that a resume can take them over."""
    gateway = flags.get("llm.gateway", "")
    if gateway.startswith(_MOCK_PREFIX):
        flags["llm.gateway"] = _MOCK_PREFIX + anchored(gateway.removeprefix(_MOCK_PREFIX))
    policy = flags.get("host.policy", "")
    if os.path.exists(policy):
        flags["host.policy"] = anchored(policy)
    return flags


def _launch(
    flags: Mapping[str, Any],
    *,
    workspace: str,
    state_dir: str,
    session_id: str,
    approvals: list[str],
    approve_all: bool,
) -> Launch:
    from agent_host.session.opening import Launch

    root = anchored(workspace, os.path.realpath)
    if not _is_text(root):
        raise UsageError(f"--workspace {root!r}: its name is not UTF-8, which no model could be told")
    _refuse_what_is_no_text({"--session-id": session_id, "--approve": approvals}, flags)
    if not os.path.isdir(root):
        raise UsageError(f"--workspace {workspace}: there is no such directory")
    try:
        settings = load(flags, workspace=root)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    for line in settings.ignored:
        notice(line)
    for variable in _SERVICE_VARIABLES:
        if os.environ.get(variable):
            notice(f"{variable} is set, but this version knows only the embedded services; it is not used")
    return Launch(
        settings=settings,
        flags=flags,
        workspace=root,
        state_dir=state_dir,
        session_id=session_id,
        approvals=frozenset(approvals),
        approve_all=approve_all,
    )


def _refuse_what_is_no_text(options: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Raises UsageError for a value that a session's record could not hold."""
    for option, given in (*options.items(), *((option, flags.get(key)) for option, key, _ in SETTING_OPTIONS)):
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and not _is_text(value):
                raise UsageError(f"{option} {value!r}: it is not UTF-8")


def _is_text(value: str) -> bool:
    return value == value.encode("utf-8", "replace").decode()


def _drive(launch: Launch, prompt: str | None, max_steps: int | None, resume_command: str) -> int:
    display = Display(launch.settings.text("host.output"))
    stopped_by: list[int] = []
    finished = asyncio.run(_run(launch, prompt, max_steps, display, stopped_by, resume_command))
    if finished is None:
        return exit_codes.BY_SIGTERM if stopped_by == [signal.SIGTERM] else exit_codes.BY_SIGINT
    if finished.end.status == "cancelled" and stopped_by == [signal.SIGTERM]:
        return exit_codes.BY_SIGTERM
    if finished.end.status == "completed" and finished.result["deniedApprovals"]:
        return exit_codes.NEEDED_APPROVAL
    if finished.end.status == "completed" and display.lost is not None:
        return exit_codes.FAILED
    return exit_codes.BY_STATUS[finished.end.status]


async def _run(
    launch: Launch,
    prompt: str | None,
    max_steps: int | None,
    display: Display,
    stopped_by: list[int],
    resume_command: str,
) -> Finished | None:
    """None when a second signal ended it by force; the session is then as after a crash."""
    from agent_host.app import run_headless

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

        def stop(number: int) -> None:
            if stopped_by and main_task is not None:
                main_task.cancel()
                return
            stopped_by.append(number)
            session.request_cancel(resumable=True)
            notice("stopping once the running tools are done; the same signal again ends them")

        _on_signals(stop)

    try:
        finished = await run_headless(
            launch,
            prompt,
            max_steps=max_steps,
            sinks=display.sinks,
            on_open=on_open,
            on_end=lambda finished: display.end(finished, resume_command),
        )
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        notice(f"ended; resume with: {resume_command}")
        return None
    for session in sessions:
        _tell_of_losses(session, display, resume_command)
    return finished


def _tell_of_losses(session: Session, display: Display, resume_command: str) -> None:
    """What could not be told or kept at the end, after which the disk has been asked for the last time."""
    if session.unkept is not None:
        notice(f"{session.unkept}{_STAYS}{resume_command}" if session.stays else session.unkept)
    if display.lost is not None:
        notice(display.lost if session.kept_at is None else f"{display.lost}; the result is kept in {session.kept_at}")


def _found_on_disk(report: LoadReport) -> Iterator[str]:
    """What a user should know about the files that the session was opened from."""
    if report.torn_bytes:
        kept = f"; the files are kept as {report.kept_aside}" if report.kept_aside else ""
        yield f"{report.torn_bytes} bytes of a record that was not whole were dropped{kept}"
    if report.lost_blobs:
        yield f"{len(report.lost_blobs)} large texts of this session are damaged on disk; the model is told where"
    if report.made_private:
        yield "others could read the files of this session; they no longer can"


def _on_signals(stop: Any) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(stop, received))


def _resume_command(session_id: str, state_dir: str, workspace: str | None = None) -> str:
    """`workspace` where it is not the one that the session began in."""
    options = "" if state_dir == default_state_dir() else f" --state-dir {shlex.quote(state_dir)}"
    options += "" if workspace is None else f" --workspace {shlex.quote(workspace)}"
    return f"agent-host resume {session_id}{options}"
