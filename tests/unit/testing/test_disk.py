"""The simulated disk loses what a real one may lose, and stores that rely on more than that are caught by it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.faults import crash
from agent_host.faults.crash import CODES, FailingDisk, Faults, Killed, PowerCut
from agent_host.faults.disk import (
    EVERYTHING_SURVIVES,
    EXTREMES,
    FIRST_WRITE_LOST,
    LAST_WRITE_TORN,
    NOTHING_SURVIVES,
    ONLY_CONTENTS,
    ONLY_NAMES,
    PickedOutcome,
    PowerLossOutcome,
    SimulatedDisk,
    TornWrite,
)
from state import SessionLocked, WriteFailed
from state.disk import Disk, replace_atomically, write_new
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = "/s"
FILE = "/s/a"
SEEDS = 60


def outcomes(seeds: int = SEEDS) -> Iterator[tuple[str, PowerLossOutcome]]:
    yield from EXTREMES.items()
    for seed in range(seeds):
        yield f"seed {seed}", PickedOutcome(random.Random(seed).randrange)


def prepared(faults: Faults | None = None) -> SimulatedDisk:
    """A disk with a durable directory and a durable file in it."""
    disk = SimulatedDisk()
    disk.make_private_dir(ROOT)
    disk.sync_directory("/")
    write_new(disk, FILE, [b"old"])
    disk.sync_directory(ROOT)
    return disk.kill(faults) if faults is not None else disk


def found(disk: SimulatedDisk, path: str = FILE, seeds: int = SEEDS) -> set[bytes | None]:
    """Everything that `path` may hold after a power loss now."""
    return {disk.crash(outcome).contents().get(path) for _, outcome in outcomes(seeds)}


def test_what_was_synced_stays() -> None:
    assert found(prepared()) == {b"old"}


def test_a_write_that_was_not_synced_may_be_there_or_not_or_torn() -> None:
    disk = prepared()
    disk.write(disk.open_append(FILE), b"new!")
    assert disk.read(FILE) == b"oldnew!"
    seen = found(disk, seeds=400)
    assert {b"old", b"oldnew!", b"oldn", b"oldne", b"oldnew", b"oldn\0\0\0", b"old\0\0w!", b"old\0\0\0\0"} <= seen


def test_writes_arrive_in_any_order() -> None:
    disk = prepared()
    fd = disk.open_append(FILE)
    for data in (b"1", b"2", b"3"):
        disk.write(fd, data)
    assert {b"old", b"old1", b"old\x002", b"old\x00\x003", b"old12", b"old1\x003", b"old\x0023"} <= found(
        disk, seeds=400
    )


def test_a_name_needs_the_sync_of_its_directory() -> None:
    disk = prepared()
    write_new(disk, "/s/b", [b"whole"])
    assert found(disk, "/s/b") == {b"whole", None}
    disk.sync_directory(ROOT)
    assert found(disk, "/s/b") == {b"whole"}
    disk.remove("/s/b")
    assert found(disk, "/s/b") == {b"whole", None}


def test_a_directory_is_a_name_too() -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/s/deep")
    write_new(disk, "/s/deep/f", [b"whole"])
    disk.sync_directory("/s/deep")
    disk.sync_directory("/s")
    assert found(disk, "/s/deep/f") == {b"whole", None}
    disk.sync_directory("/")
    assert found(disk, "/s/deep/f") == {b"whole"}


def test_a_rename_is_atomic_for_its_target_and_loses_no_file() -> None:
    disk = prepared()
    write_new(disk, "/s/b", [b"new"])
    disk.sync_directory(ROOT)
    disk.replace("/s/b", FILE)
    images = [disk.crash(outcome).contents() for _, outcome in outcomes()]
    assert {image[FILE] for image in images} == {b"old", b"new"}
    assert all(image[FILE] == b"new" or image["/s/b"] == b"new" for image in images)
    assert any(image == {FILE: b"new", "/s/b": b"new"} for image in images)


def test_the_extremes_are_what_they_are_called() -> None:
    disk = prepared()
    disk.write(disk.open_append(FILE), b"1234")
    fd = disk.open_new("/s/b")
    disk.write(fd, b"5678")
    expected: list[tuple[PowerLossOutcome, dict[str, bytes]]] = [
        (NOTHING_SURVIVES, {FILE: b"old"}),
        (EVERYTHING_SURVIVES, {FILE: b"old1234", "/s/b": b"5678"}),
        (ONLY_NAMES, {FILE: b"old", "/s/b": b""}),
        (ONLY_CONTENTS, {FILE: b"old1234"}),
        (LAST_WRITE_TORN, {FILE: b"old1234", "/s/b": b"56"}),
        (FIRST_WRITE_LOST, {FILE: b"old", "/s/b": b"5678"}),
    ]
    for outcome, image in expected:
        assert disk.crash(outcome).contents() == image


def test_a_sync_that_failed_has_dropped_its_writes_for_good() -> None:
    disk = prepared(Faults(fail_call=3))
    fd = disk.open_append(FILE)
    disk.write(fd, b"lost")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)
    assert disk.read(FILE) == b"oldlost"
    disk.sync(fd)
    disk.write(fd, b"kept")
    disk.sync(fd)
    assert disk.misuses
    assert {b"old\0\0\0\0kept", b"oldlostkept"} <= found(disk)
    assert all(data is not None and data.endswith(b"kept") and len(data) == 11 for data in found(disk))


def test_a_killed_process_loses_nothing_but_its_successor_may() -> None:
    disk = prepared()
    disk.write(disk.open_append(FILE), b"new")
    lock = disk.lock("/s/lock", "s1")
    with pytest.raises(SessionLocked):
        disk.lock("/s/lock", "s1")
    after = disk.kill()
    assert after.read(FILE) == b"oldnew"
    assert after.boot_id() == disk.boot_id()
    assert after.holder("/s/lock") is None
    after.lock("/s/lock", "s1").release(remove=True)
    assert after.status("/s/lock") is None
    assert {b"old", b"oldnew"} <= found(after)
    assert after.crash(EVERYTHING_SURVIVES).boot_id() != disk.boot_id()
    lock.release(remove=False)
    assert disk.status("/s/lock") is not None


def test_a_power_cut_ends_every_later_call() -> None:
    disk = prepared(Faults(cut_before=2))
    fd = disk.open_append(FILE)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.write(fd, b"never")
    with pytest.raises(PowerCut):
        disk.read(FILE)
    assert "PowerCut before it" in disk.explain()
    assert disk.crash(EVERYTHING_SURVIVES).read(FILE) == b"old"


def test_a_power_cut_behind_a_call_leaves_what_it_did() -> None:
    disk = prepared(Faults(cut_after=2))
    fd = disk.open_append(FILE)
    with pytest.raises(PowerCut):
        disk.write(fd, b"new")
    assert disk.crash(EVERYTHING_SURVIVES).read(FILE) == b"oldnew"


def test_a_kill_ends_every_later_call() -> None:
    disk = prepared(Faults(kill_before=1))
    for _ in range(2):
        with pytest.raises(Killed):
            disk.open_append(FILE)


@each_row("code", CODES.values())
@each_row("persistently", [False, True])
def test_a_call_fails_once_or_from_then_on(code: int, persistently: bool) -> None:
    disk = prepared(Faults(fail_call=2, code=code, persistently=persistently, written=0.5))
    fd = disk.open_append(FILE)
    with pytest.raises(OSError, match=r"\w") as caught:
        disk.write(fd, b"half")
    assert caught.value.errno == code
    assert disk.read(FILE) == b"oldha"
    with pytest.raises(OSError, match=r"\w") if persistently else contextlib.nullcontext():
        disk.write(fd, b"!")


def test_a_lock_that_fails_is_a_write_that_failed() -> None:
    with pytest.raises(WriteFailed):
        prepared(Faults(fail_call=1)).lock("/s/lock", "s1")


def test_reads_count_where_the_plan_says_so() -> None:
    disk = prepared(Faults(fail_call=2, count_reads=True))
    disk.status(FILE)
    with pytest.raises(OSError, match="Input/output"):
        disk.read(FILE)


def both(tmp_path: Path) -> list[tuple[Disk, str]]:
    return [(Disk(), str(tmp_path / "real")), (SimulatedDisk(), "/real")]


def test_it_answers_like_a_real_disk(tmp_path: Path) -> None:
    said = []
    for disk, root in both(tmp_path):
        log: list[object] = []
        disk.make_private_dir(f"{root}/sub")
        disk.make_private_dir(f"{root}/sub")
        replace_atomically(disk, f"{root}/a", [b"one", b"two"])
        fd = disk.open_append(f"{root}/a")
        disk.write(fd, b"three")
        disk.write(fd, b"!")
        disk.sync(fd)
        disk.close(fd)
        log += [disk.read(f"{root}/a"), disk.names(root), disk.names(f"{root}/none"), disk.status(f"{root}/none")]
        for path in (f"{root}/a", f"{root}/sub"):
            status = disk.status(path)
            assert status is not None
            log += [status.kind, status.foreign, status.exposed, status.readable]
        for name, arguments in WRONG:
            with pytest.raises(OSError, match=r"\w") as caught:
                getattr(disk, name)(*(each.replace("~", root) if isinstance(each, str) else each for each in arguments))
            log.append((name, caught.value.errno))
        disk.remove(f"{root}/none")
        said.append(log)
    assert said[0] == said[1]


WRONG: list[tuple[str, tuple[str | int | bytes, ...]]] = [
    ("read", ("~/none",)),
    ("read", ("~/sub",)),
    ("open_append", ("~/none",)),
    ("open_append", ("~/sub",)),
    ("open_new", ("~/none/x",)),
    ("open_new", ("~/sub",)),
    ("replace", ("~/none", "~/x")),
    ("replace", ("~/a", "~/sub")),
    ("remove", ("~/sub",)),
    ("sync_directory", ("~/none",)),
    ("make_private_dir", ("~/a/x",)),
    ("write", (999, b"x")),
    ("close", (999,)),
]


class Toy:
    """A store of one number: a data file for each value and a pointer to the present one. `flaw` breaks it."""

    def __init__(self, disk: Disk, flaw: str = "") -> None:
        self.disk = disk
        self.flaw = flaw
        disk.make_private_dir(ROOT)
        disk.sync_directory("/")

    def save(self, value: int) -> None:
        data = [b"value ", b"%d." % value]
        if self.flaw == "the pointer comes first":
            self._point_to(value)
        if self.flaw == "a failed sync is tried again":
            self._write_stubbornly(value, b"".join(data))
        else:
            write_new(self.disk, f"{ROOT}/{value}", data)
        self.disk.sync_directory(ROOT)
        if self.flaw != "the pointer comes first":
            self._point_to(value)

    def _point_to(self, value: int) -> None:
        path = f"{ROOT}/current"
        write_new(self.disk, path + ".tmp", [b"%d" % value], durable=self.flaw != "the new file is not synced")
        self.disk.replace(path + ".tmp", path)
        if self.flaw != "the directory is not synced":
            self.disk.sync_directory(ROOT)

    def _write_stubbornly(self, value: int, data: bytes) -> None:
        fd = self.disk.open_new(f"{ROOT}/{value}")
        self.disk.write(fd, data)
        try:
            self.disk.sync(fd)
        except OSError:
            self.disk.sync(fd)
        self.disk.close(fd)

    def load(self) -> int:
        if self.disk.status(f"{ROOT}/current") is None:
            return 0
        data = self.disk.read(f"{ROOT}/" + self.disk.read(f"{ROOT}/current").decode())
        assert data.endswith(b".")
        return int(data.removeprefix(b"value ").removesuffix(b"."))


def violations(flaw: str) -> list[str]:
    """What goes wrong with a toy store at any cut, and behind any call that failed once."""
    calls = attempt(SimulatedDisk(), flaw)[0].calls.count
    plans = [Faults(cut_before=call) for call in range(1, calls + 1)]
    plans += [Faults(fail_call=call) for call in range(1, calls + 1)]
    plans += [Faults(kill_before=call) for call in range(1, calls + 1)]
    wrong = []
    for plan in plans:
        disk, sure, tried = attempt(SimulatedDisk(plan), flaw)
        images = [("killed", disk.kill())] if plan.kill_before is not None else []
        images += [(name, disk.crash(outcome)) for name, outcome in outcomes(20)]
        for name, image in images:
            try:
                value = Toy(image).load()
            except (OSError, ValueError, AssertionError) as error:
                wrong.append(f"{plan}, {name}: {error!r}")
            else:
                if not sure <= value <= tried:
                    wrong.append(f"{plan}, {name}: {value} is not from {sure} to {tried}")
        wrong += disk.misuses
    return wrong


def attempt(disk: SimulatedDisk, flaw: str) -> tuple[SimulatedDisk, int, int]:
    """The disk behind three saves, with the value that must be there and the last one that may be."""
    sure = tried = 0
    with contextlib.suppress(PowerCut, Killed, OSError):
        toy = Toy(disk, flaw)
        for value in (1, 2, 3):
            tried = value
            toy.save(value)
            sure = value
    return disk, sure, tried


def test_a_store_that_syncs_all_it_must_loses_nothing() -> None:
    assert violations("") == []


@pytest.mark.parametrize(
    "flaw",
    [
        "the directory is not synced",
        "the pointer comes first",
        "the new file is not synced",
        "a failed sync is tried again",
    ],
)
def test_a_store_that_relies_on_too_much_is_caught(flaw: str) -> None:
    assert violations(flaw)


@given(data=st.data())
@settings(max_examples=60)
def test_a_good_store_holds_whatever_is_chosen(data: st.DataObject) -> None:
    disk, sure, tried = attempt(SimulatedDisk(Faults(cut_before=data.draw(st.integers(1, 45)))), "")
    image = disk.crash(PickedOutcome(lambda n: data.draw(st.integers(0, n - 1))))
    assert sure <= Toy(image).load() <= tried


def test_every_kept_part_of_a_write_has_its_size() -> None:
    assert TornWrite.all_of(4) == TornWrite(4, 4)
    assert TornWrite.nothing_of(4) == TornWrite(0, 4, grown=False)


def test_a_real_disk_fails_by_the_same_plan(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    disk = FailingDisk(Disk(), Faults(fail_call=2, code=errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as caught:
        replace_atomically(disk, path, [b"whole"])
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []
    replace_atomically(disk, path, [b"whole"])
    assert disk.read(path) == b"whole"
    lock = disk.lock(path + ".lock", "s1")
    assert disk.holder(path + ".lock") == os.getpid()
    lock.release(remove=True)
    assert disk.names(str(tmp_path)) == ["a"]
    assert disk.boot_id() == Disk().boot_id()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_real_process_dies_before_the_call(tmp_path: Path) -> None:
    program = (
        "import sys; from agent_host.faults.crash import spoil_local_disk;"
        "from state.disk import LOCAL_DISK; from state.disk import write_new;"
        "from agent_host.faults.crash import Faults; spoil_local_disk(Faults(kill_before=3));"
        "write_new(LOCAL_DISK, sys.argv[1], [b'written'])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a")])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"written"


@pytest.mark.parametrize(
    "arguments",
    [[], ["run"], ["--before-call", "0", "run"], ["--after-record", "1", "--before-call", "1"], ["--fail-call", "x"]],
)
def test_the_crash_driver_refuses_what_names_no_point(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        crash.run(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "later"), [([], "ok"), (["--persistently"], "No space left on device")])
def test_the_crash_driver_spoils_the_disk_of_the_whole_process(tmp_path: Path, more: list[str], later: str) -> None:
    program = (
        "import sys; from agent_host.faults import crash; from state.disk import LOCAL_DISK\n"
        "from state.disk import replace_atomically\n"
        "def main(arguments):\n"
        "    for name in arguments:\n"
        "        try: replace_atomically(LOCAL_DISK, name, [b'x']); print('ok')\n"
        "        except OSError as error: print(error.strerror)\n"
        "crash.main = main; crash.run(sys.argv[1:])"
    )
    options = ["--fail-call", "3", "--errno", "ENOSPC", *more, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["No space left on device", later], done.stderr
