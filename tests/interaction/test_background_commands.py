"""Commands that run on, as a client and a model meet them: between tasks, through an end, and after a resume."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, process_exists, say, shell, use, write_to_pipe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Gateway, Host
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, fifos and a POSIX shell")


def in_background(command: str) -> dict[str, Any]:
    """No command of a test outlives its time-out."""
    return shell(command, background=True, timeout=120)


WAITS = in_background("echo $$ > child.tmp; mv child.tmp child; read word < gate; exit 7")
HANG = {"hang": True, "times": 1}


@pytest.fixture
def child(host: Host) -> Path:
    """Where WAITS says that it is; `gate` lets it end."""
    os.mkfifo(host.workspace / "gate")
    return host.workspace / "child"


def number_in(path: Path) -> int:
    eventually(path.exists, path.name)
    return int(path.read_text())


def notes(served: Gateway, request: int = -1) -> list[str]:
    """What a request says of background commands, outside of results."""
    blocks = [block for message in served.bodies[request]["messages"] for block in message["content"]]
    return [block["text"] for block in blocks if block["type"] == "text" and "Background" in block["text"]]


def ends(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["eventType"] == "command_ended"]


def test_a_command_belongs_to_the_session_and_not_to_its_task(servers: Servers, child: Path) -> None:
    """It outlives a task that is cancelled by force, ends between two tasks, and the next one reads of it."""
    with gateway(use(WAITS), HANG, say("Seen.")) as served:
        serve, client = servers.session(served.url)
        client.task("a")
        completed = client.event("tool_completed")["payload"]
        assert (completed["commandId"], completed["status"]) == ("cmd_1", "succeeded")
        assert "exitCode" not in completed
        assert "changesUnseen" not in completed, "the steps that follow look at what it changes"
        pid = number_in(child)
        eventually(lambda: served.count == 2, "the next request")
        client.ask("CancelTask", taskId="a", force=True)
        client.event("task_cancelled")
        assert process_exists(pid)
        write_to_pipe(child.parent / "gate")
        expected = {
            "commandId": "cmd_1",
            "toolCallId": completed["toolCallId"],
            "reason": "exited",
            "exitCode": 7,
        }
        ended = client.event("command_ended")
        assert (ended["payload"], ended["taskId"]) == (expected, "a")
        client.task("b")
        client.event("task_completed")
        assert len(notes(served)) == 1
        assert "cmd_1" in notes(served)[0]
        assert "exit code 7" in notes(served)[0]
        client.call("Shutdown")
        serve.ended_well()
    assert "tool_output_chunk" not in client.kinds


def test_what_it_changes_behind_its_call_is_in_the_patch(servers: Servers) -> None:
    """Here while no other command runs: a step waits for an approval meanwhile."""
    host = servers.host
    os.mkfifo(host.workspace / "gate")
    (host.workspace / "kept").write_text("kept\n")
    rules = [{"approvalRuleId": "ask", "title": "Delete", "description": "Deletes a file."}]
    asks = {"File.Delete": {"requiresApproval": True, "approvalRuleId": "ask"}}
    line = "read word < gate; echo new > made; read word < gate"
    with gateway(use(in_background(line)), use(call("DeleteFile", path="kept")), say("Done.")) as served:
        policy = host.policy(grants=asks, approvalRules=rules)
        serve, client = servers.session(served.url, policy=policy)
        client.task("a")
        asked = client.event("approval_requested")["payload"]
        write_to_pipe(host.workspace / "gate")
        made = host.workspace / "made"
        eventually(lambda: made.exists() and made.read_text() == "new\n", "the command's file")
        client.call("ApproveAction", approvalId=asked["approvalId"], decision="denied")
        client.event("task_completed")
        preview = client.ask("GetPatchPreview")
        assert [(os.path.basename(file["filePath"]), file["status"]) for file in preview["files"]] == [
            ("made", "added")
        ]
        assert "unseen" not in preview
        client.call("Shutdown")
        serve.ended_well()


def test_what_a_crash_kept_from_being_seen_is_said(host: Host) -> None:
    with gateway(use(in_background("exec sleep 100")), {"hang": True}, say("Done.")) as served:
        process = host.start_task(served.url)
        eventually(lambda: served.count == 2, "the next request")
        process.kill()
        outcome = host.resume("--gateway", served.url, "--output", "json")
    assert outcome.code == 0
    assert "cut off by the end of the process" in outcome.result["changesUnseen"]


def test_a_shutdown_ends_what_runs_before_it_says_so(servers: Servers, child: Path) -> None:
    with gateway(use(WAITS), say("Done.")) as served:
        serve, client = servers.session(served.url)
        client.task("a")
        pid = number_in(child)
        client.event("task_completed")
        assert process_exists(pid)
        client.call("Shutdown")
        serve.ended_well()
    kinds = client.kinds
    assert kinds.index("command_ended") < kinds.index("session_completed")
    assert [one["reason"] for one in ends(client.events)] == ["session_ended"]
    assert not process_exists(pid)


@pytest.mark.slow
def test_a_process_that_leaves_ends_its_commands_and_a_resume_says_so(servers: Servers, child: Path) -> None:
    host = servers.host
    with gateway(use(WAITS), HANG, use(call("CommandOutput", id="cmd_1")), use(WAITS), say("Done.")) as served:
        serve, client = servers.session(served.url)
        client.task("a")
        pid = number_in(child)
        eventually(lambda: served.count == 2, "the next request")
        serve.signal()
        serve.ended_well()
        assert not process_exists(pid)
        outcome = host.resume(client.session_id, "--gateway", served.url, "--output", "json")
        assert outcome.code == 0
        (note,) = notes(served, 2)
        assert "cmd_1 (echo $$ > child.tmp;" in note
        assert "ended with the process of the session" in note
        (unknown,) = served.results(3)
        assert unknown.text.startswith("INVALID_REQUEST")
        assert "earlier process" in unknown.text
        assert "as cmd_2" in served.results(4)[0].text, "an id stands for one command of the session"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")
def test_what_has_left_its_session_is_ended_and_reported(host: Host) -> None:
    """Of a command in the background, and of one in the foreground."""
    away = "setsid sh -c 'echo $$ > NAME.tmp; mv NAME.tmp NAME; exec sleep 600' > /dev/null 2>&1 &"
    line = f"{away} while [ ! -e NAME ]; do :; done; until grep -q sleep /proc/$(cat NAME)/comm; do :; done"
    both = use(in_background(line.replace("NAME", "one")), shell(line.replace("NAME", "two")))
    wait = shell("while [ ! -e one ]; do :; done")
    with gateway(both, use(wait), say("Done.")) as served:
        outcome = host.run("run", "Do it.", "--gateway", served.url, "--policy", "full", "--output", "jsonl")
    assert outcome.code == 0
    pids = [number_in(host.workspace / name) for name in ("one", "two")]
    assert not any(map(process_exists, pids))
    background, rest = ends(outcome.events)
    assert (background["commandId"], background["exitCode"]) == ("cmd_1", 0)
    assert background["processesLeft"] == 1
    assert rest == {"reason": "session_ended", "processesEnded": 2}


def test_a_person_sees_how_it_ended(host: Host, child: Path) -> None:
    with gateway(use(in_background("exit 3")), use(WAITS), say("Done.")) as served:
        outcome = host.run("run", "Do it.", "--gateway", served.url, "--policy", "full")
    assert outcome.code == 0
    outcome.names_once("cmd_1", "exited, exit code 3")
    outcome.names_once("cmd_2", "session ended")
    assert outcome.text == "Done.\n"


def test_a_workspace_may_allow_fewer(host: Host, child: Path) -> None:
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text("[tools]\nmax_background_commands = 1\n")
    with gateway(use(WAITS), use(WAITS), say("Done.")) as served:
        assert host.task(served.url).code == 0
        (refused,) = served.results(2)
        assert refused.is_error
        assert "stop one of cmd_1 first" in refused.text
