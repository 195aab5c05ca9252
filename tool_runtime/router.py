"""The `ToolRouter` of this package (TR 3): runs the tools of several providers, and turns faults into results."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Any

from agent_host.contracts import Leftovers, ToolError, ToolRequest, ToolResult, ToolSpec
from config.shapes import hint_at
from tool_runtime.families import DESKTOP, Family
from tool_runtime.families.catalogue import ROWS, desktop_specs, other_families
from tool_runtime.families.desktop import set_timeouts
from tool_runtime.families.schemas import drop_grant, usable_arguments
from tool_runtime.schema import Judge, UnusableSchema
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import (
    CallContext,
    FaultKind,
    Provider,
    RuntimeSettings,
    Tool,
    ToolFault,
    ToolOutput,
    judge_of,
    mark_of,
    place_to_keep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tool_runtime.families.commands import Commands
    from tool_runtime.families.operations import Operations
    from tool_runtime.processes.background import ServerProcess
    from tool_runtime.processes.command import CommandOutcome, CommandParams, ServerParams, StartCommand
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.remote import RemoteTools

__all__ = ["LocalToolRouter", "RuntimeSettings"]

_OF_PARTIAL_OUTPUT = ("artifact_uris", "artifacts", "exit_code", "stderr", "denials", "coloured")


class LocalToolRouter:
    """Runs the tools of the families in `settings` on this machine, and those of `others`, on one event loop. If two
    tools have the same name, the first provider's runs. Arguments are checked against the tool's schema before anything
    happens (TR 8); a tool of `others` with an unusable schema does not run, see `unusable`. `scripts` are for the
    skills family."""

    def __init__(
        self,
        settings: RuntimeSettings,
        start_command: StartCommand,
        others: Sequence[Provider] = (),
        scripts: SkillScripts | None = None,
    ) -> None:
        self._settings = settings
        self._start_command = start_command
        self._scripts = scripts
        self._pool = DaemonPool()
        self._families: tuple[Provider, ...] = tuple(self._make_families())
        self._providers: tuple[Provider, ...] = (*self._families, *others)
        self._remote: tuple[RemoteTools, ...] = ()
        self._running: set[asyncio.Task[Any] | None] = set()
        self._judges: dict[str, tuple[Mapping[str, Any], Judge]] = {}
        self.unusable: dict[str, str] = {}
        """Schema problems of the tools left out of the list, by tool name."""

    def add_remote(self, provider: RemoteTools) -> None:
        """Add a provider of remote tools, and start to list them."""
        self._remote = (*self._remote, provider)
        self.add(provider)
        provider.begin()

    def add(self, provider: Provider) -> None:
        """Add a provider, after the existing ones."""
        self._providers = (*self._providers, provider)

    async def fix(self, lists: Mapping[str, str]) -> Mapping[str, str]:
        """See ToolRouter."""
        found = await asyncio.gather(*(one.fix(lists.get(one.name)) for one in self._remote))
        return {one.name: sha256 for one, sha256 in zip(self._remote, found, strict=True) if sha256 is not None}

    async def run_program(self, params: CommandParams) -> CommandOutcome:
        """Run a program for another provider, as RunCommand does: its leftover processes end with the session. Raises
        ToolFault if it cannot be started."""
        return await self._commands.run_program(params)

    def start_program(self, params: ServerParams) -> ServerProcess:
        """Start a long-running server process for another provider; it ends with the session at the latest. Raises
        ToolFault if it cannot be started."""
        return self._commands.start_program(params)

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolRouter."""
        found: dict[str, ToolSpec] = {}
        unusable: dict[str, str] = {}
        for provider in self._providers:
            for spec in await provider.tools():
                if spec.name in found or spec.name in unusable or self._is_sent(provider, spec):
                    continue
                problem = None if provider in self._families else self._schema_problem(spec)
                if problem is None:
                    found[spec.name] = spec
                else:
                    unusable[spec.name] = problem
        self.unusable = unusable
        return tuple(found.values())

    async def execute(self, request: ToolRequest) -> ToolResult:
        """Run one call and return failures as a failed result (TR 7.3). Only cancellation raises."""
        _, tool = self._tool(request.tool_name)
        if tool is None:
            code = DESKTOP[FaultKind.UNKNOWN_TOOL]
            hint = hint_at(request.tool_name, [spec.name for spec in await self.tools()])
            return ToolResult.failure(request, code, f"Unknown tool: {request.tool_name}{hint}")
        task = asyncio.current_task()
        self._running.add(task)
        try:
            # Policy has already decided on anything that the call asked for beyond its sandbox.
            request = request._replace(arguments=drop_grant(tool.spec, request.arguments))
            self._check(tool, request.arguments)
            return _success(request, await tool.run(CallContext.make(request, self._settings)))
        except ToolFault as fault:
            return self._failure(request, tool, fault)
        finally:
            self._running.discard(task)

    async def outcome(self, request: ToolRequest) -> ToolResult | None:
        """See ToolRouter."""
        _, tool = self._tool(request.tool_name)
        if tool is None or tool.outcome is None:
            return None
        try:
            output = await tool.outcome(CallContext.make(request, self._settings))
        except ToolFault as fault:
            return self._failure(request, tool, fault)
        return None if output is None else _success(request, output)

    def at_once(self, request: ToolRequest) -> ToolResult | None:
        """See ToolRouter."""
        _, tool = self._tool(request.tool_name)
        if tool is None or tool.at_once is None:
            return None
        try:
            self._check(tool, request.arguments)
            output = tool.at_once(CallContext.make(request, self._settings))
        except ToolFault as fault:
            return self._failure(request, tool, fault)
        return None if output is None else _success(request, output)

    def argument_problem(self, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        """See ToolRouter."""
        _, tool = self._tool(tool_name)
        if tool is None:
            return None
        try:
            self._check(tool, drop_grant(tool.spec, arguments))
        except ToolFault as fault:
            return str(fault)
        return None

    def usable_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ToolRouter."""
        _, tool = self._tool(tool_name)
        try:
            return arguments if tool is None else usable_arguments(tool.spec, arguments, self._judge(tool.spec))
        except UnusableSchema:
            return arguments

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See ToolRouter."""
        provider, _ = self._tool(request.tool_name)
        if provider is None:
            return Leftovers()
        left = await provider.end_leftovers(request)
        kept = place_to_keep(self._settings, request)
        if kept is not None and os.path.exists(kept):  # noqa: ASYNC240  no file is opened for it
            left = await self._pool.run(lambda: self._files.take_back(left, kept, request))
        sandbox = self._settings.sandbox
        if sandbox is None or sandbox.directory is None:
            return left
        from tool_runtime.sandbox.protected_paths import Guarded

        guarded, mark = Guarded(sandbox.directory), mark_of(request)
        return left._replace(guarded=tuple(await self._pool.run(lambda: guarded.check_after_crash(mark))))

    async def settle(self, request: ToolRequest) -> None:
        """See ToolRouter."""
        kept = place_to_keep(self._settings, request)
        if kept is not None:
            await self._pool.run(lambda: self._files.settle(kept))

    async def end_commands(self) -> Leftovers:
        """See ToolRouter. Running calls are cancelled, and their processes ended."""
        running = list(filter(None, self._running - {asyncio.current_task()}))
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await asyncio.gather(*(one.aclose() for one in self._remote))  # their programs are among the commands
        return await self._commands.end_commands() if "_commands" in self.__dict__ else Leftovers()

    async def aclose(self) -> None:
        """Cancel running calls, end their processes, close connections."""
        await self.end_commands()
        for provider in self._providers:
            await provider.aclose()
        self._pool.close()

    @functools.cached_property
    def _commands(self) -> Commands:
        from tool_runtime.families.commands import Commands

        return Commands(self._settings, self._pool, self._start_command)

    @functools.cached_property
    def _files(self) -> Operations:
        return self._operations(self._settings)

    def _operations(self, settings: RuntimeSettings, **extra: Any) -> Operations:
        from tool_runtime.families.operations import Operations

        return Operations(settings, self._pool, lambda: self._commands, scripts=self._scripts, **extra)

    def _make_families(self) -> Iterator[Family]:
        settings = self._settings
        yield from (family_under(settings, self._operations) for _, family_under in other_families(settings.families))
        specs = desktop_specs(settings.families)
        rows = [ROWS[spec.name]._replace(spec=set_timeouts(spec, settings)) for spec in specs]
        yield Family(rows, lambda: self._files)

    def _judge(self, spec: ToolSpec) -> Judge:
        """Return the judge of a tool's arguments, compiled once from its schema. Raises UnusableSchema."""
        schema, judge = self._judges.get(spec.name, (None, None))
        if judge is None or schema is not spec.input_schema:
            judge = judge_of(spec.schema_to_check, foreign=spec.foreign_schema)
            self._judges[spec.name] = spec.input_schema, judge
        return judge

    def _schema_problem(self, spec: ToolSpec) -> str | None:
        try:
            self._judge(spec)
        except UnusableSchema as error:
            return _unusable(spec, error)
        return None

    def _check(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Raise ToolFault for arguments that the tool does not accept, and for a tool without a usable schema."""
        try:
            wrong = self._judge(tool.spec)(arguments)
        except UnusableSchema as error:
            raise ToolFault(FaultKind.UNKNOWN_TOOL, _unusable(tool.spec, error)) from None
        if wrong is None and tool.check is not None:
            wrong = tool.check(arguments)
        if wrong is not None:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, wrong)

    def _failure(self, request: ToolRequest, tool: Tool, fault: ToolFault) -> ToolResult:
        if fault.kind is FaultKind.NOT_FOUND:
            fault = self._files.add_nearest(fault, request, tool.spec.paths)
        made_by = (request.tool_name, request.session_id, request.task_id, request.step_id)
        error = ToolError(str(fault.code or tool.codes[fault.kind]), str(fault), tool.names.get(fault.kind))
        result = ToolResult(*made_by, "denied" if fault.kind is FaultKind.REFUSED else "failed", error=error)
        partial = fault.partial
        if partial is None:
            return result
        kept = {name: getattr(partial, name) for name in _OF_PARTIAL_OUTPUT}
        return result._replace(output_text=partial.text, **kept)

    def _tool(self, name: str) -> tuple[Provider, Tool] | tuple[None, None]:
        for provider in self._providers:
            tool = provider.get(name)
            if tool is not None and not self._is_sent(provider, tool.spec):
                return provider, tool
        return None, None

    def _is_sent(self, provider: Provider, spec: ToolSpec) -> bool:
        sent = self._settings.elsewhere
        return bool(sent) and provider not in self._remote and not sent.isdisjoint(spec.capabilities)


def _unusable(spec: ToolSpec, error: UnusableSchema) -> str:
    return f"the schema of the tool {spec.name} cannot be used: {error}"


def _success(request: ToolRequest, output: ToolOutput) -> ToolResult:
    fields = output._asdict()
    del fields["capped"]
    made_by = (request.tool_name, request.session_id, request.task_id, request.step_id)
    return ToolResult(*made_by, "succeeded", output_text=fields.pop("text"), **fields)
