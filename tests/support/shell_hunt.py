"""Judges shell lines and runs those that are allowed in a jail: `python -m tests.support.shell_hunt --lines 100000`.

One JSON line on stdout for each escape (a line that was allowed and did what the policy forbids), with a shorter line
that does the same, and a last one with the counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.judging import Environment
from agent_host.judging.facts import gather
from policy.bundle import bundle_from_trusted
from policy.decide import check_tool
from policy.shell import parse
from tests.support.shell_corpus import corpus
from tests.support.shell_jail import LISTED, Jail, limits
from tests.support.shell_kinds import BLOCKS, FILES, Kinds
from tests.support.shell_lines import Lines
from tests.support.tools import TOOLS
from tests.support.tree_jail import TreeJail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from policy.facts import ShellName

_NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
_ABSOLUTE = re.compile(r"(?<![\w.])/|~[\w+-]|\$\w+/")
_FUNCTION = re.compile(r"\(\s*\)")
_PLAIN_FUNCTION = re.compile(r"(\w+)\s*\(\s*\)\s*\{([^{}]*)\}")
_WRITES_BY_ARGUMENT = re.compile(r"git\b.*\b(?:clone|init|config|archive|bundle|worktree|format-patch)\b|sed\b.*-\w*i")
_MOST_CLIMBS = 4
_LONGEST_SEARCH = 400
_LISTS = {
    "all": LISTED,
    "echo": ("echo",),
    "shells": (
        "echo",
        "ls",
        "good",
        "cat",
        "bash",
        "sh",
        "xargs",
        "find",
        "env",
        "timeout",
        "true",
        "cd",
        "eval",
        "trap",
    ),
}


class Found(NamedTuple):
    """A line that was allowed and escaped."""

    shell: str
    line: str
    problem: str


def policy(jail: Jail, *, anywhere: bool = False) -> Callable[[str, ShellName], bool]:
    """The verdict of the product, by a bundle that lists programs and lets `out` be written (`anywhere`: all of the
    jail). The facts are gathered as for a RunCommand call."""
    grants: list[dict[str, Any]] = [
        {"name": "Shell.Exec", "allowedCommands": list(jail.listed)},
        {"name": "File.Read", "allowedPaths": [jail.root]},
        {"name": "File.Write", "allowedPaths": [jail.root if anywhere else jail.out]},
        {"name": "File.Delete", "allowedPaths": [jail.root if anywhere else jail.out]},
    ]
    names = ("policyBundleVersion", "tenantId", "userId", "sessionId")
    bundle = bundle_from_trusted(
        {
            **dict.fromkeys(names, "jail"),
            "schemaVersion": "1.0",
            "expiresAt": "2026-01-02T00:00:00Z",
            "capabilities": grants,
            "llmPolicy": {"allowedModels": ["m"], "maxInputTokens": 1, "maxOutputTokens": 1, "maxSessionTokens": 1},
            "approvalRules": [],
        }
    )

    def judge(line: str, shell: ShellName) -> bool:
        place = Environment(jail.work, jail.home, "posix", shell, jail.environment)
        facts = gather(TOOLS["RunCommand"], {"command": line}, place, bundle=bundle)
        return check_tool(bundle, "Shell.Exec", facts, now=_NOW, workspace=jail.work).allowed

    return judge


def first_word(line: str, _shell: ShellName) -> bool:
    """A judge that is easily talked round."""
    return line.split(maxsplit=1)[0] in LISTED if line.strip() else False


_FOOLED: dict[str, Callable[[Jail], Callable[[str, ShellName], bool]]] = {
    "everything": lambda _jail: lambda _line, _shell: True,
    "first-word": lambda _jail: first_word,
    "no-redirections": lambda jail: policy(jail, anywhere=True),
}


def hunt(
    jail: Jail,
    judge: Callable[[str, ShellName], bool],
    *,
    seed: int,
    lines: int,
    counts: Counter[str],
    only: str | None = None,
    run: int | None = None,
) -> Iterator[Found]:
    """Judge `lines` lines, run what is allowed, and yield what escaped. `counts` gets judged, allowed, skipped, opaque,
    run, started. `only` one shell, else all that the machine has; at most `run` lines are run, and none twice."""
    shells = jail.shells
    names = [only] if only else [name for name in ("bash", "bash", "sh", "zsh") if name in shells]
    ran: dict[str, set[str]] = {name: set() for name in names}
    sources: dict[str, Lines | Kinds]
    if isinstance(jail, TreeJail):
        shares = BLOCKS if jail.by_blocks else FILES
        sources = {name: Kinds(seed, name, jail.work, jail.root + "/elsewhere", shares) for name in names}
    else:
        sources = dict.fromkeys(names, Lines(seed, corpus(jail)))
    for number in range(lines):
        if run is not None and counts["run"] >= run:
            return
        shell = names[number % len(names)]
        line = sources[shell].line()
        counts["judged"] += 1
        if line in ran[shell] or "\0" in line or not line.strip() or not judge(line, shells[shell]):
            continue
        counts["allowed"] += 1
        skip = not_run(line, jail, shells[shell])
        if skip is not None:
            counts[skip] += 1
            continue
        ran[shell].add(line)
        outcome = jail.run(line, shell)
        counts["started"] += outcome.started
        counts["run"] += 1
        if outcome.escape is not None:
            yield Found(shell, line, outcome.escape)


def not_run(line: str, jail: Jail, shell: ShellName) -> str | None:
    """Why a line is not run: it may reach out of the jail, or it hands an interpreter a file of code, which a list that
    names the interpreter permits."""
    if isinstance(jail, TreeJail):
        return "opaque" if parse(line, shell).opaque and not jail.by_blocks else None
    bare = re.sub(r"['\"\\]", "", line.replace(jail.root, "J")).replace("/dev/null", "N")
    climbs = bare.count("..")
    if _ABSOLUTE.search(bare) or climbs > _MOST_CLIMBS or (climbs and re.search(r"while|until|for", bare)):
        return "skipped"
    if _may_call_itself(bare) or _WRITES_BY_ARGUMENT.search(bare):
        return "skipped"
    return "opaque" if parse(line, shell).opaque else None


def _may_call_itself(line: str) -> bool:
    """Whether a function may be called by one, and so without end."""
    known = _PLAIN_FUNCTION.findall(line)
    bodies = " ".join(body for _, body in known)
    if len(known) != len(_FUNCTION.findall(line)) + len(re.findall(r"\bfunction\b", line)):
        return True
    return any(re.search(rf"\b{name}\b", bodies) or "$" in bodies for name, _ in known)


def shortened(found: Found, jail: Jail, judge: Callable[[str, ShellName], bool]) -> str:
    """A line made by leaving parts out of `found.line` that is allowed and escapes as well."""
    kind, line, tries = found.problem.split()[0], found.line, 0
    size = max(len(line) // 2, 1)
    while size and tries < _LONGEST_SEARCH:
        place = 0
        while place < len(line) and tries < _LONGEST_SEARCH:
            shorter = line[:place] + line[place + size :]
            grammar = jail.shells[found.shell]
            tries += 1
            if shorter.strip() and judge(shorter, grammar) and not_run(shorter, jail, grammar) is None:
                problem = jail.run(shorter, found.shell).escape
                if problem is not None and problem.startswith(kind):
                    line = shorter
                    continue
            place += size
        size //= 2
    return line


# A process of its own


def shut_in(root: str) -> None:
    """Make all but `root` read-only for this process, and /tmp empty, because shells put here-documents there. Needs a
    mount namespace of its own (Linux 5.12)."""

    class Attributes(ctypes.Structure):
        _fields_ = [
            ("set", ctypes.c_uint64),
            ("clear", ctypes.c_uint64),
            ("propagation", ctypes.c_uint64),
            ("user", ctypes.c_uint64),
        ]

    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), "the mounts cannot be changed")

    bind, here, recursive, read_only, mount_setattr = 0x1000, -100, 0x8000, 1, 442
    place = os.fsencode(root)
    check(libc.mount(place, place, None, bind, None))
    size = ctypes.sizeof(Attributes)
    locked, free = Attributes(set=read_only), Attributes(clear=read_only)
    check(libc.syscall(mount_setattr, here, b"/", recursive, ctypes.byref(locked), size))
    check(libc.syscall(mount_setattr, here, place, 0, ctypes.byref(free), size))
    if not os.path.realpath(root).startswith("/tmp/"):
        check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))


def namespaces() -> tuple[str, ...]:
    """The words that put a program into namespaces of its own; none where that is not to be had."""
    words = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child")
    probe = "from tests.support.shell_hunt import shut_in; import sys; shut_in(sys.argv[1])"
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run([*words, sys.executable, "-c", probe, place], capture_output=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return ()
    return words if done.returncode == 0 else ()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--judge", choices=["policy", *sorted(_FOOLED)], default="policy")
    parser.add_argument("--run", type=int, help="end when so many lines were run")
    parser.add_argument("--kinds", action="store_true", help="lines of shell_kinds.py, in a workspace with held files")
    parser.add_argument("--shell", choices=["bash", "sh", "dash", "zsh"], help="lines for this one only")
    parser.add_argument("--listed", choices=sorted(_LISTS), default="all", help="the programs of the list")
    parser.add_argument("--whole", action="store_true", help="print lines as they are, not shortened")
    parser.add_argument("--with-shells", action="store_true", help="with --kinds: the list names shells, too")
    parser.add_argument("--blocks", action="store_true", help="with --kinds: a list of what is blocked, and no other")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, each with a part of the lines and its own seed"
    )
    parser.add_argument("--place", help=argparse.SUPPRESS)  # for the process that is in namespaces of its own
    asked = parser.parse_args()
    if asked.workers > 1:
        sys.exit(_in_parallel(asked))
    if asked.place is not None:
        shut_in(asked.place)
        _report(Path(asked.place), asked)
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="jail", dir=memory, ignore_cleanup_errors=True) as place:
        words = namespaces()
        if words:
            command = [*words, sys.executable, "-m", "tests.support.shell_hunt", *sys.argv[1:], "--place", place]
            sys.exit(subprocess.run(command).returncode)
        _report(Path(place), asked)


def _kind(found: Found) -> str:
    """What escapes of one cause have in common, more or less."""
    return " ".join((found.problem.split()[0], *sorted(set(re.findall(r"\b[a-z]{2,}\b", found.line)))))


def _in_parallel(asked: argparse.Namespace) -> int:
    """Start the workers, which print what they find, and return the worst of their exit codes."""
    module = [sys.executable, "-m", "tests.support.shell_hunt", *sys.argv[1:], "--workers", "1"]
    share = ["--lines", str(asked.lines // asked.workers)]
    if asked.run is not None:
        share += ["--run", str(asked.run // asked.workers)]
    started = [
        subprocess.Popen([*module, *share, "--seed", str(asked.seed + number)]) for number in range(asked.workers)
    ]
    return max(process.wait() for process in started)


def _report(place: Path, asked: argparse.Namespace) -> None:
    limits()
    root = Path(os.path.realpath(place), "jail")
    root.mkdir()
    if asked.kinds:
        jail: Jail = TreeJail(root, with_shells=asked.with_shells, by_blocks=asked.blocks)
    else:
        jail = Jail(root, _LISTS[asked.listed])
    if asked.judge == "policy":
        judge = jail.policy(_NOW) if isinstance(jail, TreeJail) else policy(jail)
    else:
        judge = _FOOLED[asked.judge](jail)
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for found in hunt(jail, judge, seed=asked.seed, lines=asked.lines, counts=counts, only=asked.shell, run=asked.run):
        short, kind = found.line, _kind(found)
        if asked.judge == "policy" and kind not in kinds and not asked.whole:  # shortening takes hundreds of runs
            short = shortened(found, jail, judge)
        kinds.add(kind)
        print(json.dumps({**found._asdict(), "short": short}), flush=True)
    print(json.dumps({"counts": counts, "shells": sorted(jail.shells)}), flush=True)


if __name__ == "__main__":
    main()
