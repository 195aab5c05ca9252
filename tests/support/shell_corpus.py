"""The shell lines of the unit tests of policy, with their paths moved into a jail."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.shell_jail import Jail

_LISTS = ("builtins", "lines", "lines-sh", "lines-zsh", "wrappers")
_ELSEWHERE = re.compile(r"/(?:etc|tmp|usr/bin|bin|w|srv)\b(?:/evil)?")


def corpus(jail: Jail) -> list[str]:
    """Every line that a unit test of policy has judged, so a trick that is found once is varied from then on."""
    return [_ELSEWHERE.sub(jail.root, line) for line in _lines()]


@lru_cache(maxsize=1)
def _lines() -> tuple[str, ...]:
    from tests.unit.policy import test_commands, test_shell_tricks, test_tables

    found: dict[str, None] = {line: None for name in _LISTS for _, line in test_tables.rows(name)}
    for module in (test_commands, test_shell_tricks):
        for value in vars(module).values():
            for mark in getattr(value, "pytestmark", ()):
                if mark.name == "parametrize":
                    found.update(dict.fromkeys(_column(*mark.args[:2])))
    return tuple(found)


def _column(names: Any, rows: Any) -> list[str]:
    """The values of the parameter `command`."""
    heads = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if "command" not in heads:
        return []
    place = heads.index("command")
    column: list[str] = []
    for row in rows:
        values = row.values if hasattr(row, "values") else row
        column.append(values if isinstance(values, str) else values[place])
    return column
