"""Text that a line visibly passes to a shell: its input, the output of a substitution, the file of `<(…)`.

One reader for here-documents and here-strings, and for the output of `echo`, `printf` and `cat` before a pipe or in a
substitution. Parts known only at run time are `UNKNOWN` in the text, which is then partial: a shell's name in a list
consents to invisible parts, and visible parts are judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy import words
from policy.programs import PROGRAMS
from policy.shell.tables import READS_FILES
from policy.shell.words import ShownText, decode_escapes, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tree_sitter import Node

    from policy.shell.tables import Grammar
    from policy.shell.words import Word

UNKNOWN = "$_"
_MAX_TEXT = 64 * 1024
_MAX_DEPTH = 24
_MAX_PARTS = 32
_ESCAPED_IN_STRING = re.compile(r"\\([$`\"\\\n])")
_ESCAPED_IN_DOCUMENT = re.compile(r"\\([$`\\\n])")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_DIRECTIVE = re.compile(r"%(?:%|[-0-9.]*([sbdic]))")
_DESCRIPTOR = re.compile(r"(?:/dev|/proc/self)/fd/([1-9][0-9]*)")
_SPELLED = words("word raw_string number")
"""Words without anything that expands, but for patterns."""
_EXPANSIONS = words("expansion simple_expansion command_substitution arithmetic_expansion process_substitution")
_GROUPS = words("list compound_statement subshell negated_command command_substitution process_substitution do_group")
_STATEMENTS = _GROUPS | words("command redirected_statement pipeline for_statement if_statement while_statement")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_ECHO_OPTION, _PRINT_OPTION = re.compile(r"-[neE]+"), re.compile(r"-[rRnlE-]+")
_PASSES_ON = words("time command builtin exec env nohup sudo")
_FILTERS = words("tee head tail sort uniq tac grep pv")
_ENDS_INPUT = words("command_substitution process_substitution program")
_SHELLS = frozenset(name for name, row in PROGRAMS.items() if row.starts in {"shell", "unread shell"})
_TAKES_TEXT = _SHELLS | READS_FILES | {"eval"}
INPUT_FILES = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
"""Names by which a shell reads its input as a file."""


def takes_text(words: Iterable[Word]) -> bool:
    """True if one of a command's words names a program that runs text as shell commands."""
    return any(word.text is not None and word.text.rpartition("/")[2] in _TAKES_TEXT for word in words)


class Texts:
    """The texts of one line, found from the nodes of its tree."""

    def __init__(
        self,
        source: bytes,
        read: Callable[[str, Node], Word],
        grammar: Grammar,
        literals: Callable[[str], list[str]],
    ) -> None:
        self._literals = literals
        self._source = source
        self._read = read
        self._grammar = grammar
        self._depth = 0
        self._found: dict[tuple[int, int, str], ShownText | None] = {}

    def read_text(self, node: Node, command: Node) -> ShownText | None:
        """The text of a word in `command`, or of the file that `<(…)` or `/dev/fd/3` is; None if nothing is shown."""
        text = text_of(self._source, node)
        if node.type == "process_substitution":
            shown = self._find_output(node) if text.startswith("<") else None
            return None if shown is None else shown._replace(is_file=True)
        descriptor = _DESCRIPTOR.fullmatch(text)
        if descriptor is not None:
            shown = self.find_input(command, descriptor[1])
            return None if shown is None else shown._replace(is_file=True)
        if node.type in _SPELLED:
            return None
        shown = self._spell(node)
        return shown if shown.text.replace(UNKNOWN, "").strip() else None

    def find_input(self, command: Node, descriptor: str = "0") -> ShownText | None:
        """Return the input of a command; None if the line does not show it."""
        node: Node | None = command
        while node is not None:
            found = self._read_redirections(node.children, descriptor)
            parent = node.parent
            if found is not None or parent is None:
                return found
            if node.type in _ENDS_INPUT:
                around = parent if text_of(self._source, node).startswith(">(") and parent.type == "command" else None
                return None if around is None else self.find_input(around)
            if parent.type == "redirected_statement" and parent.child_by_field_name("body") == node:
                found = self._read_redirections(parent.children, descriptor)
                files = [one for one in (*parent.children, *_in_heredocs(parent)) if one.type == "file_redirect"]
                if any(self._is_input(one, descriptor) for one in files):
                    return None if found is None else found._replace(is_whole=False)
            elif parent.type == "pipeline" and descriptor == "0" and (before := node.prev_named_sibling) is not None:
                return self._find_output(before)
            elif parent.type == "heredoc_redirect":
                # To the grammar what follows a here-document's delimiter in its line is a part of it.
                parent = parent.parent
                if node.type == "pipeline" or self._source[: node.start_byte].rstrip().endswith(b"|"):
                    body = parent.child_by_field_name("body") if parent is not None else None
                    return None if body is None else self._find_output(body)
            if found is not None:
                return found
            node = parent
        return None

    # What a statement prints

    def _find_output(self, node: Node) -> ShownText | None:
        key = (node.start_byte, node.end_byte, node.type)
        if key not in self._found:
            self._found[key] = None  # for one that asks for itself
            self._depth += 1
            self._found[key] = None if self._depth > _MAX_DEPTH else self._read_output(node)
            self._depth -= 1
        return self._found[key]

    def _read_output(self, node: Node) -> ShownText | None:
        if node.type == "pipeline":
            return self._find_output(node.named_children[-1])
        if node.type == "redirected_statement":
            piped = next((one for one in _in_heredocs(node) if one.type == "pipeline"), None)
            piped = piped or node.child_by_field_name("body")
            return None if piped is None else self._find_output(piped)
        if node.type == "command":
            return self._read_command(node)
        statements = (child for child in node.named_children if child.type in _STATEMENTS)
        parts = [one for child in statements if (one := self._find_output(child))]
        if not parts:
            return None
        is_all = node.type in _GROUPS and len(parts) == len(node.named_children)
        return _bound("".join(one.text for one in parts), is_all and all(one.is_whole for one in parts))

    def _read_command(self, command: Node) -> ShownText | None:
        nodes = [one for one in command.named_children if "redirect" not in one.type]
        while len(nodes) > 1 and text_of(self._source, nodes[0]) in _PASSES_ON:
            nodes = nodes[1:]
        name = text_of(self._source, nodes[0]) if nodes else ""
        args = nodes[1:]
        if name == "cat":
            return self._read_cat(args, command)
        if name in _FILTERS:
            shown = self.find_input(command)
            return shown if shown is None or name == "tee" else shown._replace(is_whole=False)
        if name in {"echo", "yes"}:
            return self._read_echo(args)
        if name == "print" and self._grammar == "zsh":
            return self._read_echo(args, _PRINT_OPTION)
        return self._read_printf(args) if name == "printf" else None

    def _read_cat(self, args: list[Node], command: Node) -> ShownText | None:
        if not args:
            return self.find_input(command)
        shown = self.find_input(command)
        parts: list[ShownText | None] = []
        for one in args:
            is_input = text_of(self._source, one) in INPUT_FILES
            parts.append(shown if is_input else self._find_output(one) if "process" in one.type else None)
        if not any(parts):  # the grammar drops a `-` in front of a redirection
            return None if shown is None else shown._replace(is_whole=False)
        text = "".join(one.text for one in parts[:_MAX_PARTS] if one is not None)
        return _bound(text, len(parts) <= _MAX_PARTS and all(one is not None and one.is_whole for one in parts))

    def _read_echo(self, args: list[Node], options: re.Pattern[str] = _ECHO_OPTION) -> ShownText:
        """POSIX leaves it to a shell whether echo takes `-e`, and escapes without it."""
        decodes, end, is_certain = self._grammar == "zsh", "\n", True
        while args and options.fullmatch(option := text_of(self._source, args[0])):
            decodes = (decodes or "e" in option) and not {"r", "R"} & set(option)
            is_certain = is_certain and (self._grammar == "bash" or option == "-n")
            end = "" if "n" in option else end
            args = args[1:]
        parts = [self._spell(one) for one in args]
        text = " ".join(one.text for one in parts) + end
        if "\\" in text and (decodes or self._grammar == "posix"):
            plain = decode_escapes(text)
            is_certain = is_certain and plain is not None and self._grammar != "posix"
            text = text if plain is None else plain
        is_certain = is_certain and (self._grammar != "zsh" or not text.startswith("-"))
        return _bound(text, is_certain and all(one.is_whole for one in parts))

    def _read_printf(self, args: list[Node]) -> ShownText | None:
        if args and text_of(self._source, args[0]) == "--":
            args = args[1:]
        if not args or text_of(self._source, args[0]).startswith("-"):
            return None
        template, *parts = (self._spell(one) for one in args)
        plain = decode_escapes(template.text)
        is_whole = plain is not None and template.is_whole and all(one.is_whole for one in parts)
        plain = template.text if plain is None else plain
        is_whole = is_whole and "%" not in _DIRECTIVE.sub("", plain)
        count = sum(bool(one) for one in _DIRECTIVE.findall(plain))
        pending = [one.text for one in parts]
        made: list[str] = []
        size = 0

        def fill(directive: re.Match[str]) -> str:
            if directive[1] is None:
                return "%"
            text = pending.pop(0) if pending else ""
            if directive[1] == "b":
                return decode_escapes(text) or text
            return text[:1] if directive[1] == "c" else text

        while not made or (pending and count and size < _MAX_TEXT):
            made.append(_DIRECTIVE.sub(fill, plain))
            size += len(made[-1])
        return _bound("".join(made), is_whole)

    # What a word or a here-document spells

    def _read_redirections(self, nodes: list[Node], descriptor: str) -> ShownText | None:
        for node in reversed(nodes):
            if node.type == "herestring_redirect" and node.named_children and descriptor == "0":
                shown = self._spell(node.named_children[-1])
                return shown._replace(text=shown.text + "\n")
            if node.type == "heredoc_redirect" and self._is_input(node, descriptor):
                key = (node.start_byte, node.end_byte, node.type)
                if key not in self._found:
                    self._found[key] = self._read_heredoc(node)
                return self._found[key]
        return None

    def _is_input(self, redirect: Node, descriptor: str) -> bool:
        own = next((one for one in redirect.children if one.type == "file_descriptor"), None)
        reads = any(one.type.startswith("<") for one in redirect.children)
        return reads and descriptor == ("0" if own is None else text_of(self._source, own))

    def _read_heredoc(self, node: Node) -> ShownText | None:
        parts = {child.type: child for child in node.children}
        start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        if start is None or body is None:
            return None
        if text_of(self._source, start)[:1] in {"'", '"', "\\"}:
            shown = ShownText(text_of(self._source, body))
        else:
            shown = self._spell_between(body, body.start_byte, body.end_byte)
        if "<<-" in parts:
            shown = shown._replace(text=re.sub(r"(?m)^\t+", "", shown.text))
        return shown

    def _spell(self, node: Node) -> ShownText:
        word = self._read(text_of(self._source, node), node)
        if word.text is not None and word.valid:
            return ShownText(word.text)
        kind, text = node.type, text_of(self._source, node)
        if kind == "command_name":
            return self._spell(node.children[0])
        if kind in {"simple_expansion", "expansion"}:
            value = self._read(f'"{text}"', node).text
            if value is not None and not set("*?[") & set(value):
                return ShownText(" ".join(value.split()))
            return self._spell_variable(text)
        if kind == "concatenation":
            parts = [self._spell(child) for child in node.children]
            return ShownText("".join(one.text for one in parts), all(one.is_whole for one in parts))
        if kind == "string":
            quote = self._source.index(b'"', node.start_byte)
            return self._spell_between(node, quote + 1, node.end_byte - 1)
        if kind == "command_substitution":
            return self._spell_substitution(node)
        if kind == "word":
            return ShownText(_ESCAPED.sub(r"\1", text), is_whole=False)
        return ShownText(UNKNOWN, is_whole=False)

    def _spell_variable(self, text: str) -> ShownText:
        """The texts that the line assigns to a variable of unknown value, which is one of these, if any."""
        name = _VARIABLE.fullmatch(text)
        texts = [] if name is None else self._literals(name[1])
        return ShownText("\n".join(texts) or UNKNOWN, is_whole=False)

    def _spell_substitution(self, node: Node) -> ShownText:
        shown = self._find_output(node)
        return ShownText(UNKNOWN, is_whole=False) if shown is None else shown._replace(text=shown.text.rstrip("\n"))

    def _spell_between(self, node: Node, begin: int, end: int) -> ShownText:
        kept: list[str] = []
        is_whole, place = True, begin
        escaped = _ESCAPED_IN_STRING if node.type == "string" else _ESCAPED_IN_DOCUMENT
        for child in node.named_children:
            if child.type not in _EXPANSIONS or child.end_byte > end:
                continue
            kept.append(escaped.sub(_unescape, self._source[place : child.start_byte].decode()))
            word = self._read(f'"{text_of(self._source, child)}"', child)
            if word.text is not None and word.valid:
                kept.append(word.text)
            else:
                is_substitution = child.type == "command_substitution"
                text = text_of(self._source, child)
                shown = self._spell_substitution(child) if is_substitution else self._spell_variable(text)
                kept.append(shown.text)
                is_whole = is_whole and shown.is_whole
            place = child.end_byte
        kept.append(escaped.sub(_unescape, self._source[place:end].decode()))
        return _bound("".join(kept), is_whole)


def _in_heredocs(node: Node) -> list[Node]:
    return [one for child in node.children if child.type == "heredoc_redirect" for one in child.children]


def _unescape(escape: re.Match[str]) -> str:
    return "" if escape[1] == "\n" else escape[1]


def _bound(text: str, is_whole: bool) -> ShownText:
    return ShownText(text[:_MAX_TEXT], is_whole and len(text) <= _MAX_TEXT)
