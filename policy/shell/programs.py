"""What a list of words would start: unwraps programs that start others, and says where that can't be followed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.shell import tables as tables
from policy.shell.arguments import base_name, family_of, judge_arguments
from policy.shell.code import started_module
from policy.shell.findings import check_assignment
from policy.shell.words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from policy.shell.findings import Findings

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_MAX_WRAPPERS = 16


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
            judge_arguments(name, current[1:], found)
            pending.extend(_started_by(name, current[1:], found))


# What is started


def _started_by(program: str, args: list[Word], found: Findings) -> list[list[Word]]:
    base = base_name(program)
    if base in tables.POISONING_BUILTINS:
        harmless = base == "set" and args and all(w.text and tables.SAFE_SET.fullmatch(w.text) for w in args)
        if not harmless:
            found.doubt(f"{base} changes what the rest of the line means, or runs text")
        return []
    if base in tables.OPAQUE_STARTERS or base.startswith("ld-"):
        found.doubt(f"{base} runs other programs")
        return []
    if base in tables.SHELLS:
        _shell(program, base, args, found)
        return []
    family = family_of(base)
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


def _shell(program: str, base: str, args: list[Word], found: Findings) -> None:
    first = args[0].text if args else None
    code = _code_of_shell(base, args)
    if first is None or base in tables.UNREAD_SHELLS:
        found.doubt(f"{base} runs what it reads")
    elif code is not None:
        found.scripts.append((tables.GRAMMAR_OF.get(base, "posix"), code))
    elif first[:1] in {"-", "+"} or args[0].tilde:
        found.doubt(f"{base} {first} runs other commands")
    else:
        found.hide(program, f"the commands in {first}")


def _code_of_shell(base: str, args: list[Word]) -> str | None:
    """The text that a shell runs for `-c`: the first word that is no option, which in many shells may also stand
    further on than behind the `-c`. None where that can't be said."""
    asked, place, texts = False, 0, [word.text for word in args]
    while place < len(args):
        text = texts[place]
        if text is None or (asked and base not in tables.OPTIONS_FOLLOW):
            break
        if text == "--":
            place += 1
            break
        if re.fullmatch(r"[-+][euxf]*o", text) and place + 1 < len(args):
            if texts[place + 1] not in tables.SHELL_OPTIONS:
                return None
            place += 1
        elif re.fullmatch(r"-[euxf]*c[euxf]*", text):
            asked = True
        elif text[:1] not in {"-", "+"}:
            break
        elif not re.fullmatch(r"[-+][euxf]+", text):
            return None
        place += 1
    code = texts[place] if asked and place < len(args) else None
    return None if code is None or (code[:1] in {"-", "+"} and texts[place - 1] != "--") else code


def _runner(label: str, args: list[Word], found: Findings) -> list[list[Word]]:
    while args and args[0].text in tables.RUNNER_FLAGS:
        args = args[1:]
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
            if len(inner) > _MAX_WRAPPERS:
                return inner  # which is too many for `unravel`
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
        elif _is_refused(base, text, place):
            found.doubt(f"{base} {text} is not followed")
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
                found.doubt(f"{base} {text} is not followed")
                return []
            if base == "env" and text.startswith(("-u", "--u")):
                value = args[place + 1 : place + 2] if taken == 2 else [plain(text[2:].rpartition("=")[2])]
                check_assignment((value[0].text if value else None) or "PATH", found)
            marker = _replacement(base, text, args, place) or marker
            place += taken - 1
        place += 1
    inner = args[place + own :]
    if base == "xargs" and not inner:
        inner = [Word("echo", "echo")]  # what it runs when it is told nothing
    if marker is not None:
        inner = [UNKNOWN if word.text is not None and marker in word.text else word for word in inner]
    return [*inner, UNKNOWN] if wrapper.appends and inner else inner


def _is_refused(base: str, text: str, place: int) -> bool:
    if base in tables.ONE_OPTION:
        return text.startswith("-") and (place > 0 or text != "-p")
    return base == "env" and text == "-"  # its `-i`


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
