"""The tools that a workspace brings, without a session: nothing is started for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent_host.host.environment import project_tool_names
from config.lean_typing import NamedTuple
from state.tool_lists import ApprovedTools
from tool_runtime.families.project import FOLDER, missing_programs, specs_in
from tool_runtime.families.skills import loading_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent_host.contracts import ToolSpec
    from agent_host.judging import Approved
    from tool_runtime.files.skills import SkillIndex

_MAX_LISTED: Final = 5


class WorkspaceTools(NamedTuple):
    """`specs` are those of the project and what loads skills, `approved` those of the project's that the user has
    approved in their present form, None if there are none. `unusable` are the problems of manifests and skills, a line
    each."""

    specs: tuple[ToolSpec, ...] = ()
    approved: Approved | None = None
    unusable: tuple[str, ...] = ()


def workspace_tools(workspace: str, state_dir: str, index: SkillIndex | None, taken: Collection[str]) -> WorkspaceTools:
    """Those of the manifests of a workspace, and of the skills of the index. `taken` are the names of other tools,
    whose place none takes. Blocking."""
    specs: list[ToolSpec] = []
    unusable: list[str] = []
    approved: Approved | None = None
    if index is not None:
        skills = index.skills()
        specs.extend(loading_spec(skills))
        unusable.extend(_skill_lines(skills.unusable))
    if project_tool_names(workspace):
        found, wrong = specs_in(workspace)
        wrong |= {spec.name: ("a tool has this name already",) for spec in found if spec.name in taken}
        specs.extend(spec for spec in found if spec.name not in taken)
        unusable.extend((*_lines(wrong), *_missing_programs(workspace)))
        approved = ApprovedTools(state_dir, workspace)
    return WorkspaceTools(tuple(specs), approved, tuple(unusable))


def problems_of_workspace(workspace: str, index: SkillIndex | None) -> list[str]:
    """Problems of the manifests of the workspace's tools and of their programs, and of the skills of the index: a line
    for each of the first, and how many more there are. Blocking."""
    manifests: list[str] = []
    if os.path.isdir(os.path.join(workspace, FOLDER)):
        manifests = [*_lines(specs_in(workspace)[1]), *_missing_programs(workspace)]
    skills = [] if index is None else _skill_lines(index.skills().unusable)
    return [*_first(manifests, f"problems of manifests in {FOLDER}"), *_first(skills, "skills cannot be used")]


def _first(lines: list[str], all_are: str) -> list[str]:
    extra = len(lines) - _MAX_LISTED
    return lines if extra <= 0 else [*lines[:_MAX_LISTED], f"{extra} more {all_are}"]


def _skill_lines(unusable: Mapping[str, str]) -> list[str]:
    return [f"the skill {name} cannot be used: {why}" for name, why in unusable.items()]


def _lines(wrong: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{os.path.join(FOLDER, name)}.toml cannot be used: {why}" for name, found in wrong.items() for why in found
    ]


def _missing_programs(workspace: str) -> list[str]:
    found = missing_programs(workspace, os.environ.get("PATH", os.defpath))
    return [f"{os.path.join(FOLDER, name)}.toml: {why}, so that its calls will fail" for name, why in found.items()]
