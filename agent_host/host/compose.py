"""Composition of a session's loop: the runtime, the judge, the conversation."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final, cast

from agent_host.approval.gate import ElicitationQueue, WatchedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events import EventType
from agent_host.events.emitter import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.host.environment import (
    families_of,
    has_native,
    has_skills,
    hidden_files,
    limits_of,
    limits_of_family,
    machine_of,
    names_of_packages,
    native_list,
    native_roots,
    project_tool_names,
    script_runs,
    secret_variables,
    skill_index,
    skill_scripts,
    variables_to_allow,
)
from agent_host.host.gateway import answer_form, make_client, make_conversation, put_under_parts, report_window
from agent_host.host.options import anchor
from agent_host.host.sandboxing import LEVEL, level_of, scoping_of
from agent_host.host.secrets import redaction_of
from agent_host.judging import Judge, Mode, Registry
from agent_host.llm.stream import KnownModels
from agent_host.loop import ArtifactPlaces, CommandWatch, Journal, LoopContext
from agent_host.loop.background import CommandLog
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.conversation import refuse_uncounted, refuse_unpriced
from agent_host.loop.elicitation import ask_person
from agent_host.loop.progress import Progress
from agent_host.loop.results import RecordedResults
from agent_host.session.handshake import files_to_guard, load_bundle, own_files
from agent_host.session.lifecycle import SessionMode
from agent_host.session.opening import refuse_other_owner, temporary_of
from agent_host.states import task_machine
from agent_host.thread.messages import AUTO, TokenizerUnavailable, counter
from config.lean_typing import NamedTuple
from config.policies import names_file
from policy.names import CapabilityName as Name
from policy.rules import NO_LIMITS
from policy.rules.toolset import delegated_capabilities
from policy.scope import is_weaker
from state.locations import SessionPaths
from tool_runtime.families.python_tools import PythonTools
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.host.backends import Stores
    from agent_host.host.environment import LocalMachine, Surroundings
    from agent_host.host.gateway import Gateway
    from agent_host.host.remote_tools import RecordedToolService, ToolsElsewhere, ToolService
    from agent_host.host.secrets import Secrets
    from agent_host.ids import Outside
    from agent_host.judging import Approved
    from agent_host.judging.scoping import Scoping
    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import CacheTtl, Dialect
    from agent_host.session.opening import ClientServer, ResolvedOptions
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.rules import ApprovalMode
    from state.checkpoint import SessionIdentity
    from state.file_session import FileSession
    from tool_runtime.families.python_tools import PythonTool
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
        scoping=_with_scripts(parts, scripts),
    )


def _with_scripts(parts: Parts, scripts: SkillScripts | None) -> Scoping | None:
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


# The parts of a session: what its launch decides before anything of it is on disk, and what a mode changes of that.
#
# A mode is the options that a client sets for a session after its launch (interface section 2, `SetMode`). It can only
# narrow. Its policy is decided beside that of the launch, and the stricter decision counts, so that bundles need no
# order. Its level of the sandbox is at or above that of the launch, and its model one that the launch bundle allows.
# `launch` in place of a value goes back to the option of the launch.


_SHORT_TTL_S = 300
LAUNCH: Final = "launch"
"""In place of an option of a mode: that of the launch."""
_POLICY: Final = "host.policy"


class Parts(NamedTuple):
    """Decisions about a session before anything of it is on disk. `has_mcp`: the Session Service lets it use MCP
    servers. `tool_service` is the Backend Tool Service, None where there is none for the session. `answer_schema` is
    the JSON Schema of final answers as JSON text, None for any text; `structured`: the dialect's own way to ask for
    one is used as well. `granted`: the bundle is of the Session Service. `client_servers` are MCP servers that the
    client names."""

    machine: LocalMachine
    bundle: PolicyBundle
    model: str
    count: Callable[[str], int]
    dialect: Dialect
    models: KnownModels
    takes_images: bool = True
    tools: tuple[PythonTool, ...] = ()
    fallbacks: tuple[str, ...] = ()
    has_mcp: bool = True
    tool_service: ToolService | RecordedToolService | None = None
    scoping: Scoping | None = None
    answer_schema: str | None = None
    structured: bool = True
    granted: bool = False
    client_servers: tuple[ClientServer, ...] = ()

    def binds_thinking(self, model: str) -> bool:
        """True if the provider of `model` refuses a request in which anything in front of its thinking was changed."""
        return bool(self.models.of(model).limits.thinking_bound)

    @classmethod
    def make(
        cls,
        resolved: ResolvedOptions,
        machine: LocalMachine,
        bundle: PolicyBundle,
        dialect: Dialect,
        tools: tuple[PythonTool, ...] = (),
    ) -> Parts:
        """Raises PolicyDenied for a model that the bundle does not allow, UsageError for a missing tokenizer and for a
        model whose cost is to be limited and that has no price."""
        settings = resolved.settings
        takes_images = dialect.takes_images and settings.llm.images
        model, fallbacks = _model(settings, bundle), _fallbacks(settings, bundle)
        models = KnownModels(settings.models)
        if settings.llm.max_cost:
            refuse_unpriced(models, model)
        count = _counter(settings, models, model)
        made = cls(machine, bundle, model, count, dialect, models, takes_images, tools, fallbacks)
        structured = settings.llm.structured_answers != "never"
        return made._replace(answer_schema=settings.host.answer_schema or None, structured=structured)

    def set_cache_time(self, settings: Settings, *, attended: bool) -> Parts:
        """The same parts, requests kept in the provider's cache as long as steps of this session may take: `attended`
        says that a person answers approvals."""
        return self._replace(dialect=self.dialect.kept_for(_cache_ttl(settings, self.bundle, attended)))


class LaunchParts(NamedTuple):
    """The options and the parts that a session has in this process without a mode; `now` gives the present moment."""

    resolved: ResolvedOptions
    identity: SessionIdentity
    parts: Parts
    now: Callable[[], datetime]

    @property
    def fields(self) -> dict[str, str]:
        """The options of the launch, as a mode has them."""
        settings = self.resolved.settings
        own = {} if self.parts.granted else {"policy": settings.host.policy}
        level = settings.sandbox.level if self.parts.scoping is None else self.parts.scoping.level
        return {**own, "model": self.parts.model, "sandbox": level}


def _cache_ttl(settings: Settings, bundle: PolicyBundle, attended: bool) -> CacheTtl:
    """The time for which a request is kept in the provider's cache: one hour costs more to write, and pays if a step
    may take longer than five minutes, because a person is asked or commands may run that long."""
    chosen = settings.llm.cache_ttl
    if chosen != "auto":
        return cast("CacheTtl", chosen)
    asks = attended and any(capability.requires_approval for capability in bundle.capabilities)
    runs = bundle.capability(Name.SHELL_EXEC) is not None
    return "1h" if asks or (runs and settings.tools.command_timeout_s > _SHORT_TTL_S) else "5m"


def _model(settings: Settings, bundle: PolicyBundle) -> str:
    allowed = bundle.llm_policy.allowed_models
    wanted = settings.llm.model or allowed[0]
    if wanted not in allowed:
        raise PolicyDenied(f"--model {wanted} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return wanted


def _fallbacks(settings: Settings, bundle: PolicyBundle) -> tuple[str, ...]:
    names, allowed = settings.llm.fallback_models, bundle.llm_policy.allowed_models
    for name in names:
        if name not in allowed:
            raise PolicyDenied(f"llm.fallback_models: {name} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return names


def _counter(settings: Settings, models: KnownModels, model: str) -> Callable[[str], int]:
    name = settings.llm.tokenizer
    try:
        return counter(name, models.of(model).limits.tokenizer if name == AUTO else None)
    except TokenizerUnavailable as error:
        raise UsageError(f"llm.tokenizer: {error}") from error


def merge(launch: LaunchParts, fields: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The options of the mode with some `changes`, without those that are as at the launch."""
    if names_file(changes.get("policy", "")):
        changes = {**changes, "policy": anchor(changes["policy"])}
    was = launch.fields
    return {name: value for name, value in {**fields, **changes}.items() if value not in (LAUNCH, was.get(name))}


def make_mode(launch: LaunchParts, fields: Mapping[str, str]) -> SessionMode:
    """Make the parts of a mode with these options. Tries a level of the sandbox if need be, so it may take a while.
    Raises UsageError for a model or a level that it may not have, PolicyBundleInvalid, PolicyExpired."""
    parts, resolved = launch.parts, launch.resolved
    if not fields:
        return SessionMode(Mode(), parts.scoping, parts.model, redaction_of(resolved, parts.bundle))
    settings = _settings_of(resolved.settings, fields)
    scoping = _scoping(launch, settings)
    bundle = _bundle(launch, settings, is_held=scoping.holds) if "policy" in fields else None
    bundles = (parts.bundle,) if bundle is None else (parts.bundle, bundle)
    scoping.within = bundle
    model, allowed = fields.get("model", parts.model), parts.bundle.llm_policy.allowed_models
    if model not in allowed:
        raise UsageError(f"model {model!r} is not in llmPolicy.allowedModels of the launch: {', '.join(allowed)}")
    mode = Mode(bundle, cast("ApprovalMode | None", fields.get("approvalMode")), fields)
    return SessionMode(mode, scoping, model, redaction_of(resolved, *bundles))


def _settings_of(settings: Settings, fields: Mapping[str, str]) -> Settings:
    own = {_POLICY: fields.get("policy"), LEVEL: fields.get("sandbox")}
    return settings.over({key: value for key, value in own.items() if value is not None})


def _scoping(launch: LaunchParts, settings: Settings) -> Scoping:
    """The sandbox of commands in the mode, which guards the files of both policies."""
    resolved, parts = launch.resolved, launch.parts
    was = parts.scoping
    machine = machine_of(resolved, temporary_of(resolved.state_dir, launch.identity))
    is_raised = settings.sandbox.level != resolved.settings.sandbox.level
    level = level_of(settings, resolved.state_dir, machine.temporary)
    if is_raised and level.wanted not in (level.level, "auto"):
        raise UsageError(f"sandbox {level.wanted!r} does not work here: {level.why}")
    if was is not None and is_weaker(level.level, was.level):
        raise UsageError(
            f"sandbox {level.wanted!r} is weaker than {was.level}, the level of the launch: a mode can only narrow"
        )
    guarded = (files_to_guard(one, resolved.workspace) for one in (resolved.settings, settings))
    steering = tuple(dict.fromkeys((*own_files(), *(path for paths in guarded for path in paths))))
    scoping = scoping_of(resolved, machine, level, steering=steering, granted=parts.granted)
    scoping.is_of_mode = is_raised
    scoping.scripts = None if was is None else was.scripts
    return scoping


def _bundle(launch: LaunchParts, settings: Settings, *, is_held: bool) -> PolicyBundle:
    """The bundle of the mode. Which models there are is for the launch bundle to say."""
    resolved, identity = launch.resolved, launch.identity
    temporary = temporary_of(resolved.state_dir, identity)
    bundle = load_bundle(
        settings,
        machine_of(resolved, temporary).environment,
        session_id=identity.session_id,
        state_dir=resolved.state_dir,
        now=launch.now(),
        temporary=temporary,
        held=is_held,
        installed=names_of_packages(settings),
    )
    refuse_other_owner(identity, bundle)
    models = launch.parts.bundle.llm_policy.allowed_models
    return bundle._replace(llm_policy=bundle.llm_policy._replace(allowed_models=models)).keep_known(bundle)
