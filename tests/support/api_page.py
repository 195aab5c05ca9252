"""docs/api.md from what `agent_host.__all__` names: `python -m tests.support.api_page` writes it."""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import agent_host

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "api.md"

_HEAD = """\
# The public API

Made from the signatures and docstrings of what `agent_host.__all__` names, by `python -m tests.support.api_page`.
[embedding.md](embedding.md) has an example and the general rules.
"""
_PARTS: Final = (
    ("Sessions and tasks", ("agent_host.host.sessions", "agent_host.host.options", "agent_host.host.records")),
    ("Sessions on record", ("agent_host.session.transcript",)),
    ("Approvals", ("agent_host.approval", "agent_host.approval")),
    ("Tools", ("agent_host.host.environment", "tool_runtime.families.python_tools")),
    ("Errors", ("agent_host.errors", "state", "config.load", "policy.errors")),
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def page() -> str:
    """The page as it should be."""
    found = {name: _find("agent_host", name) for name in agent_host.__all__ if name != "__version__"}
    parts = [_HEAD]
    for title, modules in _PARTS:
        names = sorted((name for name, (home, _) in found.items() if home in modules), key=str.casefold)
        parts += [f"\n## {title}\n", *(_section(name, *found.pop(name)) for name in names)]
    assert not found, f"of no part: {found.keys()}"
    return "".join(parts)


def _find(module: str, name: str) -> tuple[str, list[Definition]]:
    """The module that defines the name, and the definitions: more than one of a function with overloads."""
    body = _body(module)
    found = [node for node in body if isinstance(node, Definition) and name in _names(node)]
    if found:
        return module, found
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return _find(node.module, name)
    raise LookupError(f"{module} neither defines nor imports {name}")


@functools.cache
def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


@functools.cache
def _body(module: str) -> list[ast.stmt]:
    return ast.parse(_source(module)).body


def _names(node: Definition) -> list[str]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return [node.name]


def _section(name: str, module: str, nodes: Sequence[Definition]) -> str:
    node = nodes[-1]
    if isinstance(node, ast.ClassDef):
        return f"\n### {name}\n\n{_class(module, node)}"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return f"\n### {name}\n\n{_code(module, node)}{_said_behind(_body(module), node)}"
    code = "\n".join(
        _head(module, one) for one in nodes[:-1] or nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return f"\n### {name}\n\n```python\n{code}\n```\n{_said(ast.get_docstring(node))}"


def _class(module: str, node: ast.ClassDef) -> str:
    """The class with its public fields, properties and methods."""
    lines = [f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):".replace("()", "")]
    lines += [f"    {given.arg} = {ast.unparse(given.value)}" for given in node.keywords if given.arg != "total"]
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign | ast.Assign) and _is_public(one)]
    lines += [f"    {_text(module, one)}" for one in fields]
    said = [_item(_names(one)[0], _said_behind(node.body, one)) for one in fields if _said_behind(node.body, one)]
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(method):
            if method.returns and any(ast.unparse(mark).endswith("property") for mark in method.decorator_list):
                lines.append(f"    {method.name}: {ast.unparse(method.returns)}")
            else:
                lines.append(_indented(_head(module, method)))
            said.append(_item(method.name, _said(ast.get_docstring(method))))
    items = "".join(said)
    return "```python\n" + "\n".join(lines) + f"\n```\n{_said(ast.get_docstring(node))}" + (items and f"\n{items}")


def _is_public(node: Definition) -> bool:
    return not _names(node)[0].startswith("_")


def _head(module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's head as it stands in the source; of its decorators that of a context manager."""
    body = node.body[0]
    lines = _source(module).splitlines()[node.lineno - 1 : body.lineno]
    if not lines[-1][: body.col_offset].strip():
        del lines[-1]
    lines = [line[node.col_offset :] for line in lines]
    marks = [f"@{mark}" for mark in map(ast.unparse, node.decorator_list) if mark.endswith("contextmanager")]
    return "\n".join([*marks, *lines]).removesuffix(" ...").removesuffix(":")


def _text(module: str, node: Definition) -> str:
    return ast.get_source_segment(_source(module), node) or ""


def _code(module: str, node: Definition) -> str:
    return f"```python\n{_text(module, node)}\n```\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _said_behind(body: Sequence[ast.stmt], node: Definition) -> str:
    """The string that stands behind a field or an alias."""
    after = body.index(node) + 1
    one = body[after] if after < len(body) else None
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
        return _said(inspect.cleandoc(one.value.value))
    return ""


def _said(docstring: str | None) -> str:
    return f"\n{docstring}\n" if docstring else ""


def _item(name: str, said: str) -> str:
    """A member and what is said of it, as an item of a list."""
    if not said:
        return ""
    first, *rest = said.strip().splitlines()
    return "\n".join([f"- `{name}`: {first}", *(f"  {line}".rstrip() for line in rest)]) + "\n"


def _main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    _main()
