"""Commands that serve until a signal comes; the URL is the first line on stdout.

`agent-host mock-gateway` is the scripted gateway on its own, for CI, `agent-host tool-service` the Backend Tool Service
(BT), `agent-host view` the sessions of a state directory as a live page. Each imports its server when it is chosen.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from agent_host.cli import exit_codes
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer, put
from agent_host.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine


def mock_gateway(namespace: argparse.Namespace) -> int:
    """Serve the script until a signal comes; what a request lacked is written to stderr, and makes the exit code 1."""
    from agent_host.testing.gateway import ScriptError

    gc.enable()
    if namespace.record is not None:
        return _record(namespace)
    try:
        return asyncio.run(_serve(namespace, os.path.realpath(namespace.workspace)))
    except ScriptError as error:
        raise UsageError(*(f"--script {problem}" for problem in error.problems)) from error
    except OSError as error:
        raise UsageError(f"cannot listen on {namespace.host}:{namespace.port}: {error.strerror}") from error


def _record(namespace: argparse.Namespace) -> int:
    """Record until a signal comes; the exit code is 1 where an answer is not in the script."""
    from agent_host.host.options import settings_from
    from agent_host.host.recording import Recorder, create_script

    skipped, workspace = 0, os.path.realpath(namespace.workspace)

    def on_skipped(text: str) -> None:
        nonlocal skipped
        skipped += 1
        put(sys.stderr, f"mock-gateway: {text}\n")

    async def serve() -> None:
        with create_script(namespace.script, namespace.record) as script:
            recorder = Recorder(
                namespace.record,
                script,
                settings_from({}, workspace=None),
                workspace=workspace,
                on_skipped=on_skipped,
            )
            await _run_until_signal(recorder.serve(namespace.host, namespace.port, lambda url: answer(f"{url}\n")))

    try:
        asyncio.run(serve())
    except OSError as error:
        raise UsageError(f"cannot listen on {namespace.host}:{namespace.port}: {error.strerror}") from error
    return 1 if skipped else 0


async def _serve(namespace: argparse.Namespace, workspace: str) -> int:
    from agent_host.testing.gateway import serve_forever

    failures = 0

    def on_failure(text: str) -> None:
        nonlocal failures
        failures += 1
        put(sys.stderr, f"mock-gateway: {text}\n")

    def on_ready(url: str) -> None:
        answer(f"{url}\n")

    await _run_until_signal(
        serve_forever(
            namespace.script,
            host=namespace.host,
            port=namespace.port,
            variables={"workspace": workspace},
            on_ready=on_ready,
            on_failure=on_failure,
        )
    )
    return 1 if failures else 0


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or a signal has it cancelled."""
    serving = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, serving.cancel)
        except NotImplementedError:  # Windows, where Ctrl-C interrupts asyncio.run itself
            break
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise


_BACKEND_PACKAGES: Final = (
    "starlette",
    "uvicorn",
    "httptools",
    "psycopg",
    "psycopg_pool",
    "prometheus_client",
    "boto3",
)
"""Modules of the extra."""


def tool_service(namespace: argparse.Namespace) -> int:
    """Serve until a signal comes; calls that run are let end. Raises UsageError for what cannot be served."""
    missing = [name for name in _BACKEND_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"`agent-host tool-service` needs {', '.join(missing)}: install agent-host[backend]")
    from agent_host.tool_service.server import ServiceOptions, serve

    gc.enable()
    artifacts = namespace.artifacts or os.path.join(state_dir_of(namespace), "tool-service", "artifacts")
    options = ServiceOptions(
        tenants=os.path.abspath(namespace.tenants),
        host=namespace.host,
        port=namespace.port,
        workers=namespace.workers,
        drain_s=namespace.drain_s,
        artifacts=os.path.abspath(artifacts),
    )
    serve(options, lambda url: answer(f"{url}\n"))
    return exit_codes.COMPLETED


_VIEW_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")
"""Modules of the extra."""


def view(namespace: argparse.Namespace) -> int:
    """Serve until a signal comes. Raises UsageError for what cannot be served."""
    missing = [name for name in _VIEW_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"`agent-host view` needs {', '.join(missing)}: install agent-host[view]")
    from agent_host.view.server import serve

    gc.enable()
    serve(
        state_dir_of(namespace),
        port=namespace.port,
        can_approve=namespace.allow_approve,
        on_ready=lambda url: answer(f"{url}\n"),
    )
    return exit_codes.COMPLETED
