"""What arguments make of a program: options that run or write something else, code in the line, evaluated names."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from policy.names import without_g
from policy.shell import tables as tables
from policy.shell.assigned import assigned_by_builtin, note_assigned
from policy.shell.code import judge_interpreter, started_module
from policy.shell.findings import Findings, check_assignment, note_declared
from policy.shell.long_options import may_mean
from policy.shell.starters import STARTERS, judge_starter
from policy.shell.words import Word

_VERSION = "0123456789."
_NOTHING = re.compile(r"(?!)")
_AWK_RISKY = re.compile(r"system|getline|@|\|")
_AWK_PATTERN = re.compile(r"\A\s*(?:\$[0-9A-Za-z]+\s*!?~)?\s*!?\s*/(?!=)(?:[^\[\\/\n]|\\[^\n])*/")
"""A regular expression with which an awk program starts. It has no brackets, so all awks see its end in one place."""
_TAR_VALUED = frozenset("bfgCFHIKLNTVX")


def judge_arguments(program: str, args: list[Word], found: Findings, base: str | None = None) -> None:
    """Notes what a program is made to do by its arguments. `program` is as it is spelled; its letter case says little,
    for there are file systems that ignore it. `base` is its base name where that is not POSIX's."""
    on_windows = base is not None
    base = base_name(program) if base is None else base
    family = family_of(base)
    judge_starter(program, base if base in STARTERS else family, args, found)
    judge_interpreter(program, family, args, found)
    module = started_module(family, args)
    if module is not None:
        judge_starter(program, module.program, module.args, found)
    if family in tables.RISKY_OPTIONS or family in tables.LONG_OPTIONS:
        _options(family, args, found)
    if family == "tar":
        _tar(args, found, drives=on_windows)
    judge = _ARGUMENT_JUDGES.get(family)
    if judge is not None:
        judge(base, args, found)


@lru_cache(maxsize=128)
def base_name(program: str) -> str:
    """A program's name without its directory, in lower case, and without the `g` that some systems put in front."""
    return without_g(program.rsplit("/", 1)[-1].casefold())


@lru_cache(maxsize=128)
def family_of(base: str) -> str:
    """The name that the tables know a program by: without version and the machine that it compiles for, one for those
    that take the same arguments."""
    family = base.rstrip(_VERSION).removesuffix("-") or base
    family = tables.CROSS_TOOL.sub("", family)
    return tables.SAME_PROGRAM.get(family, family)


def _one_line(text: str) -> str:
    """For patterns whose `.` matches no line break: an option with one in its value is the same option."""
    return text.replace("\n", " ")


def _options(base: str, args: list[Word], found: Findings) -> None:
    risky, starting = tables.RISKY_OPTIONS.get(base, _NOTHING), tables.RISKY_WORDS.get(base, frozenset())
    names, whole = tables.LONG_OPTIONS.get(base, ()), tables.WHOLE_NAMES.get(base, frozenset())
    for place, word in enumerate(args):
        text = word.text
        if text is not None and base == "tar" and place == 0 and not text.startswith("-"):
            text = "-" + text
        if text is None:
            if base in STARTERS:
                continue  # who lists it consents to what it starts
            becomes = bool(word.prefix or not word.outside) and any(one.startswith(word.prefix) for one in starting)
            if word.may_be_option or becomes or risky.fullmatch(_one_line(word.prefix)):
                found.undecidable(f"{base} is given an expansion that may become an option")
        elif text in starting or risky.fullmatch(_one_line(text)) or may_mean(text, names, whole):
            found.undecidable(f"{base} {word.text} runs or writes something else")


def _tar(args: list[Word], found: Findings, *, drives: bool) -> None:
    """GNU tar starts a remote shell for an archive whose name has a colon before any slash. Each word that may be the
    archive's name is looked at: behind a cluster of letters as many as these take."""
    if any(word.text == "--force-local" for word in args):
        return
    awaited = 0
    for place, word in enumerate(args):
        text = word.prefix if word.text is None else word.text
        names = [text] if awaited > 0 else []
        awaited = max(awaited - 1, 0)
        if text.startswith("--"):
            _, assigns, value = text.partition("=")
            if may_mean(text, ("file",)):
                names.append(value)
                awaited = max(awaited, 0 if assigns else 1)
        elif (place == 0 or text.startswith("-")) and "f" in text:
            names.append(text.partition("f")[2])
            awaited = max(awaited, sum(letter in _TAR_VALUED for letter in text))
        if any(_is_remote(name, whole=word.text is not None, drives=drives) for name in names):
            found.undecidable("tar is given an archive that may be on another machine")


def _is_remote(name: str, *, whole: bool, drives: bool) -> bool:
    head, slash, _ = name.partition("/")
    if drives and re.match(r"[A-Za-z]:\\|[A-Za-z]:\Z", head):
        return False
    return ":" in head or not (whole or slash)


def _sed(base: str, args: list[Word], found: Findings) -> None:
    from policy.shell.sed import judge_sed  # its patterns are large

    judge_sed(base, args, found)


def _awk(base: str, args: list[Word], found: Findings) -> None:
    rest = list(args)
    while rest:
        text = rest.pop(0).text
        if text in {"-F", "-v"} and rest and not rest[0].is_several:
            rest.pop(0)
        elif text is not None and re.match(r"-[Fv].", text):
            continue
        elif text is None or text.startswith("-"):
            found.undecidable(f"{base} is given a program that is not in the line")
            return
        else:
            text = _AWK_PATTERN.sub("", text)
            if _AWK_RISKY.search(text.replace("||", " ")) or -1 < text.find("print") < text.rfind(">"):
                found.undecidable(f"{base} is given a program that may run or write something")
            return


def _git(base: str, args: list[Word], found: Findings) -> None:
    from policy.shell.git import judge_git  # its patterns are large

    judge_git(base, args, found)


def _naming(base: str, args: list[Word], found: Findings) -> None:
    """Builtins that take a variable's name: a subscript in it is evaluated, and evaluation runs substitutions."""
    if base == "wait" and not any(word.prefix.startswith("-") for word in args):
        return
    if base in {"mapfile", "readarray"}:
        found.evaluated.has_arrays = True
    flags = tables.NAMING_FLAGS.get(base, tables.DECLARING_FLAGS)
    for word in args:
        text = word.prefix if word.text is None else word.text
        name, assigns, value = text.partition("=")
        if assigns and name:
            note_declared(None if word.text is None else value, value, found)
        if text.startswith("-"):
            found.evaluated.has_arrays = found.evaluated.has_arrays or not {"a", "A"}.isdisjoint(text)
        if word.text is None and not assigns and not text[:1].isdigit():
            found.undecidable(f"{base} is given an expansion as a name")
        if "[" in name:
            found.undecidable(f"{base} is given a subscript")
        elif text.startswith("-") and not flags.fullmatch(text):
            found.undecidable(f"{base} {text} is not followed")
        check_assignment(name, found)


def _test(base: str, args: list[Word], found: Findings) -> None:
    open_ended = any((one.splits and not one.outside) or (one.globs and not one.prefix) for one in args)
    if open_ended or any(word.text in {"-v", "-R"} for word in args):
        found.undecidable(f"{base} is given a name to evaluate, or words that are split")
    elif any(one.text is None and (two.text is None or "[" in two.text) for one, two in pairwise(args)):
        found.undecidable(f"{base} is given an expansion that may be an operator, and a subscript")
    elif len(args) == 2 and args[0].text is None:
        found.undecidable(f"{base} is given an expansion as operator")


def _printf(base: str, args: list[Word], found: Findings) -> None:
    if args and (args[0].may_be_option or (args[0].text or "").startswith("-v")):
        found.undecidable("printf -v sets a variable")
    note_assigned(assigned_by_builtin(base, args), b"", found)
    is_unknown = bool(args) and args[0].text is None and not args[0].outside
    if is_unknown and any(word.text is None for word in args[1:]):
        found.needs_interpreter("printf may be given %n, and the name of any variable")


_Judge = Callable[[str, list[Word], Findings], None]
_ARGUMENT_JUDGES: dict[str, _Judge] = {
    "sed": _sed,
    "git": _git,
    "printf": _printf,
    "test": _test,
    "[": _test,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "original-awk", "bwk"), _awk),
    **dict.fromkeys(tables.NAMING_BUILTINS, _naming),
}
