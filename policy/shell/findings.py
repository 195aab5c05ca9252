"""Findings of reading a shell line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from policy.shell.arithmetic import Evaluated
from policy.shell.limits import Effort
from policy.shell.tables import NUMBER_VARIABLE, STEERING_VARIABLE, Grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.programs.row import Program
    from policy.shell.options import Given
    from policy.shell.words import ShownText, Word


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One program that the line would start. None stands for what only expansion decides."""

    program: str | None
    arguments: tuple[str | None, ...] = ()
    directories: tuple[str, ...] = ("",)
    """Of a program that is a path: those that it may be relative to."""

    def places(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute spelling of the directory that holds a program which is a path; none for a bare name."""
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


@dataclass(frozen=True, slots=True)
class Redirection:
    """A file that the line opens. `path` is as written after quote removal (a leading `~` is the home directory), None
    where expansion decides it. `directories` are those it may be relative to: `cd` may have failed, so each counts."""

    path: str | None
    mode: Literal["read", "write"]
    directories: tuple[str, ...] = ("",)
    pattern: str | None = None
    """If the path is a directory: the pattern of the names that a loop found in it."""
    step: int = 0
    """After how many commands of the line it is opened."""

    def spellings(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute path it may mean, `..` and links left in for the file system to resolve."""
        return spellings(self.path, self.directories, cwd, home)


@dataclass(frozen=True, slots=True)
class Operand:
    """A file that a program of the line is given to change, or to copy. `path` and `directories` are as in
    `Redirection`. `pattern` is what a glob names below that path; `tree`: all that is below goes with it. `made`: a
    symbolic link is made there, or a tree whose links nobody knows, of `source` where that is named; of mode `make`
    that is all that is said. `step`: after how many commands of the line it is used; 0 in a loop, negative where others
    run beside it."""

    program: str
    path: str | None
    mode: Literal["read", "write", "delete", "make"]
    directories: tuple[str, ...] = ("",)
    tree: bool = False
    pattern: str | None = None
    made: Literal["", "link", "tree"] = ""
    source: str | None = None
    step: int = 0

    def spellings(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute path it may mean, as for a redirection."""
        return spellings(self.path, self.directories, cwd, home)

    def sources(self, cwd: str, home: str | None) -> tuple[str, ...]:
        """Every absolute path that the source of what is made may mean."""
        return spellings(self.source, self.directories, cwd, home)


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
    programs which change files (`operands`). `dynamic` says why it can't be decided, `opaque` which programs start
    what it does not show. `evaluates` says what of it a shell evaluates that may be code: who lists an interpreter
    consents to that.
    `unparsed`: it is not what the grammar knows, so it may open other files as well. `unread`: it was too much to be
    looked at to its end, so whatever the bundle says it is not run."""

    commands: tuple[SimpleCommand, ...]
    redirections: tuple[Redirection, ...]
    operands: tuple[Operand, ...]
    dynamic: tuple[str, ...]
    opaque: tuple[Opaque, ...]
    evaluates: tuple[str, ...]
    unparsed: bool
    unread: bool
    variables: tuple[str, ...] = ()
    """The variables that the line sets for a program."""

    @property
    def files(self) -> tuple[Redirection | Operand, ...]:
        """All files that the line names: what it opens, and what it gives to programs that change files."""
        return (*self.redirections, *(one for one in self.operands if one.mode != "make"))


def join(directory: str, path: str) -> str:
    """A path as seen from a directory; one from the root or from home is itself."""
    if not directory or path == "~" or path.startswith(("/", "~/")):
        return path
    return directory.rstrip("/") + "/" + path


_MAX_NAME = 256  # matching takes quadratic time for some names


class Opaque(NamedTuple):
    """A program, as it is spelled, that starts what the line does not show: code that stands in the line (`in_line`),
    or what some file or package has it run."""

    program: str
    what: str
    in_line: bool

    def __str__(self) -> str:
        if self.in_line:
            return f"code in the line: {self.program} {self.what}"
        return f"{self.program} starts what the line does not show: {self.what}"


class ShellText(NamedTuple):
    """Shell text that a command of the line runs; `is_own` where the shell of the line itself does, `is_postponed`
    where it does later, and `knows_functions` where it has the line's functions then. `is_partial` where `UNKNOWN`
    stands in it for what only the run knows."""

    grammar: Grammar
    text: str
    is_own: bool = False
    is_postponed: bool = False
    knows_functions: bool = False
    is_partial: bool = False


class Findings:
    """Findings about one line, in order: commands (words), reasons, and shell text that a command would run.
    `elsewhere`: a command runs in a directory that the line does not name. `input`: what the line shows of the input of
    the command that is looked at, which `is_called` in a loop or a function: then its input may be set there."""

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
        """Notes that the text is not what the grammar knows, so that anything may stand in it."""
        self.unparsed = True
        self.undecidable(reason)

    def give_up(self, reason: str) -> None:
        """Notes that the line was not looked at to its end, and which limit it has passed."""
        self.unread = True
        self.undecidable(reason)

    def run_shown(self, shown: ShownText | None, grammar: Grammar, *, is_own: bool = False) -> bool:
        """Notes that a program runs shell text, of which the line shows this much; True if that is all of it."""
        if shown is not None:
            self.scripts.append(ShellText(grammar, shown.text, is_own=is_own, is_partial=not shown.is_whole))
        return shown is not None and shown.is_whole

    def mark_opaque(self, program: str, what: str, *, in_line: bool = False) -> None:
        """Notes that a program starts what the line does not show."""
        self.opaque[Opaque(program, what, in_line)] = None


def check_assignment(name: str, found: Findings, value: str | None = None) -> None:
    """Notes an assignment to a variable that steers what runs. `value` is its text, where that is known."""
    if len(name) > _MAX_NAME:
        found.undecidable(f"sets a variable whose name is longer than {_MAX_NAME} characters")
    elif STEERING_VARIABLE.fullmatch(name):
        found.undecidable(f"sets {name}, which steers programs")
    elif NUMBER_VARIABLE.fullmatch(name) and not (value or "").isdecimal():
        found.undecidable(f"sets {name}, whose text the shell evaluates")


def note_declared(text: str | None, prefix: str, found: Findings) -> None:
    """Notes a value that `declare` or its like is given: one in brackets is evaluated once more for an array."""
    if prefix.startswith("("):
        found.undecidable("a list in quotes, which is evaluated where it is assigned to an array")
    elif text is None:
        found.evaluated.note_list()


# A file that a program is given, as a value, and how a word becomes one.

Mode = Literal["read", "write", "delete", "make"]
Made = Literal["", "link", "tree"]


class FileUse(NamedTuple):
    """A file that a program is given. `path` is None where only the run decides it, `tilde` where it starts with an
    unquoted `~`. For a glob it is the directory in front of the first special character, and `pattern` what follows,
    `**` where that cannot be said. `tree` where all that is below goes with it. `made`: a symbolic link is made there,
    or a tree of which nobody knows what links it holds, from `source` where that is named. Of mode `make` that is all
    that is said of it."""

    program: str
    mode: Mode
    path: str | None
    tilde: bool = False
    tree: bool = False
    pattern: str | None = None
    made: Made = ""
    source: str | None = None


class FileCase(NamedTuple):
    """A program as it is spelled, its base name, its row and its arguments by that; `lead` in front of a subcommand,
    `drives` where a path may begin with a drive's letter."""

    program: str
    base: str
    row: Program
    given: Given
    lead: Given
    args: Sequence[Word] = ()
    drives: bool = False


_SPECIAL = re.compile(r"[*?\[{]")


def use_of(mode: Mode, word: Word, *, tree: bool = False) -> FileUse:
    """A word as the file that it names, or the files that it may."""
    if word.text is None and word.prefix == "/dev/fd/":
        return FileUse("", mode, "/dev/null")  # a program of the line reads it, or writes it
    if word.text is not None:
        return FileUse("", mode, word.text, word.tilde, tree)
    if word.pattern is None:
        directory = "".join(word.prefix.rpartition("/")[:2]) or "."
        return FileUse("", mode, directory if word.globs else None, word.tilde, tree, "**" if word.globs else None)
    directory_of, pattern = split_pattern(word.pattern)
    return FileUse("", mode, directory_of, word.tilde, tree, pattern)


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """The directory in front of the first special character, and what follows; None where that goes up again."""
    special = _SPECIAL.search(pattern)
    directory = "".join(pattern[: special.start() if special else None].rpartition("/")[:2])
    rest = pattern[len(directory) :]
    goes_up = not {".", ".."}.isdisjoint(rest.split("/"))
    return None if goes_up else directory or ".", rest
