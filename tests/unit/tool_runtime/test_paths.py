"""Paths at the time of use: by what the system says of a descriptor, and by component, with the same answers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host import regular_files
from tool_runtime.core.paths import BY_DESCRIPTOR, Scope, open_dir, resolve
from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not BY_DESCRIPTOR, reason="paths are not opened by descriptor here")


@pytest.fixture(params=[True, False], ids=["at once", "by component"], autouse=True)
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "_SAYS_PATHS", request.param and sys.platform == "linux")


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


def test_no_descriptor_is_left(folder: Path) -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for path in (folder / "b", folder.parent / "link", folder / "none"):
        resolve(str(path), Scope())
        try:
            os.close(open_dir(str(path)))
        except (OSError, ToolFault):
            continue
    assert count() == before
