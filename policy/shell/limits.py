"""Limits on the work that one shell line may make. All limits are counts, never time: a line gets the same answer on
any machine.

The parser takes long for three things: each error that it gets over (up to 0.1 ms), text that it reads again and again
(to the end, for each quote that might close there), and plain length. Errors are dear inside of brackets, so brackets
are counted beforehand; the rest is counted while it parses, and it is stopped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Point

MAX_CHARACTERS = 128 * 1024
MAX_NODES = 12_500
"""Of the trees of a line and of all lines that it hands to other shells."""
_MAX_BRACKETS = 300
_MAX_HEREDOCS = 32  # the parser keeps those that are open in a buffer of fixed size
_MAX_INNER_LINES = 32
_MAX_ROUNDS, _MAX_PLAIN_ROUNDS = 60, 270
_MAX_BLOCKS = 1_000
_BLOCK = 1024

_BRACKETS = "()[]{}"
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_NOT_PLAIN = re.compile(
    r"[()\[\]{}$`<>!*?#\\=~]|\|&|\b(?:if|then|elif|else|fi|for|in|do|done|while|until|case|esac|select|function|coproc)\b"
)
_EXPANDS = re.compile(r"[$`]")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,63})\1")
# The parser looks such a character up in a table of 256 and reads the memory behind it, which may not be there:
# https://github.com/tree-sitter/tree-sitter-bash/issues/337
_BEYOND_THE_TABLE = re.compile(r"(?<=[{0-9.])[^\x00-\xff]")
_QUOTED = re.compile(r"""\\.|'[^']*'|"[^"\\$`]*"|(?<![^\s;&|()])#[^\n]*""", re.DOTALL)

_windows: list[bytearray] = []
"""Buffers in which the parser gets its text, one per parsing thread. They are reused, because the parser never releases
a buffer."""


class TooMuch(Exception):
    """A limit was passed; the message says which. The line was not looked at, so nobody may run it."""


class NotText(Exception):
    """The line holds what no shell is given; the message says what."""


def admit(command: str) -> None:
    """Raises TooMuch or NotText for a line that is not read at all, whatever its shell."""
    if len(command) > MAX_CHARACTERS:
        raise TooMuch(f"the line is longer than {MAX_CHARACTERS} characters")
    if _UNREADABLE.search(command):
        raise NotText("the line has control characters, or halves of characters")


class Effort:
    """The work that one line and all lines inside it have made."""

    def __init__(self) -> None:
        self._lines = self._rounds = self._blocks = self._nodes = 0

    def tree(self, parser: Parser, command: str) -> tuple[bytes, Node]:
        """The text as bytes and the root of its tree. Raises TooMuch, NotText."""
        most = self._admit(command)
        source = command.encode()
        given = source if command.isascii() else _BEYOND_THE_TABLE.sub(_same_length, command).encode()
        if b"#$" in given:
            source, given = (_BASE.sub(_write_sum, text) for text in (source, given))
        window = _windows.pop() if _windows else bytearray()

        def read(place: int, _point: Point) -> bytearray:
            """The next block, which ends where a character ends. When too much was read the text is over: nothing else
            makes the parser leave a loop over it."""
            self._blocks += 1
            end = place + _BLOCK if self._blocks <= _MAX_BLOCKS else place
            while end < len(given) and given[end] & 0xC0 == 0x80:
                end -= 1
            window[:] = given[place:end]
            return window

        def stop(_place: int, _has_error: bool) -> bool:
            """Asked by the parser after every 100 steps."""
            self._rounds += 1
            return self._rounds > most or self._blocks > _MAX_BLOCKS

        root: Node | None = None
        try:
            root = parser.parse(read, progress_callback=stop).root_node
        except ValueError:  # it was stopped
            pass
        finally:
            _windows.append(window)
        if root is None or self._blocks > _MAX_BLOCKS:
            raise TooMuch("the line takes too many steps to read")
        self._nodes += root.descendant_count
        if self._nodes > MAX_NODES:
            raise TooMuch(f"the line has more than {MAX_NODES} parts")
        return source, root

    def _admit(self, command: str) -> int:
        """Counts what can be counted without the parser. The rounds that it may take, those of other lines included."""
        admit(command)
        self._lines += 1
        if self._lines > _MAX_INNER_LINES:
            raise TooMuch(f"more than {_MAX_INNER_LINES} shells inside the line")
        code = command if len(command) < _BLOCK else blank_data(command)
        if code.count("<<") > _MAX_HEREDOCS:
            raise TooMuch(f"the line has more than {_MAX_HEREDOCS} times <<")
        if sum(map(code.count, _BRACKETS)) > _MAX_BRACKETS:
            raise TooMuch(f"the line has more than {_MAX_BRACKETS} brackets outside of quotes")
        return _MAX_ROUNDS if _NOT_PLAIN.search(code) else _MAX_PLAIN_ROUNDS


_BASE = re.compile(rb"(?<=\(\()[0-9]{1,2}#(?=\$)")
"""The base of a number in arithmetic, which the grammar reads in front of digits alone."""


def _write_sum(found: re.Match[bytes]) -> bytes:
    """An expression that evaluates the same variables, in as many bytes."""
    return b"0" * (len(found[0]) - 1) + b"+"


def _same_length(found: re.Match[str]) -> str:
    """The replacement of a character for the parser: as many bytes, and to a shell as plain a part of a word."""
    return {2: "é", 3: "éx", 4: "éé"}[len(found[0].encode())]


def blank_data(command: str) -> str:
    """The line without the text of its quotes, comments and here-documents, as far as these are plain to see. It
    only serves to count: the parser is stopped all the same where this takes code for data."""
    kept, place, behind = [], 0, 0
    for _ in range(_MAX_HEREDOCS):
        start = _HEREDOC.search(command, behind)
        behind = -1 if start is None else command.find("\n", start.end())
        if start is None or behind < 0:
            break
        end = command.find(f"\n{start[2]}\n", behind)
        if end < 0 and command.endswith(f"\n{start[2]}"):
            end = len(command) - len(start[2]) - 1
        if end >= 0 and (start[1] or not _EXPANDS.search(command, behind, end)):
            kept.append(command[place:behind])
            place = behind = end
    kept.append(command[place:])
    return _QUOTED.sub("", "".join(kept))
