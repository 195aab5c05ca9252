"""Effects of a list of words: the programs that it starts, and the effects of its arguments, by the rows of
`policy.programs`.

A program that starts the program after it is unwrapped; one whose arguments run or write something that the line does
not show makes the line undecidable; one that starts whatever a file or a package names is noted as opaque, and a list
with its name consents to that.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from policy import words
from policy.programs import base_name, family_of, program_named
from policy.programs.row import PLAIN, Program, options_of
from policy.shell import tables
from policy.shell.arithmetic import assignments_of_builtin
from policy.shell.file_effects import STRICT, note_files
from policy.shell.findings import FileCase, Findings, ShellText, check_assignment, note_assigned, note_declared
from policy.shell.program_texts import found_below, judge_git, judge_sed
from policy.shell.shown import INPUT_FILES
from policy.shell.words import UNKNOWN, Given, Used, Word, braces_spelled_out, plain, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policy.shell.words import ShownText

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_MAX_WRAPPERS = 16
_TAKES_INPUT = re.compile(r"-[euxfln]*s[euxfln]*")
_OF_A_SHELL = frozenset({"-s", "--login", "--norc", "--noprofile", "--version", "--help"})
"""Options of a shell that leave the meaning of a line as it is."""
_ASKS = words("--version --help -V -v -h version help")
_CODE = re.compile(r"-(?![WX])[A-Za-z0-9]*?[ceEpr]|--(?:eval|print|run|exec|execute)\b|-\Z")
"""Options of one interpreter or another whose value is code. Only the message about the line depends on this."""
_AWK_RISKY = re.compile(r"system|getline|@|\|")
_AWK_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_AWK_PATTERN = re.compile(r"\A\s*(?:\$[0-9A-Za-z]+\s*!?~)?\s*!?\s*/(?!=)(?:[^\[\\/\n]|\\[^\n])*/")
"""A regular expression with which an awk program starts. It has no brackets, so all awks see its end in one place."""
_PACKAGE_VERSION = re.compile(r"(?<=[A-Za-z0-9_.-])(?:@|==|~=|>=|<=)[A-Za-z0-9_.*^~-]*\Z")
_GDB_COMMAND = re.compile(
    r"(?:run|r|bt|backtrace|where|thread apply all bt|bt full|info (?:registers|threads|locals|args)|quit|q|continue|c"
    r"|set (?:confirm|pagination|width|height) \w+|frame \d*|up|down|list|l)(?: full)?"
)
"""Commands of gdb that start and show the program that it is given, and nothing else."""


def expand_wrappers(line: list[Word], found: Findings) -> None:
    """Notes the program that the words start and every one that is started through it."""
    pending = [line]
    wrappers = 0
    while pending:
        current = [one for word in pending.pop(0) for one in braces_spelled_out(word)]
        if not current:
            continue
        wrappers += 1
        if wrappers > _MAX_WRAPPERS:
            found.undecidable("too many programs started through each other")
            return
        name = _place(current[0])
        takes_directory = name in tables.DIRECTORY_BUILTINS
        found.commands.append((name, tuple(_place(one) if takes_directory else one.text for one in current[1:])))
        if name is None or (current[0].tilde and not name.startswith("~/")):
            found.undecidable("the program's name is an expansion")
        elif _ASSIGNMENT.fullmatch(name):
            found.undecidable("an assignment in the place of a program")
        elif name in tables.RESERVED_WORDS or not name or name.isspace():
            found.undecidable(f"{name!r} in the place of a program")
        else:
            read_by_row = judge_arguments(name, current[1:], found)
            pending.extend(_what_starts(name, read_by_row, current[1:], found))


def _place(word: Word) -> str | None:
    """The target of `cd`: only one's own home directory is spelled with a `~` in front."""
    text = word.text
    if text is None or not text.startswith("~"):
        return text
    if not word.tilde:
        return "./" + text
    return text if text == "~" or text.startswith("~/") else None


# What arguments do


class _Read(NamedTuple):
    """A program's own row, the row that counts (of a subcommand, if any), and the arguments; `lead` before it."""

    own: Program
    row: Program
    given: Given
    lead: Given
    subcommand: str | None = None
    args: Sequence[Word] = ()


_NOTHING_GIVEN = Given()


def _read(row: Program, args: list[Word]) -> _Read:
    if row is PLAIN:
        return _Read(row, row, _NOTHING_GIVEN, _NOTHING_GIVEN)
    lead = given = read_options(row, args)
    own, subcommand = row, None
    while row.subcommands and given.rest and not given.unknown:
        named = row.subcommand(given.rest[0].text)
        if named is None:
            break
        subcommand = subcommand or given.rest[0].text
        args = given.rest[1:]
        row, given = named, read_options(named, args)
    if row.starts == "files" and row.stops:
        given = read_options(row._replace(stops=False), args)
    return _Read(own, row, given, lead, subcommand, args)


def judge_arguments(program: str, args: list[Word], found: Findings, base: str | None = None) -> _Read | None:
    """Notes the effects of a program's arguments, and returns these by its row. `program` is as spelled; its letter
    case means little, because some file systems ignore it. `base` is its base name if that is not POSIX's."""
    on_windows = base is not None
    base = base_name(program) if base is None else base
    if base in tables.NAMING_BUILTINS:
        _name_variables(base, args, found)
    row = program_named(base)
    if row is None:
        return None
    read = _read(row, args)
    if row is PLAIN:
        return read
    asks = len(args) == 1 and args[0].text in _ASKS
    if read.own.starts == "files" and read.row.starts != "behind" and not asks:
        found.mark_opaque(program, read.own.what)
    elif read.own.starts == "code" and not asks:
        _note_code(program, read.given, args, found)
    if read.row.starts in {"", "files", "code", "language"}:
        _judge_options(base, read, found)
        case = FileCase(program, base, read.row, read.given, read.lead, args, found, on_windows)
        judge = _JUDGES.get(row.operands)
        if judge is not None:
            judge(case)
        note_files(case)
    if row.operands == "git":
        judge_git(read.subcommand, read.lead, found)
    return read


def _note_code(program: str, given: Given, args: list[Word], found: Findings) -> None:
    module = module_of(given)
    inner = None if module is None else program_named(module[0])
    if module is not None and inner is not None and _read(inner, module[1]).row.starts != "behind":
        found.mark_opaque(program, inner.what)
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


def module_of(given: Given) -> tuple[str, list[Word]] | None:
    """The program after `python -m`, if its name is known, and its arguments."""
    value = next((one.value for one in given.used if "module" in one.option.roles), None)
    if value is None or not value.text:
        return None
    package = value.text.partition(".")[0].casefold()
    row = program_named(package)
    return (package, given.rest) if row is not None and row.starts == "files" else None


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    """A pattern of a row. Its `.` is to match a line break, too: an option with one in its value is the same option."""
    return re.compile(text or r"(?!)", re.DOTALL)


def _judge_options(base: str, read: _Read, found: Findings) -> None:
    row, given = read.row, read.given
    risky = _pattern(row.risky)
    runners = (one for one, inner in row.subcommands if inner.starts == "behind" and row.starts != "files")
    starting = words(row.words).union(runners)  # operands that run something
    name = f"{base} {read.subcommand}" if read.subcommand else base
    for one in given.used:
        if one.option.is_risky:
            found.undecidable(f"{name} {one.spelled} runs or writes something else")
        elif "help" in one.option.roles:
            found.mark_opaque(base, "the pager of its manual")
    if row.operands in STRICT and given.unknown:
        found.undecidable(f"{name} {given.unknown[0]} is not followed")
    for word in given.operands or given.rest[:1]:
        text = word.prefix if word.text is None else word.text
        if risky.fullmatch(text) or (text in starting and word.text is not None):
            found.undecidable(f"{name} {text} runs or writes something else")
        elif (
            word.text is None
            and (word.prefix or not word.outside)
            and any(one.startswith(word.prefix) for one in starting)
        ):
            found.undecidable(f"{name} is given an expansion that may start something")
    for text in given.spelled:
        if risky.fullmatch(text):
            found.undecidable(f"{name} {text} runs or writes something else")
    # Listing a starter consents to whatever it starts.
    if given.doubtful and row.starts != "files" and _is_dangerous(row):
        found.undecidable(f"{name} is given an expansion that may become an option")


@lru_cache(maxsize=512)
def _is_dangerous(row: Program) -> bool:
    return bool(row.risky or row.words) or any(one.is_risky for one in options_of(row.options).values())


def _judge_awk(case: FileCase) -> None:
    base, rest = case.base, list(case.args)
    while rest:
        text = rest.pop(0).text
        if text in {"-F", "-v"} and rest and not rest[0].is_several:
            rest.pop(0)
        elif text is not None and re.match(r"-[Fv].", text):
            continue
        elif text is None or text.startswith("-"):
            case.found.undecidable(f"{base} is given a program that is not in the line")
            return
        else:
            text = _AWK_PATTERN.sub("", text)
            if "/" not in text:  # else a quote may be part of a regular expression
                text = _AWK_STRING.sub('""', text)
            if _AWK_RISKY.search(text.replace("||", " ")) or -1 < text.find("print") < text.rfind(">"):
                case.found.undecidable(f"{base} is given a program that may run or write something")
            return


def _name_variables(base: str, args: list[Word], found: Findings) -> None:
    """Builtins that take a variable's name: a subscript in it is evaluated, and evaluation runs substitutions."""
    if base == "wait" and not any(word.prefix.startswith("-") for word in args):
        return
    if base in {"mapfile", "readarray"}:
        found.evaluated.has_arrays = True
    flags = tables.NAMING_FLAGS.get(base, tables.DECLARING_FLAGS)
    for word in args:
        text = word.prefix if word.text is None else word.text
        name, assigns, value = text.partition("=")
        if base == "export" and name and not text.startswith("-"):
            found.variables[name] = None
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


def _judge_test(case: FileCase) -> None:
    base, args = case.base, case.args
    open_ended = any((one.splits and not one.outside) or (one.globs and not one.prefix) for one in args)
    if open_ended or any(word.text in {"-v", "-R"} for word in args):
        case.found.undecidable(f"{base} is given a name to evaluate, or words that are split")
    elif any(one.text is None and (two.text is None or "[" in two.text) for one, two in pairwise(args)):
        case.found.undecidable(f"{base} is given an expansion that may be an operator, and a subscript")
    elif len(args) == 2 and args[0].text is None:
        case.found.undecidable(f"{base} is given an expansion as operator")


def _judge_printf(case: FileCase) -> None:
    base, args = case.base, case.args
    if args and (args[0].may_be_option or (args[0].text or "").startswith("-v")):
        case.found.undecidable("printf -v sets a variable")
    note_assigned(assignments_of_builtin(base, list(args)), b"", case.found)
    is_unknown = bool(args) and args[0].text is None and not args[0].outside
    if is_unknown and any(word.text is None for word in args[1:]):
        case.found.needs_interpreter("printf may be given %n, and the name of any variable")


_JUDGES: dict[str, Callable[[FileCase], None]] = {
    "awk": _judge_awk,
    "printf": _judge_printf,
    "sed": judge_sed,
    "test": _judge_test,
}


# What is started


def _what_starts(program: str, read: _Read | None, args: list[Word], found: Findings) -> list[list[Word]]:
    base = base_name(program)
    if base in tables.POISONING_BUILTINS:
        if not _is_harmless(base, args):
            found.undecidable(f"{base} changes what the rest of the line means")
    elif base in tables.RUNS_TEXT:
        _own_text(base, args, found)
    elif base in tables.READS_FILES:
        what = f"the commands in {args[0].text or 'a file'}" if args else "the commands in a file"
        if not found.run_shown(_file_shown(args[0], found) if args else None, found.grammar, is_own=True):
            found.mark_opaque(program, what)
    elif read is not None:
        return _what_row_starts(program, base, read, args, found)
    return []


def _what_row_starts(program: str, base: str, read: _Read, args: list[Word], found: Findings) -> list[list[Word]]:
    row = read.own
    if row.operands == "find":
        return _find_exec(args, found)
    if row.operands == "gdb":
        return _what_gdb_starts(program, row, args, found)
    module = module_of(read.given) if row.starts == "code" else None
    if module is not None:
        base, args = module
        read = _read(program_named(base) or row, args)
    match read.row.starts:
        case "behind":
            return [_wrapped_words(f"{base} {read.subcommand}" if read.subcommand else base, read, found)]
        case "somewhere":
            found.undecidable(f"{base} runs other programs")
        case "language":
            found.mark_opaque(program, "what its own commands start")
        case "shell" | "unread shell":
            _shell(program, family_of(base), args, found)
    return []


def _is_harmless(base: str, args: list[Word]) -> bool:
    texts = [word.text for word in args]
    if base == "set":
        options = texts[: texts.index("--")] if "--" in texts else texts
        return bool(texts) and all(text and tables.SAFE_SET.fullmatch(text) for text in options)
    return base == "shopt" and bool(texts) and all(text in tables.HARMLESS_SHOPT for text in texts)


def _own_text(base: str, args: list[Word], found: Findings) -> None:
    """Note the text that `eval` and `trap` run in the shell of the line itself."""
    has_functions = False
    if args and args[0].text == "--":
        args = args[1:]
    if base == "trap":
        if not args or args[0].text in {"", "-", "-p", "-l"}:
            return
        # Text run at each command may run before the line's functions are defined.
        has_functions = all(word.text in tables.SIGNALS for word in args[1:])
        args = args[:1]
    shown = map(_text_shown, args)
    texts = [one.text if one is not None and one.is_whole else word.text for one, word in zip(shown, args, strict=True)]
    if any(text is None for text in texts) or (texts and (texts[0] or "").startswith("-")):
        found.undecidable(f"{base} runs text that only the run knows")
    else:
        text = " ".join(text or "" for text in texts)
        found.scripts.append(ShellText(found.grammar, text, True, base == "trap", has_functions))


def _shell(program: str, base: str, args: list[Word], found: Findings) -> None:
    read, grammar = _what_shell_runs(base, args), tables.GRAMMAR_OF.get(base, "posix")
    if read is None:
        found.undecidable(f"{base} {args[0].text} runs other commands")
    elif read.is_code and read.word is not None and read.word.text is not None:
        found.scripts.append(ShellText(grammar, read.word.text))
    elif read.is_code:
        if not found.run_shown(_text_shown(read.word), grammar):
            found.mark_opaque(program, "-c …", in_line=True)
            if found.grammar == "zsh":
                found.undecidable(f"{base} -c runs text of a variable, which is not followed in zsh")
    else:
        shown = found.input if read.word is None else _file_shown(read.word, found)
        if shown is not None and base in tables.UNREAD_SHELLS:
            found.undecidable(f"{base} runs text that is not read")
        elif shown is None and read.word is None and found.is_called:
            found.undecidable(f"{base} in a loop or a function reads what that is given")
        elif not found.run_shown(shown, grammar):
            if found.grammar == "zsh" and shown is not None:
                found.undecidable(f"{base} runs text of a variable, which is not followed in zsh")
            what = f"the commands in {read.word.text or 'a file'}" if read.word else "what it reads"
            found.mark_opaque(program, what)


def _text_shown(word: Word | None) -> ShownText | None:
    return word.shown if word is not None and word.shown is not None and not word.shown.is_file else None


def _file_shown(word: Word, found: Findings) -> ShownText | None:
    """Return the part that the line shows of the file that a shell reads: its own input, or `<(…)`."""
    if word.shown is not None and word.shown.is_file:
        return word.shown
    return found.input if word.text in INPUT_FILES else None


class _Runs(NamedTuple):
    """Code for a shell: a text (`is_code`) or the file that a word names; None stands for its input."""

    word: Word | None
    is_code: bool = False


def _what_shell_runs(base: str, args: list[Word]) -> _Runs | None:
    """With `-c` the first word that is not an option, which may not directly follow it. None if unknown."""
    asked, place, texts = False, 0, [word.text for word in args]
    while place < len(args):
        text = texts[place]
        if text is None or (asked and base not in tables.OPTIONS_FOLLOW):
            break
        if text == "--" or (text == "-" and not asked):
            place += 1
            break
        if re.fullmatch(r"[-+][euxf]*o", text) and place + 1 < len(args):
            if texts[place + 1] not in tables.SHELL_OPTIONS:
                return None
            place += 1
        elif base not in tables.UNREAD_SHELLS and re.fullmatch(r"-[euxfl]*c[euxfl]*", text):
            asked = True
        elif text[:1] not in {"-", "+"} or text == "-":
            break
        elif text not in _OF_A_SHELL and not re.fullmatch(r"[-+][euxflns]+", text):
            return None
        place += 1
    return _code_after_options(args, place, asked=asked)


def _code_after_options(args: list[Word], place: int, *, asked: bool) -> _Runs | None:
    """Return the text or file of a shell whose options end at `place`; `asked` for `-c`."""
    word, texts = args[place] if place < len(args) else None, [word.text for word in args]
    if word is not None and (word is UNKNOWN or (word.is_several and place + 1 < len(args))):
        return None  # it may be no word at all, and the next one is the text; or it is input that xargs makes words of
    if not asked:
        if any(text is not None and _TAKES_INPUT.fullmatch(text) for text in texts[:place]):
            return _Runs(None)
        return None if word is not None and word.tilde and word.text is None else _Runs(word)
    if word is None or ((word.text or "")[:1] in {"-", "+"} and texts[place - 1] != "--"):
        return None
    return _Runs(word, is_code=True)


def _find_exec(args: list[Word], found: Findings) -> list[list[Word]]:
    inner: list[list[Word]] = []
    texts = [word.text for word in args]
    for place, text in enumerate(texts):
        if text in {"-exec", "-execdir", "-ok", "-okdir"}:
            end = next((i for i in range(place + 1, len(args)) if texts[i] in {";", "+"}), None)
            if end is None:
                found.undecidable("find -exec without an end")
                return inner
            found.elsewhere = found.elsewhere or text.endswith("dir")
            if len(inner) > _MAX_WRAPPERS:
                return inner  # which is too many for `expand_wrappers`
            line: list[Word] = []
            for word in args[place + 1 : end]:
                if word.text == "{}":
                    line += found_below(args)
                else:
                    line.append(UNKNOWN if word.text is not None and "{}" in word.text else word)
            inner.append(line)
    return inner


def _what_gdb_starts(program: str, row: Program, args: list[Word], found: Findings) -> list[list[Word]]:
    """The commands that gdb runs, if it takes them from the line and ends after them."""
    given = read_options(row, args)
    if given.unknown or not any(one.spelled.lstrip("-") == "batch" for one in given.used):
        found.undecidable(f"{base_name(program)} runs other programs")
        return []
    if any(word.text is None or not _GDB_COMMAND.fullmatch(word.text) for word in given.values("command")):
        found.undecidable(f"{base_name(program)} is given a command that may run something else")
    return [given.rest] if given.has("args") or len(given.rest) == 1 else [given.rest[:1]]


def _wrapped_words(base: str, read: _Read, found: Findings) -> list[Word]:
    row, given = read.row, read.given
    if given.has("asks") and not given.unknown:
        return []
    own = list(read.args[: len(read.args) - len(given.rest)])
    unknown = given.unknown[:1]
    if row.one_option and own and (len(own) > 1 or own[0].text not in options_of(row.options) or own[0].quoted):
        unknown = [own[0].text or "with an expansion"]
    if unknown:
        found.undecidable(f"{base} {unknown[0]} is not followed")
        return []
    if not all(_is_plain_value(base, one, found) for one in given.used):
        return []
    inner = given.rest
    if given.has("module") or given.has("script"):
        return [plain("python"), *([plain("-m")] if given.has("module") else []), *inner]
    kinds = row.operands.split()
    if "set" in kinds:
        inner = _skip_assignments(inner, found)
    skipped = kinds.count("skip")
    is_dashed = len(inner) > skipped and (inner[skipped].text or "").startswith("-")
    if is_dashed or any(word.text is None or word.tilde for word in inner[: skipped + 1]):
        found.undecidable(f"{base} is given an expansion where a program or option is expected")
        return []
    inner = inner[skipped:]
    if "input" in kinds:
        markers = [one.value for one in given.used if "marker" in one.option.roles]
        return _add_input(inner, None if not markers else "{}" if markers[-1] is None else markers[-1].text or "{}")
    if "package" in kinds:
        return _strip_version(base, inner, found)
    return inner


def _skip_assignments(inner: list[Word], found: Findings) -> list[Word]:
    """The words after the assignments in front of a program; sudo takes options among them."""
    for place, word in enumerate(inner):
        assignment = None if word.text is None else _ASSIGNMENT.fullmatch(word.text)
        if assignment is None or word.tilde:
            return inner[place:]
        check_assignment(assignment[1], found)
        found.variables[assignment[1]] = None
    return []


def _strip_version(base: str, inner: list[Word], found: Findings) -> list[Word]:
    """A program of a package, by its name without the version that is asked for; Python for one of its files."""
    text = inner[0].text if inner else None
    if text is None:
        found.undecidable(f"{base} runs a program that is not named plainly")
        return []
    if text.endswith((".py", ".pyw")) and base.startswith("uv"):
        return [plain("python"), *inner]
    name = _PACKAGE_VERSION.sub("", text)
    return [plain(name), *inner[1:]] if name else inner


def _add_input(inner: list[Word], marker: str | None) -> list[Word]:
    """The words that xargs starts: its arguments, or echo, with words of its input."""
    line = inner or [plain("echo")]
    if marker is not None:
        line = [UNKNOWN if word.text is not None and marker in word.text else word for word in line]
    return [*line, UNKNOWN]


def _is_plain_value(base: str, used: Used, found: Findings) -> bool:
    """True if a value is one word, so that the program's position is certain, and known if it decides what runs."""
    value, roles = used.value, used.option.roles
    if value is None:
        return True
    if "unset" in roles:
        check_assignment(value.text or "PATH", found)
    if not value.is_several and (value.text or "marker" not in roles) and not (value.tilde and value.text is None):
        return True
    found.undecidable(f"{base} {used.spelled} is given an expansion, or nothing")
    return False


def starts_another(base: str, args: list[Word]) -> bool:
    """True for a program that starts another one named by its arguments, where lines are not unwrapped."""
    row = program_named(base)
    if row is None:
        return False
    if row.starts == "code":
        module = module_of(read_options(row, args))
        row, args = (program_named(module[0]), module[1]) if module is not None else (row, args)
    return row is not None and _read(row, args).row.starts in {"behind", "somewhere", "shell", "unread shell"}
