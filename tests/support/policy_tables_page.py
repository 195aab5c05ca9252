"""docs/policy-tables.md from the tables of `policy/` and `config/`: `python -m tests.support.policy_tables_page`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from config.policies import template
from policy.programs import PROGRAMS
from policy.shell import tables

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policy-tables.md"
_PLACES = Path(__file__).resolve().parents[2] / "config" / "policies" / "places.json"
_INTRO = """# What policy knows

Made from the tables of the program by `python -m tests.support.policy_tables_page`; [policy.md](policy.md) explains
them. Without a sandbox a list is guidance, not enforcement.
"""


def page() -> str:
    """The page as it should be."""
    ci = next(one for one in template("ci")["capabilities"] if one["name"] == "Shell.Exec")
    places = orjson.loads(_PLACES.read_bytes())
    starts: dict[str, list[str]] = {}
    for name, row in PROGRAMS.items():
        starts.setdefault(row.what or row.starts, []).append(name)
    runners = [
        f"{name} {sub}" for name, row in PROGRAMS.items() for sub, one in row.subcommands if one.starts == "behind"
    ]
    parts = [
        _INTRO,
        "## The programs of `ci`\n\n" + _listed(ci["allowedCommands"]),
        (
            "## What starts more than the line shows\n\nAllowing one of these also allows whatever it starts. "
            "A program that is not on this page counts as one that may start anything."
        ),
        "Shells, and the content of their files: "
        + _listed([*starts.pop("shell"), *starts.pop("unread shell"), *tables.READS_FILES]),
        "Interpreters, and any code: " + _listed(starts.pop("code")),
        "Programs with commands of their own: " + _listed(starts.pop("language")),
        *(f"{what[0].upper()}{what[1:]}: {_listed(names)}" for what, names in sorted(starts.items()) if " " in what),
        "## What is seen through\n\nThe program that follows one of these is judged, too.",
        _listed([*starts["behind"], "find -exec", "gdb -batch", *runners]),
        "## What is not followed\n\nThese start a program that their arguments name, and are denied if a list decides.",
        _listed(starts["somewhere"]),
        "## Programs whose operands are judged as files\n\n"
        + _listed(name for name, row in PROGRAMS.items() if row.operands and row.starts != "behind"),
        "## Programs that start nothing of their own\n\n" + _listed(starts[""]),
        "## Variables that a line may not set\n\nExact names, in their own case, as a pattern:",
        "```\n" + "\n".join(textwrap.wrap(tables.STEERING_VARIABLE.pattern.replace("|", " | "), 118)) + "\n```",
        "## Places\n\n`@credentials` is blocked in every built-in:",
        _listed(places["credentials"]),
        "`@steering` is blocked for writing and deleting:",
        _listed(places["steering"]),
        "## What `allowNetwork: false` takes away\n\n" + _listed(name for name, row in PROGRAMS.items() if row.network),
    ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    """A section's text within the page's width, its heading by itself."""
    if part.startswith(("```", "# ")):
        return part.rstrip()
    return "\n\n".join(
        textwrap.fill(one, 118, break_on_hyphens=False, break_long_words=False) for one in part.split("\n\n")
    )


def _listed(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in sorted(set(names), key=str.casefold))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
