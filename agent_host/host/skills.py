"""The skills of a session: where they lie, which of the family's tools the configuration enables, and their scripts."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final

from agent_host.errors import ErrorCode, UsageError
from agent_host.host.environment import command_environment, skill_folders
from policy.rules.toolset import only_enabled
from state.locations import SessionPaths
from tool_runtime.families.catalogue import SKILLS
from tool_runtime.tool import ToolFault

if TYPE_CHECKING:
    from config.settings import Settings
    from policy.rules import Limits
    from state.checkpoint import Checkpoint
    from tool_runtime.files.skills import Skill, SkillIndex
    from tool_runtime.processes.scripts import SkillScripts

_HIDDEN: Final = "skills.hidden_files"
_RUN_SCRIPT: Final = "run_script"
_HAS_RUN: Final = frozenset(
    {None, ErrorCode.TOOL_EXECUTION_FAILED, ErrorCode.TOOL_EXECUTION_TIMEOUT, ErrorCode.TOOL_INTERRUPTED}
)
"""The codes of calls that had begun."""


def has_skills(settings: Settings) -> bool:
    """True if the skills family is chosen."""
    return SKILLS in settings.host.toolset


def limits_of_family(settings: Settings) -> Limits:
    """The tools of the family that the configuration does not enable (SK 3.2)."""
    return frozenset({only_enabled(settings.skills.enabled_tools)})


def skill_index(workspace: str) -> SkillIndex | None:
    """The user's skills and the workspace's; None where there is no folder of skills."""
    folders = skill_folders(workspace)
    if not folders:
        return None
    from tool_runtime.files.skills import SkillFolder, SkillIndex

    return SkillIndex(itertools.starmap(SkillFolder, folders))


def skill_called(index: SkillIndex | None, name: str) -> Skill:
    """The skill of this name. Raises UsageError."""
    from tool_runtime.files.skills import SkillIndex

    try:
        return (index or SkillIndex(())).find(name)
    except ToolFault as error:
        raise UsageError(str(error)) from error


def skill_scripts(
    settings: Settings, index: SkillIndex | None, state_dir: str, session_id: str, workspace: str, temporary: str
) -> SkillScripts:
    """The scripts of these skills, as a session of this id runs them."""
    from tool_runtime.files.skills import SkillIndex
    from tool_runtime.processes.scripts import SkillScripts

    path = command_environment(settings, temporary).get("PATH", os.defpath)
    sandbox = os.path.realpath(SessionPaths(state_dir, session_id).sandbox)
    runs = settings.skills.max_script_runs
    return SkillScripts(index or SkillIndex(()), path, sandbox, runs, (workspace, temporary))


def script_runs(state: Checkpoint) -> int:
    """The number of scripts that the current task has begun to run, by the record."""
    finished = () if state.task is None else state.task.finished_calls
    under_way = () if state.open_step is None else state.open_step.calls
    return sum(name == _RUN_SCRIPT and code in _HAS_RUN for name, _, code in finished) + sum(
        call.tool_name == _RUN_SCRIPT and call.started for call in under_way
    )


def hidden_files(settings: Settings) -> tuple[str, ...]:
    """Globs of the names that the family does not list. Raises UsageError for one that means nothing."""
    from tool_runtime.files.listing import BadGlob, hidden_names

    globs = settings.skills.hidden_files
    try:
        hidden_names(globs)
    except BadGlob as error:
        raise UsageError(f"configuration: {_HIDDEN}: {error}") from error
    return globs
