"""A terminal that a person sees: tmux with a screen of its own, keys that are pressed there, captures to look at."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.process import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.process import Host

PROMPT = "›"


class Tmux:
    """One window of a tmux server of its own, with a shell in it."""

    def __init__(self, host: Host, columns: int, rows: int, env: Mapping[str, str]) -> None:
        self._name = f"agent-host-{uuid.uuid4().hex[:12]}"
        self.columns = columns
        settings = host.root / "tmux.conf"
        settings.write_text(
            "set -g history-limit 100000\nset -g default-terminal xterm-256color\nset -sg escape-time 0\n"
        )
        self._env = host.environment({"TERM": "xterm-256color", "TMUX_TMPDIR": str(host.root), **env})
        self._run(
            "-f", str(settings), "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(host.workspace),
            "sh",
        )  # fmt: skip

    def chat(self, *arguments: str) -> None:
        """Start `agent-host chat` in the shell, and wait for its prompt."""
        self.command("chat", *arguments)
        self.shows(PROMPT)

    def command(self, *arguments: str) -> None:
        """Start `agent-host` in the shell."""
        self.type(shlex.join([sys.executable, "-P", "-m", "agent_host", *arguments]))
        self.press("Enter")

    def type(self, text: str) -> None:
        """Press the keys of a text."""
        self._run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by their names."""
        self._run("send-keys", *keys)

    def answer(self, key: str) -> None:
        """Press a key once the question on the screen takes keys."""
        self.shows("the keys above answer")
        self.press(key)

    def enter(self, text: str) -> None:
        """Type a line."""
        self.type(text)
        self.press("Enter")

    def resize(self, columns: int, rows: int) -> None:
        """Pull at the window's corner."""
        self.columns = columns
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def screen(self) -> str:
        """All that one sees, with what has scrolled away, without blanks at the ends of lines."""
        text = self._run("capture-pane", "-p", "-S", "-")
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")

    @property
    def coloured(self) -> str:
        """The same with the colours."""
        return self._run("capture-pane", "-p", "-e", "-S", "-")

    @property
    def title(self) -> str:
        """The title of the terminal."""
        return self._run("display-message", "-p", "#{pane_title}").strip()

    @property
    def clipboard(self) -> str:
        """What a program has put into tmux's own clipboard; empty for nothing."""
        found = subprocess.run(["tmux", "-L", self._name, "show-buffer"], capture_output=True, text=True, env=self._env)
        return found.stdout

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until `text` stands there so often."""
        self._waits(lambda screen: screen.count(text) >= times, repr(text))

    def shows_no(self, text: str) -> None:
        """Wait until `text` stands there no longer."""
        self._waits(lambda screen: text not in screen, f"no {text!r}")

    def _waits(self, holds: Callable[[str], bool], what: str) -> None:
        try:
            eventually(lambda: holds(self.screen), what)
        except AssertionError as error:
            error.add_note(self.screen)
            raise

    def kill(self) -> None:
        """Close the terminal, as a person closes a window."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("kill-server")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments], capture_output=True, text=True, env=self._env, check=True
        )
        return done.stdout


@contextlib.contextmanager
def at_tmux(host: Host, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None) -> Iterator[Tmux]:
    """A terminal of this size; the test is skipped where there is no tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminal = Tmux(host, columns, rows, env or {})
    try:
        yield terminal
    finally:
        terminal.kill()


def session_processes(host: Host) -> list[int]:
    """The processes that have a session of this state directory."""
    found = []
    for lock in (host.state / "checkpoints").glob("*.lock"):
        with contextlib.suppress(ValueError, OSError):
            pid = int(lock.read_text().split()[0])
            os.kill(pid, 0)
            found.append(pid)
    return found
