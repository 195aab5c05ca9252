"""Programs that the benchmarks start, and the folder where they work.

A program of `benchmarks.children` is started as a module, whatever directory it works in. Started by its path it would
have its own folder in front of all others on `sys.path`, and a file there would hide a package of the same name.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from benchmarks.report import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(os.path.dirname(sys.executable), "agent-host")


def child(name: str, *arguments: str) -> list[str]:
    """The command line of a program of `benchmarks.children`; it needs `child_environment`.

    -P keeps the directory where it works off `sys.path`: a file there could hide a package, too.
    """
    return [sys.executable, "-P", "-m", f"benchmarks.children.{name}", *arguments]


def child_environment() -> dict[str, str]:
    """This process's environment, in which the packages of this folder are found first."""
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((ROOT, others)) if others else ROOT}


def start_child(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A started child; its standard output is a pipe."""
    return subprocess.Popen(child(name, *arguments), env=child_environment(), stdout=subprocess.PIPE)


def output_of_child(name: str, *arguments: str) -> bytes:
    """Return the output of a child. Raises CalledProcessError if it fails."""
    argv = child(name, *arguments)
    return subprocess.run(argv, env=child_environment(), stdout=subprocess.PIPE, check=True).stdout


def bare_interpreter_ms() -> float:
    """The start and the end of a Python that does nothing: the machine's share of every start."""
    return program_ms(sys.executable, "-c", "pass")


def program_ms(*argv: str) -> float:
    """Time a program. Raises CalledProcessError if it fails."""
    return milliseconds(lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL))


def bare_commands() -> None:
    """Eight `bash -c "sleep 0.1"` at once with nothing around them: the machine's own share."""
    pipe = subprocess.PIPE
    running = [subprocess.Popen(["bash", "-c", "sleep 0.1"], stdout=pipe, stderr=pipe) for _ in range(8)]
    for process in running:
        process.communicate()


def resident_mib(pid: int) -> float:
    """The memory that a process has now. Linux and macOS have `ps`."""
    kib = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout
    return int(kib) / 1024


@contextlib.contextmanager
def scratch(parent: str | None = None) -> Iterator[str]:
    """The real path of a new folder, which is removed at the end; in `parent`, whose disk is then measured, or where
    temporary files go. Its name is not like that of a session's own temporary directory, for which policy has rules."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        yield os.path.realpath(folder)
