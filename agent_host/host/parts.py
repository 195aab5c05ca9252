"""Decisions about a session before anything of it is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agent_host.errors import PolicyDenied, UsageError
from agent_host.llm.deferred import KnownModels
from agent_host.loop.conversation import refuse_unpriced
from agent_host.thread.tokens import AUTO, TokenizerUnavailable, counter
from config.lean_typing import NamedTuple
from policy.names import CapabilityName as Name

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from agent_host.host.environment import LocalMachine
    from agent_host.host.remote_tools import RecordedToolService, ToolService
    from agent_host.judging.scoping import Scoping
    from agent_host.llm.stream import CacheTtl, Dialect
    from agent_host.session.opening import ClientServer, ResolvedOptions
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from state.checkpoint import SessionIdentity
    from tool_runtime.families.python_tools import PythonTool

_SHORT_TTL_S = 300


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
