"""Entries of path lists that are links: where they lead counts, as their spelling does (AH 8.3)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.judging import Environment, resolve_places
from agent_host.judging.facts import gather
from policy.decide import check_tool
from tests.support.tools import TOOLS
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")


class Disk:
    """`real/project`, a link `linked` to `real`, and a link `secrets` to `vault`."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        for name in ("real/project/src", "vault", "elsewhere"):
            os.makedirs(self.path(name))
        os.symlink(self.path("real"), self.path("linked"))
        os.symlink(self.path("vault"), self.path("secrets"))
        self.where = Environment(self.path("real/project"), None, "posix", "bash")

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def reads(self, name: str, **lists: list[str]) -> str:
        """The verdict on reading a file, under lists of names."""
        entry: dict[str, Any] = {"name": "File.Read", **{key: list(map(self.path, of)) for key, of in lists.items()}}
        held = resolve_places(bundle(entry), self.where)
        facts = gather(TOOLS["ReadFile"], {"path": self.path(name)}, self.where)
        return check_tool(held, "File.Read", facts, now=NOW, workspace=self.where.workspace).decision

    def verdict(self, tool: str, **arguments: str) -> str:
        """The verdict on a call that acts on names, in the project but for what is called `kept`."""
        lists = {"allowedPaths": [self.path("real/project")], "blockedPaths": [self.path("real/project/kept")]}
        names = ("File.Delete", "File.Read", "File.Write")
        held = resolve_places(bundle(*({"name": name, **lists} for name in names)), self.where)
        facts = gather(TOOLS[tool], {key: self.path(name) for key, name in arguments.items()}, self.where)
        return check_tool(held, "File.Delete", facts, now=NOW, workspace=self.where.workspace).decision


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.mark.parametrize("name", ["vault/key", "secrets/key", "vault", "secrets"])
def test_a_blocked_link_blocks_what_it_leads_to(disk: Disk, name: str) -> None:
    assert disk.reads(name, blockedPaths=["secrets"]) == "DENIED"
    assert disk.reads("elsewhere/a", blockedPaths=["secrets"]) == "ALLOWED"


@pytest.mark.parametrize("name", ["linked/project/src/a", "real/project/src/a", "linked/project"])
def test_an_allowed_directory_behind_a_link_allows_what_is_in_it(disk: Disk, name: str) -> None:
    assert disk.reads(name, allowedPaths=["linked/project"]) == "ALLOWED"
    assert disk.reads("vault/key", allowedPaths=["linked/project"]) == "DENIED"
    assert disk.reads("real/other", allowedPaths=["linked/project"]) == "DENIED"


@pytest.mark.parametrize("entry", ["real/project/data", "linked/project/data"])
def test_a_link_inside_the_workspace_does_not_choose_what_is_allowed(disk: Disk, entry: str) -> None:
    os.symlink(disk.path("vault"), disk.path("real/project/data"))
    assert disk.reads(f"{entry}/key", allowedPaths=[entry]) == "DENIED"
    assert disk.reads("vault/key", allowedPaths=[entry]) == "DENIED"
    assert disk.reads("vault/key", blockedPaths=[entry]) == "DENIED"


def test_a_link_of_the_workspace_that_is_blocked_and_allowed_is_followed_to_block_alone(disk: Disk) -> None:
    os.symlink(disk.path("vault"), disk.path("real/project/data"))
    entries = ["real/project/data"]
    assert disk.reads("vault/key", allowedPaths=entries, blockedPaths=entries) == "DENIED"
    assert disk.reads("elsewhere/key", allowedPaths=["elsewhere"], blockedPaths=entries) == "ALLOWED"


@pytest.mark.parametrize("entry", ["linked/project/**/.vscode", "real/project/**/.vscode"])
def test_a_name_is_blocked_at_any_depth_below_a_link_and_where_that_leads(disk: Disk, entry: str) -> None:
    os.symlink(disk.path("vault"), disk.path("real/project/**"))  # nobody's way round: it is never followed
    for place in ("real/project/.vscode/a", "linked/project/src/.vscode", "real/project/src/deep/.vscode/a"):
        assert disk.reads(place, blockedPaths=[entry]) == "DENIED", place
    assert disk.reads("real/project/src/a", blockedPaths=[entry]) == "ALLOWED"
    assert disk.reads("elsewhere/.vscode", blockedPaths=[entry]) == "ALLOWED"


def test_a_blocked_name_that_is_a_link_itself_blocks_what_it_leads_to(disk: Disk) -> None:
    os.symlink(disk.path("vault"), disk.path("real/project/.vscode"))
    entry = "real/project/**/.vscode"
    assert disk.reads("vault/key", blockedPaths=[entry]) == "DENIED"
    os.symlink(disk.path("elsewhere"), disk.path("real/project/src/.vscode"))
    assert disk.reads("real/project/src/.vscode/a", blockedPaths=[entry]) == "DENIED"


def test_a_bundle_says_the_same_of_itself_afterwards(disk: Disk) -> None:
    plain = bundle({"name": "File.Read", "blockedPaths": [disk.path("secrets")]})
    held = resolve_places(plain, disk.where)
    assert held == plain
    assert held.to_json() == plain.to_json()
    assert resolve_places(bundle({"name": "File.Read"}), disk.where).real_places == {}


@pytest.mark.parametrize("target", ["vault", "vault/key", "real/project/kept", "nowhere"])
def test_a_name_that_goes_is_judged_by_its_own_place(disk: Disk, target: str) -> None:
    os.symlink(disk.path(target), disk.path("real/project/link"))
    os.symlink(disk.path("vault"), disk.path("real/project/kept"))
    os.symlink(disk.path("real/project/link"), disk.path("elsewhere/inside"))
    for link in ("real/project/link", "linked/project/link"):
        assert disk.verdict("DeleteFile", path=link) == "ALLOWED"
        assert disk.verdict("MoveFile", path=link, newPath="real/project/moved") == "ALLOWED"
    for link in ("real/project/kept", "elsewhere/inside"):
        assert disk.verdict("DeleteFile", path=link) == "DENIED"
        assert disk.verdict("MoveFile", path=link, newPath="real/project/moved") == "DENIED"
