"""Values of a line's own variables and functions, as far as they are known without running it.

A variable is known after an assignment that nothing can skip or change: the only one of its name, a statement of its
own, in the sequence in which it is used. A variable that the line never sets has its value from the command's
environment. A function is known in the same way, and a call of it runs its body.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from policy import words
from policy.shell.arithmetic import (
    ASSIGNING_BUILTINS,
    CONSTRUCTS,
    Assigned,
    assignments_of,
    assignments_of_builtin,
    gives_numbers,
    is_number_word,
)
from policy.shell.words import Values, read_word, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tree_sitter import Node

    from policy.shell.words import Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ = re.compile(r"\$\{?#?([A-Za-z_][A-Za-z0-9_]*)")
_MOST_ROUNDS = 64
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./,:=+@%^-]+")
_SEVERAL_WORDS = re.compile(r"[A-Za-z0-9_./,:=+@%^-]+(?: +[A-Za-z0-9_./,:=+@%^-]+)+")
_GLOBS = re.compile(r"[*?\[{}]|\.\.")
_MAX_ALTERNATIVES = 4
_MAX_CHAIN, _MAX_STEPS, _MAX_GIVEN = 16, 2_000, 32
"""Bounds of the search for numbers: variables in a row, variables in all, and places that set one."""
_ASKS = re.compile(rb"[$(\[]|function")
"""Marks of lines that ask for a variable or a function."""
_SETS_ANY = words("eval source . trap let")
_PASSES_ON = words("command builtin time")
_FOUND_OR_PLAIN = re.compile(r"(?!-)[A-Za-z0-9_./*-]+|\{[0-9]+\.\.[0-9]+\}")
"""A pattern of file names, or a plain one, or a range of numbers, as a loop may go over."""
_PLAIN_TRAP = re.compile(r"-|[A-Za-z0-9_ ./;]*")
_AT_END = words("EXIT 0")
_OWN_OF_SHELLS = re.compile(
    r"BASH.*|RANDOM|SRANDOM|SECONDS|LINENO|EPOCH.*|_|PWD|OLDPWD|PPID|UID|EUID|GROUPS|DIRSTACK|FUNCNAME|HISTCMD|OPT.*"
    r"|REPLY|MAPFILE|COPROC|PIPESTATUS|SHLVL|IFS|HOST.*|USERNAME|histchars|OSTYPE|MACHTYPE|PS[0-9]|COLUMNS|LINES"
)
_NUMBERS_OF_SHELLS = words(
    "RANDOM SRANDOM SECONDS LINENO EPOCHSECONDS PPID UID EUID BASHPID OPTIND HISTCMD SHLVL PIPESTATUS"
)
"""Those of them that are numbers, as long as the line does not set them."""
_SEQUENCES = words("program compound_statement do_group subshell command_substitution case_item")
_LATER_CLAUSES = words("elif_clause else_clause")


def rounds(variables: Variables, text: str, place: int) -> list[dict[str, str | None]]:
    """The values of loops' variables in each round, for those that a text at one byte of the line reads."""
    found: list[dict[str, str | None]] = [{}]
    for name in sorted(names_read(text)):
        pattern = variables.pattern(name, place) or ""
        if not pattern.startswith("{") or "," not in pattern:
            continue
        choices = pattern[1:-1].split(",")
        if len(found) * len(choices) > _MOST_ROUNDS:
            found = [{**one, name: None} for one in found]
        else:
            found = [{**one, name: choice} for one in found for choice in choices]
    return found


class _Known(NamedTuple):
    value: str
    begin: int
    end: int


class _Given(NamedTuple):
    """One place that sets a variable: its end (`begin`), the range in which it has certainly run, the assigned word or
    the fact that it is a number, and the start of the surrounding function."""

    begin: int
    until: int
    value: Node | None
    is_number: bool
    function: int


def _is_before(one: _Given, last: _Given) -> bool:
    """True if a variable is given the one before the other, whenever that is given."""
    return one.begin < last.begin and one.function in {-1, last.function}


def names_read(command: str) -> frozenset[str]:
    """The names of variables that a line may read: these of the environment are facts about it."""
    return frozenset(_READ.findall(command)) if "$" in command else frozenset()


class Variables:
    """Of one line: `value` and `is_function` at a place of its text, and what arithmetic may trust."""

    def __init__(self, source: bytes, root: Node, environment: Mapping[str, str] | None, *, learns: bool) -> None:
        """`environment` has the known variables, None if the surrounding text may have set any variable; `learns` is
        False if that text may change the meaning of the text's own assignments."""
        self._source = source
        self._environment = environment or {}
        self._is_whole = environment is not None
        self._learns = learns
        self._sites: dict[str, int] = {}
        self._given: dict[str, list[_Given]] = {}
        self._numbers: dict[str, list[_Given]] = {}
        self._asked: set[str] = set()
        self._steps = 0
        self._known: dict[str, _Known] = {}
        self._functions: dict[str, list[_Known]] = {}
        self._lists: dict[str, tuple[list[str], int, int]] = {}
        self._candidates: list[tuple[Node, str, Node | None]] = []
        self._found: dict[str, _Known] = {}
        self._from_disk: set[str] = set()
        self._unset: set[str] = set()
        self._anything = self._clears = False
        if not learns or _ASKS.search(source):
            self._gather(root)

    def at(self, place: int, chosen: Mapping[str, str | None] = MappingProxyType({})) -> Values:
        """The variables as they are at one byte; `chosen` are those of loops in one round, None: too many."""

        def value(name: str) -> str | None:
            found = chosen.get(name)
            return found if found is not None and "*" not in found else self.value(name, place)

        def pattern(name: str) -> str | None:
            return chosen[name] if name in chosen else self.pattern(name, place)

        return Values(value, self.is_outside, pattern)

    def value(self, name: str, place: int) -> str | None:
        """The value of a variable at a byte of the text; None if it is not certain."""
        if self._anything or _OWN_OF_SHELLS.fullmatch(name):
            return None
        known = self._known.get(name)
        if known is not None:
            return known.value if self._sites.get(name) == 1 and known.begin <= place < known.end else None
        return None if name in self._sites else self._environment.get(name)

    def is_outside(self, name: str) -> bool:
        """True if a variable's value does not come from the line: environment, names of found files, numbers."""
        if self._anything or _OWN_OF_SHELLS.fullmatch(name):
            return False
        return name in self._from_disk or self.is_number(name) if name in self._sites else self._is_whole

    def pattern(self, name: str, place: int) -> str | None:
        """The pattern of the files whose names a loop gives a variable in its body; None if not certain."""
        found = None if self._anything else self._found.get(name)
        return found.value or None if found is not None and found.begin <= place < found.end else None

    def is_function(self, name: str | None, place: int) -> bool:
        """True if a word in the place of a program calls a function that the line has certainly defined before."""
        return name in self._functions and any(one.begin <= place < one.end for one in self._functions[name])

    @property
    def functions(self) -> frozenset[str]:
        """The names of all functions that the line defines."""
        return frozenset(self._functions)

    def is_number(self, name: str, place: int | None = None) -> bool:
        """True if the line assigns only numbers to a variable, or has certainly made it a number before a byte of the
        text; False for a parameter, and for a value without a name (`*`)."""
        if self._anything or not _NAME.fullmatch(name):
            return False
        if name not in self._sites:
            return name in _NUMBERS_OF_SHELLS or (self._is_whole and not _OWN_OF_SHELLS.fullmatch(name))
        if name in self._asked:
            return True  # the other parts of the number decide
        numbers = self._numbers.get(name)
        if numbers is None:
            numbers = self._find_numbers(name)
        given = self._given[name]
        if len(numbers) == len(given):
            return True
        certain = [one for one in numbers if place is not None and one.begin <= place < one.until]
        is_followed = bool(certain) and len(given) <= _MAX_GIVEN
        return is_followed and all(one in numbers or _is_before(one, certain[-1]) for one in given)

    def _find_numbers(self, name: str) -> list[_Given]:
        """Return the places that give a variable nothing but a number."""
        self._steps += 1
        if self._steps > _MAX_STEPS or len(self._asked) > _MAX_CHAIN:
            return []
        self._asked.add(name)
        given = self._given.setdefault(name, [])
        numbers = [
            one
            for one in given
            if one.is_number
            or (one.value is not None and is_number_word(self._source, one.value, self.is_number, self.functions))
        ]
        self._asked.discard(name)
        if not self._asked:  # else an answer may depend on an open question
            self._numbers[name] = numbers
        return numbers

    def gives_numbers(self, node: Node) -> bool:
        """True if a substitution can only give numbers."""
        return self._learns and gives_numbers(self._source, node, self.is_number, self.functions)

    def functions_at(self, place: int) -> frozenset[str]:
        """The functions that are certainly defined at a byte of the text."""
        return frozenset(name for name in self._functions if self.is_function(name, place))

    def forgets(self, name: str) -> bool:
        """True if a function from around the text may be one no more."""
        return self._clears or name in self._unset

    def parts(self, name: str, place: int) -> list[str] | None:
        """The words that a variable becomes outside of quotes; None if uncertain."""
        value = self.value(name, place)
        return value.split() if value is not None and _SEVERAL_WORDS.fullmatch(value) else None

    def elements(self, name: str, place: int, *, quoted: bool) -> list[str] | None:
        """The words that the elements of an array, set once, become; None if uncertain."""
        known = None if self._anything or self._sites.get(name) != 1 else self._lists.get(name)
        if known is None or _OWN_OF_SHELLS.fullmatch(name) or not known[1] <= place < known[2]:
            return None
        return known[0] if quoted or all(map(_PLAIN_WORD.fullmatch, known[0])) else None

    def alternatives(self, name: str, place: int, *, quoted: bool) -> list[list[str]]:
        """All possible words of a variable that the line sets in several places; none if unknown."""
        values = self._values(name, place)
        if quoted:
            return [[one] for one in values]
        is_plain = all(_PLAIN_WORD.fullmatch(one) or _SEVERAL_WORDS.fullmatch(one) for one in values)
        return [one.split() for one in values] if is_plain else []

    def literals(self, name: str) -> list[str]:
        """All plain texts that the line assigns to a variable, whichever counts."""
        ones = [one for one in self._candidates if one[1] == name][:_MAX_ALTERNATIVES]
        return [text for node, _, value in ones if (text := self._read_plain_value(node, value))]

    def _values(self, name: str, place: int) -> list[str]:
        if self._anything or not self._learns or _OWN_OF_SHELLS.fullmatch(name):
            return []
        found = self._found.get(name)
        if found is not None and found.begin <= place < found.end:
            texts = found.value.strip("{}").split(",")
            return texts if not any(map(_GLOBS.search, texts)) else []
        ones = [one for one in self._candidates if one[1] == name]
        is_certain = any(node.end_byte <= place < _valid_until(node) for node, _, _ in ones)
        if not is_certain or self._sites.get(name) != len(ones) or len(ones) > _MAX_ALTERNATIVES:
            return []
        texts_of = [self._read_plain_value(node, value) for node, _, value in ones]
        return [text for text in texts_of if text] if all(texts_of) else []

    # What sets them

    def _gather(self, root: Node) -> None:
        function = (-1, -1)
        for node in _all(root):
            kind = node.type
            if node.start_byte >= function[1]:
                function = (-1, -1)
            if kind == "function_definition" and function[0] < 0:
                function = (node.start_byte, node.end_byte)
            if kind in CONSTRUCTS:
                for one in assignments_of(self._source, node):
                    self._note(one, node, function[0])
            elif kind == "command":
                self._command(node, function[0])
            elif kind == "declaration_command":
                self._note_unknown(assignments_of_builtin("declare", self._words(node.children[1:])), node, function[0])
            elif kind == "unset_command":
                self._forgets(node.children[1:], node)
        for node, name, value in self._candidates:
            if self._learns and self._sites[name] == 1:
                self._learn(node, name, value)
        for name in set(self._functions) if self._clears else self._unset:
            self._functions.pop(name, None)

    def _words(self, nodes: list[Node]) -> list[Word]:
        return [read_word(self._text(one)) for one in nodes if one.type != "variable_assignment"]

    def _note(self, one: Assigned, node: Node, function: int) -> None:
        kind = node.type
        if one.is_function:
            self._function(node)
        elif one.name is None:
            self._anything = True
        elif kind == "for_statement":
            self._loop(node, one.name, function)
        elif kind == "variable_assignment" and not one.is_number:
            self._set(one.name, self._prefix_values(node, one.value, function))
            if self._is_statement(node):
                self._candidates.append((node, one.name, one.value))
            else:
                self._sites[one.name] += 1
        else:
            self._set(one.name, _Given(node.end_byte, -1, None, one.is_number, function))

    def _prefix_values(self, node: Node, value: Node | None, function: int) -> _Given:
        """Prefix assignments of a command hold for that alone."""
        is_prefix = node.parent is not None and node.parent.type == "command"
        is_plain = node.children[0].type == "variable_name"
        until = _valid_until(node) if is_plain and not is_prefix else -1
        return _Given(node.end_byte, until, value, value is None, function)

    def _forgets(self, nodes: list[Node], node: Node) -> None:
        self._note_unknown(assignments_of_builtin("unset", self._words(nodes)), node, -1)
        self._unset.update(read_word(self._text(one)).text or "" for one in nodes)
        if self._anything:
            self._clears = True

    def _text(self, node: Node) -> str:
        return text_of(self._source, node)

    def _set(self, name: str, given: _Given) -> None:
        if name == "IFS":
            self._anything = True  # a known value is known as one piece
        if name in self._sites:
            self._found.pop(name, None)
            self._from_disk.discard(name)
        self._sites[name] = self._sites.get(name, 0) + 1
        self._given.setdefault(name, []).append(given)

    def _is_statement(self, node: Node) -> bool:
        """True for a plain assignment alone, or after `export` or `readonly`."""
        parent = node.parent
        is_plain = node.children[0].type == "variable_name" and len(node.children) in {2, 3}
        if parent is None or not is_plain or node.children[1].type != "=" or parent.type == "command":
            return False
        first, *rest = (one.type for one in parent.children)
        exported = first in {"export", "readonly"} and {"variable_assignment", "export", "readonly"}.issuperset(rest)
        return parent.type != "declaration_command" or exported

    def _learn(self, node: Node, name: str, value: Node | None) -> None:
        text = self._read_plain_value(node, value)
        if text is not None:
            self._known[name] = _Known(text, node.end_byte, _valid_until(node))
        elif value is not None and value.type == "array":
            ones = [read_word(self._text(one), self.at(node.start_byte)) for one in value.named_children]
            texts = [one.text for one in ones if one.text is not None and not one.tilde and one.text[:1] != "["]
            if len(texts) == len(ones):
                self._lists[name] = (texts, node.end_byte, _valid_until(node))

    def _read_plain_value(self, node: Node, value: Node | None) -> str | None:
        if value is None:
            return ""
        if value.type in {"array", "subscript"} or b"~" in self._source[node.start_byte : node.end_byte]:
            return None
        word = read_word(self._text(value), self.at(node.start_byte))
        return None if word.tilde or not word.valid else word.text

    def _command(self, node: Node, function: int) -> None:
        name_node = node.child_by_field_name("name")
        name = read_word(self._text(name_node)).text if name_node is not None else None
        if name is None:
            return
        rest = [one for one in node.children if one != name_node and one.type != "variable_assignment"]
        while name in _PASSES_ON and rest:
            name = read_word(self._text(rest.pop(0))).text
            name = "command" if name is not None and name.startswith("-") else name
        if name is None:
            self._anything = True  # a builtin known only at run time
            self._clears = True
        elif name == "unset":
            self._forgets(rest, node)
        elif name in _SETS_ANY:
            self._anything = True
            # The text may unset a function in any spelling; at the shell's end that matters no more.
            self._clears = self._clears or name == "eval" or (name == "trap" and not self._is_at_end(rest))
        elif name in ASSIGNING_BUILTINS:
            self._note_unknown(assignments_of_builtin(name, self._words(rest)), node, function)

    def _is_at_end(self, nodes: list[Node]) -> bool:
        """True if a trap runs when the shell ends, or runs nothing but programs and functions by their plain names."""
        texts = [text for text in (read_word(self._text(one)).text for one in nodes) if text != "--"]
        if not texts or texts[0] is None:
            return False
        is_plain = _PLAIN_TRAP.fullmatch(texts[0]) is not None and "unset" not in texts[0].split()
        return is_plain or all(text in _AT_END for text in texts[1:])

    def _note_unknown(self, ones: list[Assigned], node: Node, function: int) -> None:
        for one in ones:
            if one.name is None:
                self._anything = True
                return
            self._set(one.name, _Given(node.end_byte, -1, None, one.is_number, function))
            self._sites[one.name] += 1

    def _loop(self, node: Node, name: str, function: int) -> None:
        values = node.children_by_field_name("value")
        texts = [self._text(one) for one in values]
        is_new = name not in self._sites and bool(texts)
        begin = values[-1].end_byte if values else node.start_byte
        for value in (*values, *(() if values else (None,))):
            self._set(name, _Given(begin, -1, value, is_number=False, function=function))
        self._sites[name] += 1
        if is_new and all(map(_FOUND_OR_PLAIN.fullmatch, texts)):
            pattern = texts[0] if len(texts) == 1 else "{" + ",".join(texts) + "}"
            self._found[name] = _Known(pattern, begin, node.end_byte)
            if all("*" in text for text in texts):
                self._from_disk.add(name)

    def _function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is not None:
            self._functions.setdefault(self._text(name), []).append(_Known("", node.end_byte, _valid_until(node)))


def _all(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _valid_until(statement: Node) -> int:
    """The byte up to which what follows runs only after `statement` has run, in the same shell."""
    one = statement
    while True:
        parent = one.parent
        follower = one.next_sibling
        if parent is None or (follower is not None and follower.type == "&"):
            return one.end_byte
        kind = parent.type
        if kind in _SEQUENCES:
            return parent.end_byte
        if kind == "if_statement" or kind in _LATER_CLAUSES:
            return next(
                (child.start_byte for child in parent.children if child.type in _LATER_CLAUSES), parent.end_byte
            )
        if kind == "list" and len(parent.children) == 3:
            if parent.children[0] == one:
                one = parent
                continue
            return _chain_end(parent) if parent.children[1].type == "&&" else statement.end_byte
        if kind not in {"variable_assignments", "declaration_command"}:
            return statement.end_byte
        one = parent


def _chain_end(last: Node) -> int:
    """The end of the `&&` chain of which `last` is the part that has just succeeded."""
    while (parent := last.parent) is not None and parent.type == "list" and len(parent.children) == 3:
        if parent.children[0] != last or parent.children[1].type != "&&":
            break
        last = parent
    return last.end_byte
