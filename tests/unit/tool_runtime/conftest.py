from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolRequest, ToolResult
from agent_host.ids import MACHINE
from tests.support.tools import TOOLS
from tool_runtime.processes.command import LocalCommand
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings

if TYPE_CHECKING:
    from pathlib import Path

Call = Callable[..., Awaitable[ToolResult]]
MakeRouter = Callable[..., LocalToolRouter]


def request(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolRequest:
    """Of a step of this process, as every step has an id of its own: what a call has left running is found by it."""
    scope = constraints or ToolConstraints()
    also = {need.capability: scope for need in TOOLS[tool].also} if tool in TOOLS else {}
    return ToolRequest(tool, arguments, "s1", "t1", f"p{os.getpid()}", "call1", "any", scope, also)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something outside this process, which no event can announce."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def open_descriptors() -> int:
    """How many this process has; always 0 where nobody can tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return 0


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


@pytest.fixture
async def make_router(workspace: Path) -> AsyncIterator[MakeRouter]:
    """Routers on the test's workspace that may talk to loopback; none outlives the test, nor does a descriptor."""
    before = open_descriptors()
    made: list[LocalToolRouter] = []

    def make(**settings: Any) -> LocalToolRouter:
        settings.setdefault("address_allowed", lambda address: address in ("127.0.0.1", "::1"))
        made.append(
            LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(workspace), **settings), LocalCommand)
        )
        return made[-1]

    yield make
    for router in made:
        await router.aclose()
    # A test's own server learns of the end a few turns of the loop later.
    await until(lambda: open_descriptors() <= before)


@pytest.fixture
def call(make_router: MakeRouter) -> Call:
    router = make_router()

    async def run(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        return await router.execute(request(tool, constraints, **arguments))

    return run


def error_of(result: ToolResult) -> tuple[str, str]:
    assert result.status == "failed"
    assert result.error is not None
    return result.error.code, result.error.message


def text_of(result: ToolResult) -> str:
    assert result.error is None, result.error
    assert result.output_text is not None
    return result.output_text
