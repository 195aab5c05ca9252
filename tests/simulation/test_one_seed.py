"""A whole session from one seed: the same seed gives the same bytes on disk, whatever the machine does meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent_host.approval.gate import PendingApprovals
from agent_host.events import EventType
from agent_host.faults.disk import SimulatedDisk
from agent_host.host.backends import Tokens
from agent_host.host.opening import SessionOpener
from agent_host.host.sessions import run_headless
from agent_host.session.opening import ResolvedOptions
from agent_host.testing.gateway import MockGateway, Script
from config.load import load
from state import SessionPaths, make_private_dir
from state.keys import KEY_NAME
from tests.simulation.world import Act, SimulatedWorld
from tests.support.events import problems
from tests.support.process import bundle

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the simulated commands are lines of a POSIX shell")

SESSION = "s"
_ROOT = Path(__file__).parents[2]
ADDRESS, PORT = "192.0.2.1", 8080
COMMANDS = {
    "make": Act(90.0, "built\n"),
    "make lint": Act(45.0, "3 problems\n", exit_code=1),
    "make test": Act(20.0, "all green\n"),
}
_UNAVAILABLE = {"status": 503, "error": {"message": "Overloaded"}}


def _run(*lines: str, timeout: int = 60) -> list[dict[str, Any]]:
    return [{"name": "RunCommand", "arguments": {"command": line, "timeout": timeout}} for line in lines]


TURNS: list[dict[str, Any]] = [
    {**_UNAVAILABLE, "headers": {"retry-after": "100"}},
    {**_UNAVAILABLE, "times": 2},
    {"text": "First the build.", "tool_calls": _run("make")},  # ends by its time-out
    {**_UNAVAILABLE},
    {"tool_calls": _run("make lint", "make test")},
    {"tool_calls": _run("deploy")},
    {"text": "It is not deployed."},
]


class Person:
    """Approves each command five minutes after it was asked for, in turn, and says nothing to a deployment. `disks`
    has the disk as a process would find it that came after each event."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.desk = PendingApprovals(timeout_s=1800)
        self.events: list[bytes] = []
        self.disks: list[tuple[SimulatedDisk, tuple[str, ...]]] = []
        self._world = world
        self._asked = 0

    def take(self, event: Event) -> None:
        """See Sink."""
        self.events.append(event.line())
        self.disks.append((self._world.disk.kill(), tuple(self._world.started)))
        if event.event_type is EventType.APPROVAL_REQUESTED and "deploy" not in event.payload["actionSummary"]:
            self._asked += 1
            self._world.loop.call_later(
                300 + self._asked, lambda: self.desk.decide(event.payload["approvalId"], approved=True)
            )

    def flush(self) -> None:
        """See Sink."""


class Ran(NamedTuple):
    """A session that has stopped: the files of its checkpoint when its task was over, those that stay, its events, the
    result, and how long it ran by its own clock and by that of the machine."""

    checkpoint: dict[str, bytes]
    kept: dict[str, bytes]
    events: list[bytes]
    result: dict[str, Any]
    took_s: float
    real_s: float
    started: list[str]
    disks: list[tuple[SimulatedDisk, tuple[str, ...]]]

    def digest(self) -> str:
        """A hash of all bytes that the session left and said."""
        files = [*sorted(self.checkpoint.items()), *sorted(self.kept.items())]
        return hashlib.sha256(repr((files, self.events)).encode()).hexdigest()


def run_session(folder: Path, seed: int, disk: SimulatedDisk | None = None) -> Ran:
    """One process of a session in `folder`, which is gone afterwards: its paths stand in what is compared. With `disk`
    it resumes what lies there."""
    start = _options(folder)
    world = SimulatedWorld(seed, COMMANDS, {"gateway.example": ADDRESS}, disk or SimulatedDisk())
    person = Person(world)
    checkpoint: dict[str, bytes] = {}
    results: list[dict[str, Any]] = []

    async def session() -> None:
        gateway = MockGateway(Script.from_turns(TURNS))
        await gateway.start(ADDRESS, PORT)
        opener = SessionOpener(
            start,
            gate=lambda _: person.desk,
            watch=lambda _: [person],
            tokens=Tokens(None, None),
            surroundings=world.surroundings,
        )
        finished = await run_headless(
            opener,
            start,
            "Build it." if disk is None else None,
            on_end=lambda _: checkpoint.update(world.disk.contents()),
        )
        results.append(dict(finished.details))
        assert gateway.failures == []
        await gateway.aclose()

    began = time.monotonic()
    world.run(session())
    real_s = time.monotonic() - began
    state = Path(start.state_dir)
    kept = {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}
    shutil.rmtree(folder)
    (result,) = results
    return Ran(checkpoint, kept, person.events, result, world.loop.time(), real_s, world.started, person.disks)


def _options(folder: Path) -> ResolvedOptions:
    """The options of a session whose every command needs an approval, in a folder that it makes. The state directory
    has the key that it gets with its first session."""
    workspace, state = folder / "ws", folder / "state"
    workspace.mkdir(parents=True)
    make_private_dir(SessionPaths(str(state), SESSION).records)  # observers write there, past the store
    (state / KEY_NAME).write_bytes(bytes(range(32)))
    policy, config = folder / "bundle.json", folder / "config.toml"
    config.touch()
    rules = [{"approvalRuleId": "ask", "title": "Run it?", "description": "It runs a command."}]
    asks = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
    allowed = bundle(workspace, grants=asks, approvalRules=rules, expiresAt="2026-01-02T00:00:00Z")
    policy.write_text(json.dumps(allowed))
    flags = {
        "llm.gateway": f"http://gateway.example:{PORT}",
        "llm.dialect": "anthropic",
        "host.policy": str(policy),
        "sandbox.level": "none",
    }
    settings = load(flags, workspace=str(workspace), environ={"AGENT_HOST_CONFIG": str(config)})
    return ResolvedOptions(settings, flags, str(workspace), str(state), SESSION)


def test_one_seed_gives_the_same_bytes_again_and_takes_no_time(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "run"
    first, again = run_session(folder, 1), run_session(folder, 1)
    assert again.checkpoint == first.checkpoint
    assert again.kept == first.kept
    assert again.events == first.events
    assert {os.path.basename(path) for path in first.checkpoint} == {"s.json", "s.journal", "s.lock"}
    assert {"sessions/s/events.jsonl", "sessions/s/result.json", "sessions/s/approvals.jsonl"} <= first.kept.keys()

    events = [json.loads(line) for line in first.events]
    assert [problem for event in events for problem in problems(event)] == []
    assert events[0]["timestamp"] == "2026-01-01T12:00:00.000Z"
    retries = [event["payload"]["waitMs"] for event in events if event["eventType"] == "llm_retry"]
    assert len(retries) == 4
    assert retries[0] == 100_000  # as the gateway asked for it
    assert all(500 <= wait <= 2000 for wait in retries[1:])
    results = [call.get("code", call.get("exitCode")) for call in first.result["toolCalls"]]
    assert results == ["TOOL_EXECUTION_TIMEOUT", 1, 0, "APPROVAL_REQUIRED"]
    assert first.started == ["make", "make lint", "make test"]  # as they were approved
    assert first.took_s > 100 + 300 + 60 + 300 + 45 + 1800
    assert first.real_s < first.took_s / 50


def test_another_seed_gives_other_ids_and_the_same_session(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "run"
    first, other = run_session(folder, 1), run_session(folder, 2)
    made = rb"(?:ws|task|step|appr|msg|art)_[0-9a-f]{16}"
    ids = [set(re.findall(made, b"".join(one.events))) for one in (first, other)]
    assert len(ids[0]) == len(ids[1]) > 8
    assert not ids[0] & ids[1]
    kinds = [[json.loads(line)["eventType"] for line in one.events] for one in (first, other)]
    assert sorted(kinds[0]) == sorted(kinds[1])
    assert first.result["toolCalls"] == other.result["toolCalls"]


@pytest.mark.slow
def test_another_process_with_other_hashes_gives_the_same_bytes(tmp_path: Path) -> None:
    code = "import sys, pathlib; from tests.simulation.test_one_seed import run_session; "
    code += "print(run_session(pathlib.Path(sys.argv[1]), 7).digest())"
    folder = tmp_path.resolve() / "run"

    def digest(hash_seed: str) -> str:
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        argv = [sys.executable, "-c", code, str(folder)]
        done = subprocess.run(
            argv, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert digest("1") == digest("2")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(6))
def test_no_death_of_the_process_has_a_command_run_twice(tmp_path: Path, share: int) -> None:
    """The process dies after each of its events in turn, and the next one, from a seed of its own, goes on."""
    folder = tmp_path.resolve() / "run"
    whole = run_session(folder, 3)
    for number in range(2 + share, len(whole.disks) - 1, 6):
        disk, started = whole.disks[number]
        resumed = run_session(folder, 100 + number, disk.kill())
        ran = [*started, *resumed.started]
        assert len(ran) == len(set(ran)), (number, ran)
        assert resumed.result["text"] == "It is not deployed."
        assert resumed.result["stepCount"] == 4
