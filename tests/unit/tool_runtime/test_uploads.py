"""UploadArtifact: a file or a text that is kept for the user, beside the tools of every family."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import (
    MAX_ARTIFACT_BYTES,
    Artifact,
    Leftovers,
    ToolConstraints,
    ToolRequest,
    ToolResult,
    ToolSpec,
)
from agent_host.errors import ErrorCode
from agent_host.ids import MACHINE
from agent_host.judging import Environment
from agent_host.judging.facts import UnusableArguments, gather
from policy.facts import NamedToolFacts, PathFacts
from tool_runtime.families import DESKTOP
from tool_runtime.families.desktop import UPLOAD_ARTIFACT
from tool_runtime.processes.command import LocalCommand
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import CallContext, RuntimeSettings, Tool, ToolOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


class Tools:
    """The host's tools on a folder."""

    def __init__(self, tools: LocalToolRouter) -> None:
        self.tools = tools

    async def upload(self, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        request = ToolRequest(
            UPLOAD_ARTIFACT.name, arguments, "s", "t", "p", "c", "Workspace.Upload", constraints or ToolConstraints()
        )
        return await self.tools.execute(request)

    async def left(self, **arguments: Any) -> Artifact:
        """The artifact of a call that succeeded."""
        result = await self.upload(**arguments)
        assert (result.status, result.artifact_uris) == ("succeeded", ())
        (artifact,) = result.artifacts
        assert artifact.artifact_type == "tool_output"
        assert result.output_text == f"Stored {artifact.name} ({len(artifact.data)} bytes, {artifact.content_type})"
        return artifact

    async def refused(self, constraints: ToolConstraints | None = None, **arguments: Any) -> str:
        """The code of a call that left nothing."""
        result = await self.upload(constraints, **arguments)
        assert (result.status, result.artifacts) == ("failed", ())
        assert result.error is not None
        assert result.error.message.isprintable()
        return result.error.code


@asynccontextmanager
async def hosted(folder: Path, **settings: Any) -> AsyncIterator[Tools]:
    tools = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(folder), **settings), LocalCommand)
    yield Tools(tools)
    await tools.aclose()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Tools]:
    async with hosted(tmp_path) as tools:
        yield tools


async def test_a_file_goes_as_it_is(here: Tools, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "report.bin").write_bytes(data)
    artifact = await here.left(path=f"{tmp_path}/report.bin")
    assert artifact == Artifact("tool_output", "report.bin", "application/octet-stream", data)


class Impostor:
    """A provider with a tool of the same name."""

    spec = UPLOAD_ARTIFACT._replace(description="another")

    async def tools(self) -> Sequence[ToolSpec]:
        return (self.spec,)

    def get(self, name: str) -> Tool | None:
        async def run(_call: CallContext) -> ToolOutput:
            return ToolOutput("another")

        return Tool(self.spec, run, DESKTOP) if name == self.spec.name else None

    async def end_leftovers(self, _request: ToolRequest) -> Leftovers:
        return Leftovers()

    async def aclose(self) -> None:
        """Nothing is held."""


async def test_no_tool_of_another_provider_takes_its_place(tmp_path: Path) -> None:
    tools = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(tmp_path)), LocalCommand, [Impostor()])
    assert [spec for spec in await tools.tools() if spec.name == UPLOAD_ARTIFACT.name] == [UPLOAD_ARTIFACT]
    assert (await Tools(tools).left(content="x")).data == b"x"
    await tools.aclose()


async def test_the_slim_family_does_without_it(tmp_path: Path) -> None:
    async with hosted(tmp_path, families=("slim",)) as here:
        assert UPLOAD_ARTIFACT.name not in {spec.name for spec in await here.tools.tools()}
        assert await here.refused(content="x") == ErrorCode.TOOL_NOT_FOUND


async def test_text_goes_under_the_name_and_type_given(here: Tools) -> None:
    artifact = await here.left(content="a,ä\n", name="table.csv", contentType="text/csv; charset=utf-8")
    assert artifact == Artifact("tool_output", "table.csv", "text/csv; charset=utf-8", "a,ä\n".encode())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "text/plain"),
        ("ä".encode(), "text/plain"),
        (b"\0", "application/octet-stream"),
        (b"\xe4", "application/octet-stream"),
    ],
)
async def test_the_type_is_guessed_from_the_content(here: Tools, tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "f").write_bytes(data)
    assert (await here.left(path=f"{tmp_path}/f")).content_type == kind


def test_running_it_again_stores_nothing_new() -> None:
    """A resume runs an unfinished call again; the service knows the artifact by its key."""
    assert not UPLOAD_ARTIFACT.side_effects


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"path": "/a", "content": "b"}, {"content": 5}, {"path": ["/a"]}, {"content": "x", "other": "y"},
        {"content": "x", "name": "a/b"}, {"content": "x", "name": ".."}, {"content": "x", "name": "a\nb"},
        {"content": "x", "name": "ä" * 128}, {"content": "x", "contentType": "text"}, {"content": "x\ud800"},
        {"content": "x", "contentType": "text/plain\r\nx: y"}, {"path": "relative"}, {"content": "x", "name": "\ud800"},
    ],
)  # fmt: skip
async def test_arguments_that_do_not_fit(here: Tools, arguments: dict[str, Any]) -> None:
    assert await here.refused(**arguments) == ErrorCode.INVALID_REQUEST


async def test_a_file_that_cannot_be_read_is_told_as_for_a_read(here: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("12345")
    assert await here.refused(path=f"{tmp_path}/none") == ErrorCode.FILE_NOT_FOUND
    assert await here.refused(path=str(tmp_path)) == ErrorCode.TOOL_EXECUTION_FAILED
    small, elsewhere = ToolConstraints(max_file_size_bytes=4), ToolConstraints(allowed_paths=("/nowhere",))
    assert await here.refused(small, path=f"{tmp_path}/f") == ErrorCode.FILE_TOO_LARGE
    assert await here.refused(small, content="12345") == ErrorCode.FILE_TOO_LARGE
    assert await here.refused(elsewhere, path=f"{tmp_path}/f") == ErrorCode.PERMISSION_DENIED


async def test_a_link_out_of_the_scope_is_not_followed(here: Tools, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    scope = ToolConstraints(allowed_paths=(str((tmp_path / "in").resolve()),))
    assert await here.refused(scope, path=f"{tmp_path}/in/link") == ErrorCode.PERMISSION_DENIED


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_a_pipe_does_not_hold_it_up(here: Tools, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert await here.refused(path=f"{tmp_path}/pipe") == ErrorCode.TOOL_EXECUTION_FAILED


async def test_one_byte_too_many(here: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", MAX_ARTIFACT_BYTES + 1)
    assert await here.refused(path=f"{tmp_path}/f") == ErrorCode.FILE_TOO_LARGE


async def test_the_runtime_s_own_limit_counts_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("12345")
    async with hosted(tmp_path, max_file_size_bytes=4) as tools:
        assert await tools.refused(path=f"{tmp_path}/f") == ErrorCode.FILE_TOO_LARGE


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a\nb\udcff", "a_b_"), ("x" * 255, "x" * 255), ("ä" * 127, "ä" * 127), ("  ", "  ")],
)
async def test_a_file_of_any_name_can_go(here: Tools, tmp_path: Path, name: str, shown: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert (await here.left(path=f"{tmp_path}/{name}")).name == shown


# --- what policy is told ----------------------------------------------------------------------------------------------


def test_a_file_is_judged_by_its_path_and_text_by_the_tool_s_name(tmp_path: Path) -> None:
    where = Environment(os.path.realpath(tmp_path), None, "posix", "bash")
    row = UPLOAD_ARTIFACT
    (tmp_path / "f").write_text("12345")
    facts = gather(row, {"path": f"{where.workspace}/f", "name": "x"}, where)
    assert isinstance(facts, PathFacts)
    assert (facts.real_path, facts.size_bytes, facts.tool_name) == (f"{where.workspace}/f", 5, UPLOAD_ARTIFACT.name)
    assert gather(row, {"content": "x"}, where) == NamedToolFacts(UPLOAD_ARTIFACT.name)
    for arguments in ({}, {"path": 5}, {"path": "/f", "content": "x"}):
        with pytest.raises(UnusableArguments):
            gather(row, arguments, where)


def test_the_definition_is_a_closed_schema() -> None:
    schema = UPLOAD_ARTIFACT.input_schema
    assert schema["additionalProperties"] is False
    assert {"path", "content", "name", "contentType"} == schema["properties"].keys()
