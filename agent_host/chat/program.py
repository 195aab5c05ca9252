"""A conversation from its first prompt to its end, in this process; and its plain face, which has lines only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.chat.conversation import Conversation
from agent_host.chat.face import FrameWriter
from agent_host.chat.local import LocalRecords
from agent_host.chat.paper import Paper
from agent_host.clients.fork_server import default_starter
from agent_host.clients.supervisor import SessionSpec, Supervisor
from agent_host.terminal import load_soon
from agent_host.version import __version__
from policy.redaction import Redaction
from state.keys import redaction_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.chat.console import Console
    from agent_host.chat.face import Choice
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


# The plain face: lines only, for screen readers, dumb terminals and people who want that. Nothing is drawn over.
#
# The terminal edits the line itself. A line that was typed after a question was shown answers it; any other is a
# prompt.


if sys.platform != "win32":
    import termios

_ROOM_CHARS: Final = 256 * 1024
_READ_BYTES: Final = 64 * 1024
_LEAVES_WITHIN_S: Final = 2.0
_ACTS: Final = "."


class PlainConsole:
    """See the module; a `Face`. `fd_in` and `fd` are the terminal's two ends."""

    def __init__(self, *, fd_in: int = 0, fd: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd_in = fd_in
        self._fd = fd
        self._chat: Conversation | None = None
        self._pending: deque[str] = deque()
        self._pending_chars = 0
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()
        self._line: asyncio.Future[str | None] | None = None
        self._shown_at = float("inf")
        self._interrupted_at = 0.0
        self._writer = FrameWriter(fd, self._loop, self._write)

    # Face

    def print(self, text: str) -> None:
        """See Face."""
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars > _ROOM_CHARS:
            self._room.clear()
        self._write()

    def refresh(self) -> None:
        """See Face."""

    async def room(self) -> None:
        """See Face."""
        if not self._room.is_set() and not self._writer.has_failed:
            await self._room.wait()

    async def key(self, prompt: str, keys: str) -> str:
        """See Face: the first letter of a line."""
        while True:
            text = await self._ask(f"{prompt}: ")
            key = (text or "").strip().lower()
            if key and (key in keys or key in ("yes", "no")) and len(key) in (1, 2, 3):
                return key[0]
            if key:
                self.print(f"give one of {', '.join(keys)}\n")

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """See Face: of several lines the last is one full stop."""
        if not lines:
            return await self._ask(f"{prompt} ")
        self.print(f"{initial}\n{prompt} write it anew; a line with one full stop ends it\n")
        rows: list[str] = []
        while (row := await self._ask("")) is not None and row != _ACTS:
            rows.append(row)
        return "\n".join(rows) if rows else None

    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """See Face: by a number."""
        shown = choices[:50]
        self.print("".join(f"{number} {one.line}\n" for number, one in enumerate(shown, 1)))
        text = (await self._ask(f"{title} A number, or nothing for none: ") or "").strip()
        return shown[int(text) - 1].value if text.isdecimal() and 1 <= int(text) <= len(shown) else None

    def call_attention(self, title: str) -> None:
        """See Face."""
        if title:
            self.print("\a")

    def leave(self) -> None:
        """See Face."""
        self._over.set()

    # The program's side

    def attach(self, chat: Conversation) -> None:
        """Have a conversation, which gets what is typed."""
        self._chat = chat

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).columns or 80
        return 80

    async def run(self) -> None:
        """Take lines until the person leaves, or the input ends."""
        threading.Thread(target=self._read, name="lines", daemon=True).start()
        await self._over.wait()

    def interrupt(self) -> None:
        """Act on Ctrl-C."""
        if self._chat is None or self._chat.interrupt():
            return
        now = time.monotonic()
        if now - self._interrupted_at < _LEAVES_WITHIN_S:
            self.leave()
        else:
            self._interrupted_at = now
            self._chat.note("Ctrl-C again leaves")

    def close(self) -> None:
        """Print what waits."""
        self._room.set()
        self._writer.write("".join(self._pending))
        self._pending.clear()
        self._writer.close()

    async def _ask(self, prompt: str) -> str | None:
        """A line that is typed after the prompt was shown."""
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._line = answer
        self._shown_at = float("inf")
        self.print(prompt)
        try:
            return await answer
        finally:
            if self._line is answer:
                self._line = None

    def _write(self) -> None:
        if self._writer.has_failed:
            self._room.set()
            self.leave()
        elif self._writer.is_idle and self._pending:
            self._writer.write("".join(self._pending))
            self._pending.clear()
            self._pending_chars = 0
            self._room.set()
        elif self._writer.is_idle and self._line is not None and self._shown_at == float("inf"):
            if sys.platform != "win32":
                with contextlib.suppress(termios.error):
                    termios.tcflush(self._fd_in, termios.TCIFLUSH)
            self._shown_at = time.monotonic()

    def _take(self, text: str | None, begun_at: float) -> None:
        if text is None:
            if self._line is not None and not self._line.done():
                self._line.set_result(None)
            self.leave()
        elif self._line is not None and not self._line.done():
            if begun_at >= self._shown_at:  # what was typed before the question is no answer
                self._line.set_result(text)
        elif self._chat is not None and text.strip():
            self._chat.submit(text)

    def _read(self) -> None:
        """Hand over each line with the moment at which its first character was there."""
        waiting, begun_at = b"", 0.0
        while True:
            try:
                data = os.read(self._fd_in, _READ_BYTES)
            except OSError:
                data = b""
            now = time.monotonic()
            begun_at = begun_at if waiting else now
            *lines, waiting = (waiting + data).split(b"\n")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                for line in lines:
                    self._loop.call_soon_threadsafe(self._take, line.decode("utf-8", "replace"), begun_at)
                    begun_at = now
                if not data:
                    self._loop.call_soon_threadsafe(self._take, None, now)
            if not data:
                return
