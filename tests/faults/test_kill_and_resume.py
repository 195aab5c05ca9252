"""A session killed anywhere, or fought over, and resumed until it is done: no effect twice, none forgotten, the same
end (invariant 3). `agent_host.testing` has the faults, the scenarios and the checks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.__main__ import HELPER_SEEDS, RACES, RANDOM_SEEDS, RECOVERIES
from agent_host.faults.crash_run import CrashRun, NotReached
from agent_host.faults.faults import (
    KillAfterRecord,
    KillAtInstant,
    KillDuringRecovery,
    KillHelpers,
    NoFault,
)
from agent_host.faults.scenarios import (
    BackgroundScenario,
    Brief,
    CutAnswer,
    Effects,
    FilesScenario,
    RunOutcome,
    Scenario,
    command,
)
from agent_host.ids import MACHINE
from agent_host.testing.script import Script
from agent_host.thread.messages import Message, encode
from state.checkpoint import Checkpoint, SessionIdentity
from state.file_store import FileCheckpointStore
from tests.faults.jobs import passes, runs
from tests.support.process import eventually
from tool_runtime.sandbox import look

if TYPE_CHECKING:
    from agent_host.faults.__main__ import FaultJob, JobVerdict

# Of an undisturbed session; test_there_is_no_record_after_the_last_one_that_is_tried holds it to that.
RECORDS = 34
CUT_ANSWER_RECORDS = 11
BACKGROUND_RECORDS = 14  # one fewer where it is slow: the result of the next command has its changes then
FILES_RECORDS = 17


def test_undisturbed(tmp_path: Path) -> None:
    crash_run = CrashRun(tmp_path, Effects(), output="json")
    with crash_run.serving():
        NoFault().inflict(crash_run)
        assert crash_run.check() == []
    assert crash_run.reported is not None
    result = json.loads(crash_run.reported.out)
    assert [call["status"] for call in result["toolCalls"]] == ["succeeded"] * 11
    assert result["stepCount"] == 6


@runs(map(KillAfterRecord, range(1, RECORDS + 1)))
def test_killed_after_each_record(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@pytest.mark.parametrize(
    ("scenario", "records"),
    [
        (Effects(), RECORDS),
        (CutAnswer(), CUT_ANSWER_RECORDS),
        (BackgroundScenario(), BACKGROUND_RECORDS),
        (FilesScenario(), FILES_RECORDS),
    ],
)
def test_there_is_no_record_after_the_last_one_that_is_tried(tmp_path: Path, scenario: Scenario, records: int) -> None:
    crash_run = CrashRun(tmp_path, scenario, output="json")
    with crash_run.serving():
        with pytest.raises(NotReached):
            KillAfterRecord(records + 1).inflict(crash_run)
        assert crash_run.check() == []


@pytest.mark.slow
@pytest.mark.skipif(not look("namespace").works, reason=look("namespace").problem)
@runs(map(KillHelpers, HELPER_SEEDS), scenario="helpers")
def test_helpers_killed_whenever_the_model_is_asked(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs(map(KillAtInstant, RANDOM_SEEDS), output="json")
def test_killed_at_random_times(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs([KillDuringRecovery(*records) for records in RECOVERIES])
def test_killed_again_while_it_recovers(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs([KillAfterRecord(1), KillAfterRecord(8), KillDuringRecovery(4, 3)], scenario="step-limit")
def test_the_step_limit_is_kept(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs(map(KillAfterRecord, range(1, CUT_ANSWER_RECORDS + 1)), scenario="cut-answer")
def test_an_answer_that_was_cut_goes_on_where_it_stopped(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs([*map(KillAfterRecord, range(2, BACKGROUND_RECORDS, 2)), KillDuringRecovery(6, 2)], scenario="background")
def test_a_background_command_runs_once_and_is_gone(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs(map(KillAfterRecord, range(3, FILES_RECORDS + 1, 2)), scenario="files")
def test_edits_and_moves_happen_once(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


@runs(RACES)
def test_one_of_several_processes_gets_the_session(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


def test_a_session_that_was_killed_before_its_task_was_on_record_is_started_again(tmp_path: Path) -> None:
    crash_run = CrashRun(tmp_path, Brief())
    options = {"flags": {}, "workspace": str(crash_run.workspace)}
    identity = SessionIdentity(crash_run.paths.session_id, "ws", "local", "local", options)
    state = Checkpoint(
        identity, thread=[encode(Message("system", "Be careful.", 1), MACHINE, session_id=crash_run.paths.session_id)]
    )
    FileCheckpointStore(crash_run.paths.state_dir).create(crash_run.paths.session_id, state).close()
    with crash_run.serving():
        ended = crash_run.finish(crash_run.run())
        assert ended.code == 0, ended.err
        assert crash_run.check() == []


class Slow(Scenario):
    """One command that outlives a host that is killed when begun.txt is there."""

    answer = "Interrupted, I see."

    def prepare(self, workspace: Path) -> None:
        (workspace / "effects.log").write_text("")

    def script(self, workspace: Path) -> Script:
        line = "echo begun > begun.txt; sleep 5; echo late >> effects.log"
        return Script.from_turns(
            [
                {"text": "Slow.", "tool_calls": [command(line)]},
                {"text": self.answer, "expect": {"last_contains": "TOOL_INTERRUPTED"}},
            ]
        )

    def check(self, outcome: RunOutcome) -> list[str]:
        assert [call.get("code") for call in outcome.result["toolCalls"]] == ["TOOL_INTERRUPTED"]
        assert (outcome.workspace / "effects.log").read_text() == ""
        return []


class SlowWithoutSandbox(Slow):
    """A sandbox of namespaces ends its programs itself."""

    options = ("--policy", "ci", "--sandbox", "none")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_a_dead_host_and_its_watcher_left_running_is_ended_by_the_resume(tmp_path: Path) -> None:
    """The command outlives both; the resume ends it before it tells the model that the call was interrupted."""
    crash_run = CrashRun(tmp_path, SlowWithoutSandbox())
    with crash_run.serving():
        process = crash_run.run()
        eventually((crash_run.workspace / "begun.txt").exists, "the start of the command")
        os.kill(process.pid, signal.SIGSTOP)  # a host that runs would start another watcher
        eventually(lambda: is_stopped(process.pid), "the host's stop")
        for pid in children(process.pid):
            if "orphan_reaper.py" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        process.kill()
        crash_run.finish(process)
        assert running("sleep 5", crash_run.workspace)
        crash_run.recover()
        assert not running("sleep 5", crash_run.workspace)
        assert crash_run.check() == []


def test_what_a_dead_host_left_running_has_no_effect_later(tmp_path: Path) -> None:
    """The watcher ends it with the host, and a resume looks again before it tells the model that the call was
    interrupted."""
    crash_run = CrashRun(tmp_path, Slow())
    with crash_run.serving():
        process = crash_run.run()
        eventually((crash_run.workspace / "begun.txt").exists, "the start of the command")
        process.kill()
        crash_run.finish(process)
        crash_run.recover()
        assert not running("sleep 5", crash_run.workspace)
        assert crash_run.check() == []


def children(parent: int) -> list[int]:
    """Of all its threads."""
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for file in listed for pid in file.read_text().split()]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def running(words: str, workspace: Path) -> bool:
    wanted = words.replace(" ", "\0").encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as handle:
                if handle.read().rstrip(b"\0") == wanted and os.path.samefile(f"/proc/{pid}/cwd", workspace):
                    return True
        except OSError:
            continue
    return False
