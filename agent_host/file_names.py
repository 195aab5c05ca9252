"""Names of files that a model cannot give as they are: with spaces that look like others, accents in two characters,
or bytes that are no UTF-8.

Every name that was shown can be given back: as it was shown, escapes included, it means that file. For reading, a name
that is not there and looks exactly like one that is means that one, too.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from typing import TYPE_CHECKING, Final

from agent_host.display_text import escape, name_for_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_NAMES: Final = 20_000
"""Names that one look at a directory compares."""
_SPACES: Final = re.compile(r"\s")
_LIKENESS: Final = 0.6
_MAX_NEAREST: Final = 3


def name_that_is_meant(path: str, *, looks: bool) -> str | None:
    """The path that is meant by the absolute `path`, where nothing has that: the one that was shown so, or with `looks`
    the only one that looks the same. None where there is no such one."""
    drive, rest = os.path.splitdrive(path)
    at, parts = drive + os.sep, rest.strip(os.sep).split(os.sep)
    for number, part in enumerate(parts):
        below = os.path.join(at, part)
        if not os.path.lexists(below):
            name = _entry(at, part, looks=looks)
            if name is None:
                there = os.path.join(at, *parts[number:])
                return there if not looks and there != path else None
            below = os.path.join(at, name)
        at = below
    return None if at == path else at


def nearest(path: str, is_admitted: Callable[[str], bool]) -> list[str]:
    """Names in the directory of the absolute `path` that look like its last one, the nearest first; at most 3. Those
    whose paths are not admitted are left out."""
    above, wanted = os.path.split(path)
    key = _look_of(wanted).casefold()
    matcher = difflib.SequenceMatcher(None, "", key, autojunk=False)
    found: list[tuple[float, str]] = []
    for name in _names(above):
        matcher.set_seq1(_look_of(name).casefold())
        if matcher.real_quick_ratio() >= _LIKENESS and matcher.quick_ratio() >= _LIKENESS:
            likeness = matcher.ratio()
            if likeness >= _LIKENESS and name != wanted and is_admitted(os.path.join(above, name)):
                found.append((-likeness, name))
    return [escape(name, "") for _, name in sorted(found)[:_MAX_NEAREST]]


def look_alikes(path: str) -> list[str]:
    """Names in the directory of the absolute `path` that look exactly like its last one, and are others."""
    above, wanted = os.path.split(path)
    return [escape(name, "") for name in _names(above) if name != wanted and _look_of(name) == _look_of(wanted)]


def _entry(directory: str, wanted: str, *, looks: bool) -> str | None:
    if "\\" not in wanted and not looks:
        return None
    names = list(_names(directory))
    shown = [name for name in names if wanted in (escape(name, ""), name_for_json(name))]
    if len(shown) == 1:
        return shown[0]
    alike = [name for name in names if _look_of(name) == _look_of(wanted)] if looks and not shown else []
    return alike[0] if len(alike) == 1 else None


def _look_of(name: str) -> str:
    import unicodedata  # a start looks at no name

    return _SPACES.sub(" ", unicodedata.normalize("NFKC", name))


def _names(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except (OSError, ValueError):
        return
