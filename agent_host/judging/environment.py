"""This machine as facts are gathered on it, and where the paths of a bundle lead there (AH 8.2)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from policy.paths import is_absolute, join_nested, normalize, split_nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.bundle import PolicyBundle
    from policy.facts import OsFamily, ShellName


class Environment(NamedTuple):
    """The places that relative names are relative to. All paths are real, absolute strings."""

    workspace: str
    home: str | None
    os_family: OsFamily
    shell: ShellName
    environment: Mapping[str, str] | None = None
    """The environment of commands; None if not specified."""

    def absolute(self, path: str) -> str:
        """A path as a call spells it, made absolute: `~` is the home, and what is relative lies in the workspace. Links
        are not followed, and dots stay where the path was absolute."""
        if is_absolute(path, self.os_family):
            return path
        return normalize(path, self.os_family, self.workspace, self.home)


def resolve_places(bundle: PolicyBundle, environment: Environment) -> PolicyBundle:
    """The bundle with where the entries of its path lists really lead. For an allowed path no link inside the workspace
    is followed: a change there would choose what is allowed."""
    allowed = {path for entry in bundle.capabilities for path in entry.allowed_paths or ()}
    blocked = {path for entry in bundle.capabilities for path in entry.blocked_paths or ()}
    outside = {path: _real_outside_of(path, environment.workspace) for path in filter(_is_followed, allowed)}
    anywhere: dict[str, str] = {}
    for path in filter(_is_followed, blocked):
        nested = split_nested(normalize(path, environment.os_family), environment.os_family)
        if nested is None:
            anywhere[path] = os.path.realpath(path)
            continue
        # Never as it is spelled: something might be called `**`.
        root, name = nested
        anywhere[path] = join_nested(os.path.realpath(root), name, environment.os_family)
        direct = os.path.join(root, name)
        anywhere[direct] = os.path.realpath(direct)
    found = {"allowed": _links_of(outside), "blocked": _links_of(anywhere)}
    return bundle.set_real_places(found) if any(found.values()) else bundle


def _is_followed(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path


def _links_of(places: Mapping[str, str]) -> dict[str, str]:
    return {path: real for path, real in places.items() if real != os.path.normpath(path)}


def _real_outside_of(path: str, workspace: str) -> str:
    """The real path of `path`, with no link followed inside of the real `workspace`."""
    parts = os.path.normpath(path).split(os.sep)
    for count in range(2, len(parts) + 1):
        real = os.path.realpath(os.sep.join(parts[:count]))
        if real == workspace or real.startswith(workspace.rstrip(os.sep) + os.sep):
            return os.path.join(real, *parts[count:])
    return os.path.realpath(path)
