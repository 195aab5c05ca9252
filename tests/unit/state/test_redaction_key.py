"""The key of the placeholders: one for a state directory, whoever asks first, whatever a crash has left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from state.keys import KEY_NAME, redaction_key

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    key = redaction_key(str(state))
    assert (len(key), redaction_key(str(state))) == (32, key)
    assert (state / KEY_NAME).read_bytes() == key
    assert os.listdir(state) == [KEY_NAME]
    if sys.platform != "win32":
        assert stat.S_IMODE((state / KEY_NAME).stat().st_mode) == 0o600


def test_each_directory_has_its_own(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert redaction_key(str(tmp_path / "a")) != redaction_key(str(tmp_path / "b"))


def test_a_directory_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    assert redaction_key(str(tmp_path / "gone")) == redaction_key(str(tmp_path / "gone")), "one for this process"
    assert not (tmp_path / "gone").exists()


def test_another_process_has_the_same(tmp_path: Path) -> None:
    code = f"from state.keys import redaction_key; print(redaction_key({str(tmp_path)!r}).hex())"
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {other.communicate(timeout=30)[0].strip() for other in others}
    assert said == {redaction_key(str(tmp_path)).hex()}


def test_all_who_ask_at_once_get_the_same(tmp_path: Path) -> None:
    for turn in range(20):
        barrier = Barrier(8)

        def ask(state: str, barrier: Barrier = barrier) -> bytes:
            barrier.wait(10)
            return redaction_key(state)

        state = str(tmp_path / str(turn))
        os.mkdir(state)
        with ThreadPoolExecutor(8) as pool:
            keys = set(pool.map(ask, [state] * 8))
        assert keys == {redaction_key(state)}
        assert os.listdir(state) == [KEY_NAME]


@pytest.mark.parametrize("left", [b"", b"half a key", b"x" * 33])
def test_what_is_no_key_is_replaced_for_good(tmp_path: Path, left: bytes) -> None:
    """A process that died, or a machine that went down, between the name and the content."""
    (tmp_path / KEY_NAME).write_bytes(left)
    key = redaction_key(str(tmp_path))
    assert redaction_key(str(tmp_path)) == key == (tmp_path / KEY_NAME).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="needs rights there")
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"s" * 32)
    (tmp_path / KEY_NAME).symlink_to(elsewhere)
    assert redaction_key(str(tmp_path)) != b"s" * 32
    assert elsewhere.read_bytes() == b"s" * 32


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_a_pipe_does_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / KEY_NAME)
    assert len(redaction_key(str(tmp_path))) == 32


def test_where_it_cannot_be_kept_it_is_one_for_the_process(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    (folder / KEY_NAME).mkdir(parents=True)
    file.write_text("a file where the state directory should be")
    assert redaction_key(str(folder)) == redaction_key(str(folder)) == redaction_key(str(file))
    assert len(redaction_key(str(file))) == 32
