"""What lies on disk is not what the program left there, or is gone: one clear line, no hang, no promise that is broken.

Tests marked xfail show what a user has met and what is not right yet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Gateway, Outcome, Turn

NOWHERE = "http://127.0.0.1:1"
EFFECT = shell("echo ran >> effects")
HANG = shell("touch hangs; sleep 50")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="links, named pipes and SIGKILL"),
]


def one_line(outcome: Outcome) -> str:
    """The only line on stderr, which is no report of a bug in the program."""
    assert outcome.code in (1, 2, 3), outcome
    assert "internal error" not in outcome.stderr, outcome.stderr
    return outcome.error


def killed_while_hanging(host: Host, model: Gateway, *options: str) -> None:
    """Start a session `s` and kill it once its model's HANG command runs."""
    process = host.start_task(model.url, "--session-id", "s", *options)
    eventually((host.workspace / "hangs").exists, "the command that hangs")
    process.kill()


def killed_after(host: Host, record: int, model: Gateway, *options: str) -> Outcome:
    """A session `s` that dies behind its record of that number."""
    return host.start(
        "--after-record", str(record),
        "run", "Do it.", "--gateway", model.url, "--policy", "full", "--session-id", "s", *options,
        program="agent_host.faults.crash",
    ).finish()  # fmt: skip


def checkpoint(host: Host, suffix: str) -> Path:
    return host.state / "checkpoints" / f"s.{suffix}"


# Strange things in the place of a session's files


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").touch()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def writable_for_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["json", "journal"])
@pytest.mark.parametrize("spoil", [as_link, as_directory, as_pipe, writable_for_all])
def test_something_else_in_a_checkpoints_place(host: Host, spoil: Callable[[Path], None], suffix: str) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        assert killed_after(host, 4, model).code < 0
        spoil(checkpoint(host, suffix))
        assert "UNREADABLE" in host.run("sessions").text
        assert one_line(host.run("resume", "s"))
        assert model.count == 1
    kept = {path.name for path in (host.state / "checkpoints").iterdir()} - {"s.lock"}
    assert len(kept) >= 2, "nothing is deleted unread"


def test_damaged_blobs_are_told_to_user_and_model(host: Host) -> None:
    with gateway(*[use(shell(f"seq {start} 20000")) for start in range(3)], use(HANG), say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "hangs").exists, "the command that hangs")
        snapshot = host.state / "checkpoints" / "s.json"  # which is written beside the loop
        eventually(lambda: b"contentBlob" in snapshot.read_bytes(), "a snapshot that names blobs")
        process.kill()
        blobs = [path for path in (host.records("s") / "blobs").iterdir() if path.stat().st_nlink == 1]
        assert blobs
        for path in blobs:
            path.write_bytes(b"garbage")
        outcome = host.resume("s", "--gateway", model.url)
    assert outcome.code == 0
    outcome.names_once("damaged on disk; the model reads where")
    assert "were damaged on disk and are lost" in json.dumps(host.history("s"))


@pytest.mark.parametrize("command", [["sessions"], ["resume"], ["resume", "s"], ["run", "Hi.", "--gateway", NOWHERE]])
def test_checkpoints_that_cannot_be_looked_at(host: Host, command: list[str]) -> None:
    host.state.mkdir()
    (host.state / "checkpoints").symlink_to("checkpoints")  # as root sees it; others meet a mode of 0
    assert "checkpoints" in one_line(host.run(*command))


@pytest.mark.parametrize("name", ["result.json", "events.jsonl"])
def test_a_named_pipe_among_the_records_holds_nobody_up(host: Host, name: str) -> None:
    host.records("s").mkdir(parents=True)
    os.mkfifo(host.records("s") / name)
    with gateway(say("Hello.")) as model:
        command = ["sessions"] if name == "result.json" else ["run", "Hi.", "--gateway", model.url, "--session-id", "s"]
        host.start(*command).finish(within_s=5)


def test_a_result_of_another_shape(host: Host) -> None:
    host.records("s").mkdir(parents=True)
    kept = {"status": "TASK_COMPLETED", "prompt": None, "stepCount": 1, "endedAt": "2026-01-01", "workspace": ""}
    (host.records("s") / "result.json").write_text(json.dumps(kept))
    assert host.run("sessions").code == 0


# What is kept, and where the user is told it is


def test_a_journal_alone_is_where_the_message_says(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        killed_after(host, 4, model)
    checkpoint(host, "json").unlink()
    told = one_line(host.run("resume", "s"))
    assert os.path.exists(told.split("kept as ")[1].split(";")[0]), told


def test_a_journal_alone_is_listed(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        killed_after(host, 4, model)
    checkpoint(host, "json").unlink()
    assert host.run("sessions").text.startswith("s ")


def test_a_promised_resume_goes_on(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        killed_after(host, 4, model)
        checkpoint(host, "journal").unlink()
        told = one_line(host.run("resume", "s"))
        again = host.run("resume", "s", "--gateway", model.url)
    assert "give the same command again" not in told or again.code == 0


def test_a_pause_at_the_door_names_the_command(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        killed_after(host, 4, model)
    checkpoint(host, "json.tmp").mkdir()
    outcome = host.run("resume", "s")
    assert outcome.code == 3
    assert "agent-host resume s" in outcome.stderr


def test_a_disk_that_refuses_the_result_is_told(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        killed_after(host, 4, model)
        (host.records("s") / "result.json").mkdir()
        outcome = host.resume("s", "--gateway", model.url)
    assert checkpoint(host, "json").exists(), "so it can be resumed, and somebody should know"
    assert "result could not be kept" in outcome.stderr


# Where the output goes is full


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(("form", "stream"), [("json", "stdout"), ("text", "stderr")])
def test_output_to_a_full_disk(host: Host, form: str, stream: str) -> None:
    command = ["run", "Do it.", "--policy", "full", "--session-id", "s", "--output", form]
    with gateway(use(EFFECT), say("Done.")) as model, open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent_host", *command, "--gateway", model.url],
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            env=host.environment(),
            cwd=host.workspace,
            check=False,
            timeout=30,
        )
    assert (host.workspace / "effects").exists(), "who watches is no reason to stop"
    assert done.returncode in (0, 1)
    assert b"internal error" not in (done.stderr or b"")


# The state directory changes under a running session


def taken_away(host: Host, *following: Turn) -> list[Turn]:
    """The model has the checkpoints removed by a command whose line does not tell, and goes on."""
    (host.workspace / "clean.sh").write_text(f"rm -rf '{host.state}/checkpoints'")
    return [use(shell("sh clean.sh")), *following]


def test_no_effect_without_a_record_that_can_be_found(host: Host) -> None:
    with gateway(*taken_away(host, use(EFFECT), say("Done."))) as model:
        host.task(model.url)
    assert not (host.workspace / "effects").exists() or host.checkpoints()


def test_one_process_a_session_even_then(host: Host) -> None:
    with gateway(*taken_away(host, use(HANG), say("Done."))) as first, gateway(say("Second.")) as second:
        process = host.start_task(first.url, "--session-id", "s")
        eventually(lambda: (host.workspace / "hangs").exists() or not process.alive, "a command that hangs, or the end")
        outcome = host.task(second.url, "--session-id", "s")
        both = process.alive and outcome.code == 0
        process.kill()
    assert not both


# Resumed otherwise than it was started


@pytest.mark.slow
def test_another_workspace_is_told_to_the_model(host: Host) -> None:
    with gateway(use(HANG), say("Done.")) as model:
        killed_while_hanging(host, model)
        moved = host.root / "moved"
        shutil.copytree(host.workspace, moved)
        assert host.resume("s", "--gateway", model.url, "--workspace", moved).code == 0
        assert f"{moved}\n" in json.dumps(model.bodies[-1]).replace("\\n", "\n")


def test_a_moved_workspace_is_no_deletion(host: Host) -> None:
    note = host.workspace / "note"
    note.write_text("old\n")
    with gateway(use(call("WriteFile", path=str(note), content="new\n")), use(HANG), say("Done.")) as model:
        killed_while_hanging(host, model)
        moved = host.root / "moved"
        host.workspace.rename(moved)
        host.workspace.mkdir()
        outcome = host.run("resume", "s", "--gateway", model.url, "--workspace", moved)
    assert outcome.code == 0
    assert "deleted file" not in outcome.stderr


def test_the_answer_is_told_again(host: Host) -> None:
    with gateway(use(EFFECT), say("The answer is 42.")) as model:
        assert killed_after(host, 5, model).code < 0
        outcome = host.run("resume", "s", "--gateway", model.url)
        assert model.count == 2, "the task had ended"
    assert (outcome.code, outcome.text) == (0, "The answer is 42.\n")


def test_every_approval_that_was_used_is_in_the_log(host: Host) -> None:
    rules = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
    grants = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}
    policy = host.policy(grants=grants, approvalRules=rules)
    with gateway(use(HANG), say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s", "--approve", "shell", policy=policy)
        eventually((host.workspace / "hangs").exists, "the command that hangs")
        process.kill()
        assert host.resume("s", "--gateway", model.url).code == 0
    kinds = [event["eventType"] for event in host.event_log("s")]
    assert "approval_requested" in kinds
    assert "approval_resolved" in kinds


@pytest.mark.slow
def test_a_session_that_cannot_begin_is_no_pause(host: Host) -> None:
    """Around the record of the task: what has not begun is refused (2), and there is nothing to resume."""
    codes = []
    with gateway(say("Done.", repeat=20)) as model:
        for number in range(18, 26):
            crash = ("--fail-call", str(number), "--persistently")
            run = ("run", "Go", "--gateway", model.url, "--policy", "full", "--session-id", f"s{number}")
            outcome = host.start(*crash, *run, program="agent_host.faults.crash").finish()
            assert "internal error" not in outcome.stderr
            codes.append(outcome.code)
    assert codes == sorted(codes, reverse=True)
    assert set(codes) == {2, 0}
