"""Standard streams that go to the log of a CI runner, which executes some of its lines.

GitHub Actions, Azure Pipelines and TeamCity read commands from a program's output: `::error::`, `##[group]`,
`##vso[task.setvariable]`, `##teamcity[buildNumber]`. GitLab takes `section_start:` and `section_end:` before a carriage
return. A model, a program, a server or a file's name could contain them. So a marker of a command gets a space before
its last character, and a carriage return that ends no line is written as its escape. In JSON a space would change the
text, so the character is escaped there, and a parser restores it.

The host's own commands are written by `write_github_command` and the functions of GitLab's sections. They accept names,
properties and a message, never a line, and escape them, so that no text of a model or a command can start or end a
command.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from agent_host.cli import GITLAB, RUNNERS, put
from agent_host.display_text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import BinaryIO, Literal, TextIO

    GithubCommand = Literal["group", "endgroup", "error", "warning"]

# Invisible characters may be between the characters of a marker; a comparison of texts may ignore them.
_SEEN: Final = r"[!-9;-~\w]"  # except for the colon: of three in a row the last two would remain after the space
_UNSEEN_LETTERS: Final = "[\u115f\u1160\u3164\uffa0]"
_UNSEEN: Final = rf"(?:[^\t\n\r -~\w]|{_UNSEEN_LETTERS}){{0,32}}"


def _spell(word: str) -> str:
    return _UNSEEN.join(map(re.escape, word))


_MARKER: Final = re.compile(
    rf"(?=((?:(?<!{_SEEN})|(?<={_UNSEEN_LETTERS})){_spell('::')}"
    rf"|{_spell('##')}{_UNSEEN}(?:{_spell('vso')}|{_spell('teamcity')})?{_UNSEEN}\[))",
    re.IGNORECASE,
)
"""Markers may overlap, and each ends in the character that completes it. `::` is one at the start of a line and after
any white space; `##[` and similar ones are markers anywhere."""
_SECTION: Final = re.compile(r"(?=(section_(?:start|end):))", re.IGNORECASE)
_MARKERS: Final = (_MARKER, _SECTION)
_LONGEST: Final = 512  # more than the characters of the longest marker
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")


def install() -> None:
    """Make this process's standard output and error write for a runner."""
    named = [name for name in RUNNERS if os.environ.get(name)]
    log = _Log((_SECTION,) if named == [GITLAB] else _MARKERS)
    sys.stdout, sys.stderr = _Text(sys.stdout, log), _Text(sys.stderr, log)


def write_github_command(stream: TextIO, command: GithubCommand, message: str = "", **properties: str | int) -> None:
    """Write a command for GitHub's runner to `stream`, on its own line. Does nothing for a stream that is not one of
    `install`."""
    given = {name: _escape_data(str(value)) for name, value in properties.items()}
    shown = ",".join(f"{name}={value.replace(':', '%3A').replace(',', '%2C')}" for name, value in given.items())
    _write_raw(stream, f"::{command}{' ' if shown else ''}{shown}::{_escape_data(message)}\n")


def mark_gitlab_section(stream: TextIO, edge: Literal["start", "end"], name: str, title: str, at: int) -> None:
    """Begin or end a section of GitLab's log, `at` the time in seconds; an end has no title."""
    section = re.sub(r"[^a-z0-9_]", "_", name)
    _write_raw(stream, f"\x1b[0Ksection_{edge}:{at}:{section}\r\x1b[0K{escape(title, keep='')}\n")


def _escape_data(text: str) -> str:
    """Escape a message for the runner, which decodes it. Line ends are kept; nothing in it is a marker, even when the
    runner writes the message into its log."""
    text = escape(text.replace("\r\n", "\n"), keep="\n\t")
    text = _join(text, _ends_of_markers(text), lambda char: f" {char}")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _write_raw(stream: TextIO, line: str) -> None:
    write: Callable[[str], None] | None = getattr(stream, "write_command", None)
    if write is not None:
        write(line)


def clean_json(data: bytes) -> bytes:
    """Return JSON text without markers that is equal when parsed."""
    text = data.decode("utf-8", "surrogateescape")
    places = _ends_of_markers(text)
    if not places:
        return data
    return _join(text, places, lambda char: f"\\u{ord(char):04x}").encode("utf-8", "surrogateescape")


def _ends_of_markers(text: str, markers: Sequence[re.Pattern[str]] = _MARKERS) -> set[int]:
    return {found.end(1) - 1 for marker in markers for found in marker.finditer(text)}


def _join(text: str, places: set[int], written: Callable[[str], str]) -> str:
    """Return `text` with the characters at `places` replaced as in `written`."""
    return "".join(written(char) if place in places else char for place, char in enumerate(text))


class _Log:
    """The common part of both streams, because the runner may read them as one. `markers` are those that it
    executes."""

    def __init__(self, markers: Sequence[re.Pattern[str]] = _MARKERS) -> None:
        self.markers = markers
        self.tail = ""
        """The end of what was written last, on either."""


class _Text:
    """A text stream; everything not defined here is delegated to `stream`. It is not a terminal, so nothing is drawn or
    asked."""

    def __init__(self, stream: TextIO, log: _Log) -> None:
        self._stream = stream
        self._log = log
        self._tail = ""
        self._return = ""  # a carriage return at the end, until the next character is known
        self.buffer = _Json(stream.buffer, log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        given = len(text)
        text, self._return = self._return + text, ""
        if text.endswith("\r"):
            text, self._return = text[:-1], "\r"
        if text:
            self._stream.write(self._clean(text))
        return given

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def write_command(self, line: str) -> None:
        """Write a command of the host, at the start of a line on both streams, because they may be one."""
        if self._return or not {self._tail[-1:], self._log.tail[-1:]} <= {"", "\n"}:
            self.write("\n")
        put(self._stream, line)
        self._tail = self._log.tail = "\n"

    def _clean(self, text: str) -> str:
        places: set[int] = set()
        for tail in {self._tail, self._log.tail}:
            places |= {place - len(tail) for place in _ends_of_markers(tail + text, self._log.markers)}
        self._tail, self._log.tail = ((tail + text)[-_LONGEST:] for tail in (self._tail, self._log.tail))
        return _LONE_RETURN.sub(r"\\r", _join(text, places, lambda char: f" {char}"))


class _Json:
    """The binary stream, which gets complete JSON texts. Use `clean` before writing to its descriptor."""

    clean = staticmethod(clean_json)

    def __init__(self, stream: BinaryIO, log: _Log) -> None:
        self._stream = stream
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: bytes) -> int:
        self._log.tail = ""
        self._stream.write(clean_json(data))
        return len(data)
