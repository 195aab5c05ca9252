"""A command's scope for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.shown_text import escaped

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_SANDBOX = "no sandbox holds commands; one would give them this:"
_MAX_PLACES = 12


def scope_in_words(row: Mapping[str, Any]) -> str:
    """A scope in JSON (`CommandScope.to_wire`) in lines: what a command reads, writes and reaches, and what is not
    held."""
    head = _NO_SANDBOX if row["level"] == "none" else f"commands are held at the level {row['level']}:"
    lines = [
        head,
        f"  reads {_listed(row['reads'], 'every place')}",
        f"  writes {_listed(row['writes'], 'every place')}",
        f"  never reads {_listed(row['hidden'])}",
        f"  never changes {_listed(row['guarded'])}",
        f"  reaches {'no host' if row['domains'] == [] else _listed(row['domains'], 'any host')}",
        f"  never reaches {_listed(row['blockedDomains'])}",
        f"  uses the agents {_listed(row['agents'])}",
        *(f"  not held: {one}" for one in row["unheld"]),
        *(f"  refused as well: {one}" for one in row.get("withheld", ())),
    ]
    return "".join(f"{escaped(line, keep='')}\n" for line in lines if not line.endswith(" -"))


def _listed(places: list[str] | None, every: str = "") -> str:
    """The places in one line, `-` for none at all."""
    if places is None:
        return every
    more = len(places) - _MAX_PLACES
    return ", ".join(places[:_MAX_PLACES]) + (f" and {more} more" if more > 0 else "") or "-"
