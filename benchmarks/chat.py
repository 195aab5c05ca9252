"""The conversation at the terminal (`agent-host chat`): to its prompt, a piece of text from the gateway to the screen,
its memory.

The terminal is a pseudo-terminal that is read here as fast as it is written. A piece of text is the moment at which the
gateway sent it, so the screen tells how old it is; pieces of whose frame only a part had to be drawn are not counted.
It takes about a minute; --quick starts fewer programs and sends fewer pieces.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.processes import PROGRAM, resident_mib, scratch
from benchmarks.report import Row
from benchmarks.session import NOWHERE, ticking

if sys.platform != "win32":
    import termios

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PROMPT = "›".encode()
MOMENT = re.compile(rb"(?<!\d)\d{12,20}(?!\d)")
ROWS, COLUMNS = 40, 120


class Terminal:
    """One `chat` at a pseudo-terminal."""

    def __init__(self, folder: str, gateway: str) -> None:
        if sys.platform == "win32":
            sys.exit("there is no pseudo-terminal")
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        words = [PROGRAM, "chat", "--gateway", gateway, "--state-dir", os.path.join(folder, "state")]
        self._fd, other = os.openpty()
        termios.tcsetwinsize(other, (ROWS, COLUMNS))
        self.process = subprocess.Popen(
            words,
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            env={**own, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(other)

    def read_until(self, text: bytes) -> list[tuple[int, bytes]]:
        """Return the output up to `text`, each read with the time of its end."""
        found: list[tuple[int, bytes]] = []
        last = b""
        while text not in last:
            data = os.read(self._fd, 65536)
            found.append((time.monotonic_ns(), data))
            last = last[-len(text) :] + data
        return found

    def ask(self, prompt: str) -> list[tuple[int, bytes]]:
        """All that is written for a prompt, to the summary of its task."""
        os.write(self._fd, prompt.encode() + b"\r")
        return self.read_until(b" tokens, ")

    def end(self) -> None:
        """Leave, and read what is still said."""
        os.write(self._fd, b"\x04")
        with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
            while os.read(self._fd, 65536):
                pass
        self.process.wait()
        os.close(self._fd)


def to_the_prompt(folder: str, runs: int) -> Iterator[Row]:
    """The whole process, from its start to the prompt on the screen."""
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        terminal = Terminal(folder, NOWHERE)
        terminal.read_until(PROMPT)
        took.append(time.perf_counter() - began)
        terminal.end()
    yield Row("to the prompt", statistics.median(took), "s", 1.0, f"longest {max(took):.2f} s")


def ages_ms(frames: list[tuple[int, bytes]]) -> list[float]:
    """Milliseconds from the sending of each piece to the first frame that has it."""
    first: dict[int, int] = {}
    for now, data in frames:
        for moment in MOMENT.findall(data):
            first.setdefault(int(moment), now)
    return [(now - sent) / 1e6 for sent, now in first.items() if 0 < now - sent < 10e9]


def pieces_of_text(folder: str, *, quick: bool) -> Iterator[Row]:
    """Pieces that come alone, and pieces that come while the screen is being drawn; and the memory after them."""
    for interval_ms, number, part, goal in ((200, 40 if quick else 150, 50, 5), (10, 300 if quick else 2000, 99, 55)):
        with ticking(number, 1, interval_ms / 1000, 8) as url:
            terminal = Terminal(folder, url)
            terminal.read_until(PROMPT)
            terminal.ask("Tell me.")  # imports and connects
            ages = ages_ms(terminal.ask("Again."))
            memory = own_mib(terminal.process.pid)
            terminal.end()
        name = "median" if part == 50 else f"{part} of 100"
        yield Row(
            f"a piece of text on the screen, {interval_ms} ms after the one before, {name}",
            statistics.quantiles(ages, n=100)[part - 1],
            "ms",
            goal,
            f"longest {max(ages):.0f} ms, {len(ages)} of {number} seen whole",
        )
    yield Row("memory of the chat's own process", memory, "MiB", 60, "PSS, after two answers")


def own_mib(pid: int) -> float:
    """The memory of one process, with its share of what it has in common with others."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))
    except FileNotFoundError:
        return resident_mib(pid)


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""
    del parser


def rows(chosen: argparse.Namespace) -> Iterator[Row | str]:
    """See the module."""
    with scratch() as folder:
        yield from to_the_prompt(folder, 3 if chosen.quick else 11)
        yield from pieces_of_text(folder, quick=chosen.quick)
