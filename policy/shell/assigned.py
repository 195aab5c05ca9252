"""Variables and functions that a construct of a line sets: one function over the grammar, one over the builtins.

Whoever asks which names a line changes asks here: `Variables`, which knows what is certain of a variable, and the walk
over the tree and the judge of arguments, which refuse names that steer programs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words
from policy.shell.arithmetic import compares_numbers, find_assignments, text_to_evaluate
from policy.shell.findings import check_assignment
from policy.shell.tables import NAMING_BUILTINS
from policy.shell.words import plain, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from policy.shell.findings import Findings
    from policy.shell.words import Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BY_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?:?=")
_DESCRIPTOR = re.compile(rb"\{([A-Za-z_][A-Za-z0-9_]*)\}\Z")
_ASSIGNS = re.compile(rb"=|\+\+|--")
_MAX_DESCRIPTOR = 256
_FORMAT_SETS = re.compile(r"%(?:%|[^%A-Za-z]*(?:hh|h|ll|l|L|q|j|z|t)?([A-Za-z]))")
"""A directive of printf's, with its letter."""


OF_ZSH = words(
    "zparseopts zformat zregexparse strftime sysread zstat zselect zpty ztcp zsystem pcre_match compadd zcurses"
)
"""Builtins of zsh's modules that set a variable which an option or an operand names."""


class Assigned(NamedTuple):
    """A variable that is set. `name` is None if only the run knows it; `value` is the word that it is given, None if
    that is not one word of the line; `is_number` if the construct gives it nothing else."""

    name: str | None
    value: Node | None = None
    is_number: bool = False
    is_function: bool = False


def assignments_of(source: bytes, node: Node) -> list[Assigned]:
    """Return what a node of one of the `CONSTRUCTS` sets by itself; those below it are asked for themselves."""
    return CONSTRUCTS[node.type](source, node)


def _assignment(source: bytes, node: Node) -> list[Assigned]:
    name = _NAME.match(text_of(source, node.children[0]))
    found = [Assigned(name[0] if name else None, node.child_by_field_name("value"))]
    return (
        [*found, *_assignments_in_numbers(source, node.children[0])] if node.children[0].type == "subscript" else found
    )


def _loop(source: bytes, node: Node) -> list[Assigned]:
    return [Assigned(text_of(source, child)) for child in node.children if child.type == "variable_name"]


def _function(source: bytes, node: Node) -> list[Assigned]:
    name = node.child_by_field_name("name")
    return [] if name is None else [Assigned(text_of(source, name), is_function=True)]


def _expansion(source: bytes, node: Node) -> list[Assigned]:
    by_default = _BY_DEFAULT.match(text_of(source, node))
    found = [Assigned(by_default[1])] if by_default else []
    return [*found, *_assignments_in_numbers(source, node)]


def _redirection(source: bytes, node: Node) -> list[Assigned]:
    """`{name}>file` puts the number of the descriptor into a variable."""
    front = _DESCRIPTOR.search(source[max(node.start_byte - _MAX_DESCRIPTOR, 0) : node.start_byte])
    return [Assigned(front[1].decode(), is_number=True)] if front else []


def _assignments_in_numbers(source: bytes, node: Node) -> list[Assigned]:
    if not _ASSIGNS.search(source, node.start_byte, node.end_byte):
        return []
    text = text_to_evaluate(source, node, lambda _: False)
    return [Assigned(name, is_number=True) for name in find_assignments(text)]


def _compound(source: bytes, node: Node) -> list[Assigned]:
    return _assignments_in_numbers(source, node) if node.children and node.children[0].type == "((" else []


def _counting_loop(source: bytes, node: Node) -> list[Assigned]:
    parts = [child for child in node.children if child.type not in {"do_group", "compound_statement"}]
    return [one for child in parts for one in _assignments_in_numbers(source, child)]


def _comparison(source: bytes, node: Node) -> list[Assigned]:
    return _assignments_in_numbers(source, node) if compares_numbers(source, node) else []


CONSTRUCTS: dict[str, Callable[[bytes, Node], list[Assigned]]] = {
    "variable_assignment": _assignment,
    "for_statement": _loop,
    "function_definition": _function,
    "expansion": _expansion,
    "file_redirect": _redirection,
    "heredoc_redirect": _redirection,
    "herestring_redirect": _redirection,
    "arithmetic_expansion": _assignments_in_numbers,
    "compound_statement": _compound,
    "c_style_for_statement": _counting_loop,
    "binary_expression": _comparison,
}
"""By type of node, for bash, POSIX's shells and zsh alike. `select` is a `for_statement` to the grammar, and `coproc` a
reserved word that is not read."""


ASSIGNING_BUILTINS = NAMING_BUILTINS | OF_ZSH | {"printf", "wait"}


def assignments_of_builtin(name: str, args: list[Word]) -> list[Assigned]:
    """Return what a builtin sets by its arguments."""
    if name == "printf":
        return _assignments_of_printf(args)
    if name == "wait":
        first = args[0].prefix if args else ""
        return _name_words(args, first.removeprefix("-p")) if first.startswith("-p") else []
    if name in OF_ZSH:
        return _name_words([one for word in args for one in _both_sides(word)])
    return _name_words(args) if name in NAMING_BUILTINS else []


def _both_sides(word: Word) -> list[Word]:
    return [word] if word.text is None else [plain(part) for part in word.text.split("=")]


def _name_words(args: list[Word], joined: str = "") -> list[Assigned]:
    """Each word that may be the name of a variable."""
    found: list[Assigned] = []
    for text in [*([joined] if joined else []), *(word.text for word in args)]:
        name = _NAME.match(text) if text is not None else None
        if text is None or name is not None:
            found.append(Assigned(name[0] if name else None))
    return found


def _assignments_of_printf(args: list[Word]) -> list[Assigned]:
    """`-v NAME`, and `%n`, which puts the number of characters so far into the variable that its argument names."""
    first = args[0].prefix if args else ""
    if first.startswith("-v"):
        return _name_words(args[1:2] if first == "-v" else [], first.removeprefix("-v"))
    if first == "--":
        args = args[1:]
    if not args:
        return []
    template = args[0].text
    if template is not None:
        sets = any(letter == "n" for letter in _FORMAT_SETS.findall(template))
        return [one._replace(is_number=True) for one in _name_words(args[1:])] if sets else []
    return _name_words([word for word in args[1:] if word.text is not None])


def note_assigned(ones: list[Assigned], source: bytes, found: Findings) -> None:
    """Note the names among these that steer programs, and that only the run knows."""
    for one in ones:
        if one.name is None:
            found.undecidable("sets a variable whose name only the run knows")
        elif not one.is_function:
            check_assignment(one.name, found, None if one.value is None else text_of(source, one.value))
        elif one.name.isupper():
            check_assignment(one.name, found, "0")
