"""Which paths say what git runs: known by their spelling alone, whatever machine they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.paths import is_under, key, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

_REPOSITORY_FILES = frozenset({"config", "config.worktree", "commondir", "gitdir"})
_REPOSITORY_FOLDERS = ("hooks", "rebase-merge", "rebase-apply", "sequencer")
_STEERING = _REPOSITORY_FILES.union(_REPOSITORY_FOLDERS)
_MOST_DIRECTORIES = 3


def repository_place(
    path: str, allowed: Iterable[str] | None, os: OsFamily, *, in_repository: bool = False
) -> str | None:
    """What of a git repository a normalised absolute path would change so that git runs other programs from then on:
    its hooks, its configuration, what a rebase or cherry-pick goes on with (a list of commands, for one), or the files
    (`.git` itself, `commondir`, `gitdir`) that say where they are. None for any other path, and for one that an entry
    of `allowed` covers which names a `.git` itself. Letter case and characters that file systems leave out of names do
    not matter.

    `in_repository`: the directory that would have to be a repository is laid out like one, whatever it is called. Then
    an entry of `allowed` has to be that directory, or lie in it."""
    place = _repository_place(path, os)
    if place is not None:
        return None if names_repository(path, allowed, os) else place
    for directory, inside in repositories_by_shape(path, os)[:1] if in_repository else ():
        if not any(is_under(path, one, os) and is_under(one, directory, os) for one in allowed or ()):
            return f"{_parts(directory, os)[-1]}/{inside}"
    return None


def is_git(path: str, os: OsFamily) -> bool:
    """Whether a normalised absolute path is called `.git`."""
    return _parts(path, os)[-1] == ".git"


def names_repository(path: str, allowed: Iterable[str] | None, os: OsFamily) -> bool:
    """Whether an entry of `allowed` that covers the path names a `.git` itself."""
    return any(".git" in _parts(one, os) and is_under(path, one, os) for one in allowed or ())


def repositories_by_shape(path: str, os: OsFamily) -> tuple[tuple[str, str], ...]:
    """(directory, what of it) for each directory of which a normalised absolute path would be a hook, the configuration
    or the like if that directory were a repository, nearest first and three at most. None for most paths, and for those
    in a `.git`, which that name describes."""
    folded = _parts(key(path, os, "wide"), os)
    if _STEERING.isdisjoint(folded) or ".git" in folded:
        return ()
    last = len(folded) - 1
    found = [
        (place, part)
        for place, part in enumerate(folded)
        if place > 0 and (part in _REPOSITORY_FOLDERS or (place == last and part in _REPOSITORY_FILES))
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
    for place, part in enumerate(parts):
        inside = parts[place + 1 :]
        if part != ".git":
            continue
        if not inside:
            return ".git"
        named = next((folder for folder in _REPOSITORY_FOLDERS if folder in inside), inside[-1])
        if named in _REPOSITORY_FOLDERS or named in _REPOSITORY_FILES:
            return f".git/{named}"
    return None
