"""agent-host as an agent of inspect_ai: real evaluations in the local sandbox, with a scripted model behind them.

python -m venv /tmp/inspect && /tmp/inspect/bin/pip install inspect-ai openai anthropic
AGENT_HOST_TEST_INSPECT=/tmp/inspect/bin/python python -m pytest tests/interaction/test_inspect.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing import MockGateway, Script
from tests.support.process import bundle, eventually, gateway, say, shell, use
from tests.support.repairs import FOLDER, MOCK, SOLVED, TASKS, is_solved, run_batch

if sys.platform != "linux":
    pytest.skip("inspect_ai brings its bridge's tools for Linux", allow_module_level=True)

import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

PYTHON = os.environ.get("AGENT_HOST_TEST_INSPECT")
PACKAGE = Path(__file__).parents[2] / "integrations" / "inspect"
MODEL = "openai-api/mock/gpt-test"
PATIENCE_S = 560

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="AGENT_HOST_TEST_INSPECT names no Python with inspect_ai"),
]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One evaluation at a time: inspect_ai installs the tools of its local sandbox at one place of the machine."""
    with (Path(tempfile.gettempdir()) / "agent-host-test-inspect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(host: Host, url: str, order: dict[str, Any]) -> subprocess.Popen[str]:
    """Start an evaluation over tasks with `drive.py`."""
    order = {"program": [sys.executable, "-P", "-m", "agent_host"], "logs": str(host.root / "logs"), **order}
    environment = host.environment({
        "MOCK_BASE_URL": f"{url}/v1", "MOCK_API_KEY": "x", "PYTHONPATH": str(PACKAGE),
        "INSPECT_TRACE_FILE": str(host.root / "trace"),
    })  # fmt: skip
    return subprocess.Popen(
        [str(PYTHON), str(PACKAGE / "tests" / "drive.py"), json.dumps(order)],
        env=environment, cwd=host.workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the evaluation printed at its end."""
    try:
        out, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-4000:]
    printed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return printed


def tasks(host: Host, check: str) -> str:
    """A file with one task over a directory with one file."""
    folder = host.root / "source"
    folder.mkdir()
    (folder / "file").write_text("text\n")
    path = host.root / "tasks.jsonl"
    path.write_text(json.dumps({"id": "one", "prompt": "Do it.", "workspace": "source", "check": check}) + "\n")
    return str(path)


@pytest.mark.longest
def test_the_repairs_are_scored_alike_through_inspect_and_through_a_batch(host: Host) -> None:
    mock = MockGateway(Script.load(MOCK))
    with mock.in_thread() as url:
        order = {"tasks": str(FOLDER / "tasks.jsonl"), "agent": {"policy": "ci"}}
        # The first sample has inspect_ai install its tools at one place of the machine; then others may run at once.
        finish(start(host, url, {**order, "eval": {"sample_id": ["clamp"]}}))
        log = finish(start(host, url, {**order, "eval": {"max_samples": 5}}))
        rows = run_batch(host, url)
    assert (log["status"], mock.failures) == ("success", [])
    samples = log["samples"]
    scores = {name: one["score"] == "C" for name, one in samples.items()}
    assert scores == {name: is_solved(row) for name, row in rows.items()} == {name: name in SOLVED for name in TASKS}
    for field in ("status", "reason", "endedBy", "usage"):
        assert {name: one["result"][field] for name, one in samples.items()} == {
            name: row[field] for name, row in rows.items()
        }


@pytest.mark.parametrize("dialect", ["openai", "responses"])
def test_the_bridge_serves_each_dialect(host: Host, dialect: str) -> None:
    mock = MockGateway(Script.load(MOCK))
    with mock.in_thread() as url:
        order = {
            "tasks": str(FOLDER / "tasks.jsonl"),
            "agent": {"policy": "ci", "dialect": dialect},
            "eval": {"sample_id": ["clamp", "tree", "temperature"]},
        }
        log = finish(start(host, url, order))
    assert (log["status"], mock.failures) == ("success", [])
    samples = log["samples"]
    assert {name: one["score"] for name, one in samples.items()} == {"clamp": "C", "tree": "I", "temperature": "I"}
    assert samples["temperature"]["result"]["reason"] == "LLM_REPEATED_CALL"
    clamp = samples["clamp"]
    assert (clamp["text"], clamp["result"]["status"]) == ("The test passes.", "TASK_COMPLETED")
    assert clamp["usage"][MODEL]["input_tokens"] == clamp["result"]["usage"]["inputTokens"] == 300


def test_a_retry_resumes_and_does_no_effect_twice(host: Host) -> None:
    order = {
        "tasks": tasks(host, "test $(wc -l < effects) = 1"),
        "agent": {"policy": "ci", "durable": str(host.root / "durable")},
        "eval": {"retry_on_error": 1},
    }
    hangs = {"hang": True, "times": 1}
    with gateway(use(shell("echo effect >> effects")), hangs, say("Done.")) as model:
        evaluation = start(host, model.url, order)
        try:
            eventually(lambda: model.count == 2 or evaluation.poll() is not None, "the second call", within_s=120)
            (session,) = (host.root / "durable").iterdir()
            (runs,) = _runs_of(session.name)
            os.kill(runs, signal.SIGKILL)
            log = finish(evaluation)
        finally:
            evaluation.kill()
        assert model.count == 3
    one = log["samples"]["one"]
    assert (log["status"], one["score"], one["retries"], one["error"]) == ("success", "C", 1, None)
    assert (one["text"], one["result"]["sessionId"]) == ("Done.", session.name)
    assert one["result"]["resumedFromStep"] == 1
    assert (session / "workspace" / "effects").read_text() == "effect\n"


def test_a_session_that_finds_no_bridge_yet_is_resumed(host: Host) -> None:
    """The proxy of the bridge takes seconds to listen where processors are few."""
    early = f'"$0" -P -m agent_host "$@" $(mkdir {host.root}/early && echo --gateway http://localhost:9)'
    order = {
        "program": ["sh", "-c", early, sys.executable],
        "tasks": tasks(host, "test $(wc -l < effects) = 1"),
        "agent": {"policy": "ci"},
    }
    with gateway(use(shell("echo effect >> effects")), say("Done.")) as model:
        log = finish(start(host, model.url, order))
    one = log["samples"]["one"]
    assert (one["score"], one["retries"], one["error"]) == ("C", 0, None), one
    assert (host.root / "early").is_dir()


def test_an_evaluation_without_a_durable_directory_repeats_no_other(host: Host) -> None:
    order = {"tasks": tasks(host, "test $(wc -l < effects) = 1"), "agent": {"policy": "ci"}}
    with gateway(use(shell("echo effect >> effects")), say("Done.")) as model:
        logs = [finish(start(host, model.url, order)) for _ in range(2)]
        assert model.count == 4, "the second evaluation asks the model, too"
    assert [log["samples"]["one"]["score"] for log in logs] == ["C", "C"]


@pytest.mark.parametrize(("approves", "effects", "score"), [(None, 0, "I"), ("approve", 1, "C"), ("reject", 0, "I")])
def test_what_the_policy_asks_is_for_the_approvals_of_inspect(
    host: Host, approves: str | None, effects: int, score: str
) -> None:
    asks = bundle(host.root, llm={"allowedModels": ["inspect"]}, grants={"Shell.Exec": {"requiresApproval": True}})
    policy = host.root / "asks.json"
    policy.write_text(json.dumps(asks))
    order = {
        "tasks": tasks(host, "test -e effects"),
        "agent": {"policy": str(policy), "durable": str(host.root / "durable")},
        "approves": approves,
    }
    with gateway(use(shell("echo effect >> effects"), text="Let me."), say("Done.")) as model:
        log = finish(start(host, model.url, order))
        assert model.mock.failures == []
    one = log["samples"]["one"]
    assert one["score"] == score, one
    assert ("approval" in one["events"]) == (approves is not None)
    (kept,) = host.root.glob("durable/*/workspace")
    assert len([path for path in kept.iterdir() if path.name == "effects"]) == effects
    if approves is None:
        assert [denied["toolName"] for denied in one["result"]["deniedApprovals"]] == ["RunCommand"]


def _runs_of(session_id: str) -> list[int]:
    """The processes that run a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if session_id.encode() in words and b"--session-id" in words:
            found.append(int(folder.name))
    return found
