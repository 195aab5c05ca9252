"""Built-in bundles: a shipped template plus the places of this session gives a PolicyBundle.

A template is the bundle's own JSON with two differences: `expiresInS` stands for `expiresAt`, and lists may hold what
`policy.bundle.placeholders` knows.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from policy.bundle.model import PolicyBundle, bundle_from_trusted
from policy.bundle.placeholders import Places, expanded_program, filled, of_configured_tools
from policy.paths import is_absolute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import OsFamily

DEFAULT_LIFETIME_S = 24 * 3600
_CHANGING = frozenset({"File.Write", "File.Delete"})


def instantiate(
    template: Mapping[str, Any],
    *,
    workspace: str,
    home: str | None,
    state_dir: str,
    session_id: str,
    now: datetime,
    os: OsFamily,
    tmp: str | None = None,
    step_files: str | None = None,
    models: tuple[str, ...] = (),
    more_models: tuple[str, ...] = (),
    unchanged: tuple[str, ...] = (),
    programs: tuple[str, ...] = (),
    tools: Mapping[str, Sequence[str]] = {},
) -> PolicyBundle:
    """Fills a template in. All paths are absolute; give real paths, for links are not followed here. `unchanged` are
    more places that are blocked for writes. `programs` are the user's own entries of allowedCommands; they are added
    where the template has such a list. `tools` are the names and patterns of the user's configuration, by capability
    (`Places.tools`); a grant that lists no tool is left out.

    `models` are put before the template's own, `more_models` behind them: a built-in is the user's own choice. An entry
    of a block list whose placeholder has no value is dropped (there is nothing to protect); in an allow list it raises
    ValueError, but for those that are OPTIONAL.
    """
    places = Places(workspace, home, state_dir, os, tmp, step_files=step_files, tools=tools)
    raw = {name: value for name, value in template.items() if name != "expiresInS"}
    raw["sessionId"] = session_id
    raw["expiresAt"] = expiry(template, now)
    entries = (entry for entry in template["capabilities"] if not of_configured_tools(entry, places))
    raw["capabilities"] = [_of_this_machine(entry, places) for entry in entries]
    for entry in raw["capabilities"]:
        if entry["name"] in _CHANGING:
            entry["blockedPaths"] = [*entry.get("blockedPaths", ()), *unchanged]
        if entry.get("allowedCommands") is not None:
            added = (expanded_program(one, places) for one in programs)
            entry["allowedCommands"] = list(dict.fromkeys((*entry["allowedCommands"], *added)))
    llm = template["llmPolicy"]
    raw["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys((*models, *llm["allowedModels"], *more_models)))}
    return bundle_from_trusted(raw)


def expiry(template: Mapping[str, Any], now: datetime) -> datetime:
    """Until when what is made of a template at `now` holds."""
    return now + timedelta(seconds=template.get("expiresInS", DEFAULT_LIFETIME_S))


def _of_this_machine(entry: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """One template is for every machine: allowed paths of another system are left out."""
    shape = filled(entry, places)
    if "allowedPaths" in shape:
        shape["allowedPaths"] = [path for path in shape["allowedPaths"] if is_absolute(path, places.os)]
    return shape
