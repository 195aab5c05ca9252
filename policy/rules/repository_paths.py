"""Paths of git repositories that only git may write: known by their spelling alone, whatever machine they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.paths import is_under, key, normalize
from policy.rules.git_directory import FILES, SHAPE, STEERING, refused_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

_MOST_DIRECTORIES = 3


def repository_place(
    path: str, allowed: Iterable[str] | None, os: OsFamily, *, in_repository: bool = False
) -> str | None:
    """Return what of a git repository a normalised absolute path would change so that git may run other programs from
    then on: `.git` itself, or anything in it whose name alone may start something (`git_directory.refused_name`). None
    for any other path, and for one that an entry of `allowed` covers which names a `.git` itself. Letter case and
    characters that file systems leave out of names do not matter.

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
    return _by_names(path, os, STEERING)


def repositories_in_the_making(path: str, os: OsFamily) -> tuple[tuple[str, str], ...]:
    """Return the same for each directory that the path may make a repository of (`HEAD`, `objects`, `refs`)."""
    return _by_names(path, os, SHAPE)


def _by_names(path: str, os: OsFamily, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
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
            named = refused_name(inside)
            refused = ".git" if not inside else refused if named is None else f".git/{named}"
    return refused
