"""The example project, its script, the bare loop of the benchmarks and the page on scripts hold together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import orjson
import pytest

from agent_host.testing.gateway import MockGateway, Script
from agent_host.testing.script import CONDITIONS, ERROR_KEYS, TOOL_CALL_KEYS, TURN_KEYS, USAGE_KEYS
from benchmarks.processes import child, child_environment
from tests.unit.testing.support import body, call, result, user

ROOT = Path(__file__).parents[3]


def run_suite(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=directory, capture_output=True, text=True)


def test_the_script_repairs_the_example(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    shutil.copytree(ROOT / "examples" / "payment-ledger", workspace, ignore=shutil.ignore_patterns("__pycache__"))
    assert "FAILED (failures=1)" in run_suite(workspace).stderr

    tools = tmp_path / "tools.json"
    tools.write_bytes(orjson.dumps([{"name": name} for name in ("ReadFile", "WriteFile", "RunCommand")]))
    gateway = MockGateway(Script.load(ROOT / "examples" / "fix-the-bug.toml"), variables={"workspace": str(workspace)})
    with gateway.in_thread() as url:
        log = tmp_path / "floor.log"
        options = ("--gateway", url, "--prompt", "Fix the tests.", "--log", str(log), "--tools-json", str(tools))
        command, env = child("floor", *options), child_environment()
        done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True)
    assert gateway.failures == []
    assert done.returncode == 0, done.stderr
    numbers = orjson.loads(done.stdout)
    assert numbers.keys() == {"steps", "durationMs", "peakRssKb", "bytesWritten"}
    assert numbers["steps"] == 6
    assert numbers["bytesWritten"] == log.stat().st_size
    assert run_suite(workspace).stderr.rstrip().endswith("OK")


@pytest.mark.parametrize("keys", [TURN_KEYS, CONDITIONS, TOOL_CALL_KEYS, USAGE_KEYS, ERROR_KEYS])
def test_the_page_on_scripts_describes_every_key(keys: dict[str, object]) -> None:
    page = (ROOT / "docs" / "mock-gateway.md").read_text(encoding="utf-8")
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_the_examples_on_the_page_are_valid_scripts(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "mock-gateway.md").read_text(encoding="utf-8")
    examples = page.split("```toml\n")[1:]
    assert examples
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example.partition("```")[0], encoding="utf-8")
        Script.load(path, {"workspace": "/w"})


@pytest.mark.parametrize(
    ("position", "tools"),
    [(2, ["RunCommand", "ReadFile"]), (3, ["RunCommand"]), (5, ["WriteFile"]), (6, ["RunCommand"])],
)
def test_the_script_makes_interrupted_calls_again(position: int, tools: list[str]) -> None:
    last = f"toolu_{position - 2}_0"
    thread = body(user("go"), call(last), result(last, "TOOL_INTERRUPTED: outcome unknown", is_error=True))
    gateway = MockGateway(Script.load(ROOT / "examples" / "fix-the-bug.toml"), variables={"workspace": "/w"})
    with gateway.in_thread() as url:
        message = httpx.post(f"{url}/v1/messages", json={**thread, "stream": False}).json()
    assert [block["name"] for block in message["content"] if block["type"] == "tool_use"] == tools
    assert {block["id"].rpartition("_")[2] for block in message["content"][1:]} == {str(position - 1)}
