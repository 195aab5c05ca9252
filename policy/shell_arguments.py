"""What arguments make of a program: options that run or write something else, code in the line, evaluated names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from policy import shell_tables as tables
from policy.shell_code import judge_interpreter
from policy.shell_findings import Findings, check_assignment
from policy.shell_starters import STARTERS, judge_starter
from policy.shell_words import Word

_VERSION = "0123456789."


def judge_arguments(program: str, args: list[Word], found: Findings, base: str | None = None) -> None:
    """Notes what a program is made to do by its arguments. `program` is as it is spelled; its letter case says little,
    for there are file systems that ignore it. `base` is its base name where that is not POSIX's."""
    base = base_name(program) if base is None else base
    family = base.rstrip(_VERSION).removesuffix("-") or base
    family = tables.SAME_PROGRAM.get(family, family)
    judge_starter(program, base if base in STARTERS else family, args, found)
    judge_interpreter(program, family, args, found)
    risky = tables.RISKY_OPTIONS.get(family)
    if risky is not None:
        _options(family, risky, args, found)
    judge = _ARGUMENT_JUDGES.get(family) or _ARGUMENT_JUDGES.get(base)
    if judge is not None:
        judge(base, args, found)


def base_name(program: str) -> str:
    """A program's name without its directory, in lower case."""
    return program.rsplit("/", 1)[-1].casefold()


def _one_line(text: str) -> str:
    """For patterns whose `.` matches no line break: an option with one in its value is the same option."""
    return text.replace("\n", " ")


def _options(base: str, risky: re.Pattern[str], args: list[Word], found: Findings) -> None:
    for place, word in enumerate(args):
        text = word.text
        if text is not None and base == "tar" and place == 0 and not text.startswith("-"):
            text = "-" + text
        if text is not None and risky.fullmatch(_one_line(text)):
            found.doubt(f"{base} {word.text} runs or writes something else")
        elif word.may_be_option:
            found.doubt(f"{base} is given an expansion that may become an option")


def _sed(base: str, args: list[Word], found: Findings) -> None:
    from policy.shell_sed import judge_sed  # its patterns are large

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
            found.doubt(f"{base} is given a program that is not in the line")
            return
        else:
            if tables.AWK_RISKY.search(text.replace("||", " ")) or -1 < text.find("print") < text.rfind(">"):
                found.doubt(f"{base} is given a program that may run or write something")
            return


def _git(_base: str, args: list[Word], found: Findings) -> None:
    rest = list(args)
    while rest and (rest[0].text is None or rest[0].text.startswith("-")):
        option = rest.pop(0)
        if option.text == "-C" and rest and not rest[0].is_several:
            rest.pop(0)
        elif option.text not in tables.GIT_GLOBAL_FLAGS:
            found.doubt(f"git {option.text or 'with an expansion'} is not followed")
            return
    if not rest:
        return
    subcommand = rest[0].text or ""
    if subcommand not in tables.GIT_SUBCOMMANDS:
        found.doubt(f"git {subcommand} may be an alias, or starts other programs")
    elif subcommand == "config":
        _git_config(rest[1:], found)
    else:
        _git_arguments(subcommand, rest[1:], found)


def _git_config(args: list[Word], found: Findings) -> None:
    words = [word for word in args if word.text not in tables.GIT_CONFIG_SCOPES]
    first = words[0].text if words else None
    options = [word for word in words[1:] if word.may_be_option or (word.text or "").startswith("-")]
    if options or (first not in tables.GIT_CONFIG_READS and first not in tables.GIT_CONFIG_HARMLESS):
        found.doubt("git config changes what git runs")


def _git_arguments(subcommand: str, args: list[Word], found: Findings) -> None:
    own = tables.GIT_RULES.get(subcommand)
    previous: str | None = None
    for word in args:
        text = word.text
        if text == "--":
            return
        is_value = previous in tables.GIT_VALUE_FOLLOWS and not word.is_several
        previous = text
        if is_value:
            continue
        if word.may_be_option:
            found.doubt("git is given an expansion that may become an option")
        elif text is not None and _git_risky(subcommand, _one_line(text), own):
            found.doubt(f"git {subcommand} {text} runs or writes something else")


def _git_risky(subcommand: str, text: str, own: re.Pattern[str] | None) -> bool:
    if own and own.fullmatch(text):
        return True
    if not tables.GIT_RISKY.fullmatch(text):
        return False
    return not any(text.startswith(start) and subcommand in harmless for start, harmless in tables.GIT_HARMLESS)


def _naming(base: str, args: list[Word], found: Findings) -> None:
    """Builtins that take a variable's name: a subscript in it is evaluated, and evaluation runs substitutions."""
    for word in args:
        text = word.prefix if word.text is None else word.text
        name, assigns, _ = text.partition("=")
        if word.text is None and not assigns:
            found.doubt(f"{base} is given an expansion as a name")
        if "[" in name:
            found.doubt(f"{base} is given a subscript")
        elif text.startswith("-") and not re.fullmatch(r"-[xgpr]+", text):
            found.doubt(f"{base} {text} is not followed")
        check_assignment(name, found)


def _test(base: str, args: list[Word], found: Findings) -> None:
    if any(word.text in {"-v", "-R"} or word.splits or (word.globs and not word.prefix) for word in args):
        found.doubt(f"{base} is given a name to evaluate, or words that are split")
    elif any(one.text is None and (two.text is None or "[" in two.text) for one, two in pairwise(args)):
        found.doubt(f"{base} is given an expansion that may be an operator, and a subscript")
    elif len(args) == 2 and args[0].text is None:
        found.doubt(f"{base} is given an expansion as operator")


def _printf(_base: str, args: list[Word], found: Findings) -> None:
    if args and (args[0].may_be_option or (args[0].text or "").startswith("-v")):
        found.doubt("printf -v sets a variable")


_Judge = Callable[[str, list[Word], Findings], None]
_ARGUMENT_JUDGES: dict[str, _Judge] = {
    "sed": _sed,
    "git": _git,
    "printf": _printf,
    "test": _test,
    "[": _test,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(tables.NAMING_BUILTINS, _naming),
}
