"""run_script, over `core.scripts` and `core.process`: a script of a skill with its interpreter, never a shell (SK 5.4).
Policy has judged both as a command."""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from agent_host.shown_text import name_for_json
from tool_runtime.core.process import end_leftovers
from tool_runtime.families.answers import with_text
from tool_runtime.families.desktop.calls import encoded, mark_of
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.environment import environment_under
from tool_runtime.families.programs import command_params, kept, printed, refusals_of, told_of
from tool_runtime.families.skills import limits
from tool_runtime.families.skills.specs import RUN_SCRIPT
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory, open_parent
from tool_runtime.output.truncate import truncate_characters
from tool_runtime.platform import WINDOWS
from tool_runtime.platform.programs import trusted_path
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Artifact, Leftovers, ToolRequest
    from policy.facts import ScriptFacts
    from tool_runtime.core.process import Captured, CommandOutcome, CommandParams
    from tool_runtime.core.scripts import SkillScripts
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

_VARIABLES: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL")
"""All that a script finds in its environment, where the host has them."""
_ON_WINDOWS: Final = ("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "TEMP", "TMP")
"""Without these programs do not start there."""
_CAPTURED_BYTES: Final = 4 * limits.OUTPUT_CHARS
_MAX_LISTED: Final = 50
_CUT: Final = {"stdout": "stdout_truncated", "stderr": "stderr_truncated"}


class ScriptTools:
    """See `families.skills.runner`. `scripts` are those of the skills, None where there are none."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram, scripts: SkillScripts | None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._scripts = scripts

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(RUN_SCRIPT, capped(self._run), DESKTOP),)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A script leaves processes behind, as a command does."""
        return await end_leftovers(mark_of(request), self._pool)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        wanted = (*_VARIABLES, *_ON_WINDOWS) if WINDOWS else _VARIABLES
        shown = {name: value for name, value in environment_under(self._settings).items() if name.upper() in wanted}
        # An interpreter may be a script of `env` itself, as pyenv's are.
        return shown | {"PATH": trusted_path(shown.get("PATH", os.defpath), self._settings.writable_places)}

    async def _run(self, call: CallContext) -> ToolOutput:
        if self._scripts is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"there is no skill {call.request.arguments['skill']}")
        scripts, args = self._scripts, _args(call)
        script, cwd = await self._pool.run(lambda: _prepared(call, scripts))
        params = self._params(call, [*script.argv, script.path, *args], cwd)
        began = time.monotonic()
        try:
            outcome = await self._run_program(params)
        finally:
            left = [] if cwd == script.folder else await self._pool.run(lambda: _left_in(cwd))
        duration_ms = int((time.monotonic() - began) * 1000)
        output = _shown(call, outcome, duration_ms, {"sandbox": cwd, "files": left} if left else {})
        if outcome.timed_out:
            said = "; ".join(filter(None, (f"timed out after {params.timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        if outcome.exit_code:
            said = f"{script.relative_path} of the skill {script.skill} ended with exit code {outcome.exit_code}"
            raise ToolFault(FaultKind.EXIT_NONZERO, said, partial=output)
        return output

    def _params(self, call: CallContext, argv: list[str], cwd: str) -> CommandParams:
        longest = self._settings.script_timeout_s
        return command_params(
            call.request,
            self._settings,
            argv,
            cwd,
            self._environment,
            timeout_s=min(call.request.arguments.get("timeout_s", longest), longest),
            max_output_bytes=_CAPTURED_BYTES,
        )


def _args(call: CallContext) -> Sequence[str]:
    """Raises ToolFault for what no program can be given."""
    args: Sequence[str] = call.request.arguments.get("args", ())
    for word in args:
        encoded(word, "args")
        if "\0" in word:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.args: a word holds a NUL character")
    return args


def _prepared(call: CallContext, scripts: SkillScripts) -> tuple[ScriptFacts, str]:
    """The script, which is the one that policy has judged, and a directory for it. Raises ToolFault."""
    arguments = call.request.arguments
    script = scripts.find(arguments["skill"], arguments["relative_path"])
    if not script.argv:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"it is no script of the skill {script.skill}: {script.path}")
    if call.request.judged not in (None, script.identity):
        raise ToolFault(FaultKind.PATH_CHANGED, f"the script has changed since it was judged: {script.path}")
    if arguments.get("cwd") == "skill":
        return script, script.folder
    name = f"run-{os.urandom(8).hex()}"
    with os_faults(scripts.sandbox), open_directory(scripts.sandbox, create=PRIVATE_DIRECTORY) as directory:
        directory.make_directory(name, PRIVATE_DIRECTORY)
    return script, os.path.join(scripts.sandbox, name)


def _left_in(sandbox: str) -> list[str]:
    """What a script left in its directory, by name. An empty one goes."""
    try:
        with open_directory(sandbox) as directory:
            names = directory.names()
    except OSError:  # the script took it away, or put a link there
        return []
    if not names:
        with suppress(OSError), open_parent(sandbox) as (directory, name):
            directory.remove_directory(name)
    return list(map(name_for_json, names[:_MAX_LISTED]))


def _shown(call: CallContext, outcome: CommandOutcome, duration_ms: int, more: Mapping[str, Any]) -> ToolOutput:
    fields: dict[str, Any] = {
        "exit_code": outcome.exit_code,
        "timeout": outcome.timed_out,
        "duration_ms": duration_ms,
    }
    stored: list[Artifact] = []
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        text, is_cut = _cut(captured)
        fields |= {name: text, _CUT[name]: is_cut}
        artifact = kept(call, captured, name, is_kept=is_cut)
        if artifact is not None:
            stored.append(artifact._replace(ref_field=f"{name}_ref", hash_field=f"{name}_sha256"))
    told = {**fields, **more, **refusals_of(outcome)}
    output = with_text(call, told, cut=_CUT, exit_code=outcome.exit_code, denials=outcome.denials)
    return output._replace(artifacts=tuple(stored), stderr=told_of(outcome.stderr))


def _cut(captured: Captured) -> tuple[str, bool]:
    text, is_cut = printed(captured, _CAPTURED_BYTES)
    shown = truncate_characters(text, limits.OUTPUT_CHARS)
    return shown, is_cut or shown is not text
