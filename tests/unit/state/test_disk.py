"""The disk of this machine: what lies under a name, and what is opened, written and taken away."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.crash import FailingDisk
from agent_host.faults.disk import SimulatedDisk, _MemoryDisk
from state import Damaged, WriteFailed, translate_errors
from state.disk import LOCAL_DISK, Disk, boot_id, make_durable_dir, replace_atomically, write_new
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize("disk", [_MemoryDisk, FailingDisk])
def test_a_disk_of_the_fault_suite_passes_nothing_on_to_this_machine_s_unseen(disk: type[Disk]) -> None:
    calls = {name for name, value in vars(Disk).items() if callable(value) and not name.startswith("_")}
    assert len(calls) > 10
    assert calls <= vars(disk).keys()


def what_is(path: Path) -> str:
    status = LOCAL_DISK.status(str(path))
    return "nothing" if status is None else status.kind


def test_what_lies_under_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    names = ("file", "folder", "link", "pipe", "gone", "file/below")
    assert [what_is(tmp_path / name) for name in names] == [
        *("file", "directory", "other", "other", "nothing", "nothing")
    ]
    os.link(tmp_path / "file", tmp_path / "second")
    os.utime(tmp_path / "file", (5, 1_000.5))
    found = LOCAL_DISK.status(str(tmp_path / "file"))
    assert found is not None
    assert (found.size, found.modified, found.links, found.foreign) == (5, 1_000.5, 2, False)


@pytest.mark.parametrize(
    ("mode", "exposed", "readable"),
    [
        (0o600, False, False),
        (0o711, False, False),
        (0o640, False, True),
        (0o604, False, True),
        (0o620, True, False),
        (0o602, True, False),
        (0o666, True, True),
    ],
)
def test_who_may_read_and_write(tmp_path: Path, mode: int, exposed: bool, readable: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    found = LOCAL_DISK.status(str(tmp_path / "file"))
    assert found is not None
    assert (found.exposed, found.readable) == (exposed, readable)


def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "file").stat().st_uid + 1)
    found = LOCAL_DISK.status(str(tmp_path / "file"))
    assert found is not None
    assert found.foreign


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\r\n\x1a\xff")
    assert LOCAL_DISK.read(str(tmp_path / "file")) == b"\r\n\x1a\xff"
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    codes = {"link": errno.ELOOP, "pipe": errno.EINVAL, "folder": errno.EINVAL, "gone": errno.ENOENT}
    for name, code in codes.items():
        with pytest.raises(OSError, match=name) as caught:
            LOCAL_DISK.read(str(tmp_path / name))
        assert caught.value.errno == code


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_what_is_read_or_synced_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    before = open_files()
    LOCAL_DISK.read(str(tmp_path / "file"))
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="regular"):
            LOCAL_DISK.read(str(path))
    LOCAL_DISK.sync_directory(str(tmp_path))
    assert open_files() == before


def test_a_new_file_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    path = tmp_path / "file"
    path.symlink_to("target")
    umask = os.umask(0)
    try:
        fd = LOCAL_DISK.open_new(str(path))
    finally:
        os.umask(umask)
    LOCAL_DISK.write(fd, b"new")
    with pytest.raises(OSError, match="descriptor"):
        os.read(fd, 1)  # it is for writing alone
    LOCAL_DISK.sync(fd)
    LOCAL_DISK.close(fd)
    assert (path.read_bytes(), (tmp_path / "target").read_bytes()) == (b"new", b"mine")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600


def test_a_new_file_is_never_one_that_somebody_put_there_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"theirs")
    monkeypatch.setattr(Disk, "remove", lambda *_: None)
    with pytest.raises(FileExistsError):
        LOCAL_DISK.open_new(str(path))
    assert path.read_bytes() == b"theirs"


def test_what_is_appended_goes_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        LOCAL_DISK.open_append(str(path))
    path.write_bytes(b"one")
    first, second = LOCAL_DISK.open_append(str(path)), LOCAL_DISK.open_append(str(path))
    LOCAL_DISK.write(first, b" two")
    LOCAL_DISK.write(second, b" three")
    for fd in (first, second):
        LOCAL_DISK.close(fd)
    assert path.read_bytes() == b"one two three"


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    fd = LOCAL_DISK.open_new(str(tmp_path / "file"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:most]))
        LOCAL_DISK.write(fd, b"0123456789")
        LOCAL_DISK.write(fd, b"")
    LOCAL_DISK.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_names_are_sorted_and_none_where_there_is_no_folder(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).touch()
    assert LOCAL_DISK.names(str(tmp_path)) == ["a", "b", "c"]
    assert LOCAL_DISK.names(str(tmp_path / "gone")) == []
    assert LOCAL_DISK.names(str(tmp_path / "a")) == []


def test_what_is_not_there_can_be_removed(tmp_path: Path) -> None:
    LOCAL_DISK.remove(str(tmp_path / "gone"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        LOCAL_DISK.remove(str(tmp_path / "folder"))


def test_a_second_name_takes_no_other_s_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        LOCAL_DISK.link(str(tmp_path / "a"), str(tmp_path / "b"))
    LOCAL_DISK.link(str(tmp_path / "a"), str(tmp_path / "c"))
    assert os.path.samefile(tmp_path / "a", tmp_path / "c")


def test_a_file_without_its_name(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    fd = LOCAL_DISK.open_new(path)
    assert LOCAL_DISK.is_named(fd, path)
    os.rename(path, tmp_path / "moved")
    assert not LOCAL_DISK.is_named(fd, path)
    (tmp_path / "file").touch()
    assert not LOCAL_DISK.is_named(fd, path)
    os.unlink(path)
    os.symlink("moved", path)
    assert not LOCAL_DISK.is_named(fd, path)
    assert not LOCAL_DISK.is_named(fd, str(tmp_path / "moved" / "below"))
    LOCAL_DISK.close(fd)


def test_a_sync_is_one_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            os, name, lambda fd, name=name: synced.append(f"{name} {os.readlink(f'/proc/self/fd/{fd}')}")
        )
    LOCAL_DISK.sync_directory(str(tmp_path))
    fd = LOCAL_DISK.open_new(str(tmp_path / "file"))
    LOCAL_DISK.sync(fd)
    LOCAL_DISK.close(fd)
    assert synced == [f"fsync {tmp_path}", f"fdatasync {tmp_path / 'file'}"]
    with pytest.raises(OSError, match="directory"):
        LOCAL_DISK.sync_directory(str(tmp_path / "file"))


@pytest.mark.usefixtures("fresh_boot")
@pytest.mark.parametrize(("content", "found"), [(b" b00t-1d\n", "b00t-1d"), (b"\n", None), (None, None)])
def test_the_boot_s_id_or_none(
    tmp_path: Path, content: bytes | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr("state.disk._LINUX_BOOT_ID", str(path))
    assert boot_id() == LOCAL_DISK.boot_id() == found


@pytest.fixture
def fresh_boot() -> Iterator[None]:
    boot_id.cache_clear()
    yield
    boot_id.cache_clear()


@pytest.mark.usefixtures("fresh_boot")
@pytest.mark.parametrize(
    ("says", "found"),
    [("B00T\n", "B00T"), ("", None), (OSError(), None), (subprocess.TimeoutExpired("sysctl", 5), None)],
)
def test_another_system_s_kernel_is_asked(
    says: str | Exception, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def run(command: object, **more: object) -> subprocess.CompletedProcess[str]:
        asked.append((command, more))
        if isinstance(says, Exception):
            raise says
        return subprocess.CompletedProcess("", 0, says)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert boot_id() == found
    ((command, more),) = asked
    assert command == ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    assert more == {"capture_output": True, "text": True, "check": True, "timeout": 5, "env": {}}


@pytest.mark.usefixtures("fresh_boot")
def test_a_system_without_a_word_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "sunos5")
    assert boot_id() is None


@pytest.mark.skipif(not os.path.exists("/proc/sys/kernel/random/boot_id"), reason="the kernel's own file")
@pytest.mark.usefixtures("fresh_boot")
def test_the_kernel_says_which_boot_it_is() -> None:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        assert boot_id() == handle.read().strip()


# --- files and folders through a disk ---------------------------------------------------------------------------------


def called(disk: SimulatedDisk) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in disk.calls.log]


def test_each_name_of_a_new_folder_is_made_durable() -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/home")
    made = len(disk.calls.log)
    make_durable_dir(disk, "/home/state/sessions/s", within="/home/state")
    assert called(disk)[made:] == [
        "make_private_dir(/home/state/sessions/s)",
        *("sync_directory(/home)", "sync_directory(/home/state)", "sync_directory(/home/state/sessions)"),
    ]
    # What is above `within` was there; what is below it may not be durable yet.
    made = len(disk.calls.log)
    make_durable_dir(disk, "/home/state/sessions/s", within="/home/state")
    assert called(disk)[made + 1 :] == ["sync_directory(/home/state)", "sync_directory(/home/state/sessions)"]


def test_all_folders_up_to_the_root_may_be_new() -> None:
    disk = SimulatedDisk()
    make_durable_dir(disk, "/a/b/c", within="/a/b")
    assert called(disk) == [
        "make_private_dir(/a/b/c)",
        "sync_directory(/)",
        "sync_directory(/a)",
        "sync_directory(/a/b)",
    ]
    disk = SimulatedDisk()
    make_durable_dir(disk, "/a", within="/a")
    assert called(disk) == ["make_private_dir(/a)", "sync_directory(/)"]
    make_durable_dir(disk, "/a", within="/a")
    assert called(disk)[2:] == ["make_private_dir(/a)"]


PIECE = 256 * 1024


@each_row(
    ("sizes", "written"),
    [
        ([], []),
        ([5], [5]),
        ([1, 2, 3], [6]),
        ([PIECE - 1, 1, 1], [PIECE, 1]),
        ([PIECE - 1, 2, 1], [PIECE + 1, 1]),
        ([PIECE, 4], [PIECE, 4]),
        ([PIECE, PIECE - 1, 1], [PIECE, PIECE]),
        ([3, 3 * PIECE, 2 * PIECE, 7], [3 * PIECE + 3, 2 * PIECE, 7]),
    ],
)
def test_small_pieces_are_gathered(sizes: list[int], written: list[int]) -> None:
    disk = SimulatedDisk()
    chunks = [bytes([number]) * size for number, size in enumerate(sizes, 65)]
    assert write_new(disk, "/file", chunks) == sum(sizes)
    assert disk.contents()["/file"] == b"".join(chunks)
    sizes_of = [int(line.split()[-2]) for line in called(disk) if line.startswith("write(")]
    assert sizes_of == written


def test_a_file_is_put_in_place_of_another_in_four_steps() -> None:
    disk = SimulatedDisk()
    assert replace_atomically(disk, "/file", [b"a", b"bc"]) == 3
    steps = [line for line in called(disk) if not line.startswith(("write", "close"))]
    assert steps == ["open_new(/file.tmp)", "sync(/file.tmp)", "replace(/file.tmp, /file)", "sync_directory(/)"]
    write_new(disk, "/other", [b"a"], durable=False)
    assert "sync(/other)" not in called(disk)
    with pytest.raises(OSError, match="gone"):
        replace_atomically(disk, "/gone/file", [b"a"])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_file_that_could_not_be_written_is_closed_and_gone(tmp_path: Path) -> None:
    def chunks() -> list[bytes]:
        raise KeyboardInterrupt

    before = open_files()
    path = str(tmp_path / "file")
    write_new(LOCAL_DISK, path, [b"a"])
    with pytest.raises(KeyboardInterrupt):
        write_new(LOCAL_DISK, path, (each for _ in range(1) for each in chunks()))
    assert os.listdir(tmp_path) == []
    assert open_files() == before


# --- their errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EIO, "broken"), "looking failed: broken"),
        (OSError(errno.EIO, "broken", "/f"), "looking failed: broken: /f"),
        (OSError(errno.EIO, "broken", b"/f"), "looking failed: broken"),
        (OSError("no number"), "looking failed: no number"),
    ],
)
def test_what_a_disk_says_is_told(error: OSError, said: str) -> None:
    with pytest.raises(WriteFailed) as caught, translate_errors("looking"):
        raise error
    assert str(caught.value) == said
    assert caught.value.__cause__ is error


def test_damage_is_not_put_aside_by_being_told() -> None:
    error = Damaged("it is broken")
    assert (str(error), error.quarantined, error.salvaged) == ("it is broken", None, False)
