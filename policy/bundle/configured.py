"""commandPolicies from configuration, which only narrows: the rules and messages of a bundle, and one rule more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from policy.bundle.entry_meaning import command_policy_problems
from policy.bundle.model import CommandPolicy
from policy.bundle.problems import BundleProblems, Problem, together
from policy.bundle.typed import read_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def command_policies(entries: Sequence[dict[str, Any]], name: str) -> tuple[CommandPolicy, ...]:
    """The entries (JSON shape) as values. `name` is what the problems call the list.

    Raises BundleProblems with all that is wrong, `startsPrograms: true` included: nothing here can add.
    """
    try:
        shape = json.loads(json.dumps(list(entries), allow_nan=False))
    except (ValueError, TypeError) as fault:
        raise BundleProblems((Problem(name, f"is not JSON: {fault}"),)) from None
    of_types: list[Problem] = []
    policies = read_list(CommandPolicy, shape, of_types, (name,))
    of_values: list[Problem] = []
    for place, entry in enumerate(entries):
        of_values += command_policy_problems(f"{name}[{place}]", entry)
        of_values += _grants(f"{name}[{place}]", entry)
    problems = together(of_types, of_values)
    if problems:
        raise BundleProblems(problems)
    return tuple(policies)


def _grants(path: str, entry: dict[str, Any]) -> Iterator[Problem]:
    if entry.get("startsPrograms") is True:
        yield Problem(f"{path}.startsPrograms", "is true, and configuration only narrows", "false, or leave it out")
