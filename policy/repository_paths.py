"""Which paths say what git runs: known by their spelling alone, whatever machine they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.paths import is_under, key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

_REPOSITORY_FILES = frozenset({"config", "config.worktree", "commondir", "gitdir"})
_REPOSITORY_FOLDERS = ("hooks", "rebase-merge", "rebase-apply", "sequencer")


def repository_place(path: str, allowed: Iterable[str] | None, os: OsFamily) -> str | None:
    """What of a git repository a normalised absolute path would change so that git runs other programs from then on:
    its hooks, its configuration, what a rebase or cherry-pick goes on with (a list of commands, for one), or the files
    (`.git` itself, `commondir`, `gitdir`) that say where they are. None for any other path, and for one that an entry
    of `allowed` covers which names a `.git` itself. Letter case and characters that file systems leave out of names do
    not matter."""
    place = _repository_place(path, os)
    if place is None or any(".git" in _parts(one, os) and is_under(path, one, os) for one in allowed or ()):
        return None
    return place


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
