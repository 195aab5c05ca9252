"""Small errors put into a module's source, one at a time: what a test suite that is worth its time notices.

Left out because no behaviour hangs on them: docstrings, annotations, messages (texts with a blank, all f-strings, what
is given as `reason` and the like), decorators' arguments, `if TYPE_CHECKING`, assertions, the texts of `raise`, what
other platforms run. A list of words in one text loses one word at a time, a pattern one alternative.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import warnings
from typing import TYPE_CHECKING, NamedTuple

from tests.support.mutation_platform import is_elsewhere, is_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_CALLED = {
    "startswith": "endswith", "endswith": "startswith", "removeprefix": "removesuffix", "removesuffix": "removeprefix",
    "lstrip": "rstrip", "rstrip": "lstrip", "partition": "rpartition", "rpartition": "partition", "split": "rsplit",
    "rsplit": "split", "fullmatch": "search", "match": "search", "lower": "upper", "casefold": "upper",
    "any": "all", "all": "any", "min": "max", "max": "min", "add": "discard", "find": "rfind", "index": "rindex",
}  # fmt: skip
_SKIPPED = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
_FOR_TYPES = frozenset({"annotation", "returns", "decorator_list"})
_MESSAGES = frozenset({"reason", "message", "hint", "what"})
_SPLITTERS = frozenset({"words", "Wrapper", "split"})
_PATTERNS = frozenset({"compile"})


class Mutant(NamedTuple):
    """One error. `number` is its place among all of the module; `function` the outermost function or method around it,
    by qualified name ('' for what runs at import); `place` that, or the table's name; `key` stays the same while the
    text of that function or table does."""

    path: str
    number: int
    line: int
    end_line: int
    function: str
    place: str
    key: str
    change: str


class _Change(NamedTuple):
    node: ast.AST
    function: str
    change: str
    apply: Callable[[], None]


def mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of the text."""
    tree = ast.parse(source)
    texts, tables = _texts(tree, source), _tables(tree, source)
    seen: dict[str, int] = {}
    found: list[Mutant] = []
    for number, one in enumerate(_changes(tree)):
        line = getattr(one.node, "lineno", 1)
        end = getattr(one.node, "end_lineno", line) or line
        table = next((table for table in tables if line in table.lines), _Table(range(0), "", ""))
        basis = f"{path} {one.function} {texts.get(one.function, table.text)} {one.change}"
        seen[basis] = seen.get(basis, 0) + 1
        key = hashlib.sha256(f"{basis} {seen[basis]}".encode()).hexdigest()[:16]
        found.append(Mutant(path, number, line, end, one.function, one.function or table.name, key, one.change))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The module's tree with one error in it."""
    tree = ast.parse(source)
    for place, one in enumerate(_changes(tree)):
        if place == number:
            one.apply()
            return ast.fix_missing_locations(tree)
    raise ValueError(f"no mutant {number}")


def _texts(tree: ast.Module, source: str) -> dict[str, str]:
    """The text of each outermost function."""
    texts = {}
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                texts[prefix + one.name] = ast.get_source_segment(source, one) or ""
    return texts


class _Table(NamedTuple):
    """An outermost statement: its lines, its name, its text."""

    lines: range
    name: str
    text: str


def _tables(tree: ast.Module, source: str) -> list[_Table]:
    found = []
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
        name = getattr(target, "id", None) or getattr(target, "name", None) or ""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        found.append(_Table(lines, name, ast.get_source_segment(source, node) or ""))
    return found


def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _Walk().body(tree.body, "", "")


class _Walk:
    """Finds places for errors; each `apply` changes the tree that is walked."""

    def body(self, statements: list[ast.stmt], function: str, prefix: str) -> Iterator[_Change]:
        for place, node in enumerate(statements):
            if isinstance(node, _SKIPPED) or _is_docstring(node) or _is_for_types(node, function):
                continue
            if isinstance(node, ast.ClassDef):
                yield from self.body(node.body, function, prefix if function else f"{node.name}.")
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = function or prefix + node.name
                yield from self._expressions(node.args, "")
                yield from self.body(node.body, inner, "")
                continue
            yield from self._removed(statements, place, node, function)
            for name, value in ast.iter_fields(node):
                if name == "body" and isinstance(node, ast.If) and is_elsewhere(node.test):
                    continue
                if name in {"body", "orelse", "finalbody"} and isinstance(value, list):
                    yield from self.body(value, function, prefix)
                elif name in {"handlers", "cases"}:
                    for one in value:
                        yield from self.body(one.body, function, prefix)
                elif name != "annotation" and not isinstance(node, ast.Raise):
                    yield from self._field(node, name, value, function)

    def _removed(self, statements: list[ast.stmt], place: int, node: ast.stmt, function: str) -> Iterator[_Change]:
        def replace(new: ast.stmt) -> Callable[[], None]:
            return lambda: statements.__setitem__(place, ast.copy_location(new, node))

        if not function:
            return
        is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        outward = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and (
            isinstance(node, ast.AugAssign) or any(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)
        )
        if is_call or outward or isinstance(node, ast.Delete | ast.Raise):
            yield _Change(node, function, f"without {_short(node)}", replace(ast.Pass()))
        elif isinstance(node, ast.Continue | ast.Break):
            new = ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
            yield _Change(node, function, f"{_short(node)} → {_short(new)}", replace(new))
        elif isinstance(node, ast.Return) and node.value is not None and not _is_false(node.value):
            yield _Change(node, function, f"{_short(node)} → return None", replace(ast.Return(ast.Constant(None))))

    def _expressions(self, root: ast.AST, function: str) -> Iterator[_Change]:
        """Errors in the parts of `root`, at any depth."""
        for node in _inside(root):
            for name, value in ast.iter_fields(node):
                if name not in _FOR_TYPES:
                    yield from self._field(node, name, value, function, deep=False)

    def _field(self, node: ast.AST, name: str, value: object, function: str, *, deep: bool = True) -> Iterator[_Change]:
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            where = (value, place) if isinstance(value, list) else (node, name)
            if isinstance(child, ast.keyword) and child.arg in _MESSAGES:
                continue
            yield from self._child(node, where, child, function, name)
            if deep and isinstance(child, ast.AST) and not isinstance(child, _SKIPPED):
                yield from self._expressions(child, function)

    def _child(
        self, parent: ast.AST, where: tuple[object, object], child: object, function: str, name: str
    ) -> Iterator[_Change]:
        if isinstance(child, ast.keyword) and child.arg is not None and isinstance(where[0], list) and function:
            yield _Change(child, function, f"without {_short(child)}", functools.partial(where[0].remove, child))
        if not isinstance(child, ast.expr):
            return
        if isinstance(parent, ast.Call) and name == "func" and _splits_all(parent):
            return
        for new in _others(child, called=name == "func"):
            apply = functools.partial(_put, where, ast.copy_location(new, child))
            yield _Change(child, function, f"{_short(child)} → {_short(new)}", apply)
        for value, told in _other_constants(child, "" if function else _kind(parent)):
            apply = functools.partial(_put, where, ast.copy_location(ast.Constant(value), child))
            yield _Change(child, function, told, apply)


def _splits_all(call: ast.Call) -> bool:
    """A text that is split at every place is split there from either side."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in {"split", "rsplit"}
    return named and len(call.args) + len(call.keywords) < 2


def _put(where: tuple[object, object], new: ast.expr) -> None:
    holder, place = where
    if isinstance(holder, list) and isinstance(place, int):
        holder[place] = new
    else:
        setattr(holder, str(place), new)


def _others(node: ast.expr, *, called: bool) -> list[ast.expr]:
    """What may stand in the place of an expression."""
    match node:
        case ast.Compare():
            return [_compare(node, place) for place in range(len(node.ops))]
        case ast.BoolOp():
            return [ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)]
        case ast.UnaryOp(op=ast.Not()):
            return [node.operand]
        case ast.BinOp() if type(node.op) in _CALCULATED:
            return [ast.BinOp(node.left, _CALCULATED[type(node.op)](), node.right)]
        case ast.Attribute() if called and node.attr in _CALLED:
            return [ast.Attribute(node.value, _CALLED[node.attr], ast.Load())]
        case ast.Name() if called and node.id in _CALLED:
            return [ast.Name(_CALLED[node.id], ast.Load())]
        case ast.IfExp():
            return [node.body, node.orelse]
    return []


def _compare(node: ast.Compare, place: int) -> ast.expr:
    operators = list(node.ops)
    operators[place] = _COMPARED[type(operators[place])]()
    return ast.Compare(node.left, operators, node.comparators)


def _inside(root: ast.AST) -> Iterator[ast.AST]:
    """`root` and every node below whose parts may be changed."""
    pending: list[ast.AST] = [root]
    while pending:
        node = pending.pop(0)
        if is_platform(node) or (isinstance(node, ast.keyword) and node.arg in _MESSAGES):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in _FOR_TYPES:
                continue
            children = value if isinstance(value, list) else [value]
            pending.extend(one for one in children if isinstance(one, ast.AST) and not isinstance(one, _SKIPPED))


def _kind(parent: ast.AST) -> str:
    """What a table's text is, by what is around it."""
    if isinstance(parent, ast.Attribute):
        return "words" if parent.attr in _SPLITTERS else "text"
    if isinstance(parent, ast.keyword):
        return "option"
    called = parent.func if isinstance(parent, ast.Call) else None
    name = getattr(called, "attr", None) or getattr(called, "id", "")
    return "words" if name in _SPLITTERS else "pattern" if name in _PATTERNS else "text"


def _other_constants(node: ast.expr, kind: str) -> Iterator[tuple[str | int, str]]:
    """Other values of a constant, each with what the change is called."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int):
        other = not value if isinstance(value, bool) else value + 1
        yield other, f"{value} → {other}"
    if not isinstance(value, str):
        return
    parts = value.split()
    if (kind == "words" and parts) or (kind == "option" and len(parts) > 1):
        for place, part in enumerate(parts):
            yield " ".join(parts[:place] + parts[place + 1 :]), f"{_short(node)} without {part}"
    elif kind and "|" in value and _compiles(value):
        for pattern, part in _fewer_alternatives(value):
            yield pattern, f"{_short(node)} without {part}"
    elif kind == "pattern" or not re.search(r"\s", value.strip()):
        yield f"{value}XX", f"{_short(node)} → {_short(ast.Constant(value + 'XX'))}"


def _fewer_alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """The pattern without one of its alternatives, at any depth; and that one."""
    opened: list[list[int]] = [[0]]
    groups: list[list[int]] = []
    for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[:=!>]|<[=!]|P<\w+>)|[()|]", pattern, re.DOTALL):
        if match[0].startswith("("):
            opened.append([match.end()])
        elif match[0] == "|":
            opened[-1].append(match.end())
        elif match[0] == ")":
            groups.append([*opened.pop(), match.end()])
    groups.append([*opened.pop(), len(pattern) + 1])
    for starts in groups:
        for place, start in enumerate(starts[:-1]):
            is_last = place == len(starts) - 2
            from_, to = (start - 1, starts[place + 1] - 1) if is_last else (start, starts[place + 1])
            text = pattern[:from_] + pattern[to:]
            if len(starts) > 2 and _compiles(text):
                yield text, pattern[start : starts[place + 1] - 1]


def _compiles(pattern: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except re.error:
            return False
    return True


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(node: ast.stmt, function: str) -> bool:
    """A block for the type checker, or a name for a type."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    value = node.value if isinstance(node, ast.Assign) and not function else None
    parts = [value.left, value.right] if isinstance(value, ast.BinOp) else [value]
    return all(isinstance(one, ast.Subscript | ast.Name) for one in parts)


def _is_false(node: ast.expr) -> bool:
    """None, or what None is as good as."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else text[:87] + "…"
