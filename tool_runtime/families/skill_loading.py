"""`load_skill`, which is there in every family: the model sees what skills there are, and reads the one that it needs.

Which skills there are is looked up with each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.contracts import LoadedSkill, Subject, ToolSpec
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.schemas import integer, parameters, text
from tool_runtime.files.paths import Scope
from tool_runtime.files.skills import body_of, resource_of
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import CallContext, Provider, Tool, ToolOutput, run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tool_runtime.files.skills import Skill, SkillIndex, Skills
    from tool_runtime.settings import RuntimeSettings

_MAX_LISTED_CHARS: Final = 32_000
_DESCRIPTION: Final = (
    "Read a skill before doing what it is for: instructions for one kind of task. It holds until the task ends, and "
    "the tools may be limited to those that it names. With file, read a file of the skill instead."
)
LOAD_SKILL: Final = ToolSpec(
    "load_skill",
    _DESCRIPTION,
    parameters(
        ["name"],
        name=text("Name of the skill", minLength=1),
        file=text("Path of a file in the skill's folder, to be read in place of its instructions", minLength=1),
        offset=integer("Character to start from in that file. Default: 0", minimum=0),
    ),
    capability="File.Read",
    subject=Subject("name"),
    effect="none",
    category="files",
)


class SkillLoading(Provider):
    """The provider of `load_skill`, over the skills of the index; of nothing where there are none."""

    def __init__(self, index: SkillIndex, settings: RuntimeSettings) -> None:
        self._index = index
        self._settings = settings
        self._pool = DaemonPool(1)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return loading_spec(await self._pool.run(self._index.skills))

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        if name != LOAD_SKILL.name:
            return None
        return Tool(LOAD_SKILL, run_in_thread(self._load, self._pool, self._settings.file_timeout_s), DESKTOP)

    async def aclose(self) -> None:
        """See Provider."""
        self._pool.close()

    def _load(self, call: CallContext) -> ToolOutput:
        arguments, limits = call.request.arguments, call.request.constraints
        skill = self._index.find(arguments["name"])
        scope = Scope(limits.allowed_paths, limits.blocked_paths)
        if "file" in arguments:
            return ToolOutput(resource_of(skill, arguments["file"], arguments.get("offset", 0), scope, call.abandoned))
        body = body_of(skill, scope, call.abandoned)
        return ToolOutput(body, skill=LoadedSkill(skill.name, skill.allowed_tools))


def loading_spec(skills: Skills) -> Sequence[ToolSpec]:
    """The tool that reads one of these skills, which its description lists; none where none can be used."""
    usable = skills.usable
    return (LOAD_SKILL._replace(description=_list_skills(usable.values())),) if usable else ()


def _list_skills(skills: Iterable[Skill]) -> str:
    lines = [_DESCRIPTION, "Skills:"]
    room = _MAX_LISTED_CHARS
    left_out = 0
    for skill in skills:
        line = f"- {skill.name}: {skill.description}"
        room -= len(line)
        if room < 0:
            left_out += 1
        else:
            lines.append(line)
    if left_out:
        lines.append(f"({left_out} more skills are not listed)")
    return "\n".join(lines)
