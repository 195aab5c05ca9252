"""What a list of words would start: unwraps programs that start others, and says where that can't be followed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policy.shell import tables as tables
from policy.shell.arguments import base_name, family_of, judge_arguments
from policy.shell.code import started_module
from policy.shell.find import found_below
from policy.shell.findings import Script, check_assignment
from policy.shell.operands import note_operands
from policy.shell.shown import INPUT_FILES
from policy.shell.words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.shown import Shown

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_MAX_WRAPPERS = 16
_TAKES_INPUT = re.compile(r"-[euxfln]*s[euxfln]*")
_OF_A_SHELL = frozenset({"-s", "--login", "--norc", "--noprofile", "--version", "--help"})
"""Options of a shell that leave the meaning of a line as it is."""


def expand_wrappers(words: list[Word], found: Findings) -> None:
    """Notes the program that `words` start and every one that is started through it."""
    pending = [words]
    wrappers = 0
    while pending:
        current = pending.pop(0)
        if not current:
            continue
        wrappers += 1
        if wrappers > _MAX_WRAPPERS:
            found.undecidable("too many programs started through each other")
            return
        name = _place(current[0])
        read = _place if name in tables.DIRECTORY_BUILTINS else _text
        found.commands.append((name, tuple(map(read, current[1:]))))
        if name is None or (current[0].tilde and not name.startswith("~/")):
            found.undecidable("the program's name is an expansion")
        elif _ASSIGNMENT.fullmatch(name):
            found.undecidable("an assignment in the place of a program")
        elif name in tables.RESERVED_WORDS or not name or name.isspace():
            found.undecidable(f"{name!r} in the place of a program")
        else:
            judge_arguments(name, current[1:], found)
            note_operands(name, family_of(base_name(name)), current[1:], found)
            pending.extend(_started_by(name, current[1:], found))


def _text(word: Word) -> str | None:
    return word.text


def _place(word: Word) -> str | None:
    """Where `cd` would go: only one's own home directory is spelled with a `~` in front."""
    text = word.text
    if text is None or not text.startswith("~"):
        return text
    if not word.tilde:
        return "./" + text
    return text if text == "~" or text.startswith("~/") else None


# What is started


def _started_by(program: str, args: list[Word], found: Findings) -> list[list[Word]]:
    base = base_name(program)
    family = family_of(base)
    if _is_seen_through(program, base, family, args, found):
        return []
    if family == "find":
        return _find_exec(args, found)
    if base in tables.SINGLE_RUNNERS:
        return _runner(base, args, found)
    if args and (base, args[0].text) in tables.RUNNERS:
        return _runner(f"{base} {args[0].text}", args[1:], found)
    module = started_module(family, args)
    if module is not None and module.args and (module.program, module.args[0].text) in tables.RUNNERS:
        return _runner(f"{module.program} {module.args[0].text}", module.args[1:], found)
    if base == "command" and args and args[0].text in {"-v", "-V"}:
        return []
    wrapper = tables.WRAPPERS.get(base)
    return [_behind(base, wrapper, args, found)] if wrapper else []


def _is_seen_through(program: str, base: str, family: str, args: list[Word], found: Findings) -> bool:
    """Notes what builtins, shells and programs with a language of their own run; whether it is one of these."""
    if base in tables.POISONING_BUILTINS:
        if not _is_harmless(base, args):
            found.undecidable(f"{base} changes what the rest of the line means")
    elif base in tables.RUNS_TEXT:
        _own_text(base, args, found)
    elif base in tables.READS_FILES:
        what = f"the commands in {args[0].text or 'a file'}" if args else "the commands in a file"
        if not found.run_shown(_shown_file(args[0], found) if args else None, found.grammar, is_own=True):
            found.mark_opaque(program, what)
    elif base in tables.OPAQUE_STARTERS or family in tables.OPAQUE_STARTERS or base.startswith("ld-"):
        found.undecidable(f"{base} runs other programs")
    elif base in tables.OWN_LANGUAGES or family in tables.OWN_LANGUAGES:
        found.mark_opaque(program, "what its own commands start")
    elif family in tables.SHELLS:
        _shell(program, family, args, found)
    else:
        return False
    return True


def _is_harmless(base: str, args: list[Word]) -> bool:
    texts = [word.text for word in args]
    if base == "set":
        options = texts[: texts.index("--")] if "--" in texts else texts
        return bool(texts) and all(text and tables.SAFE_SET.fullmatch(text) for text in options)
    return base == "shopt" and bool(texts) and all(text in tables.HARMLESS_SHOPT for text in texts)


def _own_text(base: str, args: list[Word], found: Findings) -> None:
    """What `eval` and `trap` run in the shell of the line itself."""
    knows_functions = False
    if args and args[0].text == "--":
        args = args[1:]
    if base == "trap":
        if not args or args[0].text in {"", "-", "-p", "-l"}:
            return
        # What is run at each command may come before the line's functions are there.
        knows_functions = all(word.text in tables.SIGNALS for word in args[1:])
        args = args[:1]
    shown = map(_shown_text, args)
    texts = [one.text if one is not None and one.is_whole else word.text for one, word in zip(shown, args, strict=True)]
    if any(text is None for text in texts) or (texts and (texts[0] or "").startswith("-")):
        found.undecidable(f"{base} runs text that only the run knows")
    else:
        found.scripts.append(
            Script(found.grammar, " ".join(text or "" for text in texts), True, base == "trap", knows_functions)
        )


def _shell(program: str, base: str, args: list[Word], found: Findings) -> None:
    read, grammar = _what_shell_runs(base, args), tables.GRAMMAR_OF.get(base, "posix")
    if read is None:
        found.undecidable(f"{base} {args[0].text} runs other commands")
    elif read.is_code and read.word is not None and read.word.text is not None:
        found.scripts.append(Script(grammar, read.word.text))
    elif read.is_code:
        if not found.run_shown(_shown_text(read.word), grammar):
            found.mark_opaque(program, "-c …", in_line=True)
    else:
        shown = found.input if read.word is None else _shown_file(read.word, found)
        if shown is not None and base in tables.UNREAD_SHELLS:
            found.undecidable(f"{base} runs text that is not read")
        elif not found.run_shown(shown, grammar):
            what = f"the commands in {read.word.text or 'a file'}" if read.word else "what it reads"
            found.mark_opaque(program, what)


def _shown_text(word: Word | None) -> Shown | None:
    """Return the part that the line shows of a word that a shell runs as text."""
    return word.shown if word is not None and word.shown is not None and not word.shown.is_file else None


def _shown_file(word: Word, found: Findings) -> Shown | None:
    """Return the part that the line shows of the file that a shell reads: its own input, or `<(…)`."""
    if word.shown is not None and word.shown.is_file:
        return word.shown
    return found.input if word.text in INPUT_FILES else None


class _Runs(NamedTuple):
    """What a shell runs: the text that a word is (`is_code`) or the file that it names; None stands for its input."""

    word: Word | None
    is_code: bool = False


def _what_shell_runs(base: str, args: list[Word]) -> _Runs | None:
    """With `-c` it is the first word that is no option, which in many shells may also stand further on than behind the
    `-c`. None where that can't be said."""
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
    return _behind_options(args, place, asked=asked)


def _behind_options(args: list[Word], place: int, *, asked: bool) -> _Runs | None:
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


def _runner(label: str, args: list[Word], found: Findings) -> list[list[Word]]:
    while args and args[0].text in tables.RUNNER_FLAGS:
        args = args[1:]
    if not args or args[0].text is None or args[0].text.startswith("-"):
        found.undecidable(f"{label} runs a program that is not named plainly")
        return []
    return [args]


def _find_exec(args: list[Word], found: Findings) -> list[list[Word]]:
    inner: list[list[Word]] = []
    texts = [word.text for word in args]
    for place, text in enumerate(texts):
        if text in {"-exec", "-execdir", "-ok", "-okdir"}:
            end = next((i for i in range(place + 1, len(args)) if texts[i] in {";", "+"}), None)
            if end is None:
                found.undecidable("find -exec without an end")
                return inner
            words = args[place + 1 : end]
            found.elsewhere = found.elsewhere or text.endswith("dir")
            if len(inner) > _MAX_WRAPPERS:
                return inner  # which is too many for `expand_wrappers`
            inner.append([one for word in words for one in _found_or(word, args)])
    return inner


def _found_or(word: Word, args: list[Word]) -> list[Word]:
    if word.text == "{}":
        return found_below(args)
    return [UNKNOWN] if word.text is not None and "{}" in word.text else [word]


def _behind(base: str, wrapper: tables.Wrapper, args: list[Word], found: Findings) -> list[Word]:
    """The words of the program that a wrapper starts; none when it starts none."""
    flags, valued = wrapper.flags.split(), wrapper.valued.split()
    own, place, marker = wrapper.own_words, 0, None
    while place < len(args):
        text = args[place].text
        if text is None or args[place].tilde:
            found.undecidable(f"{base} is given an expansion where a program or option is expected")
            return []
        assignment = _ASSIGNMENT.fullmatch(text) if wrapper.assigns else None
        if assignment:
            check_assignment(assignment[1], found)
        elif base in tables.ONE_OPTION and text.startswith("-") and (place > 0 or text != "-p" or args[place].quoted):
            found.undecidable(f"{base} {text} is not followed")
            return []
        elif text == "--":
            place += 1
            break
        elif not text.startswith("-") or (text == "-" and text not in flags):
            if not own:
                break
            own -= 1
        else:
            is_attached = text.partition("=")[0] in wrapper.attached.split()
            taken = 1 if is_attached else _option_length(base, text, flags, valued)
            if not taken:
                found.undecidable(f"{base} {text} is not followed")
                return []
            value = _value(text, args[place + 1 : place + taken])
            if not _is_plain_value(base, text, value, found):
                return []
            if _is_replacement(base, text):
                marker = value.text or "{}"
            place += taken - 1
        place += 1
    inner = args[place + own :]
    return _with_input(inner, marker) if wrapper.appends else inner


def _with_input(inner: list[Word], marker: str | None) -> list[Word]:
    """What xargs starts: its arguments, or echo, with words of its input behind it and in the place of a marker."""
    words = inner or [plain("echo")]
    if marker is not None:
        words = [UNKNOWN if word.text is not None and marker in word.text else word for word in words]
    return [*words, UNKNOWN]


def _option_length(base: str, text: str, flags: list[str], valued: list[str]) -> int:
    """How many words an option takes; 0 for one that is not known."""
    if text in flags or (base == "nice" and re.fullmatch(r"-[0-9]+", text)):
        return 1
    if text.startswith("--"):
        name, joined, _ = text.partition("=")
        return (1 if joined else 2) if name in valued else 0
    if text in valued:
        return 2
    if text[:2] in valued:
        return 1
    return int(all("-" + letter in flags for letter in text[1:]))


def _value(text: str, following: list[Word]) -> Word:
    """An option's value: the word behind it, or what it is joined with."""
    if following:
        return following[0]
    return plain(text.partition("=")[2] if text.startswith("--") else text[2:])


def _is_plain_value(base: str, text: str, value: Word, found: Findings) -> bool:
    """Whether a value is one word, so that the program is where it seems, and known where it decides what runs."""
    if base == "env" and text.startswith(("-u", "--u")):
        check_assignment(value.text or "PATH", found)
    decides = _is_replacement(base, text) and text != "--replace"
    if not value.is_several and (value.text or not decides):
        return True
    found.undecidable(f"{base} {text} is given an expansion, or nothing")
    return False


def _is_replacement(base: str, text: str) -> bool:
    """Whether the option says what xargs replaces by its input."""
    return base == "xargs" and text.startswith(("-I", "--replace"))
