"""Cost of a command's output through the whole host: a session's process that runs one command and keeps its output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from agent_host.testing.gateway import MockGateway, Script
from benchmarks.processes import child_environment, program_ms, scratch
from benchmarks.report import MIB, Row, medians
from benchmarks.runs import own_times, words

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 8 * MIB
COLOURED = "\x1b[32mok\x1b[0m the quick brown fox jumps over the \x1b[1;31mlazy\x1b[0m dog and goes home again.\n"
DRAWN_AGAIN = "\r\x1b[K 45% [##########          ] 10/20 it/s"
LOOKS = {"in colours": COLOURED, "drawn again and again": DRAWN_AGAIN}


def printing(folder: str, pieces: int, rounds: int) -> Iterator[Row]:
    """Rows about a command that prints the same file again and again: the time from the model's call to the next
    request, and the most memory that the host had."""
    size = f"{pieces * PIECE_BYTES / MIB:,.0f} MiB"
    plain = printer(folder, "plain", words(PIECE_BYTES), pieces)
    idle_ms, idle_mib = medians(whole_run(folder, "echo idle") for _ in range(rounds))
    runs = [(*whole_run(folder, plain), floor_ms(folder, plain)) for _ in range(rounds)]
    took, peak, floor = medians(runs)
    note = f"{took:.0f} / {floor:.0f} ms; of a command that prints nothing {idle_ms:.0f} ms"
    yield Row(f"the whole host for {size} that a command prints, against `cat`", took / floor, "x", 2, note)
    yield Row("the most memory of that host, above one that prints nothing", peak - idle_mib, "MiB", 32)
    for look, line in LOOKS.items():
        command = printer(folder, "look", line * (PIECE_BYTES // len(line)), pieces)
        looked, most = medians(whole_run(folder, command) for _ in range(rounds))
        note = f"{looked:.0f} ms, {most - idle_mib:.1f} MiB above idle"
        yield Row(f"the whole host for the same {look}, against `cat`", looked / floor, "x", 10, note)


def printer(folder: str, name: str, text: str, pieces: int) -> str:
    """The command that prints `text` so many times."""
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return f"cat{f' {name}' * pieces}"


def floor_ms(folder: str, command: str) -> float:
    """The command into a pipe that is read and thrown away."""
    return program_ms("bash", "-c", f"cd '{folder}' && {command} | cat >/dev/null")


def whole_run(folder: str, command: str) -> tuple[float, float]:
    """Milliseconds from the model's call to the next request, and the most memory of the process in MiB."""
    call = {"name": "RunCommand", "arguments": {"command": command, "timeout": 600}}
    gateway = MockGateway(Script.from_turns([{"tool_calls": [call]}, {"text": "Done."}]))
    with scratch(folder) as state, gateway.in_thread() as url:
        peak = os.path.join(state, "peak")
        argv = [sys.executable, "-P", "-m", "tests.support.peak_memory", "run", "Print it.", "--policy", "ci"]
        argv += ["--approve-all", "--gateway", url, "--workspace", folder, "--state-dir", state, "--output", "json"]
        program_ms("env", f"PEAK_MEMORY_FILE={peak}", f"PYTHONPATH={child_environment()['PYTHONPATH']}", *argv)
        with open(peak, encoding="utf-8") as file:
            most_kib = int(file.read())
    (took_ms,) = own_times(gateway.requests)
    return took_ms, most_kib / 1024
