"""commandPolicies from configuration."""

from __future__ import annotations

from typing import Any

import pytest

from policy.bundle import ArgumentRule, BundleProblems, CommandPolicy
from policy.bundle.validate import command_policies


def problems(*entries: Any) -> dict[str, str]:
    with pytest.raises(BundleProblems) as caught:
        command_policies(entries, "policy.command_policies")
    return {one.path: f"{one.message} {one.hint}" for one in caught.value.problems}


def test_entries_have_the_names_of_a_bundle() -> None:
    entry = {
        "command": "git",
        "subcommands": ["log"],
        "arguments": [{"index": 1, "pattern": "-[0-9]", "optional": True}],
    }
    rule = ArgumentRule(1, "-[0-9]", optional=True)
    assert command_policies([entry], "x") == (CommandPolicy("git", arguments=(rule,), subcommands=("log",)),)
    assert command_policies([], "x") == ()


def test_every_problem_is_told_at_once_in_the_words_of_a_bundle() -> None:
    found = problems(
        {"command": "git log", "max_arguments": 3, "maxArguments": -1},
        {"arguments": [{"index": "1"}, {"index": 0, "pattern": "(?=x)"}]},
        {"command": "make", "startsPrograms": True},
    )
    assert set(found) == {
        "policy.command_policies[0].command",
        "policy.command_policies[0].max_arguments",
        "policy.command_policies[0].maxArguments",
        "policy.command_policies[1].command",
        "policy.command_policies[1].arguments[0]",
        "policy.command_policies[1].arguments[0].index",
        "policy.command_policies[1].arguments[1].pattern",
        "policy.command_policies[2].startsPrograms",
    }
    assert "did you mean maxArguments?" in found["policy.command_policies[0].max_arguments"]
    assert "look-around" in found["policy.command_policies[1].arguments[1].pattern"]


def test_what_json_does_not_have_is_a_problem_too() -> None:
    assert "is not JSON" in problems({"command": {1, 2}})["policy.command_policies"]
    assert "is not JSON" in problems({"command": "a", "maxArguments": float("nan")})["policy.command_policies"]


def test_a_type_problem_is_told_once_where_it_stands() -> None:
    found = problems({"command": "a"}, {"command": 5, "x": 1})
    assert set(found) == {"policy.command_policies[1].command", "policy.command_policies[1].x"}
    assert found["policy.command_policies[1].x"].startswith("is not a field of this object known are command, ")
