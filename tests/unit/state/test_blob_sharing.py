"""Blobs with a second name, blobs on a disk that loses power, and what their folder counts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.crash import Faults
from agent_host.faults.disk import EXTREMES, SimulatedDisk
from state import StorageLimit
from state.blobs import BlobFolder, sha256_hex
from state.disk import LOCAL_DISK
from tests.unit.state.helpers import create

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.faults.disk import PowerLossOutcome

DATA, NAME = b"content", sha256_hex(b"content")


def folder(directory: Path, limit_bytes: int = 1000) -> BlobFolder:
    return BlobFolder(LOCAL_DISK, str(directory / "blobs"), limit_bytes)


def test_a_shared_blob_is_one_file_with_two_names(tmp_path: Path) -> None:
    blobs, path = folder(tmp_path), tmp_path / "artifact"
    path.write_bytes(b"an older one")
    (tmp_path / "artifact.tmp").write_bytes(b"left by a crash")
    assert blobs.share([DATA], str(path)) == (NAME, len(DATA))
    assert path.read_bytes() == DATA
    assert os.path.samefile(path, tmp_path / "blobs" / NAME)
    assert sorted(os.listdir(tmp_path)) == ["artifact", "blobs"]
    assert blobs.total_bytes == len(DATA)
    assert blobs.share([DATA], str(tmp_path / "second")) == (NAME, len(DATA))
    assert os.stat(path).st_nlink == 3


def test_a_damaged_blob_is_not_what_is_shared(tmp_path: Path) -> None:
    blobs = folder(tmp_path)
    blobs.share([DATA], str(tmp_path / "first"))
    (tmp_path / "blobs" / NAME).write_bytes(b"Content")
    blobs.share([DATA], str(tmp_path / "second"))
    assert (tmp_path / "second").read_bytes() == DATA
    assert blobs.get(NAME) == DATA


def test_without_second_names_there_is_a_copy() -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/s")
    before = disk.calls.count
    blobs = BlobFolder(disk, "/s/blobs", 1000)
    blobs.share([DATA], "/s/a")
    link = next(number for number, line in enumerate(disk.calls.log, 1) if "link(" in line)
    assert not any("sync" in line for line in disk.calls.log[before:])
    bare = SimulatedDisk(Faults(fail_call=link))
    bare.make_private_dir("/s")
    assert BlobFolder(bare, "/s/blobs", 1000).share([DATA], "/s/a") == (NAME, len(DATA))
    assert bare.contents() == {f"/s/blobs/{NAME}": DATA, "/s/a": DATA}
    assert not any("sync" in line for line in bare.calls.log)


def test_there_is_no_room_to_share_above_the_limit(tmp_path: Path) -> None:
    blobs = folder(tmp_path, len(DATA))
    refused = [blobs.refused]
    blobs.share([DATA], str(tmp_path / "a"))
    blobs.share([DATA], str(tmp_path / "b"))  # it is there already
    with pytest.raises(StorageLimit, match="limit of 7 bytes") as caught:
        blobs.share([b"!"], str(tmp_path / "c"))
    assert caught.value.limit_bytes == 7
    assert [*refused, blobs.refused] == [False, True]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "blobs"]


def test_a_session_whose_artifacts_found_no_room_says_so(tmp_path: Path) -> None:
    session = create(tmp_path, blob_limit_bytes=5)
    full = [session.storage_full]
    with pytest.raises(StorageLimit):
        session.blobs.share([DATA], str(tmp_path / "a"))
    assert [*full, session.storage_full] == [False, True]
    session.close()


def test_nothing_has_room_to_be_nothing(tmp_path: Path) -> None:
    blobs = folder(tmp_path, 3)
    blobs.put(b"abcd", limited=False)
    assert blobs.total_bytes == 4
    blobs.put(b"")
    assert blobs.get(sha256_hex(b"")) == b""
    with pytest.raises(StorageLimit):
        blobs.put(b"e")


def test_what_is_swept_is_not_counted_any_more(tmp_path: Path) -> None:
    blobs = folder(tmp_path, 10)
    blobs.put(b"1234", b"567890")
    (tmp_path / "blobs" / "folder").mkdir()
    blobs.sweep({sha256_hex(b"1234")})
    assert (blobs.total_bytes, blobs.has_room(6), blobs.has_room(7)) == (4, True, False)
    blobs.put(b"567890")
    assert blobs.get(sha256_hex(b"567890")) == b"567890"


def test_a_sweep_goes_on_behind_what_it_leaves(tmp_path: Path) -> None:
    blobs = folder(tmp_path)
    kept, gone = sorted([sha256_hex(b"one"), sha256_hex(b"two")])
    blobs.put(b"one", b"two")
    blobs.sweep({kept})
    assert os.listdir(tmp_path / "blobs") == [kept]
    assert gone != kept


@pytest.mark.parametrize("outcome", EXTREMES.values(), ids=EXTREMES)
def test_what_was_put_is_there_after_any_power_loss(outcome: PowerLossOutcome) -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/s/records")
    for path in ("/", "/s"):
        disk.sync_directory(path)
    blobs = BlobFolder(disk, "/s/records/blobs", 1000)
    for data in (DATA, b"later"):
        blobs.put(data)
        found = BlobFolder(disk.crash(outcome), "/s/records/blobs", 1000)
        assert found.get(sha256_hex(data)) == data


@pytest.mark.parametrize("outcome", EXTREMES.values(), ids=EXTREMES)
def test_a_shared_blob_is_made_durable_by_a_record_that_names_it(outcome: PowerLossOutcome) -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/s")
    disk.sync_directory("/")
    blobs = BlobFolder(disk, "/s/blobs", 1000)
    blobs.share([DATA], "/s/a")
    blobs.put(DATA)
    assert BlobFolder(disk.crash(outcome), "/s/blobs", 1000).get(NAME) == DATA


def test_what_is_durable_is_not_written_again() -> None:
    disk = SimulatedDisk()
    disk.make_private_dir("/s")
    blobs = BlobFolder(disk, "/s/blobs", 1000)
    blobs.put(DATA)
    before = disk.calls.count
    blobs.put(DATA)
    assert disk.calls.count == before
    blobs.put(b"more")
    written = [line for line in disk.calls.log[before:] if "make_private_dir" in line or "sync_directory" in line]
    assert len(written) == 1, "the folder is made once"
    blobs.durable |= {sha256_hex(b"trusted")}
    before = disk.calls.count
    blobs.put(b"trusted")
    assert disk.calls.count == before


def test_a_disk_that_keeps_no_folder_keeps_no_blob(tmp_path: Path) -> None:
    """A folder that could not be made is tried again the next time."""
    (tmp_path / "blobs").write_bytes(b"in the way")
    blobs = folder(tmp_path)
    with pytest.raises(OSError, match="directory"):
        blobs.put(DATA)
    (tmp_path / "blobs").unlink()
    blobs.put(DATA)
    assert blobs.get(NAME) == DATA
