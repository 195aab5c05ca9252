"""Two hundred tasks in one `serve` process whose client comes and goes: nothing is lost, and nothing piles up."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent_host.cli.options import parse
from agent_host.cli.servers import serve_session
from agent_host.cli.shared import CommandLine
from tests.support.process import PATIENCE_S, Turn, bundle, call, checked, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.process import Host

_TASKS = 200
_WARM = 20
_MAX_GROWTH_MIB = 10
"""Between task 20 and task 200: the ring keeps the last 10,000 events, and the thread is held in memory."""

_NEW_SESSION = {
    "userId": "u",
    "tenantId": "t",
    "executionEnvironment": "desktop",
    "clientInfo": {},
    "supportedCapabilities": [],
}
_CYCLE = ("plain", "approved", "long", "denied", "plain", "mixed", "cancelled", "abandoned")
_ENDS = {"cancelled": "task_cancelled", "abandoned": "task_cancelled", "forced": "task_cancelled"}
_DECISIONS = {
    "approved": ("approved", "approved"),
    "denied": ("denied", "denied"),
    "mixed": ("denied", "approved"),
}


def kind_of(number: int) -> str:
    """What task `number` is like; a forced end takes two seconds of grace, so there are few of those."""
    return "forced" if number % 40 == 7 else _CYCLE[number % len(_CYCLE)]


def script(workspace: Path) -> list[Turn]:
    """An answer to each kind of prompt, and the end of the task to anything else."""
    read = call("ReadFile", path=str(workspace / "notes.txt"))
    write = call("WriteFile", path=str(workspace / "out.txt"), content="written\n")
    asked = [read, write, shell("echo asked > asked.txt")]
    calls = {
        "plain": [read, write, shell("echo plain"), call("ReadFile", path=str(workspace / "missing.txt"))],
        "long": [read, shell("seq 1 2000"), shell("seq 1 2000 >&2; exit 3")],
        **dict.fromkeys((*_DECISIONS, "abandoned"), asked),
        "cancelled": [read, shell("sleep 0.05"), shell("sleep 0.05")],
        "forced": [read, shell("sleep 60"), shell("sleep 60 & wait")],
    }
    answers = [
        use(*made, text=f"{kind} it is.", when={"last_contains": f"kind={kind};"}) for kind, made in calls.items()
    ]
    return [*answers, say("Done.", when={"last_matches": ""})]


class Client:
    """One connection after the other to the same session. `events` is what came, by id; `ring` what GetEvents gave."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = itertools.count(1)
        self._lines = self._connect()
        self._session_id = ""
        self._by_task: dict[str, dict[int, dict[str, Any]]] = {}
        self.live: set[int] = set()
        self.ring: dict[int, dict[str, Any]] = {}

    def create(self) -> str:
        """Begin the session; its id."""
        self._session_id = self.request("CreateSession", **_NEW_SESSION)["sessionId"]
        return self._session_id

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A request about the session."""
        return self.request(method, sessionId=self._session_id, **params)

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one request."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()
        while (answer := self._read()).get("id") != number:
            assert answer["method"] == "SessionEvent", answer
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def event(self, task_id: str, event_type: str, nth: int = 0) -> dict[str, Any]:
        """The event of this type that the task has had after `nth` others."""
        while len(found := self._found(task_id, event_type)) <= nth:
            self._read()
        return found[nth]

    def reconnect(self) -> None:
        """Go away in the middle, come back, and find what was missed."""
        self.close()
        eventually(self._accepted, "the session takes another client")
        self.catch_up()

    def catch_up(self) -> None:
        """Ask for everything behind what is known for certain; nothing of it may be missing."""
        last = max(self.ring, default=0)
        found = self.ask("GetEvents", sinceId=last)
        assert not found["gapDetected"]
        assert [event["eventId"] for event in found["events"]] == list(range(last + 1, found["latestId"] + 1))
        for event in checked(found["events"]):
            self.ring[event["eventId"]] = event
            self._keep(event)

    def close(self) -> None:
        """Hang up."""
        self._lines.close()

    def _accepted(self) -> bool:
        self._lines = self._connect()
        try:
            self.ask("GetSessionState")
        except (AssertionError, OSError):  # the process has not seen yet that the former connection is gone
            self.close()
            return False
        return True

    def _connect(self) -> Any:
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(PATIENCE_S)
            made.connect(str(self._path))
            return made.makefile("rwb")

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the process hung up")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.live.add(message["params"]["eventId"])
            self._keep(message["params"])
        return message

    def _keep(self, event: dict[str, Any]) -> None:
        self._by_task.setdefault(event.get("taskId", ""), {})[event["eventId"]] = event

    def _found(self, task_id: str, event_type: str) -> list[dict[str, Any]]:
        known = self._by_task.get(task_id, {})
        return [known[number] for number in sorted(known) if known[number]["eventType"] == event_type]


def play(client: Client, number: int) -> None:
    """Task `number` from its prompt to its end; every third time with another connection in the middle of it."""
    task_id, kind = f"task-{number}", kind_of(number)
    asks = kind in _DECISIONS or kind == "abandoned"
    options = {"approvalMode": "always"} if asks else {}
    client.ask("StartTask", taskId=task_id, prompt=f"kind={kind}; number {number}", taskOptions=options)
    client.event(task_id, "approval_requested" if asks else "tool_requested")
    if number % 3 == 0:
        client.reconnect()
    for nth, decision in enumerate(_DECISIONS.get(kind, ())):
        asked = client.event(task_id, "approval_requested", nth)["payload"]
        answer = client.request("ApproveAction", approvalId=asked["approvalId"], decision=decision)
        assert answer["status"] == "delivered"
    if kind in _ENDS:
        client.ask("CancelTask", taskId=task_id, force=kind == "forced")
    client.event(task_id, _ENDS.get(kind, "task_completed"))


class Usage(NamedTuple):
    """What a process and its folders hold."""

    descriptors: int
    threads: int
    children: int
    files: int
    resident_mib: float


def is_watcher(pid: str) -> bool:
    """Whether it is the host's own watcher, which stays as long as the host."""
    try:
        return b"orphan_reaper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def usage_of(pid: int, host: Host) -> Usage:
    """What process `pid` holds just now."""
    threads = os.listdir(f"/proc/{pid}/task")
    children = [Path(f"/proc/{pid}/task/{thread}/children").read_text().split() for thread in threads]
    (resident,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line]
    return Usage(
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(threads),
        children=sum(not is_watcher(child) for of_thread in children for child in of_thread),
        # The archive is to grow: a file for each journal that gave way.
        files=sum(
            len(names)
            for folder in (host.state, host.workspace)
            for place, _, names in os.walk(folder)
            if not place.endswith("/archive")
        ),
        resident_mib=int(resident) / 1024,
    )


def prepare(host: Host) -> dict[str, Any]:
    """A workspace to work in, and the policy."""
    (host.workspace / "notes.txt").write_text("some notes\n")
    return bundle(host.workspace, llm={"maxSessionTokens": 10**9, "maxInputTokens": 20_000})


def check_events(events: Mapping[int, dict[str, Any]], tasks: int) -> None:
    """Each task has begun and ended once, in order, and as it was to."""
    ends = ("task_completed", "task_cancelled", "task_failed")
    told = [events[number] for number in sorted(events)]
    of_tasks = [
        (event["taskId"], event["eventType"]) for event in told if event["eventType"] in ("task_started", *ends)
    ]
    wanted = [
        (f"task-{number}", kind)
        for number in range(tasks)
        for kind in ("task_started", _ENDS.get(kind_of(number), "task_completed"))
    ]
    assert of_tasks == wanted


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at the process through /proc")
def test_two_hundred_tasks_leave_nothing_behind(host: Host) -> None:
    policy = host.root / "policy.json"
    policy.write_text(json.dumps(prepare(host)))
    path = host.root / "run" / "serve.sock"
    with gateway(*script(host.workspace)) as scripted:
        options = ("--gateway", scripted.url, "--policy", policy, "--socket", path, "--reconnect-s", "30")
        process = host.start("serve", *options)
        eventually(lambda: path.exists() or not process.alive, "the socket is there")
        client = Client(path)
        session_id = client.create()
        for number in range(_TASKS):
            play(client, number)
            if number + 1 == _WARM:
                warm = usage_of(process.pid, host)
        eventually(lambda: usage_of(process.pid, host).children == 0, "no child process is left")
        client.catch_up()
        check_events(client.ring, _TASKS)
        assert client.live <= client.ring.keys()
        end = usage_of(process.pid, host)
        assert client.request("Shutdown")["sessionId"] == session_id
        client.close()
        outcome = process.finish()
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, b"", "")
    assert end.descriptors <= warm.descriptors
    assert end.threads <= warm.threads + 4  # the event loop's pool has not got all of its threads at once
    # A first version gets a file when the journal has gone into the snapshot, and the pair before has two.
    assert end.files <= warm.files + 3
    assert end.resident_mib <= warm.resident_mib + _MAX_GROWTH_MIB
    assert host.checkpoints() == []
    assert not path.exists()


async def only_these_tasks(count: int) -> None:
    """Wait until the event loop has no more tasks than that."""
    async with asyncio.timeout(PATIENCE_S):
        while len(asyncio.all_tasks()) > count:  # noqa: ASYNC110  nothing tells when a task is gone
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_no_asyncio_task_outlives_its_work(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process, where the tasks of the event loop can be seen."""
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    # Both ends are this process, which is a session's: any other would be refused for that.
    monkeypatch.setattr("agent_host.host.peers.PeerCheck.refusal", lambda _: None)
    policy, path = host.root / "policy.json", host.root / "run" / "serve.sock"
    policy.write_text(json.dumps(prepare(host)))
    before = asyncio.all_tasks()
    with gateway(*script(host.workspace)) as scripted:
        options = ["--gateway", scripted.url, "--policy", str(policy), "--workspace", str(host.workspace)]
        source = CommandLine(parse(["serve", *options])).source
        serving = asyncio.create_task(serve_session(source, str(path), 30.0, 0.0))
        await asyncio.to_thread(eventually, path.exists, "the socket is there")
        client = await asyncio.to_thread(Client, path)
        await asyncio.to_thread(client.create)
        await asyncio.to_thread(play, client, 0)
        await asyncio.to_thread(play, client, 1)  # with a question: the channel of questions serves from now on
        idle = len(asyncio.all_tasks())
        for number in range(2, 16):
            await asyncio.to_thread(play, client, number)
            await only_these_tasks(idle)
        await asyncio.to_thread(client.request, "Shutdown")
        client.close()
        assert await serving == 0
    assert asyncio.all_tasks() == before
