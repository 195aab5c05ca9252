"""Standard streams that end in the log of a CI runner, which obeys some of its lines.

GitHub Actions, Azure Pipelines and TeamCity take commands from what a program prints: `::error::`, `##[group]`,
`##vso[task.setvariable]`, `##teamcity[buildNumber]`. A model, a program, a server or a file's name could give them.
So a marker of a command gets a space before its last character, and a carriage return that ends no line is written as
its escape. JSON has no place for a space: there the character is an escape, which a parser reads as it was.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO, TextIO

# Between the characters of a marker there may be some without a look, over which a comparison of texts passes.
_SEEN: Final = r"[!-~\w]"
_UNSEEN_LETTERS: Final = "[\u115f\u1160\u3164\uffa0]"
_UNSEEN: Final = rf"(?:[^\t\n\r -~\w]|{_UNSEEN_LETTERS}){{0,32}}"


def _spell(word: str) -> str:
    return _UNSEEN.join(map(re.escape, word))


_MARKER: Final = re.compile(
    rf"(?=((?:(?<!{_SEEN})|(?<={_UNSEEN_LETTERS})){_spell('::')}"
    rf"|{_spell('##')}{_UNSEEN}(?:{_spell('vso')}|{_spell('teamcity')})?{_UNSEEN}\[))",
    re.IGNORECASE,
)
"""One may begin within another, and each ends in the character that makes it one. `::` is one at the start of a line
and behind white space, wherever that is; `##[` and its like are anywhere."""
_LONGEST: Final = 512  # characters of the longest marker, and more
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")


def install() -> None:
    """Have this process's standard output and error write for a runner."""
    log = _Log()
    sys.stdout, sys.stderr = _Text(sys.stdout, log), _Text(sys.stderr, log)


def clean_json(data: bytes) -> bytes:
    """JSON text that is equal when parsed, without markers."""
    text = data.decode("utf-8", "surrogateescape")
    places = _ends_of_markers(text)
    if not places:
        return data
    return _join(text, places, lambda char: f"\\u{ord(char):04x}").encode("utf-8", "surrogateescape")


def _ends_of_markers(text: str) -> set[int]:
    return {found.end(1) - 1 for found in _MARKER.finditer(text)}


def _join(text: str, places: set[int], written: Callable[[str], str]) -> str:
    """`text`, the characters at `places` as `written` has them."""
    return "".join(written(char) if place in places else char for place, char in enumerate(text))


class _Log:
    """The common part of both streams: the runner may read them as one."""

    tail = ""
    """The end of what was written last, on either."""


class _Text:
    """A text stream; all but what is said here is that of `stream`. It is no terminal, so nothing is drawn or asked."""

    def __init__(self, stream: TextIO, log: _Log) -> None:
        self._stream = stream
        self._log = log
        self._tail = ""
        self._return = ""  # a carriage return at the end, until it is known what follows
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

    def _clean(self, text: str) -> str:
        places: set[int] = set()
        for tail in {self._tail, self._log.tail}:
            places |= {place - len(tail) for place in _ends_of_markers(tail + text)}
        self._tail, self._log.tail = ((tail + text)[-_LONGEST:] for tail in (self._tail, self._log.tail))
        return _LONE_RETURN.sub(r"\\r", _join(text, places, lambda char: f" {char}"))


class _Json:
    """The binary stream below, which gets whole JSON texts. Who writes to its descriptor uses `clean` first."""

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
