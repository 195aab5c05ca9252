"""Session processes and their supervisor, over real `serve` processes and a scripted gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.clients.supervisor import (
    RpcFailure,
    SessionConnection,
    SessionGone,
    SessionSpec,
    Starter,
    Supervisor,
    TooManySessions,
)
from tests.interaction.test_serve_stops import EFFECT, HANG, effects
from tests.support.process import PATIENCE_S, eventually, gateway, say, use

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.process import Host

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


class Heard:
    """A listener that keeps what it hears, in order. While `open` is clear it takes no event."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self._news = asyncio.Condition()

    async def on_event(self, event: dict[str, Any]) -> None:
        await self.open.wait()
        await self._keep(event["eventType"], event)

    async def on_item(self, item: dict[str, Any]) -> None:
        await self._keep("item", item)

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        await self._keep("gone", (exit_code, last_words))

    async def on_resumed(self, result: dict[str, Any]) -> None:
        await self._keep("resumed", result)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.all]

    async def until(self, kind: str, count: int = 1) -> Any:
        """The `count`-th of this kind."""
        async with self._news:
            waits = self._news.wait_for(lambda: self.kinds.count(kind) >= count)
            try:
                await asyncio.wait_for(waits, PATIENCE_S)
            except TimeoutError:
                raise AssertionError(f"{kind} did not come: {self.kinds}") from None
        return [what for one, what in self.all if one == kind][count - 1]

    async def _keep(self, kind: str, what: Any) -> None:
        async with self._news:
            self.all.append((kind, what))
            self._news.notify_all()


def spec(host: Host, url: str, *options: str, **env: str) -> SessionSpec:
    """A session on that machine."""
    arguments = ["--gateway", url, "--policy", "full", "--workspace", str(host.workspace), *options]
    return SessionSpec(arguments, host.environment(env), str(host.workspace))


def supervised(test: Callable[[Supervisor], Awaitable[None]], **bounds: int) -> None:
    """Run the test with a supervisor that starts interpreters."""

    async def run() -> None:
        supervisor = Supervisor(Starter(), **bounds)
        try:
            await test(supervisor)
        finally:
            await supervisor.aclose()

    asyncio.run(run())


def test_a_task_and_its_events(host: Host) -> None:
    async def test(supervisor: Supervisor) -> None:
        heard = Heard()
        session = await supervisor.create(spec(host, model.url), heard)
        assert dict(supervisor.sessions) == {session.session_id: session}
        assert await session.start_task("a", "Do it.") == {"taskId": "a", "status": "running"}
        await heard.until("task_completed")
        with pytest.raises(RpcFailure) as refused:
            await session.request("CancelTask", {"taskId": "a"})
        assert (refused.value.code, refused.value.name) == (-32041, "NO_ACTIVE_TASK")
        await session.close()
        assert (dict(supervisor.sessions), "gone" in heard.kinds) == ({}, False)

    with gateway(say("Done.")) as model:
        supervised(test)


@pytest.mark.slow
def test_a_session_that_dies_is_told_and_resumed_at_the_next_prompt(host: Host) -> None:
    """kill -9 amid a task: the open task is cancelled, its effect stands, and the other session notices nothing."""

    async def test(supervisor: Supervisor) -> None:
        heard, other = Heard(), Heard()
        session = await supervisor.create(spec(host, model.url), heard)
        beside = await supervisor.create(spec(host, model.url), other)
        before = session.pid
        await session.start_task("a", "Do it.")
        await asyncio.to_thread(eventually, lambda: model.count == 2, "a request that stays without an answer")
        waiting = asyncio.create_task(session.request("CompactContext"))
        os.kill(before, signal.SIGSTOP)
        await asyncio.sleep(0)
        unanswered = asyncio.create_task(session.request("GetSessionState"))
        await asyncio.sleep(0)
        os.kill(before, signal.SIGKILL)
        assert await heard.until("gone") == (-signal.SIGKILL, "")
        for request in (waiting, unanswered):
            with pytest.raises(SessionGone):
                await request
        with pytest.raises(SessionGone) as gone:
            await session.request("GetSessionState")
        assert (session.is_alive, gone.value.exit_code) == (False, -signal.SIGKILL)
        await session.start_task("b", "Go on.")
        resumed = await heard.until("resumed")
        assert resumed["incompleteTask"]["taskId"] == "a"
        done = await heard.until("task_completed")
        assert (done["taskId"], session.is_alive, session.pid != before) == ("b", True, True)
        assert heard.kinds.index("resumed") < heard.kinds.index("task_cancelled") < heard.kinds.index("task_completed")
        assert beside.is_alive
        assert "gone" not in other.kinds

    with gateway(use(EFFECT), HANG, say("Done.")) as model:
        supervised(test)
    assert effects(host) == 1


def test_a_replay_comes_before_any_event(host: Host) -> None:
    async def test(supervisor: Supervisor) -> None:
        first = Heard()
        session = await supervisor.create(spec(host, model.url), first)
        await session.start_task("a", "Say it.")
        await first.until("task_completed")
        with pytest.raises(ValueError, match="open already"):
            await supervisor.resume(session.session_id, spec(host, model.url), Heard(), replay=True)
        await session.close()
        heard = Heard()
        again, result = await supervisor.resume(session.session_id, spec(host, model.url), heard, replay=True)
        assert (again.session_id, result["sessionId"]) == (session.session_id, session.session_id)
        finished = await heard.until("replay_finished")
        assert heard.kinds[: heard.kinds.index("replay_finished")] == ["item"] * finished["payload"]["items"]
        await again.start_task("b", "Say it again.")
        assert (await heard.until("task_completed"))["taskId"] == "b"

    with gateway(say("One."), say("Two.")) as model:
        supervised(test)


@pytest.mark.slow
def test_what_keeps_a_session_from_starting(host: Host) -> None:
    async def test(supervisor: Supervisor) -> None:
        with pytest.raises(SessionGone) as gone:
            await supervisor.create(spec(host, "http://127.0.0.1:1", "--nonsense"), Heard())
        assert (gone.value.exit_code, "--nonsense" in gone.value.last_words) == (2, True)
        with pytest.raises(RpcFailure, match="no-such"):
            await supervisor.resume("no-such", spec(host, "http://127.0.0.1:1"), Heard(), replay=False)
        with pytest.raises(FileNotFoundError):
            await supervisor.create(spec(host, "")._replace(directory=str(host.root / "gone")), Heard())
        session = await supervisor.create(spec(host, "http://127.0.0.1:1"), Heard())
        with pytest.raises(TooManySessions, match="close one first"):
            await supervisor.create(spec(host, "http://127.0.0.1:1"), Heard())
        await session.close()
        await supervisor.create(spec(host, "http://127.0.0.1:1"), Heard())

    supervised(test, most_sessions=1)


@pytest.mark.slow
def test_a_listener_that_is_slow_holds_up_nobody_and_gets_what_fits_joined(host: Host) -> None:
    """25,000 pieces of text for a listener that takes none of them: beyond the bound they stay in the process of the
    session, which joins them. The task goes on meanwhile, and so does another session."""
    text = " ".join(map(str, range(150_000)))

    async def test(supervisor: Supervisor) -> None:
        heard, other = Heard(), Heard()
        session = await supervisor.create(spec(host, model.url), heard)
        beside = await supervisor.create(spec(host, model.url), other)
        await heard.until("session_started")
        heard.open.clear()
        await session.start_task("a", "Say much.")
        log = host.records(session.session_id) / "events.jsonl"
        await asyncio.to_thread(eventually, lambda: b"task_completed" in log.read_bytes(), "the end of the task")
        late = asyncio.create_task(session.request("GetSessionState"))
        assert (await beside.request("GetSessionState"))["sessionId"] == beside.session_id
        assert not late.done()  # its reply is behind what waits
        heard.open.set()
        await heard.until("task_completed")
        assert (await asyncio.wait_for(late, PATIENCE_S))["sessionId"] == session.session_id
        pieces = [event["payload"] for kind, event in heard.all if kind == "text_chunk"]
        assert "".join(piece["text"] for piece in pieces) == text
        assert len(pieces) < 2_000

    with gateway(say(text)) as model:
        supervised(test, most_waiting_bytes=4096)


def test_a_listener_cannot_wait_for_a_request_of_its_session_and_its_fault_is_reported(host: Host) -> None:
    reported: list[dict[str, Any]] = []

    async def test(supervisor: Supervisor) -> None:
        class Asking(Heard):
            async def on_event(self, event: dict[str, Any]) -> None:
                await supervisor.sessions[event["sessionId"]].request("GetSessionState")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        session = await supervisor.create(spec(host, "http://127.0.0.1:1"), Asking())
        await asyncio.wait_for(session.request("GetSessionState"), PATIENCE_S)

    supervised(test)
    (context,) = reported
    assert context["message"] == "the listener of a session failed"
    assert "must not await a request of its session" in str(context["exception"])


def test_what_is_no_message_ends_the_process(tmp_path: Any) -> None:
    async def run() -> None:
        process = await Starter().start(["--version"], environment={}, directory=str(tmp_path))
        connection = SessionConnection(process, lambda *_: None)
        with pytest.raises(SessionGone):
            await connection.request("GetSessionState")
        assert (await connection.close()).exit_code in (0, -signal.SIGKILL)

    asyncio.run(run())
