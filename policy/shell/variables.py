"""What a line's own variables and functions are, where that can be said without running it.

A variable is known behind an assignment that nothing can skip and nothing can change: the only one of its name, a
statement of its own, in the sequence in which it is used. One that the line never sets is what the command's
environment says. A function is known in the same way, and a call of one starts what its body shows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words
from policy.shell.tables import NAMING_BUILTINS
from policy.shell.words import read_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tree_sitter import Node

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ = re.compile(r"\$\{?#?([A-Za-z_][A-Za-z0-9_]*)")
_ASSIGNED_IN_NUMBERS = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*+)\s*+(?:\[[^\]]*+\]\s*+)?(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))"
    r"|(?:\+\+|--)\s*+([A-Za-z_][A-Za-z0-9_]*+)"
)
_ASSIGNED_BY_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?=")
_NUMBER = re.compile(r"-?[0-9]+|\$\(\([^$`'\"]*\)\)|\$\{#[A-Za-z0-9_@*\[\]]+\}|\$[#?]|\{[0-9]+\.\.[0-9]+\}")
_MOST_ROUNDS = 64
_SETS_ANY = words("eval source . trap let")
_PASSES_ON = words("command builtin time")
_FOUND_OR_PLAIN = re.compile(r"(?!-)[A-Za-z0-9_./*-]+|\{[0-9]+\.\.[0-9]+\}")
"""A pattern of file names, or a plain one, or a range of numbers, as a loop may go over."""
_PLAIN_TRAP = re.compile(r"-|[A-Za-z0-9_ ./;]*")
_AT_END = words("EXIT 0")
_SETS_BEHIND = {"printf": "-v", "wait": "-p"}
"""Builtins that set a variable only behind an option."""
_OWN_OF_SHELLS = re.compile(
    r"BASH.*|RANDOM|SRANDOM|SECONDS|LINENO|EPOCH.*|_|PWD|OLDPWD|PPID|UID|EUID|GROUPS|DIRSTACK|FUNCNAME|HISTCMD|OPT.*"
    r"|REPLY|MAPFILE|COPROC|PIPESTATUS|SHLVL|IFS|HOST.*|USERNAME|histchars|OSTYPE|MACHTYPE|PS[0-9]|COLUMNS|LINES"
)
"""Variables that the shell sets itself, whatever its environment says."""
_SEQUENCES = words("program compound_statement do_group subshell command_substitution case_item")
_NOT_BEHIND = words("elif_clause else_clause")


class Here(NamedTuple):
    """The variables of a line as they are at one byte of its text. `chosen` has for variables of loops over words the
    one of a round, None where there are too many."""

    variables: Variables
    place: int
    chosen: Mapping[str, str | None] = {}

    def value(self, name: str) -> str | None:
        """What a variable holds; None where that is not certain."""
        chosen = self.chosen.get(name)
        return chosen if chosen is not None and "*" not in chosen else self.variables.value(name, self.place)

    def is_outside(self, name: str) -> bool:
        """Whether the line has no part in what a variable holds."""
        return self.variables.is_outside(name)

    def pattern(self, name: str) -> str | None:
        """The pattern of the files whose names a loop gives a variable."""
        return self.chosen[name] if name in self.chosen else self.variables.pattern(name, self.place)


def rounds(variables: Variables, text: str, place: int) -> list[dict[str, str | None]]:
    """What the variables of loops over words are in each round, for those that a text at one byte of the line reads."""
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
    """What holds from byte `begin` on and before `end`."""

    value: str
    begin: int
    end: int


def names_read(command: str) -> frozenset[str]:
    """The names of variables that a line may read: these of the environment are facts about it."""
    return frozenset(_READ.findall(command)) if "$" in command else frozenset()


def assigned_in_numbers(text: str) -> list[str]:
    """The names of variables that an arithmetic expression sets."""
    return [one or two for one, two in _ASSIGNED_IN_NUMBERS.findall(text)]


class Variables:
    """Of one line: `value` and `is_function` at a place of its text, and what arithmetic may trust."""

    def __init__(self, source: bytes, root: Node, environment: Mapping[str, str] | None, *, learns: bool) -> None:
        """`environment` is what is known of it, None where what stands around the text may have set any variable, and
        `learns` False where that may change what an assignment of the text itself means."""
        self._source = source
        self._environment = environment or {}
        self._is_whole = environment is not None
        self._learns = learns
        self._sites: dict[str, int] = {}
        self._no_numbers: set[str] = set()
        self._known: dict[str, _Known] = {}
        self._functions: dict[str, list[_Known]] = {}
        self._found: dict[str, _Known] = {}
        self._from_disk: set[str] = set()
        self._unset: set[str] = set()
        self._anything = self._clears = False
        self.defines_functions = False
        if not learns or b"$" in source or b"(" in source or b"function" in source:
            self._gather(root)

    def value(self, name: str, place: int) -> str | None:
        """What a variable holds at a byte of the text; None where that is not certain."""
        if self._anything or _OWN_OF_SHELLS.fullmatch(name):
            return None
        known = self._known.get(name)
        if known is not None:
            return known.value if self._sites.get(name) == 1 and known.begin <= place < known.end else None
        if name in self._sites:
            return None
        return self._environment.get(name)

    def is_outside(self, name: str) -> bool:
        """Whether the line has no part in what a variable holds: it comes from the environment, or is the name of a
        file that a loop's pattern finds, or is a number."""
        if self._anything or _OWN_OF_SHELLS.fullmatch(name):
            return False
        if name in self._sites:
            return name in self._from_disk or self.is_number(name)
        return self._is_whole

    def pattern(self, name: str, place: int) -> str | None:
        """The pattern of the files whose names a loop gives a variable in its body; None where it is not certain, or
        there are several."""
        found = None if self._anything else self._found.get(name)
        return found.value or None if found is not None and found.begin <= place < found.end else None

    def is_function(self, name: str | None, place: int) -> bool:
        """Whether a word in the place of a program calls a function that the line has certainly defined before."""
        return name in self._functions and any(one.begin <= place < one.end for one in self._functions[name])

    @property
    def functions(self) -> frozenset[str]:
        """The names of all functions that the line defines."""
        return frozenset(self._functions)

    def is_number(self, name: str) -> bool:
        """Whether the line gives a variable nothing but numbers; not what has no name (`*`)."""
        if self._anything or name == "*" or name in self._no_numbers:
            return False
        return name in self._sites or self._is_whole

    def functions_at(self, place: int) -> frozenset[str]:
        """The functions that are certainly defined at a byte of the text."""
        return frozenset(name for name in self._functions if self.is_function(name, place))

    def forgets(self, name: str) -> bool:
        """Whether a function from around the text may be one no more."""
        return self._clears or name in self._unset

    # What sets them

    def _gather(self, root: Node) -> None:
        candidates: list[tuple[Node, str, Node | None]] = []
        handlers: dict[str, Callable[[Node], None]] = {
            "variable_assignment": lambda node: self._assignment(node, candidates),
            "command": self._command,
            "declaration_command": lambda node: self._named(node.children[1:]),
            "unset_command": lambda node: self._forgets(node.children[1:]),
            "for_statement": self._loop,
            "function_definition": self._function,
            "expansion": self._default,
            "file_redirect": self._descriptor,
            **dict.fromkeys(("arithmetic_expansion", "c_style_for_statement", "compound_statement"), self._numbers),
        }
        for node in _all(root):
            handler = handlers.get(node.type)
            if handler is not None:
                handler(node)
        for node, name, value in candidates:
            if self._learns and self._sites[name] == 1:
                self._learn(node, name, value)
        for name in set(self._functions) if self._clears else self._unset:
            self._functions.pop(name, None)

    def _numbers(self, node: Node) -> None:
        if node.type != "compound_statement" or node.children[0].type == "((":
            for name in assigned_in_numbers(self._text(node)):
                self._set(name, is_number=True)

    def _default(self, node: Node) -> None:
        for name in _ASSIGNED_BY_DEFAULT.findall(self._text(node)):
            self._set(name)

    def _descriptor(self, node: Node) -> None:
        """`{name}>` sets a variable."""
        if node.start_byte and self._source[node.start_byte - 1] == ord("}"):
            self._anything = True

    def _forgets(self, nodes: list[Node]) -> None:
        self._named(nodes)
        self._unset.update(read_word(self._text(one)).text or "" for one in nodes)
        if self._anything:
            self._clears = True

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()

    def _set(self, name: str, *, is_number: bool = False) -> None:
        if name == "IFS":
            self._anything = True  # what is known of a variable is known of it in one piece
        if name in self._sites:
            self._found.pop(name, None)
            self._from_disk.discard(name)
        self._sites[name] = self._sites.get(name, 0) + 1
        if not is_number:
            self._no_numbers.add(name)

    def _assignment(self, node: Node, candidates: list[tuple[Node, str, Node | None]]) -> None:
        target, value = node.children[0], node.child_by_field_name("value")
        name = _NAME.match(self._text(target))
        if name is None:
            self._anything = True
            return
        is_number = value is not None and _NUMBER.fullmatch(self._text(value)) is not None
        self._set(name[0], is_number=is_number)
        parent = node.parent
        is_plain = target.type == "variable_name" and len(node.children) in {2, 3} and node.children[1].type == "="
        exported = (
            parent is not None
            and parent.type == "declaration_command"
            and parent.children[0].type in {"export", "readonly"}
            and all(one.type in {"variable_assignment", "export", "readonly"} for one in parent.children)
        )
        is_statement = parent is not None and parent.type not in {"command", "declaration_command"}
        if is_plain and (is_statement or exported):
            candidates.append((node, name[0], value))
        else:
            self._sites[name[0]] += 1

    def _learn(self, node: Node, name: str, value: Node | None) -> None:
        if value is None:
            text: str | None = ""
        else:
            word = read_word(self._text(value), Here(self, node.start_byte))
            text = None if word.tilde or not word.valid else word.text
            if value.type in {"array", "subscript"} or b"~" in self._source[node.start_byte : node.end_byte]:
                text = None
        if text is not None:
            self._known[name] = _Known(text, node.end_byte, _holds_until(node))

    def _command(self, node: Node) -> None:
        name_node = node.child_by_field_name("name")
        name = read_word(self._text(name_node)).text if name_node is not None else None
        if name is None:
            return
        rest = [one for one in node.children if one != name_node and one.type != "variable_assignment"]
        while name in _PASSES_ON and rest:
            name = read_word(self._text(rest.pop(0))).text
            name = "command" if name is not None and name.startswith("-") else name
        if name is None:
            self._anything = True  # a builtin that is only known when it runs
            self._clears = True
        elif name == "unset":
            self._forgets(rest)
        elif name in _SETS_ANY:
            self._anything = True
            # The text may unset a function in any spelling; at the shell's end that matters no more.
            self._clears = self._clears or name == "eval" or (name == "trap" and not self._is_at_end(rest))
        elif name in _SETS_BEHIND:
            first = read_word(self._text(rest[0])).prefix if rest else ""
            if first.startswith(_SETS_BEHIND[name]):
                self._named(rest, first.removeprefix(_SETS_BEHIND[name]))
        elif name in NAMING_BUILTINS:
            self._named(rest)

    def _is_at_end(self, nodes: list[Node]) -> bool:
        """Whether a trap runs when the shell ends, or runs nothing but programs and functions by their plain names."""
        texts = [text for text in (read_word(self._text(one)).text for one in nodes) if text != "--"]
        if not texts or texts[0] is None:
            return False
        is_plain = _PLAIN_TRAP.fullmatch(texts[0]) is not None and "unset" not in texts[0].split()
        return is_plain or all(text in _AT_END for text in texts[1:])

    def _named(self, nodes: list[Node], joined: str = "") -> None:
        """Each word that may be the name of a variable: what it becomes is not known."""
        for text in [joined, *(read_word(self._text(one)).text for one in nodes if one.type != "variable_assignment")]:
            if text is None:
                self._anything = True
                return
            name = _NAME.match(text)
            if name is not None:
                self._set(name[0])
                self._sites[name[0]] += 1

    def _loop(self, node: Node) -> None:
        for child in node.children:
            if child.type == "variable_name":
                values = node.children_by_field_name("value")
                name, texts = self._text(child), [self._text(one) for one in values]
                is_new = name not in self._sites and bool(texts)
                self._set(name, is_number=is_new and all(map(_NUMBER.fullmatch, texts)))
                self._sites[name] += 1
                if is_new and all(map(_FOUND_OR_PLAIN.fullmatch, texts)):
                    pattern = texts[0] if len(texts) == 1 else "{" + ",".join(texts) + "}"
                    self._found[name] = _Known(pattern, child.end_byte, node.end_byte)
                    if all("*" in text for text in texts):
                        self._from_disk.add(name)

    def _function(self, node: Node) -> None:
        self.defines_functions = True
        name = node.child_by_field_name("name")
        if name is not None:
            known = _Known("", node.end_byte, _holds_until(node))
            self._functions.setdefault(self._text(name), []).append(known)


def _all(root: Node) -> Iterator[Node]:
    """Every node, in the order of the text."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _holds_until(statement: Node) -> int:
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
        if kind == "if_statement" or kind in _NOT_BEHIND:
            return next((child.start_byte for child in parent.children if child.type in _NOT_BEHIND), parent.end_byte)
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
    while True:
        parent = last.parent
        if (
            parent is None
            or parent.type != "list"
            or len(parent.children) != 3
            or parent.children[0] != last
            or parent.children[1].type != "&&"
        ):
            return last.end_byte
        last = parent
