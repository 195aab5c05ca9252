"""The settings of a run: immutable values with their units in their names, and the rules for layering them.

`defaults.toml` has the defaults. This module has the type and bounds of each, and how a workspace's own file may change
it.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


TomlValue = str | int | float | bool | list[str] | list[dict[str, Any]] | dict[str, str] | dict[str, dict[str, Any]]


class Tightening(Enum):
    """The way in which a workspace may change a setting: it can only tighten."""

    NEVER = "not at all"
    SMALLER = "to a smaller number"
    MORE = "by adding to the list"
    FEWER = "by leaving out of the list"
    LOWER = "to a lower one"
    STRONGER = "to a stronger one"


class LlmProvider(NamedTuple):
    """The provider of a run. The key is in the variable `key_env`, or in the system's keyring as `key_keyring`, or
    there is none. If `model` is "" the provider is asked for one; `names_model` is True if an entry of the
    configuration names it. `why` is the reason for choosing this provider, in a few words; `by_option` is True if an
    option of this run named it. `url_env` is the variable that has `base_url`, if one has."""

    name: str
    base_url: str
    dialect: str
    model: str = ""
    names_model: bool = False
    key_env: str = ""
    key_keyring: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    context_tokens: int | None = None
    why: str = ""
    by_option: bool = False
    url_env: str = ""

    def has_chosen_model(self, settings: Settings) -> bool:
        """True if the user has chosen a model for this provider. If an option named the provider, the model of the
        configuration belongs to another one and does not count."""
        source = settings.chosen.get("llm.model")
        return source is ValueSource.OPTION or (source is not None and not self.by_option)

    @property
    def has_key(self) -> bool:
        """True if requests should contain a key that the configuration names."""
        return bool(self.key_env or self.key_keyring)

    @property
    def url_name(self) -> str:
        """Name of the variable or provider that defines `base_url`, for messages."""
        return self.url_env or f"provider {self.name}"


class ValueSource(Enum):
    """The source of a value that the user chose; a larger one overrides a smaller one."""

    FILE = 0
    ENVIRONMENT = 1
    OPTION = 2


class Setting(NamedTuple):
    """One key; a key without a dot is a whole section, whose keys the user chooses. `low` and `high` bound numbers,
    `choices` lists the names. `zero_is_unset`: 0 means that there is no limit. `tables`: a list of tables, not of
    strings, whose content its reader checks. `proxy`: the URL of a proxy, or empty. `adds`: values given for a run are
    added to the user's list."""

    kind: type
    tightening: Tightening = Tightening.NEVER
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    zero_is_unset: bool = False
    tables: bool = False
    proxy: bool = False
    adds: bool = False


_SMALLER, _MORE = Tightening.SMALLER, Tightening.MORE
ALL_TOOLS = "*"
"""In `tools.allowed`: every tool."""

MODELS = "models"
"""The section of the models: prices and limits by name or pattern (`config.providers`)."""

CURRENCY = "USD"
"""The currency of prices without one."""

PRICES = ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")
"""Keys of a model's prices, each per million tokens."""

PROVIDERS = "providers"
"""The section of the providers, by name (`config.providers`)."""

KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
"""Headers that contain a key, in lower case."""

MOCK_PREFIX = "mock:"
"""Prefix of the file of a scripted gateway, in `llm.gateway`."""

STRONGER = {"none": ("landlock", "namespace", "auto"), "landlock": ("namespace",), "auto": ("namespace",)}
"""Sandbox levels that a workspace may choose instead of each level: `auto` may be anything, so a name may be weaker."""

SETTINGS: dict[str, Setting] = {}
"""Every key with its setting. The sections below fill it; each of their lines is the only definition of its key."""


_SECTIONS: dict[str, type[Section]] = {}


class Section:
    """One section of the settings: each key is an attribute with the type required in the file. Code that uses a
    section gets it as a whole."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, TomlValue]) -> None:
        self.values = values

    def __init_subclass__(cls, name: str) -> None:
        _SECTIONS[name] = cls
        for field, key in vars(cls).items():
            if isinstance(key, _Key):
                key.name = f"{name}.{field}"
                SETTINGS[key.name] = key.setting


class _Key:
    __slots__ = ("name", "read", "setting")

    def __init__(self, setting: Setting, read: Callable[[Any], Any]) -> None:
        self.setting, self.read, self.name = setting, read, ""

    def __get__(self, section: Section | None, owner: type) -> Any:
        return self if section is None else self.read(section.values[self.name])


def _keys(kind: type, read: Callable[[Any], Any], **always: Any) -> Callable[..., Any]:
    """Return a function that makes a key of this kind, with a `tightening` and further rules of `Setting`."""

    def make(tightening: Tightening = Tightening.NEVER, **rules: Any) -> Any:
        return _Key(Setting(kind, tightening, **always, **rules), read)

    return make


text: Callable[..., str] = _keys(str, str)
integer: Callable[..., int] = _keys(int, int)
number: Callable[..., float] = _keys(float, lambda value: value)
flag: Callable[..., bool] = _keys(bool, bool)
names: Callable[..., tuple[str, ...]] = _keys(list, tuple)
tables: Callable[..., tuple[dict[str, Any], ...]] = _keys(list, tuple, tables=True)
"""A list of tables, whose content its reader checks."""
pairs: Callable[..., dict[str, str]] = _keys(dict, dict)
"""A table of strings."""


class HostSection(Section, name="host"):
    """One run or session as a whole."""

    policy = text()
    toolset = names(choices=("desktop", "native", "skills", "slim"))
    project_instructions = flag()
    max_steps = integer(_SMALLER, low=1, high=10_000)
    max_stored_bytes = integer(_SMALLER, low=0)
    max_snapshot_bytes = integer(low=65_536, high=8 * 1024**3)
    max_run_log_bytes = integer(low=65_536)
    output = text(choices=("text", "json", "jsonl"))
    verbose = flag()
    answer_schema = text()


class ServeSection(Section, name="serve"):
    """A server of JSON-RPC."""

    begin_timeout_s = number(low=0, high=86_400)


class BatchSection(Section, name="batch"):
    """Batches of tasks."""

    node_storage = text(choices=("shared", "objects"))


class ClientsSection(Section, name="clients"):
    """Clients with many sessions: editors, chats."""

    fork_server = flag()


class AcpSection(Section, name="acp"):
    """Editors that drive sessions."""

    client_servers = flag()


class LlmSection(Section, name="llm"):
    """The gateway, the model, and the bounds on an answer."""

    gateway = text()
    provider = text()
    dialect = text(choices=("anthropic", "openai", "responses", "auto"))
    max_tokens_field = text(choices=("max_completion_tokens", "max_tokens"))
    prompt_cache_key = text(choices=("auto", "always", "never"))
    headers = pairs()
    model = text()
    fallback_models = names()
    images = flag()
    context_strategy = text(choices=("drop_oldest", "clear_tool_results", "summarize"))
    summary_model = text()
    cache_ttl = text(choices=("auto", "5m", "1h"))
    structured_answers = text(choices=("auto", "never"))
    tokenizer = text(choices=("auto", "estimate", "o200k_base", "cl100k_base"))
    max_cost = number(_SMALLER, low=0, high=10**9, zero_is_unset=True)
    connect_timeout_s = number(low=0.1, high=600)
    read_timeout_s = number(low=0.1, high=3600)
    progress_timeout_s = number(_SMALLER, low=0.1, high=86_400)
    answer_timeout_s = number(_SMALLER, low=0.1, high=604_800)
    max_line_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_event_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_call_arguments_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_answer_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_retries = integer(low=0, high=20)
    max_wait_s = number(_SMALLER, low=0, high=86_400)
    retry_base_s = number(low=0, high=60)
    retry_max_s = number(low=0, high=600)


class LoopSection(Section, name="loop"):
    """The loop: repeated calls."""

    repeat_note = integer(_SMALLER, low=0, high=10_000, zero_is_unset=True)
    repeat_limit = integer(_SMALLER, low=0, high=10_000, zero_is_unset=True)


SETTINGS[MODELS] = Setting(dict, tables=True)
SETTINGS[PROVIDERS] = Setting(dict, tables=True)


class ToolsSection(Section, name="tools"):
    """Tools of this machine: selection, time, output, concurrency."""

    allowed = names(Tightening.FEWER)
    disabled = names(_MORE)
    file_timeout_s = number(_SMALLER, low=0.1, high=600)
    command_timeout_s = number(_SMALLER, low=1, high=86_400)
    command_timeout_max_s = integer(_SMALLER, low=1, high=86_400)
    http_timeout_s = number(_SMALLER, low=0.1, high=3600)
    http_timeout_max_s = integer(_SMALLER, low=1, high=3600)
    http_proxy = text(proxy=True)
    https_proxy = text(proxy=True)
    max_output_bytes = integer(_SMALLER, low=1024, high=100 * 1024 * 1024)
    max_response_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_download_bytes = integer(_SMALLER, low=1024, high=1 << 30)
    max_artifact_bytes = integer(_SMALLER, low=65_536, high=1024 * 1024 * 1024)
    output_buffer_bytes = integer(_SMALLER, low=1024, high=16 * 1024 * 1024)
    max_parallel_commands = integer(_SMALLER, low=1, high=64)
    max_parallel_files = integer(_SMALLER, low=1, high=64)
    max_parallel_requests = integer(_SMALLER, low=1, high=64)
    max_parallel_uploads = integer(_SMALLER, low=1, high=64)
    max_background_commands = integer(_SMALLER, low=0, high=64)
    background_lifetime_s = number(_SMALLER, low=0, high=604_800, zero_is_unset=True)
    watch_changes = flag()
    env_allowed = names(Tightening.FEWER)
    env_passthrough = names()
    installed = names()


class ApprovalsSection(Section, name="approvals"):
    """Approvals."""

    timeout_s = number(_SMALLER, low=0.01, high=604_800)


class LimitsSection(Section, name="limits"):
    """Limits that tighten those of the bundle."""

    max_file_size_bytes = integer(_SMALLER, low=0, zero_is_unset=True)
    max_session_tokens = integer(_SMALLER, low=0, zero_is_unset=True)


class RedactionSection(Section, name="redaction"):
    """Secrets in stored and sent data."""

    detectors = flag()


class SandboxSection(Section, name="sandbox"):
    """The sandbox of commands."""

    level = text(Tightening.STRONGER, choices=("none", "landlock", "namespace", "auto"))
    allowed_domains = names(adds=True)


class PolicySection(Section, name="policy"):
    """Settings that tighten the bundle, or add commands to a built-in."""

    risk_ceiling = text(Tightening.LOWER, choices=("low", "medium", "high"))
    allowed_commands = names()
    blocked_paths = names(_MORE)
    blocked_commands = names(_MORE)
    blocked_domains = names(_MORE)
    command_policies = tables(_MORE)


class NativeSection(Section, name="native"):
    """The native family."""

    root_dir = text()
    additional_roots = names()
    exec = tables()
    tls_checks = flag()
    allow_shadow = flag()


class SkillsSection(Section, name="skills"):
    """Skills and their scripts."""

    enabled_tools = names(Tightening.FEWER, choices=("run_script", "write_file", "delete_file", "network_request"))
    max_script_runs = integer(_SMALLER, low=0, high=10_000)
    script_timeout_s = number(_SMALLER, low=0.1, high=3600)
    hidden_files = names(_MORE)


class BackendSection(Section, name="backend"):
    """The Backend Tool Service."""

    timeout_s = number(_SMALLER, low=0.1, high=86_400)
    connect_timeout_s = number(_SMALLER, low=0, high=600)


class McpSection(Section, name="mcp"):
    """MCP servers."""

    servers = tables()
    enabled = names(Tightening.FEWER)
    connect_timeout_s = number(_SMALLER, low=0, high=600)
    timeout_s = number(_SMALLER, low=0.1, high=86_400)


class ServicesSection(Section, name="services"):
    """The other backend services."""

    timeout_s = number(low=0.1, high=600)
    max_retries = integer(low=0, high=20)
    retry_base_s = number(low=0, high=60)
    retry_max_s = number(low=0, high=600)
    upload_max_pending_bytes = integer(low=0)
    upload_max_behind_s = number(low=0.1, high=3600)
    upload_end_s = number(low=0, high=600)


class RetentionSection(Section, name="retention"):
    """Limits on kept ended sessions."""

    max_age_days = integer(low=0, zero_is_unset=True)
    max_sessions = integer(low=0, zero_is_unset=True)
    max_bytes = integer(low=0, zero_is_unset=True)
    keep_file_versions = flag()


class Settings:
    """All settings of a run, immutable: `settings.llm.gateway`, or by key `settings["llm.gateway"]`. `ignored` has one
    sentence for each line of the workspace's file that tried to widen a setting. `chosen` has the source of each key
    for which the user gave a value that is not empty; `names` has the key's name in that source, if it is another.
    `provider` is the provider of the run, None for a gateway."""

    host: HostSection
    serve: ServeSection
    batch: BatchSection
    clients: ClientsSection
    acp: AcpSection
    llm: LlmSection
    loop: LoopSection
    tools: ToolsSection
    approvals: ApprovalsSection
    limits: LimitsSection
    redaction: RedactionSection
    sandbox: SandboxSection
    policy: PolicySection
    native: NativeSection
    skills: SkillsSection
    backend: BackendSection
    mcp: McpSection
    services: ServicesSection
    retention: RetentionSection

    def __init__(
        self,
        values: dict[str, TomlValue],
        ignored: tuple[str, ...] = (),
        ceilings: Mapping[str, float] | None = None,
        chosen: Mapping[str, ValueSource] = MappingProxyType({}),
        provider: LlmProvider | None = None,
        *,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._values = dict(values)
        for name, section in _SECTIONS.items():
            setattr(self, name, section(self._values))
        self._ceilings = dict(ceilings or {})
        self.ignored = ignored
        self.chosen = chosen
        self.provider = provider
        self._names = names

    def over(self, values: Mapping[str, TomlValue], provider: LlmProvider | None = None) -> Settings:
        """Return these settings with other `values` for some keys, which do not count as the user's choice, and with
        another provider if one is given."""
        values = {**self._values, **values}
        provider = provider or self.provider
        return Settings(values, self.ignored, self._ceilings, self.chosen, provider, names=self._names)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def name_of(self, key: str) -> str:
        """Return the name of a setting in the source of its value: an option, a variable, or its key in the
        configuration."""
        return self._names.get(key, key)

    def bound(self, key: str, wanted: int) -> int:
        """Return the integer that a client `wanted` for this setting, at most the workspace's ceiling."""
        return int(min(wanted, self._ceilings.get(key, wanted)))

    def ceiling(self, key: str) -> float | None:
        """Return the workspace's maximum of a number, None if it sets none."""
        return self._ceilings.get(key)

    def rank(self, key: str) -> int:
        """Return the index of a setting's value among its choices, from 0."""
        return SETTINGS[key].choices.index(str(self._values[key]))

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The entries of `[models]`, by name or pattern (`config.providers`)."""
        value = self._values[MODELS]
        return {name: one for name, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}

    @property
    def providers(self) -> Mapping[str, Any]:
        """The section `[providers]`: entries by name, and `default` (`config.providers`)."""
        value = self._values[PROVIDERS]
        return value if isinstance(value, dict) else {}


def has_key_header(headers: Mapping[str, str]) -> bool:
    """True if one of the headers contains a key."""
    return not KEY_HEADERS.isdisjoint(name.lower() for name in headers)


def settings_under(settings: Settings, provider: LlmProvider) -> Settings:
    """Return the settings of a run with this provider: its URL, its headers, its dialect unless an option names one,
    and its model unless the user has chosen one. `llm.dialect` in a configuration is the dialect of `llm.gateway`."""
    values: dict[str, TomlValue] = {"llm.gateway": provider.base_url, "llm.headers": dict(provider.headers)}
    if settings.chosen.get("llm.dialect") is not ValueSource.OPTION:
        values["llm.dialect"] = provider.dialect
    model = settings.llm.model if provider.has_chosen_model(settings) else provider.model
    values["llm.model"] = model
    if provider.context_tokens is not None:
        model = model or "*"
        entry = {"context_tokens": provider.context_tokens, **settings.models.get(model, {})}
        values[MODELS] = {**settings.models, model: entry}
    return settings.over(values, provider)
