"""`agent-host acp` under clients of others: the protocol's SDK for JavaScript, and acpx, both on Node 22."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.acp_client import need_packages
from tests.support.node_packages import ACP_CLIENTS, FOLDER, NODE
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.process import Host

    Acpx = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell"),
]
_PLAY_S = 120


def _command(model: str, policy: str) -> list[str]:
    options = ["--gateway", model, "--policy", policy, "--sandbox", "none"]
    return [sys.executable, "-P", "-m", "agent_host", "acp", *options]


def test_a_session_driven_by_the_protocols_own_sdk(host: Host) -> None:
    need_packages()
    turns = [
        use(call("WriteFile", path="made.txt", content="one\n"), text="I write."),
        use(shell("touch ran")),
        say("Written."),
        use(shell("echo st''arted; sleep 600")),
    ]
    with gateway(*turns) as model:
        done = subprocess.run(
            [NODE, str(ACP_CLIENTS / "client.js"), str(host.workspace), *_command(model.url, "workspace")],
            cwd=host.root,
            env=host.environment({"NODE_PATH": str(FOLDER)}),
            capture_output=True,
            text=True,
            timeout=_PLAY_S,
        )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["initialized"]["agentInfo"]["name"] == "agent-host"
    assert (told["first"], told["second"]) == ({"stopReason": "end_turn"}, {"stopReason": "cancelled"})
    assert (host.workspace / "made.txt").read_text() == "one\n"
    assert (host.workspace / "ran").exists()
    assert [one["toolCall"]["kind"] for one in told["asked"]] == ["execute"] * 2
    text = "".join(one["content"]["text"] for one in told["updates"] if one["sessionUpdate"] == "agent_message_chunk")
    assert text.startswith("I write.Written.")
    assert [one["sessionId"] for one in told["listed"]["sessions"]] == [told["session"]["sessionId"]]
    assert told["history"][:3] == ["user_message_chunk", "agent_message_chunk", "tool_call"]
    assert (told["gone"], told["exitCode"]) == ({"sessions": []}, 0)
    assert host.checkpoints() == []


@pytest.fixture
def acpx(host: Host) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs acpx in the workspace."""
    need_packages()

    def run(model: str, policy: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        agent, program = " ".join(_command(model, policy)), str(FOLDER / "acpx" / "dist" / "cli.js")
        return subprocess.run(
            [NODE, program, "--agent", agent, "--cwd", str(host.workspace), *arguments],
            cwd=host.workspace,
            env=host.environment(),
            capture_output=True,
            text=True,
            timeout=_PLAY_S,
        )

    return run


def test_a_prompt_of_acpx_with_its_permission_policies(host: Host, acpx: Acpx) -> None:
    turns = [use(shell("touch ran")), say("Finished.")]
    with gateway(*turns, *turns) as model:
        allowed = acpx(model.url, "workspace", "--approve-all", "--format", "json", "exec", "Do it.")
        assert allowed.returncode == 0, allowed.stderr
        assert (host.workspace / "ran").exists()
        messages = [json.loads(line) for line in allowed.stdout.splitlines()]
        kinds = [one["params"]["update"]["sessionUpdate"] for one in messages if one.get("method") == "session/update"]
        assert {"tool_call", "tool_call_update", "agent_message_chunk", "usage_update"} <= set(kinds)
        assert [one["result"]["stopReason"] for one in messages if "stopReason" in one.get("result", {})] == [
            "end_turn"
        ]
        (host.workspace / "ran").unlink()
        denied = acpx(model.url, "workspace", "--deny-all", "exec", "Do it.")
        assert "Finished." in denied.stdout
    assert not (host.workspace / "ran").exists()


def runs_in(folder: Path) -> list[str]:
    """The programs whose working directory this is, where the system shows them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text())
    return found


def test_a_lasting_session_of_acpx(host: Host, acpx: Acpx) -> None:
    """Its processes come and go: each prompt loads or resumes the session."""
    with gateway(say("The first answer."), say("The second answer.")) as model:
        try:
            created = acpx(model.url, "full", "sessions", "new")
            assert created.returncode == 0, created.stderr
            first = acpx(model.url, "full", "--ttl", "1", "prompt", "One.")
            # A prompt that meets acpx's own server as that leaves is lost.
            eventually(lambda: not runs_in(host.workspace), "the end of acpx's server")
            second = acpx(model.url, "full", "--ttl", "1", "prompt", "Two.")
        finally:
            closed = acpx(model.url, "full", "sessions", "close")
        assert ("The first answer." in first.stdout, "The second answer." in second.stdout) == (True, True), (
            first,
            second,
        )
        assert closed.returncode == 0, closed.stderr
        assert [one["role"] for one in model.bodies[-1]["messages"]] == ["user", "assistant", "user"]
