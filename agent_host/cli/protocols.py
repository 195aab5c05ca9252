"""The host for other programs on standard input and output: `agent-host acp`, an agent of the Agent Client Protocol for
editors, and `agent-host mcp`, an MCP server for other agents."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from agent_host.acp import Agent, AgentLaunch
from agent_host.acp.updates import Choices
from agent_host.cli import exit_codes, notice, protocol_streams
from agent_host.cli.policy import policy_of_options
from agent_host.cli.shared import CommandLine, end_on_signals, on_signals, options_again, settings_of_options
from agent_host.clients.fork_server import default_starter
from agent_host.errors import PolicyBundleInvalid, UsageError
from agent_host.host.backends import NO_GATEWAY, Tokens, hide_key, hide_secrets
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.options import anchor, model_facts, settings_from, with_provider
from agent_host.host.records import own_sessions
from agent_host.rpc.channels import StreamChannel
from config.policies import BUILT_IN

if TYPE_CHECKING:
    import argparse

    from config.settings import Settings

_READ_PICTURES: Final = frozenset({"desktop", "slim"})
"""Families with a tool that shows pictures to the model."""


def acp(namespace: argparse.Namespace) -> int:
    """Serve an editor until it leaves; exit 0."""
    namespace.workspace = None  # each session resolves its own
    settings = CommandLine(namespace).source.own_settings()  # report a mistake here, and not in the first session
    hide_secrets()
    hide_key(settings)
    return asyncio.run(_serve_editor(_launch(namespace, settings), settings))


def _launch(namespace: argparse.Namespace, settings: Settings) -> AgentLaunch:
    source = CommandLine(namespace).source
    facts = model_facts()

    def provider_problem() -> str | None:
        try:
            found = with_provider(source.own_settings())  # read again: `--init` may have written it
            Tokens.read().under(found)
        except UsageError as error:
            return str(error)
        return None if found.llm.gateway else f"no LLM gateway: {NO_GATEWAY}"

    @cache  # a list for a menu, which would take most of the time of a new session
    def choices_of(workspace: str) -> Choices:
        """The options of a session in this workspace, with the models that its policy allows."""
        flags = settings_of_options(namespace)
        settings = settings_from(flags, workspace=workspace)
        try:
            bundle = policy_to_try(flags, workspace=workspace, state_dir=source.state_dir).bundle
            models = bundle.llm_policy.allowed_models
        except (UsageError, PolicyBundleInvalid):  # the session reports it
            models = ()
        policy, model, sandbox = settings.host.policy, settings.llm.model, settings.sandbox.level
        levels = ("none", "landlock", "namespace", "auto")
        return Choices(
            {"policy": (*BUILT_IN, policy), "model": models, "sandbox": levels},
            {"policy": policy, "model": model or next(iter(models), ""), "sandbox": sandbox},
        )

    return AgentLaunch(
        options_again(namespace),
        dict(os.environ),  # includes tokens that must not be in the process table
        anchor(os.curdir),
        provider_problem,
        choices_of,
        lambda model: facts.table.of(model).limits.context_tokens,
        settings.acp.client_servers,
        settings.llm.images and not _READ_PICTURES.isdisjoint(settings.host.toolset),
    )


async def _serve_editor(launch: AgentLaunch, settings: Settings) -> int:
    channel = StreamChannel(*protocol_streams())
    agent = Agent(launch, default_starter(settings, notice), channel)
    code = exit_codes.COMPLETED

    def stop(number: int) -> None:
        nonlocal code
        code = 128 + number
        agent.over.set()

    end_on_signals(stop)
    gc.freeze()
    gc.enable()
    channel.start(agent.peer)
    await agent.over.wait()
    await agent.aclose()
    return code


def mcp(namespace: argparse.Namespace) -> int:
    """Serve tasks until the client leaves; exit 0. Raises UsageError for options that no session can start with."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("`agent-host mcp` needs the MCP SDK: install agent-host[mcp]")
    source = CommandLine(namespace).source
    settings = source.new().settings  # report a mistake here, and not in the first task
    hide_secrets()
    hide_key(settings)
    policy_of_options(namespace)
    starter = default_starter(settings)
    read_fd, write_fd = protocol_streams()

    async def serve_agents() -> int:
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
        sessions = Sessions(starter, options_again(namespace), Records(source.state_dir, own_sessions()))
        code = await serve(sessions, (read_from, write_to), stop, allow_approve=namespace.allow_approve)
        if code is not None:  # a thread still waits for standard input and would keep the process alive
            os._exit(code)
        return exit_codes.COMPLETED

    with (
        open(read_fd, encoding="utf-8", errors="replace", newline="\n") as read_from,
        open(write_fd, "w", encoding="utf-8", newline="\n") as write_to,
    ):
        return asyncio.run(serve_agents())
