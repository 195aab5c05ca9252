"""Shells that read a line in another way than bash.

cmd.exe and PowerShell have a conservative splitter: anything that could mean more than one plain command is dynamic.

zsh is read by bash's tree, so what zsh takes for something else is not decided. Single quotes mean the same in both and
hide everything in them. What is left may have expansions of plain variables, command substitutions, plain patterns and
tests; subscripts, modifiers, flags, glob qualifiers, `=name`, brace forms and here-documents may be code to zsh and are
not looked into.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.assigned import OF_ZSH, assignments_of_builtin, note_assigned
from policy.shell.effects import judge_arguments, starts_another
from policy.shell.words import UNKNOWN, plain

if TYPE_CHECKING:
    from policy.shell.findings import Findings

_META = {
    "cmd": re.compile(r"[&|<>^%!()@\r\n\x00-\x08\x0b-\x1f\x7f]"),
    "powershell": re.compile(r"[&|<>;$`(){}@#\r\n\x00-\x08\x0b-\x1f\x7f‘’‚‛“”„–—―]|--%"),
}
_ODD_BLANK = re.compile(r"[^\S \t]")
_TOKEN = re.compile(r'\s*((?:[^\s"\']|"[^"]*"|\'[^\']*\')+)')
_PROGRAM = re.compile(r"(?:[A-Za-z]:)?[A-Za-z0-9_.\\/+-]+")
_EXTENSION = re.compile(r"\.(?:exe|cmd|bat|com|ps1)$", re.IGNORECASE)
_RUNNERS = words(
    "call start for forfiles if runas invoke-expression iex invoke-command icm start-process "
    "saps invoke-item ii wscript cscript mshta rundll32 regsvr32 msiexec wmic schtasks new-alias "
    "set-alias sal nal set-item si set-variable sv import-module ipmo add-type set path doskey assoc ftype reg "
    "invoke-wmimethod iwmi invoke-cimmethod start-job sajb foreach-object foreach where-object where . return exit "
    "throw using trap new-psdrive ndr register-objectevent register-scheduledjob enter-pssession nsn new-pssession "
    "conhost pcalua msbuild installutil cmstp odbcconf psexec explorer wt hh control setlocal "
    "setx subst invoke-history ihy r import-alias ipal new-service start-service sasv"
)
_INTERNAL = words(
    "assoc break call cd chdir cls color copy date del dir dpath echo endlocal erase exit for ftype goto if keys md "
    "mkdir mklink move path pause popd prompt pushd rd rem ren rename rmdir set setlocal shift start time title type "
    "ver verify vol"
)
"""cmd's own commands. Many marks may follow their names without a blank, and are no part of them: `del/q`, `echo.x`."""
_NAME_END = re.compile(r"[^A-Za-z0-9_-]")
_UNLIKE_POSIX = _INTERNAL | words("more find sort timeout")
"""Programs that only share a name with one of POSIX."""
CMD_ALIASES = {"erase": "del", "rd": "rmdir", "md": "mkdir", "chdir": "cd", "ren": "rename"}
"""cmd's second names."""
ALIASES = {
    "rm": "remove-item", "ri": "remove-item", "del": "remove-item", "erase": "remove-item", "rd": "remove-item",
    "rmdir": "remove-item", "ls": "get-childitem", "dir": "get-childitem", "gci": "get-childitem",
    "cat": "get-content", "gc": "get-content", "type": "get-content", "cp": "copy-item", "copy": "copy-item",
    "cpi": "copy-item", "mv": "move-item", "move": "move-item", "mi": "move-item", "ren": "rename-item",
    "rni": "rename-item", "echo": "write-output", "write": "write-output", "cd": "set-location",
    "chdir": "set-location", "sl": "set-location", "pushd": "push-location", "popd": "pop-location",
    "pwd": "get-location", "gl": "get-location", "curl": "invoke-webrequest", "wget": "invoke-webrequest",
    "iwr": "invoke-webrequest", "irm": "invoke-restmethod", "kill": "stop-process", "spps": "stop-process",
    "ps": "get-process", "gps": "get-process", "sc": "set-content", "ac": "add-content", "clc": "clear-content",
    "cli": "clear-item", "clp": "clear-itemproperty", "ni": "new-item", "md": "new-item", "mkdir": "new-item",
    "gi": "get-item", "gp": "get-itemproperty", "sp": "set-itemproperty", "rp": "remove-itemproperty",
    "rnp": "rename-itemproperty", "cpp": "copy-itemproperty", "mp": "move-itemproperty", "rdr": "remove-psdrive",
    "sls": "select-string", "spsv": "stop-service", "gsv": "get-service", "gwmi": "get-wmiobject",
    "rwmi": "remove-wmiobject", "swmi": "set-wmiinstance", "epcsv": "export-csv", "ipcsv": "import-csv",
    "tee": "tee-object", "sleep": "start-sleep", "sort": "sort-object", "diff": "compare-object",
    "compare": "compare-object", "cls": "clear-host", "clear": "clear-host", "man": "get-help", "help": "get-help",
    "gcm": "get-command", "gal": "get-alias", "h": "get-history", "history": "get-history", "scb": "set-clipboard",
    "gcb": "get-clipboard", "rv": "remove-variable", "gv": "get-variable", "mount": "new-psdrive",
}  # fmt: skip
"""PowerShell's own names for its commands, so that a block list meets them under either."""
_SINGLE = re.compile(r"""(\\.|"(?:\\.|[^"\\$`]|\$(?!\())*"|"[\s\S]*)|'[^']*'""", re.DOTALL)
"""Text to keep, or a single-quoted text. Everything after double quotes with a substitution in them is kept."""
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


def split(command: str, shell: str, found: Findings) -> None:
    """Notes the one command of a plain line, and why the line can't be judged. Quotes are removed around whole runs."""
    pieces = _pieces(command, found)
    if _META[shell].search(command) or _ODD_BLANK.search(command):
        found.misread(f"a character that {shell} gives a meaning to")
    if not pieces:
        return
    program = pieces[0]
    arguments = [word.replace('"', "").replace("'", "") for word in pieces[1:]]
    found.commands.append((program, tuple(arguments)))
    base = base_name(program)
    if not _PROGRAM.fullmatch(program) or (shell == "cmd" and _runs_on(program)):
        found.undecidable("the program's name is not spelled plainly")
    if _starts_others(base, arguments):
        found.undecidable(f"{program} runs other commands or changes what they mean")
    if shell == "cmd" and any("'" in word for word in pieces):
        found.undecidable("single quotes mean nothing to cmd")
    if base not in _UNLIKE_POSIX:
        judge_arguments(program, [plain(word) for word in arguments], found, base)


def base_name(program: str) -> str:
    """The name without directory and extension, in lower case."""
    name = re.split(r"[\\/]", program)[-1]
    return _EXTENSION.sub("", name).lower()


def _pieces(command: str, found: Findings) -> list[str]:
    pieces: list[str] = []
    place, stripped = 0, command.rstrip()
    while place < len(stripped):
        match = _TOKEN.match(stripped, place)
        if match is None:
            found.undecidable("quotes are not balanced")
            break
        pieces.append(match[1])
        place = match.end()
    return pieces


def _runs_on(program: str) -> bool:
    """True if cmd reads a command of its own, and the rest of the word as its argument."""
    head = _NAME_END.split(program, maxsplit=1)[0].lower()
    return head in _INTERNAL and _EXTENSION.sub("", program).lower() != head


def _starts_others(base: str, arguments: list[str]) -> bool:
    if base in _RUNNERS:
        return True
    if base in _UNLIKE_POSIX:
        return base == "find" and "-exec" in arguments
    return starts_another(base, [plain(word) for word in arguments])


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
