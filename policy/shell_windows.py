"""cmd.exe and PowerShell: a conservative splitter. Anything that could mean more than one plain command is dynamic."""

from __future__ import annotations

import re

from policy.names import words

_META = {
    "cmd": re.compile(r"[&|<>^%!()@\r\n\x00-\x08\x0b-\x1f\x7f]"),
    "powershell": re.compile(r"[&|<>;$`(){}@#\r\n\x00-\x08\x0b-\x1f\x7f‘’‚‛“”„–—―]|--%"),
}
_TOKEN = re.compile(r'\s*((?:[^\s"\']|"[^"]*"|\'[^\']*\')+)')
_PROGRAM = re.compile(r"[A-Za-z0-9_.:\\/+-]+")
_EXTENSION = re.compile(r"\.(?:exe|cmd|bat|com|ps1)$", re.IGNORECASE)
_RUNNERS = words(
    "cmd powershell pwsh call start for forfiles if runas invoke-expression iex invoke-command icm start-process "
    "saps invoke-item ii wscript cscript mshta rundll32 regsvr32 msiexec wmic wsl bash sh ssh schtasks at new- "
    "alias set-alias sal nal set-item set-variable sv import-module ipmo add-type set path doskey assoc ftype reg "
    "invoke-wmimethod invoke-cimmethod start-job sajb foreach-object where-object"
)
ALIASES = {
    "rm": "remove-item", "ri": "remove-item", "del": "remove-item", "erase": "remove-item", "rd": "remove-item",
    "rmdir": "remove-item", "ls": "get-childitem", "dir": "get-childitem", "gci": "get-childitem",
    "cat": "get-content", "gc": "get-content", "type": "get-content", "cp": "copy-item", "copy": "copy-item",
    "cpi": "copy-item", "mv": "move-item", "move": "move-item", "mi": "move-item", "echo": "write-output",
    "write": "write-output", "cd": "set-location", "chdir": "set-location", "sl": "set-location",
    "curl": "invoke-webrequest", "wget": "invoke-webrequest", "iwr": "invoke-webrequest", "irm": "invoke-restmethod",
    "kill": "stop-process", "spps": "stop-process", "sc": "set-content", "ac": "add-content", "ni": "new-item",
    "md": "new-item", "mkdir": "new-item",
}  # fmt: skip
"""PowerShell's own names for its commands, so that a block list meets them under either."""


def split(command: str, shell: str) -> tuple[list[str], tuple[str, ...]]:
    """The words of a plain line and the reasons why it can't be judged. Quotes are removed only around whole runs."""
    found: list[str] = []
    reasons: list[str] = []
    if _META[shell].search(command):
        reasons.append(f"a character that {shell} gives a meaning to")
    place = 0
    stripped = command.rstrip()
    while place < len(stripped):
        match = _TOKEN.match(stripped, place)
        if match is None:
            reasons.append("quotes are not balanced")
            break
        found.append(match[1])
        place = match.end()
    if not found:
        return [], tuple(reasons)
    if not _PROGRAM.fullmatch(found[0]):
        reasons.append("the program's name is not spelled plainly")
    if base_name(found[0]) in _RUNNERS:
        reasons.append(f"{found[0]} runs other commands or changes what they mean")
    if shell == "cmd" and any("'" in word for word in found):
        reasons.append("single quotes mean nothing to cmd")
    return [found[0], *(word.replace('"', "").replace("'", "") for word in found[1:])], tuple(reasons)


def base_name(program: str) -> str:
    """The name without directory and extension, in lower case."""
    name = re.split(r"[\\/]", program)[-1]
    return _EXTENSION.sub("", name).lower()
