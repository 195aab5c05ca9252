"""A folder held open, private directories, and where everything of a session lies."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import TYPE_CHECKING, Any

import pytest

import state
import state.temporary
from state import SessionPaths, default_state_dir, make_private_dir
from state.temporary import BY_DESCRIPTOR, Folder, is_directory, is_link

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_JUNCTION = 0xA0000003


@pytest.fixture(params=[True, False] if BY_DESCRIPTOR else [False], ids=lambda one: "descriptors" if one else "names")
def by_descriptor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways that platforms have."""
    monkeypatch.setattr(state.temporary, "BY_DESCRIPTOR", request.param)
    return bool(request.param)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def refused(what: Any, *arguments: Any) -> int | None:
    with pytest.raises(OSError, match=r".") as caught:
        what(*arguments)
    return caught.value.errno


def test_this_system_works_by_descriptors() -> None:
    assert BY_DESCRIPTOR is (os.open in os.supports_dir_fd and shutil.rmtree.avoids_symlink_attacks)


@pytest.mark.usefixtures("by_descriptor")
def test_a_folder_that_is_not_there_is_empty_until_it_is_made(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a" / "b"))
    assert (folder.names(), folder.stat("x"), folder.size("x"), folder.is_current()) == ([], None, 0, True)
    folder.remove("x")
    assert not (tmp_path / "a").exists()
    folder.make()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    for name in "cab":
        (tmp_path / "a" / "b" / name).touch()
    folder.make()
    assert folder.names() == ["a", "b", "c"]
    folder.close()
    assert (folder.names(), folder.stat("a")) == ([], None)
    folder.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_folder_is_let_go(tmp_path: Path, by_descriptor: bool) -> None:
    before = open_files()
    with Folder(str(tmp_path)) as folder:
        assert open_files() == before + by_descriptor
        folder.make()
        (tmp_path / "a").mkdir()
        folder.rename("a", "b")
        assert open_files() == before + by_descriptor
        with Folder(str(tmp_path / "b"), folder):
            assert open_files() == before + 2 * by_descriptor
    assert open_files() == before
    assert folder.names() == []


@pytest.mark.usefixtures("by_descriptor")
def test_names_do_not_lead_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").touch()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    assert Folder(str(tmp_path / "link")).names() == ["x"], "the uppermost may be one"
    with Folder(str(tmp_path)) as root:
        with Folder(str(tmp_path / "real"), root) as below:
            assert below.names() == ["x"]
        with Folder(str(tmp_path / "gone"), root) as below:
            assert below.names() == []
        assert refused(Folder, str(tmp_path / "link"), root) == errno.ELOOP
        assert refused(Folder, str(tmp_path / "file"), root) == errno.ENOTDIR
        link = root.stat("link")
        assert link is not None
        assert (is_link(link), is_directory(link)) == (True, False)
    assert refused(Folder, str(tmp_path / "file")) == errno.ENOTDIR


@pytest.mark.skipif(not BY_DESCRIPTOR, reason="names are all there is")
def test_a_link_put_in_between_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Folder(str(tmp_path)) as root:
        os.close(root.descriptor_of("/anywhere/real"))
        (tmp_path / "file").touch()
        assert refused(root.descriptor_of, "/anywhere/file") == errno.ENOTDIR
        assert refused(root.descriptor_of, "/anywhere/link") in (errno.ELOOP, errno.ENOTDIR)
        assert refused(root.descriptor_of, "/anywhere/gone") == errno.ENOENT


def status(mode: int, tag: int | None = None) -> Any:
    made = os.stat_result((mode, *[0] * 9))

    class WithTag:
        st_mode = made.st_mode
        st_reparse_tag = tag

    return made if tag is None else WithTag()


def test_a_junction_is_a_link() -> None:
    found = {
        "file": status(stat.S_IFREG),
        "folder": status(stat.S_IFDIR),
        "link": status(stat.S_IFLNK),
        "junction": status(stat.S_IFDIR, _JUNCTION),
        "cloud folder": status(stat.S_IFDIR, 0x9000001A),
    }
    assert [name for name, one in found.items() if is_link(one)] == ["link", "junction"]
    assert [name for name, one in found.items() if is_directory(one)] == ["folder", "cloud folder"]


@pytest.mark.usefixtures("by_descriptor")
def test_sizes_count_files_and_no_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"1")
    (tmp_path / "a" / "deep" / "two").write_bytes(b"12")
    (tmp_path / "a" / "deep" / "deeper" / "four").write_bytes(b"1234")
    (tmp_path / "big").write_bytes(b"x" * 1000)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "big")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to("a")
    with Folder(str(tmp_path)) as folder:
        assert [folder.size(name) for name in ("a", "big", "link", "gone")] == [7, 1000, 0, 0]


def test_what_vanishes_while_it_is_counted_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "file").write_bytes(b"1")
    real = os.scandir
    seen: list[str] = []

    def scandir(path: str) -> Any:
        seen.append(path)
        if len(seen) == 2:  # the first one below
            raise PermissionError(errno.EACCES, "no")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with Folder(str(tmp_path)) as folder:
        assert folder.size("all") == 2


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[tuple[Folder, Path]]:
    """A folder that was opened under `here` and lies at `there` now."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_bytes(b"mine")
    with Folder(str(tmp_path / "here")) as folder:
        (tmp_path / "here").rename(tmp_path / "there")
        yield folder, tmp_path


@pytest.mark.skipif(not BY_DESCRIPTOR, reason="names are all there is")
def test_a_folder_that_was_moved_is_the_one_that_is_worked_in(moved: tuple[Folder, Path]) -> None:
    folder, around = moved
    assert folder.is_current() is False
    assert folder.is_named(str(around / "here" / "file"), "file") is False
    (around / "here").symlink_to("there")
    assert not folder.is_current()
    (around / "here").unlink()
    (around / "here").mkdir()
    (around / "here" / "file").write_bytes(b"another's")
    assert not folder.is_current()
    assert not folder.is_named(str(around / "here" / "file"), "file")
    assert folder.is_named(str(around / "there" / "file"), "file")
    assert not folder.is_named(str(around / "there" / "file"), "gone")
    folder.rename("file", "renamed")
    assert sorted(os.listdir(around / "there")) == ["renamed"]
    folder.remove("renamed")
    assert folder.names() == []
    assert (around / "here" / "file").read_bytes() == b"another's"


@pytest.mark.skipif(not BY_DESCRIPTOR, reason="names are all there is")
def test_a_folder_is_opened_in_the_one_that_was_opened_before(tmp_path: Path) -> None:
    (tmp_path / "root" / "below" / "mine").mkdir(parents=True)
    with Folder(str(tmp_path / "root")) as root:
        (tmp_path / "root").rename(tmp_path / "aside")
        (tmp_path / "root" / "below" / "another's").mkdir(parents=True)
        with Folder(str(tmp_path / "root" / "below"), root) as below:
            assert below.names() == ["mine"]


@pytest.mark.usefixtures("by_descriptor")
def test_a_folder_in_its_place_is_current(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with Folder(str(tmp_path)) as folder:
        assert folder.is_current()
        assert folder.is_named(str(tmp_path / "file"), "file")
        assert not folder.is_named(str(tmp_path / "link"), "file"), "a link to it is another name"
        assert not folder.is_named(str(tmp_path / "gone"), "file")
        folder.rename("file", "other")
        assert folder.names() == ["link", "other"]


@pytest.mark.skipif(not BY_DESCRIPTOR, reason="a folder cannot be synced elsewhere")
def test_a_new_name_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    (tmp_path / "a").touch()
    with Folder(str(tmp_path)) as folder:
        folder.rename("a", "b")
    assert synced == [str(tmp_path)]


@pytest.mark.usefixtures("by_descriptor")
def test_what_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").touch()
    inside = tmp_path / "inside"
    (inside / "deep" / "deeper").mkdir(parents=True)
    (inside / "deep" / "file").touch()
    (inside / "file").touch()
    (inside / "link").symlink_to(tmp_path / "outside")
    with Folder(str(inside)) as folder:
        for name in ("deep", "file", "link", "gone"):
            folder.remove(name)
        assert folder.names() == []
    assert (tmp_path / "outside" / "x").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecursionError(), errno.ELOOP),
        (OSError("Cannot call rmtree on a symbolic link"), errno.ELOOP),
        (PermissionError(errno.EACCES, "no"), errno.EACCES),
    ],
)
def test_what_refuses_to_be_removed_is_an_error_with_a_number(
    tmp_path: Path, error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()

    def rmtree(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with Folder(str(tmp_path)) as folder:
        assert refused(folder.remove, "deep") == code


def test_a_file_that_somebody_else_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    real = os.unlink

    def unlink(path: str, **more: Any) -> None:
        real(tmp_path / "file")
        real(path, **more)

    with Folder(str(tmp_path)) as folder:
        monkeypatch.setattr(os, "unlink", unlink)
        folder.remove("file")
        assert folder.names() == []


# --- where things lie -------------------------------------------------------------------------------------------------


def test_private_directories(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_private_dir(str(tmp_path / "a" / "b" / "c"))
    finally:
        os.umask(umask)
    assert [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3
    (tmp_path / "a").chmod(0o755)
    make_private_dir(str(tmp_path / "a"))
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755, "what was there is left alone"


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        make_private_dir(str(tmp_path / "file"))
    assert caught.value.errno == errno.ENOTDIR
    assert caught.value.filename == str(tmp_path / "file")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(NotADirectoryError):
        make_private_dir(str(tmp_path / "link"))


def test_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_private_dir("a/b")
    assert (tmp_path / "a" / "b").is_dir()
    make_private_dir("")


def test_a_directory_that_another_process_makes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def mkdir(path: str, mode: int) -> None:
        real(path, mode)
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    make_private_dir(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_on_other_systems_the_platform_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    asked: list[tuple[object, ...]] = []

    def user_data_dir(*names: object, **more: object) -> str:
        asked.append((*names, more))
        return "/Users/me/Library/Application Support/agent-host"

    monkeypatch.delenv("AGENT_HOST_STATE_DIR", raising=False)
    monkeypatch.setattr(state, "_LINUX", False)
    monkeypatch.setattr(platformdirs, "user_data_dir", user_data_dir)
    assert default_state_dir() == "/Users/me/Library/Application Support/agent-host"
    assert asked == [("agent-host", {"appauthor": False})]


def test_the_result_and_the_answers_lie_beside_the_events() -> None:
    paths = SessionPaths("/s", "x")
    assert [paths.events, paths.result, paths.approvals] == [
        f"/s/sessions/x/{name}" for name in ("events.jsonl", "result.json", "approvals.jsonl")
    ]
