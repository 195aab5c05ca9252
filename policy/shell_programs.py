"""What a list of words would start: unwraps programs that start others, and says where that can't be followed."""

from __future__ import annotations

import re
from collections.abc import Callable

from policy import shell_tables as tables
from policy.shell_words import UNKNOWN, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_VERSION = re.compile(r"[0-9.]+$")
_MAX_WRAPPERS = 16


class Findings:
    """What is found in one line, in order: commands (words), reasons, and shell text that a command would run."""

    def __init__(self) -> None:
        self.commands: list[tuple[str | None, tuple[str | None, ...]]] = []
        self.dynamic: dict[str, None] = {}
        self.opaque: dict[str, None] = {}
        self.scripts: list[str] = []
        self.steps = 0

    def doubt(self, reason: str) -> None:
        """Notes why the line can't be decided."""
        self.dynamic[reason] = None


def unravel(words: list[Word], found: Findings) -> None:
    """Notes the program that `words` start and every one that is started through it."""
    pending = [words]
    wrappers = 0
    while pending:
        current = pending.pop(0)
        if not current:
            continue
        wrappers += 1
        if wrappers > _MAX_WRAPPERS:
            found.doubt("too many programs started through each other")
            return
        name = current[0].text
        found.commands.append((name, tuple(word.text for word in current[1:])))
        if name is None or current[0].tilde:
            found.doubt("the program's name is an expansion")
        elif name in tables.RESERVED_WORDS or not name or name.isspace():
            found.doubt(f"{name!r} in the place of a program")
        else:
            base = base_name(name)
            _judge_arguments(base, current[1:], found)
            pending.extend(_started_by(base, current[1:], found))


def base_name(program: str) -> str:
    """A program's name without its directory."""
    return program.rsplit("/", 1)[-1]


def check_assignment(name: str, found: Findings) -> None:
    """Notes an assignment to a variable that steers what runs."""
    if tables.STEERING_VARIABLE.fullmatch(name):
        found.doubt(f"sets {name}, which steers programs")


# What is started


def _started_by(base: str, args: list[Word], found: Findings) -> list[list[Word]]:
    if base in tables.POISONING_BUILTINS:
        harmless = base == "set" and args and all(w.text and tables.SAFE_SET.fullmatch(w.text) for w in args)
        if not harmless:
            found.doubt(f"{base} changes what the rest of the line means, or runs text")
        return []
    if base in tables.OPAQUE_STARTERS or base.startswith("ld-"):
        found.doubt(f"{base} runs other programs")
        return []
    if base in tables.SHELLS:
        _shell(base, args, found)
        return []
    if base == "find":
        return _find_exec(args, found)
    if base in tables.SINGLE_RUNNERS:
        return _runner(base, args, found)
    if args and (base, args[0].text) in tables.RUNNERS:
        return _runner(f"{base} {args[0].text}", args[1:], found)
    if base == "command" and args and args[0].text in {"-v", "-V"}:
        return []
    wrapper = tables.WRAPPERS.get(base)
    return [_behind(base, wrapper, args, found)] if wrapper else []


def _shell(base: str, args: list[Word], found: Findings) -> None:
    first = args[0].text if args else None
    if first is None:
        found.doubt(f"{base} runs what it reads")
    elif re.fullmatch(r"-[euxf]*c", first) and len(args) > 1 and args[1].text is not None:
        found.scripts.append(args[1].text)
    elif first[:1] in {"-", "+"} or args[0].tilde:
        found.doubt(f"{base} {first} runs other commands")
    else:
        found.opaque[f"{base} {first}"] = None


def _runner(label: str, args: list[Word], found: Findings) -> list[list[Word]]:
    if not args or args[0].text is None or args[0].text.startswith("-"):
        found.doubt(f"{label} runs a program that is not named plainly")
        return []
    return [args]


def _find_exec(args: list[Word], found: Findings) -> list[list[Word]]:
    inner: list[list[Word]] = []
    texts = [word.text for word in args]
    for place, text in enumerate(texts):
        if text in {"-exec", "-execdir", "-ok", "-okdir"}:
            end = next((i for i in range(place + 1, len(args)) if texts[i] in {";", "+"}), None)
            if end is None:
                found.doubt("find -exec without an end")
                return inner
            words = args[place + 1 : end]
            inner.append([UNKNOWN if word.text is not None and "{}" in word.text else word for word in words])
    return inner


def _behind(base: str, wrapper: tables.Wrapper, args: list[Word], found: Findings) -> list[Word]:
    """The words of the program that a wrapper starts; none when it starts none."""
    flags, valued = wrapper.flags.split(), wrapper.valued.split()
    own, place, marker = wrapper.own_words, 0, None
    while place < len(args):
        text = args[place].text
        if text is None or args[place].tilde:
            found.doubt(f"{base} is given an expansion where a program or option is expected")
            return []
        assignment = _ASSIGNMENT.fullmatch(text) if wrapper.assigns else None
        if assignment:
            check_assignment(assignment[1], found)
        elif text == "--":
            place += 1
            break
        elif not text.startswith("-") or (text == "-" and text not in flags):
            if not own:
                break
            own -= 1
        else:
            taken = _option_length(base, text, flags, valued)
            if not taken:
                found.doubt(f"{base} {text} is not followed")
                return []
            marker = _replacement(base, text, args, place) or marker
            place += taken - 1
        place += 1
    inner = args[place + own :]
    if marker is not None:
        inner = [UNKNOWN if word.text is not None and marker in word.text else word for word in inner]
    return [*inner, UNKNOWN] if wrapper.appends and inner else inner


def _option_length(base: str, text: str, flags: list[str], valued: list[str]) -> int:
    """How many words an option takes; 0 for one that is not known."""
    if text in flags or (base == "nice" and re.fullmatch(r"-[0-9]+", text)):
        return 1
    if text in valued:
        return 2
    if text.startswith("--"):
        return int(text.partition("=")[0] in valued)
    if text[:2] in valued:
        return 1
    return int(all("-" + letter in flags for letter in text[1:]))


def _replacement(base: str, text: str, args: list[Word], place: int) -> str | None:
    """What xargs replaces by its input."""
    if base != "xargs" or not text.startswith(("-I", "--replace")):
        return None
    if text == "-I":
        return args[place + 1].text if place + 1 < len(args) else None
    return text[2:] if text.startswith("-I") else text.partition("=")[2] or "{}"


# What arguments make of a program


def _judge_arguments(base: str, args: list[Word], found: Findings) -> None:
    family = _VERSION.sub("", base) or base
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
        if word.may_be_option or (word.text is not None and code.fullmatch(word.text)):
            found.opaque[f"{base} {word.text or '…'}"] = None
            return
    if not args and family in tables.READS_CODE_FROM_INPUT:
        found.opaque[base] = None


def _options(base: str, risky: re.Pattern[str], args: list[Word], found: Findings) -> None:
    for place, word in enumerate(args):
        text = word.text
        if text is not None and base == "tar" and place == 0 and not text.startswith("-"):
            text = "-" + text
        if text is not None and risky.fullmatch(text):
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
            if tables.AWK_RISKY.search(text.replace("||", " ")):
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
        elif text is not None and ((own and own.fullmatch(text)) or _git_risky(subcommand, text)):
            found.doubt(f"git {subcommand} {text} runs or writes something else")


def _git_risky(subcommand: str, text: str) -> bool:
    if not tables.GIT_RISKY.fullmatch(text):
        return False
    return not any(text.startswith(start) and subcommand in harmless for start, harmless in tables.GIT_HARMLESS)


def _naming(base: str, args: list[Word], found: Findings) -> None:
    """Builtins that take a variable's name: a subscript in it is evaluated, and evaluation runs substitutions."""
    for word in args:
        text = word.text
        if text is None:
            if word.may_be_option and "=" not in word.prefix:
                found.doubt(f"{base} is given an expansion as a name")
            continue
        name = text.partition("=")[0]
        if "[" in name:
            found.doubt(f"{base} is given a subscript")
        elif text.startswith("-") and not re.fullmatch(r"-[xgpr]+", text):
            found.doubt(f"{base} {text} is not followed")
        check_assignment(name, found)


def _test(base: str, args: list[Word], found: Findings) -> None:
    if any(word.text in {"-v", "-R"} or word.splits for word in args):
        found.doubt(f"{base} is given a name to evaluate, or words that are split")
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
