"""A process at a terminal: its standard input and error are one end of a pseudo-terminal, the test holds the other."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from typing import TYPE_CHECKING

from tests.support.process import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.process import Host


class AtTerminal:
    """`agent-host arguments` on `host`; stdout is a pipe, or with `whole` the terminal too. `size` is (columns, rows);
    without it nobody knows. `background`: another job has the terminal."""

    def __init__(
        self,
        host: Host,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] | None = None,
        background: bool = False,
        whole: bool = False,
        bytes_a_second: int = 0,
    ) -> None:
        self.bytes_a_second = bytes_a_second
        """The pace at which the terminal reads; 0 for as fast as it can."""
        self._main, other = pty.openpty()
        if size is not None:
            termios.tcsetwinsize(self._main, (size[1], size[0]))
        self._shown = bytearray()
        self.echoes: bool | None = None
        """Whether the terminal shows what is typed, as the process has left it."""
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent_host", *(os.fspath(argument) for argument in arguments)],
            stdin=other,
            stdout=other if whole else subprocess.PIPE,
            stderr=other,
            env=host.environment({"TERM": "xterm", **(env or {})}),
            cwd=host.workspace,
            start_new_session=True,
            preexec_fn=_in_background if background else _own_terminal,  # noqa: PLW1509  no other thread holds a lock that it takes
        )
        os.close(other)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._popen.pid

    @property
    def shown(self) -> str:
        """What stands on the terminal."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    @property
    def screen(self) -> list[str]:
        """The lines that one sees there now."""
        return drawn(self.shown)

    def said(self, text: str, times: int = 1) -> None:
        """Wait until `text` stands there so often."""
        eventually(lambda: self.shown.count(text) >= times or self._popen.poll() is not None, f"{text!r}: {self.shown}")
        assert self.shown.count(text) >= times, self.shown

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._main, text.encode())

    def finish(self) -> tuple[int, str]:
        """(exit code, stdout), at its end."""
        try:
            out, _ = self._popen.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.kill()
            raise AssertionError(f"still running: {self.shown}") from None
        self._reader.join(PATIENCE_S)
        self.echoes = bool(termios.tcgetattr(self._main)[3] & termios.ECHO)
        os.close(self._main)
        return self._popen.returncode, (out or b"").decode()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # of a terminal that nobody has any more
            while data := os.read(self._main, 512 if self.bytes_a_second else 65536):
                self._shown += data
                if self.bytes_a_second:
                    time.sleep(len(data) / self.bytes_a_second)


class Screen:
    """A terminal in the test's own process: `stream` writes to it."""

    def __init__(self, columns: int, rows: int) -> None:
        self._main, other = pty.openpty()
        self.resize(columns, rows)
        self._shown = bytearray()
        self.stream = open(other, "w", encoding="utf-8")  # noqa: SIM115  closed by `close`
        os.set_blocking(self._main, False)

    def resize(self, columns: int, rows: int) -> None:
        """Pull at the window's corner."""
        termios.tcsetwinsize(self._main, (rows, columns))

    @property
    def shown(self) -> str:
        """All that was written to it."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._main, 65536):
                self._shown += data
        return self._shown.decode().replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """What one sees on it now, but for the empty line that the cursor is in."""
        *lines, last = drawn(self.shown)
        assert last == ""
        return lines

    def close(self) -> None:
        """The end."""
        self.stream.close()
        os.close(self._main)


def drawn(shown: str) -> list[str]:
    """What `shown` leaves on a terminal of endless height, line by line. Fails for a sequence that it does not know."""
    lines = [""]
    row = 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\n\r]|[^\n\r\x1b]+|\x1b", shown):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[J":
            lines[row:] = [""]
        elif part.startswith("\x1b") and part.endswith("A"):
            row -= int(part[2:-1])
            assert row >= 0, "above the top"
        elif part == "\r":
            assert row < len(lines)
        elif not part.startswith("\x1b"):
            lines[row] += part
        else:
            assert re.fullmatch(r"\x1b\[([0-9]*m|\?7[lh])", part), repr(part)
    return lines


def _own_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C is a signal."""
    import fcntl  # runs in the child

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _in_background() -> None:
    """The same, and leave the terminal to the group of its session's leader."""
    _own_terminal()
    if os.fork():  # the leader only passes on how the job ends
        _, status = os.wait()
        os._exit(os.waitstatus_to_exitcode(status))
    os.setpgid(0, 0)
