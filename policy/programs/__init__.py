"""Programs that policy knows, a row for each: the rows by the names of the programs, and the row of a spelled one."""

from __future__ import annotations

import re
from functools import lru_cache

from policy.names import strip_g, words
from policy.programs import code, files, network
from policy.programs.row import Program

PROGRAMS: dict[str, Program] = {**files.ROWS, **network.ROWS, **code.ROWS}
_VERSION = "0123456789."
_CROSS_TOOL = re.compile(
    r"^[a-z0-9_]+(?:-[a-z0-9_]+){1,3}-(?=(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran|ld|ar|nm|strip)$)"
)
"""What stands in front of the name of a compiler for another machine."""
_BUILD = re.compile(r"(python|pypy|perl|ruby|php|lua)w?[0-9][0-9.]*(?:[a-z]{1,2}|[-_].+)|(python)-dbg")
"""Debug and other builds of interpreters: `python3.12t`, `python3-dbg`, `perl5.36-x86_64-linux-gnu`."""
_OTHER_NAMES = {"php-cgi": "php", "phpdbg": "php", "texlua": "lua"}


@lru_cache(maxsize=256)
def base_name(program: str) -> str:
    """A program's name without its directory, in lower case, and without the `g` that some systems put in front."""
    return strip_g(program.rsplit("/", 1)[-1].casefold())


@lru_cache(maxsize=256)
def family_of(base: str) -> str:
    """The name that the table has for a base name: as it is, or without version and the machine it compiles for."""
    if base in PROGRAMS:
        return base
    build = _BUILD.fullmatch(base)
    family = (build[1] or build[2]) if build else base.rstrip(_VERSION).removesuffix("-") or base
    family = _CROSS_TOOL.sub("", family)
    return _OTHER_NAMES.get(family, family)


def program_named(base: str) -> Program | None:
    """The row of a program by its base name; None for one that is not known."""
    if base.startswith("ld-"):  # the dynamic loader, whatever its version
        return Program("somewhere")
    return PROGRAMS.get(family_of(base))


def is_known(program: str) -> bool:
    """True for a program that has a row, and for a builtin."""
    base = base_name(program)
    return base in _BUILTINS or program_named(base) is not None


def what_it_starts(program: str) -> str | None:
    """Describe what allowing a program also allows: the code and the programs that it starts by itself. None for one
    that starts nothing of the kind, or whose line names what it starts (`env`, `xargs`)."""
    base = base_name(program)
    if base in {"eval", "source", "."}:
        return "any command line"
    row = program_named(base)
    if row is None:
        return None if is_known(program) else "it is not known here, and may start anything"
    if base in {"npx", "uvx", "bunx"}:
        return "any program"
    return row.what or _STARTS.get(row.starts)


_STARTS = {
    "shell": "any command line",
    "unread shell": "any command line",
    "code": "any code",
    "language": "any program",
}
_BUILTINS = words(
    "alias eval source . bg bind break builtin caller cd command compgen complete continue declare dirs disown "
    "enable exec exit export fc fg getopts hash history jobs let local logout mapfile popd pushd pwd read readarray "
    "readonly return set shift shopt suspend test times trap type typeset ulimit umask unalias unset wait : ["
)
"""What a shell runs itself."""
