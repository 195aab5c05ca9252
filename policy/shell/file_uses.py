"""A file that a program is given, as a value, and how a word becomes one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.programs.row import Program
    from policy.shell.options import Given
    from policy.shell.words import Word

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
