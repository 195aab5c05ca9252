"""bash's grammar, walked once: every simple command, redirection and assignment, wherever it stands.

The grammar is tree-sitter's, which forgives what bash reads differently. So nothing is taken on trust: node types that
are not known here, errors, and places where the tree's boundaries do not fit the text all count as 'not decided'.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words
from policy.shell_findings import Findings, check_assignment
from policy.shell_words import Word, read_word

if TYPE_CHECKING:
    from tree_sitter import Language, Node


class Command(NamedTuple):
    """A simple command's words in order; `repeats` inside a loop."""

    words: list[Word]
    repeats: bool


class Redirect(NamedTuple):
    """A file redirection: its operator and target."""

    operator: str
    target: Word
    repeats: bool


_WORDS = words(
    "word string raw_string concatenation number simple_expansion expansion command_substitution "
    "process_substitution ansi_c_string translated_string arithmetic_expansion brace_expression extglob_pattern "
    "regex"
)
_CONTAINERS = words(
    "program list pipeline subshell compound_statement if_statement elif_clause else_clause while_statement "
    "do_group for_statement case_statement case_item negated_command redirected_statement command_substitution "
    "process_substitution string concatenation expansion simple_expansion variable_assignments array "
    "heredoc_redirect heredoc_body herestring_redirect unary_expression binary_expression "
    "parenthesized_expression negated_expression"
)
_LEAVES = words(
    "word number raw_string ansi_c_string variable_name special_variable_name file_descriptor comment "
    "heredoc_start heredoc_content heredoc_end string_content test_operator regex extglob_pattern "
    "brace_expression"
)
_LOOPS = frozenset({"while_statement", "for_statement"})
_QUOTES = words("string raw_string ansi_c_string heredoc_body comment")
_GAP = re.compile(r"(?:[ \t]|(?<=[ \t])\\\n)+")
_CONTINUATION = re.compile(r"\\\n")
_ODD_SPACE = re.compile(r"[^\S \t\n]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DELIMITER = re.compile(r"(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,63})\1")
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


@lru_cache(maxsize=1)
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def scan(command: str, found: Findings) -> list[Command | Redirect]:
    """Commands and redirections in the order of the text; what can't be decided is noted in `found`."""
    from tree_sitter import Parser

    source = command.encode("utf-8", "surrogatepass")
    root = Parser(_language()).parse(source).root_node
    if root.has_error:
        found.doubt("the line cannot be parsed")
    return _Walk(source, found).run(root)


class _Walk:
    """One pass over one tree, with a stack of its own: depth is the line's to choose."""

    def __init__(self, source: bytes, found: Findings) -> None:
        self.source = source
        self.found = found
        self.events: list[Command | Redirect] = []
        self.quoted: list[tuple[int, int]] = []
        self.handlers = {
            "command": self._command,
            "redirected_statement": self._redirected,
            "file_redirect": self._file_redirect,
            "declaration_command": self._declaration,
            "unset_command": self._declaration,
            "variable_assignment": self._assignment,
            "test_command": self._test,
            "comment": self._comment,
            "heredoc_redirect": self._heredoc,
            "for_statement": self._for,
            "expansion": self._expansion,
            "arithmetic_expansion": self._arithmetic,
            "function_definition": self._function,
            "compound_statement": self._compound,
        }

    def run(self, root: Node) -> list[Command | Redirect]:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, repeats = stack.pop()
            kind = node.type
            if kind in _QUOTES:
                self.quoted.append((node.start_byte, node.end_byte))
            handler = self.handlers.get(kind)
            children = handler(node, repeats) if handler else self._plain(node)
            repeats = repeats or kind in _LOOPS
            stack.extend((child, repeats) for child in reversed(children))
        self._check_spaces()
        return self.events

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "surrogatepass")

    def _plain(self, node: Node) -> list[Node]:
        if node.is_missing:
            self.found.doubt("the line cannot be parsed")
        if not node.is_named or node.type in _LEAVES:
            if node.type == "file_descriptor" and not self._starts_word(node):
                self.found.doubt("a file descriptor that belongs to a word")
            return node.children if node.type in {"brace_expression", "heredoc_content"} else []
        if node.type not in _CONTAINERS and node.type not in {"command_name", "subscript", "translated_string"}:
            self.found.doubt(f"a construct that is not followed: {node.type}")
        if node.type == "subscript":
            self.found.doubt("a subscript, which is evaluated")
        return node.children

    def _starts_word(self, node: Node) -> bool:
        return node.start_byte == 0 or self.source[node.start_byte - 1 : node.start_byte] in (
            b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")", b"}", b"`", b'"', b"'",
        )  # fmt: skip

    def _words(self, nodes: list[Node]) -> list[Word]:
        """Reads words; neighbours without a blank between them were one word to bash."""
        words: list[Word] = []
        for place, node in enumerate(nodes):
            if place and not self._apart(nodes[place - 1], node):
                self.found.doubt("words whose boundary is not plain")
            if node.type == "variable_assignment":
                self.found.doubt("an assignment behind the program's name")
            word = read_word(self._text(node))
            if not word.valid:
                self.found.doubt("a word that cannot be read")
            words.append(word)
        return words

    def _apart(self, left: Node, right: Node) -> bool:
        between = self.source[left.end_byte : right.start_byte].decode("utf-8", "surrogatepass")
        return _GAP.match(between) is not None or any(mark in between for mark in "<>")

    def _command(self, node: Node, repeats: bool, extra: list[Node] | None = None) -> list[Node]:
        nodes: list[Node] = []
        for child in node.children:
            if child.type == "command_name" or child.type in _WORDS:
                nodes.append(child)
            elif child.type == "file_redirect":
                nodes.extend(_behind_target(child))
            elif child.type == "variable_assignment" and nodes:
                nodes.append(child)
        nodes.extend(extra or [])
        nodes.sort(key=lambda one: one.start_byte)
        if nodes:
            self.events.append(Command(self._words(nodes), repeats))
        return node.children

    def _redirected(self, node: Node, repeats: bool) -> list[Node]:
        body = node.child_by_field_name("body")
        extra: list[Node] = []
        for child in node.children:
            if child.type == "file_redirect":
                extra.extend(_behind_target(child))
            elif child.type == "heredoc_redirect":
                extra.extend(one for one in child.children if one.type in _WORDS)
                extra.extend(w for one in child.children if one.type == "file_redirect" for w in _behind_target(one))
        if body is not None and body.type == "command":
            rest = [child for child in node.children if child != body]
            return [*self._command(body, repeats, extra), *rest]
        if extra:
            self.found.doubt("words behind a redirection")
        return node.children

    def _file_redirect(self, node: Node, repeats: bool) -> list[Node]:
        operator, targets = "", []
        for child in node.children:
            if child.type in _WORDS:
                targets.append(child)
            elif child.type != "file_descriptor":
                operator += child.type
        if not targets:
            if operator not in {">&-", "<&-"}:
                self.found.doubt("a redirection without a target")
            return node.children
        self.events.append(Redirect(operator, self._words(targets[:1])[0], repeats))
        return node.children

    def _declaration(self, node: Node, repeats: bool) -> list[Node]:
        words = self._words([child for child in node.children if child.type != "variable_assignment"])
        for child in node.children:
            if child.type == "variable_assignment":
                name = child.child_by_field_name("name")
                words.append(Word(None, (self._text(name) if name else "") + "="))
        self.events.append(Command(words, repeats))
        return [child for child in node.children if child.is_named]

    def _assignment(self, node: Node, _repeats: bool) -> list[Node]:
        name = node.child_by_field_name("name")
        text = self._text(name) if name is not None else ""
        if not _NAME.fullmatch(text):
            self.found.doubt("an assignment to something else than a plain name")
        check_assignment(text, self.found)
        return node.children

    def _test(self, node: Node, repeats: bool) -> list[Node]:
        bracket = node.children[0].type
        if bracket == "[":
            self.events.append(Command([Word("[", "["), *self._test_words(node)], repeats))
        elif bracket == "[[":
            self._double_bracket(node)
        elif any(_is_variable(one) for one in _descendants(node)):
            self.found.doubt("arithmetic on a variable, whose text is evaluated")
        return [child for child in node.children if child.is_named]

    def _test_words(self, node: Node) -> list[Word]:
        """The operands and operators of `[`, in order, as far as they matter: unquoted expansions and `-v`."""
        words: list[Word] = []
        pending = list(reversed(node.children[1:-1]))
        while pending:
            one = pending.pop()
            if one.type in _WORDS or one.type == "test_operator":
                words.append(read_word(self._text(one)))
            else:
                pending.extend(reversed(one.children))
        return words

    def _double_bracket(self, node: Node) -> None:
        for one in _descendants(node):
            if one.type == "test_operator" and self._text(one) in {"-v", "-R"}:
                self.found.doubt("[[ -v ]] evaluates a name")
            if one.type == "binary_expression" and any(self._text(c) in _COMPARES_NUMBERS for c in one.children):
                operands = [c for c in one.children if self._text(c) not in _COMPARES_NUMBERS]
                if any(not self._text(c).lstrip("-").isdecimal() for c in operands):
                    self.found.doubt("arithmetic on a variable, whose text is evaluated")

    def _comment(self, node: Node, _repeats: bool) -> list[Node]:
        before = self.source[max(node.start_byte - 2, 0) : node.start_byte]
        if before and (before[-1:] not in b" \t\n;&|()" or before[:-1] == b"\\"):
            self.found.doubt("a comment whose start is not plain")
        return []

    def _heredoc(self, node: Node, _repeats: bool) -> list[Node]:
        """A here-document is data, as long as its end is where bash would see it."""
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get(f"heredoc_{name}") for name in ("start", "body", "end"))
        delimiter = _DELIMITER.fullmatch(self._text(start)) if start else None
        if start is None or body is None or end is None or delimiter is None:
            self.found.doubt("a here-document whose delimiter is not plain")
            return node.children
        line_end = self.source.find(b"\n", start.end_byte)
        strip = "\t" if "<<-" in parts else ""
        text = self.source[line_end + 1 : end.end_byte].decode("utf-8", "surrogatepass")
        lines = [line.lstrip(strip) if strip else line for line in text.split("\n")]
        closed = self.source[end.end_byte : end.end_byte + 1] in {b"", b"\n"}
        if lines[-1] != delimiter[2] or delimiter[2] in lines[:-1] or not closed or line_end >= end.start_byte:
            self.found.doubt("a here-document whose end is not plain")
        if delimiter[1]:  # quoted: nothing in the body is expanded
            self.quoted.append((body.start_byte, body.end_byte))
            return [child for child in node.children if child != body]
        if re.search(r"\\\n", text) is not None:
            self.found.doubt("a here-document with continued lines")
        return node.children

    def _for(self, node: Node, _repeats: bool) -> list[Node]:
        variable = node.child_by_field_name("variable")
        check_assignment(self._text(variable) if variable else "PATH", self.found)
        return node.children

    def _expansion(self, node: Node, _repeats: bool) -> list[Node]:
        text = self._text(node)
        if re.match(r"\$\{#?(?:[A-Za-z0-9_]+|[@*#?])(?:\}|:?[-+]|%%?|##?)", text) is None:
            self.found.doubt("an expansion that assigns, evaluates or is indirect")
        return node.children

    def _arithmetic(self, node: Node, _repeats: bool) -> list[Node]:
        if any(_is_variable(one) for one in _descendants(node)):
            self.found.doubt("arithmetic on a variable, whose text is evaluated")
        return []

    def _function(self, node: Node, _repeats: bool) -> list[Node]:
        self.found.doubt("defines a function, which gives a name another meaning")
        return node.children

    def _compound(self, node: Node, repeats: bool) -> list[Node]:
        if node.children and node.children[0].type == "((":
            return self._arithmetic(node, repeats)
        return node.children

    def _check_spaces(self) -> None:
        """bash joins continued lines where the grammar sees a blank, and knows fewer blanks than the grammar does."""
        if b"\\\n" not in self.source and self.source.isascii():
            return
        masked = bytearray(self.source)
        for start, end in self.quoted:
            masked[start:end] = b"." * (end - start)
        text = masked.decode("utf-8", "replace")
        if _ODD_SPACE.search(text):
            self.found.doubt("a blank that the shell does not take for one")
        for match in _CONTINUATION.finditer(text):
            if text[max(match.start() - 1, 0)] not in " \t;&|":
                self.found.doubt("a word continued on the next line")


def _behind_target(redirect: Node) -> list[Node]:
    """The grammar takes words behind a redirection's target for more targets; to bash they belong to the command."""
    return [child for child in redirect.children if child.type in _WORDS][1:]


def _descendants(node: Node) -> list[Node]:
    seen, pending = [], [node]
    while pending:
        one = pending.pop()
        seen.append(one)
        pending.extend(one.children)
    return seen


def _is_variable(node: Node) -> bool:
    return node.type in {
        "variable_name",
        "word",
        "subscript",
        "command_substitution",
        "string",
        "special_variable_name",
    }
