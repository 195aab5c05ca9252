"""The demo session: the main job from a red test suite to a green one, in each form of output."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import LIVE_ONLY
from tests.support.process import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "payment-ledger"
SCRIPT = EXAMPLES / "fix-the-bug.toml"
TOOLS = ["RunCommand", "ReadFile", "RunCommand", "ReadFile", "ReadFile", "ReadFile", "WriteFile", "RunCommand"]
EXIT_CODES = [0, None, 1, None, None, None, None, 0]
ENVELOPE = {
    "eventId",
    "eventType",
    "timestamp",
    "tenantId",
    "userId",
    "workspaceId",
    "sessionId",
    "component",
    "severity",
    "payload",
}


def unittest_exit(project: Path) -> int:
    return subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=project, capture_output=True).returncode


def demo(root: Path, form: str) -> tuple[Host, Outcome]:
    host = Host(root)
    shutil.copytree(PROJECT, host.workspace, dirs_exist_ok=True)
    options = ("--gateway", f"mock:{SCRIPT}", "--policy", "ci", "--session-id", "demo", "--output", form)
    return host, host.run("run", "Make the tests pass.", *options)


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Outcome]]:
    host, outcome = demo(tmp_path_factory.mktemp("json"), "json")
    yield host, outcome
    host.close()


def test_the_bug_is_fixed_and_only_the_bug(as_json: tuple[Host, Outcome]) -> None:
    host, outcome = as_json
    assert outcome.code == 0, outcome.stderr
    assert unittest_exit(PROJECT) == 1, "the example no longer shows its bug"
    assert unittest_exit(host.workspace) == 0
    before = {path.relative_to(PROJECT): path.read_bytes() for path in PROJECT.rglob("*.[pm][yd]")}
    after = {path.relative_to(host.workspace): path.read_bytes() for path in host.workspace.rglob("*.[pm][yd]")}
    assert before.keys() == after.keys()
    changed = [str(path) for path, content in before.items() if after[path] != content]
    assert changed == ["ledger/settlement.py"]


def test_the_result_object_is_complete(as_json: tuple[Host, Outcome]) -> None:
    host, outcome = as_json
    result = outcome.result
    duration, text, task_id = result.pop("durationMs"), result.pop("text"), result.pop("taskId")
    tools = result.pop("tools")
    assert {name: row["calls"] for name, row in tools.items()} == dict(Counter(TOOLS))
    assert sum(row["failed"] + row["denied"] for row in tools.values()) == 0
    assert 0 < tools["RunCommand"]["durationMs"] <= duration
    assert result == {
        "sessionId": "demo",
        "status": "TASK_COMPLETED",
        "reason": None,
        "stepCount": 6,
        "usage": {
            # The dialect counts what came from the cache apart from the rest of the input.
            "inputTokens": 1480 + 1937 + 2716 + 3894 + 4561 + 5230 + (1480 + 1937 + 2716 + 3894 + 4561),
            "outputTokens": 138 + 94 + 187 + 612 + 71 + 118,
            "cachedInputTokens": 1480 + 1937 + 2716 + 3894 + 4561,
        },
        "toolCalls": [
            {"toolName": name, "status": "succeeded"} | ({} if code is None else {"exitCode": code})
            for name, code in zip(TOOLS, EXIT_CODES, strict=True)
        ],
        "deniedApprovals": [],
        "resumedFromStep": None,
        "message": None,
        "verdict": "completed",
        "endedBy": "model",
        "retryable": False,
        "resumeCommand": None,
        "model": "claude-sonnet-4-5",
        "filesChanged": [str(host.workspace / "ledger" / "settlement.py")],
    }
    assert 0 < duration < 60_000
    assert text.strip().startswith("The tests pass, all 11 of them.")
    assert text.strip().endswith("I changed no other file.")
    assert task_id
    assert outcome.stderr == ""


def test_what_is_kept_on_disk(as_json: tuple[Host, Outcome]) -> None:
    host, outcome = as_json
    assert host.checkpoints() == [], "a clean end leaves nothing to resume"
    records = host.records("demo")
    kept = json.loads((records / "result.json").read_bytes())
    shown = {key: value for key, value in outcome.result.items() if key != "resumeCommand"}
    assert {key: kept[key] for key in shown} == shown
    log = host.event_log("demo")
    assert [event["eventId"] for event in log] == sorted({event["eventId"] for event in log})
    assert log[0]["eventType"] == "session_started"
    assert log[-1]["eventType"] == "session_completed"
    index = [json.loads(line) for line in (records / "artifacts" / "index.jsonl").read_bytes().splitlines()]
    assert {entry["artifactType"] for entry in index} == {"file_diff", "session_history"}
    for entry in index:
        assert (records / "artifacts" / entry["artifactId"]).stat().st_size == entry["sizeBytes"]
    thread = host.history("demo")
    assert [message["role"] for message in thread[:3]] == ["system", "user", "assistant"]
    assert thread[1]["content"] == "Make the tests pass."
    assert sum(message["role"] == "tool" for message in thread) == len(TOOLS)
    files = [path for path in host.state.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_directories_are_private(as_json: tuple[Host, Outcome]) -> None:
    host, _ = as_json
    folders = [host.state, *(path for path in host.state.rglob("*") if path.is_dir())]
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in folders} == dict.fromkeys(folders, 0o700)


def test_text_mode(tmp_path: Path) -> None:
    host, outcome = demo(tmp_path, "text")
    assert outcome.code == 0
    prose, progress = outcome.text, outcome.stderr
    assert prose.startswith("I'll look around first.\n")
    assert prose.endswith("I changed no other file.\n")
    for mark in ("step 1", "model ", "tool ", "records:", "+++"):
        assert mark in progress
        assert mark not in prose
    assert (progress.count("succeeded"), progress.count("exit code 1")) == (len(TOOLS) - 1, 1)
    assert "6 steps, 8 tool calls, 34406 tokens in, 1220 out (14588 cached)" in progress
    assert str(host.records("demo")) in progress

    start = progress.index("--- a/")
    patch = progress[start : progress.index("\n\n6 steps", start) + 1]
    original = tmp_path / "original"
    shutil.copytree(PROJECT, original)
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=original, check=True)
    for name in ("ledger/settlement.py", "ledger/invoice.py"):
        assert (original / name).read_bytes() == (host.workspace / name).read_bytes()


def test_jsonl_mode(tmp_path: Path) -> None:
    host, outcome = demo(tmp_path, "jsonl")
    assert outcome.code == 0
    events = outcome.events
    assert [event["eventId"] for event in events] == list(range(1, len(events) + 1))
    steps: dict[str, list[str]] = {}
    for event in events:
        assert event.keys() - {"taskId", "stepId"} == ENVELOPE
        assert event["sessionId"] == "demo"
        assert event["workspaceId"] == events[0]["workspaceId"]
        moment = datetime.fromisoformat(event["timestamp"])
        assert moment.utcoffset() is not None
        if event["eventType"] not in ("session_started", "session_completed"):
            assert event["taskId"] == events[1]["taskId"]
        if "stepId" in event:
            steps.setdefault(event["stepId"], []).append(event["eventType"])
    assert events[0]["eventType"] == "session_started"
    assert [event["eventType"] for event in events[-2:]] == ["task_completed", "session_completed"]
    assert len(steps) == 6
    for kinds in steps.values():
        assert (kinds[0], kinds[1], kinds[-1]) == ("step_started", "llm_request_started", "step_completed")
        assert kinds.count("tool_requested") == kinds.count("tool_completed")
    told = "".join(event["payload"]["text"] for event in events if event["eventType"] == "text_chunk")
    assert "I'll look around first." in told
    logged = [event for event in events if event["eventType"] not in LIVE_ONLY]
    assert host.event_log("demo") == logged
    result = outcome.last_line
    assert (result["status"], result["sessionId"], result["message"]) == ("TASK_COMPLETED", "demo", None)
    assert result["filesChanged"] == [str(host.workspace / "ledger" / "settlement.py")]


@pytest.mark.slow
def test_the_same_session_a_second_time(as_json: tuple[Host, Outcome], tmp_path: Path) -> None:
    """The same script gives the same session: nothing of it is left to chance."""
    _, first = as_json
    _, second = demo(tmp_path, "json")
    varying: dict[str, Any] = {"taskId": None, "durationMs": None, "filesChanged": None, "tools": None}
    assert {**first.result, **varying} == {**second.result, **varying}
