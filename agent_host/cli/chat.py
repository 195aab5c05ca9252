"""`agent-host chat`, and `agent-host` alone at a terminal: a conversation from its first prompt to its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat import PlainConsole
from agent_host.chat.conversation import Conversation
from agent_host.chat.local import LocalRecords
from agent_host.chat.paper import Paper
from agent_host.cli import exit_codes, notice
from agent_host.cli.ask import agrees
from agent_host.cli.shared import CommandLine, on_signals, options_again, settings_of_options
from agent_host.clients.fork_server import default_starter
from agent_host.clients.supervisor import SessionSpec, Supervisor
from agent_host.errors import AgentHostError, UsageError
from agent_host.host.backends import hide_key, hide_secrets
from agent_host.host.options import existing_workspace, is_default_state_dir, with_provider
from agent_host.terminal import load_soon, wants_style
from agent_host.version import __version__
from policy.redaction import Redaction
from state.keys import redaction_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.chat import Face
    from config.settings import Settings

_LOAD_AFTER_S: Final = 0.05


def chat(namespace: argparse.Namespace) -> int:
    """Talk until the person leaves; exit 0. Raises UsageError off a terminal and without the extra."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`agent-host chat` needs a terminal: `agent-host run PROMPT` does a task without one")
    if importlib.util.find_spec("prompt_toolkit") is None:
        raise UsageError("`agent-host chat` needs prompt_toolkit: install agent-host[tui]")
    line = CommandLine(namespace)
    settings = line.source.own_settings()
    if not with_provider(settings).llm.gateway:
        if not agrees("No LLM provider is set up. Set one up now?"):
            raise UsageError("no LLM provider is set up: `agent-host init` does that")
        from agent_host.cli.init import init

        given = {"provider": None, "model": None, "gateway": None, "key_env": None, "yes": False}
        code = init(argparse.Namespace(**given, state_dir=namespace.state_dir))
        if code != exit_codes.COMPLETED:
            return code
        line = CommandLine(namespace)
        settings = line.source.own_settings()
    hide_secrets()
    hide_key(settings)
    workspace = os.path.realpath(existing_workspace(namespace.workspace or ".", "--workspace"))
    namespace.plain = namespace.plain or os.environ.get("TERM", "dumb") == "dumb"
    state_dir = line.source.state_dir
    left = asyncio.run(_run_chat(namespace, settings, workspace, state_dir))
    if left is not None:
        place = "" if is_default_state_dir(state_dir) else f" --state-dir {state_dir}"
        notice(f"to continue: agent-host chat --session {left}{place}")
    return exit_codes.COMPLETED


async def _run_chat(namespace: argparse.Namespace, settings: Settings, workspace: str, state_dir: str) -> str | None:
    """Talk until the person leaves; return the id of the session to continue, or None."""
    gc.freeze()
    gc.enable()
    face = PlainConsole() if namespace.plain else _console(settings, workspace, state_dir)
    records = LocalRecords(state_dir, workspace, settings_of_options(namespace))
    paper = Paper(lambda: face.columns, styled=wants_style(), plain=namespace.plain)
    starter = default_starter(settings, lambda line: face.print(paper.notice(line)))
    spec = SessionSpec(
        options_again(namespace),
        dict(os.environ),
        workspace,
        client_info={"name": "agent-host chat", "version": __version__},
    )
    conversation = Conversation(face, paper, Supervisor(starter), spec, records)
    face.chat = conversation
    asyncio.get_running_loop().set_exception_handler(lambda _, context: conversation.report(context))
    _take_signals(face, conversation)
    face.print(paper.notice(f"agent-host {__version__} in {workspace}"))
    beginning = asyncio.ensure_future(_begin(namespace, conversation, starter.prepare))
    try:
        await face.run()
    finally:
        beginning.cancel()
        left = None if conversation.session is None else conversation.session.session_id
        conversation.is_leaving = True
        face.close()
        if conversation.is_busy:
            notice("the session finishes its step; Ctrl-C ends it at once")
        with contextlib.suppress(OSError):
            await conversation.aclose()
    return left


def _console(settings: Settings, workspace: str, state_dir: str) -> Face:
    from agent_host.chat.console import Console
    from agent_host.chat.input_line import PromptHistory

    detectors = settings.redaction.detectors

    def without_secrets(text: str) -> str:
        return Redaction((), key=lambda: redaction_key(state_dir), detectors=detectors).text(text)

    return Console(workspace, PromptHistory(state_dir, without_secrets), styled=wants_style())


async def _begin(namespace: argparse.Namespace, conversation: Conversation, prepare: Callable[[], Any]) -> None:
    """Do the work that can wait until the prompt is shown."""
    await asyncio.sleep(_LOAD_AFTER_S)
    if not namespace.plain:
        load_soon()
    preparing = asyncio.ensure_future(prepare())
    try:
        await _open(namespace, conversation)
    except (AgentHostError, OSError) as error:
        conversation.warn(str(error))
    await preparing
    await conversation.warn_of_others()


async def _open(namespace: argparse.Namespace, conversation: Conversation) -> None:
    session_id, prompt = namespace.session, namespace.prompt
    if namespace.continues:
        session_id = await asyncio.to_thread(conversation.records.newest)
        if session_id is None:
            conversation.note("no session of this workspace is on record that no process has; this is a new one")
    elif session_id is not None:
        session_id = await asyncio.to_thread(conversation.records.session_id_of, session_id)
    if session_id is not None:
        await conversation.resume(session_id, continues=prompt is None)
    if prompt is not None and prompt.strip():
        conversation.submit(prompt)


def _take_signals(face: Face, conversation: Conversation) -> None:
    def stop(number: int) -> None:
        if conversation.is_leaving:
            conversation.interrupt()
        elif number == signal.SIGINT and isinstance(face, PlainConsole):
            face.stop_or_leave()
        else:
            face.leave()

    on_signals(stop)
    if sys.platform != "win32" and os.isatty(0):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background process may then hand the terminal back
