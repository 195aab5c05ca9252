"""One key for a state directory: kept, private, and for this process alone where it cannot be kept."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from state.redaction_key import redaction_key

if TYPE_CHECKING:
    from pathlib import Path


def test_the_key_is_made_once(tmp_path: Path) -> None:
    state_dir = tmp_path / "new" / "state"
    umask = os.umask(0)
    try:
        key = redaction_key(str(state_dir))
    finally:
        os.umask(umask)
    assert len(key) == 32
    assert len(set(key)) > 4
    assert redaction_key(str(state_dir)) == key
    assert os.listdir(state_dir) == ["redaction.key"]
    assert (state_dir / "redaction.key").read_bytes() == key
    assert stat.S_IMODE((state_dir / "redaction.key").stat().st_mode) == 0o600
    assert redaction_key(str(tmp_path / "another")) != key


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 33])
def test_what_is_no_key_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "redaction.key").write_bytes(content)
    key = redaction_key(str(tmp_path))
    assert len(key) == 32
    assert redaction_key(str(tmp_path)) != key
    assert (tmp_path / "redaction.key").read_bytes() == content


def test_where_nothing_can_be_written_the_key_is_this_process_s(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"a file in the way")
    assert len(redaction_key(str(tmp_path / "state"))) == 32


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"k" * 32)
    (tmp_path / "redaction.key").symlink_to("elsewhere")
    assert redaction_key(str(tmp_path)) != b"k" * 32


def test_of_two_processes_that_make_it_at_once_both_have_the_first_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(_: int) -> bytes:
        (tmp_path / "redaction.key").write_bytes(b"f" * 32)
        return b"s" * 32

    monkeypatch.setattr("secrets.token_bytes", first)
    assert redaction_key(str(tmp_path)) == b"f" * 32


def test_a_key_that_could_be_written_only_in_part_is_this_process_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "full")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    assert len(redaction_key(str(tmp_path))) == 32
