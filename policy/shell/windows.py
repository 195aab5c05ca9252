"""cmd.exe and PowerShell: a conservative splitter. Anything that could mean more than one plain command is dynamic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.effects import judge_arguments, starts_another
from policy.shell.words import plain

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
