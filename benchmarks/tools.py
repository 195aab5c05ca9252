"""The desktop and native tools through their router, against programs that do the same: small calls, a directory in
pages, a search, long output, large files, commands side by side, an edit.

It takes about a minute; --quick makes fewer calls on less data.
What is compared is measured in turns in one run, files are in the system's cache, and figures are medians. The search
is measured with `rg` too where it is installed: on PATH, or beside the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import orjson

from benchmarks import printed
from benchmarks.paging import paging
from benchmarks.processes import bare_commands, output_of_child, scratch
from benchmarks.report import MIB, Row, medians, milliseconds
from benchmarks.runs import words
from benchmarks.tool_calls import Calls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Iterator
    from typing import Any

SMALL_BYTES = 8 * 1024
DURABLE_WRITE = """
import os, sys
with open(sys.argv[1] + ".new", "wb") as file:
    file.write(sys.stdin.buffer.read())
    file.flush()
    os.fsync(file.fileno())
os.replace(sys.argv[1] + ".new", sys.argv[1])
directory = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
os.fsync(directory)
"""
IN_TURN = 10
"""Calls, and then programs: what follows the end of a program finds the processor's caches full of it."""
ENTRIES = 50
NEEDLE = "here it (is|was)"
PIECE_BYTES = 8 * MIB
EDITED_BYTES = 1_000_000
COMMANDS = 8
PATTERN = r"def planted_\w+\("
PLANTED = 20
A_FOLDER = 100
GOALS = {("with rg", "rg"): 1.3, ("without rg", "rg"): 12.0}


class Effort(NamedTuple):
    """Number of measurements."""

    calls: int  # of each small tool
    entries: int  # of a directory that is listed in pages
    files: int  # to search through
    searches: int
    pieces: int  # of PIECE_BYTES, that a command prints
    huge_bytes: int
    large: int  # calls that print or read that much
    rounds: int  # of parallel commands
    edits: int


FULL = Effort(
    calls=300,
    entries=100_000,
    files=20_000,
    searches=7,
    pieces=128,
    huge_bytes=2 * 1024 * MIB,
    large=3,
    rounds=10,
    edits=100,
)
QUICK = Effort(
    calls=10, entries=2_000, files=1_000, searches=1, pieces=4, huge_bytes=64 * MIB, large=1, rounds=1, edits=5
)


async def took_ms(work: Awaitable[object]) -> float:
    """Time one run of `work`."""
    began = time.perf_counter_ns()
    await work
    return (time.perf_counter_ns() - began) / 1e6


def run_ms(argv: list[str]) -> float:
    """Time a program from its start to the end of its output. Raises CalledProcessError."""
    return milliseconds(lambda: subprocess.run(argv, stdout=subprocess.PIPE, check=True))


async def awaited_ms(argv: list[str], stdin: bytes | None = None) -> float:
    """Time a program from its start to the end of its output, with `stdin`, for a host that runs its tools as programs
    from its event loop. Raises CalledProcessError."""
    began = time.perf_counter_ns()
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*argv, stdin=pipe if stdin is not None else None, stdout=pipe)
    await program.communicate(stdin)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, argv)
    return (time.perf_counter_ns() - began) / 1e6


# Small calls


class Small(NamedTuple):
    """A call of a tool and the program that does the same. `goal` is the most that the call may take of its time."""

    what: str
    tool: str
    arguments: dict[str, Any]
    argv: list[str]
    goal: float | None = 0.1


def small_calls(folder: str) -> Iterator[Small]:
    """On files of 8 KiB."""
    content = words(SMALL_BYTES)
    entries = os.path.join(folder, "entries")
    os.mkdir(entries)
    for number in range(ENTRIES):
        put(os.path.join(entries, f"{number:03}.txt"), f"{content}\nhere it is\n")
    file = os.path.join(entries, "000.txt")
    yield Small("read, against `cat`", "ReadFile", {"path": file}, ["cat", file])
    yield Small("list, against `ls -l`", "ListDirectory", {"path": entries}, ["ls", "-l", entries])
    yield Small("native read, against `cat`", "cp__read_file", {"path": file}, ["cat", file])
    yield Small("native list, against `ls -l`", "cp__list_dir", {"path": entries}, ["ls", "-l", entries])
    native = {"pattern": NEEDLE, "path": file}
    yield Small("native grep, against `grep -n`", "cp__grep", native, ["grep", "-E", "-n", NEEDLE, file])
    for what, at, flags, goal in (("one file", file, "-n", 0.1), (f"{ENTRIES} files", entries, "-rn", None)):
        argv = ["grep", "-E", flags, NEEDLE, at]
        yield Small(f"grep in {what}, against `grep {flags}`", "Grep", {"pattern": NEEDLE, "path": at}, argv, goal)


def put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


async def small(calls: Calls, folder: str, rounds: int) -> list[Row]:
    """Each tool in this process against a process for each call."""
    found = []
    for one in small_calls(folder):
        await calls.call(one.tool, **one.arguments)
        ours_ms, program_ms = [], []
        for _ in range(-(-rounds // IN_TURN)):
            ours_ms += [await took_ms(calls.call(one.tool, **one.arguments)) for _ in range(IN_TURN)]
            program_ms += [await awaited_ms(one.argv) for _ in range(IN_TURN)]
        ours, program = statistics.median(ours_ms), statistics.median(program_ms)
        found.append(Row(one.what, ours / program, "x", one.goal, f"{ours:.3f} / {program:.3f} ms"))
    return found


async def write(calls: Calls, folder: str, rounds: int, tool: str = "WriteFile", what: str = "write") -> list[Row]:
    """The tool has replaced the file at once, and has it on disk, when it is done; `tee` has not (decision 0066)."""
    path, content = os.path.join(folder, "written.txt"), words(SMALL_BYTES)
    await calls.call(tool, path=path, content=content)
    times = [
        (
            await took_ms(calls.call(tool, path=path, content=content)),
            await awaited_ms(["tee", path], content.encode()),
            await awaited_ms([sys.executable, "-I", "-S", "-c", DURABLE_WRITE, path], content.encode()),
            milliseconds(lambda: replace(path, content)),
        )
        for _ in range(rounds)
    ]
    ours, program, interpreter, by_hand = medians(times)
    notes = [f"{ours:.3f} / {other:.3f} ms" for other in (program, by_hand, interpreter)]
    return [
        Row(f"{what}, against a process that does the same", ours / interpreter, "x", 0.1, notes[2]),
        Row(f"{what}, against `tee`, which syncs nothing", ours / program, "x", None, notes[0]),
        Row(f"{what}, against the same by hand with its syncs", ours / by_hand, "x", None, notes[1]),
    ]


def replace(path: str, text: str) -> None:
    """The least that a write has to do: make another file, have it on disk, and put it in the place of the first."""
    other = f"{path}.new"
    with open(other, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(other, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


# The search


def make_tree(root: str, files: int) -> list[str]:
    """Python files of 1 to 8 KiB in folders of a hundred, in a repository; the paths of those with a match, from
    `root`."""
    os.makedirs(os.path.join(root, ".git"))
    put(os.path.join(root, ".gitignore"), "*.log\n/build/\n")
    line = "    value = compute(value, other)  # the quick brown fox\n"
    planted = []
    for number in range(files):
        folder = os.path.join(root, f"package_{number // A_FOLDER:03}")
        if number % A_FOLDER == 0:
            os.mkdir(folder)
        path = os.path.join(folder, f"module_{number % A_FOLDER:02}.py")
        text = f"def module_{number}(value, other):\n" + line * (18 * (1 + number % 8))
        if number % (files // PLANTED) == 0:
            text += f"def planted_{number}(value):\n    return value\n"
            planted.append(os.path.relpath(path, root))
        put(path, text)
    return planted


def rg_path() -> str | None:
    """`rg` on PATH, or beside the interpreter, where its wheel puts it."""
    return shutil.which("rg", path=os.pathsep.join((os.environ["PATH"], os.path.dirname(sys.executable))))


@contextlib.contextmanager
def search_path(folders: list[str]) -> Iterator[None]:
    """PATH has these folders only."""
    before = os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join(folders)
    try:
        yield
    finally:
        os.environ["PATH"] = before


class Tree(NamedTuple):
    """The tree to search: root, files with a match, and the folders of PATH by the name of the way to search."""

    root: str
    planted: list[str]
    ways: dict[str, list[str]]

    async def tool_ms(self, calls: Calls, way: str) -> float:
        """Time the tool. Ends the program if the tool missed a file."""
        with search_path(self.ways[way]):
            began = time.perf_counter()
            text = await calls.call("Grep", pattern=PATTERN, path=self.root)
            took = (time.perf_counter() - began) * 1000
        if missing := [path for path in self.planted if path not in text]:
            sys.exit(f"Grep {way} has not found {missing}: {text[:1000]}")
        return took


async def search(folder: str, files: int, rounds: int) -> list[Row]:
    """All files of a tree. Each way has a runtime of its own, which looks for `rg` on its own PATH."""
    root = os.path.join(folder, "tree")
    rg = rg_path()
    others = [at for at in os.environ["PATH"].split(os.pathsep) if not shutil.which("rg", path=at)]
    tree = Tree(root, make_tree(root, files), {"without rg": others})
    programs = {"`grep -r`": ["grep", "-rnE", PATTERN, root]}
    if rg is not None:
        tree.ways["with rg"] = [os.path.dirname(rg), *others]
        programs["rg"] = [rg, "--no-config", "-n", PATTERN, root]
    calls = {way: Calls(root) for way in tree.ways}
    names = (*tree.ways, *programs)
    turns = [
        [
            *[await tree.tool_ms(calls[way], way) for way in tree.ways],
            *[run_ms(argv) for argv in programs.values()],
        ]
        for _ in range(rounds + 1)
    ]
    for each in calls.values():
        await each.aclose()
    ms = dict(zip(names, medians(turns[1:]), strict=True))
    return [
        Row(
            f"grep over {files:,} files {way}, against {program}",
            ms[way] / ms[program],
            "x",
            GOALS.get((way, program)),
            f"{ms[way]:.0f} / {ms[program]:.0f} ms",
        )
        for program, way in itertools.product(reversed(programs), reversed(tree.ways))
    ]


# Large output and large files


def one_call(workspace: str, tool: str, arguments: dict[str, object], idle: dict[str, object]) -> tuple[float, float]:
    """Milliseconds, and MiB above idle; see `benchmarks.children.one_call`."""
    as_json = (orjson.dumps(each).decode() for each in (arguments, idle))
    took, grown = output_of_child("one_call", workspace, tool, *as_json).split()
    return float(took), float(grown)


def printing(folder: str, pieces: int, rounds: int) -> Iterator[Row]:
    """A command that prints a lot: the same file again and again. It is plain, in colours, or drawn again."""
    size = f"{pieces * PIECE_BYTES / MIB:,.0f} MiB"
    for look, line in {"": words(PIECE_BYTES), **printed.LOOKS}.items():
        put(os.path.join(folder, "piece"), line * (PIECE_BYTES // len(line)))
        command = f"cd '{folder}' && cat{' piece' * pieces}"
        took, grown, floor = medians(
            (
                *one_call(folder, "RunCommand", {"command": command}, {"command": "echo idle"}),
                run_ms(["bash", "-c", f"{command} | cat >/dev/null"]),
            )
            for _ in range(rounds)
        )
        what = f"a command that prints {size}" if not look else f"the same {look}"
        note = " / ".join(f"{pieces * PIECE_BYTES / 1024 / MIB / (ms / 1000):.2f}" for ms in (took, floor)) + " GiB/s"
        yield Row(f"{what}, against `cat` into a pipe", took / floor, "x", 2, note)
        yield Row("memory of the tools for it above idle", grown, "MiB", 32)


def reading(folder: str, size: int, rounds: int) -> Iterator[Row]:
    """Lines behind the hole of a sparse file, and lines before it."""
    path = os.path.join(folder, "huge")
    head, tail = (words(MIB).rstrip("\n") + "\n" for _ in range(2))
    with open(path, "wb") as file:
        file.write(head.encode())
        file.seek(size - len(tail))
        file.write(tail.encode())
    first = {"path": path, "offset": 100, "limit": 50}
    behind = {**first, "offset": head.count("\n") + 2}
    idle = {"path": os.path.join(folder, "small")}
    put(idle["path"], words(SMALL_BYTES))
    for what, arguments in (("first", first), ("last", behind)):
        took, grown = medians(one_call(folder, "ReadFile", arguments, dict(idle)) for _ in range(rounds))
        note = f"{took:.1f} ms"
        yield Row(f"memory for the {what} lines of {size // MIB:,} MiB above idle", grown, "MiB", 32, note)


# Commands side by side, and an edit


async def parallel(calls: Calls, rounds: int) -> Row:
    """Eight commands of 100 ms at once."""

    async def ours() -> None:
        await asyncio.gather(*(calls.call("RunCommand", command="sleep 0.1") for _ in range(COMMANDS)))

    await ours()
    took, bare = medians([(await took_ms(ours()), milliseconds(bare_commands)) for _ in range(rounds)])
    return Row("8 commands of 100 ms, against eight bare Popen", took / bare, "x", 1.1, f"{took:.1f} / {bare:.1f} ms")


async def edit(calls: Calls, folder: str, edits: int) -> Row:
    """One place of a file of 1 MB, there and back again."""
    path = os.path.join(folder, "edited.txt")
    text = words(EDITED_BYTES // 2) + "\nhere is one\n" + words(EDITED_BYTES // 2)
    put(path, text)
    by_hand = statistics.median(milliseconds(lambda: replace(path, text)) for _ in range(edits))
    times = []
    for old, new in itertools.islice(itertools.cycle((("is one", "is two"), ("is two", "is one"))), edits):
        change = {"oldText": f"here {old}", "newText": f"here {new}"}
        times.append(await took_ms(calls.call("EditFile", path=path, edits=[change])))
    note = f"the write and its syncs by hand {by_hand:.2f} ms"
    return Row("an edit of a file of 1 MB", statistics.median(times), "ms", 10, note)


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    effort = QUICK if chosen.quick else FULL
    with scratch(os.getcwd()) as folder:
        with asyncio.Runner() as runner:
            calls = runner.run(opened(folder))
            yield from runner.run(small(calls, folder, effort.calls))
            yield from runner.run(write(calls, folder, effort.calls))
            yield from runner.run(write(calls, folder, effort.calls, "cp__write_file", "native write"))
            yield runner.run(paging(folder, effort.entries, effort.large))
            yield runner.run(edit(calls, folder, effort.edits))
            yield runner.run(parallel(calls, effort.rounds))
            runner.run(calls.aclose())
            yield from runner.run(search(folder, effort.files, effort.searches))
        yield from printing(folder, effort.pieces, effort.large)
        yield from printed.printing(folder, effort.pieces, effort.large)
        yield from reading(folder, effort.huge_bytes, effort.large)


async def opened(folder: str) -> Calls:
    return Calls(folder, guard_processes=True)
