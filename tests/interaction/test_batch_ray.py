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
NEAR: dict[str, str] = {}
"""Variables of what nodes have on disks of their own."""


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
    return host.environment({**own, **NEAR, **more})


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
def cluster(host: Host, nodes: int, *hidden: str) -> Iterator[Cluster]:
    argv = [PYTHON, "-m", "tests.support.ray_cluster", str(nodes), *hidden]
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
        *("--policy", "full") * ("--policy" not in options),
        "--gateway", model.url, "--engine", "ray", "--jobs", "4", "--keep", *options,
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


@pytest.fixture
def parcels(host: Host, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory that nodes do not have: all that the batch and its user have."""
    works = subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True)
    if works.returncode:
        pytest.skip("no namespaces for nodes with disks of their own")
    near = Path(os.environ["RAY_TMPDIR"])
    text = (host.root / "user.toml").read_text() + '[batch]\nnode_storage = "objects"\n'
    (near / "user.toml").write_text(text + "[models.'*']\nprice_input = 1.0\nprice_output = 1.0\n")
    monkeypatch.setitem(NEAR, "AGENT_HOST_CONFIG", str(near / "user.toml"))
    monkeypatch.setitem(NEAR, "TMPDIR", str(near))
    monkeypatch.setitem(NEAR, "HOME", str(near))
    return str(host.root)


def test_nodes_that_share_no_disk_get_workspaces_and_sessions_and_give_them_back(host: Host, parcels: str) -> None:
    source = host.root / "source"
    source.mkdir()
    git = ("git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("commit", "-qm", "first", "--allow-empty")):
        subprocess.run([*git, *words], check=True)
    (source / "elsewhere").symlink_to("/nowhere")
    policy = host.root / "mine.json"
    policy.write_text(host.run("policy", "show", "full").text)
    tasks(
        host,
        3,
        setup="git log -1 --format=%s > prepared; chmod 000 prepared",
        check="test -e effects",
        policy="mine.json",
    )
    out = host.root / "out"
    with gateway(use(shell("echo effect >> effects")), say("Done.")) as model, cluster(host, 3, parcels) as nodes:
        options = ("--policy", str(policy), "--max-cost", "5")
        batch = start(host, model, nodes.address, out, *options)
        assert batch.wait(180) == 0, (host.root / "batch.log").read_text()
        asked = model.count
        assert start(host, model, nodes.address, out, *options).wait(60) == 0
        assert model.count == asked == 6, "the second run had nothing to do"
    found = rows(out)
    assert [(row["status"], row["setup"], row["check"], row["attempts"]) for row in found.values()] == [
        ("TASK_COMPLETED", {"exitCode": 0}, {"exitCode": 0}, 1)
    ] * 3
    assert effects(out) == ["effect\n"] * 3
    for number, workspace in enumerate(sorted((out / "workspaces").iterdir())):
        assert (workspace / "elsewhere").is_symlink()
        assert (workspace / "prepared").stat().st_mode & 0o777 == 0
        assert "effects" in (out / "patches" / f"t{number}.patch").read_text()
    shown = host.run("show", found["t0"]["sessionId"])
    assert (shown.code, "Done." in shown.text) == (0, True), "its records are here"
    assert not list((out / "work").glob("*.packed")) + list((out / "work").glob("*.received"))


def test_an_interrupted_parcel_comes_back_and_one_that_is_lost_begins_where_it_was_sent(
    host: Host, parcels: str
) -> None:
    tasks(host, 4)
    out = host.root / "out"
    seen = Path(os.environ["RAY_TMPDIR"])
    first = shell(f"echo first >> effects; echo $PPID >> {seen}/began; while [ ! -e {seen}/go ]; do sleep 0.1; done")
    second = shell(f"echo second >> effects; echo $PPID >> {seen}/later; while [ ! -e {seen}/on ]; do sleep 0.1; done")
    with gateway(use(first), use(second), say("Done.")) as model, cluster(host, 3, parcels) as nodes:
        options = ("--retries", "5", "--max-cost", "50")
        batch = start(host, model, nodes.address, out, *options)
        eventually(lambda: lines(seen / "began") == 4, "the first commands", within_s=120)
        batch.send_signal(signal.SIGINT)
        hosts = (seen / "began").read_text().split()
        eventually(lambda: all(map(is_asked_to_end, hosts)), "the sessions to be asked to end")
        (seen / "go").touch()
        assert batch.wait(120) == 130, (host.root / "batch.log").read_text()
        assert effects(out) == ["first\n"] * 4, "what was done has come back"
        batch = start(host, model, nodes.address, out, *options)
        eventually(lambda: lines(seen / "later") == 4, "the second commands", within_s=120)
        kill_node_of((seen / "later").read_text().split()[0])
        eventually(lambda: lines(seen / "later") > 4, "a second try elsewhere", within_s=120)
        (seen / "on").touch()
        assert batch.wait(240) == 0, (host.root / "batch.log").read_text()
    found = rows(out)
    assert {row["status"] for row in found.values()} == {"TASK_COMPLETED"}
    assert effects(out) == ["first\nsecond\n"] * 4, "a lost workspace is not used again"
    lost = [row for row in found.values() if row["attempts"] > 1]
    kept = [row for row in found.values() if row["attempts"] == 1]
    assert lost
    assert kept
    assert min(row["cost"] for row in lost) > max(row["cost"] for row in kept), "a lost process may have spent all"
    assert sum(row["cost"] for row in found.values()) <= 50


def test_a_node_that_shares_one_of_the_directories_runs_nothing(host: Host, parcels: str) -> None:
    """It would work in the batch's own workspaces, and keep the sessions to itself."""
    assert str(host.state).startswith(parcels)
    host.state.mkdir()
    tasks(host, 1)
    out = host.root / "out"
    with (
        gateway(use(shell("echo effect >> effects")), say("Done.")) as model,
        cluster(host, 2, str(host.state)) as nodes,
    ):
        batch = start(host, model, nodes.address, out, "--retries", "0")
        assert batch.wait(180) == 3, (host.root / "batch.log").read_text()
        assert model.count == 0
    assert "the node shares only one of" in rows(out)["t0"]["message"]
    assert not list(out.glob("workspaces/*/effects"))


def test_a_batch_is_not_continued_with_another_storage(host: Host, parcels: str) -> None:
    tasks(host, 1)
    assert parcels
    out = host.root / "out"
    with gateway(say("Done.")) as model:
        argv = ("batch", str(host.root / "tasks.jsonl"), "--out", str(out), "--gateway", model.url, "--policy", "full")
        assert host.run(*argv).code == 0
        refused = start(host, model, "", out)
        assert refused.wait(60) == 2
        assert model.count == 1
    assert "batch.node_storage" in (host.root / "batch.log").read_text()


def kill_node_of(pid: str) -> None:
    """Kill the raylet of a node on which a session's process runs."""
    while "raylet" not in Path(f"/proc/{pid}/comm").read_text():
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(pid), signal.SIGKILL)


def is_asked_to_end(pid: str) -> bool:
    """True if the standard input of a process has been closed at its other end."""
    reader = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False
    finally:
        os.close(reader)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_nothing_runs_where_the_state_is_not_shared(host: Host) -> None:
    outcome = host.run("batch", str(tasks(host, 1)), "--gateway", "http://127.0.0.1:9", "--engine", "ray")
    assert (outcome.code, "install agent-host[ray]" in outcome.error) == (2, True)
