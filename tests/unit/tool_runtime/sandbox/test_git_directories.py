"""The work of git goes on where what commands leave in git directories is judged (`test_levels` has the rest)."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolResult
from policy import RepositoryFacts, ScopeFacts
from policy.rules.sandbox import command_scope
from tests.support.held import rows_of
from tests.unit.policy.helpers import bundle
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tool_runtime import sandbox as levels
from tool_runtime.sandbox.protected_paths import Guarded
from tool_runtime.tool import SandboxSettings, mark_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from policy import CommandScope

    Run = Callable[..., Awaitable[ToolResult]]

WORKING = [level for level in levels.LEVELS if levels.look(level).works]
pytestmark = pytest.mark.skipif("landlock" not in WORKING, reason="no level of the sandbox works here")


def git(where: Path, *words: str) -> str:
    ended = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "core.editor=true", *words],
        cwd=where, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return ended.stdout + ended.stderr


def make(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    git(path, "init", "-q", "-b", "main")
    git(path, "config", "user.name", "A")
    git(path, "config", "user.email", "a@b")
    (path / "f").write_text("1\n")
    git(path, "add", "f")
    git(path, "commit", "-qm", "one")
    return path


@pytest.fixture
def repository(workspace: Path) -> Path:
    return make(workspace)


@pytest.fixture
def scope(repository: Path, tmp_path: Path) -> CommandScope:
    top = str(repository / ".git")
    names = (".vscode", ".envrc", "*.code-workspace")
    blocked = [f"{repository}/**/{name}" for name in names]
    granted = bundle(
        {"name": "File.Read"},
        {"name": "File.Write", "allowedPaths": [str(repository)], "blockedPaths": blocked},
        {"name": "File.Delete", "allowedPaths": [str(repository)], "blockedPaths": blocked},
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    facts = ScopeFacts(
        str(repository), tmp=str(temporary), devices=("/dev/null",), repository=RepositoryFacts(top, top, top)
    )
    return command_scope(granted, facts, "posix")


@pytest.fixture
def run(make_router: MakeRouter, scope: CommandScope, tmp_path: Path) -> Run:
    routers: dict[str, Any] = {}

    async def one(level: Any, command: str, **more: Any) -> ToolResult:
        if level not in routers:
            routers[level] = make_router(
                sandbox=SandboxSettings(level, directory=str(tmp_path / "session")), temporary=str(tmp_path / "tmp")
            )
        constraints = ToolConstraints(command_scope=scope)
        return await routers[level].execute(request("RunCommand", constraints, command=command, **more))  # type: ignore[no-any-return]  # of a router

    return one


HERE = Path(__file__).parent
ORDINARY = dict(rows_of((HERE / "git_ordinary.txt").read_text(encoding="utf-8")))


@pytest.mark.many_rows(20)
@pytest.mark.many_rows(20)
@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_the_work_of_git_goes_on(run: Run, repository: Path, level: str, name: str) -> None:
    for command in ORDINARY[name].split("\n--\n"):
        result = await run(level, command)
        assert result.exit_code == 0, (command, text_of(result))
        assert not [one for one in result.denials if not one.what.endswith("info/refs")], text_of(result)


def borrowing(tree: Path) -> list[Path]:
    """The git directories of a tree that borrow objects."""
    return [head.parent for head in tree.rglob("HEAD") if os.path.lexists(head.parent / "objects/info/alternates")]


@pytest.mark.many_rows(6)
@pytest.mark.parametrize(
    "by",
    [
        "> .git/objects/info/alternates",
        "> a; git init -q sub; mv a sub/.git/objects/info/alternates",
        "> a; git init -q --bare sub; mv a sub/objects/info/alternates",
        "> a; git init -q sub; ln -s $PWD/a sub/.git/objects/info/alternates",
        "> a; mv .git/objects o; mkdir -p o/info; mv a o/info/alternates; mv o .git/objects",
    ],
)
@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_a_command_borrows_no_objects(run: Run, repository: Path, level: str, by: str) -> None:
    """Else the next one reads the repository that it names."""
    await run(level, f"mkdir -p .git/objects/info; echo /srv/other/.git/objects {by}")
    assert borrowing(repository) == []


@pytest.mark.slow
async def test_after_a_crash_what_starts_programs_is_put_back(
    make_router: MakeRouter, scope: CommandScope, repository: Path, tmp_path: Path
) -> None:
    call = request("RunCommand", ToolConstraints(command_scope=scope), command="true")
    settings = SandboxSettings("landlock", directory=str(tmp_path / "session"))
    config = repository / ".git" / "config"
    # As a host leaves it that is killed while the command runs.
    guarded = Guarded(settings.directory, str(repository))
    await asyncio.to_thread(guarded.begin, mark_of(call), scope.unchangeable, scope)
    guarded.close()
    git(repository, "remote", "add", "origin", "https://example.org/x")
    before = config.read_bytes()
    (repository / ".git" / "commondir").write_text("../x")
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/other\n")
    left = await make_router(sandbox=settings).end_leftovers(call)
    assert [one.what for one in left.guarded] == [str(repository / ".git" / "commondir")]
    assert not (repository / ".git" / "commondir").exists()
    assert config.read_bytes() == before
    await asyncio.to_thread(guarded.begin, mark_of(call), scope.unchangeable, scope)
    guarded.close()
    git(repository, "config", "core.fsmonitor", "evil")
    left = await make_router(sandbox=settings).end_leftovers(call)
    assert "core.fsmonitor" in left.note()
    assert config.read_bytes() == before
