"""The temporary directory of a session: its name, whose it is, and how it goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from state.errors import InvalidSessionId
from state.temporary import make, remove, session_directory, system_directory

if TYPE_CHECKING:
    from pathlib import Path


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
    with pytest.raises(OSError, match=r"no directory has its name|not this user's alone"):
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
