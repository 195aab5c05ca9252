"""What modules make at import, made anew in place: the quick way to put an error into a table.

The statements of a module are run once more, in its own namespace, without its functions and classes, which stay the
objects that everybody holds; then those of every module of the package that imports it. Whoever else imported a name
gets its new value. What a test made of a table when it was collected (its parameters) stays as it was.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.mutation_children import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType, ModuleType

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Tables:
    """The statements of a package's files, in an order in which each comes behind what it imports."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._trees = {path: ast.parse(Path(path).read_text("utf-8")) for path in paths}
        self._imports = {path: _imported(tree) & self._trees.keys() for path, tree in self._trees.items()}
        self._order: list[str] = []
        for path in self._trees:
            self._place(path)
        self._definitions = {
            path: [range(one.lineno, (one.end_lineno or one.lineno) + 1) for one in tree.body if _is_definition(one)]
            for path, tree in self._trees.items()
        }
        self._fixed = {name for tree in self._trees.values() for name in _used_by_definitions(tree.body)}

    def _place(self, path: str) -> None:
        if path not in self._order:
            for one in sorted(self._imports[path]):
                self._place(one)
            self._order.append(path)

    def is_table(self, path: str, line: int) -> bool:
        """Whether a line at import is no part of a class, or of a function's head, and none of these holds what it
        makes."""
        made = {
            name.id
            for one in self._trees[path].body
            if one.lineno <= line <= (one.end_lineno or one.lineno)
            for name in ast.walk(one)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        return not made & self._fixed and not any(line in one for one in self._definitions[path])

    def remake(self, path: str, changed: ast.Module | None = None) -> None:
        """Runs the statements of a module anew, those of `changed` in their place, and of all that build on it."""
        before: dict[tuple[str, int], str] = {}
        touched = {path}
        for one in self._order:
            if one in touched or self._imports[one] & touched:
                touched.add(one)
                module = import_module(_name(one))
                before |= {(name, id(value)): one for name, value in vars(module).items() if not name.startswith("__")}
                _run(changed if changed is not None and one == path else self._trees[one], one, module)
        inside = {_name(one) for one in touched}
        for name, module in list(sys.modules.items()):
            if name not in inside and name.partition(".")[0] in OURS:
                _renew(module, before)

    def run_at_import(self) -> set[tuple[str, str]]:
        """File and qualified name of every function that the statements call."""
        seen: set[tuple[str, str]] = set()

        def trace(frame: FrameType, _event: str, _argument: object) -> Any:
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

        sys.settrace(trace)
        try:
            for path in self._order:
                _run(self._trees[path], path, import_module(_name(path)))
        finally:
            sys.settrace(None)
        return seen


def _run(tree: ast.Module, path: str, module: ModuleType) -> None:
    kept = [one for one in tree.body if not _is_definition(one)]
    exec(compile(ast.Module(kept, []), path, "exec"), module.__dict__)


def _renew(module: ModuleType, before: dict[tuple[str, int], str]) -> None:
    """Gives a module that imported names what these stand for."""
    for name, value in list(getattr(module, "__dict__", {}).items()):
        path = before.get((name, id(value)))
        if path is not None:
            setattr(module, name, getattr(import_module(_name(path)), name))


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, _DEFINITIONS)


def _used_by_definitions(body: list[ast.stmt]) -> set[str]:
    """The names that are looked up when functions and classes are made: those of defaults, fields and decorators."""
    found: set[str] = set()
    for node in body:
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*node.args.defaults, *node.args.kw_defaults, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.bases, *node.decorator_list]
            parts += [getattr(one, "value", None) for one in node.body if not _is_definition(one)]
            found |= _used_by_definitions([one for one in node.body if _is_definition(one)])
        found |= {one.id for part in parts if part for one in ast.walk(part) if isinstance(one, ast.Name)}
    return found


def _name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _imported(tree: ast.Module) -> set[str]:
    """The files that a module imports when it is imported, as far as their names say."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = node.module.replace(".", "/")
            found |= {f"{inside}.py", *(f"{inside}/{one.name}.py" for one in node.names)}
    return found
