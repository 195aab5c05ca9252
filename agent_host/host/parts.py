"""The parts of a session: what its launch decides before anything of it is on disk, and what a mode changes of that.

A mode is the options that a client sets for a session after its launch (interface section 2, `SetMode`). It can only
narrow. Its policy is decided beside that of the launch, and the stricter decision counts, so that bundles need no
order. Its level of the sandbox is at or above that of the launch, and its model one that the launch bundle allows.
`launch` in place of a value goes back to the option of the launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from agent_host.errors import PolicyDenied, UsageError
from agent_host.host.environment import machine_of
from agent_host.host.options import anchor
from agent_host.host.python_tools import names_of_packages
from agent_host.host.sandboxing import LEVEL, level_of, scoping_of
from agent_host.host.secrets import redaction_of
from agent_host.judging import Mode
from agent_host.llm.stream import KnownModels
from agent_host.loop.conversation import refuse_unpriced
from agent_host.session.handshake import files_to_guard, load_bundle, own_files
from agent_host.session.lifecycle import SessionMode
from agent_host.session.opening import refuse_other_owner, temporary_of
from agent_host.thread.messages import AUTO, TokenizerUnavailable, counter
from config.lean_typing import NamedTuple
from config.policies import names_file
from policy.names import CapabilityName as Name
from policy.scope import is_weaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from agent_host.host.environment import LocalMachine
    from agent_host.host.remote_tools import RecordedToolService, ToolService
    from agent_host.judging.scoping import Scoping
    from agent_host.llm.stream import CacheTtl, Dialect
    from agent_host.session.opening import ClientServer, ResolvedOptions
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.rules import ApprovalMode
    from state.checkpoint import SessionIdentity
    from tool_runtime.families.python_tools import PythonTool

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
