"""The scripts of skills (SK 5.4): find a script's real path and the program that runs it. Blocking: callers use a
thread, except for facts, which are few and small.

A script is read by descriptors along its real path, so that no link made after the check is followed. It is started by
that path, because it may find its own files by it.
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
"""Codes of scripts that cannot be run; any other fault means that there is no script."""


class SkillScripts(NamedTuple):
    """The scripts of the skills in an index, with interpreters from PATH `path` that are not inside a place `outside`.
    Each run gets its own directory in `sandbox`; a task has at most `max_runs` runs."""

    skills: SkillIndex
    path: str
    sandbox: str
    max_runs: int
    outside: tuple[str, ...] = ()

    def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
        """Return a script, or the reason why it cannot run."""
        try:
            return self.find(skill, relative_path)
        except ToolFault as fault:
            return ToolError(_CODES.get(fault.kind, ErrorCode.FILE_NOT_FOUND), str(fault))

    def find(self, skill: str, relative_path: str) -> ScriptFacts:
        """Return a script. It is not read if its real path is outside of the skill's scripts folder. Raises
        ToolFault."""
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
