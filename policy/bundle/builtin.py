"""Built-in bundles: a PolicyBundle made of a shipped template and the places of this session.

A template is the bundle's own JSON with three differences: `expiresInS` replaces `expiresAt`, lists may contain
placeholders for paths of this machine (`${workspace}`, groups of places), and `sandboxed` has the differences in a
sandbox: by capability the fields that replace those of the entry, and whether lines require approval
(`PolicyBundle.lines_ask`).
"""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from policy import CHANGING
from policy.bundle import PolicyBundle, bundle_from_trusted
from policy.paths import is_absolute, normalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import OsFamily

DEFAULT_LIFETIME_S = 24 * 3600
_SANDBOXED, _LINES_ASK = "sandboxed", "linesAsk"
OF_TEMPLATES = frozenset({"expiresInS", _SANDBOXED})
PLACEHOLDERS = ("workspace", "home", "tmp", "stepFiles")
"""Those that a file may use; the shipped lists of places know `${stateDir}` as well."""
_OPTIONAL = ("tmp", "stepFiles")
"""Those that not every session has: an entry of an allow list without its place allows nothing."""
GROUP_NAMES = ("credentials", "steering")
"""Groups that a file's blockedPaths may name: the lists of config/policies/places.json."""
PROGRAMS_BELOW = "${workspace}/"
"""Prefix of an allowedCommands entry for programs of the workspace."""
STARS = ("/**", "/*")
"""Suffixes of such an entry: everything below a directory, and only its direct entries."""
_CONFIGURED = "@configured"
_LISTS = ("allowedPaths", "blockedPaths")


def instantiate(
    template: Mapping[str, Any],
    places: PlaceholderValues,
    *,
    session_id: str,
    now: datetime,
    models: tuple[str, ...] = (),
    more_models: tuple[str, ...] = (),
    unchanged: tuple[str, ...] = (),
    programs: tuple[str, ...] = (),
    sandboxed: bool = False,
) -> PolicyBundle:
    """Fills a template in. All paths are absolute; give real paths, for links are not followed here. `unchanged` are
    more places that are blocked for writes. `programs` are the user's own entries of allowedCommands; they are added
    where the template has such a list. A grant of configured tools that lists none is left out. `sandboxed`: commands
    are sandboxed.

    `models` are put before the template's own, `more_models` behind them: a built-in is the user's own choice. An entry
    of a block list whose placeholder has no value is dropped (there is nothing to protect); in an allow list it raises
    ValueError, but for those that are _OPTIONAL.
    """
    lines_ask = not sandboxed or asks_in_lines(template)
    template = adapt_to_sandbox(template) if sandboxed else template
    raw = {name: value for name, value in template.items() if name not in OF_TEMPLATES}
    raw["sessionId"] = session_id
    raw["expiresAt"] = expiry(template, now)
    entries = (entry for entry in template["capabilities"] if not is_for_configured_tools(entry, places))
    raw["capabilities"] = [_adapt_to_machine(entry, places) for entry in entries]
    # A template names no place but by its groups.
    by_groups = frozenset(path for entry in raw["capabilities"] for path in entry.get("blockedPaths", ()))
    for entry in raw["capabilities"]:
        if entry["name"] in CHANGING:
            entry["blockedPaths"] = [*entry.get("blockedPaths", ()), *unchanged]
        if entry.get("allowedCommands") is not None:
            added = (_expand_program(one, places) for one in programs)
            entry["allowedCommands"] = list(dict.fromkeys((*entry["allowedCommands"], *added)))
    llm = template["llmPolicy"]
    raw["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys((*models, *llm["allowedModels"], *more_models)))}
    bundle = bundle_from_trusted(raw)
    return bundle.keep_known(
        bundle, by_groups=by_groups.difference(unchanged), sandboxed=sandboxed, lines_ask=lines_ask
    )


def adapt_to_sandbox(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template for sandboxed commands."""
    changes = template.get(_SANDBOXED, {})
    entries = [
        {name: value for name, value in {**entry, **changes.get(entry["name"], {})}.items() if name != _LINES_ASK}
        for entry in template["capabilities"]
    ]
    return {**template, "capabilities": entries}


def asks_in_lines(template: Mapping[str, Any]) -> bool:
    """True if a sandboxed command needs the approvals of the files in its line."""
    return all(change.get(_LINES_ASK, True) for change in template.get(_SANDBOXED, {}).values())


def expiry(template: Mapping[str, Any], now: datetime) -> datetime:
    """The expiry of a bundle made of a template at `now`."""
    return now + timedelta(seconds=template.get("expiresInS", DEFAULT_LIFETIME_S))


def _adapt_to_machine(entry: Mapping[str, Any], places: PlaceholderValues) -> dict[str, Any]:
    """One template is for every machine: allowed paths of another system are left out."""
    shape = fill(entry, places)
    if "allowedPaths" in shape:
        shape["allowedPaths"] = [path for path in shape["allowedPaths"] if is_absolute(path, places.os)]
    return shape


class PlaceholderValues(NamedTuple):
    """Values of the placeholders: real, absolute paths; None if there is no such place. `groups` are the lists of
    places, by name, with placeholders in their entries. `step_files` is the directory in which a step of GitHub Actions
    leaves data for later ones. `tools` are the names and patterns for _CONFIGURED, by capability."""

    workspace: str
    home: str | None
    state_dir: str
    os: OsFamily
    tmp: str | None = None
    groups: Mapping[str, Sequence[str]] = {}
    step_files: str | None = None
    tools: Mapping[str, Sequence[str]] = {}

    def path_of(self, name: str) -> str | None:
        """The path of the placeholder `name`, None if there is none. Raises KeyError."""
        place: str | None = getattr(self, _FIELDS[name])
        return place


def fill(entry: Mapping[str, Any], places: PlaceholderValues) -> dict[str, Any]:
    """A capability's JSON shape with absolute paths in it; placeholders without a value are as in `instantiate`."""
    shape = dict(entry)
    for field in _LISTS:
        if shape.get(field) is not None:
            shape[field] = list(dict.fromkeys(_paths(shape[field], places, allowed=field == "allowedPaths")))
    if shape.get("allowedCommands") is not None:
        shape["allowedCommands"] = [_expand_program(one, places) for one in shape["allowedCommands"]]
    if shape.get("allowedToolNames") is not None:
        configured = places.tools.get(shape["name"], ())
        named = (configured if one == _CONFIGURED else (one,) for one in shape["allowedToolNames"])
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
    return entry.get("allowedToolNames") == [_CONFIGURED] and not places.tools.get(entry["name"])


def _paths(entries: Sequence[str], places: PlaceholderValues, *, allowed: bool) -> list[str]:
    found: list[str] = []
    for entry in entries:
        for one in places.groups[entry[1:]] if entry.startswith("@") else (entry,):
            path = expand_path(one, places)
            if path is not None:
                found.append(path)
            elif allowed and one[2:].partition("}")[0] not in _OPTIONAL:
                raise ValueError(f"allowedPaths: no value for {one}")
    return found


def expand_path(entry: str, places: PlaceholderValues) -> str | None:
    """The absolute path of an entry, None if its placeholder has no value."""
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
STEP_FILES = ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_STEP_SUMMARY")
KEEP_STEP_FILES = "AGENT_HOST_ACTION"
"""The variable that is set if the files of a step are the host's alone; `action.yml` sets it."""
_STEP_FILES = r"(.*[/\\]_runner_file_commands)[/\\][^/\\]+"


def step_files(environ: Mapping[str, str], os: OsFamily) -> str | None:
    """The directory of the files that a step of GitHub Actions writes its outputs and variables to (`$GITHUB_OUTPUT`,
    `$GITHUB_ENV` and their like); None outside of such a step, and if they are kept (`kept_step_files`).

    Only a directory of the runner's own name counts, so that no other value opens anything.
    """
    return None if environ.get(KEEP_STEP_FILES) else _directory_of_step_files(environ, os)


def kept_step_files(environ: Mapping[str, str], os: OsFamily) -> tuple[str, ...]:
    """The files of the step, and their directory, if `KEEP_STEP_FILES` forbids writing them."""
    if not environ.get(KEEP_STEP_FILES):
        return ()
    folder = _directory_of_step_files(environ, os)
    named = [normalize(path, os) for name in STEP_FILES if is_absolute(path := environ.get(name, ""), os)]
    return (*([] if folder is None else [folder]), *named)


def _directory_of_step_files(environ: Mapping[str, str], os: OsFamily) -> str | None:
    found = re.fullmatch(_STEP_FILES, environ.get("GITHUB_OUTPUT", ""))
    return normalize(found[1], os) if found is not None and is_absolute(found[1], os) else None


def _expand_program(entry: str, places: PlaceholderValues) -> str:
    if not entry.startswith(PROGRAMS_BELOW):
        return entry
    stars = next(one for one in STARS if entry.endswith(one))
    folder = normalize(places.workspace + entry[len(PROGRAMS_BELOW) - 1 : -len(stars)], places.os)
    separator = "\\" if places.os == "windows" else "/"
    return folder.rstrip(separator) + separator + stars[1:]
