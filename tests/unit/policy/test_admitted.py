"""What the lists of a bundle admit beyond what they name."""

from __future__ import annotations

from typing import Any

import pytest

from policy.programs import what_it_starts
from policy.rules.bundle_summary import starters, summarize, summarize_in_line
from tests.support.rows import each_row

from .helpers import bundle

BOTH = [{"name": "File.Write"}, {"name": "File.Delete"}]


@each_row(
    ("program", "expected"),
    [
        ("python3.12", "any code"),
        ("/usr/bin/node", "any code"),
        ("bash", "any command line"),
        ("eval", "any command line"),
        ("make", "the commands of its build files"),
        ("tox", "the commands that its configuration lists"),
        ("npm", "the scripts of packages"),
        ("pip3", "the scripts of packages"),
        ("npx", "any program"),
        ("ssh", "any program"),
        ("agent-host", "any program"),
        ("ls", None),
        ("env", None),
        ("xargs", None),
        ("git", None),
    ],
)
def test_what_a_program_starts(program: str, expected: str | None) -> None:
    assert what_it_starts(program) == expected


def lines(*capabilities: dict[str, Any], commands: list[str] | None, **fields: Any) -> list[str]:
    return summarize(bundle({"name": "Shell.Exec", "allowedCommands": commands, **fields}, *capabilities))


def test_one_line_a_group_in_the_order_of_the_list() -> None:
    assert lines(*BOTH, commands=["ls", "make", "python3", "cmake", "/ws/bin/*", "C:\\w\\**"]) == [
        "make, cmake let the model run anything in the workspace: the commands of its build files",
        "python3 lets the model run anything in the workspace: any code",
        "/ws/bin/*, C:\\w\\** let the model run anything in the workspace: programs that it wrote itself",
    ]


def test_nothing_is_said_of_lists_that_are_not_there_or_start_nothing() -> None:
    assert lines(commands=None) == []
    assert lines(commands=[]) == []
    assert lines(*BOTH, commands=["ls", "rm", "cp"]) == []
    assert summarize(bundle({"name": "File.Read"})) == []


def test_what_changes_files_where_no_capability_says_which() -> None:
    write, delete = BOTH
    commands = ["rm", "ls", "mv", "tee"]
    assert lines(commands=commands) == [
        "there is no File.Write entry, so what mv, tee write is not judged",
        "there is no File.Delete entry, so what rm, mv remove is not judged",
    ]
    assert lines(write, commands=commands) == ["there is no File.Delete entry, so what rm, mv remove is not judged"]
    assert lines(delete, commands=["cp"]) == ["there is no File.Write entry, so what cp writes is not judged"]


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["ls"], None),
        (["ls", "make"], "policy: 1 program may start others (make); see agent-host policy validate"),
        (["make", "npm"], "policy: 2 programs may start others (make, npm); see agent-host policy validate"),
        (["make", "npm", "sh"], "policy: 3 programs may start others (make, npm, …); see agent-host policy validate"),
    ],
)
def test_in_one_line(commands: list[str], expected: str | None) -> None:
    assert summarize_in_line(bundle({"name": "Shell.Exec", "allowedCommands": commands})) == expected


def test_what_may_not_start_others_is_left_out() -> None:
    policies = [{"command": "make", "startsPrograms": False}]
    held = bundle({"name": "Shell.Exec", "allowedCommands": ["make", "npm"], "commandPolicies": policies})
    assert list(starters(held)) == ["npm"]
    assert starters(bundle({"name": "LLM.Call"})) == {}
