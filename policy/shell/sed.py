"""sed's language, as far as it neither runs nor writes anything: read command by command, all else is refused.

GNU sed ends a regular expression at the next bare delimiter, BSD's reads bracket expressions first. So a delimiter in
one is not read at all; nor is what the two take apart in other ways.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.shell.file_uses import FileCase
    from policy.shell.findings import Findings

_BRACKETS = r"\[\^?\]?(?:\[:[a-z]+:\]|\[(?![:.=])|\\[^\]\n{0}]|[^\[\]\\\n{0}])*\]"
_PLACE = r"(?:[0-9]+(?:~[0-9]+)?|\$|/(?:\\.|" + _BRACKETS.format("/") + r"|[^\[\\/\n])*/I?)"
_ADDRESS = rf"(?:{_PLACE}(?:,\s*(?:{_PLACE}|[+~][0-9]+))?\s*(?:!\s*)?)?"


def _substitution(mark: str) -> str:
    mark = re.escape(mark)
    pattern = rf"(?:\\.|{_BRACKETS.format(mark)}|[^\[\\\n{mark}])*"
    return rf"s{mark}{pattern}{mark}(?:\\[^\n]|[^\\\n{mark}])*{mark}[gpiIm0-9]*"


_COMMAND = "|".join(
    [*map(_substitution, "/|#,:@!_"), r"y/(?:\\.|[^\\/\n])*/(?:\\.|[^\\/\n])*/", r"[pPdDnNgGhHxz=]", r"[qQl][0-9]*"]
)
_STEP = re.compile(
    rf"[\s;]*{_ADDRESS}(?:\{{|(?:{_COMMAND}|:\s*[A-Za-z0-9_]+|[bt]\s*[A-Za-z0-9_]*)[ \t]*(?=[;\n}}]|\Z)|\}})"
)
_REST = re.compile(rf"[\s;]*(?:{_ADDRESS}[aic](?:[^\\\n]|\\[\s\S])*)?")
"""Nothing, or text to insert, which runs to the end of the line and so is alone or last."""
_MAX_ENDS = 4_000
_ENDS = ";{}\n"
_ADDRESSES = re.compile(r"(?:[0-9$,!+~\sI]|/[^/]*/)*")
_SEVERAL = re.compile(r"[;{}\\\n]")
_SUBSTITUTION_THEN_WRITE = re.compile(r"s(.)(?:(?!\1).)*\1(?:(?!\1).)*\1[gpiIm0-9]*w")


def judge_sed(case: FileCase, found: Findings) -> None:
    """Notes a script that may run or write something."""
    given = case.given
    scripts = [word.text for word in given.values("script")]
    operands = [word.text for word in given.operands]
    takes_suffix = any(
        "inplace" in one.option.roles and (one.value is None or not one.value.text) for one in given.used
    )
    if given.doubtful:
        found.undecidable("sed is given an expansion that may become an option")
    named = [text for text in operands if text != ""]
    if not scripts:
        scripts, named = named[:1], named[1:]
    # BSD's sed takes the word behind -i for a suffix, and so an operand for the script.
    if takes_suffix and any(text is not None and _may_write(text) for text in named[:1]):
        found.undecidable("sed -i is given an operand that may be a script")
    if any(sum(map(script.count, _ENDS)) > _MAX_ENDS for script in scripts if script is not None):
        found.give_up(f"sed is given a script of more than {_MAX_ENDS} commands")
    elif not all(script is not None and is_plain(script) for script in scripts):
        found.undecidable("sed is given a script that may run or write something")


def _may_write(name: str) -> bool:
    """True if the name of a file is a script, too, that writes a file: elsewhere, or what a substitution leaves."""
    if _SEVERAL.search(name):
        return True
    command = _ADDRESSES.sub("", name, count=1)
    if command.startswith(("w", "W")):
        target = command[1:].lstrip()
        return target.startswith(("/", "~")) or ".." in target.split("/")
    return _SUBSTITUTION_THEN_WRITE.match(command) is not None


def is_plain(script: str) -> bool:
    """True if a script only reads and edits."""
    place = 0
    while not _REST.fullmatch(script, place):
        step = _STEP.match(script, place)
        if step is None:
            return False
        place = step.end()
    return True
