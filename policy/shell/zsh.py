"""zsh, as far as it reads a line like bash: the tree is bash's, so what zsh takes for something else is not decided.

Single quotes mean the same in both and hide everything in them. What is left may have expansions of plain variables,
command substitutions, plain patterns and tests; subscripts, modifiers, flags, glob qualifiers, `=name`, brace forms and
here-documents may be code to zsh and are not looked into.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.assigned import OF_ZSH, assignments_of_builtin, note_assigned
from policy.shell.words import UNKNOWN, plain

if TYPE_CHECKING:
    from policy.shell.findings import Findings

_SINGLE = re.compile(r"""(\\.|"(?:\\.|[^"\\$`]|\$(?!\())*"|"[\s\S]*)|'[^']*'""", re.DOTALL)
"""What is kept, or a single-quoted text. Behind double quotes with a substitution in them everything is kept."""
_EXPANDS_IN_STRING = re.compile(r"\\.|\$\w*[^\w\s]?", re.DOTALL)
"""Expansions in a double-quoted text without substitutions, each with the character that decides how."""
_SAME = re.compile(
    r"\$[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_\[:])"  # a variable, without subscript or modifier
    r"|\$[?](?![\[:])"
    r"|\$\((?!\()"  # a command substitution
    r"|(?<![^\s;&|(])\[(?=\s)|(?<=\s)\](?![^\s;&|)])"  # test
    r"|(?<![^\s;&|(])~(?=/)"
    r"|(?<=[A-Za-z0-9_-])=(?!=)"  # an assignment, an option's value
    r"|(?<![^\s;&|(])!=?(?=\s)"
    r"|[*?](?![*?(])"
)
_NUMBERS = re.compile(
    r"(?:^|[\s;&|(])(?:LINES|COLUMNS|KEYTIMEOUT|LISTMAX|FUNCNEST|DIRSTACKSIZE|LOGCHECK|ERRNO|BAUD|PERIOD|TTYIDLE|SHLVL)"
    r"\+?=(?![0-9]*(?:[\s;&|)]|$))"
)
"""Assignments of anything else than digits to what zsh keeps as a number."""
_NUMERIC_TESTS = words("-eq -ne -lt -le -gt -ge -t")
_NUMERIC_FORMAT = re.compile(r"%[^%A-Za-z]*[^%bcqs(]")
_EVALUATES = words("exit return break continue shift logout bye print zformat zregexparse")
_EVALUATES_MORE = re.compile(r"\[|=|\+\+|--|\A(?:.*[^A-Za-z0-9_])?[A-Za-z_]", re.DOTALL)
"""In an argument that is evaluated: a subscript, an assignment, or a variable, whose text is evaluated in turn."""
_CLOBBERS = re.compile(r">&[!|]")
"""One operator, whose target is the next word."""
_OWN = re.compile(r"[({}*?\[\]^#~!$`=]")


def note_zsh_differences(text: str, found: Findings) -> None:
    """Notes what zsh may read in another way than bash does."""
    # Read from the left, quotes are what they seem up to a comment, a here-document or the like, which stays in sight.
    bare = _SINGLE.sub(lambda match: _visible_part(match[1] or ""), text)
    if _OWN.search(_SAME.sub(" ", bare)) or "<<" in bare or _CLOBBERS.search(bare):
        found.undecidable("a character that zsh reads differently")
    if _NUMBERS.search(text):
        found.undecidable("a number that zsh evaluates")


def _numbers_in(name: str | None, arguments: tuple[str | None, ...]) -> list[str | None]:
    """The arguments that a builtin takes for numbers."""
    if name in {"test", "["}:
        beside = [place for place, one in enumerate(arguments) if one in _NUMERIC_TESTS]
        return [
            one
            for place in beside
            for one in (*arguments[max(place - 1, 0) : place], *arguments[place + 1 : place + 2])
        ]
    if name == "print" and not any(one is not None and re.match(r"-\w*[uCf]", one) for one in arguments):
        return [one for one in arguments if one is None or "[" in one]
    return list(arguments[1:] if name == "printf" else arguments)


def _visible_part(text: str) -> str:
    """Return the part of a quoted or escaped text that zsh reads: the expansions of double quotes."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"' or "$(" in text or "`" in text:
        return text or "."
    return f'"{"".join(one for one in _EXPANDS_IN_STRING.findall(text[1:-1]) if one[0] == "$")}"'


def note_zsh_arguments(name: str | None, arguments: tuple[str | None, ...], found: Findings) -> None:
    """Notes where zsh takes a command's arguments in another way than bash: its builtins evaluate what bash's take for
    plain numbers, and a subscript in one runs substitutions; its `time` has no options, so the next word is started."""
    if name in OF_ZSH:
        read = [UNKNOWN if one is None else plain(one) for one in arguments]
        note_assigned(assignments_of_builtin(name, read), b"", found)
    first = arguments[0] if arguments else ""
    if name == "time" and (not first or first.startswith("-")):
        found.undecidable("time without a plain command behind it")
    if name == "print" and any(one is None or (one.startswith("-") and "v" in one) for one in arguments):
        found.undecidable("print may set a variable in zsh")
    if name in {"test", "["}:
        evaluates = any(one in _NUMERIC_TESTS for one in arguments)
    elif name == "printf":
        evaluates = first is None or _NUMERIC_FORMAT.search(first) is not None
    else:
        evaluates = name in _EVALUATES
    if evaluates and any(one is None or _EVALUATES_MORE.search(one) for one in _numbers_in(name, arguments)):
        found.undecidable(f"{name} evaluates numbers in zsh")
