"""How much of the corpus of shell lines is refused, and why: `python -m tests.support.shell_figures` writes the page.

Two bundles judge each line: the built-in `ci`, and `ci` with a list that names each program of the line (and what it
allows besides stays as it is). The environment is that of a step of GitHub Actions, with the files for what it leaves.
Of two more sets, `build` and `docs`, false refusals are counted, under `ci` and the programs that the line names, with
a sandbox and without: all that are not in `rightly_refused.toml`.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent_host.judging.facts import read_from
from config.policies import template
from policy.bundle.builtin import PlaceholderValues, instantiate, step_files
from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.shell import parse_line, paths_in_line

if TYPE_CHECKING:
    from policy.bundle import PolicyBundle

FOLDER = Path(__file__).resolve().parents[1] / "unit" / "policy" / "corpus"
PAGE = FOLDER / "refused.md"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_HOME, _WORK, _TMP = "/home/u", "/home/u/project", "/tmp/agent-host-s-00000000"
_STEP = "/ci/_temp/_runner_file_commands"
_ENVIRONMENT = {
    "HOME": _HOME, "USER": "u", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "TMPDIR": _TMP, "GITHUB_WORKSPACE": _WORK,
    **{f"GITHUB_{name.upper()}": f"{_STEP}/{name}_1" for name in ("output", "env", "path", "state", "step_summary")},
}  # fmt: skip


class Row(NamedTuple):
    """A line, and why it is refused under `ci` and by a list that names its programs; "" where it is allowed."""

    id: str
    line: str
    by_ci: str
    by_list: str


SETS = ("build", "docs")
LEVELS = ("none", "sandbox")


class Refusal(NamedTuple):
    """A line of `build` or `docs` that is refused at a level (`none` or `sandbox`), and why that is right, if it is."""

    id: str
    level: str
    reason: str
    right: str | None


def rows() -> list[Row]:
    """The corpus, judged."""
    ci = _ci()
    found = []
    for number, line in _lines("lines"):
        facts = _facts(line)
        named = sorted({*_programs(facts), "true"})
        found.append(Row(number, line, _why_not(ci, facts), _why_not(_listing(ci, named), facts)))
    return found


def refusals(name: str) -> list[Refusal]:
    """What is refused of the set `name`, at each level."""
    right = tomllib.loads((FOLDER / "rightly_refused.toml").read_text("utf-8"))
    found = []
    for number, line in _lines(name):
        facts = _facts(line)
        for level in LEVELS:
            reason = _why_not(_ci(_programs(facts), sandboxed=level == "sandbox"), facts)
            if reason:
                found.append(Refusal(number, level, reason, right.get(number, {}).get(level)))
    return found


def page(judged: list[Row]) -> str:
    """The lines that are refused, with their reasons, and the shares."""
    by_ci, by_list = [one for one in judged if one.by_ci], [one for one in judged if one.by_list]
    parts = [
        "# What is refused of the corpus",
        "",
        (
            f"Of {len(judged)} lines {len(by_ci)} ({len(by_ci) / len(judged):.1%}) are refused under `ci`, and "
            f"{len(by_list)} ({len(by_list) / len(judged):.1%}) by a list that names each of their programs."
        ),
        "",
        "Written by `python -m tests.support.shell_figures`.",
        "",
        "## Under `ci`",
        "",
        *(f"- {one.id}: {one.by_ci}" for one in by_ci),
        "",
        "## By a list that names each program",
        "",
        *(f"- {one.id}: {one.by_list}" for one in by_list),
    ]
    return "\n".join(parts) + "\n"


def _lines(name: str) -> list[tuple[str, str]]:
    read = map(json.loads, (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines())
    return [(one["id"], one["line"]) for one in read]


def _ci(programs: tuple[str, ...] = (), *, sandboxed: bool = False) -> PolicyBundle:
    return instantiate(
        template("ci"),
        PlaceholderValues(
            _WORK, _HOME, f"{_HOME}/.local/state", "posix", tmp=_TMP, step_files=step_files(_ENVIRONMENT, "posix")
        ),
        session_id="s",
        now=_NOW,
        programs=programs,
        sandboxed=sandboxed,
    )


def _programs(facts: CommandFacts) -> tuple[str, ...]:
    return tuple(sorted({one.program for one in parse_line(facts).commands if one.program}))


def _facts(line: str) -> CommandFacts:
    facts = CommandFacts(line, _WORK, "bash", _HOME, environment=read_from(_ENVIRONMENT, line))
    paths = paths_in_line(parse_line(facts), _WORK, _HOME)
    return facts._replace(real_paths={path: os.path.normpath(path) for path in paths})


def _listing(bundle: PolicyBundle, programs: list[str]) -> PolicyBundle:
    entries = (
        one._replace(allowed_commands=tuple(programs)) if one.name == "Shell.Exec" else one
        for one in bundle.capabilities
    )
    return bundle._replace(capabilities=tuple(entries))


def _why_not(bundle: PolicyBundle, facts: CommandFacts) -> str:
    answer = check_tool(bundle, "Shell.Exec", facts, now=_NOW, workspace=_WORK)
    return "" if answer.allowed else " ".join(answer.reason.partition("; nearest")[0].partition("; allowed")[0].split())


def main() -> None:
    """Write the page; print the most frequent reasons, and the false refusals of the other sets."""
    judged = rows()
    PAGE.write_text(page(judged), encoding="utf-8")
    for reason, count in Counter(one.by_ci for one in judged if one.by_ci).most_common(30):
        print(count, reason)
    print(page(judged).splitlines()[2])
    for name in SETS:
        false = [one for one in refusals(name) if one.right is None]
        for one in false:
            print(f"{one.id} ({one.level}): {one.reason}")
        for level in LEVELS:
            print(f"{name}: {sum(one.level == level for one in false)} of 100 refused falsely at the level {level}")


if __name__ == "__main__":
    main()
