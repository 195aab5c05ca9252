"""One line for every row of the tables of `policy/`: what `tables/*.txt` say of it is what comes out.

The lists are written by hand and not made from the tables, so that a row that goes missing there is missed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from policy.facts import ShellName

from .helpers import shell

FOLDER = Path(__file__).parent / "tables"
LINES = ["builtins", "git", "interpreters", "options", "packages", "starters", "variables", "wrappers"]
GRANT: dict[str, Any] = {"blockedCommands": ["evil"]}
"""Every program but one, so that what is denied is that one, or cannot be decided."""


def rows(name: str) -> list[tuple[str, str]]:
    """Verdict and text of each line of a list; `⏎` stands for a line break."""
    texts = (FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    split = [text.split(maxsplit=1) for text in texts if text and not text.startswith("# ")]
    return [(verdict, text.replace("⏎", "\n")) for verdict, text in split]


@pytest.mark.parametrize("name", LINES)
def test_every_line_has_the_verdict_that_the_list_says(name: str) -> None:
    shell_name: ShellName = next((one for one in get_args(ShellName) if name.endswith(f"-{one}")), "bash")
    said = rows(name)
    found = [(shell(line, shell_name=shell_name, **GRANT).lower(), line) for _, line in said]
    assert [one for one, two in zip(found, said, strict=True) if one != two] == []
    assert len(set(said)) == len(said)
