"""The temporary directory of a session: its name, whose it is, and how it goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from state import InvalidSessionId, SessionPaths
from state.disk import SessionLock
from state.temporary import make, remove, scratch, session_directory, sweep, system_directory


def test_its_name_follows_the_session_and_the_state_directory(tmp_path: Path) -> None:
    environ = {"TMPDIR": str(tmp_path)}
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    one = session_directory(str(tmp_path / "state"), "s1", environ)
    assert one == session_directory(str(tmp_path / "link"), "s1", environ)
    assert os.path.dirname(one) == os.path.realpath(tmp_path)
    assert os.path.basename(one).startswith("agent-host-s1-")
    assert len(os.path.basename(one)) == len("agent-host-s1-") + 8
    assert one != session_directory(str(tmp_path / "other"), "s1", environ)
    assert session_directory("/state", "s1", environ, str(tmp_path / "x" / "mine")).startswith(
        f"{tmp_path}/agent-host-"
    )
    assert session_directory("/state", "s1", environ, str(tmp_path / "mine")) == str(tmp_path / "mine")
    with pytest.raises(InvalidSessionId):
        session_directory(str(tmp_path), "../x", environ)


def test_where_the_system_has_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert system_directory({"TMPDIR": str(tmp_path / "link")}) == os.path.realpath(tmp_path / "real")
    default = os.path.realpath("/tmp")
    for named in ("", "relative", str(tmp_path / "gone")):
        assert system_directory({"TMPDIR": named}) == default


def test_it_is_made_for_its_user_alone_and_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "own")
    before = os.umask(0)
    try:
        make(path)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o7777 == 0o700
    make(path)
    with pytest.raises(OSError, match="No such file"):
        make(str(tmp_path / "gone" / "own"))


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_what_is_not_this_users_alone_is_refused_and_kept(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own"
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "file":
        path.touch(mode=0o700)
    else:
        path.mkdir()
        path.chmod(0o755)
    with pytest.raises(OSError, match=r"other than a directory has its name|not this user's alone"):
        make(str(path))
    remove(str(path))
    assert os.path.lexists(path)


def test_it_goes_with_all_in_it_and_follows_no_link(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "own"
    outside.mkdir()
    (outside / "kept").touch()
    make(str(path))
    (path / "a").mkdir()
    (path / "a" / "b").touch()
    (path / "link").symlink_to(outside)
    remove(str(path))
    assert not path.exists()
    assert (outside / "kept").exists()
    remove(str(path))
    remove(str(tmp_path / "gone" / "own"))


@pytest.mark.skipif(sys.platform == "win32", reason="directories have no locks there")
def test_what_a_crash_has_left_goes_with_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: not what a process holds, nor what can be resumed, nor what is another's or no directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    state_dir, here = str(tmp_path / "state"), {"TMPDIR": str(tmp_path)}
    for name in ("over", "resumable", "held"):
        make(session_directory(state_dir, name, here))
    make(session_directory("/elsewhere", "other", here))
    os.makedirs(f"{state_dir}/checkpoints")
    Path(SessionPaths(state_dir, "resumable").journal).touch()
    lock = SessionLock.acquire(SessionPaths(state_dir, "held").lock, "held")
    for name in ("agent-host-~probe-left", "agent-host-~open", "~agent-host-probe", "agent-host-file"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "file").touch()
    (tmp_path / "agent-host-~open").chmod(0o755)
    (tmp_path / "agent-host-~link").symlink_to("~agent-host-probe")
    before = set(os.listdir(tmp_path))
    with scratch("doctor") as mine:
        sweep(state_dir, here)
        assert os.path.isdir(mine)
    gone = {os.path.basename(session_directory(state_dir, "over", here)), "agent-host-~probe-left"}
    assert set(os.listdir(tmp_path)) == before - gone
    lock.release(remove=True)
    sweep(state_dir, here)
    assert not os.path.exists(session_directory(state_dir, "held", here))
