"""Content-addressed files: once, whole, private, below their limit."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from state import StorageLimit
from state.blobs import BlobFolder, sha256_hex
from state.disk import LOCAL_DISK, Disk

if TYPE_CHECKING:
    from pathlib import Path


def folder(directory: Path, limit_bytes: int = 1000) -> BlobFolder:
    return BlobFolder(LOCAL_DISK, str(directory), limit_bytes)


def test_what_is_put_comes_back_and_is_there_once(tmp_path: Path) -> None:
    blobs = folder(tmp_path / "blobs")
    blobs.put(b"first", b"", b"first")
    assert sorted(os.listdir(tmp_path / "blobs")) == sorted([sha256_hex(b"first"), sha256_hex(b"")])
    assert blobs.get(sha256_hex(b"first")) == b"first"
    assert blobs.get(sha256_hex(b"")) == b""
    assert blobs.total_bytes == 5
    inode = os.stat(tmp_path / "blobs" / sha256_hex(b"first")).st_ino
    blobs.put(b"first")
    assert os.stat(tmp_path / "blobs" / sha256_hex(b"first")).st_ino == inode


def test_blobs_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder(tmp_path / "blobs").put(b"first")
    assert stat.S_IMODE(os.stat(tmp_path / "blobs").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "blobs" / sha256_hex(b"first")).st_mode) == 0o600


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    folder(tmp_path / "blobs").put()
    assert not (tmp_path / "blobs").exists()


def test_a_blob_that_is_not_what_its_name_says_is_none(tmp_path: Path) -> None:
    blobs, name = folder(tmp_path), sha256_hex(b"content")
    blobs.put(b"content")
    (tmp_path / name).write_bytes(b"Content")
    assert blobs.get(name) is None
    assert blobs.get("0" * 64) is None
    (tmp_path / "secret").write_bytes(b"s")
    assert folder(tmp_path / "x").get("../secret") is None
    (tmp_path / name).unlink()
    (tmp_path / "elsewhere").write_bytes(b"content")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    assert blobs.get(name) is None


def test_what_an_earlier_process_left_damaged_is_healed(tmp_path: Path) -> None:
    name = sha256_hex(b"content")
    folder(tmp_path).put(b"content")
    (tmp_path / name).write_bytes(b"")
    blobs = folder(tmp_path)
    blobs.put(b"content")
    assert blobs.get(name) == b"content"


def test_a_blob_that_cannot_be_written_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(_: Disk, fd: int, data: bytes) -> None:
        os.write(fd, data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    blobs = folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write", fill_up)
        with pytest.raises(OSError, match="No space"):
            blobs.put(b"content")
    assert os.listdir(tmp_path) == []
    blobs.put(b"content")
    assert blobs.get(sha256_hex(b"content")) == b"content"


def test_the_limit_is_exact_and_counts_what_was_there(tmp_path: Path) -> None:
    folder(tmp_path).put(b"x" * 400)
    blobs = folder(tmp_path, 1000)
    with pytest.raises(StorageLimit, match="1000 bytes"):
        blobs.put(b"y" * 300, b"z" * 301)
    assert len(os.listdir(tmp_path)) == 1
    blobs.put(b"x" * 400, b"y" * 300, b"z" * 300)
    assert (blobs.total_bytes, blobs.has_room(0), blobs.has_room(1)) == (1000, True, False)


def test_the_sweep_takes_what_nothing_names(tmp_path: Path) -> None:
    blobs = folder(tmp_path)
    blobs.put(b"named", b"nobody's", b"artifact")
    os.link(tmp_path / sha256_hex(b"artifact"), tmp_path.parent / "art_1")
    (tmp_path / f"{sha256_hex(b'half')}.tmp").write_bytes(b"ha")
    (tmp_path / "folder").mkdir()
    blobs.sweep({sha256_hex(b"named")})
    kept = {"folder", sha256_hex(b"named"), sha256_hex(b"artifact")}
    assert set(os.listdir(tmp_path)) == kept
    blobs.put(b"nobody's")
    assert blobs.get(sha256_hex(b"nobody's")) == b"nobody's"
