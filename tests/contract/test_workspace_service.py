"""What the host may expect of every WorkspaceService (AH 7.5), and of the one over HTTP besides."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact
from agent_host.errors import ErrorCode, ServiceRejected
from agent_host.ids import MACHINE
from agent_host.services.workspace import (
    EmbeddedWorkspaceService,
    HttpWorkspaceService,
    UploadFailed,
    WorkspaceService,
)
from agent_host.testing.services import MockServices
from state.blobs import BlobFolder
from state.disk import LOCAL_DISK
from tests.support.raw_http import answering
from tests.support.rows import each_row
from tests.unit.services.helpers import client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

OUTPUT = Artifact("tool_output", "out.txt", "text/plain", b"some output")


class Home:
    """A service and what it holds: contents by URI, and how many of them take room."""

    def __init__(self, service: WorkspaceService, contents: Callable[[], dict[str, bytes]], room: Callable[[], int]):
        self.service = service
        self.contents = contents
        self.room = room

    async def upload(self, artifact: Artifact, task_id: str | None = "t", step_id: str | None = "p") -> str:
        return await self.service.upload(artifact, task_id=task_id, step_id=step_id)


@pytest.fixture(params=["embedded", "http"])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Home]:
    if request.param == "http":
        async with MockServices() as services, client(services.url) as made:

            def stored() -> dict[str, bytes]:
                return {one.artifact_uri: one.data for one in (*services.artifacts, *services.histories.values())}

            service = HttpWorkspaceService(made, "ws_1", "s")
            yield Home(service, stored, lambda: sum(map(len, stored().values())))
        return
    folder, blobs = tmp_path / "artifacts", BlobFolder(LOCAL_DISK, str(tmp_path / "blobs"), 10**9)

    def files() -> dict[str, bytes]:
        found = [path for path in folder.iterdir() if path.name != "index.jsonl"]
        return {f"workspaces/ws_1/artifacts/{path.name}": path.read_bytes() for path in found}

    def bytes_on_disk() -> int:
        return sum({path.stat().st_ino: path.stat().st_size for path in folder.iterdir() if path.suffix == ""}.values())

    yield Home(EmbeddedWorkspaceService(str(folder), blobs, workspace_id="ws_1", outside=MACHINE), files, bytes_on_disk)


@pytest.mark.parametrize("size", [0, 11, 3_000_000])
async def test_an_artifact_is_stored_under_its_uri(home: Home, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    uri = await home.upload(OUTPUT._replace(content=data[:size]))
    assert uri.startswith("workspaces/ws_1/artifacts/")
    assert home.contents() == {uri: data[:size]}


async def test_different_artifacts_have_different_uris(home: Home) -> None:
    uris = {
        await home.upload(OUTPUT),
        await home.upload(OUTPUT._replace(content=b"other")),
        await home.upload(OUTPUT._replace(name="other.txt")),
        await home.upload(OUTPUT, step_id="q"),
        await home.upload(OUTPUT._replace(artifact_type="file_diff")),
    }
    assert len(uris) == 5
    assert home.contents().keys() == uris


async def test_the_same_artifact_of_the_same_step_takes_no_second_place(home: Home) -> None:
    uris = [await home.upload(OUTPUT) for _ in range(3)]
    assert home.room() == len(OUTPUT.data)
    assert all(home.contents()[uri] == OUTPUT.data for uri in uris)


async def test_a_session_has_one_history(home: Home) -> None:
    history = Artifact("session_history", "session_history.json", "application/json", b"[1]")
    uris = [await home.upload(history, "t1", None), await home.upload(history._replace(content=b"[1,2]"), "t2", None)]
    assert uris[0] == uris[1]
    assert home.contents() == {uris[0]: b"[1,2]"}


async def test_what_is_over_the_limit_is_refused_whole(home: Home) -> None:
    await home.upload(OUTPUT)
    with pytest.raises(UploadFailed, match=rf"{MAX_ARTIFACT_BYTES + 1} bytes, and the limit is {MAX_ARTIFACT_BYTES}"):
        await home.upload(OUTPUT._replace(content=bytes(MAX_ARTIFACT_BYTES + 1)))
    assert list(home.contents().values()) == [OUTPUT.data]


async def test_a_name_may_be_anything(home: Home) -> None:
    uri = await home.upload(OUTPUT._replace(name="../\ud800\n\0ä"))
    assert home.contents()[uri] == OUTPUT.data


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def test_the_wire_is_the_interface_s() -> None:
    async with MockServices() as services, client(services.url) as made:
        await HttpWorkspaceService(made, "ws_1", "s").upload(OUTPUT, task_id="t", step_id=None)
    (request,) = services.requests
    assert request.path == "/workspaces/ws_1/artifacts"
    assert request.body == {
        "sessionId": "s",
        "taskId": "t",
        "artifactType": "tool_output",
        "artifactName": "out.txt",
        "contentType": "text/plain",
        "contentBase64": base64.b64encode(OUTPUT.data).decode(),
    }


@pytest.mark.slow
async def test_the_largest_artifact_arrives_whole() -> None:
    data = b"0123456789abcdef" * (MAX_ARTIFACT_BYTES // 16)
    async with MockServices() as services, client(services.url, timeout_s=60) as made:
        await HttpWorkspaceService(made, "ws_1", "s").upload(OUTPUT._replace(content=data), task_id="t", step_id="p")
    assert services.artifacts[0].data == data


async def test_keys_are_the_same_in_another_process_and_differ_otherwise() -> None:
    history = Artifact("session_history", "h", "application/json", b"[]")
    async with MockServices() as services, client(services.url) as made:
        for session_id in ("s", "s", "s2"):
            service = HttpWorkspaceService(made, "ws_1", session_id)
            for artifact in (OUTPUT, OUTPUT._replace(name="x"), OUTPUT._replace(content=b"x"), history):
                await service.upload(artifact, task_id="t", step_id="p")
            await service.upload(OUTPUT, task_id="t", step_id="p2")
            await service.upload(history, task_id="t2", step_id=None)
    keys = [one.headers["idempotency-key"] for one in services.requests]
    assert keys[:6] == keys[6:12]
    assert keys[3] == keys[5]
    assert len(set(keys)) == 10


async def test_an_upload_is_tried_again_and_stored_once() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/workspaces", 503, times=2)
        await HttpWorkspaceService(made, "ws_1", "s").upload(OUTPUT, task_id="t", step_id="p")
    assert len(services.artifacts) == 1


@pytest.mark.parametrize("status", [400, 403, 503])
async def test_whatever_goes_wrong_is_one_error(status: int) -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/workspaces", status, times=9)
        with pytest.raises(UploadFailed, match=f"out.txt failed: .*HTTP {status}") as caught:
            await HttpWorkspaceService(made, "ws_1", "s").upload(OUTPUT, task_id="t", step_id="p")
    assert caught.value.code == ErrorCode.WORKSPACE_UPLOAD_FAILED


@each_row(
    "answer",
    [
        None, [], {}, {"artifactUri": 5}, {"artifactUri": ""}, {"artifactUri": "a\nb"}, {"artifactUri": "\x1b[2J"},
        {"artifactUri": "x" * 2049}, {"artifactUri": "ä" * 1025}, {"artifactUri": ["x"]},
    ],
)  # fmt: skip
async def test_a_uri_that_cannot_be_shown_is_none(answer: Any) -> None:
    async with answering(201, orjson.dumps(answer)) as server, client(server.url) as made:
        with pytest.raises(UploadFailed):
            await HttpWorkspaceService(made, "ws_1", "s").upload(OUTPUT, task_id="t", step_id="p")


@pytest.mark.parametrize("workspace_id", ["", "a/b", "..", "a?x"])
async def test_a_workspace_that_changes_the_path_is_refused(workspace_id: str) -> None:
    async with client("http://127.0.0.1:1") as made:
        with pytest.raises(ServiceRejected):
            HttpWorkspaceService(made, workspace_id, "s")
