"""What a client of `agent-host mcp` can still ask about once the session of a task has another one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.mcp_server.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent_host.mcp_server.hosted import HostedSession

# A session whose tasks are over at once; as `agent-host serve` it ends with its input.
HOST = """
import json, sys
RESULTS = {"CreateSession": {"sessionId": "s"}, "GetTranscript": {"items": []}, "GetPatchPreview": {"files": []},
           "GetSessionState": {"tokenUsage": {}}}
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], "result": RESULTS.get(asked["method"], {})}))
    if asked["method"] == "StartTask":
        event = {"eventType": "task_completed", "taskId": asked["params"]["taskId"], "payload": {"stepCount": 1}}
        print(json.dumps({"method": "SessionEvent", "params": event}))
    sys.stdout.flush()
"""


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    opened = Sessions([sys.executable, "-S", "-c", HOST])
    yield opened
    await opened.aclose()


async def ended_task(sessions: Sessions, *, is_asked_about: bool = True) -> str:
    """The id of a task of the one session that has ended."""
    session: HostedSession = await sessions.run("Do it.", sessions.ids[0] if sessions.ids else None, {})
    session.is_asked_about = is_asked_about
    while session.is_running:
        await session.news()
    return session.task_id


async def test_the_last_hundred_ended_tasks_are_kept(sessions: Sessions) -> None:
    tasks = [await ended_task(sessions) for _ in range(103)]
    assert sessions.with_task(tasks[-1]) is not None, "the present task is asked of its session"
    assert list(sessions.finished) == tasks[2:-1]
    _, report = sessions.finished[tasks[2]]
    assert (report["taskId"], report["status"], report["stepCount"]) == (tasks[2], "TASK_COMPLETED", 1)


async def test_a_task_that_no_client_has_as_a_task_of_mcp_is_not_kept(sessions: Sessions) -> None:
    first = await ended_task(sessions, is_asked_about=False)
    second = await ended_task(sessions)
    await ended_task(sessions)
    assert first not in sessions.finished
    assert list(sessions.finished) == [second]
