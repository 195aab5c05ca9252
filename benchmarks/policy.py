"""Cost of a policy decision: paths, URLs, shell lines, long lists, the first one, and lines made to be slow.

It takes about a minute; --quick leaves out the longest lists and tries one in forty of the lines made to be slow.
Machines differ: every figure also stands as a multiple of one fixed piece of work that is measured in the same run.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import bundles
from benchmarks.processes import output_of_child
from benchmarks.report import Row, milliseconds
from policy.bundle import PolicyBundle, bundle_from_trusted
from policy.decide import check_tool
from policy.facts import ActionFacts, CommandFacts, PathFacts, UrlFacts
from policy.shell import parse
from tests.support.hostile_lines import PROGRAMS, hostile, useful

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIZES = (10, 1_000, 100_000)
QUICK_SIZES = SIZES[:2]
SHOWN = 8
LINES = (
    "ls -la src",
    "git status && git diff --stat HEAD~1 -- src",
    "cat a.py | grep -v '^#' | sort | head -n 20",
    "find . -name '*.py' -not -path './.git/*' | wc -l",
    "python3 -m pytest -q tests/unit 2>&1 | tail -n 30",
    "cd sub && grep -rn \"def main\" --include='*.py' .",
    'for f in a b c; do wc -l "$f"; done',
    "if [ -f a.txt ]; then cat a.txt; else echo none; fi",
    "sed -n '1,40p' README.md",
)
LISTED = ["ls", "git", "cat", "grep", "sort", "head", "find", "wc", "python3", "tail", "cd", "[", "echo", "sed"]


def bundle(entries: int) -> PolicyBundle:
    """A bundle with so many entries in every list."""
    numbers = range(entries)
    paths = {
        "allowedPaths": ["/w", *(f"/srv/project-{n}/src" for n in numbers)],
        "blockedPaths": [
            "/w/.git",
            "/w/**/.vscode",
            "/w/**/*.code-workspace",
            *(f"/home/u/.secret-{n}" for n in numbers),
        ],
    }
    capabilities: list[dict[str, Any]] = [
        {"name": "File.Read", **paths},
        {"name": "File.Write", **paths},
        {
            "name": "Shell.Exec",
            "allowedCommands": [*LISTED, *PROGRAMS, *(f"program-{n}" for n in numbers)],
            "blockedCommands": [f"other-{n}" for n in numbers],
            "commandPolicies": [{"command": f"program-{n}", "maxArguments": 3} for n in numbers],
        },
        {
            "name": "Network.Http",
            "allowedDomains": ["*.example.com", *(f"host-{n}.example.org" for n in numbers)],
            "blockedDomains": [f"*.bad-{n}.example" for n in numbers],
        },
    ]
    return bundle_from_trusted(bundles.document(capabilities))


def file(path: str) -> PathFacts:
    return PathFacts(path, path, path, "file", size_bytes=100)


def shell(line: str) -> CommandFacts:
    spellings = {f"/w/{name}": f"/w/{name}" for name in ("b", "f")}
    return CommandFacts(line, cwd="/w", home="/home/u", real_paths=spellings)


class Yardstick:
    """The fixed piece of work: what Python itself does in about a millisecond."""

    def __init__(self) -> None:
        def work() -> None:
            counts: dict[str, int] = {}
            for number in range(4_000):
                name = str(number % 97)
                counts[name] = counts.get(name, 0) + number

        work()
        self.us = median_us([work] * 50)

    def row(self, what: str, us: float, goal_us: float | None, note: str = "") -> Row:
        """A figure whose note begins with its multiple of the fixed piece of work."""
        unit, per = ("µs", 1) if us < 1000 else ("ms", 1000)
        goal = None if goal_us is None else goal_us / per
        return Row(what, us / per, unit, goal, f"{us / self.us:8.3f}x  {note}".rstrip())


def median_us(works: Iterable[Callable[[], object]]) -> float:
    times = []
    for work in works:
        parse.cache_clear()
        times.append(milliseconds(work) * 1000)
    return statistics.median(times)


def decisions_us(
    held: PolicyBundle, capability: str, facts: Iterable[ActionFacts], rounds: int, *, denied: int = 0
) -> float:
    """Microseconds of a decision, the median over `facts` in turns; the first `denied` of them have to be denials."""
    asked = list(facts)
    for place, one in enumerate(asked):
        answer = check_tool(held, capability, one, now=NOW)
        if answer.allowed == (place < denied):
            sys.exit(f"{one}: {answer}")
    turns = itertools.islice(itertools.cycle(asked), rounds)
    return median_us([partial(check_tool, held, capability, one, now=NOW) for one in turns])


def typical(yardstick: Yardstick, entries: int, rounds: int) -> Iterator[Row]:
    """Decisions of a bundle with so many entries in each list."""
    paths = [file("/etc/passwd"), file("/w/.git/config"), file("/w/src/a/b/c.py"), file("/srv/project-7/src/a.py")]
    urls = [
        UrlFacts("http://bad.example/"),
        UrlFacts("https://api.example.com/v1/things?x=1", "GET", ("93.184.216.34",)),
    ]
    held, of = bundle(entries), f"{entries:,} entries a list"
    path_goal, shell_goal = (30, 300) if entries == 1_000 else (None, None)
    first = milliseconds(lambda: check_tool(held, "File.Read", paths[0], now=NOW)) * 1000
    reads, writes = (decisions_us(held, name, paths, rounds, denied=2) for name in ("File.Read", "File.Write"))
    yield yardstick.row(f"a path to read, {of}", reads, path_goal)
    yield yardstick.row(f"a path to write, {of}", writes, path_goal)
    lines = decisions_us(held, "Shell.Exec", map(shell, LINES), rounds)
    yield yardstick.row(f"a shell line, {of}", lines, shell_goal, "not from the cache")
    yield yardstick.row(f"a URL, {of}", decisions_us(held, "Network.Http", urls, rounds, denied=1), None)
    yield yardstick.row(f"the first path, {of}", first, None, "which makes the bundle's look-up tables")


def first_decision(yardstick: Yardstick, runs: int) -> Row:
    first = statistics.median(float(output_of_child("first_decision")) * 1000 for _ in range(runs))
    return yardstick.row("the first shell line of a process", first, None, "which loads the parser")


def slow_lines(yardstick: Yardstick, title: str, lines: Mapping[str, str], shown: int, times: int) -> Iterator[object]:
    """Processor time, the least of some times: what else runs on the machine is not the line's doing."""
    held = bundle(1_000)
    found = []
    for name, line in lines.items():
        facts, took = shell(line), []
        for _ in range(times):
            parse.cache_clear()
            began = time.process_time()
            answer = check_tool(held, "Shell.Exec", facts, now=NOW)
            took.append((time.process_time() - began) * 1e6)
        found.append((min(took), name, answer))
    found.sort(key=lambda one: -one[0])
    yield f"{title} lines of 100 KB: {len(found)}, the slowest first"
    for us, name, answer in found[:shown]:
        note = answer.decision if answer.allowed else f"{answer.decision}: {answer.reason[:90]}"
        yield yardstick.row(f"  {title}, {name}"[:61], us, 50_000, note)


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[object]:
    yardstick = Yardstick()
    yield f"the fixed piece of work takes {yardstick.us:.0f} µs; a note begins with a decision's multiple of it"
    for entries in QUICK_SIZES if chosen.quick else SIZES:
        yield from typical(yardstick, entries, 40 if chosen.quick else 400)
    yield first_decision(yardstick, 1 if chosen.quick else 7)
    every, times = (40, 1) if chosen.quick else (1, 3)
    for title, lines, shown in (("useful", useful(), len(useful())), ("hostile", hostile(), SHOWN)):
        tried = dict(itertools.islice(lines.items(), 0, None, every))
        yield from slow_lines(yardstick, title, tried, shown, times)
