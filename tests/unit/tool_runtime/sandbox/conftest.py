from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import ToolConstraints
from policy import CommandScope
from tool_runtime import sandbox as levels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def scope(workspace: Path, tmp_path: Path) -> CommandScope:
    (tmp_path / "secret").write_text("hidden")
    return CommandScope(writes=(str(workspace),), hidden=(str(tmp_path / "secret"),))


def held(scope: CommandScope) -> ToolConstraints:
    return ToolConstraints(command_scope=scope)


@pytest.fixture(params=["landlock", "namespace"])
def level(request: pytest.FixtureRequest) -> str:
    if not levels.look(request.param).works:
        pytest.skip(levels.look(request.param).problem)
    return str(request.param)
