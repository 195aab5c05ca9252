"""Commands that serve until a signal comes. Each imports its server when it is chosen.

`agent-host serve` is the session process that a desktop app starts and talks JSON-RPC to (interface section 2). The
others print their URL on the first line of stdout: `agent-host mock-gateway` is the scripted gateway on its own, for
CI, `agent-host tool-service` the Backend Tool Service (BT), `agent-host view` the sessions of a state directory as a
live page.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from agent_host.cli import answer, exit_codes, notice, protocol_streams, put
from agent_host.cli.shared import CommandLine, SessionQuestions, on_signals, peer_check, state_dir_of
from agent_host.errors import UsageError
from agent_host.host.environment import look_ahead
from agent_host.host.options import anchor, settings_from

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Sequence

    from agent_host.events.emitter import Sink
    from agent_host.host.options import LayeredOptions
    from agent_host.rpc.server import Server


# The sender of a signal waits for the end of the process, not of a request.
_ANSWERS_S = 1.0


def serve(namespace: argparse.Namespace) -> int:
    """Serve one session; exit 0 when it has ended or is left resumable."""
    source = CommandLine(namespace).source
    if namespace.reconnect_s and namespace.socket is None:
        raise UsageError("--reconnect-s is for --socket: no client can reconnect to standard input")
    settings = source.own_settings()
    look_ahead(settings, source.state_dir)
    begin_s = settings.serve.begin_timeout_s
    return asyncio.run(serve_session(source, namespace.socket, namespace.reconnect_s, begin_s))


async def serve_session(source: LayeredOptions, socket: str | None, reconnect_s: float, begin_s: float) -> int:
    """See `serve`; `begin_s` is the time in which a client must start a session."""
    # Imported while the sandbox levels are probed.
    from agent_host.host.opening import session_host
    from agent_host.rpc.methods import method_table
    from agent_host.rpc.server import Feed, Server

    feed = Feed()

    def watch(first_id: int) -> Sequence[Sink]:
        feed.begin(first_id)
        return (feed,)

    questions = SessionQuestions(source.state_dir, notice)
    host = session_host(source, watch, questions.open)
    waits_s = None if socket is None else reconnect_s
    server = Server(host, feed, method_table(host, feed), reconnect_s=waits_s, begin_s=begin_s)
    main_task = asyncio.current_task()
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals and main_task is not None:
            main_task.cancel()
        signals.append(number)
        server.detach(answers_s=_ANSWERS_S)

    on_signals(stop)
    gc.freeze()
    gc.enable()
    try:
        await _run(server, socket, source.state_dir)
    except asyncio.CancelledError:
        if len(signals) < 2:
            raise
        return exit_codes.FAILED
    finally:
        await questions.close()
    if server.gave_up:
        notice(f"no client started a session within {begin_s:g} s (serve.begin_timeout_s)")
    for line in () if host.session is None else host.session.undelivered():
        notice(line)
    if host.failure is not None:
        failure = f"{type(host.failure).__name__}: {host.failure}"
        notice(f"error: internal error: {failure}; the session stays resumable")
        return exit_codes.FAILED
    return exit_codes.COMPLETED


async def _run(server: Server, socket: str | None, state_dir: str) -> None:
    """Serve on the `socket`, or without one on the standard streams."""
    from agent_host.rpc.channels import StreamChannel, listening

    if socket is not None:
        path = anchor(socket) if sys.platform != "win32" else socket
        async with listening(path, server.accept, peer_check(state_dir)):
            await server.run()
        return
    channel = StreamChannel(*protocol_streams())
    receiver = server.accept(channel)
    if receiver is None:
        raise RuntimeError("the first client is always accepted")
    channel.start(receiver)
    await server.run()


def mock_gateway(namespace: argparse.Namespace) -> int:
    """Serve the script until a signal arrives; expectations that a request did not meet are written to stderr, and make
    the exit code 1. With `--record` these are answers that are not in the script."""
    from agent_host.testing import gateway

    gc.enable()
    host, port, failures = namespace.host, namespace.port, list[str]()
    workspace = anchor(namespace.workspace, os.path.realpath)

    def on_failure(text: str) -> None:
        failures.append(text)
        put(sys.stderr, f"mock-gateway: {text}\n")

    async def play() -> None:
        of_script = {"workspace": workspace}
        serving = gateway.serve_forever(
            namespace.script, host=host, port=port, variables=of_script, on_ready=_print_url, on_failure=on_failure
        )
        await _run_until_signal(serving)

    async def record() -> None:
        from agent_host.host.recording import Recorder, create_script

        with create_script(namespace.script, namespace.record) as script:
            settings = settings_from({}, workspace=None)
            recorder = Recorder(namespace.record, script, settings, workspace=workspace, on_skipped=on_failure)
            await _run_until_signal(recorder.serve(host, port, _print_url))

    try:
        asyncio.run(play() if namespace.record is None else record())
    except gateway.ScriptError as error:
        raise UsageError(*(f"--script {problem}" for problem in error.problems)) from error
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return exit_codes.FAILED if failures else exit_codes.COMPLETED


def _print_url(url: str) -> None:
    answer(f"{url}\n")


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    serving = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, serving.cancel)
        except NotImplementedError:  # on Windows Ctrl-C interrupts asyncio.run itself
            break
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise


_BACKEND = ("starlette", "uvicorn", "httptools", "psycopg", "psycopg_pool", "prometheus_client", "boto3")


def tool_service(namespace: argparse.Namespace) -> int:
    """Serve until a signal arrives; running calls may finish. Raises UsageError for invalid options."""
    _check_extra("tool-service", "backend", _BACKEND)
    from agent_host.tool_service.server import ServiceOptions, serve

    gc.enable()
    artifacts = namespace.artifacts or os.path.join(state_dir_of(namespace), "tool-service", "artifacts")
    options = ServiceOptions(
        tenants=anchor(namespace.tenants),
        host=namespace.host,
        port=namespace.port,
        workers=namespace.workers,
        drain_s=namespace.drain_s,
        artifacts=anchor(artifacts),
    )
    serve(options, _print_url)
    return exit_codes.COMPLETED


def view(namespace: argparse.Namespace) -> int:
    """Serve until a signal arrives. Raises UsageError for invalid options."""
    _check_extra("view", "view", ("jinja2", "starlette", "uvicorn"))
    from agent_host.view.server import serve

    gc.enable()
    serve(state_dir_of(namespace), port=namespace.port, can_approve=namespace.allow_approve, on_ready=_print_url)
    return exit_codes.COMPLETED


def _check_extra(command: str, extra: str, modules: Sequence[str]) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"`agent-host {command}` needs {', '.join(missing)}: install agent-host[{extra}]")
