"""Arithmetic, in the places where a shell evaluates it: what is plain, and which variables it takes the text of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.shell.nodes import text_of, without_parts

if TYPE_CHECKING:
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


def names_evaluated(source: bytes, node: Node) -> set[str]:
    """The variables whose text an arithmetic node evaluates: a subscript in one runs substitutions. `*` stands for what
    has no name: what a substitution gives, a parameter of a function."""
    text = without_parts(source, node, _SUBSTITUTED_NUMBERS, b"@")
    return {"*" if not name[0].isalpha() and name[0] != "_" else name for name in _NAME_IN_NUMBERS.findall(text)}


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
    """Whether a test takes its two operands for numbers."""
    if node.type != "binary_expression":
        return False
    return any(text_of(source, child) in _COMPARES_NUMBERS for child in node.children)


def counting_loop(source: bytes, node: Node) -> str | None:
    """`for ((a; b; c))`: up to the brackets that close it is arithmetic."""
    closing = next((child for child in node.children if child.type == "))"), None)
    opening = next((child for child in node.children if child.type == "(("), None)
    if opening is None or closing is None:
        return _EVALUATED
    text = source[opening.end_byte : closing.start_byte].decode()
    return None if _NUMBERS.fullmatch(text) and _paired(text) and "$(" not in text else _EVALUATED
