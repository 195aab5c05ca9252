"""MoveFile: one file to where nothing is, in one step."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tool_runtime.files import writer
from tool_runtime.platform import directories

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolResult
    from tests.unit.tool_runtime.conftest import Call, MakeRouter


async def move(call: Call, path: Path, new_path: Path) -> ToolResult:
    return await call("MoveFile", None, path=str(path), newPath=str(new_path))


@pytest.fixture(params=["one call", "two names"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the system moves a file without replacing another."""
    if request.param == "two names":
        monkeypatch.setattr(directories, "_system_call", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
async def test_a_file_is_moved_with_all_that_it_is(call: Call, workspace: Path) -> None:
    old, new = workspace / "a", workspace / "d" / "e" / "b"
    old.write_text("x")
    old.chmod(0o640)
    before = old.stat()
    assert text_of(await move(call, old, new)) == f"Moved {old} to {new}"
    assert not old.exists()
    assert (new.stat().st_ino, new.stat().st_mode, new.stat().st_nlink) == (before.st_ino, before.st_mode, 1)


@pytest.mark.usefixtures("way")
async def test_nothing_is_replaced(call: Call, workspace: Path) -> None:
    old, new = workspace / "a", workspace / "b"
    old.write_text("x")
    new.write_text("y")
    assert "replaces nothing" in error_of(await move(call, old, new))[1]
    assert "replaces nothing" in error_of(await move(call, old, old))[1]
    (workspace / "d").mkdir()
    assert error_of(await move(call, old, workspace / "d"))[0] == "TOOL_EXECUTION_FAILED"
    assert (old.read_text(), new.read_text()) == ("x", "y")


async def test_what_is_moved_is_a_file(call: Call, workspace: Path) -> None:
    (workspace / "d").mkdir()
    os.mkfifo(workspace / "p")
    assert "is a directory" in error_of(await move(call, workspace / "d", workspace / "b"))[1]
    assert "not a regular file" in error_of(await move(call, workspace / "p", workspace / "b"))[1]
    assert error_of(await move(call, workspace / "none", workspace / "b"))[0] == "FILE_NOT_FOUND"


async def test_another_file_system_is_refused(call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    (workspace / "a").write_text("x")
    monkeypatch.setattr(writer, "move_new", elsewhere)
    code, message = error_of(await move(call, workspace / "a", workspace / "b"))
    assert code == "TOOL_EXECUTION_FAILED"
    assert "another file system" in message
    assert (workspace / "a").read_text() == "x"


async def test_each_place_has_its_scope(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router()
    (workspace / "a").write_text("x")
    asked = request("MoveFile", path=str(workspace / "a"), newPath=str(workspace / "b"))
    free, no = ToolConstraints(), ToolConstraints(allowed_paths=("/nowhere",))
    for one in (
        asked._replace(constraints=no),
        asked._replace(also={"File.Read": free, "File.Write": no}),
        asked._replace(also={"File.Read": no, "File.Write": free}),
    ):
        assert error_of(await router.execute(one))[0] == "PERMISSION_DENIED"
    assert os.listdir(workspace) == ["a"]


async def test_a_move_that_was_cut_between_its_two_names_is_taken_back(
    make_router: MakeRouter, workspace: Path
) -> None:
    router = make_router()
    asked = request("MoveFile", path=str(workspace / "a"), newPath=str(workspace / "b"))
    (workspace / "a").write_text("x")
    os.link(workspace / "a", workspace / "b")
    assert (await router.end_leftovers(asked)).ended == 1
    assert os.listdir(workspace) == ["a"]
    (workspace / "b").write_text("x")
    assert (await router.end_leftovers(asked)).ended == 0
    assert sorted(os.listdir(workspace)) == ["a", "b"]


def test_a_call_that_the_system_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel before renameat2, or a file system without the flag, answers."""
    import ctypes

    def unknown(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(directories, "_system_call", lambda: unknown)
    (tmp_path / "a").write_text("x")
    directories.move_new(None, str(tmp_path / "a"), None, str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "x"
    assert not (tmp_path / "a").exists()
