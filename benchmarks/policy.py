"""What a decision of the policy costs: paths, URLs, shell lines, long lists, the first one, and lines made to be slow.

    python -m benchmarks.policy            everything, about a minute
    python -m benchmarks.policy --quick    without the lines made to be slow

Machines differ: every figure also stands as a multiple of one fixed piece of work that is measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from policy.bundle import PolicyBundle, bundle_from_trusted
from policy.check import check_tool
from policy.commands import parse
from policy.facts import ActionFacts, CommandFacts, PathFacts, UrlFacts
from tests.support.hostile_lines import PROGRAMS, hostile, useful

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIZES = (10, 1_000, 100_000)
ROUNDS = 400
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
FIRST = """
import time
from datetime import UTC, datetime
from benchmarks.policy import NOW, bundle, shell
from policy.check import check_tool
held, facts = bundle(10), shell("ls -la src | wc -l")
began = time.perf_counter()
check_tool(held, "Shell.Exec", facts, now=NOW)
print((time.perf_counter() - began) * 1000)
"""


def bundle(entries: int) -> PolicyBundle:
    """A bundle with so many entries in every list."""
    numbers = range(entries)
    paths = {
        "allowedPaths": ["/w", *(f"/srv/project-{n}/src" for n in numbers)],
        "blockedPaths": ["/w/.git", *(f"/home/u/.secret-{n}" for n in numbers)],
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
    limits = {"maxInputTokens": 1, "maxOutputTokens": 1, "maxSessionTokens": 1}
    return bundle_from_trusted(
        {
            "policyBundleVersion": "bench.1",
            "schemaVersion": "1.0",
            "tenantId": "bench",
            "userId": "bench",
            "sessionId": "*",
            "expiresAt": "2100-01-01T00:00:00Z",
            "capabilities": capabilities,
            "llmPolicy": {"allowedModels": ["m"], **limits},
            "approvalRules": [],
        }
    )


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

    def report(self, what: str, us: float, goal_us: float | None, note: str = "") -> None:
        figure, unit, per = (us, "µs", 1.0) if us < 1000 else (us / 1000, "ms", 1000.0)
        verdict = "" if goal_us is None else f"goal ≤ {goal_us / per:g}{unit}  {'ok' if us <= goal_us else 'MISSED'}"
        print(f"{what:46} {figure:8.2f}{unit} {us / self.us:8.3f}x  {verdict:22} {note}", flush=True)


def median_us(works: Iterable[Callable[[], object]]) -> float:
    times = []
    for work in works:
        parse.cache_clear()
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def decisions_us(held: PolicyBundle, capability: str, facts: Iterable[ActionFacts], *, denied: int = 0) -> float:
    """Microseconds of a decision, the median over `facts` in turns; the first `denied` of them have to be denials."""
    rows = list(facts)
    for place, row in enumerate(rows):
        answer = check_tool(held, capability, row, now=NOW)
        if answer.allowed == (place < denied):
            sys.exit(f"{row}: {answer}")
    turns = itertools.islice(itertools.cycle(rows), ROUNDS)
    return median_us([partial(check_tool, held, capability, row, now=NOW) for row in turns])


def typical(yardstick: Yardstick) -> None:
    paths = [file("/etc/passwd"), file("/w/.git/config"), file("/w/src/a/b/c.py"), file("/srv/project-7/src/a.py")]
    urls = [
        UrlFacts("http://bad.example/"),
        UrlFacts("https://api.example.com/v1/things?x=1", "GET", ("93.184.216.34",)),
    ]
    for entries in SIZES:
        held = bundle(entries)
        path_goal, shell_goal = (30, 300) if entries == 1_000 else (None, None)
        note = f"{entries:,} entries in each list"
        began = time.perf_counter()
        check_tool(held, "File.Read", paths[0], now=NOW)
        first = (time.perf_counter() - began) * 1e6
        yardstick.report("a path to read", decisions_us(held, "File.Read", paths, denied=2), path_goal, note)
        yardstick.report("a path to write", decisions_us(held, "File.Write", paths, denied=2), path_goal)
        lines = decisions_us(held, "Shell.Exec", map(shell, LINES))
        yardstick.report("a shell line", lines, shell_goal, "not from the cache")
        yardstick.report("a URL", decisions_us(held, "Network.Http", urls, denied=1), None)
        yardstick.report("the first path of a bundle", first, None, "which makes its look-up tables")


def first_decision(yardstick: Yardstick) -> None:
    def once() -> float:
        ran = subprocess.run([sys.executable, "-c", FIRST], check=True, stdout=subprocess.PIPE, text=True)
        return float(ran.stdout) * 1000

    first = statistics.median(once() for _ in range(7))
    yardstick.report("the first shell line of a process", first, None, "which loads the parser")


def slow_lines(yardstick: Yardstick) -> None:
    """Processor time, the least of three: what else runs on the machine is not the line's doing."""
    held = bundle(1_000)
    for title, lines, shown in (("useful", useful(), len(useful())), ("hostile", hostile(), SHOWN)):
        rows = []
        for name, line in lines.items():
            facts = shell(line)
            times = []
            for _ in range(3):
                parse.cache_clear()
                began = time.process_time()
                answer = check_tool(held, "Shell.Exec", facts, now=NOW)
                times.append((time.process_time() - began) * 1e6)
            rows.append((min(times), name, answer))
        rows.sort(key=lambda row: -row[0])
        print(f"{title} lines of 100 KB: {len(rows)}, the slowest first")
        for us, name, answer in rows[:shown]:
            note = answer.decision if answer.allowed else f"{answer.decision}: {answer.reason[:90]}"
            yardstick.report("  " + name[:44], us, 50_000, note)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a decision of the policy costs.")
    parser.add_argument("--quick", action="store_true", help="leave out the lines made to be slow")
    chosen = parser.parse_args()
    yardstick = Yardstick()
    print(f"the fixed piece of work takes {yardstick.us:.0f} µs; a decision is given as a multiple of it")
    typical(yardstick)
    first_decision(yardstick)
    if not chosen.quick:
        slow_lines(yardstick)


if __name__ == "__main__":
    main()
