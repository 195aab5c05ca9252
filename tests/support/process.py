"""The program as a user meets it: a real process in an environment of its own, real HTTP to a scripted gateway.

`Host` is a home, a workspace and a state directory under one temporary root; `Host.run` starts the command line in it.
Every finished run is checked for what must never happen: a traceback, or a run that does not end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from agent_host.testing.gateway import MockGateway, Script
from tests.support import warm_starts
from tests.support.events import problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

PATIENCE_S = 60.0
MODEL = "test-model"
FAST = {"llm": {"retry_base_s": 0.01, "retry_max_s": 0.05, "max_wait_s": 0}}

Turn = dict[str, Any]


def eventually(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds; an AssertionError names `what` did not come."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.005)


def write_to_pipe(pipe: Path, text: str = "go on\n") -> None:
    """Write to a named pipe once somebody reads it; an AssertionError where nobody comes. A plain `open` waits for
    ever, and nothing cancels a thread that it waits in."""
    opened: list[int] = []

    def has_reader() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: no reader; ENOENT: no pipe yet
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    eventually(has_reader, f"a reader of {pipe.name}")
    try:
        os.write(opened[0], text.encode())
    finally:
        os.close(opened[0])


def process_exists(pid: int) -> bool:
    """Whether a process of this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def checked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`events`, none of which breaks its shape."""
    wrong = [problem for event in events for problem in problems(event)]
    assert not wrong, wrong
    return events


# What a process leaves


@dataclass(frozen=True, slots=True)
class Outcome:
    """A process that has ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.stdout.decode()

    @property
    def result(self) -> dict[str, Any]:
        """The result object: stdout is exactly one JSON object on one line."""
        assert self.stdout.count(b"\n") == 1, (self.stdout, self.stderr)
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value

    @property
    def events(self) -> list[dict[str, Any]]:
        """stdout of `--output jsonl` but for the result; each event carries what the table of payloads says."""
        lines = [json.loads(line) for line in self.stdout.splitlines()]
        return checked([line for line in lines if "eventType" in line])

    @property
    def last_line(self) -> dict[str, Any]:
        """The last line of stdout, an object."""
        value = json.loads(self.stdout.splitlines()[-1])
        assert isinstance(value, dict)
        return value

    @property
    def lines(self) -> list[str]:
        """Lines on stderr."""
        return self.stderr.splitlines()

    @property
    def error(self) -> str:
        """The only line on stderr."""
        assert len(self.lines) == 1, self.stderr
        assert self.lines[0].startswith("agent-host: "), self.stderr
        return self.lines[0]

    def names_once(self, *parts: str) -> str:
        """The one line on stderr that holds all `parts`."""
        found = [line for line in self.lines if all(part in line for part in parts)]
        assert len(found) == 1, (parts, self.stderr)
        return found[0]


class Process:
    """A process that runs. stdout and stderr are read as they come, so that no pipe ever fills up."""

    def __init__(self, popen: warm_starts.Started, stdin: bytes | None) -> None:
        self._popen = popen
        self._pipes = {"stdout": bytearray(), "stderr": bytearray()}
        self._readers = [
            threading.Thread(target=self._read, args=("stdout", popen.stdout), daemon=True),
            threading.Thread(target=self._read, args=("stderr", popen.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                popen.stdin.write(stdin or b"")
                popen.stdin.close()

    @property
    def pid(self) -> int:
        """Its id, which is its process group's too."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def said(self, text: str, *, on: str = "stderr") -> None:
        """Wait until `text` was printed."""
        eventually(lambda: text.encode() in self._pipes[on] or not self.alive, f"{text!r} on {on}")
        assert text.encode() in self._pipes[on], (text, self._pipes)

    def printed(self, *, on: str = "stdout") -> str:
        """What was printed so far."""
        return self._pipes[on].decode(errors="replace")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """What a terminal does: a signal to the whole foreground process group."""
        os.killpg(self.pid, number)

    def finish(self, *, within_s: float = PATIENCE_S) -> Outcome:
        """Wait for the end."""
        try:
            code = self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {within_s} s: {self._pipes}") from None
        for reader in self._readers:
            reader.join(PATIENCE_S)
        outcome = Outcome(code, bytes(self._pipes["stdout"]), self._pipes["stderr"].decode(errors="replace"))
        assert "Traceback" not in outcome.stderr, outcome.stderr
        assert "Error ignored" not in outcome.stderr, outcome.stderr
        return outcome

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.alive:
            self._popen.kill()
            self._popen.wait(PATIENCE_S)

    def _read(self, name: str, pipe: Any) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._pipes[name] += chunk


# Where it runs


@dataclass(slots=True)
class Host:
    """A user's machine under `root`: an empty home, a workspace, a state directory, a user configuration."""

    root: Path
    started: list[Process] = field(default_factory=list)
    cold: bool = False
    """No process is forked: the test looks at what only the interpreter's own start does."""
    imports: tuple[str, ...] = ()
    """What processes that are forked have imported beyond what any session needs."""

    def __post_init__(self) -> None:
        for folder in (self.home, self.workspace, self.temporary):
            folder.mkdir(parents=True)
        self.configure()

    @property
    def home(self) -> Path:
        """$HOME."""
        return self.root / "home"

    @property
    def workspace(self) -> Path:
        """The project directory."""
        return self.root / "work"

    @property
    def state(self) -> Path:
        """$AGENT_HOST_STATE_DIR."""
        return self.root / "state"

    @property
    def temporary(self) -> Path:
        """$TMPDIR."""
        return self.root / "tmp"

    def configure(self, *, sandbox: str = "none", **llm: object) -> None:
        """Write the user's configuration: fast retries, and what is given over them in section `llm`. Without a sandbox
        decisions are those of the lists on any machine; what is about one names its level."""
        values = {**FAST["llm"], **llm}
        text = f'[sandbox]\nlevel = "{sandbox}"\n[llm]\n'
        text += "".join(f"{key} = {value}\n" for key, value in values.items())
        (self.root / "user.toml").write_text(text)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """All that the process gets."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "AGENT_HOST_STATE_DIR": str(self.state),
            "AGENT_HOST_CONFIG": str(self.root / "user.toml"),
            **(extra or {}),
        }

    def start(
        self,
        *arguments: str | os.PathLike[str],
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        program: str = "agent_host",
    ) -> Process:
        """Start `agent-host arguments` in the workspace; or another module that takes them."""
        words = [os.fspath(argument) for argument in arguments]
        process = Process(self.launch(program, words, piped=stdin is not None, env=env), stdin)
        self.started.append(process)
        return process

    def launch(
        self, program: str, arguments: Sequence[str], *, piped: bool, env: Mapping[str, str] | None = None
    ) -> warm_starts.Started:
        """Start `python -m program arguments` in the workspace and in a session of its own; `piped`: it is written to.

        It is forked where that shows the same (see `warm_starts`).
        """
        if not self.cold and warm_starts.can_start(env or {}):
            return warm_starts.start(
                program, arguments, piped=piped, env=self.environment(env), cwd=self.workspace, imports=self.imports
            )
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program, *arguments],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(env),
            cwd=self.workspace,
            start_new_session=True,
        )

    def run(
        self, *arguments: str | os.PathLike[str], stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run `agent-host arguments` to its end."""
        return self.start(*arguments, stdin=stdin, env=env).finish()

    def start_task(
        self, gateway: str, *options: str | os.PathLike[str], policy: str | os.PathLike[str] = "full"
    ) -> Process:
        """Start `agent-host run` with a result object at the end. A bundle file instead of `full` costs 0.1 s."""
        return self.start("run", "Do it.", "--gateway", gateway, "--policy", policy, "--output", "json", *options)

    def task(self, gateway: str, *options: str | os.PathLike[str], policy: str | os.PathLike[str] = "full") -> Outcome:
        """`start_task`, to its end."""
        return self.start_task(gateway, *options, policy=policy).finish()

    def resume(self, *options: str | os.PathLike[str]) -> Outcome:
        """`agent-host resume`, to its end."""
        return self.run("resume", "--output", "json", *options)

    def policy(self, **changes: Any) -> Path:
        """A bundle file; see `bundle`."""
        path = self.root / "policy.json"
        path.write_text(json.dumps(bundle(self.workspace, **changes)))
        return path

    def script(self, *turns: Turn, name: str = "script.jsonl") -> Path:
        """A script file of `turns`."""
        path = self.root / name
        path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
        return path

    def records(self, session_id: str) -> Path:
        """What stays of a session."""
        return self.state / "sessions" / session_id

    def history(self, session_id: str) -> list[dict[str, Any]]:
        """The uploaded thread."""
        messages = json.loads((self.records(session_id) / "artifacts" / "session_history").read_bytes())
        assert isinstance(messages, list)
        return messages

    def event_log(self, session_id: str) -> list[dict[str, Any]]:
        """The session's run log; each event carries what the table of payloads says."""
        lines = (self.records(session_id) / "events.jsonl").read_bytes().splitlines()
        return checked([json.loads(line) for line in lines])

    def checkpoints(self) -> list[str]:
        """Names of the files that make sessions resumable."""
        folder = self.state / "checkpoints"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def state_files(self) -> dict[str, tuple[bytes, int]]:
        """Every file of the state directory: what is in it, and when that was written, in nanoseconds."""
        files = (path for path in self.state.rglob("*") if path.is_file())
        return {str(path.relative_to(self.state)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    def close(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            process.kill()


# What it talks to


class Gateway:
    """A scripted gateway in a thread of the test, and what it was asked."""

    def __init__(self, mock: MockGateway, url: str) -> None:
        self.mock = mock
        self.url = url

    @property
    def count(self) -> int:
        """Requests so far."""
        return len(self.mock.requests)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The requests."""
        return [json.loads(record.body or b"null") for record in self.mock.requests]

    def results(self, request: int = -1) -> list[ToolAnswer]:
        """The tool results in the last message of a request, in order."""
        blocks = self.bodies[request]["messages"][-1]["content"]
        return [
            ToolAnswer(block["tool_use_id"], _plain(block.get("content", "")), bool(block.get("is_error")))
            for block in blocks
            if block["type"] == "tool_result"
        ]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A tool result as the model gets it."""

    call_id: str
    text: str
    is_error: bool


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


@contextlib.contextmanager
def gateway(*turns: Turn, complains: bool = False) -> Iterator[Gateway]:
    """Serve `turns`. On a clean exit every request was one that the real endpoint would take, unless `complains`."""
    mock = MockGateway(Script.from_turns(turns), keep_bodies=True)
    with mock.in_thread() as url:
        yield Gateway(mock, url)
    assert bool(mock.failures) == complains, mock.failures


def say(text: str, **more: Any) -> Turn:
    """A turn of text."""
    return {"text": text, **more}


def use(*calls: dict[str, Any], **more: Any) -> Turn:
    """A turn of tool calls."""
    return {"tool_calls": list(calls), **more}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A tool call."""
    return {"name": tool, "arguments": arguments}


def shell(command: str, **arguments: Any) -> dict[str, Any]:
    """A RunCommand call; no command of a test outlives its time-out."""
    return call("RunCommand", **{"command": command, "timeout": 60, **arguments})


def bundle(
    workspace: Path,
    *,
    without: Sequence[str] = (),
    expires_in_s: float = 3600,
    grants: Mapping[str, Mapping[str, Any]] | None = None,
    llm: Mapping[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    """A policy bundle that allows files in `workspace`, any command, and model calls.

    `without` takes capabilities away, `grants` adds to them or changes them, `llm` changes `llmPolicy`.
    """
    files = {"allowedPaths": [str(workspace)]}
    capabilities: dict[str, Mapping[str, Any]] = {
        "File.Read": files,
        "File.Write": files,
        "File.Delete": files,
        "Shell.Exec": {},
        "LLM.Call": {},
    }
    for name, entry in (grants or {}).items():
        capabilities[name] = {**capabilities.get(name, {}), **entry}
    limits = {
        "allowedModels": [MODEL],
        "maxInputTokens": 100_000,
        "maxOutputTokens": 4096,
        "maxSessionTokens": 1_000_000,
    }
    return {
        "policyBundleVersion": "test.1",
        "schemaVersion": "1.0",
        "tenantId": "local",
        "userId": "local",
        "sessionId": "*",
        "expiresAt": (datetime.now(UTC) + timedelta(seconds=expires_in_s)).isoformat(),
        "capabilities": [{"name": name, **entry} for name, entry in capabilities.items() if name not in without],
        "llmPolicy": {**limits, **(llm or {})},
        "approvalRules": [],
        **top,
    }
