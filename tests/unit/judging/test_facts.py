"""What policy is told about the disk: paths as they will be for whoever uses them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host import safe_open
from agent_host.judging import Environment
from agent_host.judging.facts import UnusableArguments, gather, path_facts
from policy.facts import CommandFacts, PathFacts
from tests.support.tools import TOOLS
from tool_runtime.files import Scope, resolve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def where(tmp_path: Path) -> Environment:
    return Environment(os.path.realpath(tmp_path), os.path.realpath(tmp_path / "home"), "posix", "bash")


def command(where: Environment, line: str, **more: str) -> CommandFacts:
    facts = gather(TOOLS["RunCommand"], {"command": line, **more}, where)
    assert isinstance(facts, CommandFacts)
    return facts


def path(where: Environment, name: str) -> PathFacts:
    facts = gather(TOOLS["ReadFile"], {"path": name}, where)
    assert isinstance(facts, PathFacts)
    return facts


def test_redirections_are_followed_through_links(where: Environment, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    assert command(where, "echo x > link/new").real_paths == {
        f"{where.workspace}/link/new": f"{where.workspace}/out/new"
    }


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("spelled", ["/proc/self/cwd/x", "/proc/thread-self/cwd/x", "through/x", "twice/x"])
def test_what_passes_through_proc_is_not_followed(where: Environment, tmp_path: Path, spelled: str) -> None:
    """It would lead to this process's directory, and the command has another."""
    (tmp_path / "through").symlink_to("/proc/self/cwd")
    (tmp_path / "twice").symlink_to("through")
    (real,) = command(where, f"echo x > {spelled}").real_paths.values()
    assert real.startswith("/proc/")


@pytest.mark.parametrize("name", ["link/../x", "link/../../x", "~/../x", "~/x", "link/x", "link/y/../x"])
def test_a_path_leads_where_the_file_tools_will_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Otherwise one file would be judged and shown, and another one changed."""
    for directory in ("w", "deep/er/far", "real/home"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "w" / "link").symlink_to(tmp_path / "deep" / "er" / "far")
    (tmp_path / "home").symlink_to("real/home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    spelled = name if name.startswith("~") else f"{tmp_path}/w/{name}"
    where = Environment(str(tmp_path / "w"), os.path.realpath(tmp_path / "home"), "posix", "bash")
    assert path(where, spelled).real_path == resolve(spelled, Scope())


def test_a_relative_directory_is_the_workspace_s(where: Environment) -> None:
    assert command(where, "ls", cwd="sub").cwd == f"{where.workspace}/sub"
    assert command(where, "ls").cwd == where.workspace


def test_a_file_behind_a_link(where: Environment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    (tmp_path / "link").symlink_to("file")
    facts = path(where, f"{where.workspace}/link")
    assert (facts.real_path, facts.kind, facts.size_bytes, facts.is_symlink) == (
        f"{where.workspace}/file",
        "file",
        5,
        True,
    )


def test_a_file_that_is_not_there_yet_behind_a_linked_directory(where: Environment, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").symlink_to("outside")
    facts = path(where, f"{where.workspace}/inside/deep/new")
    assert (facts.real_path, facts.kind) == (f"{where.workspace}/outside/deep/new", "missing")


def test_the_facts_are_the_same_whether_the_system_says_at_once_what_a_path_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b (deleted)").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("12345")
    (tmp_path / "to_file").symlink_to("a/file")
    (tmp_path / "to_a").symlink_to("a")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    os.mkfifo(tmp_path / "a" / "pipe")
    names = ("a", "a/file", "a/b (deleted)", "a/pipe", "a/none", "a/file/x", "to_file", "to_a", "to_a/file",
             "to_a/pipe", "to_a/none", "nowhere", "round", "round/x", "a/../to_a/./file", "x" * 300)  # fmt: skip

    def found(*, says: bool) -> list[PathFacts]:
        monkeypatch.setattr(safe_open, "REPORTS_PATHS", says)
        return [path_facts(name, f"{os.path.realpath(tmp_path)}/{name}") for name in names]

    at_once = found(says=sys.platform == "linux")
    assert at_once == found(says=False)
    assert [one.kind for one in at_once[:5]] == ["directory", "file", "directory", "other", "missing"]


@pytest.mark.parametrize("arguments", [{}, {"path": 5}, {"path": ""}, {"path": "/a\0b"}])
def test_arguments_that_name_no_path(where: Environment, arguments: dict[str, object]) -> None:
    with pytest.raises(UnusableArguments):
        gather(TOOLS["ReadFile"], arguments, where)


@pytest.mark.parametrize("spelled", ["a/b", "./a/b", "a/../a/b", "x/../a/b"])
def test_a_relative_path_lies_in_the_workspace(where: Environment, spelled: str) -> None:
    facts = path(where, spelled)
    assert (facts.requested, facts.real_path) == (spelled, f"{where.workspace}/a/b")


def test_a_relative_path_may_lead_out_of_the_workspace_and_is_judged_there(where: Environment) -> None:
    assert path(where, "../" * 40 + "etc/passwd").real_path == "/etc/passwd"


def test_relative_paths_by_the_rules_of_windows() -> None:
    there = Environment("C:\\work", "C:\\home", "windows", "cmd")
    spellings = ["a\\b", "a/b", "..\\x", "\\x", "D:x", "~\\a", "C:\\a"]
    assert list(map(there.absolute, spellings)) == [
        "C:\\work\\a\\b", "C:\\work\\a\\b", "C:\\x", "C:\\x", "D:x", "C:\\home\\a", "C:\\a",
    ]  # fmt: skip
