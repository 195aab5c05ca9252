"""What policy says to the script of a skill before it judges the program that runs it (SK 5.4): where it lies, and how
many of a task have run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.paths import is_under, normalize
from policy.rules.case import denied

if TYPE_CHECKING:
    from policy.decision import Decision
    from policy.facts import OsFamily, ScriptFacts

SCRIPTS: Final = "scripts"
"""The folder of a skill that its scripts lie in."""
_PLACE_RULE: Final = "builtin.scriptPlaces"
_RUNS_RULE: Final = "skills.max_script_runs"


def refused_script(capability: str, script: ScriptFacts, runs: int, most: int | None, os: OsFamily) -> Decision | None:
    """The denial of a script that really lies elsewhere, or of one too many; None for every other. `runs` is how many
    have run in the task, `most` how many may, None for any number."""
    folder = normalize(f"{script.folder}/{SCRIPTS}", os)
    if not is_under(normalize(script.path, os), folder, os) or normalize(script.path, os) == folder:
        where = f"{script.relative_path} leads to {script.path}"
        return denied(capability, _PLACE_RULE, f"{where}, and the skill {script.skill} has its scripts in {folder}")
    if most is not None and runs >= most:
        return denied(capability, _RUNS_RULE, f"{runs} scripts have run in this task, and {_RUNS_RULE} is {most}")
    return None
