"""What a machine is like to a command: programs of PATH, and repositories that can be believed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.judging.scoping import places_of_program, repository_of, scope_facts, usual_facts
from policy import RepositoryFacts, ScopeFacts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")


def program(path: Path) -> Path:
    """A program that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def facts(home: Path, *directories: Path, **variables: Path) -> ScopeFacts:
    path = os.pathsep.join([*map(str, directories), "/usr/bin", "/bin"])
    environment = {"PATH": path, **{name: str(value) for name, value in variables.items()}}
    return scope_facts(str(home / "w"), home=str(home), tmp=None, environment=environment)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = (tmp_path / "home").resolve()
    (place / "w").mkdir(parents=True)
    return place


def test_a_tool_that_path_names_is_read_with_what_it_is_made_of(home: Path) -> None:
    (home / ".rustup").mkdir()
    program(home / ".cargo" / "bin" / "cargo")
    (home / ".cargo" / "credentials.toml").write_text("token")
    found = facts(home, home / ".cargo" / "bin")
    assert {str(home / ".cargo"), str(home / ".rustup")} <= set(found.toolchains)
    assert found.toolchain_secrets == (str(home / ".cargo" / "credentials.toml"),)
    assert str(home / ".rustup") not in facts(home).toolchains


def test_a_version_manager_is_read_whole(home: Path) -> None:
    program(home / ".nvm" / "versions" / "node" / "v22" / "bin" / "node")
    found = facts(home, home / ".nvm" / "versions" / "node" / "v22" / "bin")
    assert str(home / ".nvm") in found.toolchains


def test_a_variable_says_where_a_tool_keeps_its_programs(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path.resolve() / "rust"
    program(elsewhere / "bin" / "cargo")
    assert str(elsewhere) in facts(home, elsewhere / "bin", CARGO_HOME=elsewhere).toolchains


def test_a_virtual_environment_brings_its_interpreter(home: Path, tmp_path: Path) -> None:
    base, venv = tmp_path.resolve() / "python", home / "venv"
    program(base / "bin" / "python3.11")
    program(venv / "bin" / "python")
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    found = facts(home, venv / "bin")
    assert {str(venv), str(base)} <= set(found.toolchains)


def test_a_link_of_path_is_followed_for_known_programs(home: Path, tmp_path: Path) -> None:
    real = program(tmp_path.resolve() / "node-22" / "bin" / "node")
    links = home / "links"
    links.mkdir()
    (links / "node").symlink_to(real)
    found = facts(home, links)
    assert {str(links), str(tmp_path.resolve() / "node-22")} <= set(found.toolchains)


def test_a_workspace_opens_no_place_by_what_it_makes_of_its_programs(home: Path) -> None:
    private, source = home / "private", home / "src"
    for place in (private / "sub", source / "node-app", source / "python-app"):
        place.mkdir(parents=True)
    program(source / "python-notes")
    venv = home / "w" / ".venv"
    venv.mkdir()
    usual = set(facts(home, venv / "bin", VIRTUAL_ENV=venv).toolchains)

    def opened() -> set[str]:
        return set(facts(home, venv / "bin", VIRTUAL_ENV=venv, JAVA_HOME=home / "w" / "jdk").toolchains) - usual

    (venv / "bin").symlink_to(private)
    assert not opened()
    (venv / "bin").unlink()
    (home / "links").mkdir()
    (home / "links" / "tools").symlink_to(venv / "bin")  # the user's own link to what is the workspace's
    (venv / "bin").symlink_to(private)
    assert not set(facts(home, home / "links" / "tools").toolchains) - usual
    (venv / "bin").unlink()
    program(venv / "bin" / "activate")
    for name in ("node-app", "python-app", "python-notes"):
        for link in ("node", "python", "python3"):
            (venv / "bin" / link).symlink_to(source / name)
        assert not opened() - {str(venv)}
        for link in ("node", "python", "python3"):
            (venv / "bin" / link).unlink()
    (venv / "pyvenv.cfg").write_text(f"home = {source}\n")
    assert not opened() - {str(venv)}
    program(private / "tool" / "bin" / "java")
    (home / "w" / "jdk").symlink_to(private)
    assert str(private) not in facts(home, private / "tool" / "bin", JAVA_HOME=home / "w" / "jdk").toolchains
    (venv / "bin" / "server").symlink_to(program(private / "notes"))
    assert places_of_program(str(venv / "bin" / "server"), str(home), str(home / "w")) == (str(venv),)
    assert places_of_program(str(home / "w" / "jdk" / "server"), str(home), str(home / "w")) == ()


def test_an_interpreter_that_a_virtual_environment_of_the_workspace_names_is_read(home: Path, tmp_path: Path) -> None:
    base, venv = tmp_path.resolve() / "python", home / "w" / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python3").symlink_to(program(base / "bin" / "python3.12"))
    assert {str(venv), str(base)} <= set(facts(home, venv / "bin").toolchains)
    (venv / "bin" / "python3").unlink()
    program(venv / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    assert {str(venv), str(base)} <= set(facts(home, venv / "bin").toolchains)


def test_a_script_of_node_is_made_of_its_package_and_of_those_beside_it(home: Path) -> None:
    installed = program(home / "tools" / "node_modules" / "@org" / "server" / "dist" / "index.js")
    link = home / "tools" / "node_modules" / ".bin" / "server"
    link.parent.mkdir()
    link.symlink_to(installed)
    for named in (installed, link):
        assert str(home / "tools" / "node_modules") in places_of_program(str(named), str(home), str(home / "w"))
    built = program(home / "weather" / "build" / "src" / "index.js")
    assert places_of_program(str(built), str(home), str(home / "w")) == (str(built.parent),)
    (home / "package.json").write_text("{}")  # of nobody's package: it would open the home
    assert places_of_program(str(built), str(home), str(home / "w")) == (str(built.parent),)
    (home / "weather" / "package.json").write_text("{}")
    assert set(places_of_program(str(built), str(home), str(home / "w"))) == {str(built.parent), str(home / "weather")}
    script = program(home / "weather" / "build" / "serve.py")
    assert places_of_program(str(script), str(home), str(home / "w")) == (str(script.parent),)


def test_path_never_opens_a_home(home: Path) -> None:
    for directory in (home, home / "bin", home / ".local" / "bin"):
        program(directory / "tool")
    wide = {str(home), str(home.parent), str(home / ".local"), "/"}
    assert not wide & set(facts(home, home, home / "bin", home / ".local" / "bin", home.parent).toolchains)


def test_git_is_told_of_its_user(home: Path) -> None:
    (home / ".gitconfig").write_text("[user]\n")
    found = facts(home)
    assert (str(home / ".gitconfig") in found.toolchains) == os.path.exists("/usr/bin/git")


def test_nothing_is_named_that_is_not_there(home: Path) -> None:
    found = facts(home)
    assert all(map(os.path.exists, (*found.system, *found.devices, *found.secrets, *found.toolchains)))
    assert "/dev" not in found.system


def test_a_machine_of_which_nothing_is_known() -> None:
    found = usual_facts("/srv/p", "/home/u")
    assert found.repository == RepositoryFacts("/srv/p/.git", "/srv/p/.git", "/srv/p/.git")
    assert "/usr" in found.system


# Repositories


def git(directory: Path, *words: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(directory), *named, *words], check=True, env=own, stdout=subprocess.DEVNULL)


@pytest.fixture
def main(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "main"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    git(place, "commit", "-q", "--allow-empty", "-m", "first")
    return place


def test_a_repository(main: Path) -> None:
    top = str(main / ".git")
    assert repository_of(str(main)) == RepositoryFacts(top, top, top)
    assert repository_of(str(main.parent)) is None


def test_a_linked_working_tree(main: Path) -> None:
    tree = main.parent / "tree"
    git(main, "worktree", "add", "-q", str(tree))
    found = repository_of(str(tree))
    assert found == RepositoryFacts(str(tree / ".git"), str(main / ".git" / "worktrees" / "tree"), str(main / ".git"))


def test_submodules(main: Path) -> None:
    other = main.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "submodule", "add", "-q", str(other), "libs/one")
    module = str(main / ".git" / "modules" / "libs" / "one")
    found = repository_of(str(main))
    assert found is not None
    assert found.modules == (module,)
    within = repository_of(str(main / "libs" / "one"))
    assert within == RepositoryFacts(str(main / "libs" / "one" / ".git"), module, module)


def test_the_repository_around_a_workspace_is_read(main: Path) -> None:
    top = str(main / ".git")
    inner = main / "packages" / "a"
    inner.mkdir(parents=True)
    assert repository_of(str(inner)) == RepositoryFacts(top, top, top, reads=(top, top, top))


def test_the_repository_of_a_home_is_none_of_a_workspace(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = main / "packages"
    inner.mkdir()
    monkeypatch.setenv("HOME", str(main))
    assert repository_of(str(inner)) is None


@pytest.mark.parametrize("by_link", [False, True])
def test_a_git_directory_that_lies_apart(main: Path, *, by_link: bool) -> None:
    apart, tree = str(main.parent / "apart.git"), main.parent / "tree"
    git(main.parent, "clone", "-q", f"--separate-git-dir={apart}", str(main), str(tree))
    if by_link:
        (tree / ".git").unlink()
        (tree / ".git").symlink_to("../apart.git")
    assert repository_of(str(tree)) == RepositoryFacts(str(tree / ".git"), apart, apart)


def test_a_bare_repository_is_no_working_trees(main: Path) -> None:
    git(main.parent, "clone", "-q", "--bare", str(main), "bare.git")
    tree = main.parent / "tree"
    tree.mkdir()
    (tree / ".git").symlink_to("../bare.git")
    assert repository_of(str(tree)) is None


def test_a_submodules_directory_is_no_other_trees(main: Path) -> None:
    git(main.parent, "init", "-q", "other")
    git(main.parent / "other", "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "submodule", "add", "-q", str(main.parent / "other"), "one")
    tree = main.parent / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {main}/.git/modules/one\n")
    assert repository_of(str(tree)) is None


def test_borrowed_objects_are_read(main: Path) -> None:
    git(main.parent, "clone", "-q", "--shared", str(main), "second")
    git(main.parent, "clone", "-q", "--shared", "second", "third")
    found = repository_of(str(main.parent / "third"))
    assert found is not None
    assert set(found.reads) == {str(main.parent / name / ".git" / "objects") for name in ("main", "second")}
    alternates = main.parent / "third" / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"# {main}\n\n/etc\n{main}\n../../../third/.git/objects\n")
    found = repository_of(str(main.parent / "third"))
    assert found is not None
    assert set(found.reads) <= {str(main.parent / "third" / ".git" / "objects")}


def test_a_workspace_takes_no_repository_that_does_not_name_it(main: Path) -> None:
    """The author of a workspace writes its `.git`, and may name somebody else's repository in it."""
    hostile = main.parent / "hostile"
    hostile.mkdir()
    (hostile / ".git").write_text(f"gitdir: {main / '.git'}\n")
    assert repository_of(str(hostile)) is None
    own = hostile / "own"
    own.mkdir()
    (own / "gitdir").write_text(f"{hostile / '.git'}\n")
    (own / "commondir").write_text(f"{main / '.git'}\n")
    (hostile / ".git").write_text(f"gitdir: {own}\n")
    assert repository_of(str(hostile)) is None


@pytest.mark.parametrize("content", ["", "gitdir: ", "nothing", "gitdir: /nowhere", "gitdir: \0"])
def test_a_git_file_that_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    assert repository_of(str(tmp_path.resolve())) is None


def test_a_git_that_is_a_link_or_a_pipe(tmp_path: Path, main: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "another"
    one.mkdir()
    other.mkdir()
    (one / ".git").symlink_to(main / ".git")
    os.mkfifo(other / ".git")
    assert repository_of(str(one.resolve())) is None
    assert repository_of(str(other.resolve())) is None


def test_a_workspace_opens_no_place_by_a_link_or_an_environment_of_its_own(home: Path) -> None:
    """What it may write itself does not say what its commands may read."""
    private = home / "private" / "bin"
    program(private / "deploy")
    work = home / "w" / "bin"
    work.mkdir()
    (work / "git").symlink_to(private / "deploy")
    (work.parent / "pyvenv.cfg").write_text(f"home = {private}\n")
    found = facts(home, work).toolchains
    assert not [one for one in found if one.startswith(str(home / "private"))]


def test_an_environment_in_the_workspace_is_read_with_its_interpreter(home: Path) -> None:
    base = program(home / ".local" / "pythons" / "3.12" / "bin" / "python3.12")
    program(base.parent / "python3")
    work = home / "w" / ".venv" / "bin"
    work.mkdir(parents=True)
    (work / "python3").symlink_to(base)
    (work.parent / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    assert str(base.parent.parent) in facts(home, work).toolchains
