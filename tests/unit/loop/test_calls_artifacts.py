"""What calls leave besides their result: kept at once, uploaded later, and told (AH 7.5, interface section 2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.contracts import Artifact
from agent_host.events import EventType
from agent_host.loop.results import take_up_uploads
from tests.support.loop import Loop
from tests.support.loop_parts import Artifacts, Home, Tools, call, calls, says, settled, shell, succeeded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.services.workspace import ArtifactOnDisk


def leaves(*names: str) -> Tools:
    """Tools whose every call leaves artifacts of these names."""
    return Tools(lambda request: succeeded(request, "all", tuple(
        Artifact("tool_output", name, "text/plain", b"token s3cret-value") for name in names
    )))  # fmt: skip


class Never(Artifacts):
    """A service that never answers."""

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        await asyncio.Event().wait()
        return ""


async def test_artifacts_are_kept_without_secrets_and_their_references_told(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make", "c1")), says(), tools=leaves("a", "b"), secrets=("s3cret-value",))
    await loop.run()
    refs = ["artifacts/art_0", "artifacts/art_1"]
    assert loop.texts() == [f"all\n[storage_ref: {refs[0]} (a), {refs[1]} (b)]"]
    assert loop.home.held == dict.fromkeys(refs, b"token [redacted]")
    (told,) = loop.told(EventType.TOOL_COMPLETED)
    assert told["storageRefs"] == refs
    assert "artifactUris" not in told
    await settled()
    assert [(one.name, one.data) for one in loop.artifacts.stored] == [(name, b"token [redacted]") for name in "ab"]
    assert [task for task, _ in loop.artifacts.of] == ["t", "t"]
    uris = [f"workspaces/w/artifacts/{name}" for name in "ab"]
    assert loop.told(EventType.ARTIFACT_UPLOADED) == [
        {"artifactName": name, "artifactUri": uri, "toolCallId": "c1", "storageRef": ref}
        for name, uri, ref in zip("ab", uris, refs, strict=True)
    ]
    assert (loop.kept().uploads, loop.kept().artifact_uris) == ({}, {"c1": uris})


async def test_the_model_does_not_wait_for_the_service(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says("Done."), tools=leaves("a"), artifacts=Never())
    assert (await loop.run()).text == "Done."
    assert loop.texts() == ["all\n[storage_ref: artifacts/art_0]"]
    assert [row["name"] for row in loop.kept().uploads.values()] == ["a"]
    await loop.ctx.artifacts.queue.close(0, resumable=True)
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert "a resume of the session uploads it" in failed["message"]
    assert list(loop.kept().uploads) == ["art_0"]


async def test_the_next_process_uploads_what_the_last_one_had_not(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make", "c1")), says(), tools=leaves("a"), artifacts=Never())
    await loop.run()
    await loop.ctx.artifacts.queue.close(0, resumable=True)
    again = loop.again(artifacts=Artifacts())
    take_up_uploads(again.ctx)
    await settled()
    assert [one.name for one in again.artifacts.stored] == ["a"]
    steps = [event.step_id for event in loop.watcher.events if event.event_type is EventType.TOOL_COMPLETED]
    assert again.artifacts.of == [("t", steps[0])]
    assert (again.kept().uploads, list(again.kept().artifact_uris)) == ({}, ["c1"])


async def test_without_another_place_what_is_kept_needs_no_upload(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make", "c1")), says(), tools=leaves("a"), artifacts=Never())
    await loop.run()
    await loop.ctx.artifacts.queue.close(0, resumable=True)
    again = loop.again(artifacts=Never())
    again.ctx.artifacts = again.ctx.artifacts._replace(elsewhere=False)
    take_up_uploads(again.ctx)
    assert again.kept().artifact_uris == {"c1": ["workspaces/w/artifacts/art_0"]}


async def test_an_artifact_that_is_not_taken_is_told_and_on_record(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make", "c1")), says(), tools=leaves("a", "b"), artifacts=Artifacts("a"))
    await loop.run()
    await settled()
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert failed == {
        "artifactName": "a", "message": "no room for a", "toolCallId": "c1", "storageRef": "artifacts/art_0",
    }  # fmt: skip
    task = loop.kept().task
    assert task is not None
    assert [(row["name"], row["why"]) for row in task.not_uploaded] == [("a", "no room for a")]
    assert [one.name for one in loop.artifacts.stored] == ["b"]


async def test_what_this_disk_refuses_is_uploaded_all_the_same(tmp_path: Path) -> None:
    home = Home()
    home.full = True
    loop = Loop(tmp_path, calls(shell("make")), says(), tools=leaves("a"), home=home)
    await loop.run()
    await settled()
    assert loop.texts() == ["all"]
    assert [one.name for one in loop.artifacts.stored] == ["a"]


async def test_what_only_a_dead_process_had_is_told(tmp_path: Path) -> None:
    home = Home()
    home.full = True
    loop = Loop(tmp_path, calls(shell("make")), says(), tools=leaves("a"), home=home, artifacts=Never())
    await loop.run()
    await loop.ctx.artifacts.queue.close(0, resumable=True)
    again = loop.again(artifacts=Artifacts())
    take_up_uploads(again.ctx)
    await settled()
    (failed,) = again.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert "the process that had it is gone" in failed["message"]
    assert again.kept().uploads == {}


async def test_an_upload_of_the_model_s_that_is_kept_nowhere_fails(tmp_path: Path) -> None:
    home = Home()
    home.full = True
    wanted = call("UploadArtifact", content="x")
    loop = Loop(tmp_path, calls(wanted), says(), tools=leaves("a"), home=home)
    loop.ctx.artifacts = loop.ctx.artifacts._replace(elsewhere=False)
    await loop.run()
    assert loop.answers()[0].code == "WORKSPACE_UPLOAD_FAILED"
    assert loop.told(EventType.ARTIFACT_UPLOAD_FAILED)[0]["message"] == "no room for a"


async def test_a_call_is_done_although_keeping_what_it_left_was_ended_by_force(tmp_path: Path) -> None:
    class Slow(Home):
        async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> None:  # type: ignore[override]
            loop.ctx.cancellation.request(resumable=False)
            loop.ctx.cancellation.force(grace_s=0)
            await asyncio.Event().wait()

    loop = Loop(tmp_path, calls(shell("make", "c1")), tools=leaves("a"), home=Slow())
    await loop.run()
    assert loop.finished() == [("RunCommand", "succeeded", None)]
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert failed == {
        "artifactName": "a", "message": "given up: the task was ended by force", "toolCallId": "c1",
    }  # fmt: skip


class InFile:
    """Content that lies in a file, which may be one that cannot be read."""

    def __init__(self, size: int, *, broken: bool = False) -> None:
        self.size = size
        self.broken = broken
        self.closed = False

    def pieces(self) -> Iterator[bytes]:
        if self.broken:
            raise OSError(5, "Input/output error")
        yield b"x" * self.size

    def close(self) -> None:
        self.closed = True


def leaves_files(*files: InFile) -> Tools:
    """Tools whose calls leave one of these each, in order."""
    waiting = list(files)

    def run(request: ToolRequest) -> ToolResult:
        return succeeded(request, "all", (Artifact("tool_output", "out", "text/plain", waiting.pop(0)),))

    return Tools(run)


async def test_one_large_artifact_at_a_time_is_in_memory(tmp_path: Path) -> None:
    class Watched(Home):
        at_once = most = 0

        async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await settled()
            self.at_once -= 1
            return await super().keep(artifact, task_id=task_id, step_id=step_id)

    large = [InFile(2 * 1024 * 1024) for _ in range(4)]
    home = Watched()
    loop = Loop(tmp_path, calls(*map(shell, "abcd")), says(), tools=leaves_files(*large), home=home)
    await loop.run()
    assert (home.most, len(home.held)) == (1, 4)
    assert all(one.closed for one in large)


async def test_what_cannot_be_read_any_more_is_told(tmp_path: Path) -> None:
    left = InFile(10, broken=True)
    loop = Loop(tmp_path, calls(shell("make")), says(), tools=leaves_files(left))
    await loop.run()
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert failed["message"] == "the call's artifacts cannot be read: Input/output error"
    assert (loop.texts(), left.closed) == (["all"], True)


async def test_what_was_not_kept_by_force_is_let_go(tmp_path: Path) -> None:
    class Slow(Home):
        async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
            loop.ctx.cancellation.request(resumable=False)
            loop.ctx.cancellation.force(grace_s=0)
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    left = InFile(10)
    loop = Loop(tmp_path, calls(shell("make")), tools=leaves_files(left), home=Slow())
    await loop.run()
    assert left.closed
    (failed,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert failed["message"] == "given up: the task was ended by force"
