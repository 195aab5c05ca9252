"""`agent-host acp`: the host as an agent of the Agent Client Protocol on standard input and output, for editors."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from agent_host.acp import Agent, AgentLaunch
from agent_host.acp.options import Choices
from agent_host.cli import exit_codes
from agent_host.cli.shared import CommandLine, on_signals, options_again, settings_of_options
from agent_host.cli.streams import notice, protocol_streams
from agent_host.clients.fork_server import default_starter
from agent_host.errors import PolicyBundleInvalid, UsageError
from agent_host.host.backends import NO_GATEWAY
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.options import model_facts, settings_from, with_provider
from agent_host.host.secrets import Tokens, hide_key, hide_secrets
from agent_host.rpc.streams import StreamChannel
from config.policies import BUILT_IN

if TYPE_CHECKING:
    import argparse

    from config.settings import Settings

_READ_PICTURES: Final = frozenset({"desktop", "slim"})
"""Families with a tool that shows pictures to the model."""


def acp(namespace: argparse.Namespace) -> int:
    """Serve an editor until it leaves; exit 0."""
    namespace.workspace = None  # each session has its own
    settings = CommandLine(namespace).source.own_settings()  # a mistake is reported here, and not in the first session
    hide_secrets()
    hide_key(settings)
    return asyncio.run(_serve(_launch(namespace, settings), settings))


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

    @cache  # a list for a menu, which would be most of the time that a new session takes
    def choices_of(workspace: str) -> Choices:
        return _choices(namespace, workspace, source.state_dir)

    return AgentLaunch(
        options_again(namespace),
        dict(os.environ),  # with the tokens that the process table does not show
        os.getcwd(),
        provider_problem,
        choices_of,
        lambda model: facts.of(model).limits.context_tokens,
        settings.acp.client_servers,
        settings.llm.images and not _READ_PICTURES.isdisjoint(settings.host.toolset),
    )


def _choices(namespace: argparse.Namespace, workspace: str, state_dir: str) -> Choices:
    """The options of a session in this workspace, with the models that its policy allows."""
    flags = settings_of_options(namespace)
    settings = settings_from(flags, workspace=workspace)
    try:
        bundle = policy_to_try(flags, workspace=workspace, state_dir=state_dir).bundle
        models = bundle.llm_policy.allowed_models
    except (UsageError, PolicyBundleInvalid):  # the session says so
        models = ()
    known = {
        "policy": (*BUILT_IN, settings.host.policy),
        "model": models,
        "sandbox": ("none", "landlock", "namespace", "auto"),
    }
    now = {"policy": settings.host.policy, "model": settings.llm.model, "sandbox": settings.sandbox.level}
    return Choices(known, {**now, "model": now["model"] or next(iter(models), "")})


async def _serve(launch: AgentLaunch, settings: Settings) -> int:
    channel = StreamChannel(*protocol_streams())
    agent = Agent(launch, default_starter(settings, notice), channel)
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals:
            os._exit(128 + number)
        signals.append(number)
        agent.over.set()

    on_signals(stop)
    gc.freeze()
    gc.enable()
    channel.start(agent.peer)
    await agent.over.wait()
    await agent.aclose()
    return 128 + signals[0] if signals else exit_codes.COMPLETED
