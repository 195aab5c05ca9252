"""A task by session and task id from the record, whichever process lives and after the last one; of its own tenant and
user alone (interface section 2)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use
from tests.support.secrets import IN_FILE

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")

MINE = {"userId": "u", "tenantId": "t"}
WRITES = call("WriteFile", path="a.txt", content="one\ntwo\n")
HELD = shell("touch begun; while [ ! -e go ]; do sleep 0.02; done; echo ran >> effects")
DIFF = "diff --git a/a.txt b/a.txt\nnew file mode 100644\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n"


def told(client: Client, session: str, task_id: str, **who: str) -> dict[str, Any]:
    """All that a client is told of a task."""
    state = client.call("GetSessionState", sessionId=session, taskId=task_id, **who)
    files = client.call("GetPatchPreview", sessionId=session, taskId=task_id, **who)["files"]
    items = client.call("GetTranscript", sessionId=session, taskId=task_id, **who)["items"]
    kept = ("status", "verdict", "stepCount", "reason", "text")
    return {
        **{name: state["task"][name] for name in kept},
        "session": (state["sessionStatus"], state["verdict"]),
        "patch": "".join(file["diff"] for file in files),
        "prompt": next(item["text"] for item in items if item["kind"] == "message"),
        "tasks": {item["taskId"] for item in items},
    }


@pytest.mark.slow
def test_a_task_is_the_same_for_every_client_whichever_process_lives(servers: Servers) -> None:
    host = servers.host
    turns = [use(WRITES), say("First done."), {**use(HELD), "text": "On it."}, say("Second done.")]
    first = {
        "status": "TASK_COMPLETED", "verdict": "completed", "stepCount": 2, "reason": None, "text": "First done.",
        "patch": DIFF, "prompt": "Do it.", "tasks": {"a"},
    }  # fmt: skip
    second = {"stepCount": 0, "text": "On it.", "patch": "", "prompt": "Do it.", "tasks": {"b"}}
    with gateway(*turns) as model:
        serve, client = servers.session(model.url)
        session = client.session_id
        client.task("a")
        client.event("task_completed")
        assert told(client, session, "a") == {**first, "session": ("SESSION_RUNNING", "completed")}
        client.task("b")
        eventually((host.workspace / "begun").exists, "a command that runs")
        other_serve, other = servers.client(model.url)
        running = {**second, "verdict": "running", "reason": None, "session": ("SESSION_RUNNING", "running")}
        assert told(client, session, "b") == {**running, "status": "EXECUTING_TOOLS"}
        assert told(other, session, "b", **MINE) == {**running, "status": "TASK_RUNNING"}
        assert told(other, session, "a") == {**first, "session": ("SESSION_RUNNING", "running")}
        serve.kill()
        cut_off = {**running, "verdict": "interrupted", "reason": "interrupted", "status": "TASK_RUNNING"}
        assert told(other, session, "b", **MINE) == {**cut_off, "session": ("SESSION_RUNNING", "interrupted")}
        for who in ({**MINE, "userId": "x"}, {**MINE, "tenantId": "x"}):
            for method in ("GetSessionState", "GetPatchPreview", "GetTranscript"):
                for more in ({}, {"taskId": "a"}, {"taskId": "zz"}):
                    assert other.refusal(method, sessionId=session, **who, **more).code == -32001
        for method in ("GetSessionState", "GetPatchPreview", "GetTranscript"):
            error = other.refusal(method, sessionId=session, taskId="zz")
            assert (error.what, error.message) == (
                (-32602, "INVALID_REQUEST", False), f"session {session} has no task 'zz'",
            )  # fmt: skip
        rows = other.call("ListSessions", **MINE)["sessions"]
        assert rows == json.loads(host.run("sessions", "--output", "json").stdout)
        assert [row["verdict"] for row in rows] == ["interrupted"]
        (host.workspace / "go").touch()
        other.resume(session)
        other.event("task_completed")
        other.call("Shutdown")
        other_serve.ended_well()
        again, third = servers.client(model.url)
        over = ("SESSION_COMPLETED", "completed")
        assert told(third, session, "a", **MINE) == {**first, "session": over}
        ended = told(third, session, "b", **MINE)
        assert (ended["status"], ended["text"], ended["session"]) == ("TASK_COMPLETED", "Second done.", over)
        third.create(userId="x")
        assert third.refusal("GetSessionState", sessionId=session, **MINE).what == (-32001, "SESSION_NOT_FOUND", False)
        third.call("Shutdown")
        again.ended_well()
    shown = json.loads(host.run("show", session, "--output", "json").stdout)
    assert [(task["taskId"], task["status"], task["text"]) for task in shown["tasks"]] == [
        ("a", "TASK_COMPLETED", "First done."), ("b", "TASK_COMPLETED", "Second done."),
    ]  # fmt: skip
    assert shown["tasks"][0]["patch"] == DIFF
    (changed,) = shown["tasks"][0]["filesChanged"]
    assert (changed["filePath"], changed["status"]) == (str(host.workspace / "a.txt"), "added")


@pytest.mark.slow
def test_a_question_is_shown_by_the_record_as_long_as_its_process_lives(servers: Servers) -> None:
    asks = {"Shell.Exec": {"requiresApproval": True}}
    with gateway(use(shell("true")), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=servers.host.policy(grants=asks))
        client.task()
        asked = client.event("approval_requested")["payload"]
        _, other = servers.client(model.url)
        (waiting,) = other.call("GetSessionState", sessionId=client.session_id)["pendingApprovals"]
        assert (waiting["approvalId"], waiting["taskId"], waiting["replay"]) == (
            asked["approvalId"], "a", asked["replay"],
        )  # fmt: skip
        serve.kill()
        assert other.call("GetSessionState", sessionId=client.session_id)["pendingApprovals"] == []


def tasks_shown(host: Host, session_id: str = "s") -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(host.run("show", session_id, "--output", "json").stdout)["tasks"]
    return shown


@pytest.mark.parametrize("keeps", [True, False])
def test_a_patch_on_record_holds_no_secret_and_none_is_made_up(host: Host, keeps: bool) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[retention]\nkeep_file_versions = {str(keeps).lower()}\n")
    rules = [{"redactionRuleId": "r", "pattern": "hunter[0-9]", "replacement": "[gone]"}]
    text = f"A_TOKEN={IN_FILE}\nhunter2\nplain\n"
    (host.workspace / "source").write_text(text)
    with gateway(use(shell("cp source copy")), say("Done.")) as model:
        host.task(model.url, "--session-id", "s", policy=host.policy(redactionRules=rules))
    (task,) = tasks_shown(host)
    assert (task["status"], task["text"], task["prompt"]) == ("TASK_COMPLETED", "Done.", "Do it.")
    if not keeps:
        assert "retention.keep_file_versions" in task["patchMissing"]
        return
    assert "+[gone]\n+plain\n" in task["patch"]
    assert "+A_TOKEN=[redacted:" in task["patch"]
    assert IN_FILE not in json.dumps(task)
    assert "hunter[0-9]" not in (host.records("s") / "result.json").read_text(), "a rule may be the secret itself"
    host.policy()
    (task,) = tasks_shown(host)
    assert (task["patch"].startswith("# not shown: "), len(task["filesChanged"])) == (True, 1)
