"""`serve` driven by a library that others wrote: vscode-jsonrpc on node, with ten lines of framing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.node_packages import CLIENT, FOLDER, NODE, missing
from tests.support.process import bundle, call, checked, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host

pytestmark = pytest.mark.peer

_PLAY_S = 60


@pytest.mark.slow
def test_a_session_driven_by_vscode_jsonrpc(host: Host) -> None:
    if missing():
        pytest.skip(f"not installed: {missing()}; run `python -m tests.support.node_packages`")
    target = host.workspace / "made.txt"
    turns = [
        use(call("WriteFile", path=str(target), content="one\n"), text="I write."),
        say("Written."),
        use(shell("sleep 60")),
    ]
    policy = host.root / "policy.json"
    policy.write_text(json.dumps(bundle(host.workspace, grants={"File.Write": {"requiresApproval": True}})))
    with gateway(*turns) as scripted:
        serve = ["-P", "-m", "agent_host", "serve", "--gateway", scripted.url, "--policy", str(policy)]
        done = subprocess.run(
            [NODE, str(CLIENT / "client.js"), sys.executable, *serve],
            cwd=host.workspace,
            env=host.environment({"NODE_PATH": str(FOLDER)}),
            capture_output=True,
            text=True,
            timeout=_PLAY_S,
        )
    assert (done.returncode, done.stderr) == (0, "")
    _check_requests(json.loads(done.stdout), target)
    assert target.read_text() == "one\n"
    assert host.checkpoints() == []


def _check_requests(told: dict[str, Any], target: Path) -> None:
    session_id = told["created"]["sessionId"]
    assert (told["tooEarly"]["code"], told["tooEarly"]["data"]["code"]) == (-32001, "SESSION_NOT_READY")
    assert told["created"]["status"] == "ready"
    assert told["started"] == {"taskId": "task-1", "status": "running"}
    assert told["second"]["code"] == -32004
    (pending,) = told["waiting"]["pendingApprovals"]
    assert told["approved"] == {"approvalId": pending["approvalId"], "decision": "approved", "status": "delivered"}
    _check_batch(told)
    (preview,) = told["batch"]["answers"][0]["files"]
    assert (preview["filePath"], preview["status"], preview["additions"]) == (str(target), "added", 1)
    assert told["cancelling"] == {"taskId": "task-2", "status": "cancelling"}
    assert told["cancelled"]["task"]["status"] == "TASK_CANCELLED"
    assert told["shutdown"] == {"status": "shutdown", "sessionId": session_id}
    assert told["exitCode"] == 0
    events = checked(told["events"])
    assert {event["sessionId"] for event in events} == {session_id}
    assert events[-1]["eventType"] == "session_completed"


def _check_batch(told: dict[str, Any]) -> None:
    """One array of four requests came back as one array of four answers, errors among them."""
    assert told["batch"]["sent"] == 4
    _, ring, unknown, invalid = told["batch"]["answers"]
    assert not ring["gapDetected"]
    live = [event["eventId"] for event in told["events"] if event["eventId"] <= ring["latestId"]]
    assert [event["eventId"] for event in ring["events"]] == live == list(range(1, ring["latestId"] + 1))
    assert (unknown["code"], invalid["code"]) == (-32601, -32602)
    assert "prompt" in invalid["message"]
