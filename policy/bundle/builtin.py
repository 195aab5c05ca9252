"""Built-in bundles: a shipped template plus the places of this session gives a PolicyBundle.

A template is the bundle's own JSON with three differences: `expiresInS` stands for `expiresAt`, lists may hold what
`policy.bundle.placeholders` knows, and `sandboxed` says what is otherwise where a sandbox holds commands: by capability
the fields that replace those of the entry, and whether lines ask (`PolicyBundle.lines_ask`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from policy.bundle.model import PolicyBundle, bundle_from_trusted
from policy.bundle.placeholders import PlaceholderValues, expand_program, fill, is_for_configured_tools
from policy.names import CHANGING
from policy.paths import is_absolute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import OsFamily

DEFAULT_LIFETIME_S = 24 * 3600
_SANDBOXED, _LINES_ASK = "sandboxed", "linesAsk"
OF_TEMPLATES = frozenset({"expiresInS", _SANDBOXED})
"""What a template has and no bundle."""


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
    held: bool = False,
) -> PolicyBundle:
    """Fills a template in. All paths are absolute; give real paths, for links are not followed here. `unchanged` are
    more places that are blocked for writes. `programs` are the user's own entries of allowedCommands; they are added
    where the template has such a list. `tools` are the names and patterns of the user's configuration, by capability
    (`Places.tools`); a grant that lists no tool is left out. `held`: a sandbox holds commands.

    `models` are put before the template's own, `more_models` behind them: a built-in is the user's own choice. An entry
    of a block list whose placeholder has no value is dropped (there is nothing to protect); in an allow list it raises
    ValueError, but for those that are OPTIONAL.
    """
    places = PlaceholderValues(workspace, home, state_dir, os, tmp, step_files=step_files, tools=tools)
    lines_ask = not held or asks_in_lines(template)
    template = adapt_to_sandbox(template) if held else template
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
            added = (expand_program(one, places) for one in programs)
            entry["allowedCommands"] = list(dict.fromkeys((*entry["allowedCommands"], *added)))
    llm = template["llmPolicy"]
    raw["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys((*models, *llm["allowedModels"], *more_models)))}
    bundle = bundle_from_trusted(raw)
    return bundle.keep_known(bundle, by_groups=by_groups.difference(unchanged), held=held, lines_ask=lines_ask)


def adapt_to_sandbox(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template as it is where a sandbox holds commands."""
    changes = template.get(_SANDBOXED, {})
    entries = [
        {name: value for name, value in {**entry, **changes.get(entry["name"], {})}.items() if name != _LINES_ASK}
        for entry in template["capabilities"]
    ]
    return {**template, "capabilities": entries}


def asks_in_lines(template: Mapping[str, Any]) -> bool:
    """True if a command that a sandbox holds needs the approvals that files in its line would need."""
    return all(change.get(_LINES_ASK, True) for change in template.get(_SANDBOXED, {}).values())


def expiry(template: Mapping[str, Any], now: datetime) -> datetime:
    """Until when what is made of a template at `now` holds."""
    return now + timedelta(seconds=template.get("expiresInS", DEFAULT_LIFETIME_S))


def _adapt_to_machine(entry: Mapping[str, Any], places: PlaceholderValues) -> dict[str, Any]:
    """One template is for every machine: allowed paths of another system are left out."""
    shape = fill(entry, places)
    if "allowedPaths" in shape:
        shape["allowedPaths"] = [path for path in shape["allowedPaths"] if is_absolute(path, places.os)]
    return shape
