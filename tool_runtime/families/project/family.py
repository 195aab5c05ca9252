"""A project's own tools as a Provider: JSON goes in on stdin, JSON comes out on stdout, checked by the schemas of the
manifest both ways. They run like commands, with the same environment and marks, and what they leave running is ended.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.contracts import Leftovers, Subject, ToolSpec
from config import json_text
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.commands import command_params, environment_under
from tool_runtime.families.project.manifest import program_of, project_tool, tools_in
from tool_runtime.output.artifacts import tool_output
from tool_runtime.output.text import decode_output
from tool_runtime.output.truncate import truncate_text
from tool_runtime.platform import current
from tool_runtime.processes.command import end_leftovers
from tool_runtime.schema import UnusableSchema, judge_of
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import CallContext, FaultKind, Tool, ToolFault, ToolOutput, mark_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolRequest
    from tool_runtime.families.commands import RunProgram
    from tool_runtime.families.project.manifest import Manifest, ProjectTool
    from tool_runtime.processes.command import CommandOutcome, CommandParams
    from tool_runtime.settings import RuntimeSettings

_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_SHOWN_BYTES = 8 * 1024


class ProjectTools:
    """A Provider of the tools that the manifests of `settings.workspace` describe, as they are with each task. `run`
    runs a program as commands are run. `unusable` says what is wrong with the other manifests."""

    def __init__(self, settings: RuntimeSettings, run: RunProgram) -> None:
        self._settings = settings
        self._run_program = run
        self._pool = DaemonPool(2)
        self._tools: dict[str, ProjectTool] = {}
        self.unusable: dict[str, str] = {}

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        self._tools, self.unusable = await self._pool.run(lambda: _usable_in(self._settings.workspace))
        return [_spec(tool) for tool in self._tools.values()]

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        tool = self._tools.get(name)
        return None if tool is None else Tool(_spec(tool), functools.partial(self._run, tool), DESKTOP)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A tool leaves processes behind, as a command does."""
        return await end_leftovers(mark_of(request), self._pool)

    async def aclose(self) -> None:
        """See Provider."""
        self._pool.close()

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return environment_under(self._settings)

    async def _run(self, tool: ProjectTool, call: CallContext) -> ToolOutput:
        manifest, workspace = tool.manifest, self._settings.workspace
        now = await self._pool.run(lambda: project_tool(workspace, manifest.name))
        if now.identity != tool.identity:
            raise ToolFault(
                FaultKind.ACCESS_DENIED, f"the files of the tool {manifest.name} have changed since it was judged"
            )
        outcome = await self._run_program(self._program(call, manifest))
        try:
            return self._answer(call, manifest, outcome)
        finally:
            outcome.stdout.spill.close()
            outcome.stderr.spill.close()

    def _program(self, call: CallContext, manifest: Manifest) -> CommandParams:
        settings = self._settings
        return command_params(
            call.request,
            settings,
            program_of(settings.workspace, manifest),
            settings.workspace,
            {**self._environment, "PWD": settings.workspace},
            timeout_s=settings.default_command_s
            if manifest.timeout_s is None
            else min(manifest.timeout_s, settings.command_timeout_max_s),
            max_output_bytes=_MAX_ANSWER_BYTES,
            stdin=orjson.dumps(dict(call.request.arguments)),
            is_shown=False,
        )

    def _answer(self, call: CallContext, manifest: Manifest, outcome: CommandOutcome) -> ToolOutput:
        said = decode_output(outcome.stderr.ends.render(_SHOWN_BYTES), crlf=current.CRLF).strip()
        refused = " ".join(outcome.refused.splitlines())
        behind = "".join(f": {one}" for one in (said, refused) if one)
        if outcome.timed_out:
            raise ToolFault(FaultKind.TIMED_OUT, f"{manifest.name} took too long{behind}")
        if outcome.exit_code != 0:
            raise ToolFault(FaultKind.SYSTEM, f"{manifest.name} ended with exit code {outcome.exit_code}{behind}")
        if outcome.stdout.ends.total > _MAX_ANSWER_BYTES:
            raise ToolFault(FaultKind.SYSTEM, f"{manifest.name} printed more than {_MAX_ANSWER_BYTES} bytes")
        raw = outcome.stdout.ends.render(_MAX_ANSWER_BYTES)
        try:
            value: Any = json_text.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ToolFault(FaultKind.SYSTEM, f"{manifest.name} printed no JSON: {error}{behind}") from error
        if manifest.output is not None:
            wrong = judge_of(manifest.output, foreign=True)(value)
            if wrong is not None:
                raise ToolFault(
                    FaultKind.SYSTEM, f"what {manifest.name} printed does not fit its output schema: {wrong}"
                )
        data = orjson.dumps(value)
        text = truncate_text(data.decode(), call.max_output_bytes)
        if len(data) <= self._settings.artifact_threshold_bytes:
            return ToolOutput(text, capped=True)
        return ToolOutput(text, (tool_output(call.request, data, part="result"),), capped=True)


def specs_in(workspace: str) -> tuple[list[ToolSpec], dict[str, str]]:
    """The tools of a workspace without a session, and what is wrong with the other manifests, by their names.
    Blocking."""
    usable, unusable = _usable_in(workspace)
    return [_spec(tool) for tool in usable.values()], unusable


def _usable_in(workspace: str) -> tuple[dict[str, ProjectTool], dict[str, str]]:
    """`tools_in`, without those whose schemas cannot be used."""
    usable, unusable = tools_in(workspace)
    for name, tool in list(usable.items()):
        for field, schema in (("input", tool.manifest.input), ("output", tool.manifest.output)):
            try:
                if schema is not None:
                    judge_of(schema, foreign=True)
            except UnusableSchema as error:
                unusable[name] = f"$.{field}: {error}"
                usable.pop(name, None)
    return usable, unusable


def _spec(tool: ProjectTool) -> ToolSpec:
    manifest = tool.manifest
    return ToolSpec(
        manifest.name,
        manifest.description,
        manifest.input,
        capability="Tool.Invoke",
        subject=Subject("name"),
        effect=manifest.effect,
        category="commands",
        foreign_schema=True,
        identity=tool.identity,
        runs=manifest.argv,
    )
