"""Placeholders of bundles for paths of this machine: `${workspace}`, groups of places, paths below the workspace.

Built-ins and bundles given by file may hold these; a bundle of the wire may not. What is made of them is absolute, so
nothing behind this module knows them.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from policy.paths import is_absolute, normalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import OsFamily

PLACEHOLDERS = ("workspace", "home", "tmp", "stepFiles")
"""Those that a file may use; the shipped lists of places know `${stateDir}` as well."""
OPTIONAL = ("tmp", "stepFiles")
"""Those that not every session has: an entry of an allow list without its place allows nothing."""
GROUP_NAMES = ("credentials", "steering")
"""Groups that a file's blockedPaths may name: the lists of config/policies/places.json."""
PROGRAMS_BELOW = "${workspace}/"
"""How an entry of allowedCommands begins that means programs of the workspace."""
STARS = ("/**", "/*")
"""How such an entry ends: everything below a directory, and what lies directly in it."""
CONFIGURED = "@configured"
"""In allowedToolNames: the tools that the user's configuration names."""
_LISTS = ("allowedPaths", "blockedPaths")


class PlaceholderValues(NamedTuple):
    """Values of the placeholders: real, absolute paths; None if there is no such place. `groups` are the lists of
    places, by name, with placeholders in their entries. `step_files` is where GitHub Actions reads what a step leaves
    for later ones. `tools` are the names and patterns that CONFIGURED stands for, by capability."""

    workspace: str
    home: str | None
    state_dir: str
    os: OsFamily
    tmp: str | None = None
    groups: Mapping[str, Sequence[str]] = {}
    step_files: str | None = None
    tools: Mapping[str, Sequence[str]] = {}

    def path_of(self, name: str) -> str | None:
        """The path that the placeholder `name` stands for, None where there is none. Raises KeyError."""
        place: str | None = getattr(self, _FIELDS[name])
        return place


def fill(entry: Mapping[str, Any], places: PlaceholderValues) -> dict[str, Any]:
    """A capability's JSON shape with absolute paths in it. An entry of a block list whose placeholder has no value is
    dropped: there is nothing to protect. In an allow list it raises ValueError, but for those that are OPTIONAL."""
    shape = dict(entry)
    for field in _LISTS:
        if shape.get(field) is not None:
            shape[field] = list(dict.fromkeys(_paths(shape[field], places, allowed=field == "allowedPaths")))
    if shape.get("allowedCommands") is not None:
        shape["allowedCommands"] = [expand_program(one, places) for one in shape["allowedCommands"]]
    if shape.get("allowedToolNames") is not None:
        configured = places.tools.get(shape["name"], ())
        named = (configured if one == CONFIGURED else (one,) for one in shape["allowedToolNames"])
        shape["allowedToolNames"] = list(dict.fromkeys(itertools.chain.from_iterable(named)))
    return shape


def paths_of_groups(entries: Sequence[Mapping[str, Any]], places: PlaceholderValues) -> frozenset[str]:
    """The paths that a group among the blockedPaths of these capabilities names, and no entry spells out."""
    listed = [path for entry in entries for path in entry.get("blockedPaths") or ()]
    groups = [one for one in listed if one.startswith("@")]
    spelled = [one for one in listed if not one.startswith("@")]
    return frozenset(_paths(groups, places, allowed=False)).difference(_paths(spelled, places, allowed=False))


def is_for_configured_tools(entry: Mapping[str, Any], places: PlaceholderValues) -> bool:
    """True if an entry is for tools of the user's configuration only, which names none."""
    return entry.get("allowedToolNames") == [CONFIGURED] and not places.tools.get(entry["name"])


def _paths(entries: Sequence[str], places: PlaceholderValues, *, allowed: bool) -> list[str]:
    found: list[str] = []
    for entry in entries:
        for one in places.groups[entry[1:]] if entry.startswith("@") else (entry,):
            path = expand_path(one, places)
            if path is not None:
                found.append(path)
            elif allowed and one[2:].partition("}")[0] not in OPTIONAL:
                raise ValueError(f"allowedPaths: no value for {one}")
    return found


def expand_path(entry: str, places: PlaceholderValues) -> str | None:
    """The absolute path that an entry of a path list stands for, None where its placeholder has no value. A relative
    path is one of the workspace; an absolute one stays as it is."""
    if entry.startswith("${"):
        name, _, rest = entry[2:].partition("}")
        place = places.path_of(name)
        return normalize(place + rest, places.os) if place else None
    if is_absolute(entry, "posix") or is_absolute(entry, "windows"):
        return entry
    return normalize(entry, places.os, places.workspace)


_FIELDS = {
    "workspace": "workspace", "home": "home", "tmp": "tmp", "stateDir": "state_dir", "stepFiles": "step_files",
}  # fmt: skip
_STEP_FILES = r"(.*[/\\]_runner_file_commands)[/\\][^/\\]+"


def step_files(environ: Mapping[str, str], os: OsFamily) -> str | None:
    """The directory of the files that a step of GitHub Actions writes its outputs and variables to (`$GITHUB_OUTPUT`,
    `$GITHUB_ENV` and their like); None outside of such a step.

    Only a directory of the runner's own name counts, so that no other value opens anything.
    """
    found = re.fullmatch(_STEP_FILES, environ.get("GITHUB_OUTPUT", ""))
    return normalize(found[1], os) if found is not None and is_absolute(found[1], os) else None


def expand_program(entry: str, places: PlaceholderValues) -> str:
    """An entry of allowedCommands with the workspace's real path in it; any other entry as it is."""
    if not entry.startswith(PROGRAMS_BELOW):
        return entry
    stars = next(one for one in STARS if entry.endswith(one))
    folder = normalize(places.workspace + entry[len(PROGRAMS_BELOW) - 1 : -len(stars)], places.os)
    separator = "\\" if places.os == "windows" else "/"
    return folder.rstrip(separator) + separator + stars[1:]
