"""Batches on Ray: several raylets on this machine, which share its disk; nodes and workers are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.process import Gateway, Host

PYTHON = os.environ.get("AGENT_HOST_TEST_RAY", "")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _has_ray() -> None:
    if not PYTHON:
        pytest.skip("AGENT_HOST_TEST_RAY names no interpreter with Ray")


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[str]:
    """A directory for Ray's sockets, whose names are bounded."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as found:
        os.environ["RAY_TMPDIR"] = found
        yield found
        del os.environ["RAY_TMPDIR"]


def environment(host: Host, **more: str) -> dict[str, str]:
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": os.environ["RAY_TMPDIR"], "PYTHONPATH": str(ROOT)}
    return host.environment({**own, **more})


class Cluster:
    """See tests.support.ray_cluster."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def kill_a_node(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "killed\n"


@contextlib.contextmanager
def cluster(host: Host, nodes: int) -> Iterator[Cluster]:
    argv = [PYTHON, "-m", "tests.support.ray_cluster", str(nodes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(host), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "no cluster"
        yield Cluster(process, address)
        assert process.stdin is not None
        process.stdin.close()


def tasks(host: Host, count: int, **more: Any) -> Path:
    (host.root / "source").mkdir(exist_ok=True)
    path = host.root / "tasks.jsonl"
    rows = ({"id": f"t{number}", "prompt": "Do it.", "workspace": "source", **more} for number in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(host: Host, model: Gateway, address: str, out: Path, *options: str) -> subprocess.Popen[bytes]:
    argv: Sequence[str] = [
        PYTHON, "-P", "-m", "agent_host", "batch", str(host.root / "tasks.jsonl"), "--out", str(out),
        "--policy", "full", "--gateway", model.url, "--engine", "ray", "--jobs", "4", "--keep", *options,
    ]  # fmt: skip
    where = {"RAY_ADDRESS": address} if address else {}
    log = open(host.root / "batch.log", "ab")  # noqa: SIM115  until the process has its copy
    with log:
        return subprocess.Popen(argv, env=environment(host, **where), stdout=log, stderr=log)


def rows(out: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, (out / "results.jsonl").read_text().splitlines())}


def effects(out: Path) -> list[str]:
    found = (path / "effects" for path in (out / "workspaces").iterdir())
    return sorted(path.read_text() for path in found)


def test_the_same_file_gives_the_same_results_as_on_this_machine(host: Host) -> None:
    tasks(host, 4, setup="echo x > prepared", check="test -e effects")
    local, remote = host.root / "local", host.root / "remote"
    with gateway(use(shell("echo effect >> effects")), say("Done.")) as model:
        argv = (
            "batch",
            str(host.root / "tasks.jsonl"),
            "--out",
            str(local),
            "--policy",
            "full",
            "--gateway",
            model.url,
        )
        assert host.run(*argv, "--keep").code == 0
        assert start(host, model, "", remote).wait(180) == 0, (host.root / "batch.log").read_text()
    told = ("status", "reason", "endedBy", "retryable", "exitCode", "attempts", "usage", "setup", "check", "patchFile")
    of_local, of_remote = rows(local), rows(remote)
    assert [[of_local[name].get(key) for key in told] for name in sorted(of_local)] == [
        [of_remote[name].get(key) for key in told] for name in sorted(of_remote)
    ]
    assert effects(local) == effects(remote) == ["effect\n"] * 4


def test_a_node_and_a_worker_that_are_lost_cost_a_retry_and_no_effect(host: Host) -> None:
    tasks(host, 8)
    out = host.root / "out"
    slow = "echo effect >> effects; echo $PPID > host; while [ ! -e ../../go ]; do sleep 0.1; done"
    with gateway(use(shell(slow)), say("Done.")) as model, cluster(host, 3) as nodes:
        batch = start(host, model, nodes.address, out, "--retries", "5")
        eventually(lambda: len(list(out.glob("workspaces/*/host"))) >= 4, "the first commands", within_s=120)
        nodes.kill_a_node()
        for path in sorted(out.glob("workspaces/*/host"))[:1]:
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        (out / "go").touch()
        assert batch.wait(240) == 0, (host.root / "batch.log").read_text()
    found = rows(out)
    assert {row["status"] for row in found.values()} == {"TASK_COMPLETED"}
    assert len(found) == 8
    assert effects(out) == ["effect\n"] * 8
    assert sum(row["attempts"] for row in found.values()) > 8, "something was lost"


def test_nothing_runs_where_the_state_is_not_shared(host: Host) -> None:
    outcome = host.run("batch", str(tasks(host, 1)), "--gateway", "http://127.0.0.1:9", "--engine", "ray")
    assert (outcome.code, "install agent-host[ray]" in outcome.error) == (2, True)
