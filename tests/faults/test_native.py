"""Native tools in a session that is killed and resumed, as RunCommand and WriteFile are held to it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.crash_run import CrashRun
from agent_host.faults.faults import KillAfterRecord
from agent_host.faults.scenarios import RunOutcome, Scenario
from agent_host.testing.script import Script
from tests.support.process import Host, call, eventually, gateway, process_exists, say, use

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")]
LINES = ("one", "two", "three")
KILLS = range(3, 15, 3)


def test_a_program_that_a_kill_cut_off_is_ended_and_not_run_again(host: Host) -> None:
    """And the session goes on with its families, though nobody names them again."""
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[[native.exec]]\ncommand = {json.dumps(sys.executable)}\n")
    code = "import os,time; print(os.getpid(), file=open('starts', 'a'), flush=True); time.sleep(600)"
    program = call("cp__exec", command=sys.executable, args=["-c", code])
    turns = use(program), use(call("cp__read_file", path="starts")), say("Done.")
    with gateway(*turns) as served:
        process = host.start_task(served.url, "--session-id", "s", "--toolset", "native")
        starts = host.workspace / "starts"
        eventually(lambda: starts.exists() and starts.read_text().endswith("\n"), "the start of the program")
        process.kill()
        pid = int(starts.read_text())
        outcome = host.resume("s", "--gateway", served.url, "--output", "json")
        assert outcome.code == 0, outcome
        answers = [answer.text for answer in served.results()]
    eventually(lambda: not process_exists(pid), "the end of the program")
    codes = [(one["toolName"], one.get("code")) for one in outcome.result["toolCalls"]]
    assert codes == [("cp__exec", "TOOL_INTERRUPTED"), ("cp__read_file", None)]
    assert json.loads(answers[-1])["content"] == f"{pid}\n"


class Appends(Scenario):
    """Lines that are appended one by one, then a tree that is deleted."""

    options = ("--policy", "full", "--toolset", "native")
    answer = "All lines are there."

    def prepare(self, workspace: Path) -> None:
        (workspace / "tree" / "below").mkdir(parents=True)
        (workspace / "tree" / "below" / "f").write_text("x")

    def script(self, workspace: Path) -> Script:
        del workspace  # its calls name no absolute path
        calls = [
            {"name": "cp__write_file", "arguments": {"path": "log", "content": f"{line}\n", "append": True}}
            for line in LINES
        ]
        calls.append({"name": "cp__delete_file", "arguments": {"path": "tree", "recursive": True}})
        turns = [
            turn
            for position, made in enumerate(calls, 1)
            for turn in (
                {"text": "Next.", "tool_calls": [made]},
                {
                    "when": {"position": position + 1, "last_contains": "the process ended"},
                    "text": "Again.",
                    "tool_calls": [made],
                },
            )
        ]
        return Script.from_turns([*turns, {"text": self.answer}])

    def check(self, outcome: RunOutcome) -> list[str]:
        found = (outcome.workspace / "log").read_text().split()
        left = sorted(path.name for path in outcome.workspace.iterdir())
        return [] if (found, left) == (list(LINES), ["log"]) else [f"there is {found}, {left}"]


@pytest.mark.parametrize("record", KILLS)
def test_each_line_is_appended_once(tmp_path: Path, record: int) -> None:
    crash_run = CrashRun(tmp_path, Appends())
    with crash_run.serving():
        KillAfterRecord(record).inflict(crash_run)
        crash_run.recover()
        assert crash_run.check() == []
