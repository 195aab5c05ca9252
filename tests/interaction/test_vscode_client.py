"""`serve` driven by a library that others wrote: vscode-jsonrpc on node, with ten lines of framing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import bundle, call, checked, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host

pytestmark = pytest.mark.peer

_CLIENT = Path(__file__).parent / "vscode_client"
_INSTALL_S = 60
_PLAY_S = 60


@pytest.fixture(scope="module")
def node_path() -> Path:
    """The folder of node packages that the client needs, outside the project; made once for all runs."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    version = json.loads((_CLIENT / "package.json").read_text())["dependencies"]["vscode-jsonrpc"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-host-tests"
    place = cache / f"vscode-jsonrpc-{version}"
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _install(npm, f"vscode-jsonrpc@{version}", scratch)
            try:
                Path(scratch, "node_modules").rename(place)
            except OSError:  # another run was faster
                assert place.is_dir()
    return place


def _install(npm: str, package: str, folder: str) -> None:
    options = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder]
    try:
        done = subprocess.run(
            [npm, "install", *options, package], capture_output=True, text=True, timeout=_INSTALL_S, cwd=folder
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm could not install {package} in {_INSTALL_S} s: no network?")
    if done.returncode != 0:
        pytest.skip(f"npm could not install {package}: {done.stderr.strip()[-200:]}")


def test_a_session_driven_by_vscode_jsonrpc(host: Host, node_path: Path) -> None:
    target = host.workspace / "made.txt"
    turns = [
        use(call("WriteFile", path=str(target), content="one\n"), text="I write."),
        say("Written."),
        use(shell("sleep 60")),
    ]
    policy = host.root / "policy.json"
    policy.write_text(json.dumps(bundle(host.workspace, grants={"File.Write": {"requiresApproval": True}})))
    with gateway(*turns) as scripted:
        serve = ["-m", "agent_host.cli.main", "serve", "--gateway", scripted.url, "--policy", str(policy)]
        done = subprocess.run(
            ["node", str(_CLIENT / "client.js"), sys.executable, *serve],
            cwd=host.workspace,
            env=host.environment({"NODE_PATH": str(node_path)}),
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
