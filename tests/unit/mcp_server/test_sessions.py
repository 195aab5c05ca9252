"""The sessions of `agent-host mcp` where calls cross, over a process that speaks the wire of `serve`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.clients.supervisor import Starter, Subprocess
from agent_host.mcp_server import HostRefused, Records, message_of, question_in
from agent_host.mcp_server import server as module
from agent_host.mcp_server.server import Sessions
from tests.support.process import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agent_host.mcp_server import HostedSession

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")

HOST = '''
import json, os, sys
"""A host: a task ends as its prompt says."""
def say(**message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked["params"]
    result = {}
    if method == "CreateSession":
        result = {"sessionId": f"s{os.getpid()}"}
    elif method == "ResumeSession":
        result = {"incompleteTask": {"taskId": "resumed"}}
    elif method == "StartTask" and params["prompt"] == "refused":
        say(id=asked["id"], error={"code": -32000, "message": "no such model", "data": {"code": "INVALID_REQUEST"}})
        continue
    say(id=asked["id"], result=result)
    if method == "StartTask" and params["prompt"] != "runs":
        event = {"eventType": params["prompt"], "taskId": params["taskId"], "payload": {}}
        event |= {"tenantId": "t", "userId": "u"}
        say(method="SessionEvent", params=event)
'''


class NothingOnDisk(Records):
    """The host of these tests keeps no sessions, so none of them is somebody else's."""

    def refuse_others(self, session_id: str) -> None:
        pass


class Scripted(Starter):
    """Starts HOST in place of `serve`."""

    async def start(self, *_: object, **__: object) -> Subprocess:
        pipe = asyncio.subprocess.PIPE
        argv = [sys.executable, "-I", "-S", "-c", HOST]
        return Subprocess(await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe))


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    found = Sessions(Scripted(), (), NothingOnDisk(os.fspath(tmp_path), None))
    yield found
    await found.aclose()


async def over(sessions: Sessions, ending: str) -> HostedSession:
    """A session whose task is over."""
    async with asyncio.timeout(PATIENCE_S):
        session = await sessions.run(ending, None, {})
        while session.is_running:
            await session.news()
    return session


async def ended(*runs: asyncio.Task[HostedSession], meanwhile: Callable[[], bool] = lambda: True) -> None:
    """Wait for the end of `runs`; until then `meanwhile` holds at every turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not all(one.done() for one in runs):
            assert meanwhile()
            await asyncio.sleep(0)


async def test_a_task_that_is_refused_changes_nothing_of_the_one_that_runs(sessions: Sessions) -> None:
    session = await sessions.run("runs", None, {})
    session.since = "before"
    task = session.task_id
    refused = asyncio.create_task(sessions.run("another", session.session_id, {}))
    await ended(refused, meanwhile=lambda: sessions.find_by_task(task) is session)
    error = refused.exception()
    assert isinstance(error, HostRefused)
    assert error.name == "TASK_ALREADY_RUNNING"
    assert (session.task_id, session.since) == (task, "before")


async def test_a_task_that_the_host_refuses_leaves_the_one_before(sessions: Sessions) -> None:
    session = await over(sessions, "task_completed")
    task, since = session.task_id, session.since
    refused = asyncio.create_task(sessions.run("refused", session.session_id, {}))
    await ended(refused)
    assert str(refused.exception()) == "no such model"
    assert (session.task_id, session.since) == (task, since)
    assert sessions.find_by_task(task) is session


async def test_two_calls_go_on_with_one_paused_task(sessions: Sessions) -> None:
    paused = await over(sessions, "session_paused")
    both = [asyncio.create_task(sessions.run(None, paused.session_id, {})) for _ in range(2)]
    await ended(*both)
    first, second = [one.result() for one in both]
    assert first is second
    assert first is not paused
    assert (first.task_id, list(sessions.hosted)) == ("resumed", [paused.session_id])


async def test_one_of_two_tasks_gets_the_room_of_a_session_without_one(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 1)
    await over(sessions, "task_completed")
    both = [asyncio.create_task(sessions.run("runs", None, {})) for _ in range(2)]
    await ended(*both)
    (refused,) = [one.exception() for one in both if one.exception() is not None]
    assert isinstance(refused, HostRefused)
    assert refused.name == "RATE_LIMITED"
    assert len(sessions.hosted) == 1


async def test_the_first_event_says_whose_sessions_are_shown(sessions: Sessions) -> None:
    await over(sessions, "task_completed")
    assert sessions.records.owner == ("t", "u")


def asked(**more: Any) -> dict[str, Any]:
    """An `approval_requested` with a question of a server."""
    details = {"source": "mcp:odd", "question": "Log in.", **more}
    return {
        "approvalId": "a",
        "title": "mcp:odd asks you",
        "description": "Log in.",
        "actionSummary": "Log in.",
        "riskLevel": "medium",
        "risks": [],
        "details": details,
        "isQuestion": True,
    }


def test_a_page_to_open_has_a_form_without_fields() -> None:
    """It is no approval of a call, whose form it would get without one of its own."""
    question = question_in(asked(url="https://example.com/", host="example.com"))
    assert question.form == {"type": "object", "properties": {}}
    assert message_of(question) == (
        "mcp:odd asks you: Log in.\n\nrisk: medium\nsource: mcp:odd\nurl: https://example.com/\nhost: example.com"
    )
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": []}
    assert question_in(asked(form=form)).form == form
    assert question_in({key: value for key, value in asked(form=form).items() if key != "isQuestion"}).form is None
