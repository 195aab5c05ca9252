"""Composition of a session's loop: the runtime, the judge, the conversation."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from agent_host.approval.gate import ElicitationQueue, WatchedGate
from agent_host.events import EventType
from agent_host.events.emitter import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.host.environment import (
    families_of,
    has_native,
    limits_of,
    native_list,
    native_roots,
    project_tool_names,
    secret_variables,
    variables_to_allow,
)
from agent_host.host.gateway import answer_form, make_client, make_conversation, put_under_parts, report_window
from agent_host.host.secrets import redaction_of
from agent_host.host.skills import has_skills, hidden_files, limits_of_family, script_runs, skill_index, skill_scripts
from agent_host.judging import Judge, Registry
from agent_host.loop import ArtifactPlaces, CommandWatch, Journal, LoopContext
from agent_host.loop.background import CommandLog
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.conversation import refuse_uncounted
from agent_host.loop.elicitation import ask_person
from agent_host.loop.progress import Progress
from agent_host.loop.results import RecordedResults
from agent_host.states import task_machine
from config.lean_typing import NamedTuple
from policy.rules import NO_LIMITS
from policy.rules.toolset import delegated_capabilities
from state.locations import SessionPaths
from tool_runtime.families.python_tools import PythonTools
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    from agent_host.judging.scoping import Scoping
    from agent_host.llm.client import LlmClient
    from agent_host.session.opening import ClientServer, ResolvedOptions
    from state.file_session import FileSession
    from tool_runtime.files.skills import SkillIndex
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.tool import Provider


async def make_context(
    resolved: ResolvedOptions,
    parts: Parts,
    store: FileSession,
    gateway: Gateway,
    secrets: Secrets,
    gate: ApprovalGate,
    emitter: Emitter,
    stores: Stores,
    surroundings: Surroundings,
    *,
    owns_process: bool,
) -> LoopContext:
    """The loop's context for the session in `store`. `owns_process`: this process is the program's own, and what
    commands start may be tied to its life."""
    settings, session_id = resolved.settings, store.state.identity.session_id
    if settings.llm.max_cost:
        refuse_uncounted(parts.models, store.state)
    live_output = LiveOutput(emitter, VERBOSE_PIECE_BYTES if settings.host.verbose else MAX_PIECE_BYTES)
    keeps_versions = settings.retention.keep_file_versions
    journal = Journal(store, emitter, settings.host.max_stored_bytes, keeps_versions=keeps_versions)
    outputs = RecordedResults(store, stores.artifacts)
    local = _local_tools(
        resolved, parts, store, live_output, journal, emitter, outputs, surroundings, owns_process=owns_process
    )
    router = local.runtime
    phase = task_machine()

    def client() -> LlmClient:
        if gateway.said:
            emitter.emit(EventType.LLM_DIALECT_CHOSEN, {"dialect": parts.dialect.name, "message": gateway.said})
        report_window(emitter, ctx.conversation, gateway.server_said, families_of(settings))
        return make_client(
            settings, gateway, secrets.gateway_token, parts.dialect, session_id, surroundings.outside.time
        )

    ctx = LoopContext(
        journal=journal,
        judge=_judge(resolved, parts, store, local, Registry(await router.tools()), outputs, surroundings),
        conversation=make_conversation(settings, parts, store.state, secrets.scrubber, client),
        router=router,
        gate=WatchedGate(gate, phase),
        emitter=emitter,
        artifacts=ArtifactPlaces(stores.artifacts, stores.uploads, stores.uploads_elsewhere),
        cancellation=Cancellation(),
        scrubber=secrets.scrubber,
        phase=phase,
        live_output=live_output,
        at_once={
            "commands": settings.tools.max_parallel_commands,
            "files": settings.tools.max_parallel_files,
            "requests": settings.tools.max_parallel_requests,
            "uploads": settings.tools.max_parallel_uploads,
        },
        questions=ElicitationQueue(),
        outside=surroundings.outside,
        progress=Progress(settings.loop.repeat_note, settings.loop.repeat_limit, answer_form(settings)),
        command_watch=_command_watch(resolved, parts.machine),
    )
    if parts.has_mcp and (parts.bundle.mcp_servers or settings.mcp.servers or parts.client_servers):
        _add_servers(ctx, resolved, local.settings, router, session_id, parts.client_servers)
    if parts.tool_service is not None:
        elsewhere = _elsewhere(ctx.judge, resolved, emitter)
        router.add_remote(parts.tool_service.provider(elsewhere, ctx.judge, store.state.identity, settings))
    ctx.conversation.renew_head(ctx.judge)
    return ctx


class _LocalTools(NamedTuple):
    """The runtime with its settings, the scripts of skills, and which tools of the project a person has approved."""

    runtime: LocalToolRouter
    settings: RuntimeSettings
    scripts: SkillScripts | None
    approved: Approved | None


def _local_tools(
    resolved: ResolvedOptions,
    parts: Parts,
    store: FileSession,
    live_output: LiveOutput,
    journal: Journal,
    emitter: Emitter,
    outputs: RecordedResults,
    surroundings: Surroundings,
    *,
    owns_process: bool,
) -> _LocalTools:
    """The runtime of this machine's tools."""
    settings, machine, session_id = resolved.settings, parts.machine, store.state.identity.session_id
    of_runtime = runtime_settings(resolved, machine, live_output, surroundings.outside, guards=owns_process)._replace(
        commands_before=store.state.commands_started,
        native_shadowed=frozenset(tool.name for tool in parts.tools),
        elsewhere=delegated_capabilities(parts.bundle),
        commands=CommandLog(journal, emitter),
        open_output=outputs.open,
        sandbox=sandbox_settings(parts, resolved.state_dir, session_id),
        kept=SessionPaths(resolved.state_dir, session_id).kept_folder,
    )
    index, scripts = skill_index(resolved.workspace), None
    if has_skills(settings):
        scripts = skill_scripts(
            settings, index, resolved.state_dir, session_id, machine.environment.workspace, machine.temporary
        )
    runtime = LocalToolRouter(of_runtime, surroundings.start_command, providers_of(parts, of_runtime, index), scripts)
    approved: Approved | None = None
    if project_tool_names(resolved.workspace):
        from state.tool_lists import ApprovedTools
        from tool_runtime.families.project import ProjectTools

        runtime.add(ProjectTools(of_runtime, runtime.run_program))
        approved = ApprovedTools(resolved.state_dir, resolved.workspace)
    return _LocalTools(runtime, of_runtime, scripts, approved)


def _judge(
    resolved: ResolvedOptions,
    parts: Parts,
    store: FileSession,
    local: _LocalTools,
    tools: Registry,
    outputs: RecordedResults,
    surroundings: Surroundings,
) -> Judge:
    settings, scripts = resolved.settings, local.scripts
    return Judge(
        parts.bundle,
        parts.machine.environment,
        tools,
        limits_of(settings) | (limits_of_family(settings) if scripts is not None else NO_LIMITS),
        surroundings.outside.now,
        outputs=outputs.maker_of,
        approved=local.approved,
        native=native_list(settings, resolved.workspace) if has_native(settings) else None,
        scripts=scripts,
        script_runs=lambda: script_runs(store.state),
        scoping=_scoping(parts, scripts),
    )


def _scoping(parts: Parts, scripts: SkillScripts | None) -> Scoping | None:
    if parts.scoping is not None and scripts is not None:
        parts.scoping.scripts = scripts.sandbox
    return parts.scoping


def _elsewhere(judge: Judge, resolved: ResolvedOptions, emitter: Emitter) -> ToolsElsewhere:
    """Sources of tools, which the judge asks about what they have from now on."""
    from agent_host.host.remote_tools import ToolsElsewhere

    judge.approved = elsewhere = ToolsElsewhere(resolved.state_dir, lambda: judge.bundle, emitter, judge.approved)
    return elsewhere


def _add_servers(
    ctx: LoopContext,
    resolved: ResolvedOptions,
    of_runtime: RuntimeSettings,
    runtime: LocalToolRouter,
    session_id: str,
    of_client: tuple[ClientServer, ...],
) -> None:
    """Their tools come with the first task: nothing waits for them here."""
    from agent_host.host.mcp_servers import add_servers

    judge = ctx.judge
    add_servers(
        runtime,
        resolved.settings,
        of_runtime,
        judge.bundle,
        judge.environment,
        _elsewhere(judge, resolved, ctx.emitter),
        state_dir=resolved.state_dir,
        session_id=session_id,
        now=ctx.outside.now(),
        scoping=judge.scoping,
        ask_person=functools.partial(ask_person, ctx),
        on_secrets=ctx.scrubber.add,
        of_client=of_client,
    )


def _command_watch(resolved: ResolvedOptions, machine: LocalMachine) -> CommandWatch | None:
    """The watch of the workspace around commands, without the host's own folders; None if it is switched off."""
    if not resolved.settings.tools.watch_changes:
        return None
    own = map(os.path.realpath, (resolved.state_dir, machine.temporary))
    return CommandWatch(machine.environment.workspace, tuple(own))


def put_under(ctx: LoopContext, resolved: ResolvedOptions, parts: Parts) -> None:
    """Have a session go on under the parts' bundle."""
    if parts.scoping is not None and ctx.judge.scoping is not None:
        parts.scoping.scripts = ctx.judge.scoping.scripts
    ctx.judge.bundle, ctx.judge.scoping = parts.bundle, parts.scoping
    ctx.scrubber.redaction = redaction_of(resolved, parts.bundle)
    put_under_parts(ctx.conversation, parts, ctx.state, ctx.scrubber)
    ctx.conversation.renew_head(ctx.judge)


# The runtime's settings and its tools besides those of the families, from the configuration.


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
        native_roots=native_roots(settings, resolved.workspace) if has_native(settings) else (),
        native_tls_checks=settings.native.tls_checks,
        script_timeout_s=settings.skills.script_timeout_s,
        hidden_files=hidden_files(settings) if has_skills(settings) else (),
        max_background=settings.tools.max_background_commands,
        background_lifetime_s=settings.tools.background_lifetime_s or None,
    )


def sandbox_settings(parts: Parts, state_dir: str, session_id: str) -> SandboxSettings | None:
    """The sandbox settings of the runtime, at a level that has been found to work; None if nobody asks for the sandbox.
    A mode may ask for a level where the launch has none."""
    if parts.scoping is None:
        return None
    return SandboxSettings(
        parts.scoping.level,
        required=True,
        directory=os.path.join(SessionPaths(state_dir, session_id).records, "guarded"),
        caches=os.path.join(parts.machine.temporary, "caches"),
    )


def providers_of(parts: Parts, settings: RuntimeSettings, index: SkillIndex | None) -> Sequence[Provider]:
    """Skills and Python tools, where the session has such."""
    providers: list[Provider] = []
    if index is not None:
        from tool_runtime.families.skills import SkillLoading

        providers.append(SkillLoading(index, settings))
    if parts.tools:
        providers.append(PythonTools(parts.tools, settings))
    return providers
