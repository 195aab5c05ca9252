"""A step's results enter the thread as they were made; only those that a crash left on record are read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_SCRIPT = """
[[turn]]
tool_calls = [
    { name = "ReadFile", arguments = { path = "${workspace}/a" }, id = "one" },
    { name = "NoSuchTool", id = "two" },
    { name = "ReadFile", arguments = { path = "/etc/passwd" }, id = "three" },
]
[[turn]]
tool_calls = [{ name = "ReadFile", arguments = { path = "${workspace}/a" } }]
expect = { last_contains = "text" }
[[turn]]
text = "done"
"""
# The loop without a way to read a message from the record.
_PROGRAM = """
import sys
import agent_host.loop.task
from agent_host.cli.main import main
agent_host.loop.task.decode = None
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_results_of_this_process_are_not_read_back(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a").write_text("text")
    (tmp_path / "script.toml").write_text(_SCRIPT)
    gateway = f"mock:{tmp_path}/script.toml"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "run", "go", "--workspace", f"{tmp_path}/ws", "--gateway", gateway,
         "--state-dir", f"{tmp_path}/state"],
        cwd=_ROOT, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
