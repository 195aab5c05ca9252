"""find: where it begins, which names it filters by, and what stands for `{}`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.globs import ANY_DEPTH
from policy.names import words
from policy.shell.words import UNKNOWN, Word

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITES = words("-fprint -fprint0 -fprintf -fls")
_BEGINS = re.compile(r"-|\(|!|\Z")
_LEADING = words("-H -L -P")
_FOLLOWS = words("-L -follow")
"""What finds is then behind links."""
_ACTIONS = words("-delete -exec -execdir -ok -okdir") | WRITES
_ALTERNATIVES = words("-o -or ,")
_ALONE = words(
    "( ) -a -and -empty -executable -readable -writable -true -depth -d -daystart -mount -xdev -follow -noleaf -warn "
    "-nowarn -nouser -nogroup -print -print0 -ls -prune -quit -ignore_readdir_race"
)
_VALUED = words(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype -size -mtime -atime "
    "-ctime -mmin -amin -cmin -newer -anewer -cnewer -user -group -uid -gid -perm -links -inum -samefile -fstype "
    "-maxdepth -mindepth -used -printf -regextype"
)
_NEWER = re.compile(r"-newer[aBcmt]{2}")


def found_below(args: Sequence[Word]) -> list[Word]:
    """One word for each place where find begins: the pattern of what it may find there."""
    if any(word.text in _FOLLOWS for word in args):
        return [UNKNOWN]
    starts, rest = _taken_apart(args)
    name = _filter(rest)
    found = []
    for word in starts or [Word(".", ".")]:
        path = word.pattern if word.text is None else word.text
        if path is None:
            found.append(UNKNOWN)
            continue
        below = f"{path.rstrip('/')}/"
        found.append(Word(None, below, tilde=word.tilde, globs=True, pattern=f"{below}{ANY_DEPTH}/{name}"))
    return found


def _taken_apart(args: Sequence[Word]) -> tuple[list[Word], list[str | None]]:
    """Where it begins, and its expression."""
    place = 0
    while place < len(args) and args[place].text in _LEADING:
        place += 1
    begin = place
    while place < len(args) and (args[place].text is None or not _BEGINS.match(args[place].text or "")):
        place += 1
    return list(args[begin:place]), [word.text for word in args[place:]]


def _filter(expression: list[str | None]) -> str:
    """The pattern of names that everything fits on which find acts; `*` where that cannot be said."""
    if any(text is None or text in _ALTERNATIVES for text in expression):
        return "*"
    name, is_negated, place = "*", False, 0
    while place < len(expression):
        text = expression[place] or ""
        following = expression[place + 1] if place + 1 < len(expression) else None
        if text in _ACTIONS:
            break
        if text in {"!", "-not"}:
            is_negated = True
            place += 1
            continue
        if text in {"-name", "-iname"} and name == "*" and following and not is_negated and "/" not in following:
            name = following
        if text in _VALUED or _NEWER.fullmatch(text):
            place += 1
        elif text not in _ALONE:
            return "*"
        place += 1
        is_negated = False
    return name
