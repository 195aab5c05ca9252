from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_host.contracts import ToolConstraints, ToolRequest, ToolResult
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings

Call = Callable[..., Awaitable[ToolResult]]
MakeRouter = Callable[..., LocalToolRouter]


def request(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolRequest:
    return ToolRequest(tool, arguments, "s1", "t1", "p1", "call1", "any", constraints or ToolConstraints())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


@pytest.fixture
async def make_router(workspace: Path) -> AsyncIterator[MakeRouter]:
    """Routers on the test's workspace that may talk to loopback; none outlives the test, nor does a descriptor."""
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    made: list[LocalToolRouter] = []

    def make(**settings: Any) -> LocalToolRouter:
        settings.setdefault("address_allowed", lambda address: address in ("127.0.0.1", "::1"))
        made.append(LocalToolRouter(RuntimeSettings(workspace=str(workspace), **settings)))
        return made[-1]

    yield make
    for router in made:
        await router.aclose()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before


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
