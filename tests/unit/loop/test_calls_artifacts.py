"""What calls leave besides their result: artifacts, which are stored as well as that goes (AH 7.5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.contracts import Artifact
from agent_host.events.kinds import EventType
from tests.support.loop import Loop
from tests.support.loop_parts import Artifacts, Tools, calls, says, shell, succeeded

if TYPE_CHECKING:
    from pathlib import Path


def leaves(*names: str) -> Tools:
    """Tools whose every call leaves artifacts of these names."""
    return Tools(lambda request: succeeded(request, "all", tuple(
        Artifact("tool_output", name, "text/plain", b"token s3cret-value") for name in names
    )))  # fmt: skip


async def test_artifacts_are_stored_without_secrets_and_their_addresses_told(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says(), tools=leaves("a", "b"), secrets=("s3cret-value",))
    await loop.run()
    assert [one.name for one in loop.artifacts.stored] == ["a", "b"]
    assert {one.data for one in loop.artifacts.stored} == {b"token [redacted]"}
    (told,) = loop.told(EventType.TOOL_COMPLETED)
    assert told["artifactUris"] == ["workspaces/w/artifacts/a", "workspaces/w/artifacts/b"]


async def test_an_artifact_that_is_not_taken_costs_its_address_only(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says(), tools=leaves("a", "b"), artifacts=Artifacts("a"))
    await loop.run()
    assert loop.told(EventType.ARTIFACT_UPLOAD_FAILED) == [{"artifactName": "a", "message": "no room for a"}]
    (told,) = loop.told(EventType.TOOL_COMPLETED)
    assert (told["status"], told["artifactUris"]) == ("succeeded", ["workspaces/w/artifacts/b"])
    assert [answer.text for answer in loop.answers()] == ["all"]


async def test_a_call_is_done_although_its_upload_was_ended_by_force(tmp_path: Path) -> None:
    class Slow(Artifacts):
        async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
            loop.ctx.cancellation.request(resumable=False)
            loop.ctx.cancellation.force(grace_s=0)
            await asyncio.Event().wait()
            return ""

    loop = Loop(tmp_path, calls(shell("make")), tools=leaves("a"), artifacts=Slow())
    await loop.run()
    assert loop.finished() == [("RunCommand", "succeeded", None)]
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert failed == {"artifactName": "a", "message": "given up: the task was ended by force"}
