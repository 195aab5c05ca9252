"""What a session's loop works with, put together; the only module that knows the runtime."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

from agent_host.app.machine import allowed_variables, limits_of, project_tool_names, secret_variables
from agent_host.app.native import families_of, has_native, native_list, native_roots
from agent_host.app.secrets import redaction_of
from agent_host.app.skills import enabled_tools, has_skills, hidden_files, script_runs, skill_index, skill_scripts
from agent_host.approval.watched import WatchedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events.kinds import EventType
from agent_host.events.live_output import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.llm.deferred import DeferredClient, KnownModels
from agent_host.loop.background import CommandLog
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.command_changes import CommandWatch
from agent_host.loop.context import ArtifactPlaces, LoopContext
from agent_host.loop.conversation import (
    Compaction,
    Conversation,
    ForModel,
    ModelView,
    refuse_uncounted,
    refuse_unpriced,
)
from agent_host.loop.journal import Journal
from agent_host.loop.questions import Questions
from agent_host.loop.recorded_results import RecordedResults
from agent_host.loop.secrets import clean_message
from agent_host.retrying import RetryPolicy
from agent_host.routing.host_tools import HostTools
from agent_host.routing.judge import Judge
from agent_host.routing.registry import Registry
from agent_host.states import task_machine
from agent_host.thread.messages import decode
from agent_host.thread.summary import summary_message
from agent_host.thread.thread import Thread
from agent_host.thread.tokens import AUTO, TokenizerUnavailable, counter
from config.lean_typing import NamedTuple
from policy.names import CapabilityName as Name
from policy.rules.sent_elsewhere import sent_elsewhere
from policy.rules.toolset import NO_LIMITS
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent_host.app.backend_tools import ToolService
    from agent_host.app.backends import Stores
    from agent_host.app.elsewhere import ToolsElsewhere
    from agent_host.app.machine import LocalMachine
    from agent_host.app.secrets import Secrets
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.http_basics import TlsContext
    from agent_host.llm.client import LlmClient
    from agent_host.llm.stream import CacheTtl, Dialect
    from agent_host.routing.judge import Approved
    from agent_host.scrub import Scrubber
    from agent_host.session.opening import ResolvedOptions
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import Checkpoint
    from state.file_session import FileSession
    from state.records import ContextStrategy
    from tool_runtime.core.skills import SkillIndex
    from tool_runtime.families.python_tools import PythonTool
    from tool_runtime.tool import Provider

_SHORT_TTL_S = 300
# A provider may count so many times the tokens that the estimate gives (`loop.limits`).
_LOW_ESTIMATE = 1.5
_MOST_BYTES_PER_TOKEN = 8


class Parts(NamedTuple):
    """What is decided about a session before anything of it is on disk. `has_mcp`: the Session Service lets it use MCP
    servers. `tool_service` is the Backend Tool Service, None where there is none for the session."""

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
    tool_service: ToolService | None = None

    def binds_thinking(self, model: str) -> bool:
        """Whether the provider of `model` refuses a request in which anything in front of its thinking was changed."""
        return bool(self.models.of(model).limits.thinking_bound)

    @classmethod
    def of(
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
        takes_images = dialect.takes_images and settings.flag("llm.images")
        model, fallbacks = _model(settings, bundle), _fallbacks(settings, bundle)
        models = KnownModels(settings.models)
        if settings.number("llm.max_cost"):
            refuse_unpriced(models, model)
        count = _counter(settings, models, model)
        return cls(machine, bundle, model, count, dialect, models, takes_images, tools, fallbacks)

    def cached_for(self, settings: Settings, *, attended: bool) -> Parts:
        """The same parts, requests kept in the provider's cache as long as steps of this session may take: `attended`
        says that a person answers approvals."""
        return self._replace(dialect=self.dialect.kept_for(_cache_ttl(settings, self.bundle, attended)))


class Gateway(NamedTuple):
    """Where the model is, and what its certificate is checked with, which is made while a session opens. `said` is told
    with the first request: which dialect was found; "" where it was named."""

    url: str
    tls: TlsContext
    said: str = ""


async def make_context(
    resolved: ResolvedOptions,
    parts: Parts,
    store: FileSession,
    gateway: Gateway,
    secrets: Secrets,
    gate: ApprovalGate,
    emitter: Emitter,
    stores: Stores,
    *,
    owns_process: bool,
) -> LoopContext:
    """The loop's context for the session in `store`. `owns_process`: this process is the program's own, and what
    commands start may be tied to its life."""
    settings, session_id = resolved.settings, store.state.identity.session_id
    if settings.number("llm.max_cost"):
        refuse_uncounted(parts.models, store.state)
    live_output = LiveOutput(emitter, VERBOSE_PIECE_BYTES if settings.flag("host.verbose") else MAX_PIECE_BYTES)
    machine = parts.machine
    journal = Journal(
        store,
        emitter,
        settings.integer("host.max_stored_bytes"),
        keeps_versions=settings.flag("retention.keep_file_versions"),
    )
    outputs = RecordedResults(store, stores.artifacts)
    of_runtime = runtime_settings(
        settings, resolved.workspace, machine.shell, live_output, machine.temporary, guard_processes=owns_process
    )._replace(
        commands_before=store.state.commands_started,
        native_shadowed=frozenset(tool.name for tool in parts.tools),
        elsewhere=sent_elsewhere(parts.bundle),
        commands=CommandLog(journal, emitter),
        open_output=outputs.open,
    )
    index, scripts = skill_index(resolved.workspace), None
    if has_skills(settings):
        scripts = skill_scripts(settings, index, resolved.state_dir, session_id, machine.temporary)
    runtime = LocalToolRouter(of_runtime, _providers(parts, of_runtime, index), scripts)
    approved: Approved | None = None
    if project_tool_names(resolved.workspace):
        from state.approved_tools import ApprovedTools
        from tool_runtime.families.project.family import ProjectTools

        runtime.add(ProjectTools(of_runtime, runtime.run_program))
        approved = ApprovedTools(resolved.state_dir, resolved.workspace)
    router = HostTools(runtime, runtime.read_bytes)
    retry_s = (settings.number("llm.retry_base_s"), settings.number("llm.retry_max_s"))
    phase = task_machine()

    def client() -> LlmClient:
        if gateway.said:
            emitter.emit(EventType.LLM_DIALECT_CHOSEN, {"dialect": parts.dialect.name, "message": gateway.said})
        return _client(settings, gateway, secrets.gateway_token, parts.dialect, session_id)

    ctx = LoopContext(
        journal=journal,
        judge=Judge(
            parts.bundle,
            parts.machine.environment,
            Registry(await router.tools()),
            limits_of(settings) | (enabled_tools(settings) if scripts is not None else NO_LIMITS),
            utc_now,
            outputs=outputs.maker_of,
            approved=approved,
            native=native_list(settings, resolved.workspace) if has_native(settings) else None,
            scripts=scripts,
            script_runs=lambda: script_runs(store.state),
        ),
        conversation=Conversation(
            _thread(parts, store.state, secrets.scrubber),
            DeferredClient(client),
            parts.model,
            _head_maker(parts, secrets.scrubber, store.state),
            RetryPolicy(settings.integer("llm.max_retries"), *retry_s),
            parts.count,
            parts.models,
            _for_model(parts, secrets.scrubber, store.state),
            fallbacks=parts.fallbacks,
            takes_images=parts.takes_images,
            compaction=_compaction(settings, parts.bundle),
            max_cost=settings.number("llm.max_cost"),
        ),
        router=router,
        gate=WatchedGate(gate, phase),
        emitter=emitter,
        artifacts=ArtifactPlaces(stores.artifacts, stores.uploads, stores.uploads_elsewhere),
        cancellation=Cancellation(),
        scrubber=secrets.scrubber,
        phase=phase,
        live_output=live_output,
        at_once={
            "commands": settings.integer("tools.max_parallel_commands"),
            "files": settings.integer("tools.max_parallel_files"),
            "requests": settings.integer("tools.max_parallel_requests"),
            "uploads": settings.integer("tools.max_parallel_uploads"),
        },
        questions=Questions(),
        command_watch=_command_watch(resolved, machine),
    )
    if parts.has_mcp and (parts.bundle.mcp_servers or settings.tables("mcp.servers")):
        _add_servers(ctx.judge, resolved, of_runtime, runtime, emitter, session_id)
    if parts.tool_service is not None:
        elsewhere = _elsewhere(ctx.judge, resolved, emitter)
        runtime.add_remote(parts.tool_service.provider(elsewhere, ctx.judge, store.state.identity, settings))
    ctx.conversation.renew_head(ctx.judge)
    return ctx


def _elsewhere(judge: Judge, resolved: ResolvedOptions, emitter: Emitter) -> ToolsElsewhere:
    """Sources of tools, which the judge asks about what they have from now on."""
    from agent_host.app.elsewhere import ToolsElsewhere

    judge.approved = elsewhere = ToolsElsewhere(resolved.state_dir, lambda: judge.bundle, emitter, judge.approved)
    return elsewhere


def _add_servers(
    judge: Judge,
    resolved: ResolvedOptions,
    of_runtime: RuntimeSettings,
    runtime: LocalToolRouter,
    emitter: Emitter,
    session_id: str,
) -> None:
    """Their tools come with the first task: nothing waits for them here."""
    from agent_host.app.mcp_servers import add_servers

    add_servers(
        runtime,
        resolved.settings,
        of_runtime,
        judge.bundle,
        judge.environment,
        _elsewhere(judge, resolved, emitter),
        state_dir=resolved.state_dir,
        session_id=session_id,
        now=utc_now(),
    )


def _providers(parts: Parts, settings: RuntimeSettings, index: SkillIndex | None) -> Sequence[Provider]:
    providers: list[Provider] = []
    if index is not None:
        from tool_runtime.families.skills.loading import SkillLoading

        providers.append(SkillLoading(index, settings))
    if parts.tools:
        from tool_runtime.families.python_tools import PythonTools

        providers.append(PythonTools(parts.tools, settings))
    return providers


def _command_watch(resolved: ResolvedOptions, machine: LocalMachine) -> CommandWatch | None:
    """What looks at the workspace around commands, but for the host's own folders; None where it is switched off."""
    if not resolved.settings.flag("tools.watch_changes"):
        return None
    own = map(os.path.realpath, (resolved.state_dir, machine.temporary))
    return CommandWatch(machine.environment.workspace, tuple(own))


def put_under(ctx: LoopContext, resolved: ResolvedOptions, parts: Parts) -> None:
    """Have a session go on under the parts' bundle."""
    other_model = ctx.conversation.model != parts.model  # it gets no blocks of the one before
    ctx.judge.bundle = parts.bundle
    ctx.conversation.model = ctx.conversation.default_model = parts.model
    ctx.conversation.fallbacks = parts.fallbacks
    ctx.conversation.models = parts.models
    ctx.conversation.for_model = _for_model(parts, ctx.scrubber, ctx.state)
    ctx.scrubber.redaction = redaction_of(resolved, parts.bundle)
    if parts.bundle.redaction_rules or other_model:
        ctx.conversation.thread = _thread(parts, ctx.state, ctx.scrubber)
    ctx.conversation.make_head = _head_maker(parts, ctx.scrubber, ctx.state)
    ctx.conversation.renew_head(ctx.judge)


def runtime_settings(
    settings: Settings,
    workspace: str,
    shell: str,
    live_output: LiveOutput,
    temporary: str,
    *,
    guard_processes: bool,
) -> RuntimeSettings:
    """The settings of the runtime. `temporary` is the session's own temporary directory."""
    return RuntimeSettings(
        workspace=workspace,
        shell=shell,
        file_timeout_s=settings.number("tools.file_timeout_s"),
        command_timeout_s=settings.number("tools.command_timeout_s"),
        command_timeout_max_s=settings.integer("tools.command_timeout_max_s"),
        http_timeout_s=settings.number("tools.http_timeout_s"),
        http_timeout_max_s=settings.integer("tools.http_timeout_max_s"),
        http_max_body_bytes=settings.integer("tools.max_response_bytes"),
        http_max_download_bytes=settings.integer("tools.max_download_bytes"),
        http_proxy=settings.text("tools.http_proxy") or None,
        https_proxy=settings.text("tools.https_proxy") or None,
        max_output_bytes=settings.integer("tools.max_output_bytes"),
        artifact_max_bytes=settings.integer("tools.max_artifact_bytes"),
        output_buffer_bytes=settings.integer("tools.output_buffer_bytes"),
        max_file_size_bytes=settings.integer("limits.max_file_size_bytes") or None,
        secret_env=secret_variables(settings),
        env_passthrough=frozenset(settings.names("tools.env_passthrough")),
        env_allowed=allowed_variables(settings),
        temporary=temporary,
        on_output=live_output.take,
        guard_processes=guard_processes,
        families=families_of(settings),
        native_roots=native_roots(settings, workspace) if has_native(settings) else (),
        native_tls_checks=settings.flag("native.tls_checks"),
        script_timeout_s=settings.number("skills.script_timeout_s"),
        hidden_files=hidden_files(settings) if has_skills(settings) else (),
        max_background=settings.integer("tools.max_background_commands"),
        background_lifetime_s=settings.number("tools.background_lifetime_s") or None,
    )


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


def _thread(parts: Parts, state: Checkpoint, scrubber: Scrubber, dropped: int | None = None) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over. What was
    recorded under other rules leaves under those of this bundle. `dropped` is how many messages requests leave out from
    now on, None for as many as on record."""
    takes_images = parts.takes_images
    if takes_images and len(state.thread) > 1:  # a new session has no pictures yet
        takes_images = parts.models.of(parts.model).limits.images is not False
    renderer = parts.dialect.renderer(parts.model)
    thread = Thread(renderer, takes_images=takes_images, marks_from=lambda: _marks_from(parts))
    step = state.open_step
    messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
    if scrubber.redaction is not None and scrubber.redaction.has_rules:
        messages = (clean_message(scrubber, message) for message in messages)
    still_open = None if step is None else step.position - 1
    thread.restore(
        messages,
        still_open=still_open,
        dropped=state.dropped_messages if dropped is None else dropped,
        large_from=state.cleared_messages,
        summary=None if state.summary is None else summary_message(scrubber.text(state.summary), parts.count),
        thinking_from=_thinking_from(parts, state, dropped),
    )
    return thread


def _marks_from(parts: Parts) -> int:
    """Estimated tokens that a beginning of a request has to have for a cache mark. A provider keeps nothing that is
    shorter than its minimum; a mark that is missing costs more than one too many, and estimates may be low."""
    minimum = parts.models.of(parts.model).limits.cache_minimum_tokens
    return 0 if minimum is None else int(minimum / _LOW_ESTIMATE)


def _thinking_from(parts: Parts, state: Checkpoint, dropped: int | None) -> int:
    if not (state.flattened_messages or dropped) or not parts.binds_thinking(parts.model):
        return 0
    return state.flattened_messages if dropped is None else len(state.thread) - 1


def _for_model(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> ModelView:
    def for_model(model: str, dropped: int | None = None) -> ForModel:
        own = parts._replace(model=model)
        return ForModel(_thread(own, state, scrubber, dropped), _head_maker(own, scrubber, state))

    return for_model


def _head_maker(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[Judge, int], bytes]:
    """The front of model requests: model, limit, system prompt, and those tools that a call could be allowed of."""

    def head(judge: Judge, max_output_tokens: int) -> bytes:
        encode = partial(
            parts.dialect.head,
            model=parts.model,
            max_output_tokens=max_output_tokens,
            system=scrubber.text(decode(state.thread[0]).content),
            tools=judge.offered(),
            session_id=state.identity.session_id,
        )
        made, marks_from = encode(), _marks_from(parts)
        # A text has fewer tokens than bytes, and no language as few as one for so many.
        is_short = len(made) < marks_from * _MOST_BYTES_PER_TOKEN and parts.count(made.decode()) < marks_from
        return encode(is_marked=False) if is_short else made

    return head


def _cache_ttl(settings: Settings, bundle: PolicyBundle, attended: bool) -> CacheTtl:
    """How long a request is kept in the provider's cache: one hour costs more to write, and pays where a step may take
    longer than five minutes, since a person is asked or commands may run that long."""
    chosen = settings.text("llm.cache_ttl")
    if chosen != "auto":
        return cast("CacheTtl", chosen)
    asks = attended and any(capability.requires_approval for capability in bundle.capabilities)
    runs = bundle.capability(Name.SHELL_EXEC) is not None
    return "1h" if asks or (runs and settings.number("tools.command_timeout_s") > _SHORT_TTL_S) else "5m"


def _model(settings: Settings, bundle: PolicyBundle) -> str:
    allowed = bundle.llm_policy.allowed_models
    wanted = settings.text("llm.model") or allowed[0]
    if wanted not in allowed:
        raise PolicyDenied(f"--model {wanted} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return wanted


def _compaction(settings: Settings, bundle: PolicyBundle) -> Compaction:
    """Raises PolicyDenied for a model for summaries that the bundle does not allow."""
    model = settings.text("llm.summary_model") or None
    if model is not None and model not in bundle.llm_policy.allowed_models:
        allowed = ", ".join(bundle.llm_policy.allowed_models)
        raise PolicyDenied(f"llm.summary_model {model} is not in llmPolicy.allowedModels: {allowed}")
    return Compaction(cast("ContextStrategy", settings.text("llm.context_strategy")), model)


def _fallbacks(settings: Settings, bundle: PolicyBundle) -> tuple[str, ...]:
    names, allowed = settings.names("llm.fallback_models"), bundle.llm_policy.allowed_models
    for name in names:
        if name not in allowed:
            raise PolicyDenied(f"llm.fallback_models: {name} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return names


def _counter(settings: Settings, models: KnownModels, model: str) -> Callable[[str], int]:
    name = settings.text("llm.tokenizer")
    try:
        return counter(name, models.of(model).limits.tokenizer if name == AUTO else None)
    except TokenizerUnavailable as error:
        raise UsageError(f"llm.tokenizer: {error}") from error


def _client(settings: Settings, gateway: Gateway, token: str | None, dialect: Dialect, session_id: str) -> LlmClient:
    from agent_host.llm.client import LlmClient
    from agent_host.llm.limits import AnswerLimits, GatewayTimeouts

    timeouts = GatewayTimeouts(
        connect_s=settings.number("llm.connect_timeout_s"),
        read_s=settings.number("llm.read_timeout_s"),
        progress_s=settings.number("llm.progress_timeout_s"),
        answer_s=settings.number("llm.answer_timeout_s"),
    )
    limits = AnswerLimits(**{name: settings.integer(f"llm.{name}") for name in AnswerLimits._fields})
    return LlmClient(
        gateway.url,
        token,
        dialect,
        session_id=session_id,
        timeouts=timeouts,
        limits=limits,
        tls=gateway.tls,
        headers=settings.pairs("llm.headers"),
    )
