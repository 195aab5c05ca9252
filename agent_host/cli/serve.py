"""`agent-host serve`: the session process that a desktop app starts and talks JSON-RPC to (interface section 2)."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.shared import CommandLine, SessionQuestions, on_signals, peer_check
from agent_host.cli.streams import notice, protocol_streams
from agent_host.errors import UsageError
from agent_host.host.options import LayeredOptions, anchor
from agent_host.host.serve import look_ahead

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from agent_host.events.emitter import Sink
    from agent_host.rpc.process import Server

# The sender of a signal waits for the end of the process, and not for that of a request.
_ANSWERS_S = 1.0


def serve(namespace: argparse.Namespace) -> int:
    """Serve one session; exit 0 when it is over or left resumable."""
    source = CommandLine(namespace).source
    if namespace.reconnect_s and namespace.socket is None:
        raise UsageError("--reconnect-s is for --socket: nobody can come back to standard input")
    settings = source.own_settings()
    look_ahead(settings, source.state_dir)
    begin_s = settings.serve.begin_timeout_s
    return asyncio.run(_serve(source, namespace.socket, namespace.reconnect_s, begin_s))


async def _serve(source: LayeredOptions, socket: str | None, reconnect_s: float, begin_s: float) -> int:
    # Imported while the levels of the sandbox are tried.
    from agent_host.host.serve import session_host
    from agent_host.rpc.process import Server
    from agent_host.rpc.server import Feed

    feed = Feed()

    def watch(first_id: int) -> Sequence[Sink]:
        feed.begin(first_id)
        return (feed,)

    questions = SessionQuestions(source.state_dir, notice)
    host = session_host(source, watch, questions.open)
    server = Server(host, feed, reconnect_s=None if socket is None else reconnect_s, begin_s=begin_s)
    main_task = asyncio.current_task()
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals and main_task is not None:
            main_task.cancel()
        signals.append(number)
        server.leave(answers_s=_ANSWERS_S)

    on_signals(stop)
    gc.freeze()
    gc.enable()
    try:
        await (_run_on_streams(server) if socket is None else _run_on_socket(server, socket, source.state_dir))
    except asyncio.CancelledError:
        if len(signals) < 2:
            raise
        return exit_codes.FAILED
    finally:
        await questions.close()
    if server.gave_up:
        notice(f"no client began a session within {begin_s:g} s (serve.begin_timeout_s)")
    return _say_end(() if host.session is None else host.session.undelivered(), host.failure)


async def _run_on_streams(server: Server) -> None:
    from agent_host.rpc.channels import StreamChannel

    channel = StreamChannel(*protocol_streams())
    receiver = server.accept(channel)
    if receiver is None:
        raise RuntimeError("the first client is always accepted")
    channel.start(receiver)
    await server.run()


async def _run_on_socket(server: Server, socket: str, state_dir: str) -> None:
    from agent_host.rpc.channels import listening

    path = anchor(socket) if sys.platform != "win32" else socket
    async with listening(path, server.accept, peer_check(state_dir)):
        await server.run()


def _say_end(problems: Sequence[str], failure: BaseException | None) -> int:
    """Say what went wrong; return the exit code."""
    for line in problems:
        notice(line)
    if failure is not None:
        notice(f"error: internal error: {type(failure).__name__}: {failure}; the session stays resumable")
        return exit_codes.FAILED
    return exit_codes.COMPLETED
