"""The map in docs/architecture.md is the import contract, and nothing else."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent_host", "config", "policy", "state", "tool_runtime")


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


def imports_inside_functions(file: Path) -> bool:
    """Whether a function of the file imports anything."""
    functions = (
        one
        for one in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(isinstance(one, ast.Import | ast.ImportFrom) for function in functions for one in ast.walk(function))


def test_functions_import_at_the_doors_only() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.split("| door |")[1].split("\n\n")[0]
    listed: set[str] = set()
    for line in table.splitlines()[2:]:
        package = ""
        for name in re.findall(r"`([\w/]+\.py)`", line.split("|")[1]):
            package = name.split("/")[0] if name.split("/")[0] in PACKAGES else package
            listed.add(name if name.startswith(package) else f"{package}/{name}")
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    assert {file.relative_to(ROOT).as_posix() for file in files if imports_inside_functions(file)} == listed
