"""bash's grammar, walked once: every simple command, redirection and assignment at any depth.

The grammar is tree-sitter's, which accepts text that bash reads differently. So unknown node types, errors, and
boundaries of the tree that do not fit the text all count as undecidable; `undecidable` has nodes with a doubtful
meaning.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Parser

from policy import words
from policy.shell.arithmetic import (
    ARITHMETIC,
    CONSTRUCTS,
    EVERYWHERE,
    Assigned,
    assignments_of,
    evaluated_parts,
    find_assignments,
    names_evaluated,
    text_to_evaluate,
)
from policy.shell.findings import Findings, Unreadable, note_assigned, note_declared
from policy.shell.shown import Texts, takes_text
from policy.shell.tables import BUILTINS_THAT_MATTER
from policy.shell.undecidable import DELIMITER, DOUBTS, ends_early, is_swollen, not_posix, spaces
from policy.shell.variables import Variables, rounds
from policy.shell.words import ShownText, Word, plain, read_word, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tree_sitter import Node


class ParsedWords(NamedTuple):
    """A simple command's words in order; `repeats`: it is in a loop or a function; `is_own`: it calls a function of the
    line, whose body is examined at its definition. `functions` are those that a trap may use. `chain` is equal for
    commands of which each runs only if all before it succeeded (`a && b && c`). `input` is its visible input, if a
    shell may read it; `start` is its first byte."""

    words: list[Word]
    repeats: bool
    is_own: bool = False
    functions: frozenset[str] = frozenset()
    chain: int = -1
    input: ShownText | None = None
    start: int = 0


class Redirect(NamedTuple):
    """A file redirection: its operator and target; `alone` without a command, for which zsh starts one of its own."""

    operator: str
    target: Word
    alone: bool
    start: int = 0


_WORDS = words(
    "word string raw_string concatenation number simple_expansion expansion command_substitution process_substitution "
    "ansi_c_string translated_string arithmetic_expansion brace_expression extglob_pattern regex"
)
_OPERATION = 3
_NAMES_AND_WORDS = _WORDS | {"command_name"}
_MARKS = frozenset({"==", "=~", "$"})
"""Words of a command that are tokens to the grammar."""
_CONTAINERS = words(
    "program list pipeline subshell if_statement elif_clause else_clause while_statement do_group case_statement "
    "case_item negated_command command_name command_substitution process_substitution string translated_string "
    "concatenation expansion simple_expansion variable_assignments array heredoc_body herestring_redirect "
    "unary_expression binary_expression parenthesized_expression function_definition postfix_expression "
    "subscript c_style_for_statement ternary_expression for_statement"
)
_LEAVES = words(
    "word number raw_string ansi_c_string variable_name special_variable_name file_descriptor comment heredoc_start "
    "heredoc_content heredoc_end string_content test_operator regex extglob_pattern brace_expression"
)
_OF_TESTS = words("regex extglob_pattern test_operator binary_expression unary_expression parenthesized_expression")
_MAY_CONTAIN_TESTS = words(
    "test_command binary_expression unary_expression parenthesized_expression expansion case_item "
    "arithmetic_expansion c_style_for_statement ternary_expression postfix_expression subscript"
)
"""Nodes that may contain `_OF_TESTS`. Anywhere else the grammar mistakes words of a command for a test."""
_EXPORTS = re.compile(r"-[A-Za-z]*x[A-Za-z]*")
_INHERITED = frozenset({"TMPDIR"})
"""Variables that a command of a session has, so that its programs see each assignment."""
_CLOSES = frozenset({">&-", "<&-"})
_CASE_ENDS = frozenset({";;", ";&", ";;&"})
_REPEATED = words("while_statement for_statement c_style_for_statement function_definition")
_QUOTES = words("string raw_string ansi_c_string heredoc_body comment")
_SINGLE_QUOTES = frozenset({"raw_string", "ansi_c_string"})
_BEFORE_DESCRIPTOR = frozenset((b"", *(bytes([one]) for one in b" \t\n;|&()}`\"'")))
_MAX_IN_FRONT = 4  # `command -p -- trap`
_LONE_DASH = re.compile(rb"(?<![^\s;&|(){}`])-(?![^\s;&|(){}`<>])")
_MOVES = re.compile(rb"cd|chdir|pushd|popd|\\|['\"]")
"""Marks of lines that may change the directory: by a name as it is, or in quotes."""
_NEW_LINE = re.compile(rb"(?<!\\)(?:\\\\)*\n")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?")
_VARIABLE = re.compile(r'"?\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?"?')
_ARRAY = re.compile(r'\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}|"\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}"')
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[\$?\{?[A-Za-z0-9_]+\}?\]")


@lru_cache(maxsize=1)
def _language() -> Language:
    return Language(tree_sitter_bash.language())


def scan(
    command: str,
    found: Findings,
    *,
    posix: bool,
    environment: Mapping[str, str] | None,
    learns: bool,
    functions: frozenset[str] = frozenset(),
) -> list[ParsedWords | Redirect]:
    """Commands and redirections in the order of the text; undecidable parts are noted in `found`. `posix` for a shell
    that may lack bash's extensions of POSIX. `environment` are the known variables of the shell, None if there are
    none; variables that the text sets are only known if it `learns`. `functions` are those defined around the text."""
    try:
        source, root = found.effort.tree(Parser(_language()), command)
    except Unreadable as problem:
        found.refuse(problem)
        return []
    if root.has_error:
        found.misread("the line cannot be parsed")
    return _Walk(source, found, posix, Variables(source, root, environment, learns=learns), functions).run(root)


class _Walk:
    """One pass over one tree, with a stack of its own: depth is the line's to choose."""

    def __init__(
        self, source: bytes, found: Findings, posix: bool, variables: Variables, functions: frozenset[str]
    ) -> None:
        self.source = source
        self.found = found
        self.posix = posix
        self.variables = variables
        self.functions = functions
        self.chosen: Mapping[str, str | None] = {}
        found.evaluated.sources.append(source)
        self.texts = Texts(source, self._read, found.grammar, variables.literals)
        self.expansion = (0, 0)  # the outermost one that was met last
        self.events: list[ParsedWords | Redirect] = []
        self.moves = _MOVES.search(source) is not None
        self.chains: dict[int, int] = {}
        self.dashes: set[int] = set()
        self.quoted: list[tuple[int, int]] = []
        self.literal: list[tuple[int, int]] = []
        self.handlers = {
            "command": self._command,
            "redirected_statement": self._redirections,
            "file_redirect": self._file_redirect,
            "declaration_command": self._declaration,
            "unset_command": self._declaration,
            "variable_assignment": self._assignment,
            "test_command": self._test,
            "heredoc_redirect": self._heredoc,
            **dict.fromkeys(ARITHMETIC, self._arithmetic),
        }

    def run(self, root: Node) -> list[ParsedWords | Redirect]:
        stack: list[tuple[Node, bool, str]] = [(root, False, "")]
        while stack:
            node, repeats, around = stack.pop()
            kind = node.type
            if not node.is_named:  # a token
                if is_swollen(self.source, node):
                    self.found.undecidable(f"{kind} with something in front of it")
                if kind in _CASE_ENDS and around != "case_item":
                    self.found.undecidable(f"{kind} that ends no pattern of a case")
                stack.extend([(child, repeats, around) for child in reversed(node.children)])
                continue
            self._judge_node(node, kind)
            if kind in _OF_TESTS and around not in _MAY_CONTAIN_TESTS:
                self.found.undecidable(f"part of a test outside of one: {kind}")
            handler = self.handlers.get(kind)
            children = handler(node, repeats) if handler else self._plain(node, kind)
            if children:
                repeats = repeats or kind in _REPEATED
                if kind == "compound_statement" and children[0].type != "{":
                    kind = "arithmetic_expansion"
                stack.extend([(child, repeats, kind) for child in reversed(children)])
        for place in (found.start() for found in _LONE_DASH.finditer(self.source)):
            covering = root.descendant_for_byte_range(place, place + 1)
            if place not in self.dashes and (covering is None or covering.children):
                self.found.undecidable("a word - that the grammar drops")
        for reason in spaces(self.source, self.quoted, self.literal):
            self.found.undecidable(reason)
        self.found.functions |= self.variables.functions
        return self.events

    def _judge_node(self, node: Node, kind: str) -> None:
        if kind in CONSTRUCTS:
            note_assigned(assignments_of(self.source, node), self.source, self.found)
        judges = (DOUBTS.get(kind), not_posix if self.posix else None)
        for judge in judges:
            if judge is not None and (reason := judge(self.source, node)) is not None:
                self.found.undecidable(reason)
        self.found.evaluated.note_data(self.source, node.start_byte, node.end_byte, kind)
        if kind in _QUOTES:
            self.quoted.append((node.start_byte, node.end_byte))
        if kind == "raw_string":
            self.literal.append((node.start_byte, node.end_byte))
        inside = self.expansion[0] <= node.start_byte < self.expansion[1]
        if kind == "expansion" and not inside:
            self.expansion = (node.start_byte, node.end_byte)
        elif kind in _SINGLE_QUOTES and inside:
            self.found.undecidable("single quotes in an expansion, which quote nothing inside double quotes")

    def _text(self, node: Node) -> str:
        return text_of(self.source, node)

    def _plain(self, node: Node, kind: str) -> list[Node]:
        if kind in _LEAVES:
            if kind == "file_descriptor":
                before = self.source[max(node.start_byte - 1, 0) : node.start_byte]
                if not self._text(node).isdecimal() or before not in _BEFORE_DESCRIPTOR:
                    self.found.undecidable("a file descriptor that belongs to a word")
        elif kind not in _CONTAINERS:
            self.found.undecidable(f"a construct that is not followed: {kind}")
        return node.children  # also of a leaf: `1#$(x)` is a number with a substitution in it

    def _words(self, nodes: list[Node]) -> list[Word]:
        """Reads words; neighbours without a blank between them were one word to bash."""
        words: list[Word] = []
        for place, node in enumerate(nodes):
            if place and not self._are_separated(nodes[place - 1], node):
                self.found.undecidable("words whose boundary is not plain")
            if node.type == "variable_assignment":
                self.found.undecidable("an assignment after the program's name")
            word = self._read(self.source[self._start(node) : node.end_byte].decode(), node)
            if not word.valid or (word.text is None and ends_early(self.source, node)):
                self.found.undecidable("a word that cannot be read")
            words.append(word)
        return words

    def _read(self, text: str, node: Node) -> Word:
        if "$" not in text:
            return read_word(text)
        return read_word(text, self.variables.at(node.start_byte, self.chosen))

    def _are_separated(self, left: Node, right: Node) -> bool:
        gap = self.source[left.end_byte : self._start(right)]
        if _NEW_LINE.search(gap):
            return False  # after an operator of tests the grammar overlooks the end of the command
        return gap[:1] in (b" ", b"\t") or b"<" in gap or b">" in gap

    def _start(self, node: Node) -> int:
        """The first byte of a word: to the grammar the `$` of an argument `$"a"` is another one."""
        return node.start_byte - (self.source[node.start_byte - 1 : node.start_byte + 1] == b'$"')

    def _command(
        self, node: Node, repeats: bool, extra: list[Node] | None = None, dashes: Sequence[int] = ()
    ) -> list[Node]:
        """Emits a simple command; `extra` words and words `-` (`dashes`) of it the grammar puts elsewhere, or drops."""
        nodes: list[Node] = []
        children = node.children
        for child in children:
            kind = child.type
            if kind == "number" and self.source[child.end_byte : child.end_byte + 1] in (b"<", b">"):
                continue  # the descriptor of a redirection
            is_mark = kind in _MARKS and self.source[child.start_byte : child.end_byte + 1] != b'$"'
            if kind in _NAMES_AND_WORDS or (kind == "variable_assignment" and nodes) or is_mark:
                nodes.append(child)
            elif kind == "file_redirect":
                nodes.extend(_words_after_target(child))
        if extra:
            nodes.extend(extra)
            nodes.sort(key=lambda one: one.start_byte)
        for chosen in self._rounds(nodes):
            self.chosen = chosen
            words = self._words(nodes)
            for dash in reversed(dashes):
                words.insert(sum(one.start_byte < dash for one in nodes), plain("-"))
            shown = None
            if takes_text(words):
                shown = self.texts.find_input(node)
                for place, one in enumerate(nodes[: len(words)]):
                    words[place] = words[place]._replace(shown=self.texts.read_text(one, node))
            if b"$" in self.source[node.start_byte : node.end_byte]:
                self._emit_expanded(node, nodes, words, repeats, shown)
            else:
                self._emit(node, nodes[0], words, repeats, shown)
        self.chosen = {}
        return children

    def _rounds(self, nodes: list[Node]) -> Sequence[Mapping[str, str | None]]:
        """The rounds in which a command runs whose words read variables of loops over words."""
        if not nodes:
            return ()
        begin = nodes[0].start_byte
        text = self.source[begin : nodes[-1].end_byte]
        return rounds(self.variables, text.decode(), begin) if b"$" in text else ({},)

    def _emit_expanded(
        self, node: Node, nodes: list[Node], words: list[Word], repeats: bool, shown: ShownText | None
    ) -> None:
        """Emits a command with the words that its variables become; one for each program that it may be."""
        for place in reversed(range(min(len(nodes), len(words)))):
            parts = self._parts(nodes[place]) if words[place].text is None else None
            if parts is not None:
                words[place : place + 1] = map(plain, parts)
        if not words:
            return
        text = self._text(nodes[0])
        found = _VARIABLE.fullmatch(text) if words[0].text is None else None
        programs: list[list[str]] = []
        if found is not None:
            programs = self.variables.alternatives(found[1], nodes[0].start_byte, quoted=text.startswith('"'))
        if not programs:
            self._emit(node, nodes[0], words, repeats, shown)
        for program in programs:
            self._emit(node, nodes[0], [*map(plain, program), *words[1:]], repeats, shown)

    def _parts(self, node: Node) -> list[str] | None:
        text, place = self._text(node), node.start_byte
        array = _ARRAY.fullmatch(text)
        if array is not None:
            return self.variables.elements(array[1] or array[2], place, quoted=array[1] is None)
        bare = _VARIABLE.fullmatch(text) if text.startswith("$") else None
        return self.variables.parts(bare[1], place) if bare is not None else None

    def _emit(self, node: Node, first: Node, words: list[Word], repeats: bool, shown: ShownText | None) -> None:
        name = words[0].text
        is_own = name is not None and self._is_function(name, first)
        if name in BUILTINS_THAT_MATTER and b"$" in self.source[first.start_byte : first.end_byte]:
            self.found.undecidable("a builtin whose name is an expansion")
        is_trap = any(word.text == "trap" for word in words[:_MAX_IN_FRONT])
        functions = self.variables.functions_at(node.start_byte) if is_trap else frozenset()
        self.events.append(ParsedWords(words, repeats, is_own, functions, self._chain(node), shown, node.start_byte))

    def _chain(self, node: Node) -> int:
        """The first byte of the chain of a command: the first command of a list that holds commands and `&&` only."""
        if not self.moves:
            return node.start_byte  # a node's parents are expensive to find
        around = node.parent
        if around is not None and around.type == "redirected_statement":
            around = around.parent
        if around is None or around.type != "list" or len(around.children) != _OPERATION:
            return node.start_byte
        left, operator, _ = around.children
        if operator.type != "&&" or left.start_byte == node.start_byte:
            return node.start_byte
        return self.chains.setdefault(node.start_byte, self._first_of_chain(left, node))

    def _first_of_chain(self, left: Node, node: Node) -> int:
        if left.type == "redirected_statement":  # to the grammar a redirection is one of the whole list
            left = left.children[0]
        if left.type == "command":
            return left.start_byte
        last = left.children[-1] if left.type == "list" else None
        return self.chains.get(last.start_byte, node.start_byte) if last is not None else node.start_byte

    def _is_function(self, name: str, node: Node) -> bool:
        """True if a word is the plain name of a function that is certainly defined there."""
        is_around = name in self.functions and not self.variables.forgets(name)
        return (is_around or self.variables.is_function(name, node.start_byte)) and self._text(node) == name

    def _redirections(self, node: Node, repeats: bool) -> list[Node]:
        body = node.child_by_field_name("body")
        extra: list[Node] = []
        dashes: list[int] = []
        for left, right in pairwise(node.children):
            # The grammar drops a word `-` in front of a redirection.
            gap = self.source[left.end_byte : right.start_byte]
            if gap.strip() == b"-":
                dashes.append(left.end_byte + gap.index(b"-"))
        self.dashes.update(dashes)
        for child in node.children:
            if child.type == "file_redirect":
                extra.extend(_words_after_target(child))
            elif child.type == "heredoc_redirect":
                extra.extend(one for one in child.children if one.type in _WORDS)
                redirects = (one for one in child.children if one.type == "file_redirect")
                extra.extend(word for one in redirects for word in _words_after_target(one))
        if body is not None and body.type == "command":
            rest = [child for child in node.children if child != body]
            return [*self._command(body, repeats, extra, dashes), *rest]
        if extra or dashes:
            self.found.undecidable("words after a redirection")
        return node.children

    def _file_redirect(self, node: Node, _repeats: bool) -> list[Node]:
        operator, targets = "", []
        for child in node.children:
            if child.type in _WORDS:
                targets.append(child)
            elif child.type != "file_descriptor":
                operator += child.type
        if operator in _CLOSES:
            return node.children
        if not targets:
            self.found.undecidable("a redirection without a target")
            return node.children
        around = node.parent
        is_statement = around is not None and around.type == "redirected_statement"
        alone = is_statement and around is not None and around.child_by_field_name("body") is None
        self.events.append(Redirect(operator, self._words(targets[:1])[0], alone, node.start_byte))
        return node.children

    def _declaration(self, node: Node, repeats: bool) -> list[Node]:
        words = self._words([child for child in node.children if child.type != "variable_assignment"])
        for child in node.children:
            if child.type == "variable_assignment":
                words.append(Word(None, "="))  # its name matters for the assignment
                value = child.child_by_field_name("value")
                if value is not None and value.type != "array":
                    self._declare(value)
        self.events.append(ParsedWords(words, repeats, start=node.start_byte))
        return [child for child in node.children if child.is_named]

    def _declare(self, value: Node) -> None:
        word = self._read(self._text(value), value)
        if self.posix and word.splits:
            self.found.undecidable("a value that sh may split into further assignments")
        note_declared(word.text, word.prefix, self.found)

    def _assignment(self, node: Node, repeats: bool) -> list[Node]:
        target, value = node.children[0], node.child_by_field_name("value")
        text = self._text(target)
        if target.type == "subscript" and _ELEMENT.fullmatch(text):
            self._evaluate(target.children[2], repeats)
            self.found.evaluated.has_arrays = True
        elif not _NAME.fullmatch(text):
            self.found.undecidable("an assignment to something else than a plain name")
        is_array = value is not None and value.type == "array"
        self.found.evaluated.has_arrays = self.found.evaluated.has_arrays or is_array
        if value is not None and is_array and any(self._text(one)[:1] == "[" for one in value.children):
            self.found.undecidable("an array whose subscripts are written out")
        if text in _INHERITED or (node.parent is not None and _reaches_programs(self.source, node.parent)):
            self.found.variables[text.partition("[")[0].rstrip("+")] = None
        return node.children

    def _test(self, node: Node, repeats: bool) -> list[Node]:
        if node.children[0].type == "[":
            self.events.append(ParsedWords([plain("["), *self._test_words(node)], repeats, start=node.start_byte))
        return [child for child in node.children if child.is_named]

    def _test_words(self, node: Node) -> list[Word]:
        words: list[Word] = []
        pending = list(reversed(node.children[1:-1]))
        while pending:
            one = pending.pop()
            if one.type in _WORDS or not one.children:
                if ends_early(self.source, one):
                    self.found.undecidable("a test whose words are not plain")
                words.append(self._read(self._text(one), one))
            else:
                pending.extend(reversed(one.children))
        return words

    def _heredoc(self, node: Node, _repeats: bool) -> list[Node]:
        """After a quoted delimiter nothing in the body is expanded: it is data."""
        parts = {child.type: child for child in node.children}
        start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        delimiter = DELIMITER.fullmatch(self._text(start)) if start else None
        if body is None or delimiter is None or not delimiter[1]:
            return node.children
        self.quoted.append((body.start_byte, body.end_byte))
        return [child for child in node.children if child != body]

    def _evaluate(self, node: Node, repeats: bool) -> None:
        """Notes that a possible non-number is evaluated, and the place up to which the line can have made it."""
        until = EVERYWHERE if repeats or _is_in_pipeline(node) else node.end_byte
        text = text_to_evaluate(self.source, node, self.variables.gives_numbers)
        for name in names_evaluated(text):
            if not self.variables.is_number(name, node.start_byte):
                self.found.evaluated.note_text(until)
                what = "a substitution or a parameter" if name == "*" else name
                self.found.needs_interpreter(f"{what} is evaluated as a number, and nothing in the line makes it one")
                self._evaluate_known(text, node.start_byte)

    def _evaluate_known(self, text: str, place: int) -> None:
        """Notes assignments of arithmetic that is composed of known variables."""
        known = _REFERENCE.sub(lambda one: self.variables.value(one[1], place) or one[0], text)
        if known != text:
            ones = [Assigned(name, is_number=True) for name in find_assignments(known)]
            note_assigned(ones, self.source, self.found)

    def _arithmetic(self, node: Node, repeats: bool) -> list[Node]:
        parts = evaluated_parts(self.source, node)
        for part in parts:
            self._evaluate(part, repeats or node.type == "c_style_for_statement")
        is_whole = bool(parts) and node.type not in {"expansion", "binary_expression"}
        return node.named_children if is_whole else node.children


def _is_in_pipeline(node: Node) -> bool:
    """True if a node's siblings may run concurrently."""
    parent = node.parent
    while parent is not None and parent.type != "pipeline":
        parent = parent.parent
    return parent is not None


def _reaches_programs(source: bytes, parent: Node) -> bool:
    """True for assignments in front of a program, and for those that are exported to all that follow."""
    if parent.type != "declaration_command":
        return parent.type == "command"
    return parent.children[0].type == "export" or any(
        _EXPORTS.fullmatch(text_of(source, one)) for one in parent.children
    )


def _words_after_target(redirect: Node) -> list[Node]:
    """The grammar takes words after a redirection's target for more targets; to bash they belong to the command."""
    targets = [child for child in redirect.children if child.type in _WORDS]
    return targets if any(child.type in _CLOSES for child in redirect.children) else targets[1:]
