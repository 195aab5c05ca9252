"""Paths at the time of use: by what the system says of a descriptor, and by component, with the same answers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from agent_host import safe_open
from tool_runtime.files import Scope, open_dir, open_directory, open_file, resolve
from tool_runtime.platform.directories import BY_DESCRIPTOR
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not BY_DESCRIPTOR, reason="paths are not opened by descriptor here")


@pytest.fixture(params=[True, False], ids=["at once", "by component"], autouse=True)
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_open, "REPORTS_PATHS", request.param and sys.platform == "linux")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder, and links: to it, to itself from below, and one whose name is what the system says of what is gone."""
    made = tmp_path.resolve() / "a"
    (made / "b").mkdir(parents=True)
    (made / "b" / "f").write_text("f")
    (made.parent / "link").symlink_to("a")
    (made / "up").symlink_to("..")
    (made / "b (deleted)").symlink_to("b")
    (made / "c (deleted)").mkdir()
    return made


def test_links_are_followed_once(folder: Path) -> None:
    root = str(folder.parent)
    for asked, real in {
        "a/b/f": "a/b/f", "link/b/f": "a/b/f", "a/up/a/b": "a/b", "link": "a", "a/b (deleted)": "a/b",
        "a/c (deleted)": "a/c (deleted)", "a/new": "a/new", "link/new/er": "a/new/er",
    }.items():  # fmt: skip
        assert resolve(f"{root}/{asked}", Scope()) == f"{root}/{real}"
    for asked in ("link/b", "a/up/a", "a/b (deleted)"):
        with pytest.raises(ToolFault, match="symbolic link"):
            resolve(f"{root}/{asked}", Scope(), through_links=False)


@pytest.mark.parametrize("to_list", [True, False])
def test_a_folder_is_opened_where_no_link_leads_there(folder: Path, to_list: bool) -> None:
    for path in (folder, folder / "b", folder / "c (deleted)", "/"):
        fd = open_dir(str(path), to_list=to_list)
        try:
            assert os.path.samestat(os.fstat(fd), os.stat(path))
            assert not to_list or os.listdir(fd)[:0] == []
        finally:
            os.close(fd)
    for path in (folder.parent / "link", folder.parent / "link" / "b", folder / "up" / "a", folder / "b (deleted)"):
        with pytest.raises(ToolFault) as refused:
            open_dir(str(path), to_list=to_list)
        assert refused.value.kind == FaultKind.PATH_CHANGED
    for path in (folder / "b" / "f", folder / "none"):
        with pytest.raises(OSError, match=r"Not a directory|No such file"):
            open_dir(str(path), to_list=to_list)


def test_a_directory_and_a_file_are_opened_where_they_lead(folder: Path) -> None:
    """Through links as well, in the scope alone, and refused in the same words as by `resolve`."""
    root, inside = str(folder.parent), Scope(allowed=(str(folder),), blocked=(str(folder / "c (deleted)"),))
    for asked, real in {"a": "a", "a/b": "a/b", "link": "a", "a/up/a/b": "a/b", "a/b (deleted)": "a/b"}.items():
        found, fd = open_directory(f"{root}/{asked}", inside)
        assert fd is not None
        try:
            assert found == f"{root}/{real}"
            assert sorted(os.listdir(fd)) == sorted(os.listdir(found))
        finally:
            os.close(fd)
    for asked in ("a/b/f", "link/b/f"):
        found, fd, status = open_file(f"{root}/{asked}", inside)
        assert (os.read(fd, 9), status.st_size) == (b"f", 1)
        os.close(fd)
        assert found == f"{root}/a/b/f"
    for opens in (open_directory, open_file):
        for asked, kind in {"": FaultKind.OUT_OF_SCOPE, "a/up": FaultKind.OUT_OF_SCOPE,
                            "a/c (deleted)": FaultKind.OUT_OF_SCOPE, "a/none": None}.items():  # fmt: skip
            with pytest.raises((ToolFault, OSError)) as refused:
                opens(f"{root}/{asked}", inside)
            assert kind is None or (isinstance(refused.value, ToolFault) and refused.value.kind is kind)
    with pytest.raises(ToolFault, match="Not a directory"):
        open_directory(f"{root}/a/b/f", inside)
    with pytest.raises(ToolFault, match="is a directory"):
        open_file(f"{root}/a/b", inside)


def test_no_descriptor_is_left(folder: Path) -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for path in (folder / "b", folder.parent / "link", folder / "none"):
        resolve(str(path), Scope())
        with suppress(OSError, ToolFault):
            os.close(open_dir(str(path)))
        for opens in (open_directory, open_file):
            with suppress(OSError, ToolFault):
                _, fd, *_ = opens(str(path), Scope())
                assert fd is not None
                os.close(fd)
    assert count() == before
