"""What is put aside: both files under one number, moved or copied, and durable."""

from __future__ import annotations

import pytest

from agent_host.faults.crash import Faults
from agent_host.faults.disk import EXTREMES, PowerLossOutcome, SimulatedDisk
from state import SessionPaths
from state.disk import copy_aside, is_quarantined, move_aside, write_new

PATHS = SessionPaths("/", "s")
SNAPSHOT, JOURNAL = PATHS.snapshot, PATHS.journal


def disk_with(*paths: str, faults: Faults | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(faults or Faults())
    disk.make_private_dir(PATHS.checkpoints)
    disk.sync_directory("/")
    for path in paths:
        write_new(disk, path, [path.encode()])
    disk.sync_directory(PATHS.checkpoints)
    return disk


def files(disk: SimulatedDisk) -> dict[str, str]:
    """Contents by the name's end; each file began with its own path as content."""
    return {path.rpartition("/")[2]: data.decode().rpartition(".")[2] for path, data in disk.contents().items()}


@pytest.mark.parametrize("outcome", EXTREMES.values(), ids=EXTREMES)
def test_both_files_are_moved_durably(outcome: PowerLossOutcome) -> None:
    disk = disk_with(SNAPSHOT, JOURNAL)
    assert not is_quarantined(disk, PATHS)
    assert move_aside(disk, PATHS) == f"{SNAPSHOT}.corrupt-1"
    assert is_quarantined(disk, PATHS)
    assert files(disk.crash(outcome)) == {"s.json.corrupt-1": "json", "s.journal.corrupt-1": "journal"}


@pytest.mark.parametrize("outcome", EXTREMES.values(), ids=EXTREMES)
def test_both_files_are_copied_durably(outcome: PowerLossOutcome) -> None:
    disk = disk_with(SNAPSHOT, JOURNAL)
    assert copy_aside(disk, PATHS) == f"{SNAPSHOT}.corrupt-1"
    copies = {"s.json.corrupt-1": "json", "s.journal.corrupt-1": "journal"}
    assert files(disk.crash(outcome)) == {"s.json": "json", "s.journal": "journal", **copies}
    assert is_quarantined(disk, PATHS)


@pytest.mark.parametrize("aside", [move_aside, copy_aside])
@pytest.mark.parametrize(("there", "kind"), [(SNAPSHOT, "json"), (JOURNAL, "journal")])
def test_one_of_them_may_be_missing(aside: type, there: str, kind: str) -> None:
    disk = disk_with(there)
    assert aside(disk, PATHS) == f"{there}.corrupt-1"
    assert files(disk)[f"s.{kind}.corrupt-1"] == kind
    assert is_quarantined(disk, PATHS)


@pytest.mark.parametrize("taken", [f"{SNAPSHOT}.corrupt-1", f"{JOURNAL}.corrupt-1"])
def test_a_number_is_used_once(taken: str) -> None:
    disk = disk_with(SNAPSHOT, JOURNAL, taken)
    assert copy_aside(disk, PATHS) == f"{SNAPSHOT}.corrupt-2"
    assert move_aside(disk, PATHS) == f"{SNAPSHOT}.corrupt-3"
    assert disk.contents()[taken] == taken.encode()
    assert len(files(disk)) == 5


def test_files_of_other_sessions_are_not_this_one_s() -> None:
    disk = disk_with("/checkpoints/s2.json.corrupt-1", "/checkpoints/as.journal.corrupt-1", "/checkpoints/s.json.tmp")
    assert not is_quarantined(disk, PATHS)
    write_new(disk, f"{JOURNAL}.corrupt-7", [b"x"])
    assert is_quarantined(disk, PATHS)


def test_of_two_copies_there_are_both_or_none() -> None:
    began = disk_with(SNAPSHOT, JOURNAL).calls.count
    calls = 0
    while True:
        disk = disk_with(SNAPSHOT, JOURNAL, faults=Faults(fail_call=began + calls + 1))
        try:
            copy_aside(disk, PATHS)
        except OSError:
            calls += 1
            assert files(disk) == {"s.json": "json", "s.journal": "journal"}, disk.explain()
        else:
            break
    assert calls == 9, "four for each file, and the folder"
