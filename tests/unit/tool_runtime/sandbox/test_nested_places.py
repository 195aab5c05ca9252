"""Names that are guarded at any depth: found once, kept, and named where a command makes new ones."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolResult
from policy import CommandScope
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tool_runtime import sandbox as levels
from tool_runtime.sandbox.workspace_places import TreeWatch
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    Run = Callable[..., Awaitable[ToolResult]]

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem)
LEVELS = pytest.mark.parametrize("level", ["landlock", "namespace"])


@pytest.fixture
def run(make_router: MakeRouter, workspace: Path, tmp_path: Path) -> Run:
    (workspace / "app" / ".vscode").mkdir(parents=True)
    (workspace / "app" / ".vscode" / "tasks.json").write_text("mine")
    (workspace / "my.code-workspace").write_text("mine")
    (workspace / "node_modules" / "x" / ".vscode").mkdir(parents=True)
    scope = CommandScope(
        writes=(str(workspace), "/dev/null"),
        guarded=(str(workspace / ".vscode"),),
        nested=tuple(f"{workspace}/**/{name}" for name in (".vscode", ".envrc", "*.code-workspace")),
        given=(str(workspace),),
    )
    routers: dict[str, Any] = {}

    async def one(level: Any, command: str) -> ToolResult:
        if level not in routers:
            routers[level] = make_router(sandbox=SandboxSettings(level, directory=str(tmp_path / "session")))
        return await routers[level].execute(  # type: ignore[no-any-return]  # of a router
            request("RunCommand", ToolConstraints(command_scope=scope), command=command)
        )

    return one


@pytest.mark.many_rows(15)
@pytest.mark.many_rows(15)
@LEVELS
@pytest.mark.parametrize(
    "command",
    [
        "echo x > new.code-workspace",
        "echo x > NEW.Code-Workspace",
        "echo x > .code-workspace",
        "echo x > n && mv n new.code-workspace",
        "ln -s app new.code-workspace",
        "mkdir new.code-workspace",
        "echo x >> my.code-workspace",
        "rm my.code-workspace",
        "mv my.code-workspace other",
        "echo x >> app/.vscode/tasks.json",
        "echo x > app/.vscode/launch.json",
        "rm -r app/.vscode",
    ],
)
async def test_what_is_held_stays(run: Run, workspace: Path, level: str, command: str) -> None:
    await run(level, "true")
    result = await run(level, command)
    assert result.exit_code or result.denials, text_of(result)
    assert (workspace / "my.code-workspace").read_text() == "mine"
    assert (workspace / "app" / ".vscode" / "tasks.json").read_text() == "mine"
    assert os.listdir(workspace / "app" / ".vscode") == ["tasks.json"]
    assert [one for one in os.listdir(workspace) if "code" in one.lower()] == ["my.code-workspace"]


@pytest.mark.many_rows(8)
@pytest.mark.many_rows(8)
@LEVELS
@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("mkdir -p a/b/.vscode && echo x > a/b/.vscode/tasks.json", "a/b/.vscode"),
        ("mkdir -p a/b && echo x > a/b/.envrc", "a/b/.envrc"),
        ("mkdir d && echo x > d/.envrc && mv d e", "e/.envrc"),
        ("mkdir d && echo x > d/z.code-workspace", "d/z.code-workspace"),
        ("cp -r app copy", "copy/.vscode"),
        ("mv app moved", "moved/.vscode"),
        ("mkdir -p x/y/z && tar cf t.tar app && tar xf t.tar -C x/y/z", "x/y/z/app/.vscode"),
    ],
)
async def test_what_is_new_is_named_once_and_held_from_then_on(
    run: Run, workspace: Path, level: str, command: str, named: str
) -> None:
    result = await run(level, command)
    assert result.exit_code == 0
    assert [one.what for one in result.denials] == [str(workspace / named)]
    assert "it is new and was left there" in text_of(result)
    assert (workspace / named).exists()
    assert not (await run(level, "true")).denials
    assert (await run(level, f"rm -r {named}")).denials
    assert (workspace / named).exists()


@LEVELS
async def test_ordinary_work_names_nothing(run: Run, workspace: Path, level: str) -> None:
    for command in (
        "mkdir -p node_modules/y/.vscode venv/lib/.envrc && rm -r node_modules/x",
        "mkdir a && echo x > a/f && mv a b && cp -r b c && rm -r b",
        "rm -r app",
    ):
        result = await run(level, command)
        assert result.exit_code == 0, text_of(result)
        assert not result.denials, text_of(result)
    assert not (workspace / "app").exists()


async def test_a_workspace_with_too_many_directories_says_so_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tool_runtime.sandbox.workspace_places.MAX_DIRECTORIES", 2)
    assert "are not watched" in text_of(await run("landlock", "true"))
    assert not (await run("landlock", "true")).denials


def test_a_tree_is_walked_once_and_then_only_what_is_new(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / "old" / str(number)).mkdir(parents=True)
    seen: list[str] = []

    def see(directory: str, names: Sequence[str]) -> None:
        seen.append(os.path.relpath(directory, tmp_path))

    tree = TreeWatch(str(tmp_path), see, lambda path: path.endswith("passed"))
    assert len(seen) == 32
    seen.clear()
    tree.refresh()
    assert not seen
    (tmp_path / "old" / "3" / "file").touch()
    (tmp_path / "old" / "3" / "file").write_text("more")
    (tmp_path / "new" / "er").mkdir(parents=True)
    (tmp_path / "passed" / "over").mkdir(parents=True)
    tree.refresh()
    assert sorted(seen) == [".", "new", "new/er", "old/3"]
    seen.clear()
    (tmp_path / "new").rename(tmp_path / "old" / "moved")
    tree.refresh()
    (tmp_path / "old" / "moved" / "er" / "late").touch()
    tree.refresh()
    assert sorted(seen) == ["old", "old/moved", "old/moved/er", "old/moved/er"]
    seen.clear()
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / "again").mkdir()
    tree.refresh()
    assert sorted(seen) == [".", "again"]
    tree.close()


@pytest.mark.slow
def test_what_the_kernel_lost_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        most = int(file.read())
    seen: set[str] = set()
    tree = TreeWatch(str(tmp_path), lambda _directory, names: seen.update(names), lambda _path: False)
    for number in range(most + 10):
        (tmp_path / f"f{number}").touch()
    (tmp_path / "last").mkdir()
    tree.refresh()
    tree.close()
    assert "last" in seen


def test_what_cannot_be_watched_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tool_runtime.sandbox.workspace_places.MAX_DIRECTORIES", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    tree = TreeWatch(str(tmp_path), lambda _directory, _names: None, lambda _path: False)
    assert tree.unwatched == 2
    tree.close()
