"""Whole runs for `benchmarks loop`: the product's and the floor's, against a scripted gateway that takes the times."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.gateway import MockGateway, Script
from benchmarks.bundles import of_a_user
from benchmarks.processes import child, child_environment

if TYPE_CHECKING:
    from agent_host.testing.gateway import RequestRecord

Turns = list[dict[str, Any]]

RESULT_BYTES = 1024
PROMPT = "Do it as often as you are told."
_WORDS = "The quick brown fox jumps over the lazy dog, again.\n"
_MS = 1_000_000


@dataclass(frozen=True)
class Run:
    """One process: how long it took to its first request, its own time before each later one, its peak memory."""

    first_request_ms: float
    own_ms: list[float]
    peak_mib: float
    stderr: str


def session(turns: Turns, command: list[str], cwd: str, env: dict[str, str] | None = None) -> Run:
    """Run `command` (`{url}` stands for the gateway) against a gateway that plays `turns`."""
    gateway = MockGateway(Script.from_turns(turns))
    with gateway.in_thread() as url, tempfile.TemporaryFile() as stderr:
        argv = [part.replace("{url}", url) for part in command]
        started = time.monotonic_ns()
        process = subprocess.Popen(argv, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        said = stderr.read().decode()
    if process.returncode != 0 or gateway.failures:
        sys.exit(f"{argv[:4]} ended with {process.returncode}: {said[-2000:]}\n{gateway.failures[:3]}")
    records = gateway.requests
    first = (records[0].first_byte_ns - started) / _MS
    return Run(first, own_times(records), usage.ru_maxrss / 1024, said)


def own_times(records: tuple[RequestRecord, ...]) -> list[float]:
    """Milliseconds from the last byte of each answer to the first byte of the next request."""
    return [
        (after.first_byte_ns - before.answer_end_ns) / _MS
        for before, after in itertools.pairwise(records)
        if before.answer_end_ns is not None
    ]


class Bench:
    """A workspace with a file of 1 KB, a user's bundle for it, and what runs there, with its state in `state` where
    that is given."""

    def __init__(self, folder: str, state: str | None = None) -> None:
        self.folder = folder
        self._state = state or folder
        self.workspace = os.path.join(folder, "workspace")
        os.mkdir(self.workspace)
        self.file = os.path.join(self.workspace, "kilobyte.txt")
        with open(self.file, "w", encoding="utf-8") as handle:
            handle.write(words(RESULT_BYTES))
        self.bundle = os.path.join(folder, "policy.json")
        with open(self.bundle, "wb") as out:
            out.write(orjson.dumps(of_a_user(self.workspace)))
        self._runs = 0

    def floor(self, turns: Turns) -> Run:
        self._runs += 1
        log = os.path.join(self.folder, f"floor-{self._runs}.log")
        argv = child("floor", "--gateway", "{url}", "--log", log, "--prompt", PROMPT)
        return session(turns, argv, self.workspace, child_environment())

    def ours(
        self,
        turns: Turns,
        *,
        policy: str = "ci",
        through: str | None = None,
        skills: int = 0,
        options: tuple[str, ...] = (),
    ) -> Run:
        """`options` are more of the command line. `through` names a program of `benchmarks.children` that runs the
        product in its own way. `skills`: so many the user has."""
        self._runs += 1
        program = [sys.executable, "-P", "-m", "agent_host"]
        env = {**os.environ, "AGENT_HOST_CONFIG": self._with_skills(skills)} if skills else None
        if through is not None:
            program, env = child(through), child_environment()
        usual = ["--gateway", "{url}", "--policy", policy, "--max-steps", "10000", "--output", "json"]
        where = ["--state-dir", self.state_dir, "--workspace", self.workspace]
        return session(turns, [*program, "run", PROMPT, *usual, *options, *where], self.workspace, env)

    def _with_skills(self, count: int) -> str:
        """A configuration with so many skills beside it."""
        home = os.path.join(self.folder, f"skills-{count}")
        if not os.path.isdir(home):
            for number in range(count):
                folder = os.path.join(home, "skills", f"skill-{number}")
                os.makedirs(folder)
                fields = (
                    f"name: skill-{number}\ndescription: >-\n  Does one thing. Use it when that\n  is to be done.\n"
                )
                with open(os.path.join(folder, "SKILL.md"), "w", encoding="utf-8") as file:
                    file.write(f"---\n{fields}allowed-tools: Read, Grep, Bash(git:*)\n---\n{words(4096)}")
            with open(os.path.join(home, "config.toml"), "w", encoding="utf-8"):
                pass
        return os.path.join(home, "config.toml")

    def reading(self, steps: int) -> Turns:
        """A script that has the file read in every step but the last, by two spellings in turn: a model that repeats
        one call is stopped."""
        paths = (self.file, os.path.basename(self.file))
        calls = [{"name": "ReadFile", "arguments": {"path": path}} for path in paths]
        turns = ({"text": "Again.", "tool_calls": [calls[number % 2]]} for number in range(steps - 1))
        return [*turns, {"text": "Done."}]

    def writing(self, steps: int, size: int) -> Turns:
        """A script that has a file written in every step but the last, with other words of `size` bytes each time."""
        path = os.path.join(self.workspace, "written.txt")
        contents = (f"{number:06} {words(size - 7)}" for number in range(1, steps))
        calls = ({"name": "WriteFile", "arguments": {"path": path, "content": content}} for content in contents)
        return [*({"text": "Again.", "tool_calls": [call]} for call in calls), {"text": "Done."}]

    def log_bytes(self) -> int:
        """Size of the event log of our last run."""
        return sum(
            os.path.getsize(os.path.join(at, "events.jsonl"))
            for at, _, names in os.walk(self.state_dir)
            if "events.jsonl" in names
        )

    @property
    def state_dir(self) -> str:
        return os.path.join(self._state, f"state-{os.path.basename(self.folder)}-{self._runs}")


def words(size: int) -> str:
    """Text of `size` bytes."""
    return (_WORDS * (size // len(_WORDS) + 1))[:size]
