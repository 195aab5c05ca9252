"""The map in docs/architecture.md is the import contract, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.house import imports_of, modules

MOST_LAZY_IMPORTS = 100
ROOT = Path(__file__).parents[2]


def contract(package: str) -> list[set[str]]:
    """The floors of `package` as import-linter has them, the highest first."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = (one for one in contracts if one.get("containers") == [package])
    assert found["exhaustive"]
    return [set(re.findall(r"\w+", layer)) for layer in found["layers"]]


def drawn(package: str) -> list[tuple[int, set[str]]]:
    """The rows of the package's table in the map: the number of the floor, and its modules."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.split(f"| floor | modules of `{package}` |")[1].split("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines()[2:]]
    return [(int(number), set(re.findall(r"`(\w+)`", modules))) for _, number, modules, *_ in rows]


@pytest.mark.parametrize("package", ["agent_host", "tool_runtime", "policy"])
def test_the_map_is_the_import_contract(package: str) -> None:
    floors = contract(package)
    assert drawn(package) == [(len(floors) - place, floor) for place, floor in enumerate(floors)]


def test_imports_inside_functions_do_not_become_more() -> None:
    found = modules()
    lazy = [one for module in found.values() for one in imports_of(module, found) if one.kind == "lazy"]
    assert len(lazy) <= MOST_LAZY_IMPORTS
