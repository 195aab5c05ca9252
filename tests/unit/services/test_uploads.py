"""Uploads in line: in order, bounded, nobody waits, and each ends with one word (AH 7.5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.services import workspace as uploads_module
from agent_host.services.workspace import INLINE_BYTES, Upload, UploadFailed, UploadLimits, UploadQueue
from tests.support.loop_parts import settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.contracts import Artifact, ArtifactType


class Service:
    """A `WorkspaceService` that answers while it is `there`; `fails` are raised first, one a request."""

    def __init__(self, *fails: UploadFailed) -> None:
        self.there = asyncio.Event()
        self.there.set()
        self.fails = list(fails)
        self.asked: list[str] = []
        self.data: list[bytes] = []

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        self.asked.append(artifact.name)
        await self.there.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.data.append(artifact.data)
        return f"uri of {artifact.name}"


class Line:
    """A queue, and what was said of each upload."""

    def __init__(self, service: Service, **limits: Any) -> None:
        self.queue = UploadQueue(service, UploadLimits(**limits))
        self.said: list[str] = []
        self._more = asyncio.Event()

    async def until(self, number: int) -> None:
        """Wait until so many uploads have had their word."""
        async with asyncio.timeout(20):
            while len(self.said) < number:
                self._more.clear()
                await self._more.wait()

    def put(
        self, name: str, size: int = 1, kind: ArtifactType = "tool_output", data: Callable[[], bytes] | None = None
    ) -> None:
        def say(word: str) -> None:
            self.said.append(word)
            self._more.set()

        def missed(message: str, again: bool) -> None:
            say(f"{message}; again: {again}")

        content = data or (lambda: b"x" * size)
        self.queue.put(Upload(kind, name, "text/plain", size, content, say, missed, "t", "p"))


async def test_uploads_go_in_order_and_nobody_waits() -> None:
    service = Service()
    line = Line(service)
    for name in ("a", "b", "c"):
        line.put(name)
    assert service.asked == []
    await settled()
    assert service.asked == ["a", "b", "c"]
    assert line.said == ["uri of a", "uri of b", "uri of c"]
    line.put("d")  # after a pause, too
    await settled()
    assert line.said[3:] == ["uri of d"]


async def test_what_is_large_is_read_beside_the_event_loop() -> None:
    service = Service()
    line = Line(service)
    line.put("a", INLINE_BYTES + 1)
    await line.queue.close(20, resumable=False)
    assert line.said == ["uri of a"]
    assert len(service.data[0]) == INLINE_BYTES + 1


async def test_what_finds_no_room_is_given_up_and_the_rest_goes_on() -> None:
    service = Service()
    service.there.clear()
    line = Line(service, max_pending_bytes=10)
    for name, size in (("a", 6), ("b", 4), ("c", 1)):
        line.put(name, size)
    (refused,) = line.said
    assert refused == (
        "artifact c was not uploaded: 10 bytes wait already, and 1 more would exceed "
        "services.upload_max_pending_bytes (10); again: False"
    )
    service.there.set()
    await settled()
    line.put("d", 10)
    await settled()
    assert line.said[1:] == ["uri of a", "uri of b", "uri of d"]


async def test_what_comes_too_late_makes_room_for_the_next() -> None:
    service = Service()
    service.there.clear()
    line = Line(service, max_behind_s=0.05)
    line.put("a", data=bytes)
    line.put("b", data=bytes)
    await line.until(2)
    assert [said.partition(" within")[0] for said in line.said] == [
        "artifact a was not stored",
        "artifact b was not stored",
    ]
    assert "services.upload_max_behind_s (0.05 s): the service did not answer" in line.said[0]
    service.there.set()
    line.put("c")
    await line.queue.close(20, resumable=False)
    assert line.said[2:] == ["uri of c"]


async def test_a_service_that_was_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "_RETRY_S", (0.0, 0.0))
    service = Service(*(UploadFailed("away", passing=True) for _ in range(3)))
    line = Line(service)
    line.put("a")
    line.put("b")
    await line.until(2)
    assert line.said == ["uri of a", "uri of b"]
    assert service.asked == ["a"] * 4 + ["b"]


async def test_a_refusal_is_final() -> None:
    service = Service(UploadFailed("too large for it"))
    line = Line(service)
    line.put("a")
    line.put("b")
    await settled()
    assert line.said == ["too large for it; again: False", "uri of b"]
    assert service.asked == ["a", "b"]


async def test_content_that_is_gone_is_told() -> None:
    def gone() -> bytes:
        raise UploadFailed("damaged")

    service = Service()
    line = Line(service)
    line.put("a", data=gone)
    await settled()
    assert (line.said, service.asked) == (["damaged; again: False"], [])


async def test_the_end_gives_each_one_more_try_and_no_longer() -> None:
    service = Service(*(UploadFailed("away", passing=True) for _ in range(3)))
    line = Line(service)
    for name in ("a", "b", "c"):
        line.put(name)
    await settled()
    assert service.asked == ["a"]
    await line.queue.close(20, resumable=False)
    assert service.asked == ["a", "a", "b", "c"]
    assert line.said == ["away; again: False", "away; again: False", "uri of c"]


@pytest.mark.parametrize("resumable", [True, False])
async def test_the_end_does_not_wait_for_a_service_that_hangs(*, resumable: bool) -> None:
    service = Service()
    service.there.clear()
    line = Line(service)
    line.put("a")
    line.put("b")
    await settled()
    await line.queue.close(0, resumable=resumable)
    assert line.queue.is_closed
    assert len(asyncio.all_tasks()) == 1
    assert [said.endswith(f"again: {resumable}") for said in line.said] == [True, True]
    line.put("c")
    assert line.said[2] == "artifact c was not stored before the session ended; again: False"
    await line.queue.close(0, resumable=resumable)
    assert len(line.said) == 3


async def test_of_several_histories_that_wait_the_last_one_goes() -> None:
    service = Service()
    service.there.clear()
    line = Line(service, max_pending_bytes=3)
    line.put("first", kind="session_history")
    await settled()
    line.put("second", kind="session_history")
    line.put("a")
    line.put("third", kind="session_history")
    service.there.set()
    await settled()
    assert line.said == ["uri of first", "uri of a", "uri of third"]
