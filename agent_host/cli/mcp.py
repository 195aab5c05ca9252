"""`agent-host mcp`: the host as an MCP server on standard input and output, for other agents and editors."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.policy import policy_of_options
from agent_host.cli.shared import CommandLine, on_signals, options_again
from agent_host.cli.streams import protocol_streams
from agent_host.clients.fork_server import default_starter
from agent_host.errors import UsageError
from agent_host.host.records import own_sessions
from agent_host.host.secrets import hide_key, hide_secrets

if TYPE_CHECKING:
    import argparse
    from typing import TextIO

    from agent_host.clients.connection import Starter


def mcp(namespace: argparse.Namespace) -> int:
    """Serve tasks until the client leaves; exit 0. Raises UsageError for options with which no session can start."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("`agent-host mcp` needs the MCP SDK: install agent-host[mcp]")
    source = CommandLine(namespace).source
    settings = source.new().settings  # a mistake is reported here, and not in the first task
    hide_secrets()
    hide_key(settings)
    policy_of_options(namespace)
    starting = default_starter(settings), options_again(namespace)
    read_fd, write_fd = protocol_streams()
    with (
        open(read_fd, encoding="utf-8", errors="replace", newline="\n") as read_from,
        open(write_fd, "w", encoding="utf-8", newline="\n") as write_to,
    ):
        streams = read_from, write_to
        return asyncio.run(_serve(*starting, source.state_dir, streams, allow_approve=namespace.allow_approve))


async def _serve(
    starter: Starter, arguments: list[str], state_dir: str, streams: tuple[TextIO, TextIO], *, allow_approve: bool
) -> int:
    from agent_host.mcp_server import Records
    from agent_host.mcp_server.server import Sessions, serve

    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_stop(number: int) -> None:
        if stop.done():
            os._exit(128 + number)
        stop.set_result(128 + number)

    on_signals(on_stop)
    gc.freeze()
    gc.enable()
    sessions = Sessions(starter, arguments, Records(state_dir, own_sessions()))
    code = await serve(sessions, streams, stop, allow_approve=allow_approve)
    if code is not None:  # a thread still waits for standard input, and would keep the process
        os._exit(code)
    return exit_codes.COMPLETED
