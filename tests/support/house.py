"""Figures of the source as a house: `python -m tests.support.house` prints them, `--walk` also a warm call's way.

Counted over the product's own packages. A walk runs a session of three ReadFile steps against the scripted gateway
with a profiler, and follows the last call from file to file.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("config", "policy", "state", "tool_runtime", "agent_host")
CRUMB_LINES = 60
_QUESTION = re.compile(r"(?:What|Which|Whether|Where|How|Who|Whose|When)\b")
_NO_VERB = re.compile(
    r"_*(?:[a-z]*(?<!fe)(?<!spe)(?<!se)ed|told|said|held|kept|left|made|begun|known|seen|shown|sent|given|taken|written"
    r"|under|behind|beside|beyond|above|below|within|without|among|between|of|for|from|to|in|on|at|by|with|as|until"
    r"|unless|through|after|before)(?:_|$)"
)
"""The first word of a name is a participle or a preposition."""
_TRANSLATED = re.compile(
    r"\b(?:nobody|somebody|begun|behind|besides|lies|stands?|stood|to be had|taken up|told|let go|None where"
    r"|g(?:o|oes|oing|one) on|where (?:there|it|they|none|nothing|that|this|an?|its|no))\b",
    re.IGNORECASE,
)
"""Words of a translation, in place of which English has others: after, if, continue, recorded."""
_TRANSLATED_NAME = re.compile(
    r"(?:^|_)(?:said|told|talk|begun|behind|beside|odd|gone|nobody|somebody|go(?:es)?_on|let_go|put_under|lies|stands|held|knows)"
    r"(?:_|$)",
    re.IGNORECASE,
)


class Import(NamedTuple):
    target: str
    kind: str
    """`top`, `type` (only for the type checker) or `lazy` (in a function)."""


class Module(NamedTuple):
    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool

    @property
    def lines(self) -> int:
        return self.text.count("\n")


@functools.cache
def modules() -> dict[str, Module]:
    """All modules of the product by their full names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name, path, text, ast.parse(text), is_package)
    return found


@functools.cache
def nodes_of(module: Module) -> tuple[ast.AST, ...]:
    """All nodes of the module's tree."""
    return tuple(ast.walk(module.tree))


def imports_of(module: Module, known: dict[str, Module]) -> list[Import]:
    """Imports of our own modules: one of each module that a statement names."""
    found = []
    for node, kind in _with_kinds(module.tree.body, "top"):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            names = [
                full if (full := f"{base}.{alias.name}") in known else base for alias in node.names if not node.level
            ]
        found += [Import(name, kind) for name in dict.fromkeys(names) if name in known and name != module.name]
    return found


def _with_kinds(body: list[ast.stmt], kind: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inner = "lazy" if is_function else "type" if is_typing and kind == "top" else kind
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(node, field, []):
                yield from _with_kinds([part] if isinstance(part, ast.stmt) else part.body, inner)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import each other, in any way."""
    found: list[set[str]] = []
    order: list[str] = []
    seen = set[str]()
    backward = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            backward[target].add(name)

    def visit(start: str, edges: dict[str, set[str]], into: list[str]) -> None:
        stack = [(start, iter(sorted(edges.get(start, ()))))]
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            for target in rest:
                if target not in seen:
                    seen.add(target)
                    stack.append((target, iter(sorted(edges.get(target, ())))))
                    break
            else:
                stack.pop()
                into.append(node)

    for name in sorted(graph):
        if name not in seen:
            visit(name, graph, order)
    seen.clear()
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            visit(name, backward, group)
            if len(group) > 1:
                found.append(set(group))
    return found


def single_importers(found: dict[str, Module]) -> list[tuple[str, str]]:
    """Modules that one module alone imports, which lies in the same folder; with that module."""
    importers = defaultdict(set)
    for module in found.values():
        for one in imports_of(module, found):
            importers[one.target].add(module.name)
    pairs = []
    for name, by in sorted(importers.items()):
        if len(by) == 1 and not found[name].is_package:
            (only,) = by
            if found[only].path.parent == found[name].path.parent:
                pairs.append((name, only))
    return pairs


def _functions(found: dict[str, Module]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for module in found.values():
        for node in nodes_of(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node


def word_shares(found: dict[str, Module]) -> tuple[float, float]:
    """Shares of docstrings that begin with a question word, and of functions named by a participle or a preposition."""
    nodes = list(_functions(found))
    documents = [
        text for node in [*nodes, *(module.tree for module in found.values())] if (text := ast.get_docstring(node))
    ]
    names = [node.name for node in nodes if not isinstance(node, ast.ClassDef) and not node.name.startswith("__")]
    asked = sum(1 for text in documents if _QUESTION.match(text))
    odd = sum(1 for name in names if _NO_VERB.match(name))
    return asked / len(documents), odd / len(names)


def translated_share(found: dict[str, Module]) -> float:
    """Share of docstrings that have words of a translation."""
    nodes = [*_functions(found), *(module.tree for module in found.values())]
    documents = [text for node in nodes if (text := ast.get_docstring(node))]
    return sum(1 for text in documents if _TRANSLATED.search(text)) / len(documents)


def translated_names(found: dict[str, Module]) -> list[str]:
    """Names of functions, classes, parameters and variables that have words of a translation, once for each place."""
    names: list[str] = []
    for node in (node for module in found.values() for node in nodes_of(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
    return [name for name in names if _TRANSLATED_NAME.search(name)]


def _is_broad(node: ast.AST) -> bool:
    """True for a handler of any exception that ends it: one that cleans up and raises again hides nothing."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return False
    is_any = ast.unparse(node.type) in ("Exception", "BaseException")
    return is_any and not any(isinstance(inner, ast.Raise) for part in node.body for inner in ast.walk(part))


def figures() -> dict[str, str]:
    """All that is counted without running anything."""
    found = modules()
    imported = {name: imports_of(module, found) for name, module in found.items()}
    sizes = sorted(module.lines for module in found.values())
    nodes = list(_functions(found))
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes if not isinstance(node, ast.ClassDef)
    ]
    classes = Counter(
        (module.name, node.name)
        for module in found.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    )
    names = Counter(name for _, name in classes)
    groups = circles({name: {one.target for one in rest} for name, rest in imported.items()})
    broad = sum(map(_is_broad, (node for module in found.values() for node in nodes_of(module))))
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    questions = len(re.findall(r"^\| [^|]*\? \|", page, re.MULTILINE))
    asked, odd = word_shares(found)
    return {
        "files": f"{len(sizes)}",
        "lines": f"{sum(sizes):,}",
        f"files under {CRUMB_LINES} lines": f"{sum(1 for size in sizes if size < CRUMB_LINES)}",
        "median and longest file": f"{statistics.median(sizes):.0f}, {sizes[-1]}",
        "single importers in the importer's folder": f"{len(single_importers(found))}",
        "circles of imports": f"{len(groups)}, {sum(map(len, groups))} modules",
        "imports in functions": f"{sum(1 for rest in imported.values() for one in rest if one.kind == 'lazy')}",
        "class names defined twice": f"{sum(1 for count in names.values() if count > 1)}",
        "functions above 40 lines, longest": f"{sum(1 for length in lengths if length > 40)}, {max(lengths)}",
        "broad excepts that raise nothing": f"{broad}",
        "docstrings that begin with a question word": f"{asked:.1%}",
        "functions named by a participle or a preposition": f"{odd:.1%}",
        "docstrings with words of a translation": f"{translated_share(found):.1%}",
        "names with words of a translation": f"{len(translated_names(found))}",
        "rows of where to look": f"{questions}",
        "own modules of a run without tools": f"{_modules_of_a_run()}",
    }


def _modules_of_a_run() -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.house_walk", "--modules"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", action="store_true", help="the way of one ReadFile through the files")
    parser.add_argument("--circles", action="store_true", help="name the circles")
    parser.add_argument("--single", action="store_true", help="name the modules with one importer")
    asked = parser.parse_args()
    if asked.circles or asked.single:
        found = modules()
        if asked.circles:
            graph = {name: {one.target for one in imports_of(module, found)} for name, module in found.items()}
            for group in circles(graph):
                print(*sorted(group))
        else:
            for name, by in single_importers(found):
                print(f"{name} ({found[name].lines}) -> {by} ({found[by].lines})")
        return 0
    for name, value in figures().items():
        print(f"{value:>16}  {name}")
    if asked.walk:
        print(subprocess.run([sys.executable, "-m", "tests.support.house_walk"], cwd=ROOT, check=True,
                             capture_output=True, text=True, timeout=60).stdout)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
