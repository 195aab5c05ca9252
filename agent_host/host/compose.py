"""Composition of a session's loop: the runtime, the judge, the conversation."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING

from agent_host.approval.gate import ElicitationQueue, WatchedGate
from agent_host.events import EventType
from agent_host.events.emitter import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.host.environment import (
    families_of,
    hidden_files,
    limits_of,
    limits_of_family,
    native_list,
    native_roots,
    project_tool_names,
    script_runs,
    secret_variables,
    skill_index,
    skill_scripts,
    variables_to_allow,
)
from agent_host.host.gateway import answer_form, make_client, report_window
from agent_host.judging import Judge, Registry
from agent_host.loop import ArtifactPlaces, CommandWatch, Journal, LoopContext
from agent_host.loop.background import CommandLog
from agent_host.loop.conversation import refuse_uncounted
from agent_host.loop.progress import Cancellation, Progress
from agent_host.loop.results import RecordedResults
from agent_host.states import task_machine
from config.lean_typing import NamedTuple
from policy.rules import NO_LIMITS
from policy.rules.toolset import delegated_capabilities
from state import SessionPaths
from tool_runtime.families.catalogue import NATIVE, SKILLS
from tool_runtime.families.python_tools import PythonTools
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.host.backends import Stores
    from agent_host.host.environment import LocalMachine, Surroundings
    from agent_host.host.gateway import Gateway
    from agent_host.host.parts import Parts
    from agent_host.host.remote_tools import ToolsElsewhere
    from agent_host.host.secrets import Secrets
    from agent_host.ids import Outside
    from agent_host.judging import Approved
    from agent_host.llm.client import LlmClient
    from agent_host.loop.conversation import Conversation
    from agent_host.session.opening import ResolvedOptions
    from state.file_session import FileSession
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.tool import Provider


class Composition(NamedTuple):
    """All that the loop of the session in `store` is made of. `owns_process`: this process is the program's own, and
    what commands start may be tied to its life."""

    resolved: ResolvedOptions
    parts: Parts
    store: FileSession
    gateway: Gateway
    secrets: Secrets
    gate: ApprovalGate
    emitter: Emitter
    stores: Stores
    surroundings: Surroundings
    owns_process: bool

    async def make_context(self) -> LoopContext:
        """The loop's context, with the tools of its servers and of the Backend Tool Service."""
        settings, parts, emitter, state = self.resolved.settings, self.parts, self.emitter, self.store.state
        if settings.llm.max_cost:
            refuse_uncounted(parts.models, state)
        live_output = LiveOutput(emitter, VERBOSE_PIECE_BYTES if settings.host.verbose else MAX_PIECE_BYTES)
        keeps_versions = settings.retention.keep_file_versions
        journal = Journal(self.store, emitter, settings.host.max_stored_bytes, keeps_versions=keeps_versions)
        outputs = RecordedResults(self.store, self.stores.artifacts)
        runtime = self._runtime_settings(live_output, CommandLog(journal, emitter), outputs)
        router, scripts, approved = self._router(runtime)
        scrubber, phase = self.secrets.scrubber, task_machine()
        ctx = LoopContext(
            journal=journal,
            judge=self._judge(Registry(await router.tools()), scripts, approved, outputs),
            conversation=parts.make_conversation(settings, state, scrubber, lambda: self._client(ctx.conversation)),
            router=router,
            gate=WatchedGate(self.gate, phase),
            emitter=emitter,
            artifacts=ArtifactPlaces(
                self.stores.artifacts, self.stores.uploads, self.stores.uploads_elsewhere, asyncio.Lock()
            ),
            cancellation=Cancellation(),
            scrubber=scrubber,
            phase=phase,
            live_output=live_output,
            at_once={
                "commands": settings.tools.max_parallel_commands,
                "files": settings.tools.max_parallel_files,
                "requests": settings.tools.max_parallel_requests,
                "uploads": settings.tools.max_parallel_uploads,
            },
            questions=ElicitationQueue(),
            outside=self.surroundings.outside,
            progress=Progress(settings.loop.repeat_note, settings.loop.repeat_limit, answer_form(settings)),
            command_watch=self._command_watch(),
        )
        self._add_remote_tools(ctx, router, runtime)
        ctx.conversation.renew_head(ctx.judge)
        return ctx

    def _client(self, conversation: Conversation) -> LlmClient:
        settings, gateway, dialect = self.resolved.settings, self.gateway, self.parts.dialect
        if gateway.said:
            self.emitter.emit(EventType.LLM_DIALECT_CHOSEN, {"dialect": dialect.name, "message": gateway.said})
        report_window(self.emitter, conversation, gateway.server_said, families_of(settings))
        session_id, time = self.store.state.identity.session_id, self.surroundings.outside.time
        return make_client(settings, gateway, self.secrets.gateway_token, dialect, session_id, time)

    def _runtime_settings(
        self, live_output: LiveOutput, commands: CommandLog, outputs: RecordedResults
    ) -> RuntimeSettings:
        parts, state_dir = self.parts, self.resolved.state_dir
        paths = SessionPaths(state_dir, self.store.state.identity.session_id)
        made = runtime_settings(
            self.resolved, parts.machine, live_output, self.surroundings.outside, guards=self.owns_process
        )
        sandbox = None
        if parts.scoping is not None:  # a mode may ask for a level where the launch has none
            guarded, caches = (os.path.join(paths.records, "guarded"), os.path.join(parts.machine.temporary, "caches"))
            sandbox = SandboxSettings(parts.scoping.level, required=True, directory=guarded, caches=caches)
        return made._replace(
            commands_before=self.store.state.commands_started,
            native_shadowed=frozenset(tool.name for tool in parts.tools),
            elsewhere=delegated_capabilities(parts.bundle),
            commands=commands,
            open_output=outputs.open,
            sandbox=sandbox,
            kept=paths.kept_folder,
        )

    def _router(self, runtime: RuntimeSettings) -> tuple[LocalToolRouter, SkillScripts | None, Approved | None]:
        """The runtime of this machine's tools, the scripts of skills, and which tools of the project a person has
        approved."""
        resolved, parts = self.resolved, self.parts
        providers: list[Provider] = []
        index, scripts = skill_index(resolved.workspace), None
        if SKILLS in resolved.settings.host.toolset:
            session_id, machine = self.store.state.identity.session_id, parts.machine
            scripts = skill_scripts(
                resolved.settings,
                index,
                resolved.state_dir,
                session_id,
                machine.environment.workspace,
                machine.temporary,
            )
        if index is not None:
            from tool_runtime.families.skills import SkillLoading

            providers.append(SkillLoading(index, runtime))
        if parts.tools:
            providers.append(PythonTools(parts.tools, runtime))
        router = LocalToolRouter(runtime, self.surroundings.start_command, providers, scripts)
        if not project_tool_names(resolved.workspace):
            return router, scripts, None
        from state.tool_lists import ApprovedTools
        from tool_runtime.families.project import ProjectTools

        router.add(ProjectTools(runtime, router.run_program))
        return router, scripts, ApprovedTools(resolved.state_dir, resolved.workspace)

    def _judge(
        self, tools: Registry, scripts: SkillScripts | None, approved: Approved | None, outputs: RecordedResults
    ) -> Judge:
        settings, scoping = self.resolved.settings, self.parts.scoping
        if scoping is not None and scripts is not None:
            scoping.scripts = scripts.sandbox
        return Judge(
            self.parts.bundle,
            self.parts.machine.environment,
            tools,
            limits_of(settings) | (limits_of_family(settings) if scripts is not None else NO_LIMITS),
            self.surroundings.outside.now,
            outputs=outputs.maker_of,
            approved=approved,
            native=native_list(settings, self.resolved.workspace) if NATIVE in settings.host.toolset else None,
            scripts=scripts,
            script_runs=lambda: script_runs(self.store.state),
            scoping=scoping,
        )

    def _command_watch(self) -> CommandWatch | None:
        """The watch of the workspace around commands, without the host's own folders; None if it is switched off."""
        if not self.resolved.settings.tools.watch_changes:
            return None
        machine = self.parts.machine
        own = map(os.path.realpath, (self.resolved.state_dir, machine.temporary))
        return CommandWatch(machine.environment.workspace, tuple(own))

    def _add_remote_tools(self, ctx: LoopContext, router: LocalToolRouter, runtime: RuntimeSettings) -> None:
        """Tools of MCP servers and of the Backend Tool Service. They come with the first task: nothing waits for them
        here."""
        resolved, parts, judge = self.resolved, self.parts, ctx.judge
        settings, state_dir, identity = resolved.settings, resolved.state_dir, self.store.state.identity
        if parts.has_mcp and (parts.bundle.mcp_servers or settings.mcp.servers or parts.client_servers):
            from agent_host.host.mcp_servers import SessionServers
            from agent_host.loop.elicitation import ask_person

            servers = SessionServers(
                settings,
                judge.bundle,
                judge.environment,
                state_dir,
                ctx.outside.now(),
                identity.session_id,
                runtime.temporary,
                judge.scoping,
            )
            elsewhere = self._elsewhere(judge)
            asks = functools.partial(ask_person, ctx)
            servers.add_to(router, runtime, elsewhere, asks, ctx.scrubber.add, parts.client_servers)
        if parts.tool_service is not None:
            router.add_remote(parts.tool_service.provider(self._elsewhere(judge), judge, identity, settings))

    def _elsewhere(self, judge: Judge) -> ToolsElsewhere:
        """Sources of tools, which the judge asks about what they have from now on."""
        from agent_host.host.remote_tools import ToolsElsewhere

        state_dir, emitter = self.resolved.state_dir, self.emitter
        judge.approved = elsewhere = ToolsElsewhere(state_dir, lambda: judge.bundle, emitter, judge.approved)
        return elsewhere


def runtime_settings(
    resolved: ResolvedOptions, machine: LocalMachine, live_output: LiveOutput, outside: Outside, *, guards: bool
) -> RuntimeSettings:
    """The settings of the runtime. `guards`: what commands start ends with this process."""
    settings = resolved.settings
    return RuntimeSettings(
        workspace=resolved.workspace,
        outside=outside,
        shell=machine.shell,
        file_timeout_s=settings.tools.file_timeout_s,
        command_timeout_s=settings.tools.command_timeout_s,
        command_timeout_max_s=settings.tools.command_timeout_max_s,
        http_timeout_s=settings.tools.http_timeout_s,
        http_timeout_max_s=settings.tools.http_timeout_max_s,
        http_max_body_bytes=settings.tools.max_response_bytes,
        http_max_download_bytes=settings.tools.max_download_bytes,
        http_proxy=settings.tools.http_proxy or None,
        https_proxy=settings.tools.https_proxy or None,
        max_output_bytes=settings.tools.max_output_bytes,
        artifact_max_bytes=settings.tools.max_artifact_bytes,
        output_buffer_bytes=settings.tools.output_buffer_bytes,
        max_file_size_bytes=settings.limits.max_file_size_bytes or None,
        secret_env=secret_variables(settings),
        env_passthrough=frozenset(settings.tools.env_passthrough),
        env_allowed=variables_to_allow(settings),
        temporary=machine.temporary,
        on_output=live_output.take,
        guard_processes=guards,
        families=families_of(settings),
        native_roots=native_roots(settings, resolved.workspace) if NATIVE in settings.host.toolset else (),
        native_tls_checks=settings.native.tls_checks,
        script_timeout_s=settings.skills.script_timeout_s,
        hidden_files=hidden_files(settings) if SKILLS in settings.host.toolset else (),
        max_background=settings.tools.max_background_commands,
        background_lifetime_s=settings.tools.background_lifetime_s or None,
    )
