"""Who sees what a module makes at import: the functions that name it, or something that is made of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Statement(NamedTuple):
    """A statement at a module's or class's level: its lines, the names it gives, the names it uses. `runs` are the
    lines of a function, which are run later."""

    path: str
    line: int
    end_line: int
    gives: frozenset[str]
    uses: frozenset[str]
    runs: range


class Scope:
    """The statements of a package's files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._all = [
            one
            for path in paths
            for one in _statements(path, ast.parse(Path(path).read_text("utf-8")).body, frozenset())
        ]

    def lines(self, path: str, line: int) -> set[tuple[str, int]]:
        """The lines, by file, of every function that may see what the statement at `line` makes."""
        names = {
            name for one in self._all if one.path == path and one.line <= line <= one.end_line for name in one.gives
        }
        while True:
            more = {name for one in self._all if not one.runs and one.uses & names for name in one.gives} - names
            if not more:
                break
            names |= more
        seen = [one for one in self._all if one.runs and (one.uses | one.gives) & names]
        return {(one.path, number) for one in seen for number in one.runs}


def _statements(path: str, body: list[ast.stmt], outer: frozenset[str]) -> list[_Statement]:
    found: list[_Statement] = []
    for node in body:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef):
            found += _statements(path, node.body, outer | {node.name})
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        gives = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            gives = {node.name}
        uses = {
            one.id if isinstance(one, ast.Name) else one.attr
            for one in ast.walk(node)
            if isinstance(one, ast.Name | ast.Attribute)
        }
        runs = range(node.lineno, end + 1) if is_function else range(0)
        found.append(_Statement(path, node.lineno, end, outer | gives, frozenset(uses), runs))
    return found
