"""Interpreters: what they are given to run is code, in the line or in a file."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word

_CODE = re.compile(r"-(?![WX])[A-Za-z0-9]*?[ceEpr]|--(?:eval|print|run|exec|execute)\b|-\Z")
"""Options of one interpreter or another whose value is code. Only the message about the line depends on this."""
INTERPRETERS = words(
    "python pythonw pypy py micropython jython graalpy bpython ptpython ipython perl ruby node nodejs tsx ts-node php "
    "lua luajit rscript julia elixir groovy scala"
)
"""By base name in lower case, without a version number."""

_BUILD = re.compile(r"(python|pypy|perl|ruby|php|lua)w?[0-9][0-9.]*(?:[a-z]{1,2}|[-_].+)|(python)-dbg")
_PYTHONS = words("python pythonw pypy py micropython jython graalpy bpython ptpython")
_MODULE = re.compile(r"-[bBdEhIOPqRsSuvx]*m(.*)")
_VALUED = words("-W -X --check-hash-based-pycs")
_PROGRAMS = words("pip pipx poetry pipenv pdm uv hatch rye conda dotenv honcho ansible snakemake cmake ninja")
"""Packages whose module is the program of the same name."""
_ASKS = words("--version --help -V -v -h")


class Module(NamedTuple):
    """A program that Python starts as a module, and its arguments."""

    program: str
    args: list[Word]


def started_module(family: str, args: list[Word]) -> Module | None:
    """The program behind `python -m`, where it is one that is known by its name; `family` is the interpreter's."""
    if interpreter_of(family) not in _PYTHONS:
        return None
    for place, word in enumerate(args):
        if word.text is None:
            return None
        module = _MODULE.fullmatch(word.text)
        if module is not None:
            rest = args[place + 1 :]
            name = module[1] or (rest.pop(0).text if rest else None)
            package = name.partition(".")[0].casefold() if name else None
            return Module(package, rest) if package in _PROGRAMS else None
        if not word.text.startswith("-") and not (place and args[place - 1].text in _VALUED):
            return None
    return None


def judge_interpreter(program: str, family: str, args: list[Word], found: Findings) -> None:
    """Notes what an interpreter (`family` is its base name without version) is given to run."""
    if interpreter_of(family) is None or (len(args) == 1 and args[0].text in _ASKS):
        return
    if not args:
        found.mark_opaque(program, "what it reads", in_line=True)
    for word in args:
        code = "…" if word.text is None else _CODE.match(word.text)
        if code is not None:
            found.mark_opaque(program, code if isinstance(code, str) else code[0], in_line=True)
            return
        if not (word.text or "").startswith("-"):
            break
    if args:
        found.mark_opaque(program, "the code in a file or a module")


@lru_cache(maxsize=128)
def interpreter_of(family: str) -> str | None:
    """The interpreter's plain name. Debug and other builds have names of their own: `python3.12t`, `python3-dbg`,
    `perl5.36-x86_64-linux-gnu`."""
    build = _BUILD.fullmatch(family)
    name = (build[1] or build[2]) if build else family
    return name if name in INTERPRETERS else None
