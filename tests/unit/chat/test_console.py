"""Keys at the live face, through prompt_toolkit's pipe input: which of them answer a question, and which never do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input

from agent_host.chat import Choice, FrameWriter, PlainConsole
from agent_host.chat.console import Console
from agent_host.chat.conversation import Conversation
from agent_host.chat.input_line import ChatCompleter
from agent_host.chat.paper import Paper
from agent_host.clients.supervisor import SessionSpec

if sys.platform != "win32":
    import termios

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from prompt_toolkit.input.base import PipeInput

WITHIN_S = 20.0
ARMED = "the keys above answer"
CHOICES = [Choice("first", "one of them"), Choice("second", "another of them"), Choice("third", "the last")]


class Drawn:
    """What is written to the terminal, as it comes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = bytearray()
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    async def has(self, text: bytes, times: int = 1) -> None:
        """Wait until `text` was written so often."""
        async with asyncio.timeout(WITHIN_S):
            while self._text.count(text) < times:
                self._more.clear()
                await self._more.wait()

    def close(self) -> None:
        """Read the rest; the other end is closed."""
        self._reader.join()
        os.close(self._fd)

    def _read(self) -> None:
        while data := os.read(self._fd, 65536):
            self._text += data
            self._loop.call_soon_threadsafe(self._more.set)


class Keyboard:
    """A console with its conversation, keys that are typed there, and what is drawn."""

    def __init__(self, console: Console, running: asyncio.Future[None], keys: PipeInput, drawn: Drawn) -> None:
        self.console = console
        self.type = keys.send_text
        self._running = running
        self._drawn = drawn

    async def shows(self, text: str, times: int = 1) -> None:
        """Wait until `text` was drawn so often."""
        await self._drawn.has(text.encode(), times)

    async def is_left(self) -> None:
        """Wait until the person has left."""
        async with asyncio.timeout(WITHIN_S):
            await asyncio.shield(self._running)


@contextlib.asynccontextmanager
async def keyboard(workspace: Path) -> AsyncIterator[Keyboard]:
    ours, theirs = os.pipe()
    drawn = Drawn(ours)
    with create_pipe_input() as keys:
        console = Console(
            os.fspath(workspace), InMemoryHistory(["an older prompt"]), styled=False, source=keys, fd=theirs
        )
        spec = SessionSpec([], {}, os.fspath(workspace))
        nobody = cast("Any", None)  # no session is opened here
        console.chat = Conversation(console, Paper(lambda: 80, styled=False), nobody, spec, nobody)
        running = asyncio.ensure_future(console.run())
        try:
            yield Keyboard(console, running, keys, drawn)
        finally:
            console.leave()
            await running
            console.close()
            os.close(theirs)
            drawn.close()


async def test_keys_from_before_a_question_go_where_they_were_meant(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        await at.shows("/help")
        at.type("yes, do")
        asked = asyncio.ensure_future(at.console.key("Allow?", "yn"))
        await at.shows("Allow?")
        await at.shows(ARMED)
        assert not asked.done()
        at.type("n")
        assert await asked == "n"
        await at.shows("yes, do")  # the draft is there again


@pytest.mark.many_rows(4)
@pytest.mark.parametrize(
    "pasted",
    ["yes", "y\r", "\x1b[200~y\x1b[201~", "\r", "x", "\x1by", "\x1b\r", "\x1b[A", "\x1b[999y", "\x7f", "\x17", "\x18"],
    ids=["at once", "line", "bracketed", "enter", "other", "alt", "alt-enter", "up", "odd", "back", "ctrl-w", "ctrl-x"],
)
async def test_what_is_pasted_is_no_answer_and_neither_are_other_keys(pasted: str, tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        at.type("a draft")
        await at.shows("draft")
        asked = asyncio.ensure_future(at.console.key("Allow?", "yns"))
        await at.shows(ARMED)
        at.type(pasted)
        await at.shows("\a")
        assert not asked.done()
        at.type("N")
        assert await asked == "n"
        await at.shows("a draft", times=2)


async def test_keys_that_stop_and_leave_do_so_in_a_question(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        asked = asyncio.ensure_future(at.console.key("Allow?", "yn"))
        await at.shows(ARMED)
        at.type("\x0f")
        await at.shows("no output is folded")
        at.type("\x14")
        await at.shows("not shown any thinking")
        at.type("\x03")
        await at.shows("Ctrl-C again leaves")
        at.type("\x04")
        await at.is_left()
        assert asked.cancel()


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ("\x1b[B\r", "second"),
        ("\x1b[B\x1b[B\x1b[B\x1b[B\x1b[B\r", "third"),  # further down than there are rows
        ("of THEM another\r", "second"),
        ("another of the last\r", None),
        ("\x03", None),
        ("\x04", None),
    ],
)
async def test_a_row_is_chosen_by_what_it_says(keys: str, value: str | None, tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        picked = asyncio.ensure_future(at.console.pick("Which?", CHOICES))
        await at.shows("1 of 3")
        at.type(keys)
        assert await picked == value


async def test_a_line_that_is_asked_for_takes_none_of_the_history(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        typed = asyncio.ensure_future(at.console.line("Why? ", "because"))
        await at.shows("because")
        at.type("\x1b[A\x1b[A of\nthis\r")
        assert await typed == "because of\nthis"
        typed = asyncio.ensure_future(at.console.line("Again? "))
        await at.shows("Again?")
        at.type("text\x03")
        assert await typed is None


async def test_a_paste_of_lines_is_one_text_and_steers_nothing(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        typed = asyncio.ensure_future(at.console.line("Why? "))
        await at.shows("Why?")
        at.type("\x1b[200~/quit\r\nsecond \x1b]0;owned\x07 line\x1b[201~")
        await at.shows("^[")
        at.type("\r")
        assert await typed == "/quit\nsecond \x1b]0;owned\x07 line"


async def test_a_completer_that_is_slow_leaves_no_empty_menu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, usual = threading.Event(), ChatCompleter.get_completions
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def waiting(self: ChatCompleter, *given: Any) -> Iterator[Any]:
        may_answer.wait(WITHIN_S)
        yield from usual(self, *given)

    monkeypatch.setattr(ChatCompleter, "get_completions", waiting)
    async with keyboard(tmp_path) as at:
        at.type("/un")
        await at.shows("un")
        at.type("d")  # drawn while there is no completion yet
        await at.shows("d")
        may_answer.set()
        await at.shows("/undo")
    assert faults == []


async def test_ctrl_c_clears_the_line_and_then_leaves(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        at.type("text\x03\x03")
        await at.shows("Ctrl-C again leaves")
        at.type("\x03")
        await at.is_left()


async def test_ctrl_d_leaves_on_an_empty_line_only(tmp_path: Path) -> None:
    async with keyboard(tmp_path) as at:
        at.type("text\x04\x04")
        await at.shows("text")
        at.type("\x15\x04")
        await at.is_left()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
async def test_a_plain_face_takes_several_lines_for_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = os.openpty()
    face = PlainConsole()
    face.close()
    monkeypatch.setattr(face, "_writer", FrameWriter(terminal, asyncio.get_running_loop(), face.refresh))
    monkeypatch.setattr(termios, "tcflush", lambda *_: None)
    asked = asyncio.ensure_future(face.line("Arguments:", "{}", lines=True))
    try:
        async with asyncio.timeout(WITHIN_S):
            for text in ("{", "}", "."):
                while face._line is None or face._line.done() or face._shown_at == float("inf"):  # noqa: ASYNC110  the face tells nobody
                    await asyncio.sleep(0)
                face._take(text, time.monotonic())
            assert await asked == "{\n}"
    finally:
        face.close()
        os.close(keyboard)
        os.close(terminal)
