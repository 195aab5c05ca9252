"""The tools that a workspace brings, without a session: nothing is started for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent_host.host.environment import project_tool_names
from config.lean_typing import NamedTuple
from state.tool_lists import ApprovedTools
from tool_runtime.families.project import FOLDER, specs_in
from tool_runtime.families.skill_loading import loading_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent_host.contracts import ToolSpec
    from agent_host.judging.judge import Approved
    from tool_runtime.files.skills import SkillIndex

_MAX_TOLD: Final = 5


class WorkspaceTools(NamedTuple):
    """`specs` are those of the project and what loads skills, `approved` which of the project's a person has approved
    as they are, None where there are none. `unusable` says what is wrong with manifests and skills, a line each."""

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
        unusable.extend(f"the skill {name} cannot be used: {why}" for name, why in skills.unusable.items())
    if project_tool_names(workspace):
        found, wrong = specs_in(workspace)
        wrong |= {spec.name: "a tool has this name already" for spec in found if spec.name in taken}
        specs.extend(spec for spec in found if spec.name not in taken)
        unusable.extend(_lines(wrong))
        approved = ApprovedTools(state_dir, workspace)
    return WorkspaceTools(tuple(specs), approved, tuple(unusable))


def unusable_manifests(workspace: str) -> list[str]:
    """Problems of the manifests of the workspace's tools: a line for each of the first, and how many more there are.
    Blocking."""
    lines = _lines(specs_in(workspace)[1])
    more = len(lines) - _MAX_TOLD
    return lines if more <= 0 else [*lines[:_MAX_TOLD], f"{more} more manifests of {FOLDER} cannot be used"]


def _lines(wrong: Mapping[str, str]) -> list[str]:
    return [f"{os.path.join(FOLDER, name)}.toml cannot be used: {why}" for name, why in wrong.items()]
