"""The skills that the current task uses: from the call that has read one until the task ends, each leaves only the
tools that it names (SK 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import LoadedSkill
    from agent_host.routing.judge import Judge


def limit_tools(judge: Judge, skills: Mapping[str, Sequence[str] | None]) -> bool:
    """Have the `allowed-tools` of these skills hold, by their names; None leaves all tools. Whether that changed
    anything."""
    limits = {limit for limit in judge.limits if limit.commands is None}
    limited = {name: allowed for name, allowed in skills.items() if allowed is not None}
    if limited:
        from policy.rules.skills import skill_tools  # with it comes what reads command lines

        limits |= {skill_tools(name, allowed, judge.tools.names).limit for name, allowed in limited.items()}
    if limits == judge.limits:
        return False
    judge.limits = frozenset(limits)
    return True


def note_on(judge: Judge, skill: LoadedSkill) -> str:
    """What the model has to know of the tools that a skill leaves; empty where it leaves all."""
    if skill.allowed_tools is None:
        return ""
    from policy.rules.skills import skill_tools

    unknown = skill_tools(skill.name, skill.allowed_tools, judge.tools.names).unknown
    named = f", of which these name no tool here: {', '.join(unknown)}" if unknown else ""
    return f"\n[Until the task ends only the tools of its allowed-tools can be used{named}]"
