"""`agent-host chat`, and `agent-host` alone at a terminal: a conversation."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.ask import agrees
from agent_host.cli.shared import CommandLine, on_signals, options_again, settings_of_options
from agent_host.cli.streams import notice
from agent_host.errors import UsageError
from agent_host.host.options import existing_workspace, is_default_state_dir, with_provider
from agent_host.host.secrets import hide_key, hide_secrets
from agent_host.terminal import wants_style

if TYPE_CHECKING:
    import argparse

    from config.settings import Settings

INSTALL = "install agent-host[tui]"


def chat(namespace: argparse.Namespace) -> int:
    """Talk until the person leaves; exit 0. Raises UsageError off a terminal and without the extra."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`agent-host chat` needs a terminal: `agent-host run PROMPT` does a task without one")
    if importlib.util.find_spec("prompt_toolkit") is None:
        raise UsageError(f"`agent-host chat` needs prompt_toolkit: {INSTALL}")
    line = CommandLine(namespace)
    settings = line.source.own_settings()
    if not _has_provider(settings):
        if not agrees("No LLM provider is set up. Set one up now?"):
            raise UsageError("no LLM provider is set up: `agent-host init` does that")
        code = _init(namespace)
        if code != exit_codes.COMPLETED:
            return code
        line = CommandLine(namespace)
        settings = line.source.own_settings()
    hide_secrets()
    hide_key(settings)
    workspace = os.path.realpath(existing_workspace(namespace.workspace or ".", "--workspace"))
    return asyncio.run(_talk(namespace, line, settings, workspace))


def _has_provider(settings: Settings) -> bool:
    """True if there is a gateway to ask. Raises UsageError for a provider that cannot be used."""
    return bool(with_provider(settings).llm.gateway)


def _init(namespace: argparse.Namespace) -> int:
    import argparse

    from agent_host.cli.init import init

    return init(
        argparse.Namespace(
            provider=None, model=None, gateway=None, key_env=None, yes=False, state_dir=namespace.state_dir
        )
    )


async def _talk(namespace: argparse.Namespace, line: CommandLine, settings: Settings, workspace: str) -> int:
    from agent_host.chat.program import Launch, talk

    state_dir = line.source.state_dir
    launch = Launch(
        workspace,
        state_dir,
        options_again(namespace),
        dict(os.environ),
        settings,
        settings_of_options(namespace),
        prompt=namespace.prompt,
        session=namespace.session,
        continues=namespace.continues,
        plain=namespace.plain or os.environ.get("TERM", "dumb") == "dumb",
        styled=wants_style(),
    )
    gc.freeze()
    gc.enable()
    left = await talk(launch, on_signals, notice)
    if left is not None:
        place = "" if is_default_state_dir(state_dir) else f" --state-dir {state_dir}"
        notice(f"to go on: agent-host chat --session {left}{place}")
    return exit_codes.COMPLETED
