"""The embedded Workspace Service: artifacts as files, equal ones once, below the session's limit."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import Artifact, Maker
from agent_host.ids import MACHINE
from agent_host.services.workspace import EmbeddedWorkspaceService, UploadFailed
from state.blobs import BlobFolder, sha256_hex
from state.disk import LOCAL_DISK

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    Kind = Literal["tool_output", "session_history"]


class Workspace:
    def __init__(self, folder: Path, limit_bytes: int = 5_000_000) -> None:
        self.artifacts = folder / "artifacts"
        self.blobs = BlobFolder(LOCAL_DISK, str(folder / "blobs"), limit_bytes)
        self.service = EmbeddedWorkspaceService(str(self.artifacts), self.blobs, workspace_id="ws_1", outside=MACHINE)

    def upload(self, data: bytes, kind: Kind = "tool_output") -> str:
        return asyncio.run(self.upload_async(data, kind))

    async def upload_async(self, data: bytes, kind: Kind = "tool_output") -> str:
        return await self.service.upload(Artifact(kind, "out.txt", "text/plain", data), task_id="t", step_id="s")

    def content(self, uri: str) -> bytes:
        return (self.artifacts / os.path.basename(uri)).read_bytes()

    def index(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in (self.artifacts / "index.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("size", [0, 10, 2_000_000])
def test_an_artifact_is_a_file_under_its_uri(tmp_path: Path, size: int) -> None:
    workspace, data = Workspace(tmp_path), b"x" * size
    uri = workspace.upload(data)
    assert uri.startswith("workspaces/ws_1/artifacts/art_")
    assert workspace.content(uri) == data
    (entry,) = workspace.index()
    assert (entry["artifactUri"], entry["sizeBytes"], entry["sha256"]) == (uri, size, sha256_hex(data))


def test_equal_contents_are_one_file(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first, second = workspace.upload(b"same"), workspace.upload(b"same")
    assert first != second
    assert workspace.content(first) == workspace.content(second) == b"same"
    inodes = {os.stat(workspace.artifacts / os.path.basename(uri)).st_ino for uri in (first, second)}
    assert len(inodes) == 1
    assert workspace.blobs.total_bytes == 4


def test_artifacts_of_one_turn_may_be_equal_and_large(tmp_path: Path) -> None:
    workspace, data = Workspace(tmp_path), b"y" * 1_500_000

    async def at_once() -> list[str]:
        return await asyncio.gather(*(workspace.upload_async(data) for _ in range(6)))

    uris = asyncio.run(at_once())
    assert len(set(uris)) == 6
    assert all(workspace.content(uri) == data for uri in uris)
    assert workspace.blobs.total_bytes == len(data)


def test_the_limit_is_told_and_nothing_is_half_there(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, limit_bytes=100)
    workspace.upload(b"x" * 80)
    with pytest.raises(UploadFailed, match="limit of 100 bytes"):
        workspace.upload(b"y" * 21)
    workspace.upload(b"x" * 80)
    assert len(workspace.index()) == 2
    assert len(list(workspace.artifacts.iterdir())) == 3


def test_the_history_is_replaced_and_counts_for_itself(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, limit_bytes=10)
    for data in (b"[1]" * 10, b"[2]" * 20):
        assert workspace.upload(data, "session_history") == "workspaces/ws_1/artifacts/session_history"
        assert (workspace.artifacts / "session_history").read_bytes() == data


def test_artifacts_outlive_the_sweep(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    uri = workspace.upload(b"kept")
    workspace.blobs.put(b"nobody's")
    workspace.blobs.sweep(frozenset())
    assert workspace.content(uri) == b"kept"
    assert os.listdir(tmp_path / "blobs") == [sha256_hex(b"kept")]


def test_a_disk_that_knows_no_second_names_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    workspace = Workspace(tmp_path)
    assert workspace.content(workspace.upload(b"copied")) == b"copied"


async def test_what_is_kept_is_found_under_its_reference(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    artifact = Artifact("tool_output", "out.txt", "text/plain", b"output")
    kept = await workspace.service.keep(artifact, task_id="t", step_id="s")
    row = {"ref": kept.ref, "sha256": kept.sha256}
    assert kept.ref == f"artifacts/{kept.artifact_id}"
    assert (tmp_path / kept.ref).read_bytes() == b"output"
    with contextlib.closing(workspace.service.read_kept(row)) as found:
        assert b"".join(found.pieces()) == b"output"
    assert workspace.service.uri_of(kept.ref) == kept.uri
    (tmp_path / kept.ref).write_bytes(b"other")
    with pytest.raises(UploadFailed, match="was damaged"):
        workspace.service.read_kept(row)
    (tmp_path / kept.ref).unlink()
    with pytest.raises(UploadFailed, match="cannot be read"):
        workspace.service.read_kept(row)


async def test_only_what_a_call_left_is_read_back_and_only_as_it_was(tmp_path: Path) -> None:
    workspace, maker = Workspace(tmp_path), Maker("HttpRequest", ("Network.Http", "File.Read"))
    artifact = Artifact("tool_output", "out.txt", "text/plain", b"output", maker)
    kept = await workspace.service.keep(artifact, task_id="t", step_id="s")
    history = workspace.service.keep_history(artifact._replace(artifact_type="session_history"), task_id="t")
    nobodys = await workspace.service.keep(artifact._replace(maker=None), task_id="t", step_id="s")
    assert workspace.service.maker_of(kept.ref) == maker
    for ref in (history.ref, nobodys.ref, "artifacts/index.jsonl", f"artifacts/../{kept.ref}", kept.artifact_id):
        assert (workspace.service.maker_of(ref), workspace.service.open(ref)) == (None, None)
    for _ in range(2):
        with workspace.service.open(kept.ref) or io.BytesIO() as file:
            assert file.read() == b"output"
    (tmp_path / kept.ref).write_bytes(b"damage")
    with pytest.raises(OSError, match="was damaged on disk"):
        workspace.service.open(kept.ref)


async def test_the_hash_of_what_is_read_back_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path)
    artifact = Artifact("tool_output", "out.txt", "text/plain", b"output", Maker("RunCommand", ("Shell.Exec",)))
    kept = await workspace.service.keep(artifact, task_id="t", step_id="s")
    real, compared = hashlib.file_digest, []

    def digest(file: Any, name: str) -> Any:
        compared.append(name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    for _ in range(3):
        workspace.service.read_kept({"ref": kept.ref, "sha256": kept.sha256}).close()
        file = workspace.service.open(kept.ref)
        assert file is not None
        file.close()
    assert compared == ["sha256"]
