"""The clients of docs/clients, started as their reader would start them, each with a real `agent-host serve`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.node_packages import FOLDER, NODE, missing
from tests.support.process import PATIENCE_S, Process, bundle, call, eventually, gateway, say, shell, use
from tests.support.tool_page import SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host, Outcome

CLIENTS = Path(__file__).resolve().parents[2] / "docs" / "clients"
OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="links and POSIX signals")]


@pytest.fixture(params=["client.py", pytest.param("client.ts", marks=pytest.mark.peer)])
def program(request: pytest.FixtureRequest, host: Host) -> list[str]:
    if request.param == "client.py":
        return [sys.executable, "-I", str(CLIENTS / request.param)]
    if missing():
        pytest.skip(f"not installed: {missing()}; run `python -m tests.support.node_packages`")
    (host.root / "node_modules").symlink_to(FOLDER)
    return [NODE, str(shutil.copy(CLIENTS / request.param, host.root / request.param))]


def serve(url: str, policy: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "agent_host", "serve", "--gateway", url, "--policy", str(policy)]


@contextlib.contextmanager
def running(host: Host, *command: str, typed: str = "") -> Iterator[Process]:
    popen = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=host.environment(),
        cwd=host.workspace,
        start_new_session=True,
    )
    process = Process(popen, typed.encode())
    try:
        yield process
    finally:
        process.kill()


def run(host: Host, *command: str, typed: str = "") -> Outcome:
    with running(host, *command, typed=typed) as process:
        return process.finish()


def shown_in_order(text: str, *parts: str) -> bool:
    """Whether one part comes behind the other; how JSON is spaced does not count."""
    rest = text.replace(" ", "")
    for part in parts:
        _, found, rest = rest.partition(part.replace(" ", ""))
        if not found:
            return False
    return True


def session_of(host: Host) -> str:
    (folder,) = (host.state / "sessions").iterdir()
    return folder.name


def asking(host: Host) -> Path:
    path = host.root / "policy.json"
    path.write_text(json.dumps(bundle(host.workspace, grants={"File.Write": {"requiresApproval": True}})))
    return path


def test_a_whole_session(host: Host, program: list[str]) -> None:
    target = host.workspace / "made.txt"
    turns = [
        {"text": "Wrong words.", "stream_error": OVERLOADED},
        use(call("WriteFile", path=str(target), content="one\n"), text="I write."),
        use(shell("echo hello; exit 3")),
        use(call("ReadFile", path="/etc/passwd")),
        say("All is done, é.", chunk_chars=3),
    ]
    with gateway(*turns) as model:
        outcome = run(host, *program, "Do it.", *serve(model.url, asking(host)), typed="y\n")
    assert (outcome.code, outcome.text) == (0, "I write.\nAll is done, é.\n")
    assert target.read_text() == "one\n"
    found = shown_in_order(
        outcome.stderr,
        "Wrong words.\n[taken back and tried again: ",
        "I write.\n> WriteFile {",
        '"content": "one\\n"}',
        "? Write: made.txt (+1 −0) (medium risk)\n  toolName: WriteFile\n",
        "\n+one\n",
        "approve? [y/N] < succeeded {",
        f'["{target}"]',
        '> RunCommand {"command": "echo hello; exit 3"',
        '< succeeded {"exitCode": 3}\n',
        "hello",
        "< denied {",
        "path not in allowed paths: /etc/passwd",
        "All is done, é.\n[task_completed ]\n",
    )
    assert found, outcome.stderr
    assert host.checkpoints() == []


def test_details_on_the_wire_are_as_documented(host: Host, program: list[str]) -> None:
    with gateway(use(call("WriteFile", path="made.txt", content="one\n")), say("It is not there.")) as model:
        outcome = run(host, *program, "Do it.", *serve(model.url, asking(host)))
    assert (outcome.code, outcome.text) == (0, "It is not there.\n")
    assert not (host.workspace / "made.txt").exists()
    assert "< denied {" in outcome.stderr
    (asked,) = [one for one in host.event_log(session_of(host)) if one["eventType"] == "approval_requested"]
    documented = {detail.name for detail in SHOWN["write"].details} | {"toolName", "capability", "toolCallId"}
    assert {"toolName", "capability", "toolCallId", "path", "diff"} <= set(asked["payload"]["details"]) <= documented


def test_a_task_that_fails(host: Host, program: list[str]) -> None:
    with gateway(use(shell("true"), text="I begin."), {"status": 401}) as model:
        outcome = run(host, *program, "Do it.", *serve(model.url, asking(host)))
    assert (outcome.code, outcome.text) == (1, "I begin.\n")
    assert "[task_failed the gateway refused the credentials" in outcome.stderr


def test_a_request_that_is_refused(host: Host, program: list[str]) -> None:
    outcome = run(host, *program, " ", *serve("http://127.0.0.1:9", asking(host)))
    assert (outcome.code, outcome.text) == (1, "")
    assert "the prompt is empty" in outcome.stderr


def test_a_host_that_does_not_start(host: Host, program: list[str]) -> None:
    outcome = run(host, *program, "Do it.", *serve("http://127.0.0.1:9", host.root / "missing.json"))
    assert (outcome.code, outcome.text) == (1, "")


@pytest.mark.slow
def test_what_the_live_stream_drops_is_fetched(host: Host, program: list[str]) -> None:
    """The client stands still while more comes than waits for it."""
    text = "".join(f"{number:015} " for number in range(800_000))
    heard = host.root / "heard"
    tee = ["sh", "-c", f'"$@" | tee "{heard}"', "sh"]
    wait = shell("while [ ! -e go ]; do sleep 0.02; done")
    with gateway(use(wait), say(text, chunk_chars=8192)) as model:
        command = [*program, "Do it.", *tee, *serve(model.url, asking(host))]
        with running(host, *command) as client:
            client.said("> RunCommand")
            os.kill(client.pid, signal.SIGSTOP)
            (host.workspace / "go").touch()
            log = host.records(session_of(host)) / "events.jsonl"
            eventually(lambda: b'"task_completed"' in log.read_bytes(), "the end of the task")
            os.kill(client.pid, signal.SIGCONT)
            outcome = client.finish(within_s=2 * PATIENCE_S)
    assert outcome.code == 0
    assert outcome.text == text + "\n"
    assert outcome.stderr.count("events are lost") == 0
    assert b'"droppedEvents":' in heard.read_bytes()
