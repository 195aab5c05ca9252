"""One line for each class of shell lines: the verdict that `tables/*.txt` say of it is the one that comes out.

The lists are not made from the tables of `policy/`, so that a word that is lost there changes the verdict of a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from policy import Decision
from policy.decide import check_tool
from policy.facts import CommandFacts, ShellName
from policy.rules import TaskOptions
from policy.rules.narrowing import apply_task_options, assess
from policy.shell import parse
from policy.shell.findings import SimpleCommand
from tests.support.policy_tables_page import PAGE, page
from tests.support.rows import each_row

from .helpers import NOW, apply, bundle, shell

FOLDER = Path(__file__).parent / "tables"
LINES = [
    "builtins", "git", "interpreters", "lines", "lines-sh", "lines-zsh", "options", "packages", "sed", "starters",
    "variables", "windows-cmd", "windows-powershell", "wrappers",
]  # fmt: skip
GRANT: dict[str, Any] = {"blockedCommands": ["evil"]}
"""Every program but one, so that what is denied is that one, or cannot be decided."""
SHOWN = str.maketrans({"⏎": "\n", "⇥": "\t", "␋": "\v", "␇": "\a", "⍽": "\u00a0", "⎵": "\u2003"})


def rows(name: str) -> list[tuple[str, str]]:
    """Verdict and text of each line of a list, with the characters that `SHOWN` stands for."""
    texts = (FOLDER / f"{name}.txt").read_text("utf-8").split("\n")
    split = [text.split(maxsplit=1) for text in texts if text and not text.startswith("# ")]
    return [(verdict, text.translate(SHOWN)) for verdict, text in split]


def judged(line: str, shell_name: ShellName) -> str:
    """The verdict on a line; `hidden` where it is allowed unless its program may start nothing that is not shown."""
    verdict = shell(line, shell_name=shell_name, **GRANT).lower()
    strict = [{"command": one.program, "startsPrograms": False} for one in parse(line, shell_name).opaque]
    is_hidden = verdict == "allowed" and shell(line, shell_name=shell_name, **GRANT, commandPolicies=strict) == "DENIED"
    return "hidden" if strict and is_hidden else verdict


@each_row("name", LINES)
def test_every_line_has_the_verdict_that_the_list_says(name: str) -> None:
    shell_name: ShellName = next((one for one in get_args(ShellName) if name.endswith(f"-{one}")), "bash")
    said = rows(name)
    found = [(judged(line, shell_name), line) for _, line in said]
    assert [one for one, two in zip(found, said, strict=True) if one != two] == []
    assert len(set(said)) == len(said)


def test_the_page_of_what_is_known_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.support.policy_tables_page writes it"


NETWORK = bundle({"name": "Shell.Exec"}, {"name": "File.Read"}, {"name": "File.Write"})
WITHOUT = TaskOptions(allow_network=False)


def without_network(line: str, shell_name: ShellName) -> str:
    """The verdict on a line in a task from which the network is taken away, `network` where that is the reason."""
    facts = CommandFacts(line, cwd="/w", shell=shell_name, real_paths={})
    allowed = Decision("ALLOWED", "granted", "Shell.Exec", "capabilities[Shell.Exec]")
    answer = apply(apply_task_options, allowed, NETWORK, facts, options=WITHOUT, has_side_effects=True)
    is_shown = "uses the network, which" in answer.reason or "opens a network connection, and" in answer.reason
    return "network" if is_shown else answer.decision.lower()


def test_what_talks_over_the_network_is_taken_away_with_it() -> None:
    said = rows("network")
    found = [(without_network(line, "bash"), line) for _, line in said]
    assert [one for one, two in zip(found, said, strict=True) if one != two] == []
    assert without_network("iwr x", "powershell") == without_network("CURL.exe x", "cmd") == "network"
    assert without_network("gci x", "powershell") == without_network("dir x", "cmd") == "allowed"


def test_a_list_of_blocked_commands_meets_an_alias_and_what_it_stands_for() -> None:
    for alias, command in rows("powershell-aliases"):
        for one in (alias, alias.upper(), command, f"{command}.exe"):
            for other in (alias, command):
                verdict = shell(f"{one} x", shell_name="powershell", blockedCommands=[other])
                assert verdict == "DENIED", (one, other)
        assert shell("Get-Date x", shell_name="powershell", blockedCommands=[alias]) == "ALLOWED"
    for alias, command in {"erase": "del", "rd": "rmdir", "md": "mkdir", "chdir": "cd", "ren": "rename"}.items():
        for one, other in ((alias, command), (command, alias), (alias, alias)):
            assert shell(f"{one} x", shell_name="cmd", blockedCommands=[other]) == "DENIED", (one, other)
        assert shell(f"{alias} x", shell_name="cmd", blockedCommands=["copy"]) == "ALLOWED"


def test_a_list_of_blocked_commands_meets_a_gnu_program_under_the_name_that_other_systems_give_it() -> None:
    for name in (FOLDER / "gnu-programs.txt").read_text("utf-8").split("\n\n")[1].split():
        for one, other in ((f"g{name}", name), (f"/opt/bin/G{name}", name), (name, f"g{name}")):
            held = bundle({"name": "Shell.Exec", "blockedCommands": [other]})
            answer = check_tool(held, "Shell.Exec", CommandFacts(f"'{one}' x ]", cwd="/w"), now=NOW)
            assert answer.rule == f"capabilities[Shell.Exec].blockedCommands: {other}", (one, other)
    for one, other in (("git", "it"), ("gcc", "cc"), ("gap", "ap"), ("ggrepx", "grepx"), ("gggrep", "grep")):
        assert shell(f"{one} log", blockedCommands=[other]) == "ALLOWED"


def test_a_program_that_is_not_known_makes_a_command_risky() -> None:
    entry = bundle({"name": "Shell.Exec"}).capability("Shell.Exec")
    assert entry is not None
    known = (FOLDER / "known-programs.txt").read_text("utf-8").split("\n\n")[1].split()
    for program in known:
        line = {"[": "[ -f a ]", "env": "env", "git": "git log", "sed": "sed p"}.get(program, f"{program} x.py")
        assert assess(entry, CommandFacts(line, cwd="/w")) == ("medium", ()), line
    for program in ("rm", "curl", "mv", "bash", "x", "./ls", "LS"):
        assert assess(entry, CommandFacts(f"{program} x", cwd="/w"))[0] == "high", program


def test_what_powershell_reads_as_its_own_is_not_let_start_programs() -> None:
    """`r` is its history, whatever a program of that name would do."""
    for program in ("r", "msbuild"):
        starts = [{"command": program, "startsPrograms": True}]
        line = f"{program} x"
        assert shell(line, shell_name="powershell", allowedCommands=[program], commandPolicies=starts) == "DENIED"
        assert shell(line, allowedCommands=[program], commandPolicies=starts) == "ALLOWED"


@pytest.mark.parametrize("shell_name", ["cmd", "powershell"])
def test_words_of_windows_lose_their_quotes_and_the_line_the_blanks_around_it(shell_name: ShellName) -> None:
    parsed = parse(' git commit -m "a b" c"d"e \t', shell_name)
    assert parsed.commands == (SimpleCommand("git", ("commit", "-m", "a b", "cde")),)
    assert parsed.dynamic == ()
    assert parse("git add 'a b'", shell_name).commands[0].arguments == ("add", "a b")
    assert parse(" ", shell_name).commands == ()
