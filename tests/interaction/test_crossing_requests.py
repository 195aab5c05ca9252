"""Requests of a client that cross something else: a pause, an upload, an answer that is on its way."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.host.opening import SessionOpener
from agent_host.services.session import NewSession
from agent_host.testing.services import MockServices, Refused
from state import WriteFailed
from state.file_session import FileSession
from state.records import CallStarted, JournalRecord
from tests.interaction.test_approval_desk import client as client
from tests.support.backends import Serving, impatient, services_at
from tests.support.person import SESSION, resolved_options
from tests.support.process import Host, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from agent_host.approval import ApprovalAnswer, ApprovalRequest
    from agent_host.events.emitter import Event
    from tests.interaction.test_approval_desk import Client

DOWN = {"status": 500, "times": "always"}


def paused(serving: Serving) -> str:
    """A session whose task found no gateway; its id."""
    session_id = str(serving.create()["sessionId"])
    serving.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
    serving.event("session_paused")
    return session_id


def in_background(work: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """`work` in a thread of its own."""
    return ThreadPoolExecutor(1).submit(work)


def test_a_paused_session_whose_task_was_cancelled_can_be_shut_down(host: Host) -> None:
    with gateway(DOWN) as served, Serving(host, {}, "--gateway", served.url, "--policy", "full") as serving:
        session_id = paused(serving)
        serving.result("CancelTask", sessionId=session_id, taskId="t")
        serving.event("task_cancelled")
        assert serving.result("Shutdown")["sessionId"] == session_id
        assert serving.end() == 0
    assert host.checkpoints() == []
    assert serving.events[-1]["eventType"] == "session_cancelled"


@pytest.mark.slow
def test_a_cancellation_that_crosses_the_upload_of_a_paused_task(host: Host) -> None:
    impatient(host, timeout_s=1.0, max_retries=0)
    services = MockServices()
    with (
        services.in_thread(),
        gateway(DOWN) as served,
        Serving(
            host, services_at(services.url, "WORKSPACE"), "--gateway", served.url, "--policy", str(host.policy())
        ) as serving,
    ):
        services.hang("/workspaces/")
        session_id = serving.create()["sessionId"]
        serving.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        eventually(lambda: services.requests, "the upload")
        serving.result("CancelTask", sessionId=session_id, taskId="t")
        serving.event("task_cancelled")
        state = serving.result("GetSessionState", sessionId=session_id)
        # The upload waits for nobody and nobody waits for it: the session paused first, and stays so.
        assert (state["sessionStatus"], state["task"]["status"]) == ("SESSION_PAUSED", "TASK_CANCELLED")


class SlowBundles:
    """Bundles for a session; every one but the first is held back until `released`, and then refused if `expired`."""

    def __init__(self, host: Host, *, expired: bool = False) -> None:
        self._host = host
        self._expired = expired
        self.held = threading.Event()
        self.released = threading.Event()
        self._given = 0

    def __call__(self, session_id: str) -> dict[str, Any]:
        self._given += 1
        if self._given > 1:
            self.held.set()
            self.released.wait(20)
            if self._expired:
                raise Refused(409, "it has ended")
        return bundle(self._host.workspace, sessionId=session_id)


def test_a_task_that_begins_while_the_new_bundle_is_on_its_way(host: Host) -> None:
    """What was cancelled meanwhile is not gone on with, and the reason is told as what it is."""
    impatient(host, timeout_s=30.0)
    bundles = SlowBundles(host)
    services = MockServices(policy_bundle=bundles)
    slow = use(shell("touch started; while [ ! -e go ]; do sleep 0.01; done"))
    with (
        services.in_thread(),
        gateway(slow, say("done")) as served,
        Serving(host, services_at(services.url, "SESSION"), "--gateway", served.url) as serving,
    ):
        session_id = serving.create()["sessionId"]
        resume = in_background(lambda: serving.error("ResumeSession", sessionId=session_id))
        assert bundles.held.wait(20)
        serving.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        eventually((host.workspace / "started").exists, "the command")
        bundles.released.set()
        refused = resume.result(20)
        assert refused["data"]["code"] != "INTERNAL_ERROR", refused
        (host.workspace / "go").touch()
        serving.event("task_completed")


def test_a_session_that_ends_while_the_new_bundle_is_on_its_way(host: Host) -> None:
    impatient(host, timeout_s=30.0)
    bundles = SlowBundles(host)
    services = MockServices(policy_bundle=bundles)
    with (
        services.in_thread(),
        gateway(DOWN) as served,
        Serving(host, services_at(services.url, "SESSION"), "--gateway", served.url) as serving,
    ):
        session_id = paused(serving)
        resume = in_background(lambda: serving.error("ResumeSession", sessionId=session_id))
        assert bundles.held.wait(20)
        serving.result("CancelTask", sessionId=session_id, taskId="t")
        serving.event("task_cancelled")
        shutdown = in_background(lambda: serving.result("Shutdown"))
        serving.event("session_cancelled")
        bundles.released.set()
        refused = resume.result(20)
        assert refused["data"]["code"] != "INTERNAL_ERROR", refused
        assert shutdown.result(20)["status"] == "shutdown"
        assert serving.end() == 0
    assert host.checkpoints() == []
    assert serving.events[-1]["eventType"] == "session_cancelled"


def test_a_session_that_expires_while_its_task_is_begun(host: Host) -> None:
    """The task does not go on in a session whose checkpoint is gone."""
    impatient(host, timeout_s=30.0)
    bundles = SlowBundles(host, expired=True)
    services = MockServices(policy_bundle=bundles)
    slow = use(shell("touch started; while [ ! -e go ]; do sleep 0.01; done; echo one >> effects"))
    with (
        services.in_thread(),
        gateway(slow, use(shell("echo two >> effects")), say("done")) as served,
        Serving(host, services_at(services.url, "SESSION"), "--gateway", served.url) as serving,
    ):
        session_id = serving.create()["sessionId"]
        resume = in_background(lambda: serving.error("ResumeSession", sessionId=session_id))
        assert bundles.held.wait(20)
        serving.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        eventually((host.workspace / "started").exists, "the command")
        bundles.released.set()
        (host.workspace / "go").touch()
        assert resume.result(20)["data"]["code"] == "SESSION_EXPIRED"
        assert serving.end() == 0
    assert (host.workspace / "effects").read_text() == "one\n"
    assert host.checkpoints() == []
    assert serving.events[-1]["eventType"] == "session_failed"


def test_a_bundle_comes_before_the_first_task_and_the_disk_refuses(host: Host) -> None:
    with gateway(say("done")) as served, Serving(host, {}, "--gateway", served.url, "--policy", "full") as serving:
        session_id = serving.create()["sessionId"]
        (host.state / "checkpoints" / f"{session_id}.lock").unlink()
        assert serving.result("ResumeSession", sessionId=session_id)["status"] == "ready"
        assert "lock" in serving.event("checkpoint_failed")["payload"]["message"]


def test_a_session_of_this_process_goes_on_after_a_pause(host: Host) -> None:
    with gateway(*[{"status": 500}] * 4, say("done")) as served:
        options = ("--gateway", served.url, "--policy", str(host.policy()))
        with Serving(host, {}, *options) as serving:
            session_id = paused(serving)
            assert serving.result("ResumeSession", sessionId=session_id)["incompleteTask"]["taskId"] == "t"
            serving.event("task_completed")
            state = serving.result("GetSessionState", sessionId=session_id)
            assert state["sessionStatus"] == "SESSION_RUNNING"


async def test_a_stop_for_now_that_becomes_one_for_good(client: Client) -> None:
    """The call that a stop for now leaves open gets its answer, and the task its end."""
    client.policy(Shell_Exec={"requiresApproval": False})
    slow = shell('python3 -c \'open("started", "w")\'; while [ ! -e go ]; do sleep 0.01; done')
    write = call("WriteFile", path=str(client.file("a")), content="a")
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        session = client.session
        assert session is not None
        await client.waits(*(payload["approvalId"] for payload in client.asked))
        while not client.file("started").exists():  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.01)
        session.interrupt()
        while client.desk.rows():  # noqa: ASYNC110  the desk has no event for it
            await asyncio.sleep(0)
        for _ in range(10):  # the write is left open, and the command still runs
            await asyncio.sleep(0)
        session.tasks.cancel(str(session.state()["task"]["taskId"]))
        client.file("go").touch()

    def look(event: Event) -> None:
        if event.event_type == EventType.APPROVAL_REQUESTED:
            stopping.append(asyncio.create_task(stop()))

    client.on_event = look
    with gateway(use(write, slow), say("not asked for")) as served:
        done = await client.task(served.url)
    assert (done.status, done.unfinished) == ("TASK_CANCELLED", False)
    assert [row.get("code") for row in done.details["toolCalls"]] == ["TOOL_INTERRUPTED", None]
    assert client.host.checkpoints() == []


class Faulty:
    """A gate with a fault of its own, which shows when its question is taken back."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, _: ApprovalRequest) -> ApprovalAnswer:
        """A question that is never answered."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("a fault of the gate") from None
        raise AssertionError


async def test_a_fault_of_the_program_in_the_midst_of_a_shutdown(client: Client) -> None:
    """What is on record stays, and whoever asked for the end gets an answer."""
    with gateway(use(shell("true"))) as served:
        start = resolved_options(
            served.url,
            str(client.host.root / "policy.json"),
            workspace=str(client.host.workspace),
            state_dir=str(client.host.state),
        )
        faulty = Faulty()
        opener = SessionOpener(start, gate=lambda _: faulty, watch=lambda _: [client])
        opened = await opener.create(NewSession("jo", "acme", "desktop"))
        session = opened.session
        session.start_task("t", "Do it.")
        await faulty.asked.wait()
        await session.shut_down("enough")
    assert f"{SESSION}.json" in client.host.checkpoints()
    assert session.state()["sessionStatus"] == "SESSION_FAILED"


async def test_a_call_whose_start_the_disk_refused_keeps_those_behind_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls on one path take effect in call order, so what the first could not do the second must not."""
    client.policy(File_Write={"requiresApproval": False})
    append = FileSession.append
    refused: list[str] = []

    def append_or_fail(session: FileSession, record: JournalRecord) -> None:
        append(session, record)
        if isinstance(record, CallStarted) and not refused:
            refused.append(record.call_id)
            raise WriteFailed("no space for a moment")

    monkeypatch.setattr(FileSession, "append", append_or_fail)
    path = str(client.file("a"))
    calls = [call("WriteFile", path=path, content=content) for content in ("1", "2")]
    with gateway(use(*calls), say("Done.")) as served:
        stopped = await client.task(served.url)
        assert (stopped.status, stopped.reason) == ("SESSION_PAUSED", "CHECKPOINT_WRITE_FAILED")
        assert not client.file("a").exists()
        done = await client.task(served.url, None)
    assert done.status == "TASK_COMPLETED"
    assert client.file("a").read_text() == "2"
