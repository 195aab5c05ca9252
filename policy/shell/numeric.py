"""Words of a line that can only become numbers: by their spelling, or by the program whose output they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.nodes import text_of
from policy.shell.words import read_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    IsNumber = Callable[[str], bool]

_LITERAL = re.compile(r"[-+ ]?(?:[0-9]*|0[xX][0-9A-Fa-f]+|[0-9]+#[0-9A-Za-z]+|\{[0-9]+\.\.[0-9]+\})")
_DIGITS_LEFT = re.compile(
    r"\$\{(?:#[A-Za-z0-9_@*]+(?:\[[@*]\])?"
    r"|[A-Za-z0-9_]+//\[[!^](?:0-9|\[:digit:\])\](?:/[0-9]*)?)\}"
)
"""A length, or a value from which all is taken that is no digit. An array's subscripts may be any text."""
_SHORTENED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-=+?]-?[0-9]*|[#%]+[^}]*|:(?![-=+?])[^}]*)?\}")
_OF_SHELLS = frozenset({"$#", "$?", "$$", "$!"})
_DATES = re.compile(r"(?:-u )?\+(?:%[-_0]?[sYmdHMSNjuwyCVUWGgkIl]|[-0-9 ])+")
_GREP_FLAGS = re.compile(r"-[cioEFGPxwhsqa]+")
_DIGIT_PATTERN = re.compile(r"\^?(?:\[0-9\]|\[\[:digit:\]\]|\\d)(?:\+|\*|\\\+)?\$?")
_COUNTERS: dict[str, str] = {
    "wc": r"(?: ?(?:-[clmwL]+|--(?:bytes|chars|lines|words)))*",
    "nproc": r"(?:--all)?",
    "id": r"-r?[ug]r?",
    "tr": r"(?:-cd|-dc|-d -c|-c -d) (?:0-9|\[:digit:\])",
    "sed": r"s/\[\^(?:0-9|\[:digit:\])\]\*?//g",
    "stat": r"(?:-c ?|--format=)%[sYXZWaugihbBd](?: [^-].*)?",
    "git": r"rev-list --count(?: [^-=\s][^=\s]*)*",
    "awk": r"\s*END\s*\{\s*print NR;?\s*\}\s*(?: [^-=\s][^=\s]*)*",  # a sum may be `inf`, which is a variable's name
    "cd": r"(?!-)[\w./-]+",
    "tput": r"cols|lines|colors",
    "getconf": r"_NPROCESSORS_ONLN|PAGE_?SIZE",
}
"""Programs that print only numbers, by what their arguments look like in one line; files that they read are named by
nothing that expands."""
_MAX_BYTES, _MAX_NESTED = 400, 16
"""Of a substitution that is looked into."""
_OPERATORS = words("+ - * / %")
_MARKS = frozenset('"()')
_SILENT = words("true false :")


def is_number_word(source: bytes, node: Node, is_number: IsNumber, functions: frozenset[str]) -> bool:
    """True if a word can only become a number. `is_number` answers for a variable's name; `functions` are those of the
    line, which may stand in a program's place."""
    kind, text = node.type, text_of(source, node)
    if kind in {"number", "word", "raw_string", "string_content", "brace_expression"}:
        return _LITERAL.fullmatch(text.strip("'")) is not None
    if kind == "arithmetic_expansion" or text in _OF_SHELLS:
        return True
    if kind == "simple_expansion":
        return is_number(text[1:])
    if kind == "expansion":
        shortened = _SHORTENED.fullmatch(text)
        return _DIGITS_LEFT.fullmatch(text) is not None or (shortened is not None and is_number(shortened[1]))
    if kind == "command_substitution":
        return gives_numbers(source, node, is_number, functions)
    if kind in {"string", "concatenation", "array"}:
        parts = [one for one in node.children if one.type not in _MARKS]
        return all(is_number_word(source, one, is_number, functions) for one in parts)
    return False


def gives_numbers(source: bytes, node: Node, is_number: IsNumber, functions: frozenset[str]) -> bool:
    """True if the output of a substitution, or of a statement in one, is only numbers."""
    kind = node.type
    named = [child for child in node.children if child.is_named and child.type != "comment"]
    if node.end_byte - node.start_byte > _MAX_BYTES or source.count(b"(", node.start_byte, node.end_byte) > _MAX_NESTED:
        return False
    if kind in {"command_substitution", "list", "compound_statement", "subshell"}:
        return bool(named) and all(gives_numbers(source, one, is_number, functions) for one in named)
    if kind == "pipeline":
        return gives_numbers(source, named[-1], is_number, functions)
    if kind == "redirected_statement":
        body = node.child_by_field_name("body")
        return body is not None and gives_numbers(source, body, is_number, functions)
    if kind != "command":
        return False
    parts = [one for one in named if "redirect" not in one.type]
    name = text_of(source, parts[0])
    if name in functions or any(one.type == "variable_assignment" for one in parts):
        return False
    operands = parts[1:]
    if name == "expr":
        operands = [one for one in operands if text_of(source, one).strip("'\"\\") not in _OPERATORS]
    if name in {"echo", "seq"} or (name == "expr" and len(operands) < len(parts) - 1):
        return all(is_number_word(source, one, is_number, functions) for one in operands)
    return name in _SILENT or _counts(name, [read_word(text_of(source, one)).text for one in operands])


def _counts(name: str, texts: list[str | None]) -> bool:
    """True if a program with these arguments (None for an expansion) prints nothing but numbers."""
    known = [text for text in texts if text is not None]
    if known != texts:  # it may be an option, or several files, whose names are printed too
        return False
    spelled = " ".join(known)
    if name in {"grep", "date"}:
        return _greps(known) if name == "grep" else _DATES.fullmatch(spelled) is not None
    return name in _COUNTERS and re.fullmatch(_COUNTERS[name], spelled) is not None


def _greps(known: list[str]) -> bool:
    """True for `grep -c`, and `grep -o` with a pattern of digits, in one file."""
    options = [text for text in known if text.startswith("-")]
    flags = "".join(options)
    is_plain = all(map(_GREP_FLAGS.fullmatch, options)) and len(known) - len(options) <= 2
    is_digits = "o" in flags and any(map(_DIGIT_PATTERN.fullmatch, known))
    return is_plain and ("c" in flags or is_digits)
