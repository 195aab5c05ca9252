"""Shell lines as values: every command in a line, what it redirects, and why a line can't be decided (AH 8.4).

The analysis answers for the whole line or says in `dynamic` why it can't; there is no limit behind which a part goes
unlooked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from policy.facts import CommandFacts, ShellName
    from policy.shell.findings import Opaque


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
    """Where the path is a directory: what it is that a loop has found there."""
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


Environment = tuple[tuple[str, str], ...]
"""Names of variables and what they hold, in order of the names."""


@lru_cache(maxsize=32)
def parse(command: str, shell: ShellName = "bash", environment: Environment = ()) -> ParsedCommand:
    """Read a line: the commands that it would run. Never raises for any text; the last few lines are remembered.
    `environment` has what is known of the variables that it reads."""
    from policy.shell.reader import Reader  # with it comes all that reads lines

    reader = Reader(dict(environment))
    if shell in {"cmd", "powershell"}:
        reader.read_windows(command, shell)
        return reader.result()
    reader.read(command, "posix" if shell == "sh" else "zsh" if shell == "zsh" else "bash", 0)
    return reader.result()


def parse_line(facts: CommandFacts) -> ParsedCommand:
    """The line of a call, with what is known of its environment."""
    return parse(facts.command, facts.shell, tuple(sorted(facts.environment.items())))


def paths_in_line(parsed: ParsedCommand, cwd: str, home: str | None) -> tuple[str, ...]:
    """Absolute spellings of every file that the line opens or hands to a program that changes files, and of the
    directory of each program that is a path. The caller resolves each with the file system (`..` after links, so not
    by spelling) and puts spelling → real path into `CommandFacts.real_paths`."""
    found: dict[str, None] = {}
    for one in parsed.files:
        found.update(dict.fromkeys(one.spellings(cwd, home)))
    for made in parsed.operands:
        for source in made.sources(cwd, home):
            found.update(dict.fromkeys((source, _parent(source))))
    for command in parsed.commands:
        found.update(dict.fromkeys(command.places(cwd, home)))
    return tuple(found)


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


def is_link(facts: CommandFacts, path: str) -> bool:
    """True for a spelling whose last name may be a symbolic link."""
    real, above = facts.real_paths.get(path), facts.real_paths.get(_parent(path))
    name = path.rstrip("/").rpartition("/")[2]
    if name in {"", ".", ".."}:
        return False
    return real is None or above is None or real.rstrip("/") != f"{above.rstrip('/')}/{name}"


def real_path_of(facts: CommandFacts, spelling: str) -> str | None:
    """The real path of a spelling, None if nobody looked."""
    return facts.real_paths.get(spelling)


def join(directory: str, path: str) -> str:
    """A path as seen from a directory; one from the root or from home is itself."""
    if not directory or path == "~" or path.startswith(("/", "~/")):
        return path
    return directory.rstrip("/") + "/" + path
