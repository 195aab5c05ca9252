"""Files of a session that others own, can write, can read, or have put something else in the place of."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from state import Damaged, Untrusted
from state.disk import Disk, FileStatus, holder
from state.file_store import FileCheckpointStore
from tests.unit.state.helpers import SESSION, create, load, paths_in, reopen, start_task, unnumbered, whole_step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such owners and modes")

KINDS = ("json", "journal")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    session = create(tmp_path)
    start_task(session)
    whole_step(session, 1)
    session.compact()
    session.close()
    return tmp_path


def path_of(state_dir: Path, kind: str) -> Path:
    return state_dir / "checkpoints" / f"{SESSION}.{kind}"


def contents(state_dir: Path) -> dict[str, bytes]:
    return {kind: path_of(state_dir, kind).read_bytes() for kind in KINDS}


class OthersDisk(Disk):
    """One file belongs to somebody else."""

    def __init__(self, kind: str) -> None:
        self._suffix = f".{kind}"

    def status(self, path: str) -> FileStatus | None:
        found = super().status(path)
        return found._replace(foreign=True) if found and path.endswith(self._suffix) else found


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_user_are_refused_and_left_alone(state_dir: Path, kind: str) -> None:
    before = contents(state_dir)
    store = FileCheckpointStore(str(state_dir), OthersDisk(kind))
    for use in (store.open, store.load):
        with pytest.raises(Untrusted, match=r"another user.*chown"):
            use(SESSION)
    assert contents(state_dir) == before
    assert holder(paths_in(state_dir).lock) is None
    (summary,) = store.list()
    assert (summary.state, "another user" in summary.problem) == (None, True)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
def test_another_owner_is_seen(state_dir: Path) -> None:
    os.chown(path_of(state_dir, "json"), 65534, -1)
    with pytest.raises(Untrusted, match="another user"):
        reopen(state_dir)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_files_that_others_can_write_are_refused_and_left_alone(state_dir: Path, kind: str, mode: int) -> None:
    before = contents(state_dir)
    path_of(state_dir, kind).chmod(mode)
    with pytest.raises(Untrusted, match=r"others can write.*chmod 600"):
        reopen(state_dir)
    assert contents(state_dir) == before
    assert stat.S_IMODE(path_of(state_dir, kind).stat().st_mode) == mode
    path_of(state_dir, kind).chmod(0o600)
    reopen(state_dir).close()


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_others_can_read_are_made_private(state_dir: Path, kind: str) -> None:
    before = unnumbered(load(state_dir))
    path_of(state_dir, kind).chmod(0o644)
    again = reopen(state_dir)
    assert again.report.made_private
    assert unnumbered(again.state) == before
    again.close()
    assert [stat.S_IMODE(path_of(state_dir, each).stat().st_mode) for each in KINDS] == [0o600, 0o600]
    third = reopen(state_dir)
    assert not third.report.made_private
    third.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_pipe_holds_nobody_up(state_dir: Path, kind: str) -> None:
    path_of(state_dir, kind).unlink()
    os.mkfifo(path_of(state_dir, kind), 0o600)
    with pytest.raises(Damaged, match="not a regular file"):
        reopen(state_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_in_a_file_s_place_is_put_aside(state_dir: Path, kind: str) -> None:
    path_of(state_dir, kind).unlink()
    (path_of(state_dir, kind) / "deep").mkdir(parents=True)
    with pytest.raises(Damaged, match="not a regular file"):
        reopen(state_dir)
    assert (state_dir / "checkpoints" / f"{SESSION}.{kind}.corrupt-1" / "deep").is_dir()
    reopen(state_dir).close()
