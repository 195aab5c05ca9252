"""What arguments make of a program: options that run or write something else, code in the line, evaluated names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from policy import shell_tables as tables
from policy.shell_findings import Findings, check_assignment
from policy.shell_words import Word

_VERSION = "0123456789."


def judge_arguments(base: str, args: list[Word], found: Findings) -> None:
    """Notes what a program (by base name) is made to do by its arguments."""
    family = base.rstrip(_VERSION) or base
    code = tables.INLINE_CODE.get(family)
    if code is not None:
        _inline_code(base, family, code, args, found)
    risky = tables.RISKY_OPTIONS.get({"fdfind": "fd", "gsort": "sort", "batcat": "bat"}.get(base, base))
    if risky is not None:
        _options(base, risky, args, found)
    judge = _ARGUMENT_JUDGES.get(base)
    if judge is not None:
        judge(base, args, found)


def _inline_code(base: str, family: str, code: re.Pattern[str], args: list[Word], found: Findings) -> None:
    for word in args:
        if word.may_be_option or (word.text is not None and code.fullmatch(_one_line(word.text))):
            found.opaque[f"{base} {word.text or '…'}"] = None
            return
    if not args and family in tables.READS_CODE_FROM_INPUT:
        found.opaque[base] = None


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


def _sed(_base: str, args: list[Word], found: Findings) -> None:
    scripts: list[str | None] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        text = word.text
        if text in {"-e", "--expression"} and rest:
            scripts.append(rest.pop(0).text)
        elif text is not None and text.startswith("-") and not _is_plain_sed_option(text):
            found.doubt(f"sed {text} is not followed")
        elif text is not None and text.startswith("-"):
            continue
        elif not scripts:
            scripts.append(text)
        elif word.may_be_option:
            found.doubt("sed is given an expansion that may become an option")
    for script in scripts:
        if script is None or not _sed_is_plain(script):
            found.doubt("sed is given a script that may run or write something")


def _is_plain_sed_option(option: str) -> bool:
    return tables.SED_OPTIONS.fullmatch(option) is not None


def _sed_is_plain(script: str) -> bool:
    if tables.SED_SAFE.fullmatch(script):
        return True
    return all(tables.SED_SAFE.fullmatch(piece) for piece in re.split(r"[;\n]", script))


def _awk(base: str, args: list[Word], found: Findings) -> None:
    rest = list(args)
    while rest:
        text = rest.pop(0).text
        if text in {"-F", "-v"} and rest:
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
        if option.text == "-C" and rest and not rest[0].splits:
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
        is_value = previous in tables.GIT_VALUE_FOLLOWS and not word.splits
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
    if any(word.text in {"-v", "-R"} or word.splits or word.globs for word in args):
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
    "gsed": _sed,
    "git": _git,
    "printf": _printf,
    "test": _test,
    "[": _test,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(tables.NAMING_BUILTINS - {"printf", "test", "["}, _naming),
}
