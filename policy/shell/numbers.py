"""Arithmetic, in the places where a shell evaluates it: whether its text is plain, and which variables it evaluates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.shell.nodes import text_of, without_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

_NUMBERS = re.compile(
    r"(?:[0-9A-Za-z_\s+*/%()<>=!&|^~?:,.;-]|\$[A-Za-z0-9_#?]++|\$\{[#]?[A-Za-z0-9_]++(?:\[[@*]\])?\}"
    r"|\[\$?[A-Za-z0-9_]++\])*+"
)
"""Arithmetic on numbers, variables, elements of arrays and what substitutions give, which `x` stands for."""
_NAME_IN_NUMBERS = re.compile(r"(?<![0-9])[A-Za-z_@][A-Za-z0-9_]*|(?<=\$)[0-9]")
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_EVALUATED = "arithmetic on more than numbers, whose text is evaluated"
_SUBSTITUTED_NUMBERS = frozenset({"command_substitution"})
_OPERATION = r"(?:<<|>>|\*\*|&&|\|\||\^\^|[-+*/%&|^])?=(?!=)"
_ASSIGNED = re.compile(
    rf"((?:\$\{{?[A-Za-z0-9_]++\}}?|[A-Za-z0-9_@])++)[\s)]*+(?:\[[^\]]*+\]\s*+)?(?:\+\+|--|{_OPERATION})"
    r"|(?:\+\+|--)[\s(]*+((?:\$\{?[A-Za-z0-9_]++\}?|[A-Za-z0-9_@])++)"
)
"""Targets of assignments in arithmetic: names, and expansions that become one (`@` stands for a substitution)."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EVALUATED_BY_EXPANSION = re.compile(
    r"\$\{[#!]?[A-Za-z0-9_@*]+(?:\[(?:[@*]|(?P<index>[^\]]*))\])?(?::(?![-+=?])(?P<offset>[^}]*))?"
)
"""A subscript and offsets, which are arithmetic."""
_LENGTH = re.compile(r"\$\{#[^}]*\}")


def arithmetic(source: bytes, node: Node) -> str | None:
    """bash takes `((` for arithmetic only if the brackets inside are in pairs."""
    text = without_parts(source, node, _SUBSTITUTED_NUMBERS).removeprefix("$")
    if not (text.startswith("((") and text.endswith("))")) or not _NUMBERS.fullmatch(text) or not _paired(text[2:-2]):
        return _EVALUATED
    return None


def _paired(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def evaluated_text(source: bytes, node: Node, is_number: Callable[[Node], bool]) -> str:
    """Return the text that a shell evaluates for a node: of an expansion its subscript and its offsets. `0` stands for
    a substitution of which `is_number`, `@` for any other."""
    text = bytearray(source[node.start_byte : node.end_byte])
    pending = list(node.children)
    while pending:
        one = pending.pop()
        if one.type in _SUBSTITUTED_NUMBERS:
            mark = b"0" if is_number(one) else b"@"
        elif one.type == "test_operator":
            mark = b" "
        else:
            pending.extend(one.children)
            continue
        begin, end = one.start_byte - node.start_byte, one.end_byte - node.start_byte
        text[begin:end] = mark * (end - begin)
    if node.type != "expansion":
        return _LENGTH.sub("0", text.decode())
    found = _EVALUATED_BY_EXPANSION.match(text.decode())
    return "" if found is None else _LENGTH.sub("0", f"{found['index'] or ''} {found['offset'] or ''}")


def names_evaluated(text: str) -> set[str]:
    """The variables whose text an evaluated text evaluates: a subscript in one runs substitutions. `*` stands for what
    has no name: what a substitution gives, a parameter of a function."""
    return {"*" if not name[0].isalpha() and name[0] != "_" else name for name in _NAME_IN_NUMBERS.findall(text)}


def assigned_in_numbers(text: str) -> list[str | None]:
    """The names of variables that an arithmetic expression sets; None for one that only the run knows."""
    if "=" not in text and "++" not in text and "--" not in text:
        return []
    found = [one or two for one, two in _ASSIGNED.findall(text)]
    return [name if _PLAIN_NAME.fullmatch(name) else None for name in found if not name.isdecimal()]


def comparison(source: bytes, node: Node) -> str | None:
    """Why a part of `[[ ]]` is not decided: it evaluates a name, or compares what is no plain number."""
    if node.type == "test_operator" and text_of(source, node) in {"-v", "-R"}:
        return "[[ -v ]] evaluates a name"
    if compares_numbers(source, node):
        operands = [child for child in node.children if text_of(source, child) not in _COMPARES_NUMBERS]
        operands = [one for one in operands if one.type not in _SUBSTITUTED_NUMBERS]
        texts = [without_parts(source, one, _SUBSTITUTED_NUMBERS).strip('"') for one in operands]
        if not all(map(_NUMBERS.fullmatch, texts)):
            return _EVALUATED
    return None


def compares_numbers(source: bytes, node: Node) -> bool:
    """True for a part of `[[ ]]` that takes its two operands for numbers, and evaluates them."""
    if not any(text_of(source, child) in _COMPARES_NUMBERS for child in node.children):
        return False
    around = node.parent
    while around is not None and around.type != "test_command":
        around = around.parent
    return around is not None and around.children[0].type == "[["


def counting_loop(source: bytes, node: Node) -> str | None:
    """`for ((a; b; c))`: up to the brackets that close it is arithmetic."""
    closing = next((child for child in node.children if child.type == "))"), None)
    opening = next((child for child in node.children if child.type == "(("), None)
    if opening is None or closing is None:
        return _EVALUATED
    text = source[opening.end_byte : closing.start_byte].decode()
    return None if _NUMBERS.fullmatch(text) and _paired(text) and "$(" not in text else _EVALUATED
