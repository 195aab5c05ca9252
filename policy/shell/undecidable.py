"""Places in a line where bash and the grammar may read differently, or where text is evaluated as code.

Each function looks at one node and returns why the line can't be decided, or None. Nothing here keeps state.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.arithmetic import arithmetic, comparison, counting_loop
from policy.shell.tables import BUILTINS_THAT_MATTER
from policy.shell.words import descendants, mask_parts, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

DELIMITER = re.compile(r"(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,63})\1")
_SUBSTITUTES = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[({\[])")
_PARAMETER = r"(?:[A-Za-z0-9_]+|[@*#?$!-])"
_SUBSCRIPT = r"\[(?:[@*]|\$?[A-Za-z0-9_]+|\$\{[A-Za-z0-9_]+\})\]"
_OFFSET = r"(?:[ ]?-?(?:[0-9]+|\$?[A-Za-z_][A-Za-z0-9_]*|\$\{#?[A-Za-z0-9_]+\}))"
_PLAIN_EXPANSION = re.compile(
    r"\$\{(?:"
    rf"#?{_PARAMETER}(?:{_SUBSCRIPT})?\}}|![A-Za-z_][A-Za-z0-9_]*(?:\[[@*]\]|[@*])\}}"
    rf"|{_PARAMETER}(?:{_SUBSCRIPT})?(?::{_OFFSET}(?::{_OFFSET})?\}}|@[QULuKk]\}}"
    r"|:?[-+?]|(?<=[A-Za-z0-9_]):?=|%%?|##?|//?|/[#%]|\^\^?|,,?))"
)
"""An expansion, up to where its operand begins if it has one."""
# bash ends an expansion at the first brace that closes, whatever opened before it, and the grammar may end it later.
_PLAIN_OPERAND = re.compile(r"(?:[^{}\\'\"`$;&|<>()\n]|\\[\w/.:,*?#%+=~!^@\[\] -])*+\}", re.ASCII)
_QUOTED_OPERAND = re.compile(r'"[A-Za-z0-9_/.:,=+-]*"\}')
_INNER_EXPANSIONS = frozenset({"expansion", "simple_expansion", "command_substitution", "arithmetic_expansion"})
_PARTS_OF_WORDS = _INNER_EXPANSIONS | words("string raw_string ansi_c_string translated_string process_substitution")
_ANSI_C_STRING = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_ENDS_A_WORD = re.compile(r"(?<!\\)(?:\\\\)*[ \t\n;|&<>()]")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTINUATION = re.compile(r"\\\n")
_ESCAPED_BLANK = re.compile(r"(?:^|[\s;|&(){}<>!`])\\[ \t\v\f]")
_DOLLARS = re.compile(rb"\$\$[{(\[`'$]|\$\\\n")
_ODD_SPACE = re.compile(r"[^\S \t\n]|[\ufeff\u200b\u2060]")
# Expansions


def _expansion(source: bytes, node: Node) -> str | None:
    if node.children[0].type != "${" or node.children[-1].type != "}":
        return "an expansion whose braces are not plain"
    begin = _PLAIN_EXPANSION.match(text_of(source, node))
    if begin is None:
        return "an expansion that assigns, evaluates or is indirect"
    if begin[0].endswith("}"):
        return None if begin.end() == node.end_byte - node.start_byte else "an expansion whose end is not plain"
    if _QUOTED_OPERAND.fullmatch(text_of(source, node), begin.end()):
        return None
    operand = mask_parts(source, node, _INNER_EXPANSIONS)[begin.end() :]
    return None if _PLAIN_OPERAND.fullmatch(operand) else "an expansion whose end is not plain"


def ends_early(source: bytes, node: Node) -> bool:
    """True if a word of the grammar's holds what ends a word, outside of its quotes, expansions and substitutions."""
    if node.type in _PARTS_OF_WORDS:
        return False
    return _ENDS_A_WORD.search(mask_parts(source, node, _PARTS_OF_WORDS)) is not None


def _substitution(source: bytes, node: Node) -> str | None:
    # In a string the opening quote's token begins with the blanks in front of it.
    # A dollar in front of a backquote is one token with it, and means nothing.
    text = source[node.start_byte : node.end_byte].lstrip().removeprefix(b"$")
    if not text.startswith(b"`"):
        return None
    if b"\\" in text:
        return "backquotes with a backslash in them, which is read twice"
    # The shell looks for the end without regard to quotes.
    return "backquotes in backquotes" if b"`" in text[1:-1] else None


def _leaf(source: bytes, node: Node) -> str | None:
    """The grammar leaves patterns, words inside expansions and some here-documents unlooked into."""
    if node.named_children:
        return None
    text = text_of(source, node)
    if "<(" in text or ">(" in text:
        return "a process substitution where the grammar does not look"
    return _find_unread(text)


def _find_unread(text: str) -> str | None:
    if "`" not in text and "$" not in text:
        return None
    return "a substitution where the grammar does not look" if _SUBSTITUTES.search(text) else None


def _heredoc_body(source: bytes, node: Node) -> str | None:
    """The text that the grammar has skipped, because no child accounts for it."""
    place = node.start_byte
    skipped: list[bytes] = []
    for child in node.named_children:
        if child.type != "heredoc_content":
            skipped.append(source[place : child.start_byte])
            place = child.end_byte
    skipped.append(source[place : node.end_byte])
    reasons = (_find_unread(piece.decode()) for piece in skipped)
    return next(filter(None, reasons), None)


def heredoc_end(source: bytes, node: Node) -> str | None:
    """A here-document is data, as long as its end is where bash would see it."""
    parts = {child.type: child for child in node.children}
    start, body, end = (parts.get(f"heredoc_{name}") for name in ("start", "body", "end"))
    delimiter = DELIMITER.fullmatch(text_of(source, start)) if start else None
    if start is None or body is None or end is None or delimiter is None:
        return "a here-document whose delimiter is not plain"
    line_end = source.find(b"\n", start.end_byte)
    indent = "\t" if "<<-" in parts else ""
    text = source[line_end + 1 : end.end_byte].decode()
    lines = [line.lstrip(indent) for line in text.split("\n")]
    closed = source[end.end_byte : end.end_byte + 1] in {b"", b"\n"}
    if lines[-1] != delimiter[2] or delimiter[2] in lines[:-1] or not closed or line_end >= end.start_byte:
        return "a here-document whose end is not plain"
    if not delimiter[1] and _CONTINUATION.search(text):
        return "a here-document with continued lines"
    return None


# Tests, functions, comments


def _test(source: bytes, node: Node) -> str | None:
    bracket = node.children[0].type
    if not _stands_alone(source, node.children[0]):
        return f"{bracket} that is part of a longer word"
    if bracket == "[" and b"\n" in source[node.start_byte : node.end_byte]:
        return "[ over several lines, each of which is a command"
    if bracket == "[[":
        return next(filter(None, (comparison(source, one) for one in descendants(node))), None)
    return None


def _compound(source: bytes, node: Node) -> str | None:
    opening = node.children[0]
    if opening.type == "((":
        return arithmetic(source, node)
    return None if opening.type != "{" or _stands_alone(source, opening) else "{ that is part of a longer word"


def _check_translation(source: bytes, node: Node) -> str | None:
    """`$"a"` is replaced by what a catalogue has for it, and that is expanded."""
    # In a string the opening quote's token begins with the blanks in front of it.
    quote = source.find(b'"', node.start_byte)
    is_translated = source[quote - 1 : quote] == b"$" and source[quote - 2 : quote - 1] != b"\\"
    # With blanks between the two it is none, and what follows the blanks is a command's name.
    is_translated = is_translated or node.type == "translated_string"
    return "a string that is translated, which evaluates what a catalogue says" if is_translated else None


def _ansi_c_string(source: bytes, node: Node) -> str | None:
    """The grammar takes `\\\\'` for an escaped quote; to bash it is an escaped backslash and the end."""
    if _ANSI_C_STRING.fullmatch(text_of(source, node)) is None:
        return "a string with escapes whose end is not plain"
    return None


def _subshell(source: bytes, node: Node) -> str | None:
    """Behind `!` and `time` the grammar sees two subshells where bash sees arithmetic."""
    return "(( that may be arithmetic" if source.startswith(b"((", node.start_byte) else None


def _stands_alone(source: bytes, node: Node) -> bool:
    return source[node.end_byte : node.end_byte + 1] in {b" ", b"\t", b"\n"}


def _function(source: bytes, node: Node) -> str | None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is None or body is None or not _FUNCTION_NAME.fullmatch(text_of(source, name)):
        return "a function whose name is not plain"
    if body.type != "compound_statement" or body.children[0].type != "{":
        return "a function whose body is not in braces"
    if text_of(source, name) in BUILTINS_THAT_MATTER:
        return "a function in the place of a builtin"
    return None


def _gaps(_source: bytes, node: Node) -> str | None:
    """The grammar passes over blanks where the shell begins another word."""
    if node.parent is not None and node.parent.type == "c_style_for_statement":
        return None
    if any(left.end_byte != right.start_byte for left, right in pairwise(node.children)):
        return f"blanks inside of what is one word: {node.type}"
    return None


def _parts(_source: bytes, node: Node) -> str | None:
    for left, right in pairwise(node.children):
        if left.type == "variable_assignment" and left.end_byte == right.start_byte and right.type not in _REDIRECTS:
            return "an assignment whose end is not plain"
    return None


def _check_negation(source: bytes, node: Node) -> str | None:
    return None if _stands_alone(source, node.children[0]) else "! that is part of a longer word"


def _comment(source: bytes, node: Node) -> str | None:
    before = source[max(node.start_byte - 2, 0) : node.start_byte]
    if before and (before[-1:] not in b" \t\n;&|()" or before[:-1] == b"\\"):
        return "a comment whose start is not plain"
    return None


DOUBTS: dict[str, Callable[[bytes, Node], str | None]] = {
    "expansion": _expansion,
    **dict.fromkeys(words("string translated_string"), _check_translation),
    "ansi_c_string": _ansi_c_string,
    "arithmetic_expansion": arithmetic,
    "command_substitution": _substitution,
    "heredoc_redirect": heredoc_end,
    "heredoc_body": _heredoc_body,
    "test_command": _test,
    "compound_statement": _compound,
    "subshell": _subshell,
    "function_definition": _function,
    "c_style_for_statement": counting_loop,
    "comment": _comment,
    "negated_command": _check_negation,
    **dict.fromkeys(words("command variable_assignments"), _parts),
    **dict.fromkeys(words("concatenation variable_assignment simple_expansion"), _gaps),
    **dict.fromkeys(words("word regex extglob_pattern"), _leaf),
}
"""By type of node."""


def is_swollen(source: bytes, token: Node) -> bool:
    """True if a token's text is not just what its type says: one may swallow the word in front of it. Blanks that one
    swallows stand in quotes, or keep it from fitting to the word before."""
    return not token.children and text_of(source, token).lstrip(" \t") not in {token.type, "$$"}


def spaces(source: bytes, quoted: list[tuple[int, int]], literal: list[tuple[int, int]]) -> list[str]:
    """bash joins continued lines where the grammar sees a blank, and knows fewer blanks than the grammar does. What is
    `quoted` does not count; `literal` are the single quotes of these, in which `$$` means nothing."""
    if source.isascii() and not any(mark in source for mark in (b"\\", b"$$")):
        return []
    text = _mask(source, quoted).decode("utf-8", "replace")
    reasons = ["a blank that the shell does not take for one"] if _ODD_SPACE.search(text) else []
    if any(text[max(match.start() - 1, 0)] not in " \t;&|" for match in _CONTINUATION.finditer(text)):
        reasons.append("a word continued on the next line")
    if _ESCAPED_BLANK.search(text):
        reasons.append("an escaped blank at the start of a word, which the grammar passes over")
    if _DOLLARS.search(_mask(source, literal)):
        reasons.append("$$ or a continued line in front of what may be an expansion")
    return reasons


def _mask(source: bytes, spans: list[tuple[int, int]]) -> bytearray:
    masked = bytearray(source)
    for start, end in spans:
        masked[start:end] = b"." * (end - start)
    return masked


# Plain sh: dash and ash read these as something else


_BASH_NODES = frozenset({"ansi_c_string", "array"})
_BASH_TOKENS = words("function [[ (( $[ &> &>> |& <<< ;& ;;& += select <( >(")
_BASH_QUOTES = re.compile(r"\$['\"]")
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect"})


def not_posix(source: bytes, node: Node) -> str | None:
    """Why a plain sh would read this node in another way than bash does."""
    kind = node.type
    if kind in _BASH_NODES or any(child.type in _BASH_TOKENS for child in node.children):
        return f"a construct of bash, which sh reads differently: {kind}"
    if kind == "variable_assignment" and node.children[0].type == "subscript":
        return "a construct of bash, which sh reads differently: an element of an array"
    if kind in _REDIRECTS and source[node.start_byte - 1 : node.start_byte] == b"}":
        return "a construct of bash, which sh reads differently: a variable for a file descriptor"
    follows_dollar = kind in {"string", "raw_string"} and source[node.start_byte - 1 : node.start_byte] == b"$"
    is_word = DOUBTS.get(kind) is _leaf
    if follows_dollar or (is_word and _BASH_QUOTES.search(text_of(source, node))):
        return "a construct of bash, which sh reads differently: quotes behind $"
    return None
