"""`agent-host mock-gateway`: the scripted gateway on its own, for CI; its URL is the first line on stdout."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

from agent_host.cli.streams import answer, put
from agent_host.errors import UsageError
from agent_host.testing.gateway import ScriptError, serve_forever

if TYPE_CHECKING:
    import argparse


def mock_gateway(namespace: argparse.Namespace) -> int:
    """Serve the script until a signal comes; what a request lacked is written to stderr, and makes the exit code 1."""
    gc.enable()
    try:
        return asyncio.run(_serve(namespace, os.path.realpath(namespace.workspace)))
    except ScriptError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot listen on {namespace.host}:{namespace.port}: {error.strerror}") from error


async def _serve(namespace: argparse.Namespace, workspace: str) -> int:
    failures = 0

    def on_failure(text: str) -> None:
        nonlocal failures
        failures += 1
        put(sys.stderr, f"mock-gateway: {text}\n")

    def on_ready(url: str) -> None:
        answer(f"{url}\n")

    serving = asyncio.ensure_future(
        serve_forever(
            namespace.script,
            host=namespace.host,
            port=namespace.port,
            variables={"workspace": workspace},
            on_ready=on_ready,
            on_failure=on_failure,
        )
    )
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
    return 1 if failures else 0
