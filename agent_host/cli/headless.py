"""`agent-host run` and `agent-host resume`: one task without anybody to ask."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from agent_host.cli import exit_codes
from agent_host.cli.progress import TextOutput, defused
from agent_host.cli.sessions import newest_resumable
from agent_host.cli.shared import SETTING_OPTIONS, given_settings, state_dir_of
from agent_host.errors import SessionNotFound, UsageError
from config.load import ConfigError, load
from state.locations import default_state_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from agent_host.app import Finished
    from agent_host.events.emitter import Sink
    from agent_host.session.lifecycle import Session
    from agent_host.session.opening import Launch
    from state.store import LoadReport

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
    return _drive(launch, prompt, max_steps=None)


def resume(namespace: argparse.Namespace) -> int:
    """`agent-host resume [SESSION_ID]`: as the session was started, with what is given now over it."""
    from agent_host.session.opening import recorded_options

    state_dir = state_dir_of(namespace)
    session_id = namespace.session_id or newest_resumable(state_dir)
    if session_id is None:
        raise SessionNotFound(f"there is no session to resume under {state_dir}")
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
    return _drive(launch, None, max_steps=asked)


def _prompt(given: str) -> str:
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if given == "-" else given
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text.encode("utf-8", "replace").decode()


def _portable(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that mean the same from another directory, so that a resume can take them over."""
    gateway = flags.get("llm.gateway", "")
    if gateway.startswith(_MOCK_PREFIX):
        flags["llm.gateway"] = _MOCK_PREFIX + os.path.abspath(gateway.removeprefix(_MOCK_PREFIX))
    policy = flags.get("host.policy", "")
    if os.path.exists(policy):
        flags["host.policy"] = os.path.abspath(policy)
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

    root = os.path.realpath(os.path.expanduser(workspace))
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
        _notice(line)
    for variable in _SERVICE_VARIABLES:
        if os.environ.get(variable):
            _notice(f"{variable} is set, but this version knows only the embedded services; it is not used")
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


def _drive(launch: Launch, prompt: str | None, *, max_steps: int | None) -> int:
    form = launch.settings.text("host.output")
    stopped_by: list[int] = []
    finished = asyncio.run(_run(launch, prompt, max_steps, form, stopped_by))
    if finished is None:
        return exit_codes.BY_SIGTERM if stopped_by == [signal.SIGTERM] else exit_codes.BY_SIGINT
    if finished.end.status == "cancelled" and stopped_by == [signal.SIGTERM]:
        return exit_codes.BY_SIGTERM
    if finished.end.status == "completed" and finished.result["deniedApprovals"]:
        return exit_codes.NEEDED_APPROVAL
    return exit_codes.BY_STATUS[finished.end.status]


async def _run(
    launch: Launch, prompt: str | None, max_steps: int | None, form: str, stopped_by: list[int]
) -> Finished | None:
    """None when a second signal ended it by force; the session is then as after a crash."""
    from agent_host.app import run_headless

    main_task = asyncio.current_task()

    def on_open(session: Session) -> None:
        gc.freeze()
        gc.enable()
        for line in _found_on_disk(session.report):
            _notice(line)
        for name in session.unknown_approvals(launch.approvals):
            _notice(f"--approve {name}: this policy knows no such rule, tool or capability")

        def stop(number: int) -> None:
            if stopped_by and main_task is not None:
                main_task.cancel()
                return
            stopped_by.append(number)
            session.request_cancel(resumable=True)
            _notice("stopping once the running tools are done; the same signal again ends them")

        _on_signals(stop)

    try:
        return await run_headless(
            launch,
            prompt,
            max_steps=max_steps,
            sinks=_sinks(form),
            on_open=on_open,
            on_end=lambda finished: _show(finished, form, _resume_command(launch)),
        )
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        _notice(f"ended; resume with: {_resume_command(launch)}")
        return None


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


def _sinks(form: str) -> list[Sink]:
    if form == "text":
        return [TextOutput()]
    if form == "jsonl":
        from agent_host.events.sinks import JsonLines

        return [JsonLines(sys.stdout.buffer)]
    return []


def _resume_command(launch: Launch) -> str:
    state_dir = "" if launch.state_dir == default_state_dir() else f" --state-dir {shlex.quote(launch.state_dir)}"
    return f"agent-host resume {launch.session_id}{state_dir}"


def _show(finished: Finished, form: str, resume_command: str) -> None:
    end = finished.end
    if form == "json":
        import orjson

        from agent_host import lenient_json

        # Nobody there to read it is no reason to fail a task that is done.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(lenient_json.dumps(finished.result, option=orjson.OPT_APPEND_NEWLINE))
            sys.stdout.buffer.flush()
    elif form == "text":
        _show_text(finished)
    if end.status != "completed":
        sys.stderr.write(f"agent-host: {end.status}: {end.reason}: {' '.join((end.message or '').split())}\n")
    denied = finished.result["deniedApprovals"]
    for tool, approve in sorted({(entry["toolName"], entry["replay"]["approve"]) for entry in denied}):
        sys.stderr.write(f"agent-host: {tool} needed an approval; to give it in advance: --approve {approve}\n")
    if end.resumable:
        sys.stderr.write(f"agent-host: resume with: {resume_command}\n")


def _show_text(finished: Finished) -> None:
    result = finished.result
    if finished.patch:
        sys.stderr.write("\n" + (defused(finished.patch) if sys.stderr.isatty() else finished.patch))
    usage = result["usage"]
    sys.stderr.write(
        f"\n{result['stepCount']} steps, {len(result['toolCalls'])} tool calls, {usage['inputTokens']} tokens in, "
        f"{usage['outputTokens']} out, {result['durationMs'] / 1000:.2f} s\nrecords: {finished.records}\n"
    )


def _notice(line: str) -> None:
    sys.stderr.write(f"agent-host: {' '.join(line.split())}\n")
    sys.stderr.flush()
