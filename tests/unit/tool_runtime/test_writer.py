"""The one writer: nothing that a command arranges in a workspace leads it elsewhere, or gets rights from it."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolResult
from tests.unit.tool_runtime.conftest import Call, MakeRouter, error_of, request, text_of
from tool_runtime.files import Scope, writer
from tool_runtime.files.write import WriteParams, write_file
from tool_runtime.files.writer import NEW_DIRECTORY, open_directory, open_parent
from tool_runtime.platform import directories
from tool_runtime.tool import Abandoned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not directories.BY_DESCRIPTOR, reason="there are no descriptors of directories here")


@pytest.fixture(params=["at once", "by component"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the system opens a directory without following a link."""
    if request.param == "by component":
        monkeypatch.setattr(directories, "open_at_once", lambda *_: None)
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    made = tmp_path / "outside"
    (made / "d").mkdir(parents=True)
    (made / "victim").write_text("victim")
    return made


def content_of(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.usefixtures("way")
def test_a_directory_is_opened_where_no_link_leads_there(workspace: Path, outside: Path) -> None:
    root = workspace.resolve()
    (root / "a" / "b").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "a" / "up").symlink_to("..")
    (root / "file").write_text("x")
    for path, allowed in ((root, root), (root / "a" / "b", root), (root / "a", "/"), (root / "new" / "er", root)):
        with open_directory(str(path), str(allowed), create=NEW_DIRECTORY) as found:
            assert found.fd is not None
            assert os.path.samestat(os.fstat(found.fd), os.stat(path))
    for path, allowed in (
        (root / "link", root), (root / "link" / "d", root), (root / "link" / "d", root / "link"),
        (root / "a" / "up" / "a", root), (root / "link" / "new", root), (root / "file", root),
        (root / "file" / "x", root),
    ):  # fmt: skip
        with pytest.raises(OSError, match=r"link|Not a directory"):
            open_directory(str(path), str(allowed), create=NEW_DIRECTORY)
    assert content_of(outside) == {"d": None, "victim": "victim"}


@pytest.mark.usefixtures("way")
def test_no_descriptor_is_left(workspace: Path, outside: Path) -> None:
    root = workspace.resolve()
    (root / "a").mkdir()
    (root / "link").symlink_to(outside)
    before = len(os.listdir("/dev/fd"))
    for path in ("a", "none", "link", "link/d", "a/../a"):
        with suppress(OSError), open_directory(f"{root}/{path}", str(root)) as found, found.open_below("b"):
            pass
        with (
            suppress(OSError),
            open_parent(f"{root}/{path}/f", str(root), create=NEW_DIRECTORY if path == "a" else None) as (_, name),
        ):
            assert name == "f"
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../victim", "/etc/passwd"])
def test_a_name_is_one_component(workspace: Path, name: str) -> None:
    with open_directory(str(workspace.resolve())) as directory:
        for act in (directory.remove, directory.status, directory.open_below, directory.remove_tree):
            with pytest.raises(ValueError, match="not a name"):
                act(name)


def test_without_descriptors_each_component_is_looked_at(
    workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    monkeypatch.setattr(writer, "BY_DESCRIPTOR", False)
    root = workspace.resolve()
    (root / "link").symlink_to(outside)
    with open_parent(str(root / "a" / "b" / "f"), str(root), create=NEW_DIRECTORY) as (directory, name):
        assert directory.fd is None
        directory.put(name, b"x", 0o600)
        directory.make_directory("c")
        assert directory.names() == ["c", "f"]
        with directory.open_below("c") as below:
            below.write_new("g", b"y")
        assert [folder.rpartition("/")[2] for folder, _, _ in directory.walk("c")] == ["c"]
        directory.remove_tree("c")
        directory.move(name, directory, "h")
        directory.remove("h")
    assert content_of(root / "a") == {"b": None}
    for path in ("link/d/f", "link/f", "none/f"):
        with pytest.raises(OSError, match=r"link|No such file"), open_parent(str(root / path), str(root)):
            pass
    assert content_of(outside) == {"d": None, "victim": "victim"}


def test_what_lies_where_a_write_prepares_its_file_is_not_followed(workspace: Path, outside: Path) -> None:
    root = workspace.resolve()
    for kind in ("link", "hard link", "pipe"):
        with open_directory(str(root)) as directory:
            temporary = root / "temporary"
            if kind == "link":
                temporary.symlink_to(outside / "victim")
            elif kind == "hard link":
                temporary.hardlink_to(outside / "victim")
            else:
                os.mkfifo(temporary)
            directory.write_new("temporary", b"new", mode=0o6755)
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o755
            directory.replace("temporary", "f")
    assert content_of(root) == {"f": "new"}
    assert content_of(outside) == {"d": None, "victim": "victim"}


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6711, 0o4600])
async def test_no_file_keeps_the_bits_by_which_it_runs_with_other_rights(
    make_router: MakeRouter, workspace: Path, mode: int
) -> None:
    file, moved = workspace / "tool", workspace / "d" / "moved"
    router = make_router()

    def prepared() -> None:
        file.write_text("old")
        file.chmod(mode)
        assert stat.S_IMODE(file.stat().st_mode) == mode

    calls: list[tuple[str, Path, dict[str, Any]]] = [
        ("WriteFile", file, {"path": str(file), "content": "any"}),
        ("EditFile", file, {"path": str(file), "edits": [{"oldText": "old", "newText": "new"}]}),
        ("MoveFile", moved, {"path": str(file), "newPath": str(moved)}),
    ]
    for tool, left, arguments in calls:
        prepared()
        text_of(await router.execute(request(tool, **arguments)))
        assert stat.S_IMODE(left.stat().st_mode) == mode & 0o777, tool


async def test_a_file_with_other_rights_and_another_name_is_not_moved(
    call: Call, workspace: Path, outside: Path
) -> None:
    (outside / "victim").chmod(0o4755)
    (workspace / "tool").hardlink_to(outside / "victim")
    answer = await call("MoveFile", None, path=str(workspace / "tool"), newPath=str(workspace / "moved"))
    assert error_of(answer)[0] == "PERMISSION_DENIED"
    assert stat.S_IMODE((outside / "victim").stat().st_mode) == 0o4755
    assert os.listdir(workspace) == ["tool"]


def test_a_mode_that_is_asked_for_has_no_such_bits(workspace: Path) -> None:
    file = workspace.resolve() / "f"
    for mode in (0o4755, 0o7777):
        write_file(WriteParams(str(file), Scope(), b"x", "m", mode=mode), Abandoned())
        assert stat.S_IMODE(file.stat().st_mode) == mode & 0o777


async def test_a_directory_hands_its_group_on(call: Call, workspace: Path) -> None:
    shared = workspace / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    text_of(await call("WriteFile", None, path=str(shared / "inner" / "f"), content="x"))
    assert (shared / "inner").stat().st_mode & stat.S_ISGID
    assert not (shared / "inner" / "f").stat().st_mode & (stat.S_ISGID | stat.S_ISUID)


def test_a_directory_keeps_the_bit_for_it(workspace: Path) -> None:
    (workspace / "shared").mkdir()
    (workspace / "shared").chmod(0o2775)
    with open_directory(str(workspace.resolve())) as directory:
        directory.set_permissions("shared", 0o700)
    assert stat.S_IMODE((workspace / "shared").stat().st_mode) == 0o2700


async def test_another_name_of_a_file_keeps_its_content(call: Call, workspace: Path, outside: Path) -> None:
    (workspace / "f").hardlink_to(outside / "victim")
    limits = ToolConstraints(allowed_paths=(str(workspace),))
    assert "hard links" in error_of(await call("WriteFile", limits, path=str(workspace / "f"), content="new"))[1]
    text_of(await call("DeleteFile", None, path=str(workspace / "f")))
    assert content_of(outside) == {"d": None, "victim": "victim"}


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
async def test_what_is_no_file_is_not_written(call: Call, workspace: Path, kind: str) -> None:
    place = workspace / "f"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)
    else:
        place.mkdir()
    for tool, arguments in (
        ("WriteFile", {"path": str(place), "content": "x"}),
        ("EditFile", {"path": str(place), "edits": [{"oldText": "a", "newText": "b"}]}),
        ("MoveFile", {"path": str(place), "newPath": str(workspace / "g")}),
        ("DeleteFile", {"path": str(place)}),
    ):
        error_of(await call(tool, None, **arguments))
    assert os.listdir(workspace) == ["f"]


@contextmanager
def exchanging(place: Path, outside: Path) -> Iterator[None]:
    """A directory and a link that take each other's place, as fast as they can."""
    going, other = threading.Event(), place.with_name("other")

    def exchange() -> None:
        while not going.is_set():
            with suppress(OSError):
                place.rename(other)
                place.symlink_to(outside)
                place.unlink()
            with suppress(OSError):
                other.rename(place)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        going.set()
        thread.join()


@pytest.mark.many_rows(3)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tool", ["WriteFile", "EditFile", "MoveFile", "DeleteFile", "cp__delete_file"])
async def test_a_directory_that_is_exchanged_for_a_link_leads_nowhere(
    make_router: MakeRouter, workspace: Path, outside: Path, tool: str
) -> None:
    router = make_router(families=("desktop", "native"))
    place, scope = workspace / "d", ToolConstraints(allowed_paths=(str(workspace),))
    place.mkdir()
    was = content_of(outside)
    every: dict[str, dict[str, Any]] = {
        "WriteFile": {"path": str(place / "victim"), "content": "evil"},
        "EditFile": {"path": str(place / "victim"), "edits": [{"oldText": "victim", "newText": "evil"}]},
        "MoveFile": {"path": str(place / "victim"), "newPath": str(place / "new" / "er")},
        "DeleteFile": {"path": str(place / "victim")},
        "cp__delete_file": {"path": str(place / "d"), "recursive": True},
    }
    arguments = every[tool]
    with exchanging(place, outside):
        for _ in range(150):
            result: ToolResult = await router.execute(request(tool, scope, **arguments))
            assert result.error is None or result.error.code != "UNKNOWN_TOOL"
    assert content_of(outside) == was
