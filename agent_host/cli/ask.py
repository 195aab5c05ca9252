"""Approvals at a terminal: the effect of a call, in the words of `serve`, and one key for the answer (AH 10.1).

Only a line that was typed after the question, and that is one of the keys, approves anything. End of input, a timeout
and Ctrl-C do not.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from agent_host import ApprovalAnswer, terminal
from agent_host.cli import put
from agent_host.display_text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host import ApprovalRequest, Form

if sys.platform != "win32":
    import termios


_KEYS: dict[str, Literal["once", "task", "session"]] = {
    "y": "once",
    "yes": "once",
    "once": "once",
    "t": "task",
    "task": "task",
    "s": "session",
    "session": "session",
}
_QUESTION = "Allow this? y once, t for this task, s for this session, n no: "
_LINE_BYTES = 4096
_SHOWN_CHARS = 40


def can_ask(*, no_input: bool) -> bool:
    """True if a person can answer: standard input and error are terminals, and this does not run in CI."""
    if no_input or terminal.is_in_ci() or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    if sys.platform == "win32":
        return True
    try:  # the system stops a background job that reads from its terminal
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # the terminal does not belong to this process's session, and has no jobs
        return True


def agrees(question: str) -> bool:
    """True if the person types `y` or `yes` to a question; an empty line and end of input mean no."""
    _drop_typed()
    put(sys.stderr, f"{escape(question)} y yes, n no: ")
    while True:
        line = sys.stdin.readline(_LINE_BYTES)
        key = line.strip().lower()
        if key in ("y", "yes") or not line or key in ("", "n", "no"):
            return key in ("y", "yes")
        put(sys.stderr, f"{escape(key, keep='')} is not an answer: y yes, n no: ")


def _drop_typed() -> None:
    if sys.platform != "win32":
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


class Terminal:
    """Asks at the terminal, one question after the other. A question that is not answered within `timeout_s` seconds,
    or the bundle's timeout, is denied."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._lines: asyncio.Queue[tuple[str | None, float]] = asyncio.Queue()
        self._reader: threading.Thread | None = None
        self._ended = False

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Return the answer to one request; see `agent_host.Approve`."""
        async with self._turn:
            if self._ended:
                return ApprovalAnswer(False, "the input has ended, so it cannot be approved")
            self._print(request.to_payload())
            wait_s = request.timeout_s or self._timeout_s
            try:
                async with asyncio.timeout(wait_s):
                    return await (self._ask() if request.form is None else self._fill(request.form))
            except TimeoutError:
                put(sys.stderr, "\n")
                return ApprovalAnswer(False, f"approval timed out after {wait_s:g} s", timed_out=True)
            except asyncio.CancelledError as error:  # its message says who was faster, where somebody was
                put(sys.stderr, "".join(f"\n{escape(str(reason), keep='')}" for reason in error.args) + "\n")
                raise

    def _print(self, payload: Mapping[str, Any]) -> None:
        styled, text = terminal.wants_style(), "\n"
        for line in terminal.lines_of_question(payload):
            words = line.text.lstrip(" ")
            indent = line.text[: len(line.text) - len(words)]
            text += f"{indent}{line.colour}{words}{terminal.PLAIN}\n" if styled and line.colour else f"{line.text}\n"
        put(sys.stderr, text)

    async def _ask(self) -> ApprovalAnswer:
        _drop_typed()
        asked_at, wrong = time.monotonic(), ""
        while True:
            line = await self._read_line(wrong + _QUESTION, asked_at)
            if line is None:
                return ApprovalAnswer(False, "the input ended before anybody approved it")
            key = line.strip().lower()
            if key in _KEYS:
                return ApprovalAnswer(True, "approved at the terminal", scope=_KEYS[key])
            if key in ("n", "no"):
                return ApprovalAnswer(False, "denied at the terminal")
            wrong = f"{escape(key[:_SHOWN_CHARS], keep='')!r} is none of y, t, s and n. " if key else ""

    async def _fill(self, form: Form) -> ApprovalAnswer:
        _drop_typed()
        asked_at = time.monotonic()
        key: str | None = ""
        while key is not None and key.strip().lower() not in ("y", "yes", "n", "no"):
            key = await self._read_line(terminal.question_of(form), asked_at)
        if key is not None and key.strip().lower() in ("n", "no"):
            return ApprovalAnswer(False, "declined at the terminal")
        content: dict[str, Any] = {}
        for field in form.fields if key is not None else ():
            problem: str | None = ""
            while problem is not None and key is not None:
                key = await self._read_line(terminal.prompt_of(field, problem), asked_at)
                if key is not None and key.strip() == terminal.DECLINES:
                    return ApprovalAnswer(False, "declined at the terminal")
                problem = None if key is None else terminal.take(field, key, content)
        if key is None:
            return ApprovalAnswer(False, "the input ended before anybody answered it")
        return ApprovalAnswer(True, "answered at the terminal", arguments=content)

    async def _read_line(self, prompt: str, asked_at: float) -> str | None:
        """Return the next line typed after `asked_at`, or None at end of input."""
        put(sys.stderr, prompt)
        line, typed_at = await self._line()
        while line is not None and typed_at < asked_at:  # a key pressed before the question does not answer it
            line, typed_at = await self._line()
        if line is None:
            self._ended = True
            put(sys.stderr, "\n")
        return line

    async def _line(self) -> tuple[str | None, float]:
        """Return the next line. A daemon thread reads it, so the process can end meanwhile."""
        if self._reader is None:
            loop, lines = asyncio.get_running_loop(), self._lines

            def hand_over(text: str | None, typed_at: float) -> None:
                loop.call_soon_threadsafe(lines.put_nowait, (text, typed_at))

            args = (sys.stdin.fileno(), hand_over)
            self._reader = threading.Thread(target=terminal.read_lines, args=args, daemon=True)
            self._reader.start()
        return await self._lines.get()
