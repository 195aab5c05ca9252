"""What a session's loop works with, put together; the only module that knows the runtime."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agent_host.app.machine import SECRET_VARIABLES, allowed_variables, limits_of, project_tool_names
from agent_host.app.native import families_of, has_native, native_list, native_roots
from agent_host.app.secrets import redaction_of
from agent_host.app.skills import enabled_tools, has_skills, hidden_files, script_runs, skill_index, skill_scripts
from agent_host.approval.watched import WatchedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events.live_output import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.llm.anthropic import AnthropicDialect
from agent_host.llm.deferred import DeferredClient
from agent_host.loop.background import CommandLog
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.command_changes import CommandWatch
from agent_host.loop.context import ArtifactPlaces, LoopContext
from agent_host.loop.conversation import Conversation, ForModel
from agent_host.loop.journal import Journal
from agent_host.loop.questions import Questions
from agent_host.loop.secrets import clean_message
from agent_host.retrying import RetryPolicy
from agent_host.routing.host_tools import HostTools
from agent_host.routing.judge import Judge
from agent_host.routing.registry import Registry
from agent_host.states import task_machine
from agent_host.thread.messages import decode
from agent_host.thread.thread import Thread
from agent_host.thread.tokens import TokenizerUnavailable, counter
from config.lean_typing import NamedTuple
from policy.rules.toolset import NO_LIMITS
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent_host.app.backends import Stores
    from agent_host.app.machine import LocalMachine
    from agent_host.app.secrets import Secrets
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.http_basics import TlsContext
    from agent_host.llm.client import LlmClient
    from agent_host.llm.stream import Dialect
    from agent_host.scrub import Scrubber
    from agent_host.session.opening import ResolvedOptions
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import Checkpoint
    from state.file_session import FileSession
    from tool_runtime.core.skills import SkillIndex
    from tool_runtime.families.python_tools import PythonTool
    from tool_runtime.tool import Provider

_DIALECTS: dict[str, Callable[[], Dialect]] = {"anthropic": AnthropicDialect}


class Parts(NamedTuple):
    """What is decided about a session before anything of it is on disk."""

    machine: LocalMachine
    bundle: PolicyBundle
    model: str
    count: Callable[[str], int]
    dialect: Dialect
    takes_images: bool = True
    tools: tuple[PythonTool, ...] = ()

    @classmethod
    def of(
        cls,
        resolved: ResolvedOptions,
        machine: LocalMachine,
        bundle: PolicyBundle,
        tools: tuple[PythonTool, ...] = (),
    ) -> Parts:
        """Raises PolicyDenied for a model that the bundle does not allow, UsageError for a missing tokenizer."""
        settings = resolved.settings
        dialect = _DIALECTS[settings.text("llm.dialect")]()
        takes_images = dialect.takes_images and settings.flag("llm.images")
        return cls(machine, bundle, _model(settings, bundle), _counter(settings), dialect, takes_images, tools)


class Gateway(NamedTuple):
    """Where the model is, and what its certificate is checked with, which is made while a session opens."""

    url: str
    tls: TlsContext


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
    live_output = LiveOutput(emitter, VERBOSE_PIECE_BYTES if settings.flag("host.verbose") else MAX_PIECE_BYTES)
    machine = parts.machine
    journal = Journal(
        store,
        emitter,
        settings.integer("host.max_stored_bytes"),
        keeps_versions=settings.flag("retention.keep_file_versions"),
    )
    of_runtime = runtime_settings(
        settings, resolved.workspace, machine.shell, live_output, machine.temporary, guard_processes=owns_process
    )._replace(
        commands_before=store.state.commands_started,
        native_shadowed=frozenset(tool.name for tool in parts.tools),
        commands=CommandLog(journal, emitter),
        open_output=stores.artifacts.open,
    )
    index, scripts = skill_index(resolved.workspace), None
    if has_skills(settings):
        scripts = skill_scripts(settings, index, resolved.state_dir, session_id, machine.temporary)
    runtime = LocalToolRouter(of_runtime, _providers(parts, of_runtime, index), scripts)
    approved = None
    if project_tool_names(resolved.workspace):
        from state.approved_tools import ApprovedTools
        from tool_runtime.families.project.family import ProjectTools

        runtime.add(ProjectTools(of_runtime, runtime.run_program))
        approved = ApprovedTools(resolved.state_dir, resolved.workspace)
    router = HostTools(runtime, runtime.read_bytes)
    retry_s = (settings.number("llm.retry_base_s"), settings.number("llm.retry_max_s"))
    phase = task_machine()
    ctx = LoopContext(
        journal=journal,
        judge=Judge(
            parts.bundle,
            parts.machine.environment,
            Registry(await router.tools()),
            limits_of(settings) | (enabled_tools(settings) if scripts is not None else NO_LIMITS),
            utc_now,
            outputs=stores.artifacts.maker_of,
            approved=approved,
            native=native_list(settings, resolved.workspace) if has_native(settings) else None,
            scripts=scripts,
            script_runs=lambda: script_runs(store.state),
        ),
        conversation=Conversation(
            _thread(parts, store.state, secrets.scrubber),
            DeferredClient(lambda: _client(settings, gateway, secrets.gateway_token, parts.dialect, session_id)),
            parts.model,
            _head_maker(parts, secrets.scrubber, store.state),
            RetryPolicy(settings.integer("llm.max_retries"), *retry_s),
            parts.count,
            _for_model(parts, secrets.scrubber, store.state),
            takes_images=parts.takes_images,
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
    ctx.conversation.renew_head(ctx.judge)
    return ctx


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
        secret_env=SECRET_VARIABLES,
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


def _thread(parts: Parts, state: Checkpoint, scrubber: Scrubber) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over. What was
    recorded under other rules leaves under those of this bundle."""
    thread = Thread(parts.dialect.renderer(parts.model), takes_images=parts.takes_images)
    step = state.open_step
    messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
    if scrubber.redaction is not None and scrubber.redaction.has_rules:
        messages = (clean_message(scrubber, message) for message in messages)
    still_open = None if step is None else step.position - 1
    thread.restore(messages, still_open=still_open, dropped=state.dropped_messages)
    return thread


def _for_model(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[str], ForModel]:
    def for_model(model: str) -> ForModel:
        own = parts._replace(model=model)
        return ForModel(_thread(own, state, scrubber), _head_maker(own, scrubber, state))

    return for_model


def _head_maker(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[Judge], bytes]:
    """The front of model requests: model, limits, system prompt, and those tools that a call could be allowed of."""

    def head(judge: Judge) -> bytes:
        return parts.dialect.head(
            model=parts.model,
            max_output_tokens=parts.bundle.llm_policy.max_output_tokens,
            system=scrubber.text(decode(state.thread[0]).content),
            tools=judge.offered(),
        )

    return head


def _model(settings: Settings, bundle: PolicyBundle) -> str:
    allowed = bundle.llm_policy.allowed_models
    wanted = settings.text("llm.model") or allowed[0]
    if wanted not in allowed:
        raise PolicyDenied(f"--model {wanted} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return wanted


def _counter(settings: Settings) -> Callable[[str], int]:
    try:
        return counter(settings.text("llm.tokenizer"))
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
