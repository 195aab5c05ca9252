"""A gateway that numbers its calls from 0 in every answer: the thread must stay sendable all the same (invariant 4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_SCRIPT = """
[[turn]]
tool_calls = [{ name = "ReadFile", arguments = { path = "${workspace}/a" }, id = "call_0" }]
[[turn]]
tool_calls = [{ name = "ReadFile", arguments = { path = "${workspace}/a" }, id = "call_0" }]
[[turn]]
text = "done"
"""


def test_ids_that_come_again_in_a_later_turn_are_made_distinct(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a").write_text("text")
    (tmp_path / "script.toml").write_text(_SCRIPT)
    options = [
        "--workspace",
        f"{tmp_path}/ws",
        "--state-dir",
        f"{tmp_path}/state",
        "--gateway",
        f"mock:{tmp_path}/script.toml",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "agent_host.cli.main", "run", *options, "go"],
        cwd=_ROOT, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert "done" in done.stdout, done.stderr
    assert done.returncode == 0
