"""Interpreters that take code from the line or from their input, in place of a file that the line names."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word


class Interpreter(NamedTuple):
    """How its own arguments end. `code`: options that bring code, or make it read some. `valued`: options whose value
    is the next word. `flags`: options without one. `asks`: options with which it reads nothing from its input. Behind
    an option that is none of these nothing is taken for the script. Patterns are text: few of them are ever needed."""

    code: str
    valued: frozenset[str] = frozenset()
    flags: str = r"(?!)"
    asks: str = r"--version|--help"


_PYTHON_FLAGS = "[bBdEhIOPqRsSuvx]*"
_JAVASCRIPT = Interpreter(
    r"-[ep].*|-i|-|--eval.*|--print.*|--interactive|--import.*|--(?:experimental-)?loader.*|--run.*|inspect|debug|repl",
    words("-r --require -C --conditions"),
    r"--[a-z0-9-]+=.*|--(?:no|trace|enable)-[a-z-]+|--watch|-c|--check",
    r"-v|-h|--version|--help|--v8-options|--test",
)
_LUA = Interpreter(r"-e.*|-i|-", frozenset({"-l"}), r"-[EW]", r"-v")

INTERPRETERS: dict[str, Interpreter] = {
    **dict.fromkeys(
        ("python", "pythonw", "pypy", "py", "micropython", "jython", "graalpy", "bpython", "ptpython"),
        Interpreter(
            rf"-{_PYTHON_FLAGS}[ci].*|-",
            words("-W -X --check-hash-based-pycs"),
            r"-[bBdEIOPqRsSuvx]+|-[WX].+|-[23][0-9.-]*|-V:.+",
            r"-V+|-h|-\?|--version|--help(?:-[a-z]+)?",
        ),
    ),
    "perl": Interpreter(
        r"-[A-Za-z0-9.]*[eEdMmFS].*|-[^-I].*\s-.*|-x.*|-",
        frozenset({"-I"}),
        r"-[wWtTnplasuUcX0-9]+|-I.+|-i[.A-Za-z~]*",
        r"-v|-V.*|-h|--version|--help",
    ),
    "ruby": Interpreter(
        r"-[A-Za-z0-9.]*[exS].*|-",
        words("-I -r -E -C"),
        r"-[wWvnplasc]+|-[IrEKW].+|--(?:enable|disable)[=-].+",
        r"-v|-h|--version|--help|--copyright",
    ),
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node"), _JAVASCRIPT),
    "php": Interpreter(
        r"-[rRBEdaS].*|--run.*|--process-.*|--interactive|--define.*|--server.*|-",
        words("-c -f -z -t"),
        r"-[nCHlsw]+",
        r"-v|-h|-m|-i|--version|--help|--ini|-f",
    ),
    **dict.fromkeys(("lua", "luajit"), _LUA),
    "rscript": Interpreter(r"-e.*|-", flags=r"--.*"),
    "julia": Interpreter(r"-[eEiL].*|--eval.*|--print.*|--load.*|-", flags=r"--[a-z-]+=.*"),
    "elixir": Interpreter(r"-e.*|--eval.*|--rpc-eval.*|-S.*|-"),
    "groovy": Interpreter(r"-e.*|-"),
    "scala": Interpreter(r"-e.*|-"),
    "ipython": Interpreter(r"-c.*|-i|--.*|-"),
}
"""By base name in lower case, without a version number."""

_BUILD = re.compile(r"(python|pypy|perl|ruby|php|lua)w?[0-9][0-9.]*(?:[a-z]{1,2}|[-_].+)|(python)-dbg")
_MODULE = re.compile(rf"-{_PYTHON_FLAGS}m(.*)")
_CODE_MODULES = words(
    "timeit pdb cProfile profile trace runpy code codeop idlelib asyncio IPython ptpython bpython "
    "ipykernel ipykernel_launcher memory_profiler line_profiler kernprof tox nox invoke pre_commit scons SCons doit "
    "debugpy pydevd pudb ipdb pyinstrument scalene viztracer build xonsh watchdog mesonbuild jupyter webbrowser "
    "_pyrepl pyperf watchfiles"
)
"""Packages whose modules take code from the line or their input, or start what their own files list."""
_PROGRAMS = words("pip pipx poetry pipenv pdm uv hatch rye conda dotenv honcho ansible snakemake cmake ninja")
"""Packages whose module is the program of the same name."""
_TAKES_MODULES = words("coverage viztracer scalene memray")
"""What runs a module that stands behind its own `-m`."""
_INPUT_FILES = re.compile(r"/+(?:\./+)*(?:dev|proc)(?:/.*)?|(?:.*/)?(?:stdin|(?:fd/+)?[0-9]+)", re.DOTALL)
"""Its input, or what may be: from another directory `fd/0`, or `0` alone."""


class Module(NamedTuple):
    """A program that Python starts as a module, and its arguments."""

    program: str
    args: list[Word]


def started_module(family: str, args: list[Word]) -> Module | None:
    """The program behind `python -m`, where it is one that is known by its name; `family` is the interpreter's."""
    if _interpreter(family) is not INTERPRETERS["python"]:
        return None
    valued = INTERPRETERS["python"].valued
    for place, word in enumerate(args):
        if word.text is None:
            return None
        module = _MODULE.fullmatch(word.text)
        if module is not None:
            rest = args[place + 1 :]
            name = module[1] or (rest.pop(0).text if rest else None)
            package = name.partition(".")[0].casefold() if name else None
            return Module(package, rest) if package in _PROGRAMS else None
        if not word.text.startswith("-") and not (place and args[place - 1].text in valued):
            return None
    return None


def judge_interpreter(program: str, family: str, args: list[Word], found: Findings) -> None:
    """Notes code that an interpreter (`family` is its base name without version) is given or reads. A script that is
    named is a file, like the program itself."""
    interpreter = _interpreter(family)
    if interpreter is None:
        if family in _TAKES_MODULES and _module_is_code(args):
            found.hide(program, "-m …", in_line=True)
        return
    what = _code(interpreter, args)
    if what is not None:
        found.hide(program, what, in_line=True)


@lru_cache(maxsize=128)
def _interpreter(family: str) -> Interpreter | None:
    """Debug and other builds have names of their own: `python3.12t`, `python3-dbg`, `perl5.36-x86_64-linux-gnu`."""
    build = _BUILD.fullmatch(family)
    return INTERPRETERS.get((build[1] or build[2]) if build else family)


def _code(interpreter: Interpreter, args: list[Word]) -> str | None:
    sure, asked, place = True, False, 0
    while place < len(args):
        text = args[place].text
        if text is None:
            # Whatever it expands to, its first word starts with what stands before the expansion.
            prefix = args[place].prefix
            return "…" if not prefix or prefix.startswith("-") or _INPUT_FILES.fullmatch(prefix) else None
        module = _MODULE.fullmatch(text) if interpreter is INTERPRETERS["python"] else None
        if module is not None:
            return _module(module[1], args[place + 1 :])
        if re.fullmatch(interpreter.code, text, re.DOTALL) or _INPUT_FILES.fullmatch(text):
            return text
        asked = asked or re.fullmatch(interpreter.asks, text) is not None
        if text in interpreter.valued:
            place += 1
            if place < len(args) and args[place].is_several:
                return "…"
        elif not text.startswith("-"):
            if sure:
                return None
        elif not asked and not re.fullmatch(interpreter.flags, text):
            sure = False
        place += 1
    named = any(word.text is None or not word.text.startswith("-") for word in args)
    return None if asked or (not sure and named) else "what it reads"


def _module(joined: str, rest: list[Word]) -> str | None:
    name, args = (joined, rest) if joined else (rest[0].text if rest else None, rest[1:])
    if name is None:
        return "-m …"
    package = name.partition(".")[0]
    if package in _CODE_MODULES or (package in _TAKES_MODULES and _module_is_code(args)):
        return f"-m {name}"
    return None


def _module_is_code(args: list[Word]) -> bool:
    """Whether a module behind `-m`, joined to it or not, takes code, or may do."""
    in_front = takewhile(lambda word: word.text is None or word.text == "run" or word.text.startswith("-"), args)
    if any(word.may_be_option for word in in_front):
        return True
    names = [two.text for one, two in pairwise(args) if one.text == "-m"]
    names += [one.text and one.text[2:] for one in args if one.prefix.startswith("-m")]
    return any(name is None or name.partition(".")[0] in _CODE_MODULES for name in names)
