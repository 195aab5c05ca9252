"""Findings of reading a shell line, and the limits of the work that a line may make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from policy.shell.arithmetic import Evaluated
from policy.shell.tables import NUMBER_VARIABLE, STEERING_VARIABLE, Grammar
from policy.shell.words import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node, Parser, Point

    from policy.programs.row import Program
    from policy.shell.arithmetic import Assigned
    from policy.shell.words import Given, ShownText, Word


class SimpleCommand(NamedTuple):
    """One program that the line would start. None stands for what only expansion decides."""

    program: str | None
    arguments: tuple[str | None, ...] = ()
    directories: tuple[str, ...] = ("",)
    """Of a program that is a path: those that it may be relative to."""

    def places(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute spelling of a program's directory; none for a bare name."""
        if self.program is None or "/" not in self.program:
            return ()
        return spellings(self.program.rpartition("/")[0] or "/", self.directories, cwd, home)

    @property
    def is_relative(self) -> bool:
        """True if the program is a path that depends on the directory."""
        return self.program is not None and "/" in self.program and not self.program.startswith(("/", "~"))

    @property
    def name(self) -> str | None:
        """The program without its directory."""
        return None if self.program is None else self.program.rsplit("/", 1)[-1]


Mode = Literal["read", "write", "delete", "make"]
Made = Literal["", "link", "tree"]


class FileUse(NamedTuple):
    """A file that the line opens itself (`program` None), or passes to a program that changes or copies it.

    `path` is as written after quote removal, None if it depends on an expansion; `tilde`: its leading `~` is unquoted.
    For a glob it is the directory before the first special character, and `pattern` the rest, `**` if unknown. `tree`:
    everything below is included. `made`: a symbolic link is created there, or a tree with unknown links, from `source`
    if that is named; mode `make` states only this. `directories` are the possible bases of a relative path: `cd` may
    have failed, so each counts. `step` is the number of commands of the line before its use; 0 in a loop, negative if
    others run concurrently."""

    mode: Mode
    path: str | None
    tilde: bool = False
    tree: bool = False
    pattern: str | None = None
    made: Made = ""
    source: str | None = None
    program: str | None = None
    directories: tuple[str, ...] = ("",)
    step: int = 0

    def spellings(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute path it may mean, `..` and links left in for the file system to resolve."""
        return spellings(self.path, self.directories, cwd, home)

    def sources(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute path that the source of a created link or tree may mean."""
        return spellings(self.source, self.directories, cwd, home)


ANY_FILE = FileUse("write", None)


def spellings(path: str | None, directories: tuple[str, ...], cwd: str, home: str | None) -> tuple[str, ...]:
    """Every absolute path that `path` may mean in these directories."""
    if path is None:
        return ()
    found: dict[str, None] = {}
    for directory in directories:
        joined = join(directory, path)
        if joined == "~" or joined.startswith("~/"):
            if home is None:
                return ()
            joined = home + joined[1:]
        found[join(cwd, joined)] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A whole line: the programs that it starts, the files that it opens (`redirections`), and those that it gives to
    programs which change files (`operands`). `dynamic` are the reasons why it is undecidable, `opaque` the programs
    that start something that it does not show. `evaluates` are texts that a shell evaluates and that may be code:
    listing an interpreter consents to that. `unparsed`: the grammar does not cover it, so it may open other files as
    well. `unread`: it was too large to be read completely, so it does not run under any bundle."""

    commands: tuple[SimpleCommand, ...]
    redirections: tuple[FileUse, ...]
    operands: tuple[FileUse, ...]
    dynamic: tuple[str, ...]
    opaque: tuple[Opaque, ...]
    evaluates: tuple[str, ...]
    unparsed: bool
    unread: bool
    variables: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[FileUse, ...]:
        """All files that the line names: those that it opens, and those that it passes to programs that change
        files."""
        return (*self.redirections, *(one for one in self.operands if one.mode != "make"))


def join(directory: str, path: str) -> str:
    """A path as seen from a directory; one from the root or from home is itself."""
    if not directory or path == "~" or path.startswith(("/", "~/")):
        return path
    return directory.rstrip("/") + "/" + path


_MAX_NAME = 256  # matching takes quadratic time for some names


class Opaque(NamedTuple):
    """A program, as spelled, that starts something that the line does not show: code `in_line`, or whatever a file
    names."""

    program: str
    what: str
    in_line: bool

    def __str__(self) -> str:
        if self.in_line:
            return f"code in the line: {self.program} {self.what}"
        return f"{self.program} starts what the line does not show: {self.what}"


class ShellText(NamedTuple):
    """Shell text that a command of the line runs; `is_own` if the line's own shell runs it, `is_postponed` if it does
    later, and `has_functions` if it has the line's functions then. `is_partial` if it contains `UNKNOWN` for parts
    known only at run time."""

    grammar: Grammar
    text: str
    is_own: bool = False
    is_postponed: bool = False
    has_functions: bool = False
    is_partial: bool = False


class Findings:
    """Findings about one line, in order: commands (words), reasons, and shell text that a command would run.
    `elsewhere`: a command runs in a directory that the line does not name. `input` is the visible input of the examined
    command; `is_called`: it is in a loop or a function, where its input may be set."""

    def __init__(self) -> None:
        self.commands: list[tuple[str | None, tuple[str | None, ...]]] = []
        self.dynamic: dict[str, None] = {}
        self.opaque: dict[Opaque, None] = {}
        self.scripts: list[ShellText] = []
        self.uses: dict[FileUse, None] = {}
        self.grammar: Grammar = "bash"
        self.functions: frozenset[str] = frozenset()
        self.evaluated = Evaluated()
        self.variables: dict[str, None] = {}
        self.elsewhere = False
        self.input: ShownText | None = None
        self.is_called = False
        self.effort = Effort()
        self.unread = self.unparsed = False
        self.evaluates: dict[str, None] = {}

    def undecidable(self, reason: str) -> None:
        """Notes why the line can't be decided."""
        self.dynamic[reason] = None

    def needs_interpreter(self, reason: str) -> None:
        """Notes that a shell evaluates text that may be code: whoever lists an interpreter consents to any code."""
        self.evaluates[reason] = None

    def misread(self, reason: str) -> None:
        """Notes that the grammar does not cover the text, so it may contain anything."""
        self.unparsed = True
        self.undecidable(reason)

    def give_up(self, reason: str) -> None:
        """Notes that the line was not looked at to its end, and which limit it has passed."""
        self.unread = True
        self.undecidable(reason)

    def refuse(self, problem: Unreadable) -> None:
        """Notes that the line was not read."""
        (self.give_up if isinstance(problem, TooMuch) else self.misread)(str(problem))

    def run_shown(self, shown: ShownText | None, grammar: Grammar, *, is_own: bool = False) -> bool:
        """Notes that a program runs shell text, of which the line shows this much; True if that is all of it."""
        if shown is not None:
            self.scripts.append(ShellText(grammar, shown.text, is_own=is_own, is_partial=not shown.is_whole))
        return shown is not None and shown.is_whole

    def mark_opaque(self, program: str, what: str, *, in_line: bool = False) -> None:
        """Notes that a program starts something that the line does not show."""
        self.opaque[Opaque(program, what, in_line)] = None


def check_assignment(name: str, found: Findings, value: str | None = None) -> None:
    """Notes an assignment to a variable that affects what runs. `value` is its text if known."""
    if len(name) > _MAX_NAME:
        found.undecidable(f"sets a variable whose name is longer than {_MAX_NAME} characters")
    elif STEERING_VARIABLE.fullmatch(name):
        found.undecidable(f"sets {name}, which steers programs")
    elif NUMBER_VARIABLE.fullmatch(name) and not (value or "").isdecimal():
        found.undecidable(f"sets {name}, whose text the shell evaluates")


def note_assigned(ones: list[Assigned], source: bytes, found: Findings) -> None:
    """Note those of these names that affect programs, and names known only at run time."""
    for one in ones:
        if one.name is None:
            found.undecidable("sets a variable whose name only the run knows")
        elif not one.is_function:
            check_assignment(one.name, found, None if one.value is None else text_of(source, one.value))
        elif one.name.isupper():
            check_assignment(one.name, found, "0")


def note_declared(text: str | None, prefix: str, found: Findings) -> None:
    """Notes a value that `declare` or its like is given: one in brackets is evaluated once more for an array."""
    if prefix.startswith("("):
        found.undecidable("a list in quotes, which is evaluated where it is assigned to an array")
    elif text is None:
        found.evaluated.has_lists = True


class FileCase(NamedTuple):
    """A program as spelled, its base name, its row and its arguments by that; `lead` are the words before a subcommand,
    `drives`: a path may begin with a drive letter."""

    program: str
    base: str
    row: Program
    given: Given
    lead: Given
    args: Sequence[Word]
    found: Findings
    drives: bool = False


_SPECIAL = re.compile(r"[*?\[{]")


def use_of(mode: Mode, word: Word, *, tree: bool = False) -> FileUse:
    """A word as the file that it names, or the files that it may."""
    if word.text is None and word.prefix == "/dev/fd/":
        return FileUse(mode, "/dev/null")  # a program of the line reads it, or writes it
    if word.text is not None:
        return FileUse(mode, word.text, word.tilde, tree)
    if word.pattern is None:
        directory = "".join(word.prefix.rpartition("/")[:2]) or "."
        return FileUse(mode, directory if word.globs else None, word.tilde, tree, "**" if word.globs else None)
    directory_of, pattern = split_pattern(word.pattern)
    return FileUse(mode, directory_of, word.tilde, tree, pattern)


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """The directory before the first special character, and the rest; None if the rest contains `..`."""
    special = _SPECIAL.search(pattern)
    directory = "".join(pattern[: special.start() if special else None].rpartition("/")[:2])
    rest = pattern[len(directory) :]
    goes_up = not {".", ".."}.isdisjoint(rest.split("/"))
    return None if goes_up else directory or ".", rest


# Limits on the work that one shell line may make: counts, never time, so that a line gets the same answer anywhere.
#
# The parser takes long for three things: each error that it gets over (up to 0.1 ms), text that it reads again and
# again (to the end, for each quote that might close there), and plain length. Errors are dear inside of brackets, so
# brackets are counted beforehand; the rest is counted while it parses, and it is stopped.


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
# The parser looks such a character up in a table of 256 entries and reads beyond its end:
# https://github.com/tree-sitter/tree-sitter-bash/issues/337
_BEYOND_THE_TABLE = re.compile(r"(?<=[{0-9.])[^\x00-\xff]")
_QUOTED = re.compile(r"""\\.|'[^']*'|"[^"\\$`]*"|(?<![^\s;&|()])#[^\n]*""", re.DOTALL)

_windows: list[bytearray] = []
"""Buffers in which the parser gets its text, one per parsing thread. They are reused, because the parser never releases
a buffer."""


class Unreadable(Exception):
    """The line contains something that is passed to no shell; the message names it."""


class TooMuch(Unreadable):
    """The line exceeds a limit, named by the message. It was not read, so it must not run."""


def admit(command: str) -> None:
    """Raises Unreadable for a line that is not read at all, whatever its shell."""
    if len(command) > MAX_CHARACTERS:
        raise TooMuch(f"the line is longer than {MAX_CHARACTERS} characters")
    if _UNREADABLE.search(command):
        raise Unreadable("the line has control characters, or halves of characters")


class Effort:
    """The work that one line and all lines inside it have made."""

    def __init__(self) -> None:
        self._lines = self._rounds = self._blocks = self._nodes = 0

    def tree(self, parser: Parser, command: str) -> tuple[bytes, Node]:
        """The text as bytes and the root of its tree. Raises Unreadable."""
        most = self._admit(command)
        source = command.encode()
        # As many bytes, and to a shell as plain a part of a word.
        plain = _BEYOND_THE_TABLE.sub(lambda one: {2: "é", 3: "éx", 4: "éé"}[len(one[0].encode())], command)
        given = plain.encode()
        if b"#$" in given:  # a sum evaluates the same variables
            source, given = (_BASE.sub(lambda one: b"0" * (len(one[0]) - 1) + b"+", text) for text in (source, given))
        window = _windows.pop() if _windows else bytearray()

        def read(place: int, _point: Point) -> bytearray:
            """The next block, up to a whole character; too much ends the text, or the parser stays in a loop."""
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
        """Counts everything that needs no parser. The rounds that it may take, including those of other lines."""
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


def blank_data(command: str) -> str:
    """The line without the text of plain quotes, comments and here-documents. It only serves to count."""
    kept, place, position = [], 0, 0
    for _ in range(_MAX_HEREDOCS):
        start = _HEREDOC.search(command, position)
        position = -1 if start is None else command.find("\n", start.end())
        if start is None or position < 0:
            break
        end = command.find(f"\n{start[2]}\n", position)
        if end < 0 and command.endswith(f"\n{start[2]}"):
            end = len(command) - len(start[2]) - 1
        if end >= 0 and (start[1] or not _EXPANDS.search(command, position, end)):
            kept.append(command[place:position])
            place = position = end
    kept.append(command[place:])
    return _QUOTED.sub("", "".join(kept))
