from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import ToolConstraints
from benchmarks.processes import child_environment
from tests.unit.tool_runtime.conftest import Call, MakeRouter, error_of, request, text_of
from tool_runtime import files as paths
from tool_runtime.files import Scope, write
from tool_runtime.files import read as reading
from tool_runtime.tool import Abandoned, FaultKind, ToolFault

if TYPE_CHECKING:
    from pathlib import Path


async def test_read_gives_the_text_with_its_line_ends(call: Call, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"one\r\ntwo\nw\xc3\xb6rld")
    assert text_of(await call("ReadFile", path=f"{workspace}/a.txt")) == "one\r\ntwo\nwörld"


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (1, 2, "1\n2\n[lines 1 to 2 of 4: offset 3 reads on]"),
        (2, None, "2\n3\n4"),
        (3, 1, "3\n[lines 3 to 3 of 4: offset 4 reads on]"),
        (4, 9, "4"),
        (1, 4, "1\n2\n3\n4"),
        (2, 2, "2\n3\n[lines 2 to 3 of 4: offset 4 reads on]"),
    ],
)
async def test_read_window(call: Call, workspace: Path, offset: int, limit: int | None, expected: str) -> None:
    (workspace / "a.txt").write_text("1\n2\n3\n4")
    window = {"offset": offset} | ({} if limit is None else {"limit": limit})
    assert text_of(await call("ReadFile", path=f"{workspace}/a.txt", **window)) == expected


async def test_read_window_of_a_file_of_many_chunks(call: Call, workspace: Path) -> None:
    (workspace / "big").write_text("".join(f"line {n} ü\n" for n in range(1, 200_001)))
    got = text_of(await call("ReadFile", path=f"{workspace}/big", offset=150_000, limit=2))
    rest = "[lines 150000 to 150001 of 200000: offset 150002 reads on]"
    assert got == f"line 150000 ü\nline 150001 ü\n{rest}"
    assert "ends before line 300000" in text_of(await call("ReadFile", path=f"{workspace}/big", offset=300_000))


async def test_reading_a_directory_names_the_tool_that_lists_it(call: Call, workspace: Path) -> None:
    _, message = error_of(await call("ReadFile", path=str(workspace)))
    assert message == f"is a directory: {workspace}; ListDirectory shows what is in it"


async def test_read_keeps_head_and_tail_of_what_is_too_long(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "big").write_text("a" * 600_000 + "b" * 400_000)
    router = make_router(max_output_bytes=1000)
    text = text_of(await router.execute(request("ReadFile", path=f"{workspace}/big", limit=1)))
    assert text == "a" * 800 + "\n[... truncated 999000 bytes of 1000000 ...]\n" + "b" * 200


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfhello", "hello"),
        ("hé".encode("utf-16"), "hé"),
        (b"caf\xe9 ol\xe9", "café olé"),
        (b"\x7fELF\0\0\1", "Binary file, 7 bytes"),
        (b"", "[The file is empty]"),
    ],
)
async def test_read_encodings(call: Call, workspace: Path, data: bytes, expected: str) -> None:
    (workspace / "f").write_bytes(data)
    assert text_of(await call("ReadFile", path=f"{workspace}/f")) == expected


async def test_read_falls_back_when_a_late_chunk_is_no_utf8(call: Call, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"x\n" * 200_000 + b"caf\xe9")
    assert text_of(await call("ReadFile", path=f"{workspace}/f", offset=200_001)) == "café"


async def test_read_with_a_named_encoding(call: Call, workspace: Path) -> None:
    (workspace / "f").write_bytes("привет".encode("koi8-r"))
    assert text_of(await call("ReadFile", path=f"{workspace}/f", encoding="koi8-r")) == "привет"
    assert error_of(await call("ReadFile", path=f"{workspace}/f", encoding="klingon"))[0] == "INVALID_REQUEST"


async def test_read_refusals(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("12345")
    os.mkfifo(workspace / "fifo")
    small = ToolConstraints(max_file_size_bytes=4)
    assert error_of(await call("ReadFile", path=f"{workspace}/none"))[0] == "FILE_NOT_FOUND"
    assert error_of(await call("ReadFile", path=f"{workspace}/f/below"))[0] == "FILE_NOT_FOUND"
    assert error_of(await call("ReadFile", small, path=f"{workspace}/f"))[0] == "FILE_TOO_LARGE"
    assert error_of(await call("ReadFile", path=str(workspace)))[0] == "TOOL_EXECUTION_FAILED"
    assert error_of(await call("ReadFile", path=f"{workspace}/fifo"))[0] == "TOOL_EXECUTION_FAILED"
    assert error_of(await call("ReadFile", path="f"))[0] == "INVALID_REQUEST"
    assert error_of(await call("ReadFile", path=f"{workspace}/f\0"))[0] == "INVALID_REQUEST"
    assert error_of(await call("ReadFile", path="/" + "x" * 5000))[0] == "INVALID_REQUEST"
    assert error_of(await call("ReadFile", path=f"{workspace}/\ud800"))[0] == "INVALID_REQUEST"


async def test_home_is_expanded(call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    (workspace / "f").write_text("at home")
    assert text_of(await call("ReadFile", path="~/f")) == "at home"


async def test_write_creates_with_directories_and_says_so(call: Call, workspace: Path) -> None:
    path = workspace / "new" / "deep" / "ü.txt"
    result = await call("WriteFile", path=str(path), content="grün\n")
    assert text_of(result) == f"Wrote 6 bytes to {path}"
    again = await call("WriteFile", path=str(path), content="x")
    assert text_of(again) == f"Wrote 1 bytes to {path}, in place of the 6 bytes that it had"
    path.write_text("grün\n")
    (diff,) = result.artifacts
    assert diff.artifact_type == "file_diff"
    assert diff.data.decode() == f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+grün\n"


async def test_write_without_directories(call: Call, workspace: Path) -> None:
    result = await call("WriteFile", path=f"{workspace}/no/f", content="x", createDirectories=False)
    assert error_of(result)[0] == "FILE_NOT_FOUND"
    assert not (workspace / "no").exists()


async def test_write_replaces_whole_keeps_mode_and_makes_a_diff(call: Call, workspace: Path) -> None:
    path = workspace / "run.sh"
    path.write_text("a\nb\nc\n")
    path.chmod(0o751)
    old_inode = path.stat().st_ino
    result = await call("WriteFile", path=str(path), content="a\nB\nc\n")
    assert path.read_text() == "a\nB\nc\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert path.stat().st_ino != old_inode, "replaced by rename: no reader ever sees half a file"
    assert b"\n a\n-b\n+B\n c\n" in result.artifacts[0].data
    assert os.listdir(workspace) == ["run.sh"]


async def test_an_oversized_write_touches_nothing(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("old")
    limit = ToolConstraints(max_file_size_bytes=5)
    assert error_of(await call("WriteFile", limit, path=f"{workspace}/f", content="x" * 6))[0] == "FILE_TOO_LARGE"
    assert error_of(await call("WriteFile", limit, path=f"{workspace}/d/f", content="x" * 6))[0] == "FILE_TOO_LARGE"
    assert (workspace / "f").read_text() == "old"
    assert os.listdir(workspace) == ["f"]


async def test_a_failed_write_leaves_no_temporary_file(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "f").write_text("old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, message = error_of(await call("WriteFile", path=f"{workspace}/f", content="new"))
    assert (code, "No space left" in message) == ("TOOL_EXECUTION_FAILED", True)
    assert (workspace / "f").read_text() == "old"
    assert os.listdir(workspace) == ["f"]


async def test_write_refuses_what_is_no_regular_file(call: Call, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    assert error_of(await call("WriteFile", path=f"{workspace}/fifo", content="x"))[0] == "TOOL_EXECUTION_FAILED"
    assert error_of(await call("WriteFile", path=str(workspace), content="x"))[0] == "TOOL_EXECUTION_FAILED"
    assert error_of(await call("WriteFile", path=f"{workspace}/f", content="\ud800"))[0] == "INVALID_REQUEST"
    assert stat.S_ISFIFO((workspace / "fifo").stat().st_mode)


async def test_delete(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("x")
    (workspace / "d").mkdir()
    assert text_of(await call("DeleteFile", path=f"{workspace}/f")) == f"Deleted {workspace}/f"
    assert not (workspace / "f").exists()
    assert error_of(await call("DeleteFile", path=f"{workspace}/f"))[0] == "FILE_NOT_FOUND"
    assert error_of(await call("DeleteFile", path=f"{workspace}/d"))[0] == "TOOL_EXECUTION_FAILED"
    assert (workspace / "d").is_dir()


@pytest.mark.parametrize("target", ["f", "d", "none", "/etc/passwd"])
async def test_a_link_itself_is_deleted_and_moved(make_router: MakeRouter, workspace: Path, target: str) -> None:
    router = make_router(families=("desktop", "native", "skills"))
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    (workspace / "f").write_text("x")
    (workspace / "d").mkdir()
    for tool in ("DeleteFile", "delete_file"):
        (workspace / "link").symlink_to(target)
        text_of(await router.execute(request(tool, scope, path=f"{workspace}/link")))
        assert sorted(os.listdir(workspace)) == ["d", "f"]
    (workspace / "link").symlink_to(target)
    native = await router.execute(request("cp__delete_file", scope, path=f"{workspace}/link"))
    assert "symbolic link" in error_of(native)[1] or error_of(native)[0] == "PERMISSION_DENIED"
    asked = request("MoveFile", scope, path=f"{workspace}/link", newPath=f"{workspace}/moved")
    text_of(await router.execute(asked))
    assert os.readlink(workspace / "moved") == target
    (workspace / "dangling").symlink_to("nowhere")
    asked = request("MoveFile", scope, path=f"{workspace}/f", newPath=f"{workspace}/dangling")
    refused = await router.execute(asked)
    assert "replaces nothing" in error_of(refused)[1]
    assert not (workspace / "nowhere").exists()


async def test_scope_is_enforced_on_the_real_path(call: Call, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "ws-twin").mkdir()
    (tmp_path / "ws-twin" / "f").write_text("s")
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / ".git").mkdir()
    scope = ToolConstraints(allowed_paths=(str(workspace),), blocked_paths=(f"{workspace}/.git",))
    for path in (f"{workspace}/link", f"{workspace}/../secret", f"{tmp_path}/ws-twin/f", f"{workspace}/.git/config"):
        for tool, more in (("ReadFile", {}), ("WriteFile", {"content": "x"}), ("DeleteFile", {})):
            if tool == "DeleteFile" and path.endswith("link"):  # which is in the workspace
                continue
            assert error_of(await call(tool, scope, path=path, **more))[0] == "PERMISSION_DENIED", (tool, path)
    nothing = ToolConstraints(allowed_paths=())
    assert error_of(await call("ReadFile", nothing, path=f"{workspace}/f"))[0] == "PERMISSION_DENIED"
    assert (tmp_path / "secret").read_text() == "s"
    assert os.listdir(workspace / ".git") == []


async def test_a_name_that_is_blocked_at_any_depth_is_out_of_scope(call: Call, workspace: Path) -> None:
    (workspace / "sub" / ".vscode").mkdir(parents=True)
    (workspace / "innocent").symlink_to("sub/.vscode")
    scope = ToolConstraints(allowed_paths=(str(workspace),), blocked_paths=(f"{workspace}/**/.vscode", "relative"))
    for place in ("sub/.vscode/a", "sub/.VSCode/a", "innocent/a", ".vscode"):
        refused = await call("WriteFile", scope, path=f"{workspace}/{place}", content="x")
        assert error_of(refused)[0] == "PERMISSION_DENIED", place
    text_of(await call("WriteFile", scope, path=f"{workspace}/sub/a", content="x"))


async def test_what_git_runs_is_changed_only_where_a_path_names_it(call: Call, workspace: Path) -> None:
    hooks = workspace / "sub" / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text("old")
    (workspace / "innocent").symlink_to(hooks)
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    for tool, more in (("WriteFile", {"content": "x"}), ("DeleteFile", {})):
        for path in (hooks / "post-checkout", workspace / "innocent" / "post-checkout"):
            assert error_of(await call(tool, scope, path=str(path), **more))[0] == "PERMISSION_DENIED"
    assert (hooks / "post-checkout").read_text() == "old"
    named = ToolConstraints(allowed_paths=(str(hooks.parent),))
    text_of(await call("WriteFile", named, path=f"{hooks}/post-checkout", content="x"))
    text_of(await call("ReadFile", scope, path=f"{hooks}/post-checkout"))


@pytest.mark.parametrize("behind", ["_out_of_scope", "open_exact"])
@pytest.mark.parametrize("swap", ["directory", "file"])
@pytest.mark.parametrize(
    "tool", ["ReadFile", "WriteFile", "DeleteFile", "cp__read_file", "cp__write_file", "cp__delete_file"]
)
async def test_a_link_put_in_place_after_the_check_is_refused(
    make_router: MakeRouter,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    swap: str,
    tool: str,
    behind: str,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("mine")
    honest = getattr(paths, behind)
    swapped: list[str] = []

    def swap_behind(*what: Any) -> Any:
        found = honest(*what)
        if not swapped:
            swapped.append(swap)
            taken = workspace / "d" if swap == "directory" else workspace / "d" / "f"
            taken.rename(workspace / "old")
            taken.symlink_to(outside if swap == "directory" else outside / "f")
        return found

    monkeypatch.setattr(paths, behind, swap_behind)
    more = {"content": "evil"} if "rite" in tool else {}
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    router = make_router(families=("desktop", "native"))
    result = await router.execute(request(tool, scope, path=f"{workspace}/d/f", **more))
    if "ead" in tool and swap == "directory" and behind == "open_exact":
        assert "mine" in text_of(result)  # of the directory that was checked, by its descriptor
    elif tool == "DeleteFile" and swap == "file":
        assert not (workspace / "d" / "f").is_symlink()  # the name is what goes
    else:
        assert error_of(result)[0] == "PERMISSION_DENIED"
    assert (outside / "f").read_text() == "secret"


async def test_a_timed_out_write_does_not_happen_later(
    make_router: MakeRouter, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    done = threading.Event()

    def slow(_fd: int) -> None:
        reached.set()
        go_on.wait(10)

    monkeypatch.setattr(os, "fsync", slow)
    honest = os.unlink

    def seen(path: str, **more: int) -> None:
        honest(path, **more)
        done.set()

    monkeypatch.setattr(os, "unlink", seen)
    router = make_router(file_timeout_s=0.1)
    code, message = error_of(await router.execute(request("WriteFile", path=f"{workspace}/f", content="late")))
    assert (code, message) == ("TOOL_EXECUTION_TIMEOUT", "WriteFile timed out after 0.1 seconds")
    assert reached.is_set()
    go_on.set()
    assert done.wait(10), "the temporary file is removed"
    assert os.listdir(workspace) == []


def test_an_abandoned_delete_keeps_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    abandoned = Abandoned()
    abandoned.flag = True
    with pytest.raises(ToolFault) as raised:
        write.delete_file(str(tmp_path / "f"), Scope(), abandoned)
    assert raised.value.kind is FaultKind.TIMED_OUT
    assert (tmp_path / "f").exists()


async def test_a_large_earlier_content_gives_a_note_in_place_of_a_diff(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "BEFORE_MAX_BYTES", 10)
    (workspace / "f").write_text("x" * 11)
    result = await call("WriteFile", path=f"{workspace}/f", content="y")
    assert b"Replaced 11 bytes by 1 bytes" in result.artifacts[0].data


async def test_long_lines_are_cut_and_one_alone_is_not(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("short\n" + "x" * 5000 + "\nlast")
    shown = text_of(await call("ReadFile", path=f"{workspace}/f"))
    assert shown == (
        "short\n" + "x" * 2000 + " [... 3000 more characters of line 2: offset 2 with limit 1 shows it]\nlast"
    )
    assert text_of(await call("ReadFile", path=f"{workspace}/f", offset=2, limit=1)) == (
        "x" * 5000 + "\n[lines 2 to 2 of 3: offset 3 reads on]"
    )


@given(st.text(alphabet="ab\n\u00e9", max_size=40), st.integers(1, 6), st.none() | st.integers(1, 4), st.integers(1, 9))
def test_how_a_text_comes_makes_no_difference_to_its_window(
    text: str, offset: int, limit: int | None, size: int
) -> None:
    data = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_LINE_CHARS", 5)
        whole, cut = (reading.LineWindow(offset, limit, 10_000) for _ in range(2))
        whole.read([data], "utf-8")
        cut.read([data[at : at + size] for at in range(0, len(data), size)], "utf-8")
        assert (cut.text(), cut.past_end) == (whole.text(), whole.past_end)


READ_AND_MEASURE = """
import asyncio, os, sys
from benchmarks.processes import resident_mib
from benchmarks.tool_calls import Calls
from tests.support.peak_memory import peak_kib

async def main(path):
    calls = Calls(os.path.dirname(path))
    await calls.call("ReadFile", path=path, limit=1)
    idle = resident_mib(os.getpid())
    for offset in (100_000, 100_002):
        sys.stdout.write((await calls.call("ReadFile", path=path, offset=offset, limit=1)).partition("[lines")[0])
    print(peak_kib() / 1024 - idle)

asyncio.run(main(sys.argv[1]))
"""


async def test_what_is_left_out_in_the_middle_says_how_it_is_read(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "big").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    router = make_router(max_output_bytes=1000)
    text = text_of(await router.execute(request("ReadFile", path=f"{workspace}/big")))
    offset = int(text.rpartition("offset ")[2].split()[0])
    again = text_of(await router.execute(request("ReadFile", path=f"{workspace}/big", offset=offset, limit=2)))
    assert again.startswith(f"line {offset}\nline {offset + 1}\n")
    assert f"line {offset - 1}\n" in text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a process's memory is asked of `ps`")
def test_lines_of_a_file_of_two_gigabytes_are_read_in_constant_memory(workspace: Path) -> None:
    """Before the hole of a sparse file, and behind it."""
    path = workspace / "huge"
    with path.open("w") as file:
        file.writelines(f"line {number}\n" for number in range(1, 100_001))
        file.seek(2 * 1024**3)
        file.write("\nbehind\n")
    argv = [sys.executable, "-P", "-c", READ_AND_MEASURE, str(path)]
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=True)
    first, behind, grown_mib = done.stdout.splitlines()
    assert (first, behind) == ("line 100000", "behind")
    assert float(grown_mib) < 16
