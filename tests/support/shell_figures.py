"""How much of the corpus of shell lines is refused, and why: `python -m tests.support.shell_figures` writes the page.

Two bundles judge each line: the built-in `ci`, and `ci` with a list that names each program of the line (and what it
allows besides stays as it is). The environment is that of a step of GitHub Actions, with the files for what it leaves.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent_host.routing.facts import read_from
from config.policies import template
from policy.bundle.builtin import instantiate
from policy.bundle.placeholders import step_files
from policy.check import check_tool
from policy.facts import CommandFacts
from policy.shell.commands import parsed_line, referenced_paths

if TYPE_CHECKING:
    from policy.bundle.model import PolicyBundle

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


def rows() -> list[Row]:
    """The corpus, judged."""
    lines = [json.loads(text) for text in (FOLDER / "lines.jsonl").read_text("utf-8").splitlines()]
    ci = instantiate(
        template("ci"), workspace=_WORK, home=_HOME, state_dir=f"{_HOME}/.local/state", session_id="s", now=_NOW,
        os="posix", tmp=_TMP, step_files=step_files(_ENVIRONMENT, "posix"),
    )  # fmt: skip
    found = []
    for line in lines:
        facts = _facts(line["line"])
        named = sorted({one.program for one in parsed_line(facts).commands if one.program} | {"true"})
        found.append(Row(line["id"], line["line"], _why_not(ci, facts), _why_not(_listing(ci, named), facts)))
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


def _facts(line: str) -> CommandFacts:
    facts = CommandFacts(line, _WORK, "bash", _HOME, environment=read_from(_ENVIRONMENT, line))
    paths = referenced_paths(parsed_line(facts), _WORK, _HOME)
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
    """Writes the page and prints the most frequent reasons."""
    judged = rows()
    PAGE.write_text(page(judged), encoding="utf-8")
    for reason, count in Counter(one.by_ci for one in judged if one.by_ci).most_common(30):
        print(count, reason)
    print(page(judged).splitlines()[2])


if __name__ == "__main__":
    main()
