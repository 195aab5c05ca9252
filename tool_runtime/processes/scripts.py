"""The scripts of skills (SK 5.4): where one really lies, and which program runs it. Blocking: callers run these in a
thread, but for facts, which are few and small.

A script is read through descriptors from its real path on, so that no link is followed which was laid after the check.
It is started by that path, since it may look for its own files by it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.contracts import ToolError
from agent_host.errors import ErrorCode
from policy.facts import ScriptFacts
from policy.paths import is_under, normalize
from policy.rules.native_exec import SCRIPTS
from policy.shell import MAX_FIRST_LINE_BYTES, NoInterpreter, interpreter_of
from tool_runtime.files import Scope, spell
from tool_runtime.files.read import whole_file
from tool_runtime.files.skills import MAX_RESOURCE_BYTES
from tool_runtime.platform import OS_FAMILY
from tool_runtime.platform.environment import find_program
from tool_runtime.tool import Abandoned, FaultKind, ToolFault

if TYPE_CHECKING:
    from tool_runtime.files.skills import SkillIndex

_MAX_PATH_CHARS: Final = 4096
_CODES: Final = {FaultKind.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST, FaultKind.TOO_LARGE: ErrorCode.FILE_TOO_LARGE}
"""Of what cannot be run; for anything else there is no script."""


class SkillScripts(NamedTuple):
    """The scripts of the skills in an index, with interpreters of PATH `path` that lie in no place `outside`. Each run
    has a directory of its own in `sandbox`; `max_runs` run in a task."""

    skills: SkillIndex
    path: str
    sandbox: str
    max_runs: int
    outside: tuple[str, ...] = ()

    def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
        """A script, or why there is none that could run."""
        try:
            return self.find(skill, relative_path)
        except ToolFault as fault:
            return ToolError(_CODES.get(fault.kind, ErrorCode.FILE_NOT_FOUND), str(fault))

    def find(self, skill: str, relative_path: str) -> ScriptFacts:
        """A script. One that really lies elsewhere than in the skill's folder is not read. Raises ToolFault."""
        used = self.skills.find(skill)
        folder, allowed = used.folder, used.allowed_tools
        if "\0" in relative_path or len(relative_path) > _MAX_PATH_CHARS:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.relative_path: is too long, or contains a NUL character")
        spelled = spell(os.path.normpath(os.path.join(folder, relative_path)), "", OS_FAMILY)
        shown = os.path.relpath(spelled, folder).replace(os.sep, "/")
        scripts = os.path.join(folder, SCRIPTS)
        path = os.path.realpath(spelled)
        if not is_under(normalize(path, OS_FAMILY), normalize(scripts, OS_FAMILY), OS_FAMILY) or path == scripts:
            return ScriptFacts(skill, shown, folder, path, allowed_tools=allowed)
        content = whole_file(path, Scope((scripts,)), MAX_RESOURCE_BYTES, Abandoned()).data
        try:
            program, *before = interpreter_of(content[: MAX_FIRST_LINE_BYTES + 1], os.path.basename(path), OS_FAMILY)
        except NoInterpreter as error:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{shown} of the skill {skill}: {error}") from error
        argv = (self._program(program), *before)
        return ScriptFacts(skill, shown, folder, path, argv, hashlib.sha256(content).hexdigest(), allowed)

    def _program(self, program: str) -> str:
        found = program if os.path.isabs(program) else find_program(program, self.path, self.outside)
        if found is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"there is no program {program} to run it")
        return os.path.abspath(found)
