"""The list of programs that start without a shell, beside what Shell.Exec admits (NT)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.host.environment import built_in
from agent_host.judging import Environment, Judge
from policy.bundle.validate import command_policies
from policy.rules import NO_LIMITS, NativeExec
from policy.rules.native_exec import DEFAULT, LIST, ROOTS, path_problem, places_of
from policy.shell import BadArgv, line_of
from tests.support.judging import decided_call, problem_with
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from pathlib import Path

    from policy import Decision

FILES = ["/bin/cat", "/usr/bin/head", "/bin/ls", "/usr/bin/wc", "/usr/bin/stat"]


def decision(root: Path, *argv: str, shell: dict[str, Any] | None = None, more: Any = (), **arguments: Any) -> Decision:
    here = Environment(str(root), "/home/u", "posix", "bash", {"PATH": "/usr/bin:/bin"})
    held = bundle({"name": "Shell.Exec", **(shell or {})})
    native = NativeExec((*DEFAULT, *command_policies(list(more), LIST)), (str(root),))
    judge = Judge(held, here, built_in(), NO_LIMITS, lambda: NOW, native=native)
    found = decided_call(judge, "cp__exec", {"command": argv[0], "args": list(argv[1:]), **arguments})
    assert found.decision is not None, found.refusal
    return found.decision


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a file, a link out of it, and a directory."""
    place = (tmp_path / "ws").resolve()
    (place / "sub").mkdir(parents=True)
    (place / "f").write_text("x")
    (place / "out").symlink_to("/etc")
    return place


@each_row(
    "argv",
    [
        ("/bin/ls", "-la", "sub"),
        ("/usr/bin/ls",),
        ("/bin/pwd",),
        ("/bin/echo", "/etc/passwd"),
        ("/bin/sleep", "1"),
        ("/usr/bin/find", ".", "-name", "f", "-type", "f"),
        ("/bin/grep", "-rn", "x", "sub"),
        ("/bin/cat", "sub/../f"),
        ("/usr/bin/tail", "-n", "5", "f"),
        ("/bin/grep", "--include=f", "x", "."),
    ],
)
def test_what_the_list_admits(root: Path, argv: tuple[str, ...]) -> None:
    found = decision(root, *argv)
    assert found.allowed, found


@each_row(
    "argv",
    [
        ("ls",),
        ("./ls",),
        ("/bin/../bin/ls",),
        ("/bin/bash", "-c", "ls"),
        ("/usr/local/bin/ls",),
        ("/bin/pwd", "-P"),
        ("/bin/sleep", "1", "2"),
        ("/bin/ls", *["f"] * 13),
        ("/bin/cat", "a b"),
        ("/bin/cat", "$(id)"),
        ("/bin/cat", "*"),
        ("/usr/bin/find", ".", "-delete"),
        ("/usr/bin/find", ".", "-exec", "id"),
        ("/usr/bin/find", ".", "-execdir", "id"),
        ("/usr/bin/find", ".", "-ok", "id"),
        ("/usr/bin/find", ".", "-fprint", "f"),
        ("/usr/bin/find", ".", "-fprintf", "f", "x"),
        ("/usr/bin/find", ".", "-fls", "f"),
        ("/usr/bin/find", ".", "-files0-from", "f"),
        ("/usr/bin/find", "-L", "."),
        ("/bin/grep", "-f", "f", "."),
        ("/bin/grep", "-rf", "f", "."),
        ("/bin/grep", "-ff", "."),
        ("/bin/grep", "--fil=f", "."),
        ("/bin/grep", "--file", "f", "."),
        ("/bin/grep", "-R", "x", "."),
        ("/bin/grep", "--deref", "x", "."),
        ("/usr/bin/wc", "--files0-from=f"),
        ("/bin/ls", "-lL", "out"),
    ],
)
def test_what_no_list_admits(root: Path, argv: tuple[str, ...]) -> None:
    found = decision(root, *argv)
    assert (found.decision, found.rule) == ("DENIED", LIST), found


@each_row("word", ["/etc/passwd", "../f", "out/passwd", "sub/../../x", "out", "/"])
@each_row("program", FILES)
def test_no_argument_leads_out_of_the_roots(root: Path, program: str, word: str) -> None:
    found = decision(root, program, word)
    assert (found.decision, found.rule) == ("DENIED", ROOTS), found


@each_row(
    "argv",
    [
        ("/bin/grep", "x", "--exclude-from=/etc/passwd", "f"),
        ("/bin/grep", "x", "--exclude-from=out/passwd", "f"),
        ("/usr/bin/find", "/etc"),
        ("/usr/bin/find", "f", "-newer", "/etc/passwd"),
        ("/usr/bin/head", "-c1", "-q/etc/passwd"),
        ("/usr/bin/head", "-q../../x"),
        ("/usr/bin/tail", "--follow=/etc/passwd"),
    ],
)
def test_an_option_leads_nowhere_else_either(root: Path, argv: tuple[str, ...]) -> None:
    found = decision(root, *argv)
    assert (found.decision, found.rule) == ("DENIED", ROOTS), found


def test_the_directory_is_in_a_root_too(root: Path) -> None:
    assert decision(root, "/bin/ls", working_dir="sub").allowed
    assert decision(root, "/bin/ls", working_dir="/etc").rule == ROOTS
    assert decision(root, "/bin/ls", working_dir="out").rule == ROOTS
    assert decision(root, "/bin/cat", "../f", working_dir="sub").allowed


def test_both_lists_have_to_admit(root: Path) -> None:
    """The bundle lists bare names: the system's program of that name is meant."""
    assert decision(root, "/bin/ls", shell={"allowedCommands": ["ls"]}).allowed
    found = decision(root, "/bin/cat", "f", shell={"allowedCommands": ["ls"]})
    assert found.rule == "capabilities[Shell.Exec].allowedCommands"
    assert decision(root, "/bin/ls", shell={"blockedCommands": ["ls"]}).decision == "DENIED"
    assert decision(root, "/bin/ls", shell={"requiresApproval": True}).decision == "APPROVAL_REQUIRED"
    refused = decision(root, "/bin/cat", "/etc/passwd", shell={"requiresApproval": True})
    assert refused.decision == "DENIED"


def test_what_the_list_does_not_admit_has_the_list_s_reason(root: Path) -> None:
    """Whatever the bundle says to it besides: nothing that the bundle asks for would let it run."""
    deletes = decision(
        root, "/usr/bin/find", ".", "-delete", shell={"allowedCommands": ["find"], "blockedCommands": []}
    )
    assert (deletes.decision, deletes.rule) == ("DENIED", LIST)
    assert decision(root, "/bin/rm", "f", shell={"allowedCommands": ["ls"]}).rule == LIST
    assert decision(root, "/bin/rm", "f", shell={"blockedCommands": ["rm"]}).rule == LIST


def test_configuration_appends(root: Path) -> None:
    entry = {
        "command": "/usr/bin/git",
        "arguments": [{"index": 0, "enum": ["status", "log"]}],
        "additionalArguments": True,
    }
    assert decision(root, "/usr/bin/git", "status", more=[entry]).allowed
    assert decision(root, "/usr/bin/git", "push", more=[entry]).rule == LIST
    assert decision(root, "/usr/bin/git", "log", "/etc", more=[entry]).rule == ROOTS
    assert decision(root, "/bin/ls", more=[entry]).allowed
    looser = {"command": "/usr/bin/find"}
    assert decision(root, "/usr/bin/find", ".", "-name", "*.py", more=[looser]).allowed
    assert decision(root, "/usr/bin/find", ".", "-delete", more=[looser]).rule == LIST


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "GIT_SSH_COMMAND", "BASH_ENV"])
def test_a_variable_that_steers_is_refused(root: Path, name: str) -> None:
    assert decision(root, "/bin/ls", env={"LC_ALL": "C"}).allowed
    assert decision(root, "/bin/ls", env={name: "./x"}).decision == "DENIED"


@each_row(
    ("arguments", "said"),
    [
        ({"command": ""}, "non-empty"),
        ({"command": "/bin/ls", "args": "x"}, "list"),
        ({"command": "/bin/ls", "args": ["a\0"]}, "null bytes"),
        ({"command": "/bin/ls", "args": [1]}, "strings"),
        ({"command": "/bin/ls", "env": {"A B": "x"}}, "name of a variable"),
        ({"command": "/bin/ls", "working_dir": 1}, "string"),
    ],
)
def test_arguments_that_name_no_program(root: Path, arguments: dict[str, Any], said: str) -> None:
    here = Environment(str(root), None, "posix", "bash", {})
    judge = Judge(bundle({"name": "Shell.Exec"}), here, built_in(), NO_LIMITS, lambda: NOW)
    assert said in problem_with(decided_call(judge, "cp__exec", arguments))


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_the_line_means_the_same_words(argv: list[str]) -> None:
    assert shlex.split(line_of(argv, {}, "posix")) == argv


def test_windows() -> None:
    policies = command_policies([{"command": "C:\\Windows\\System32\\where.exe"}], LIST)
    assert [path_problem(one.command, "windows") for one in policies] == [None]
    for path in ("where.exe", "C:where.exe", "\\where.exe", "C:\\a.bat", "C:\\a.cmd", "C:\\a", "C:\\x\\..\\where.exe"):
        policy = command_policies([{"command": path}], LIST)[0]
        assert path_problem(policy.command, "windows"), path
    assert line_of(["C:\\where.exe", "a b", ""], {}, "windows") == 'C:\\where.exe "a b" ""'
    for word in ("%PATH%", "a&b", 'a"b', "a^b", "a|b", "a>b", "!x!"):
        with pytest.raises(BadArgv, match="Windows"):
            line_of(["C:\\where.exe", word], {}, "windows")
    assert places_of(("C:\\where.exe", "..\\x"), "C:\\w\\d", "windows") == ("C:\\w\\x",)
