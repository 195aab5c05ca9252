"""run_script in a session that is killed and resumed, as RunCommand is held to it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.faults.crash_run import SESSION_ID, CrashRun
from agent_host.faults.faults import KillAfterRecord
from agent_host.faults.scenarios import RunOutcome, Scenario
from agent_host.testing.script import Script
from tests.support.process import Host, call, eventually, gateway, process_exists, say, use

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent_host.faults.crash_run import StartedProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")]
LINES = ("one", "two", "three")
KILLS = range(2, 20, 2)
FIELDS = "---\nname: s\ndescription: Does it.\n---\n"


def script_in(workspace: Path, text: str) -> None:
    folder = workspace / ".agent" / "skills" / "s" / "scripts"
    folder.mkdir(parents=True)
    (folder.parent / "SKILL.md").write_text(FIELDS)
    (folder / "a.py").write_text(text)


def run(*args: str) -> dict[str, Any]:
    return call("run_script", skill="s", relative_path="scripts/a.py", args=list(args))


def test_a_script_that_a_kill_cut_off_is_ended_and_not_run_again(host: Host) -> None:
    """Nor asked about again."""
    starts = host.workspace / "starts"
    code = f"import os,time; print(os.getpid(), file=open({str(starts)!r}, 'a'), flush=True); time.sleep(600)"
    script_in(host.workspace, code)
    with (host.root / "user.toml").open("a") as file:
        file.write('[skills]\nenabled_tools = ["run_script"]\nscript_timeout_s = 600.0\n')
    turns = use(run()), use(call("read_file", path="starts")), say("Done.")
    with gateway(*turns) as served:
        options = ["--session-id", "s", "--toolset", "skills", "--approve", "run_script"]
        process = host.start_task(served.url, *options)
        eventually(lambda: starts.exists() and starts.read_text().endswith("\n"), "the start of the script")
        process.kill()
        pid = int(starts.read_text())
        outcome = host.resume("s", "--gateway", served.url)
        assert outcome.code == 0, outcome
        answers = [answer.text for answer in served.results()]
    eventually(lambda: not process_exists(pid), "the end of the script")
    codes = [(one["toolName"], one.get("code")) for one in outcome.result["toolCalls"]]
    assert codes == [("run_script", "TOOL_INTERRUPTED"), ("read_file", None)]
    assert json.loads(answers[-1])["content_excerpt"] == f"{pid}\n"


class Appends(Scenario):
    """Scripts that append a line each; the model looks before it repeats one that was cut off."""

    answer = "All lines are there."

    def __init__(self, config: Path) -> None:
        config.write_text('[skills]\nenabled_tools = ["run_script"]\nmax_script_runs = 100\n')
        self.options = ("--policy", "full", "--toolset", "skills", "--approve", "run_script")

    def prepare(self, workspace: Path) -> None:
        """The skill, whose script writes a line that is not there yet."""
        script_in(
            workspace,
            "import sys\nlog, line = sys.argv[1:3]\n"
            "seen = open(log).read().split() if len(sys.argv) > 3 else []\n"
            "if line not in seen: open(log, 'a').write(line + '\\n')\n",
        )
        (workspace / "log").touch()

    def script(self, workspace: Path) -> Script:
        """A line in each turn."""
        log = str(workspace / "log")
        turns: list[dict[str, Any]] = []
        for position, line in enumerate(LINES, 1):
            when = {"position": position + 1, "last_contains": "TOOL_INTERRUPTED"}
            turns.append({"text": "Next.", "tool_calls": [run(log, line)]})
            turns.append({"when": when, "text": "Again.", "tool_calls": [run(log, line, "look")]})
        return Script.from_turns([*turns, {"text": self.answer}])

    def check(self, outcome: RunOutcome) -> list[str]:
        """Each line once."""
        found = (outcome.workspace / "log").read_text().split()
        return [] if found == list(LINES) else [f"there is {found}"]


class Approving(CrashRun):
    """A run whose resumes approve scripts, too: what is approved in advance is said to each process."""

    def resume(self, *, crash: Sequence[str] = (), prefix: Sequence[str] = ()) -> StartedProcess:
        """See CrashRun."""
        return self._start(["resume", SESSION_ID, "--approve", "run_script"], crash, prefix)


@pytest.mark.parametrize("record", KILLS)
def test_each_script_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: int) -> None:
    monkeypatch.setitem(os.environ, "AGENT_HOST_CONFIG", str(tmp_path / "user.toml"))
    crash_run = Approving(tmp_path, Appends(tmp_path / "user.toml"))
    with crash_run.serving():
        KillAfterRecord(record).inflict(crash_run)
        crash_run.recover()
        assert crash_run.check() == []
