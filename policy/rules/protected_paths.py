"""Paths of git repositories that only git may write: known by their spelling alone, whatever machine they are of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.paths import ancestors, is_absolute, is_under, key, normalize
from policy.rules.git_directory import FILES, SHAPE, STEERING, find_refused_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

_MOST_DIRECTORIES = 3


def repository_place(
    path: str, allowed: Iterable[str] | None, os: OsFamily, *, in_repository: bool = False
) -> str | None:
    """Return what of a git repository a normalised absolute path would change so that git may run other programs from
    then on: `.git` itself, or anything in it whose name alone may start something
    (`git_directory.find_refused_name`). None for any other path, and for one that an entry of `allowed` covers which
    names a `.git` itself. Letter case and characters that file systems leave out of names do not matter.

    `in_repository`: the directory that would have to be a repository is laid out like one, whatever it is called, or is
    by this change. Then an entry of `allowed` has to be that directory, or lie in it."""
    place = _repository_place(path, os)
    if place is not None:
        return None if names_repository(path, allowed, os) else place
    for directory, inside in repositories_by_shape(path, os)[:1] if in_repository else ():
        if not any(is_under(path, one, os) and is_under(one, directory, os) for one in allowed or ()):
            return f"{_parts(directory, os)[-1]}/{inside}"
    return None


def is_git(path: str, os: OsFamily) -> bool:
    """True if a normalised absolute path is called `.git`."""
    return is_called(path, ".git", os)


def is_called(path: str, name: str, os: OsFamily) -> bool:
    """True if `name` is the last component of a normalised absolute path."""
    return _parts(path, os)[-1] == name


def names_repository(path: str, allowed: Iterable[str] | None, os: OsFamily) -> bool:
    """True if an entry of `allowed` that covers the path names a `.git` itself."""
    return any(".git" in _parts(one, os) and is_under(path, one, os) for one in allowed or ())


def gives_whole(directory: str, allowed: Iterable[str] | None, os: OsFamily) -> bool:
    """True if an entry of `allowed` names the git directory itself, so that what is in it is as free as any file."""
    return names_repository(directory, allowed, os) or any(is_under(one, directory, os) for one in allowed or ())


def repositories_by_shape(path: str, os: OsFamily) -> tuple[tuple[str, str], ...]:
    """Return (directory, part of it) for each directory of which a normalised absolute path would be a hook, the
    configuration or the like if that directory were a repository, nearest first and three at most. None for most paths,
    and for those in a `.git`, which that name describes."""
    return _find_by_names(path, os, STEERING)


def repositories_in_the_making(path: str, os: OsFamily) -> tuple[tuple[str, str], ...]:
    """Return the same for each directory that the path may make a repository of (`HEAD`, `objects`, `refs`)."""
    return _find_by_names(path, os, SHAPE)


def _find_by_names(path: str, os: OsFamily, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    folded = _parts(key(path, os, "wide"), os)
    if names.isdisjoint(folded) or ".git" in folded:
        return ()
    last = len(folded) - 1
    found = [
        (place, part)
        for place, part in enumerate(folded)
        if place > 0 and part in names and (place == last or part not in FILES)
    ]
    separator = "/" if os == "posix" else "\\"
    parts = _parts(path, os)
    return tuple(
        (normalize(separator.join(parts[:place]) + separator, os), part)
        for place, part in reversed(found[-_MOST_DIRECTORIES:])
    )


def _parts(path: str, os: OsFamily) -> list[str]:
    return (path.replace("\\", "/") if os == "windows" else path).split("/")


def _repository_place(path: str, os: OsFamily) -> str | None:
    plain = key(path, os, "wide")
    if ".git" not in plain:
        return None
    parts = _parts(plain, os)
    refused = None
    for place, part in enumerate(parts):
        if part == ".git":
            inside = parts[place + 1 :]
            named = find_refused_name(inside)
            refused = ".git" if not inside else refused if named is None else f".git/{named}"
    return refused


# The temporary directories of sessions, which lie beside each other: one session's are nothing to the next.

_OF_SESSIONS = "agent-host-"
_SESSION_FOLDER = re.compile(_OF_SESSIONS + r"[A-Za-z0-9_-]+-[0-9a-f]{8}")
"""Name of a session's temporary directory: made from its id and the state directory."""
_TEMPORARY_FOLDERS = frozenset({
    "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "c:\\windows\\temp",  # noqa: S108  names to compare with
})  # fmt: skip


def session_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The temporary directory of a session that a normalised absolute path is in, unless an entry of `allowed` that
    covers the path names that directory itself. None for any other path. Such a directory lies directly below a
    directory for temporary files: a usual one, or the one that a session's directory in `allowed` lies in."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = _TEMPORARY_FOLDERS | {key(_parent(one, os), os, "wide") for one in entries if _is_of_session(one, os)}
    for at in ancestors(path, os, len(path)):
        if _name(key(at, os, "wide"), os).startswith(_OF_SESSIONS) and key(_parent(at, os), os, "wide") in folders:
            named = any(is_under(one, at, os) and is_under(path, one, os) for one in entries)
            return None if named else at
    return None


def own_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The session's own temporary directory in `allowed`, if it is in the directory for temporary files that a
    normalised absolute path is in."""
    own = next((one for one in allowed if _is_of_session(one, os)), None)
    return own if own is not None and is_under(path, _parent(own, os), os) else None


def is_shared_temporary(path: str, own: str | None, os: OsFamily) -> bool:
    """True if a normalised absolute path is a directory that sessions have their temporary directories in: a usual one,
    or that of the session's `own`."""
    shared = _TEMPORARY_FOLDERS if own is None else _TEMPORARY_FOLDERS | {key(_parent(own, os), os, "wide")}
    return key(path, os, "wide") in shared


def may_be_of_session(path: str, os: OsFamily) -> bool:
    """True if a name on the path is like that of a session's temporary directory."""
    return _OF_SESSIONS in key(path, os, "wide")


def session_samples(allowed: Iterable[str], os: OsFamily) -> list[str]:
    """A directory of a session that nobody has, in each directory where there may be others': what would go with all
    that is there."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = [_parent(one, os) for one in entries if _is_of_session(one, os)]
    usual = sorted(one for one in _TEMPORARY_FOLDERS if is_absolute(one, os))
    return [f"{folder}/{_OF_SESSIONS}s-00000000" for folder in dict.fromkeys((*folders, *usual))]


def _parent(path: str, os: OsFamily) -> str:
    return normalize(path + "/..", os)


def _is_of_session(path: str, os: OsFamily) -> bool:
    return _SESSION_FOLDER.fullmatch(_name(path, os)) is not None


def _name(path: str, os: OsFamily) -> str:
    return re.split(r"[\\/]" if os == "windows" else "/", path)[-1]
