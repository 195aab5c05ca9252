"""Files that no new file can take the place of: several names, directories that cannot be written, mount points."""

from __future__ import annotations

import errno
import os
import signal
import stat
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tool_runtime.files import Scope, write, writer
from tool_runtime.files.writer import open_parent
from tool_runtime.tool import Abandoned, ToolFault

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call, MakeRouter

OLD = b"".join(b"old line %d\n" % number for number in range(150_000))
NEW = b"".join(b"another line %d\n" % number for number in range(120_000))
FILES = ("write.py", "writer.py", "directories.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs descriptors of directories")


@pytest.fixture
def pair(workspace: Path) -> tuple[Path, Path]:
    """Two names of one file."""
    one, other = workspace / "a.txt", workspace / "b.txt"
    one.write_text("one\n")
    os.link(one, other)
    return one, other


async def test_all_names_of_a_file_stay_one_file(call: Call, pair: tuple[Path, Path], workspace: Path) -> None:
    limits = ToolConstraints(allowed_paths=(str(workspace),))
    edit = {"path": str(pair[0]), "edits": [{"oldText": "one", "newText": "two"}]}
    assert str(pair[1]) in text_of(await call("EditFile", limits, **edit))
    assert pair[1].read_text() == "two\n"
    text_of(await call("WriteFile", limits, path=str(pair[1]), content="3"))
    assert pair[0].read_text() == "3"
    assert pair[0].samefile(pair[1])


@pytest.mark.parametrize("blocks", [False, True])
async def test_no_name_is_written_that_the_call_may_not_write(call: Call, workspace: Path, *, blocks: bool) -> None:
    outside = (workspace if blocks else workspace.parent) / "kept"
    outside.write_text("kept")
    os.link(outside, workspace / "a.txt")
    limits = ToolConstraints(
        allowed_paths=None if blocks else (str(workspace),), blocked_paths=(str(outside),) if blocks else None
    )
    assert (
        error_of(await call("WriteFile", limits, path=str(workspace / "a.txt"), content="x"))[0] == "PERMISSION_DENIED"
    )
    assert outside.read_text() == "kept"


async def test_a_name_of_what_git_runs_is_not_written_through(call: Call, workspace: Path) -> None:
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    os.link(hook, workspace / "a.txt")
    for limits in (ToolConstraints(allowed_paths=(str(workspace),)), ToolConstraints()):
        assert "hooks" in error_of(await call("WriteFile", limits, path=str(workspace / "a.txt"), content="x"))[1]
    assert hook.read_text() == "#!/bin/sh\n"


async def test_a_file_in_a_directory_that_cannot_be_written(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system answers for a mount point, a read-only directory and a read-only file system."""
    file = workspace / "a.txt"
    for code in (errno.EBUSY, errno.EACCES, errno.EROFS):
        file.write_text("one\n")
        number = file.stat().st_ino

        def refuse(*_: object, code: int = code, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(writer.OpenDirectory, "replace" if code == errno.EBUSY else "write_new", refuse)
        text_of(await call("WriteFile", None, path=str(file), content="two\n"))
        assert (file.read_text(), file.stat().st_ino) == ("two\n", number)
        monkeypatch.undo()
    assert os.listdir(workspace) == ["a.txt"]


async def test_what_is_kept_is_private_and_goes_with_the_result(
    make_router: MakeRouter, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "session" / "kept"
    asked = request("WriteFile", path=str(pair[0]), content="two\n")
    result = await make_router(kept=str(kept)).execute(asked)
    (left,) = kept.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert b"one\n" in left.read_bytes()
    assert result.settle is not None
    result.settle()
    assert list(kept.iterdir()) == []


async def test_nothing_is_written_that_cannot_be_kept(
    make_router: MakeRouter, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("no directory")
    router = make_router(kept=str(tmp_path / "kept"))
    asked = request("WriteFile", path=str(pair[0]), content="two\n")
    assert "could not be kept" in error_of(await router.execute(asked))[1]
    monkeypatch.setattr(write, "MAX_IN_PLACE_BYTES", 3)
    assert "not written in place" in error_of(await router.execute(asked))[1]
    assert pair[1].read_text() == "one\n"


async def test_somebody_else_s_change_after_the_crash_stays(
    make_router: MakeRouter, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    router = make_router(kept=str(tmp_path / "kept"))
    asked = request("WriteFile", path=str(pair[0]), content="two\n")
    await router.execute(asked)
    pair[1].write_text("three\n")
    assert (await router.end_leftovers(asked)).file == "changed"
    assert pair[0].read_text() == "three\n"


@pytest.mark.parametrize("cut_to", ["", "one\n"])
async def test_a_file_that_somebody_else_has_cut_stays_cut(
    make_router: MakeRouter, pair: tuple[Path, Path], tmp_path: Path, cut_to: str
) -> None:
    pair[0].write_text("one\ntwo\n")
    router = make_router(kept=str(tmp_path / "kept"))
    asked = request("WriteFile", path=str(pair[0]), content="one\ntwo\nthree\n")
    await router.execute(asked)
    pair[1].write_text(cut_to)
    assert (await router.end_leftovers(asked)).file == "changed"
    assert pair[0].read_text() == cut_to


async def test_what_was_kept_of_a_recorded_call_goes_and_its_file_stays(
    make_router: MakeRouter, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    router = make_router(kept=str(kept))
    asked = request("WriteFile", path=str(pair[0]), content="two\n")
    await router.execute(asked)
    pair[1].write_text("one\n")  # as it was before, by somebody else
    await router.settle(asked)
    assert list(kept.iterdir()) == []
    assert pair[0].read_text() == "one\n"
    await router.settle(asked)


def test_a_call_that_was_given_up_touches_nothing(pair: tuple[Path, Path], workspace: Path, tmp_path: Path) -> None:
    given_up = Abandoned()
    given_up.flag = True
    before = pair[0].stat()
    kept = tmp_path / "kept" / "mark"
    with open_parent(str(pair[0])) as (directory, name), pytest.raises(ToolFault):
        write.write_in_place(
            directory, name, before, write.WriteParams(str(pair[0]), Scope(), NEW, "mark", kept=str(kept)), given_up
        )
    assert pair[0].stat() == before
    assert not kept.exists()


def test_a_write_that_fails_puts_the_mode_back(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = iter([OSError(errno.ENOSPC, "no space")])

    def overwrite(file: FileIO, data: bytes, mode: int | None = None) -> None:
        for error in full:
            os.fchmod(file.fileno(), mode or 0)
            raise error
        writer.overwrite(file, data, mode)

    monkeypatch.setattr(write, "overwrite", overwrite)
    pair[0].chmod(0o600)
    with open_parent(str(pair[0])) as (directory, name), pytest.raises(OSError, match="no space"):
        write.write_in_place(
            directory,
            name,
            pair[0].stat(),
            write.WriteParams(str(pair[0]), Scope(), NEW, "mark", mode=0o755),
            Abandoned(),
        )
    assert stat.S_IMODE(pair[0].stat().st_mode) == 0o600
    assert pair[0].read_text() == "one\n"


@pytest.mark.parametrize("way", ["in place", "a new file"])
@pytest.mark.slow
def test_killed_at_any_line(workspace: Path, tmp_path: Path, way: str) -> None:
    """The process dies at each line of the modules that write, in turn, until one is through."""
    file, other, kept = workspace / "a", workspace / "b", tmp_path / "kept"
    states: set[str | None] = set()
    scope = Scope((str(workspace),))
    params = write.WriteParams(str(file), scope, NEW, "mark", kept=str(kept / "mark"))
    number = 0
    while True:
        number += 1
        for path in (file, other):
            path.unlink(missing_ok=True)
        file.write_bytes(OLD)
        if way == "in place":
            os.link(file, other)
        child = os.fork()
        if child == 0:
            _die_at(number)
            write.write_file(params, Abandoned())
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        state = write.take_back(str(kept / "mark"), scope)
        write.remove_leftover(str(file), scope, "mark")
        states.add(state)
        content = file.read_bytes()
        assert content in ((NEW,) if state == "done" else (OLD,) if state is not None else (OLD, NEW)), number
        write.settle(str(kept / "mark"))
        assert sorted(os.listdir(workspace)) == (["a", "b"] if way == "in place" else ["a"])
        assert not kept.is_dir() or all(name.endswith(".tmp") for name in os.listdir(kept))
    assert states == ({None, "not_done", "put_back", "done"} if way == "in place" else {None})


def _die_at(number: int) -> None:
    """Kill this process at the line of that number of the modules that write."""
    left = number

    def trace(frame: object, event: str, _: object) -> object:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):  # type: ignore[attr-defined]
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="attributes by the calls of Linux")
@pytest.mark.parametrize("links", [False, True])
async def test_attributes_and_access_lists_stay(call: Call, workspace: Path, *, links: bool) -> None:
    file = workspace / "a"
    file.write_text("one")
    # owner rw-, the user 12345 rw-, group r--, mask rw-, others ---
    entries = ((1, 6, -1), (2, 6, 12345), (4, 4, -1), (16, 6, -1), (32, 0, -1))
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *one) for one in entries)
    try:
        os.setxattr(file, "user.note", b"mine")
        os.setxattr(file, "system.posix_acl_access", access)
    except OSError:
        pytest.skip("the file system has none")
    if links:
        os.link(file, workspace / "b")
    mode = file.stat().st_mode
    text_of(await call("WriteFile", None, path=str(file), content="two"))
    assert os.getxattr(file, "user.note") == b"mine"
    assert os.getxattr(file, "system.posix_acl_access") == access
    assert file.stat().st_mode == mode
