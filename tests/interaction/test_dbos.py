"""The example for engines whose steps run at least once (docs/engines.md): real workers of DBOS, killed in mid-session.

python -m venv /tmp/dbos && /tmp/dbos/bin/pip install dbos
AGENT_HOST_TEST_DBOS=/tmp/dbos/bin/python python -m pytest tests/interaction/test_dbos.py
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("shell lines and signals of POSIX systems", allow_module_level=True)

if TYPE_CHECKING:
    from tests.support.process import Host

PYTHON = os.environ.get("AGENT_HOST_TEST_DBOS")
WORKER = Path(__file__).parents[2] / "examples" / "dbos" / "worker.py"
PATIENCE_S = 180
EFFECT = use(shell("echo effect >> effects"))

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="AGENT_HOST_TEST_DBOS names no Python with DBOS"),
]


def start(host: Host, url: str, policy: str = "full") -> subprocess.Popen[str]:
    """Start a worker on the one task, in a process group of its own."""
    counted = f'echo call >> calls; exec {shlex.quote(sys.executable)} -P -m agent_host "$@"'
    environment = host.environment({"AGENT_HOST": shlex.join(["sh", "-c", counted, "sh"])})
    options = ["--workspace", str(host.workspace), "--policy", policy, "--gateway", url]
    return subprocess.Popen(
        [str(PYTHON), str(WORKER), "task-1", "Do it.", *options],
        env=environment, cwd=host.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def finish(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """The result that a worker printed at its end."""
    try:
        out, errors = worker.communicate(timeout=PATIENCE_S)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors[-4000:]
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


@pytest.mark.parametrize("lost", ["the worker", "the worker and its session"])
def test_a_worker_that_is_killed_leaves_one_session_and_one_effect(host: Host, lost: str) -> None:
    alone = lost == "the worker"
    kill = os.kill if alone else os.killpg
    turns = [say("Done.", delay_ms=8000)] if alone else [{"hang": True, "times": 1}, say("Done.")]
    with gateway(EFFECT, *turns) as model:
        first = start(host, model.url)
        with first:
            try:
                eventually(lambda: model.count == 2 or first.poll() is not None, "the second call", within_s=PATIENCE_S)
                assert first.poll() is None, "the worker waits for its session"
            finally:
                kill(first.pid, signal.SIGKILL)
        result = finish(start(host, model.url))
        calls = 2 if alone else 3
        assert model.count == calls
        again = finish(start(host, model.url))
        assert (again, model.count) == (result, calls), "what is done asks nothing again"
    assert (result["status"], result["sessionId"], result["text"]) == ("TASK_COMPLETED", "dbos-task-1", "Done.")
    assert result["resumedFromStep"] == (None if alone else 1)
    assert (host.workspace / "effects").read_text() == "effect\n"


def test_a_command_that_cannot_be_used_is_not_tried_again(host: Host) -> None:
    with gateway(say("Done.")) as model:
        worker = start(host, model.url, policy="./missing.json")
        _, errors = worker.communicate(timeout=PATIENCE_S)
        assert (worker.returncode, model.count) == (1, 0)
    assert "missing.json" in errors
    assert "ValueError" in errors
    assert (host.root / "calls").read_text() == "call\n"
