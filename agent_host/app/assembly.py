"""What a session's loop works with, put together; the only module that knows the runtime."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from agent_host.approval.watched import WatchedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events.live_output import LiveOutput
from agent_host.llm.anthropic import AnthropicDialect
from agent_host.llm.deferred import DeferredClient
from agent_host.llm.urls import checked_token, password_of
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.context import ArtifactPlaces, LoopContext
from agent_host.loop.conversation import Conversation
from agent_host.loop.journal import Journal
from agent_host.loop.secrets import clean_message
from agent_host.retrying import RetryPolicy
from agent_host.routing.facts import Environment
from agent_host.routing.host_tools import HostTools
from agent_host.routing.judge import Judge
from agent_host.routing.registry import Registry
from agent_host.scrub import Scrubber, hide_in_process_table
from agent_host.services.endpoints import TOKEN_VARIABLE as SERVICES_TOKEN_VARIABLE
from agent_host.states import task_machine
from agent_host.thread.messages import decode
from agent_host.thread.thread import Thread
from agent_host.thread.tokens import TokenizerUnavailable, counter
from config.settings import ALL_TOOLS
from policy.detectors.redaction import Redaction
from policy.rules.toolset import RISK_LEVELS, ToolLimit
from state.redaction_key import redaction_key
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.platform.environment import child_environment, looks_secret
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.app.backends import Stores
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.http_basics import TlsContext
    from agent_host.llm.client import LlmClient
    from agent_host.llm.stream import Dialect
    from agent_host.session.opening import Launch
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from policy.facts import ShellName
    from policy.rules.toolset import Limits
    from state.checkpoint import Checkpoint
    from state.file_session import FileSession

TOKEN_VARIABLE = "LLM_GATEWAY_AUTH_TOKEN"  # noqa: S105  the variable's name, not its value

_SECRET_VARIABLES = frozenset({TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE})
_DIALECTS: dict[str, Callable[[], Dialect]] = {"anthropic": AnthropicDialect}
_SHELLS: dict[str, ShellName] = {
    "bash": "bash",
    "zsh": "zsh",
    "cmd.exe": "cmd",
    "cmd": "cmd",
    "powershell.exe": "powershell",
    "pwsh": "powershell",
}


class Place(NamedTuple):
    """The machine and the workspace as tools and policy see them. `shell` is the path of the one that runs commands,
    `temporary` the session's own directory for temporary files."""

    shell: str
    where: Environment
    temporary: str


class Parts(NamedTuple):
    """What is decided about a session before anything of it is on disk."""

    place: Place
    bundle: PolicyBundle
    model: str
    count: Callable[[str], int]
    dialect: Dialect

    @classmethod
    def of(cls, launch: Launch, place: Place, bundle: PolicyBundle) -> Parts:
        """Raises PolicyDenied for a model that the bundle does not allow, UsageError for a missing tokenizer."""
        settings = launch.settings
        dialect = _DIALECTS[settings.text("llm.dialect")]()
        return cls(place, bundle, _model(settings, bundle), _counter(settings), dialect)


class Gateway(NamedTuple):
    """Where the model is, and what its certificate is checked with, which is made while a session opens."""

    url: str
    tls: TlsContext


class Tokens(NamedTuple):
    """What this process must not show."""

    gateway: str | None
    services: str | None

    @classmethod
    def read(cls) -> Tokens:
        """From the environment, which stays as it is: it is the embedding program's."""
        return cls(*(os.environ.get(name) or None for name in (TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE)))

    @classmethod
    def taken(cls) -> Tokens:
        """Out of the environment of a process of our own, where they are no more afterwards. The values of all that
        commands are not given are blanked where a command could read them in the process table; this process keeps
        what it may need itself."""
        hide_in_process_table(name for name in os.environ if name in _SECRET_VARIABLES or looks_secret(name))
        return cls(*(os.environ.pop(name, None) or None for name in (TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE)))


class Secrets(NamedTuple):
    """A token that a header can carry, and what keeps it and all others out of what is shown."""

    gateway_token: str | None
    scrubber: Scrubber

    @classmethod
    def of(cls, tokens: Tokens, gateway_url: str, redaction: Redaction) -> Secrets:
        """Raises UsageError for a token that no header can carry."""
        token = checked_token(tokens.gateway)
        return cls(token, Scrubber([token, password_of(gateway_url), tokens.services], redaction))


def redaction_of(launch: Launch, bundle: PolicyBundle) -> Redaction:
    """What the bundle and the settings have taken out of all that is kept and sent (AH 8.7)."""
    return Redaction(
        bundle.redaction_rules,
        key=lambda: redaction_key(launch.state_dir),
        detectors=launch.settings.flag("redaction.detectors"),
    )


def place_of(launch: Launch, temporary: str) -> Place:
    """This machine, with the launch's workspace and the session's temporary directory."""
    where = this_environment(launch.workspace, command_environment(launch.settings, temporary))
    return Place(current.default_shell(os.environ), where, temporary)


def command_environment(settings: Settings, temporary: str) -> dict[str, str]:
    """What a command of a session finds in its environment, without what looks like a secret: policy reads lines by
    it."""
    shown = child_environment(
        os.environ,
        secret=_SECRET_VARIABLES,
        passthrough=frozenset(settings.names("tools.env_passthrough")),
        temporary=temporary,
    )
    return {name: value for name, value in shown.items() if not looks_secret(name)}


def this_environment(workspace: str, environment: Mapping[str, str] | None = None) -> Environment:
    """This machine as policy sees it. `workspace` is a real path; `environment` is what commands find in theirs."""
    shell = os.path.basename(current.default_shell(os.environ)).lower()
    home = os.path.expanduser("~")
    return Environment(
        workspace=workspace,
        home=os.path.realpath(home) if os.path.isabs(home) else None,
        os_family=OS_FAMILY,
        shell=_SHELLS.get(shell, "sh"),
        environment=environment or {},
    )


async def make_context(
    launch: Launch,
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
    settings, session_id = launch.settings, store.state.identity.session_id
    live_output = LiveOutput(emitter)
    place = parts.place
    runtime = LocalToolRouter(
        runtime_settings(
            settings, launch.workspace, place.shell, live_output, place.temporary, guard_processes=owns_process
        )
    )
    router = HostTools(runtime, runtime.read_bytes)
    retry_s = (settings.number("llm.retry_base_s"), settings.number("llm.retry_max_s"))
    phase = task_machine()
    return LoopContext(
        journal=Journal(
            store,
            emitter,
            settings.integer("host.max_stored_bytes"),
            {} if settings.flag("retention.keep_file_versions") else None,
        ),
        judge=Judge(parts.bundle, parts.place.where, Registry(await router.tools()), limits_of(settings), utc_now),
        conversation=Conversation(
            _thread(parts, store.state, secrets.scrubber),
            DeferredClient(lambda: _client(settings, gateway, secrets.gateway_token, parts.dialect, session_id)),
            parts.model,
            _head_maker(parts, secrets.scrubber, store.state),
            RetryPolicy(settings.integer("llm.max_retries"), *retry_s),
            parts.count,
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
    )


def put_under(ctx: LoopContext, launch: Launch, parts: Parts) -> None:
    """Have a session go on under the parts' bundle."""
    other_model = ctx.conversation.model != parts.model  # it gets no blocks of the one before
    ctx.judge.bundle, ctx.conversation.model = parts.bundle, parts.model
    ctx.scrubber.redaction = redaction_of(launch, parts.bundle)
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
        http_timeout_s=settings.number("tools.http_timeout_s"),
        max_output_bytes=settings.integer("tools.max_output_bytes"),
        artifact_max_bytes=settings.integer("tools.max_artifact_bytes"),
        output_buffer_bytes=settings.integer("tools.output_buffer_bytes"),
        max_file_size_bytes=settings.integer("limits.max_file_size_bytes") or None,
        secret_env=_SECRET_VARIABLES,
        env_passthrough=frozenset(settings.names("tools.env_passthrough")),
        temporary=temporary,
        on_output=live_output.take,
        guard_processes=guard_processes,
    )


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


def _thread(parts: Parts, state: Checkpoint, scrubber: Scrubber) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over. What was
    recorded under other rules leaves under those of this bundle."""
    thread, step = Thread(parts.dialect.renderer(parts.model)), state.open_step
    messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
    if scrubber.redaction is not None and scrubber.redaction.has_rules:
        messages = (clean_message(scrubber, message) for message in messages)
    still_open = None if step is None else step.position - 1
    thread.restore(messages, still_open=still_open, dropped=state.dropped_messages)
    return thread


def limits_of(settings: Settings) -> Limits:
    """What the configuration takes away of the tools (SK 3.1)."""
    limits = {ToolLimit("tools.disabled in the configuration", withheld=frozenset(settings.names("tools.disabled")))}
    allowed = frozenset(settings.names("tools.allowed"))
    if ALL_TOOLS not in allowed:
        limits.add(ToolLimit("tools.allowed in the configuration", allowed=allowed))
    ceiling = RISK_LEVELS[settings.rank("policy.risk_ceiling")]
    if ceiling != RISK_LEVELS[-1]:
        limits.add(ToolLimit("policy.risk_ceiling in the configuration", risk_ceiling=ceiling))
    return frozenset(limits)


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
        gateway.url, token, dialect, session_id=session_id, timeouts=timeouts, limits=limits, tls=gateway.tls
    )
