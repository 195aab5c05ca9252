"""A command's scope for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.shown_text import escaped

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_SANDBOX = "no sandbox holds commands; one would give them this:"
_MAX_PLACES = 12


def sandbox_in_words(said: Mapping[str, Any]) -> str:
    """How the commands of a session are held ({level, wanted, why?, scope?}), in lines."""
    if said.get("scope"):
        return scope_in_words(said["scope"], told=False)
    why = f" ({said['why']})" if said.get("why") else ""
    return f"{escaped(f'no sandbox holds commands{why}', keep='')}\n"


def scope_in_words(row: Mapping[str, Any], *, told: bool = True) -> str:
    """A scope in JSON (`CommandScope.to_wire`) in lines: what a command reads, writes and reaches, and what is not
    held; or, unless `told`, only how much is not."""
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
        *(_unheld(row["unheld"]) if told else _counted(row["unheld"])),
        *(f"  refused as well: {one}" for one in row.get("withheld", ())),
    ]
    return "".join(f"{escaped(line, keep='')}\n" for line in lines if not line.endswith(" -"))


def _unheld(rules: list[str]) -> list[str]:
    return [f"  not held: {one}" for one in rules]


def _counted(rules: list[str]) -> list[str]:
    return [f"  not held: {len(rules)} rules, which --output json names"] if rules else []


def _listed(places: list[str] | None, every: str = "") -> str:
    """The places in one line, `-` for none at all."""
    if places is None:
        return every
    more = len(places) - _MAX_PLACES
    return ", ".join(places[:_MAX_PLACES]) + (f" and {more} more" if more > 0 else "") or "-"
