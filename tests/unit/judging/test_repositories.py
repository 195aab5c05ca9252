"""Repositories that no `.git` tells of: bare ones, and those that are named by GIT_DIR or `--separate-git-dir`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.judging import Environment
from agent_host.judging.facts import gather
from policy.decide import check_tool
from policy.facts import PathFacts
from tests.support.tools import TOOLS
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from pathlib import Path

    from policy import Decision


class Disk:
    """A workspace with a repository in `meta`, a work tree of one in `tree`, and what only looks alike."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        for name in ("meta/objects", "meta/refs", "meta/hooks", "tree", "near/objects", "src/hooks"):
            os.makedirs(self.path(name))
        for name in ("meta/HEAD", "tree/HEAD", "tree/commondir", "near/HEAD"):
            with open(self.path(name), "w", encoding="utf-8"):
                pass
        self.where = Environment(self.root, None, "posix", "bash")

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def facts(self, name: str) -> PathFacts:
        facts = gather(TOOLS["WriteFile"], {"path": self.path(name), "content": "x"}, self.where)
        assert isinstance(facts, PathFacts)
        return facts

    def writes(self, name: str, *allowed: str) -> Decision:
        held = bundle({"name": "File.Write", "allowedPaths": [self.path(one) for one in allowed or ("",)]})
        return check_tool(held, "File.Write", self.facts(name), now=NOW, workspace=self.root)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("meta/config", "meta/config"),
        ("meta/hooks/pre-commit", "meta/hooks"),
        ("meta/hooks/a/b", "meta/hooks"),
        ("meta/hooks/hooks", "hooks/hooks"),
        ("meta/rebase-merge/git-rebase-todo", "meta/rebase-merge"),
        ("meta/commondir", "meta/commondir"),
        ("tree/config.worktree", "tree/config.worktree"),
        ("tree/sequencer/todo", "tree/sequencer"),
        ("meta/x/../config", "meta/config"),
    ],
)
def test_what_git_runs_by_is_not_changed_in_a_repository_of_any_name(disk: Disk, name: str, place: str) -> None:
    answer = disk.writes(name)
    assert (answer.decision, answer.rule) == ("DENIED", f"builtin.repositoryPlaces: {place}")
    assert answer.reason.endswith("and no allowed path names its repository")


@pytest.mark.parametrize(
    "name",
    ["meta/HEAD", "meta/notes", "meta/x/config", "near/config", "near/hooks/x", "src/hooks/x", "config", "hooks"],
)  # fmt: skip
def test_other_files_are_what_they_were(disk: Disk, name: str) -> None:
    assert disk.writes(name).allowed


@pytest.mark.parametrize("steers", ["config", "hooks/post-checkout", "info/attributes", "branches/x", "sequencer/todo"])
@pytest.mark.parametrize("last", ["HEAD", "objects/x", "refs/heads/main", "commondir"])
@pytest.mark.parametrize("inside", ["made", ""])
def test_no_file_completes_a_repository_that_starts_programs(disk: Disk, steers: str, last: str, inside: str) -> None:
    """In whichever order its parts are written: each by itself is a file of a project."""
    others = (
        ["HEAD"] if last == "commondir" else [one for one in ("HEAD", "objects/x", "refs/x") if one[:4] != last[:4]]
    )
    for name in (steers, *others):
        path = os.path.join(inside, name)
        assert disk.writes(path).allowed, path
        os.makedirs(os.path.dirname(disk.path(path)), exist_ok=True)
        with open(disk.path(path), "w", encoding="utf-8"):
            pass
    answer = disk.writes(os.path.join(inside, last))
    assert answer.decision == "DENIED"
    assert answer.reason.endswith("which has what starts programs in one")


@pytest.mark.parametrize("last", ["HEAD", "objects/x", "refs/heads/main"])
def test_a_repository_that_starts_nothing_may_be_completed(disk: Disk, last: str) -> None:
    assert disk.writes(f"near/{last}").allowed
    assert disk.writes(f"src/{last}").allowed


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("sub/.git/objects/ab/cd", True),
        ("sub/.git/HEAD", True),
        ("sub/.git/info/exclude", True),
        ("sub/.git/info/attributes", False),
        ("sub/.git/branches/x", False),
        ("sub/.git/unheard-of", False),
        ("sub/.git/modules/x/config", False),
        ("sub/.git/worktrees/x/commondir", False),
        ("sub/.git", False),
    ],
)
def test_below_a_git_only_names_that_start_nothing(disk: Disk, name: str, allowed: bool) -> None:
    assert disk.writes(name).allowed is allowed


def test_an_allowed_path_may_name_the_repository(disk: Disk) -> None:
    assert disk.writes("meta/config", "meta").allowed
    assert disk.writes("meta/hooks/x", "", "meta/hooks").allowed
    assert not disk.writes("meta/hooks/x", "", "tree").allowed


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")
def test_a_link_is_no_way_round(disk: Disk) -> None:
    os.symlink(disk.path("meta"), disk.path("innocent"))
    os.symlink(disk.path("meta/hooks"), disk.path("alike"))
    os.symlink(disk.path("src"), disk.path("meta/rebase-apply"))
    for name in ("innocent/config", "alike/pre-commit", "meta/rebase-apply/x"):
        assert disk.writes(name).decision == "DENIED", name


def test_the_disk_is_asked_for_names_that_matter_alone(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lexists = os.path.lexists

    def noted(path: str) -> bool:
        asked.append(path)
        return lexists(path)

    monkeypatch.setattr(os.path, "lexists", noted)
    assert not disk.facts("src/main.py").in_repository
    assert not disk.facts(".git/hooks/x").in_repository
    assert asked == []
    assert not disk.facts("/".join(["hooks"] * 50)).in_repository
    assert len(asked) == 3
