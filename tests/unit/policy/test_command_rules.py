"""Lists and argument rules of Shell.Exec: which entry decides, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policy.decide import check_tool
from policy.facts import CommandFacts, PathFacts
from tests.support.rows import each_row

from .helpers import NOW, bundle

if TYPE_CHECKING:
    from policy import Decision
    from policy.facts import ShellName

ENTRY = "capabilities[Shell.Exec]"


def judge(line: str, shell: ShellName = "bash", *, cwd: str = "/w", **fields: Any) -> Decision:
    held = bundle({"name": "Shell.Exec", **fields}, {"name": "File.Read"}, {"name": "File.Write"})
    return check_tool(held, "Shell.Exec", CommandFacts(line, cwd=cwd, shell=shell), now=NOW)


def ruled(line: str, *policies: dict[str, Any], **fields: Any) -> str:
    return judge(line, commandPolicies=list(policies), **fields).decision


def test_a_decision_names_the_entry_and_what_it_found() -> None:
    for fields, line, decision, rule in (
        ({}, "ls", "ALLOWED", ENTRY),
        ({"allowedCommands": ["ls", "cat"]}, "ls; cat; ls", "ALLOWED", f"{ENTRY}.allowedCommands: ls, cat"),
        ({"allowedCommands": ["ls"]}, "x=1", "ALLOWED", ENTRY),
        ({"allowedCommands": ["ls"]}, "cat", "DENIED", f"{ENTRY}.allowedCommands"),
        ({"allowedCommands": []}, "x=1", "DENIED", f"{ENTRY}.allowedCommands"),
        ({"allowedCommands": []}, "ls", "DENIED", f"{ENTRY}.allowedCommands"),
        ({"blockedCommands": ["/bin/RM"]}, "rm", "DENIED", f"{ENTRY}.blockedCommands: /bin/RM"),
        ({"blockedCommands": ["rm"]}, "ls $x; /x/Rm", "DENIED", f"{ENTRY}.blockedCommands: rm"),
        ({"blockedCommands": ["rm"]}, "$x", "DENIED", f"{ENTRY}.blockedCommands"),
        ({"blockedCommands": []}, "$x", "ALLOWED", ENTRY),
        ({"allowedCommands": ["ls"]}, "$x", "DENIED", f"{ENTRY}.allowedCommands"),
        ({"commandPolicies": [{"command": "ls"}]}, "$x", "DENIED", f"{ENTRY}.commandPolicies"),
        ({"commandPolicies": []}, "$x", "ALLOWED", ENTRY),
        (
            {"commandPolicies": [{"command": "LS", "maxArguments": 0}]}, "ls a",
            "DENIED", f"{ENTRY}.commandPolicies: LS",
        ),
        ({"allowedCommands": ["ls"], "blockedCommands": ["rm"]}, "$x", "DENIED", f"{ENTRY}.blockedCommands"),
    ):  # fmt: skip
        answer = judge(line, **fields)
        assert (answer.decision, answer.rule) == (decision, rule), (line, fields)


def test_five_reasons_are_told_and_advice_where_there_is_some() -> None:
    line = "alias a; enable b; alias c; hash d; fc e; bind f; history g"
    told = judge(line, allowedCommands=["ls"]).reason
    assert told.count("; ") == 4
    assert "; enable changes" in told
    assert "history" not in told
    undecided = "the command cannot be decided: "
    somebody = undecided + "a redirection to somebody's home directory"
    advice = ". Instead: write the path of the file out, without cd"
    assert judge("ls > ~x", allowedCommands=["ls"]).reason == somebody + advice


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("$x a", "write the program's name out"),
        ("eval $x", "write it to a file, such as script.sh or script.py, and run that"),
        ("PATH=a ls", "leave the variable out, or write the path of the program out"),
        ("ls > $x", "write the path of the file out, without cd"),
        ("rg --pre=x a", "run the other program in a command of its own"),
        ("echo 'a", "write it to a file and run that, or split it into several commands"),
        ("alias a=b", "use plain commands, one a call, or write a script to a file and run that"),
    ],
)
def test_a_denial_says_what_to_write_instead(line: str, advice: str) -> None:
    told = judge(line, allowedCommands=["ls", "rg", "echo", "eval", "alias"]).reason
    assert told.endswith(f". Instead: {advice}") or f". Instead: {advice}; or " in told


def test_a_denial_names_what_is_allowed() -> None:
    assert judge("evil", allowedCommands=["ls", "cat"]).reason == (
        "command not in allowed commands: evil; allowed are ls, cat"
    )
    listed = [f"program{place}" for place in range(30)]
    assert judge("evil", allowedCommands=listed).reason.endswith(" and 5 more")
    assert judge("program99", allowedCommands=listed).reason.startswith(
        "command not in allowed commands: program99; nearest in the list: program9"
    )


@pytest.mark.parametrize("line", ["", " ", "\n\t", "ls \0"])
def test_what_is_no_command_is_denied(line: str) -> None:
    assert (judge(line).decision, judge(line).rule) == ("DENIED", ENTRY)


def test_a_command_needs_a_directory_to_run_in() -> None:
    for cwd in ("w", "", "C:\\w"):
        assert (judge("ls", cwd=cwd).decision, judge("ls", cwd=cwd).rule) == ("DENIED", ENTRY)
    held = bundle({"name": "Shell.Exec"})
    windows = CommandFacts("dir", cwd="C:\\w", shell="cmd")
    assert check_tool(held, "Shell.Exec", windows, now=NOW, os="windows").allowed


def test_names_are_compared_as_their_shell_does() -> None:
    for shell, program, listed, allowed in (
        ("bash", "LS", "ls", False),
        ("bash", "/bin/ls", "ls", False),
        ("bash", "/bin/ls", "/bin/ls", True),
        ("bash", "ls.exe", "ls", False),
        ("cmd", "GIT.EXE", "git", True),
        ("cmd", "git", "Git.exe", True),
        ("powershell", "Git.Exe", "git", True),
        ("cmd", "git.cmd", "git", False),
        ("cmd", "x\\git", "git", False),
        ("cmd", "git.exe.exe", "git", False),
    ):
        answer = judge(f"{program} log", shell, allowedCommands=[listed])  # type: ignore[arg-type]  # names of shells
        assert answer.allowed is allowed, (shell, program, listed)
    for shell, program, blocked in (
        ("bash", "/x/LS", "ls"),
        ("bash", "ls", "/bin/ls"),
        ("cmd", "C:\\x\\GIT.cmd", "git"),
        ("cmd", "git.bat", "x/git"),
        ("cmd", "git.com", "git.ps1"),
    ):
        answer = judge(f"{program} log", shell, blockedCommands=[blocked])  # type: ignore[arg-type]
        assert answer.decision == "DENIED", (shell, program, blocked)


def test_an_assignment_is_an_argument_of_what_declares_it() -> None:
    for line, decision in (("export", "ALLOWED"), ("export a=b", "DENIED"), ("export a", "DENIED")):
        assert ruled(line, {"command": "export", "maxArguments": 0}) == decision


@each_row(
    ("policy", "fits", "does_not"),
    [
        ({"maxArguments": 0}, ["ls"], ["ls a"]),
        ({"maxArguments": 1}, ["ls", "ls a"], ["ls a b"]),
        ({"maxArguments": 1}, ["cat a b"], []),
        ({"maxArguments": 2}, ["ls == a", "ls $ a", "ls a $"], ["ls == a b", "ls =~ a b", "ls a $ b", "ls a b $"]),
        ({"subcommands": ["a"]}, ["ls a", 'ls "a"'], ["ls == a", "ls =~ a+", "ls $ a", 'ls $"a"', 'ls $"a"b']),
        ({"subcommands": ["a", "b"]}, ["ls a", "ls b c"], ["ls", "ls c", "ls A"]),
        ({"subcommands": []}, [], ["ls", "ls a"]),
        ({"arguments": [{"index": 0}]}, ["ls a", "ls a b"], ["ls", 'ls "$x"']),
        ({"arguments": [{"index": 1, "optional": True, "enum": ["b"]}]}, ["ls", "ls a", "ls a b c"], ["ls a c"]),
        ({"arguments": [{"index": 1, "enum": ["b"]}]}, ["ls a b"], ["ls", "ls a"]),
        ({"arguments": [{"index": 0, "enum": []}]}, [], ["ls", "ls a"]),
        ({"arguments": [{"index": 0, "enum": ["a", "b"], "pattern": "b|c"}]}, ["ls b"], ["ls a", "ls c"]),
        ({"arguments": [{"index": 0, "pattern": ""}]}, ["ls ''"], ["ls a"]),
        ({"additionalArguments": False}, ["ls"], ["ls a"]),
        ({"additionalArguments": False, "subcommands": ["a"]}, ["ls a"], ["ls a b", "ls"]),
        ({"additionalArguments": False, "arguments": [{"index": 0}, {"index": 1, "optional": True}]},
         ["ls a", "ls a b"], ["ls", "ls a b c"]),
        ({"additionalArguments": False, "arguments": [{"index": 1}]}, [], ["ls a b", "ls a"]),
        ({"additionalArguments": True}, ["ls a b", 'ls "$x"'], []),
        ({}, ["ls a", 'ls "$x"'], []),
        ({"maxArguments": 5}, ["ls a"], ['ls "$x"']),
        ({"arguments": [{"index": 0, "pattern": ".*"}]}, ["ls a", "ls a~", "ls ./~"], ["ls ~", "ls ~/a", "ls ~x"]),
        ({"arguments": [{"index": 0, "pattern": "~/.*"}]}, ["ls ~/a"], ["ls a", "ls ~"]),
        ({"arguments": [{"index": 0, "pattern": "a+"}]}, ["ls " + "a" * 4_096], ["ls " + "a" * 4_097]),
        ({"arguments": [{"index": 0, "enum": ["a" * 5_000]}]}, ["ls " + "a" * 5_000], []),
    ],
)  # fmt: skip
def test_rules_for_arguments(policy: dict[str, Any], fits: list[str], does_not: list[str]) -> None:
    entry = {"command": "ls", **policy}
    for line in fits:
        assert ruled(line, entry) == "ALLOWED", line
    for line in does_not:
        assert ruled(line, entry) == "DENIED", line
        assert ruled(f"cat a | /bin/{line}", entry) == "DENIED", line


def test_why_an_argument_is_not_permitted() -> None:
    for policy, line, said in (
        ({"maxArguments": 1}, "ls a b", "ls: more than 1 arguments"),
        ({"maxArguments": 1}, 'ls "$x"', "ls: an argument is only known when it runs"),
        ({"subcommands": ["a"]}, "ls b", "ls: its first argument is not a permitted subcommand"),
        ({"arguments": [{"index": 2}]}, "ls a", "ls: argument 2 is missing"),
        ({"arguments": [{"index": 1, "enum": ["a"]}]}, "ls a b", "ls: argument 1 is not permitted: b"),
        ({"additionalArguments": False, "subcommands": ["a"]}, "ls a b c", "ls: argument 1 is not permitted"),
    ):
        assert judge(line, commandPolicies=[{"command": "ls", **policy}]).reason == said


def test_each_bundle_keeps_its_tables_for_each_shell() -> None:
    held = bundle(
        {
            "name": "Shell.Exec",
            "allowedCommands": ["LS", "make"],
            "blockedCommands": ["rm"],
            "commandPolicies": [{"command": "LS", "maxArguments": 1}],
        }
    )

    def asked(line: str, shell: ShellName) -> str:
        return check_tool(held, "Shell.Exec", CommandFacts(line, cwd="/w", shell=shell), now=NOW).decision

    for _ in range(2):
        assert asked("ls", "bash") == "DENIED"
        assert asked("ls", "cmd") == "ALLOWED"
        assert asked("LS", "bash") == "ALLOWED"
        assert asked("LS a b", "bash") == asked("ls a b", "cmd") == "DENIED"
        assert asked("rm", "bash") == asked("RM.exe", "cmd") == "DENIED"


def test_a_program_is_kept_from_starting_others_under_any_name_of_it() -> None:
    starts = {"command": "Make.EXE", "startsPrograms": False}
    for shell, line, verdict in (
        ("cmd", "make x", "DENIED"),
        ("powershell", "MAKE.exe x", "DENIED"),
        ("cmd", "ninja x", "ALLOWED"),
        ("bash", "make x", "ALLOWED"),
    ):
        listed = ["make", "ninja", "Make.EXE"]
        answer = judge(line, shell, allowedCommands=listed, commandPolicies=[starts])  # type: ignore[arg-type]
        assert answer.decision == verdict, (shell, line)


def test_facts_of_another_kind_are_no_command() -> None:
    held = bundle({"name": "Shell.Exec"})
    facts = PathFacts(requested="/w", absolute="/w", real_path="/w")
    assert check_tool(held, "Shell.Exec", facts, now=NOW).rule == ENTRY


def test_redirections_on_windows_go_by_its_paths() -> None:
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write", "allowedPaths": ["C:\\w"]})
    for target, allowed in (("c:/W/a", True), ("c:/v/a", False)):
        facts = CommandFacts("ls > a", cwd="C:\\w", shell="bash", real_paths={"C:\\w/a": target})
        assert check_tool(held, "Shell.Exec", facts, now=NOW, os="windows").allowed is allowed
