"""A whole line put together: its commands and files in the order of the text, and those of the lines that it hands to
other shells, with the directories in which they may be."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from policy.shell.effects import expand_wrappers
from policy.shell.findings import (
    FileUse,
    Findings,
    ParsedCommand,
    SimpleCommand,
    TooMuch,
    Unreadable,
    admit,
    join,
    split_pattern,
)
from policy.shell.shown import UNKNOWN
from policy.shell.syntax import ParsedWords, Redirect, scan
from policy.shell.tables import DIRECTORY_BUILTINS
from policy.shell.undecidable import note_zsh_arguments, note_zsh_differences, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.facts import ShellName
    from policy.shell.findings import Mode, ShellText
    from policy.shell.tables import Grammar

MAX_COMMANDS = 4_000
_MAX_INNER_SHELLS = 8
_MAX_DIRECTORIES = 8
_MAX_PATH = 4_096
_MAX_SPELLED = 64 * 1024  # characters of all paths that a line may open, in all their possible directories
_SPELLED_LEAST = 128
_DESCRIPTOR, _DESCRIPTOR_OR_MOVED = re.compile(r"[0-9]+|-"), re.compile(r"[0-9]+-?|-")
"""Targets of `>&` and `<&` that are no files; to zsh `1-` is one."""
_HARMLESS_FILES = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr"})
_AT_ONCE = re.compile(r"(?<![&>|<])[&|](?![&|>0-9-])|[<>]\(|\bcoproc\b")
"""Syntax for parts that run concurrently with what precedes them."""
_NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")


class Reader:
    """Puts the scan of a line, and of the lines that it hands to other shells, together."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.found = Findings()
        self.redirections: list[FileUse] = []
        self.operands: list[FileUse] = []
        self.commands: list[SimpleCommand] = []
        self.directories: tuple[str, ...] = ("",)
        self.lost_from: tuple[int, int] | None = None
        self.moves = 0
        self.postponed = False
        self.spelled = 0

    def result(self) -> ParsedCommand:
        """All that was read."""
        redirections, operands = tuple(self.redirections), tuple(self.operands)
        # What functions and traps run, they run in any of the directories that the line goes to.
        if self.moves and (self.postponed or self.found.functions):
            self.lost_from = (0, 0)
        lost, lost_operands = self.lost_from or (len(redirections), len(operands))
        if any(not _is_fixed(one.path) for one in redirections[lost:]):
            self.found.undecidable("a relative redirection after a change of directory that is not followed")
        redirections = (*redirections[:lost], *map(_lose_directory, redirections[lost:]))
        operands = (*operands[:lost_operands], *map(_lose_directory, operands[lost_operands:]))
        found = self.found
        if found.evaluated.may_run_code():
            found.undecidable("text that is evaluated and may hold a substitution, which is then run")
        if len(found.commands) > MAX_COMMANDS:
            found.give_up(f"the line has more than {MAX_COMMANDS} commands")
        if not self.commands:
            self.commands = [SimpleCommand(name, arguments) for name, arguments in found.commands]
        if self.lost_from == (0, 0):
            self.commands = [one._replace(directories=()) if one.is_relative else one for one in self.commands]
        return ParsedCommand(
            tuple(self.commands), redirections, operands, tuple(found.dynamic), tuple(found.opaque),
            tuple(found.evaluates), found.unparsed, found.unread, tuple(found.variables),
        )  # fmt: skip

    def read_windows(self, text: str, shell: ShellName) -> None:
        """Reads a line of cmd.exe or PowerShell."""
        try:
            admit(text)
            if len(text.split()) > MAX_COMMANDS:
                raise TooMuch(f"the line has more than {MAX_COMMANDS} words")
        except Unreadable as problem:
            self.found.refuse(problem)
        else:
            split(text, shell, self.found)

    def read(
        self,
        text: str,
        grammar: Grammar,
        depth: int,
        functions: frozenset[str] = frozenset(),
        *,
        is_own: bool = False,
        repeats: bool = False,
    ) -> None:
        """Reads the line (`depth` 0), or one that it hands to a shell; `is_own` for a text that the shell around it
        runs itself, and `functions` are those of it that are certain to be there; `repeats` for a text in a loop."""
        found = self.found
        found.grammar = grammar
        environment = None if depth or grammar == "zsh" else self.environment
        posix, learns = grammar == "posix", not is_own and grammar != "zsh"
        events = scan(text, found, posix=posix, environment=environment, learns=learns, functions=functions)
        if grammar == "zsh" and not found.unread:
            note_zsh_differences(text, found)
        chains: dict[int, _Chain] = {}
        starts = [(-1, len(found.commands))]
        for event in events:
            if len(found.commands) > MAX_COMMANDS:
                break  # `result` reports it
            if not isinstance(event, ParsedWords):
                self._redirect(event, max(step for at, step in starts if at < event.start))
                continue
            if event.is_own:
                continue
            first = len(found.commands)
            starts.append((event.start, first + 1))
            found.input, found.is_called = event.input, event.repeats
            expand_wrappers(event.words, found)
            if found.elsewhere:
                found.elsewhere = False
                self._lose((len(self.redirections), len(self.operands)))
            if found.uses:
                self._note_operands(0 if repeats or event.repeats else first + 1, text)
            for name, arguments in found.commands[first:]:
                self.commands.append(SimpleCommand(name, arguments, self._directories_of(name)))
                self._directory(name, arguments, repeats or event.repeats, chains, event.chain)
                if grammar == "zsh":
                    note_zsh_arguments(name, arguments, found)
            scripts, found.scripts = found.scripts, []
            for script in scripts:
                self._script(script, event, depth, repeats=repeats or event.repeats)
                found.grammar = grammar

    def _script(self, script: ShellText, event: ParsedWords, depth: int, *, repeats: bool) -> None:
        if depth >= _MAX_INNER_SHELLS:
            self.found.give_up("shells inside shells")
        elif script.is_partial:
            self._read_partly(script, depth + 1)
        else:
            own = event.functions if script.has_functions else frozenset()
            self.postponed = self.postponed or script.is_postponed
            self.read(script.text, script.grammar, depth + 1, own, is_own=script.is_own, repeats=repeats)

    def _read_partly(self, script: ShellText, depth: int) -> None:
        """Takes the programs and files of a text that is partly known only at run time."""
        inner = Reader({})
        inner.found.effort = self.found.effort
        inner.read(script.text, script.grammar, depth)
        parsed = inner.result()
        if parsed.unread:
            self.found.give_up(parsed.dynamic[-1])
        for one in parsed.commands:
            if one.program is not None and UNKNOWN not in one.program:
                self.found.commands.append((one.program, one.arguments))
                self.commands.append(SimpleCommand(one.program, one.arguments, self._directories_of(one.program)))
        directories = self.directories if self.lost_from is None else ()
        for files, read in ((self.redirections, parsed.redirections), (self.operands, parsed.operands)):
            files += [
                one._replace(directories=_join_directories(directories, one.directories))
                for one in read
                if one.path is not None and (directories or _is_fixed(one.path))
            ]

    def _lose(self, position: tuple[int, int]) -> None:
        """From these redirections and operands on the directory is unknown."""
        self.lost_from = min(self.lost_from or position, position)

    def _directories_of(self, program: str | None) -> tuple[str, ...]:
        if program is None or "/" not in program or program[0] in "/~":
            return ("",)
        return self.directories if self.lost_from is None else ()

    def _note_operands(self, step: int, text: str) -> None:
        uses, self.found.uses = self.found.uses, {}
        if any(use.made for use in uses) and _AT_ONCE.search(text):
            step = -step
        for use in uses:
            path = use.path
            if path is not None and path.startswith("~") and not use.tilde:
                path = "./" + path
            elif use.tilde and path is not None and path != "~" and not path.startswith("~/"):
                path = None
            if path in _HARMLESS_FILES or path == "":
                continue
            self._count(path)
            self.operands.append(use._replace(path=path, tilde=False, directories=self.directories, step=step))

    def _count(self, path: str | None) -> bool:
        """Counts the characters of a path in all its directories; False if they exceed the limit."""
        self.spelled += sum(_SPELLED_LEAST + len(directory) + len(path or "") for directory in self.directories)
        if self.spelled > _MAX_SPELLED:
            self.found.give_up("the line opens more files than are followed")
        return self.spelled <= _MAX_SPELLED

    def _redirect(self, event: Redirect, step: int) -> None:
        operator, target, text, grammar = event.operator, event.target, event.target.text, self.found.grammar
        if grammar == "zsh" and event.alone:
            self.found.undecidable("a redirection without a command, for which zsh starts one")
        descriptor = _DESCRIPTOR if grammar == "zsh" else _DESCRIPTOR_OR_MOVED
        if operator in {">&", "<&"} and text is not None and descriptor.fullmatch(text):
            return
        if operator not in {">", ">>", ">|", "&>", "&>>", ">&", "<"}:
            self.found.undecidable(f"a redirection that is not followed: {operator}")
        pattern: str | None = None
        if text is None and target.outside and target.pattern is not None and not target.tilde:
            text, pattern = split_pattern(target.pattern)
        if text is None:
            self.found.undecidable("a redirection to an expansion")
        elif text.startswith("~") and not target.tilde:
            text = "./" + text
        elif target.tilde and text != "~" and not text.startswith("~/"):
            self.found.undecidable("a redirection to somebody's home directory")
            text = None
        elif text.startswith(_NETWORK_FILES):
            self.found.undecidable("a redirection that opens a network connection")
        if text in _HARMLESS_FILES:
            return
        if self._count(text):
            mode: Mode = "read" if operator == "<" else "write"
            self.redirections.append(FileUse(mode, text, pattern=pattern, directories=self.directories, step=step))

    def _directory(
        self,
        name: str | None,
        arguments: tuple[str | None, ...],
        repeats: bool,
        chains: dict[int, _Chain],
        chain: int,
    ) -> None:
        """Follows `cd` as far as every outcome can be listed. After `cd a &&` it starts in `a`, unless something else
        has changed the directory since."""
        if name not in DIRECTORY_BUILTINS:
            return
        words = arguments[1:] if arguments[:1] == ("--",) else arguments
        target = "~" if not words else words[0]
        before = chains.get(chain)
        start = before.directories if before is not None and before.moves == self.moves else self.directories
        follows = not repeats and name in {"cd", "chdir"} and len(words) <= 1
        moved = _move(start, target) if follows else None
        self.moves += 1
        found = tuple(dict.fromkeys((*self.directories, *(moved or ()))))
        if moved is None or len(found) > _MAX_DIRECTORIES:
            self._lose((0, 0) if repeats else (len(self.redirections), len(self.operands)))
            return
        self.directories = found
        chains[chain] = _Chain(moved, self.moves)


def _join_directories(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    """The directories of an inner line, seen from those of the line around it."""
    return tuple(dict.fromkeys(join(one, two) if two else one for one in outer or ("",) for two in inner))


class _Chain(NamedTuple):
    """The directories of a chain of commands if all so far succeeded, and the changes of directory until then."""

    directories: tuple[str, ...]
    moves: int


def _move(directories: tuple[str, ...], target: str | None) -> tuple[str, ...] | None:
    """The directories that `cd` leads to from these; None if unknown."""
    if not target or target.startswith("-"):
        return None
    joined = [join(directory, target) for directory in directories]
    if any(len(path) > _MAX_PATH or (path.startswith("~") and ".." in path.split("/")) for path in joined):
        return None
    # A shell removes `a/..` as text, or follows the link that `a` may be: both are possible.
    as_text = [posixpath.normpath(path) for path in joined if ".." in path.split("/")]
    return tuple(dict.fromkeys((*joined, *("" if path == "." else path for path in as_text))))


def _lose_directory(one: FileUse) -> FileUse:
    """The file with an unknown directory, unless its path starts at the root or at home."""
    return one if _is_fixed(one.path) else one._replace(path=None)


def _is_fixed(path: str | None) -> bool:
    return path is None or path.startswith(("/", "~"))
