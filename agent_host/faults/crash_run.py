"""Drive one session through real processes while faults happen to it, and check what must be true of every session."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from agent_host.display_text import count_noun
from agent_host.faults.scenarios import RunOutcome, Scenario
from agent_host.testing.gateway import MockGateway
from state import SessionPaths, temporary
from state.disk import named_pid
from tool_runtime.platform import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.testing.gateway import RequestRecord

SESSION_ID = "s1"
PATIENCE_S = 60.0
KILLED = -int(getattr(signal, "SIGKILL", signal.SIGTERM))
_NO_SESSION = 2
_PAUSED = 3
# A disturbed session may need several: to continue an interrupted task, to start a session that never started, to clean
# up.
_MAX_RESUMES = 5
_SCRIPTS = (b"/tool_runtime/sandbox/launcher.py", b"/tool_runtime/processes/orphan_reaper.py")
_PATIENCE_S = 10.0
_ROOM = 4
"""Allowed increase from the first half of a session to the second, because one process may start before another
ends."""


class Ended(NamedTuple):
    """A process that has ended. `code` is negative for a signal."""

    pid: int
    code: int
    out: str
    err: str


class StartedProcess(Protocol):
    """The part of `subprocess.Popen[str]` that is used; standard input is closed and output is piped."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return (stdout, stderr). Raises subprocess.TimeoutExpired, and can then be called
        again."""


def start_process(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start `argv` with the environment `env`."""
    return subprocess.Popen(  # this interpreter and this package
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


class NotReached(Exception):
    """The session ended before the fault could happen."""


class CrashRun:
    """One session of `scenario` in `folder`, an existing empty directory.

    Inside `serving()`, `run` and `resume` start processes and `finish` waits for one; `recover` resumes the session
    until it ends, and `check` returns the problems of the end. `problems` collects problems on the way. `output` is the
    processes' output format: with "text" the patch is checked, with "json" the result object on stdout.
    `lock_may_stay`: a process may have died, or come too late, between the session's files and its lock; a lock file
    that no process holds, with no other file left, blocks no process. `start` starts a process; tests that run many
    sessions can replace it by a faster way.
    """

    start: ClassVar[Callable[[Sequence[str], Mapping[str, str]], StartedProcess]] = staticmethod(start_process)

    def __init__(self, folder: Path, scenario: Scenario, *, output: str = "text") -> None:
        self.folder = folder
        self.scenario = scenario
        self.workspace = folder / "workspace"
        self.temporary = folder / "tmp"
        for made in (self.workspace, self.temporary):
            made.mkdir()
        scenario.prepare(self.workspace)
        self.paths = SessionPaths(str(folder / "state"), SESSION_ID)
        self.script = scenario.script(self.workspace)
        self.gateway = MockGateway(self.script)
        self.problems: list[str] = []
        self.reported: Ended | None = None
        self.url = ""
        self.lock_may_stay = False
        self._was_killed = False
        self._output = output
        self._started: list[StartedProcess] = []

    @contextlib.contextmanager
    def serving(self) -> Iterator[CrashRun]:
        """Run the gateway; processes that still run at the end are killed."""
        with self.gateway.in_thread() as self.url:
            try:
                yield self
            finally:
                for process in self._started:
                    if process.poll() is None:
                        process.kill()
                        process.communicate()

    # Processes

    def run(self, *, crash: Sequence[str] = (), prefix: Sequence[str] = ()) -> StartedProcess:
        """Start the session. `crash` are options of agent_host.faults.crash, `prefix` a command to start it with."""
        options = ("--workspace", str(self.workspace), "--session-id", SESSION_ID, *self.scenario.options)
        return self._start(["run", self.scenario.prompt, *options], crash, prefix)

    def resume(self, *, crash: Sequence[str] = (), prefix: Sequence[str] = ()) -> StartedProcess:
        """Resume the session; see `run`."""
        return self._start(["resume", SESSION_ID], crash, prefix)

    def _start(self, arguments: Sequence[str], crash: Sequence[str], prefix: Sequence[str]) -> StartedProcess:
        program = ["agent_host.faults.crash", *crash] if crash else ["agent_host"]
        options = ["--gateway", self.url, "--state-dir", self.paths.state_dir, "--output", self._output]
        argv = [*prefix, sys.executable, "-P", "-m", *program, *arguments, *options]
        process = type(self).start(argv, {**os.environ, "HOME": str(self.folder), "TMPDIR": str(self.temporary)})
        self._started.append(process)
        return process

    def finish(self, process: StartedProcess, *, kill_after_s: float | None = None) -> Ended:
        """Wait for `process` to end, or kill it if it still runs after `kill_after_s` seconds."""
        try:
            out, err = process.communicate(timeout=PATIENCE_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            if kill_after_s is None:
                self.problems.append(f"a process was still running after {PATIENCE_S:.0f} s")
            process.kill()
            out, err = process.communicate()
        ended = Ended(process.pid, process.returncode, out, err)
        self._was_killed |= ended.code < 0
        if "Traceback" in err or "internal error" in err:
            self.problems.append(f"a process broke down: {err.strip()}")
        if self.reports_the_end(ended):  # even if it was killed during its cleanup
            self.reported = ended
        return ended

    def reports_the_end(self, ended: Ended) -> bool:
        """True if the process printed the final result of the task. A paused task has a result too, but is not over."""
        reported = bool(ended.out) if self._output == "json" else "\nrecords: " in ended.err
        lines = [line for line in ended.err.splitlines() if "go on with:" not in line]  # with another task
        return reported and not any(f"resume {SESSION_ID}" in line for line in lines)

    def wait_until_held(self, process: StartedProcess) -> None:
        """Wait until `process` holds the session's lock or has ended, because the duration of a start varies."""
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and named_pid(self.paths.lock) != process.pid and time.monotonic() < deadline:
            time.sleep(0.002)

    # The end

    def recover(self) -> None:
        """Resume until the end was reported and no checkpoint files remain. A session that a fault prevented from
        starting is run again. Any other outcome of a resume is a problem, because no fault happens now."""
        again = False
        for _ in range(_MAX_RESUMES):
            if self.reported is not None and not self.leftovers():
                return
            ended = self.finish(self.run() if again else self.resume())
            never_started = ended.code == _NO_SESSION and self.reported is None and not self.gateway.requests
            if again or not (never_started or ended.code in (self.scenario.exit_code, _NO_SESSION)):
                self._expect(ended, self.scenario.exit_code)
            again = never_started and not again
        self.problems.append(f"not over after {_MAX_RESUMES} resumes; left: {self.leftovers()}")

    def _expect(self, ended: Ended, code: int) -> None:
        if ended.code != code:
            self.problems.append(f"exit code {ended.code} where {code} was expected: {ended.err.strip()}")

    def leftovers(self) -> list[str]:
        """Return the names of the checkpoint files that remain."""
        try:
            left = sorted(os.listdir(self.paths.checkpoints))
        except FileNotFoundError:
            return []
        return [] if self.lock_may_stay and left == [os.path.basename(self.paths.lock)] else left

    def check_paused_or_done(self, ended: Ended) -> None:
        """Add a problem unless a process with a failing disk may end like `ended`: done with a warning, paused with the
        command that resumes it, or rejected before anything started."""
        if ended.code == _PAUSED:
            if f"resume {SESSION_ID}" not in ended.err and "error" not in ended.err:
                self.problems.append(f"paused without a word on how to go on: {ended.err.strip()}")
        elif ended.code == _NO_SESSION:
            if self.gateway.requests:
                self.problems.append(f"refused after it started: {ended.err.strip()}")
        else:
            self._expect(ended, self.scenario.exit_code)

    def check(self) -> list[str]:
        """Return the problems of the session at its end, one line each; empty if there are none."""
        problems = [*self.problems, *self.gateway.failures]  # the gateway rejects an invalid thread
        if left := self.leftovers():
            problems.append(f"left under checkpoints: {', '.join(left)}")
        if self._was_killed:  # perhaps after its checkpoint was removed; the next start removes what remains
            temporary.sweep(self.paths.state_dir, {"TMPDIR": str(self.temporary)})
        problems += _leftovers_of(self.folder, self.temporary)
        if self.reported is None or not os.path.exists(self.paths.result):
            return [*problems, "the session has no result"]
        history = Path(self.paths.artifacts, "session_history").read_bytes()
        patch = None if self._output == "json" else _patch_in(self.reported.err)
        result = json.loads(Path(self.paths.result).read_bytes())
        out, events = self.reported.out, self.events()
        outcome = RunOutcome(self.workspace, result, json.loads(history), events, out, patch)
        found = (outcome.result["status"], outcome.result["text"])
        if found != (self.scenario.status, self.scenario.answer):
            problems.append(f"it ended with {found}")
        problems += self._report_problems(self.reported, outcome.result)
        problems += _thread_problems(outcome)
        problems += self._usage_problems(outcome)
        return problems + self.scenario.check(outcome)

    def events(self) -> list[dict[str, Any]]:
        """Read the run log; a line that a kill cut off is skipped."""
        found = []
        with contextlib.suppress(FileNotFoundError), open(self.paths.events, "rb") as log:
            for line in log:
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def _report_problems(self, reported: Ended, kept: Mapping[str, Any]) -> list[str]:
        keys = ("status", "reason", "text", "stepCount", "usage", "toolCalls")
        if self._output == "json":
            result = json.loads(reported.out)
            return [f"{key}: reported {result[key]!r}, kept {kept[key]!r}" for key in keys if result[key] != kept[key]]
        usage = kept["usage"]
        steps, calls = count_noun(kept["stepCount"], "step"), count_noun(len(kept["toolCalls"]), "tool call")
        totals = f"{steps}, {calls}, {usage['inputTokens']} tokens in"
        # The number of cached tokens is printed between the two.
        ends = rf"{re.escape(totals)}(?: \([^)\n]*\))?, {usage['outputTokens']} out"
        return [] if re.search(ends, reported.err) else [f"the totals reported are not those kept: {totals!r}"]

    def _usage_problems(self, outcome: RunOutcome) -> list[str]:
        """Check that the totals are the sums of the usage that the gateway reported for the answers in the thread."""
        # An answer lost in a crash is requested again, with the same number of messages: the last one is in the thread.
        answers: dict[int | None, RequestRecord] = {
            record.message_count: record for record in self.gateway.requests if record.turn is not None
        }
        usages = [self.script.turns[(record.turn or 0) - 1].usage for record in answers.values()]
        turns = sum(message["role"] == "assistant" for message in outcome.history)
        if len(usages) != turns:
            return [f"{turns} answers are in the thread and {len(usages)} were given"]
        cached = sum(usage.cache_read_input_tokens for usage in usages)
        uncached = sum(usage.input_tokens + usage.cache_creation_input_tokens for usage in usages)
        written = sum(usage.cache_creation_input_tokens for usage in usages)
        total = {
            "inputTokens": uncached + cached,
            "outputTokens": sum(usage.output_tokens for usage in usages),
            "cachedInputTokens": cached,
            **({"cacheWriteTokens": written} if written else {}),
        }
        found = outcome.result["usage"]
        return [] if found == total else [f"usage is {found}, and the gateway reported {total}"]


def _thread_problems(outcome: RunOutcome) -> list[str]:
    """Check that every call has one answer, in call order, and that the result's counts match the thread."""
    calls = [call["id"] for message in outcome.history for call in message.get("toolCalls", [])]
    answers = [message["toolCallId"] for message in outcome.history if message["role"] == "tool"]
    turns = sum(message["role"] == "assistant" for message in outcome.history)
    reported, counted = len(outcome.result["toolCalls"]), outcome.result["stepCount"]
    rules = (
        (answers == calls, f"calls {calls} were answered by {answers}"),
        (len(set(answers)) == len(answers), f"a call was answered twice: {answers}"),
        (reported == len(answers), f"{len(answers)} calls were made, {reported} are reported"),
        (counted == turns, f"{turns} turns are in the thread, {counted} are counted"),
    )
    return [problem for holds, problem in rules if not holds]


def _patch_in(err: str) -> str:
    """Return the patch on stderr: everything from the first file's header to the totals."""
    start = err.find("\ndiff --git ")
    return "" if start < 0 else err[start + 1 : err.rindex("\n\n") + 1]


class Count(NamedTuple):
    """The numbers of descriptors and of descendants of a process, including zombies."""

    descriptors: int
    processes: int


def count(pid: int) -> Count | None:
    """Count the descriptors and descendants of a process; None if it has ended."""
    try:
        return Count(len(os.listdir(f"/proc/{pid}/fd")), len(current.descendants(pid)))
    except OSError:
        return None


def growth(counts: Sequence[Count]) -> list[str]:
    """Return the counts that grew from the first half of a session to the second, one line each."""
    half = len(counts) // 2
    if not half:
        return []
    most = ((max(part) for part in zip(*counts[place], strict=True)) for place in (slice(half), slice(half, None)))
    rows = zip(Count._fields, *most, strict=True)
    return [f"{before} {kind} became {after}" for kind, before, after in rows if after > before + _ROOM]


def idle_helpers(pid: int) -> list[int]:
    """Return the helper processes of a host that run no command: no other program runs in their namespace."""
    rows = [one for one, row in current.descendants(pid).items() if row.alive]
    helpers = {one for one in rows if any(word.endswith(_SCRIPTS) for word in _read(one, "cmdline").split(b"\0"))}
    busy = {_namespace(one) for one in rows if one not in helpers} - {_namespace(pid)}
    return sorted(one for one in helpers if _namespace(one) not in busy)


def _leftovers_of(folder: Path, temporary: Path) -> list[str]:
    """Return the leftovers of a run in `folder`, one line each; processes get some time to end."""
    problems = [f"left in the temporary directory: {name}" for name in sorted(os.listdir(temporary))]
    entries = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    problems += [f"left a socket: {path}" for path in entries if path.is_socket()]
    until = time.monotonic() + _PATIENCE_S
    while (processes := _processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    return problems + [f"process {pid} still runs: {line.decode(errors='replace')}" for pid, line in processes]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _processes_of(folder: Path) -> list[tuple[int, bytes]]:
    if not os.path.isdir("/proc/self/fd"):
        return []
    home = b"HOME=%b" % os.fsencode(folder)
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    return [(pid, _read(pid, "cmdline")) for pid in pids if home in _read(pid, "environ").split(b"\0")]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""
