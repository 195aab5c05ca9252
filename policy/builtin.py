"""Built-in bundles: a shipped template plus the places of this session gives a PolicyBundle.

A template is the bundle's own JSON with two differences: `expiresInS` stands for `expiresAt`, and path lists may hold
`${workspace}`, `${home}` and `${stateDir}`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from policy.bundle import PolicyBundle, bundle_from_trusted
from policy.paths import normalize

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    models: tuple[str, ...] = (),
    unchanged: tuple[str, ...] = (),
) -> PolicyBundle:
    """Fills a template in. All paths are absolute; give real paths, for links are not followed here. `unchanged` are
    more places that are blocked for writes.

    `models` are put before the template's own: a built-in is the user's own choice. An entry of a block list whose
    placeholder has no value is dropped (there is nothing to protect); in an allow list it raises ValueError.
    """
    places = {"workspace": workspace, "home": home, "stateDir": state_dir}
    raw = {name: value for name, value in template.items() if name != "expiresInS"}
    raw["sessionId"] = session_id
    raw["expiresAt"] = now + timedelta(seconds=template.get("expiresInS", DEFAULT_LIFETIME_S))
    raw["capabilities"] = [_fill(entry, places, os) for entry in template["capabilities"]]
    for entry in raw["capabilities"]:
        if entry["name"] in _CHANGING:
            entry["blockedPaths"] = [*entry.get("blockedPaths", ()), *unchanged]
    llm = template["llmPolicy"]
    raw["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys((*models, *llm["allowedModels"])))}
    return bundle_from_trusted(raw)


def _fill(entry: Mapping[str, Any], places: Mapping[str, str | None], os: OsFamily) -> dict[str, Any]:
    filled = dict(entry)
    if "allowedPaths" in filled:
        expanded = [(path, _expand(path, places, os)) for path in filled["allowedPaths"]]
        missing = [path for path, value in expanded if value is None]
        if missing:
            raise ValueError(f"capabilities[{entry['name']}].allowedPaths: no value for {missing[0]}")
        filled["allowedPaths"] = [value for _, value in expanded]
    if "blockedPaths" in filled:
        values = (_expand(path, places, os) for path in filled["blockedPaths"])
        filled["blockedPaths"] = [value for value in values if value is not None]
    return filled


def _expand(path: str, places: Mapping[str, str | None], os: OsFamily) -> str | None:
    if not path.startswith("${"):
        return path
    name, _, rest = path[2:].partition("}")
    place = places[name]
    return normalize(place + rest, os) if place else None
