"""MCP servers of another make, over TLS and as programs: what they list, what they answer, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from agent_host.contracts import SourceNotice, ToolRequest, ToolResult
from agent_host.ids import MACHINE
from state.tool_lists import ToolLists
from tests.support.node_packages import FOLDER, NODE
from tests.support.process import eventually
from tests.support.tls import server_context, tls_in_front_of
from tool_runtime.processes.command import LocalCommand
from tool_runtime.remote import RemoteTools, SourceTerms
from tool_runtime.remote.mcp import Http, ServerConfig, Stdio
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.peer]
_ORG = FOLDER / "@modelcontextprotocol"


def node_server(name: str) -> str:
    """The program of a server of npm's; skips where it is not installed."""
    program = _ORG / name / "dist" / "index.js"
    if not program.exists():
        pytest.skip(f"@modelcontextprotocol/{name} is not installed: python -m tests.support.node_packages")
    return os.fspath(program)


@contextlib.asynccontextmanager
async def session(folder: Path, place: Http | Stdio) -> AsyncIterator[Session]:
    one = Session(folder, place)
    try:
        one.names = await one.fix()
        yield one
    finally:
        await one.router.aclose()


class Session:
    """A router over one server, with the list of a task that begins."""

    def __init__(self, folder: Path, place: Http | Stdio) -> None:
        settings = RuntimeSettings(
            outside=MACHINE, workspace=os.fspath(folder), on_output=lambda *said: self.chunks.append(said[2])
        )
        self.chunks: list[bytes] = []
        self.told: list[SourceNotice] = []
        self.names: dict[str, Any] = {}
        self.router = LocalToolRouter(settings, LocalCommand)
        source = McpSource(ServerConfig("peer", place, 60, 60), settings, self.router.start_program)
        terms = SourceTerms("Mcp.Invoke", isinstance(place, Http), 60, 60)
        (folder / "state").mkdir(exist_ok=True)
        kept = ToolLists(os.fspath(folder / "state"), "peer")
        self.router.add_remote(RemoteTools(source, terms, kept, admits=lambda _: True, report=self.told.append))

    async def fix(self) -> dict[str, Any]:
        await self.router.fix({})
        found = [spec for spec in await self.router.tools() if spec.capability == "Mcp.Invoke"]
        assert found, self.told
        return {spec.name.removeprefix("peer/"): spec for spec in found}

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        request = ToolRequest(f"peer/{tool}", arguments, "s", "t", "st", "c", "Mcp.Invoke")
        return await self.router.execute(request)

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert result.status == "succeeded", result
        return result.output_text or ""


def program(folder: Path, *argv: str) -> Stdio:
    return Stdio(argv, os.fspath(folder), {"PATH": os.environ["PATH"], "HOME": os.fspath(folder)}, "mark")


@pytest.fixture
def everything() -> Iterator[str]:
    """The URL of server-everything, which takes a port and binds it."""
    program = node_server("server-everything")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [NODE, program, "streamableHttp"], env={**os.environ, "PORT": str(port)}, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: _listens(port), "server-everything listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def test_server_everything_behind_tls(everything: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    roots = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(os.fspath(roots))
    with tls_in_front_of(everything, server_context(authority, "127.0.0.1")) as url:
        async with session(tmp_path, Http(f"{url}/mcp", ca_file=os.fspath(roots))) as peer:
            assert len(peer.names) >= 10
            assert await peer.text("echo", message="hello") == "Echo: hello"
            assert "42" in await peer.text("get-sum", a=40, b=2)
            pictured = await peer.call("get-tiny-image")
            assert [one.content_type for one in pictured.artifacts] == ["image/png"]
            assert "completed" in await peer.text("trigger-long-running-operation", duration=1, steps=2)
            assert any(b" of 2" in chunk for chunk in peer.chunks)
            structured = await peer.text("get-structured-content", location="Chicago")
            assert "temperature" in structured
            links = await peer.text("get-resource-links", count=2)
            assert links.count("[resource ") >= 2


async def test_a_certificate_of_nobody_known(everything: str, tmp_path: Path) -> None:
    with tls_in_front_of(everything, server_context(trustme.CA(), "127.0.0.1")) as url:
        one = Session(tmp_path, Http(f"{url}/mcp"))
        assert await one.router.fix({}) == {}
        await one.router.aclose()
    assert "certificate verify failed" in one.told[0].message.lower()
    assert "ca_file of its entry" in one.told[0].message


async def test_server_filesystem(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    place = program(tmp_path, NODE, node_server("server-filesystem"), os.fspath(tmp_path))
    async with session(tmp_path, place) as peer:
        assert await peer.text("read_text_file", path=os.fspath(tmp_path / "a.txt")) == "content"
        await peer.text("write_file", path=os.fspath(tmp_path / "b.txt"), content="new")
        assert (tmp_path / "b.txt").read_text() == "new"
        outside = await peer.call("read_text_file", path="/etc/passwd")
        assert outside.status == "failed"
        assert outside.error is not None
        assert "denied" in outside.error.message.lower()


async def test_server_memory(tmp_path: Path) -> None:
    place = program(tmp_path, NODE, node_server("server-memory"))
    place = place._replace(environment={**place.environment, "MEMORY_FILE_PATH": os.fspath(tmp_path / "memory.json")})
    async with session(tmp_path, place) as peer:
        entity = {"name": "agent-host", "entityType": "program", "observations": ["survives kill -9"]}
        await peer.text("create_entities", entities=[entity])
        assert "survives kill -9" in await peer.text("search_nodes", query="agent-host")


def python_server(module: str) -> tuple[str, str, str]:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    return sys.executable, "-m", module


def repository(folder: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], [*author, "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


async def test_mcp_server_git(tmp_path: Path) -> None:
    argv = python_server("mcp_server_git")
    await asyncio.to_thread(repository, tmp_path)
    async with session(tmp_path, program(tmp_path, *argv, "--repository", os.fspath(tmp_path))) as peer:
        (tmp_path / "new.txt").write_text("x")
        assert "new.txt" in await peer.text("git_status", repo_path=os.fspath(tmp_path))
        assert "Message" in await peer.text("git_log", repo_path=os.fspath(tmp_path), max_count=1)


async def test_mcp_server_time(tmp_path: Path) -> None:
    argv = python_server("mcp_server_time")
    async with session(tmp_path, program(tmp_path, *argv, "--local-timezone", "UTC")) as peer:
        said = await peer.text(
            "convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"
        )  # fmt: skip
        assert "21:00" in said


async def test_mcp_server_fetch(tmp_path: Path) -> None:
    """Nothing is fetched from elsewhere: a page that is not there is the tool's own failure."""
    argv = python_server("mcp_server_fetch")
    async with session(tmp_path, program(tmp_path, *argv, "--ignore-robots-txt")) as peer:
        assert "fetch" in peer.names
        failed = await peer.call("fetch", url="http://127.0.0.1:9/")
        assert failed.status == "failed"
