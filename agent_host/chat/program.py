"""A conversation from its first prompt to its end, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.chat.conversation import Conversation
from agent_host.chat.local import LocalRecords
from agent_host.chat.paper import Paper
from agent_host.clients.fork_server import default_starter
from agent_host.clients.supervisor import SessionSpec, Supervisor
from agent_host.terminal.markdown import load_soon
from agent_host.version import __version__
from policy.redaction import Redaction
from state.keys import redaction_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.chat.console import Console
    from agent_host.chat.plain import PlainConsole
    from config.settings import Settings

_LOAD_AFTER_S: Final = 0.05


class Launch(NamedTuple):
    """The options of a conversation: `arguments` are those of `serve`, `flags` the settings of the command line."""

    workspace: str
    state_dir: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    settings: Settings
    flags: Mapping[str, Any]
    prompt: str | None = None
    session: str | None = None
    continues: bool = False
    plain: bool = False
    styled: bool = True


async def talk(
    launch: Launch, on_signals: Callable[[Callable[[int], None]], None], tell: Callable[[str], None]
) -> str | None:
    """Talk until the person leaves; returns the id of the session to go on with, None if there is none."""
    face = _face(launch)
    records = LocalRecords(launch.state_dir, launch.workspace, launch.flags)
    paper = Paper(lambda: face.columns, styled=launch.styled, plain=launch.plain)
    starter = default_starter(launch.settings, lambda line: face.print(paper.notice(line)))
    spec = SessionSpec(
        [*launch.arguments],
        launch.environment,
        launch.workspace,
        client_info={"name": "agent-host chat", "version": __version__},
    )
    chat = Conversation(face, paper, Supervisor(starter), spec, records)
    face.attach(chat)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: chat.report(context))
    _take_signals(face, chat, on_signals)
    face.print(paper.notice(f"agent-host {__version__} in {launch.workspace}"))
    beginning = asyncio.ensure_future(_begin(launch, chat, starter.prepare))
    try:
        await face.run()
    finally:
        beginning.cancel()
        left = None if chat.session is None else chat.session.session_id
        chat.is_leaving = True
        face.close()
        if chat.is_busy:
            tell("the session finishes its step; Ctrl-C ends it at once")
        with contextlib.suppress(OSError):
            await chat.aclose()
    return left


def _face(launch: Launch) -> Console | PlainConsole:
    if launch.plain:
        from agent_host.chat.plain import PlainConsole

        return PlainConsole()
    from agent_host.chat.console import Console
    from agent_host.chat.input_line import PromptHistory

    clean = functools.partial(_without_secrets, launch)
    return Console(launch.workspace, PromptHistory(launch.state_dir, clean), styled=launch.styled)


def _without_secrets(launch: Launch, text: str) -> str:

    redaction = Redaction(
        (), key=lambda: redaction_key(launch.state_dir), detectors=launch.settings.redaction.detectors
    )
    return redaction.text(text)


async def _begin(launch: Launch, chat: Conversation, prepare: Callable[[], Any]) -> None:
    """Whatever need not be done before the prompt stands there."""
    await asyncio.sleep(_LOAD_AFTER_S)
    if not launch.plain:
        load_soon()
    preparing = asyncio.ensure_future(prepare())
    with contextlib.suppress(OSError):
        await _open(launch, chat)
    await preparing
    own = None if chat.session is None else chat.session.session_id
    for line in await asyncio.to_thread(chat.records.others_here, own):
        chat.warn(line)


async def _open(launch: Launch, chat: Conversation) -> None:
    session_id = launch.session
    if launch.continues:
        session_id = await asyncio.to_thread(chat.records.newest)
        if session_id is None:
            chat.note("no session of this workspace is on record that no process has; this is a new one")
    elif session_id is not None:
        session_id = await asyncio.to_thread(chat.records.session_id_of, session_id)
    if session_id is not None:
        await chat.resume(session_id, goes_on=launch.prompt is None)
    if launch.prompt is not None and launch.prompt.strip():
        chat.submit(launch.prompt)


def _take_signals(
    face: Console | PlainConsole, chat: Conversation, on_signals: Callable[[Callable[[int], None]], None]
) -> None:
    def stop(number: int) -> None:
        interrupt = getattr(face, "interrupt", None)
        if chat.is_leaving:
            chat.interrupt()
        elif number == signal.SIGINT and interrupt is not None:
            interrupt()
        else:
            face.leave()

    on_signals(stop)
    if sys.platform != "win32" and os.isatty(0):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # to give the terminal back as a job in the background
