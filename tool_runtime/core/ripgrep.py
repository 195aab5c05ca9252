"""`rg`, where it is installed: which of many files have a match. What it is asked is what RE2 would find.

The two engines differ in what they take and, for a few constructs, in what that means. `for_ripgrep` gives a pattern in
the words in which both mean the same, and None for any other: such a pattern is RE2's alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from tool_runtime.core.files import refuse_abandoned
from tool_runtime.platform.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.tool import Abandoned

_MAX_BATCH_BYTES: Final = 512 * 1024
# The first process begins soon; the others are few, since each costs some milliseconds.
_FIRST_FILES, _LATER_FILES = 2000, 20_000
_POLL_S: Final = 0.05
_OPTIONS: Final = (
    "--no-config", "--no-ignore", "--no-ignore-dot", "--no-ignore-global", "--hidden", "--text", "--encoding=auto",
    "--no-messages", "--color=never", "--no-heading", "--files-with-matches", "--null", "--sort=none",
    "--max-depth=1",
)  # fmt: skip
_NO_MATCH, _FAILED = 1, 2

# What RE2 means by them: ASCII, and no vertical tab. No line has a line feed, and `rg` takes none in a pattern.
_CLASSES: Final = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]", "s": r"[\t\f\r ]",
                   "S": r"[^\t\f\r ]", "b": r"(?-u:\b)"}  # fmt: skip
_IN_CLASS: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\f\r "}
_END: Final = r"(?:\r?$)"
_SAME: Final = frozenset("tfra")
_TOKEN: Final = re.compile(
    r"""
      (?P<escape>\\x[0-7][0-9a-fA-F]|\\[A-Za-wyz])
    | \\(?P<mark>[^\w\s])
    | (?P<repeat>\{[0-9]{1,3}(?:,[0-9]{0,3})?\})
    | (?P<group>\(\?i\)(?![*+?{])|\(\?i:|\(\?:|\((?!\?))
    | (?P<class>\[\^?(?:\[:\^?[a-z]+:\]|\\.|[^\]\[\\&~\n])+\])
    | (?P<plain>[A-Za-z0-9 _"'#%,:;<=>@`~/!&\-] | [.^$|)*+?])
    """,
    re.VERBOSE,
)
_MEMBER: Final = re.compile(
    r"""
      (?P<posix>\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|upper|word|xdigit):\])
    | \\(?P<known>[dws])
    | \\(?P<same>[tfra])
    | \\(?P<mark>[^\w\s])
    | (?P<plain>[A-Za-z0-9 _"'\#%,:;<=>@`/!.^$|()*+?{}])
    """,
    re.VERBOSE,
)


class Ripgrep(NamedTuple):
    """The program at the real path `program`; `environment` is all that it is given."""

    program: str
    environment: dict[str, str]


class Question(NamedTuple):
    """What is asked of all files of one search: `pattern` is in the words of `for_ripgrep`."""

    rg: Ripgrep
    root: str
    pattern: str
    ignore_case: bool
    max_file_size_bytes: int

    @property
    def argv(self) -> list[str]:
        """The command line up to the paths."""
        options = [*_OPTIONS, f"--max-filesize={self.max_file_size_bytes}", f"--regexp={self.pattern}"]
        return [self.rg.program, *options, *(["--ignore-case"] if self.ignore_case else []), "--"]


class Search:
    """One question, asked of files while they are found, by a process for some thousands of them."""

    def __init__(self, question: Question, least_files: int) -> None:
        self._question = question
        self._least_files = least_files
        self._waiting: list[str] = []
        self._waiting_bytes = self._waiting_files = self._files = 0
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def add(self, folder: str, names: Sequence[str], *, complete: bool) -> None:
        """Ask of the files `names` of a folder, a path from the root, empty or with a slash at its end. `complete`:
        these are all files that are in it, so that the folder stands for them."""
        if not names:
            return
        paths = [folder or "./"] if complete else [f"./{folder}{name}" for name in names]
        for path in paths:
            self._waiting.append(path)
            self._waiting_bytes += len(path) * 4 + 8
            if self._waiting_bytes > _MAX_BATCH_BYTES:
                self._ask()
        self._files += len(names)
        self._waiting_files += len(names)
        enough = _LATER_FILES if self._running else max(_FIRST_FILES, self._least_files)
        if self._waiting_files >= enough:
            self._ask()

    def answer(self, abandoned: Abandoned) -> dict[str, set[str]] | None:
        """The names of the files with a match, by their folders; None where there are too few files to ask, or where it
        does not take the question. Raises ToolFault for a call that has been given up."""
        try:
            if self._files < self._least_files:
                return None
            self._ask()
            outputs = [_printed(process, said, abandoned) for process, said in self._running]
        finally:
            self.close()
        found: dict[str, set[str]] = {}
        for output in outputs:
            if output is None:
                return None
            for path in output.split(b"\0")[:-1]:
                folder, _, name = os.fsdecode(path).removeprefix("./").rpartition("/")
                found.setdefault(f"{folder}/" if folder else "", set()).add(name)
        return found

    def close(self) -> None:
        """End what runs."""
        for process, said in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()
            said.close()
        self._running = []

    def _ask(self) -> None:
        if not self._waiting:
            return
        said = tempfile.TemporaryFile()  # noqa: SIM115  closed with its process
        process = subprocess.Popen(
            [*self._question.argv, *self._waiting],
            cwd=self._question.root,
            env=self._question.rg.environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.PIPE,
        )
        self._running.append((process, said))
        self._waiting, self._waiting_bytes, self._waiting_files = [], 0, 0


def _printed(process: subprocess.Popen[bytes], said: IO[bytes], abandoned: Abandoned) -> bytes | None:
    """What it prints; None where it fails, but for files that it cannot read: of those it says nothing."""
    while True:
        try:
            _, complaint = process.communicate(timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            refuse_abandoned(abandoned)
    if complaint or process.returncode not in (0, _NO_MATCH, _FAILED):
        return None
    said.seek(0)
    return said.read()


def installed(search_path: str, outside: Sequence[str]) -> Ripgrep | None:
    """`rg` as PATH has it, followed to where it leads; None if there is none that lies in no place `outside`."""
    program = find_program("rg", search_path, outside)
    if program is None:
        return None
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TMPDIR", "TEMP") if name in os.environ}
    return Ripgrep(os.path.realpath(program), kept)


def for_ripgrep(pattern: str, *, with_returns: bool = True) -> str | None:
    """A pattern of RE2's syntax as `rg` means the same by it, None for one of which that is not known. Unless
    `with_returns`, it also finds lines that match without the return before their end."""
    written: list[str] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        part = None if token is None else _translated(token)
        if token is None or part is None:
            return None
        written.append(_END if part == "$" and not with_returns else part)
        at = token.end()
    return "".join(written)


def _translated(token: re.Match[str]) -> str | None:
    if token["escape"] is not None:
        name = token["escape"][1:]
        return token["escape"] if name in _SAME or len(name) > 1 else _CLASSES.get(name)
    if token["mark"] is not None:
        return f"\\x{ord(token['mark']):02x}" if token["mark"].isascii() else None
    return _class(token["class"]) if token["class"] is not None else token[0]


def _class(text: str) -> str | None:
    inside = text[2:-1] if text.startswith("[^") else text[1:-1]
    written: list[str] = []
    at, last = 0, ""
    while at < len(inside):
        char = inside[at]
        if char == "-":  # a range of two plain characters, or a hyphen at either end
            following = inside[at + 1 : at + 2]
            if not (last.isalnum() and following.isalnum()) and 0 < at < len(inside) - 1:
                return None
            written.append("-" if 0 < at < len(inside) - 1 else r"\x2d")
            at, last = at + 1, ""
            continue
        member = _MEMBER.match(inside, at)
        if member is None:
            return None
        last = ""
        if member["known"] is not None:
            written.append(_IN_CLASS[member["known"]])
        elif member["mark"] is not None:
            written.append(f"\\x{ord(member['mark']):02x}")
        elif member["plain"] is not None:
            last = member["plain"]
            written.append(last if last.isalnum() else f"\\x{ord(last):02x}")
        else:
            written.append(member[0])
        at = member.end()
    return f"[{'^' if text.startswith('[^') else ''}{''.join(written)}]"
