"""The settings of a run: frozen values with their units in their names, and how each may be layered.

The defaults stand in `defaults.toml`; here stands what they mean to the loader: type, bounds, and what a workspace's
own file may do to them.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TomlValue = str | int | float | bool | list[str] | list[dict[str, Any]] | dict[str, str] | dict[str, dict[str, Any]]


class Tightening(Enum):
    """The way in which a workspace may change a setting: it can only ever take away."""

    NEVER = "not at all"
    SMALLER = "to a smaller number"
    MORE = "by adding to the list"
    FEWER = "by leaving out of the list"
    LOWER = "to a lower one"
    STRONGER = "to a stronger one"


class Setting(NamedTuple):
    """One key; one without a dot is a whole section, whose keys the user chooses. `low` and `high` bound numbers,
    `choices` names; `zero_is_unset`: 0 stands for "no limit of its own"; `tables`: a list of tables in place of one of
    strings, whose content is for its reader to check; `proxy`: the URL of one, or nothing. `adds`: what is given for a
    run is added to the user's list."""

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
"""The section of the models: prices and limits by name or pattern (`config.models`)."""

MOCK_PREFIX = "mock:"
"""Before the file of a scripted gateway, in `llm.gateway`."""

STRONGER = {"none": ("landlock", "namespace", "auto"), "landlock": ("namespace",), "auto": ("namespace",)}
"""What a workspace may make of a level of the sandbox: `auto` may be anything, so that a name may be less than it."""

SETTINGS: dict[str, Setting] = {
    "host.policy": Setting(str),
    "host.toolset": Setting(list, choices=("desktop", "native", "skills", "slim")),
    "host.project_instructions": Setting(bool),
    "host.max_steps": Setting(int, _SMALLER, low=1, high=10_000),
    "host.max_stored_bytes": Setting(int, _SMALLER, low=0),
    "host.max_snapshot_bytes": Setting(int, low=65_536, high=8 * 1024**3),
    "host.max_run_log_bytes": Setting(int, low=65_536),
    "host.output": Setting(str, choices=("text", "json", "jsonl")),
    "host.verbose": Setting(bool),
    "serve.begin_timeout_s": Setting(float, low=0, high=86_400),
    "llm.gateway": Setting(str),
    "llm.dialect": Setting(str, choices=("anthropic", "openai", "responses", "auto")),
    "llm.max_tokens_field": Setting(str, choices=("max_completion_tokens", "max_tokens")),
    "llm.prompt_cache_key": Setting(str, choices=("auto", "always", "never")),
    "llm.headers": Setting(dict),
    "llm.model": Setting(str),
    "llm.fallback_models": Setting(list),
    "llm.images": Setting(bool),
    "llm.context_strategy": Setting(str, choices=("drop_oldest", "clear_tool_results", "summarize")),
    "llm.summary_model": Setting(str),
    "llm.cache_ttl": Setting(str, choices=("auto", "5m", "1h")),
    "llm.tokenizer": Setting(str, choices=("auto", "estimate", "o200k_base", "cl100k_base")),
    "llm.max_cost": Setting(float, _SMALLER, low=0, high=10**9, zero_is_unset=True),
    "llm.connect_timeout_s": Setting(float, low=0.1, high=600),
    "llm.read_timeout_s": Setting(float, low=0.1, high=3600),
    "llm.progress_timeout_s": Setting(float, _SMALLER, low=0.1, high=86_400),
    "llm.answer_timeout_s": Setting(float, _SMALLER, low=0.1, high=604_800),
    "llm.max_line_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "llm.max_event_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "llm.max_call_arguments_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "llm.max_answer_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "llm.max_retries": Setting(int, low=0, high=20),
    "llm.max_wait_s": Setting(float, _SMALLER, low=0, high=86_400),
    "llm.retry_base_s": Setting(float, low=0, high=60),
    "llm.retry_max_s": Setting(float, low=0, high=600),
    "loop.repeat_note": Setting(int, _SMALLER, low=0, high=10_000, zero_is_unset=True),
    "loop.repeat_limit": Setting(int, _SMALLER, low=0, high=10_000, zero_is_unset=True),
    MODELS: Setting(dict, tables=True),
    "tools.allowed": Setting(list, Tightening.FEWER),
    "tools.disabled": Setting(list, _MORE),
    "tools.file_timeout_s": Setting(float, _SMALLER, low=0.1, high=600),
    "tools.command_timeout_s": Setting(float, _SMALLER, low=1, high=86_400),
    "tools.command_timeout_max_s": Setting(int, _SMALLER, low=1, high=86_400),
    "tools.http_timeout_s": Setting(float, _SMALLER, low=0.1, high=3600),
    "tools.http_timeout_max_s": Setting(int, _SMALLER, low=1, high=3600),
    "tools.http_proxy": Setting(str, proxy=True),
    "tools.https_proxy": Setting(str, proxy=True),
    "tools.max_output_bytes": Setting(int, _SMALLER, low=1024, high=100 * 1024 * 1024),
    "tools.max_response_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "tools.max_download_bytes": Setting(int, _SMALLER, low=1024, high=1 << 30),
    "tools.max_artifact_bytes": Setting(int, _SMALLER, low=65_536, high=1024 * 1024 * 1024),
    "tools.output_buffer_bytes": Setting(int, _SMALLER, low=1024, high=16 * 1024 * 1024),
    "tools.max_parallel_commands": Setting(int, _SMALLER, low=1, high=64),
    "tools.max_parallel_files": Setting(int, _SMALLER, low=1, high=64),
    "tools.max_parallel_requests": Setting(int, _SMALLER, low=1, high=64),
    "tools.max_parallel_uploads": Setting(int, _SMALLER, low=1, high=64),
    "tools.max_background_commands": Setting(int, _SMALLER, low=0, high=64),
    "tools.background_lifetime_s": Setting(float, _SMALLER, low=0, high=604_800, zero_is_unset=True),
    "tools.watch_changes": Setting(bool),
    "tools.env_allowed": Setting(list, Tightening.FEWER),
    "tools.env_passthrough": Setting(list),
    "tools.installed": Setting(list),
    "approvals.timeout_s": Setting(float, _SMALLER, low=0.01, high=604_800),
    "limits.max_file_size_bytes": Setting(int, _SMALLER, low=0, zero_is_unset=True),
    "limits.max_session_tokens": Setting(int, _SMALLER, low=0, zero_is_unset=True),
    "redaction.detectors": Setting(bool),
    "sandbox.level": Setting(str, Tightening.STRONGER, choices=("none", "landlock", "namespace", "auto")),
    "sandbox.allowed_domains": Setting(list, adds=True),
    "policy.risk_ceiling": Setting(str, Tightening.LOWER, choices=("low", "medium", "high")),
    "policy.allowed_commands": Setting(list),
    "policy.blocked_paths": Setting(list, _MORE),
    "policy.blocked_commands": Setting(list, _MORE),
    "policy.blocked_domains": Setting(list, _MORE),
    "policy.command_policies": Setting(list, _MORE, tables=True),
    "native.root_dir": Setting(str),
    "native.additional_roots": Setting(list),
    "native.exec": Setting(list, tables=True),
    "native.tls_checks": Setting(bool),
    "native.allow_shadow": Setting(bool),
    "skills.enabled_tools": Setting(
        list, Tightening.FEWER, choices=("run_script", "write_file", "delete_file", "network_request")
    ),
    "skills.max_script_runs": Setting(int, _SMALLER, low=0, high=10_000),
    "skills.script_timeout_s": Setting(float, _SMALLER, low=0.1, high=3600),
    "skills.hidden_files": Setting(list, _MORE),
    "backend.timeout_s": Setting(float, _SMALLER, low=0.1, high=86_400),
    "backend.connect_timeout_s": Setting(float, _SMALLER, low=0, high=600),
    "mcp.servers": Setting(list, tables=True),
    "mcp.enabled": Setting(list, Tightening.FEWER),
    "mcp.connect_timeout_s": Setting(float, _SMALLER, low=0, high=600),
    "mcp.timeout_s": Setting(float, _SMALLER, low=0.1, high=86_400),
    "services.timeout_s": Setting(float, low=0.1, high=600),
    "services.max_retries": Setting(int, low=0, high=20),
    "services.retry_base_s": Setting(float, low=0, high=60),
    "services.retry_max_s": Setting(float, low=0, high=600),
    "services.upload_max_pending_bytes": Setting(int, low=0),
    "services.upload_max_behind_s": Setting(float, low=0.1, high=3600),
    "services.upload_end_s": Setting(float, low=0, high=600),
    "retention.max_age_days": Setting(int, low=0, zero_is_unset=True),
    "retention.max_sessions": Setting(int, low=0, zero_is_unset=True),
    "retention.max_bytes": Setting(int, low=0, zero_is_unset=True),
    "retention.keep_file_versions": Setting(bool),
}


class Settings:
    """All settings of a run, by section and name: `settings["llm.gateway"]`. Immutable; `ignored` holds one sentence
    for each line of the workspace's file that tried to widen, `chosen` the keys that the user gave values for."""

    __slots__ = ("_ceilings", "_values", "chosen", "ignored")

    def __init__(
        self,
        values: dict[str, TomlValue],
        ignored: tuple[str, ...] = (),
        ceilings: Mapping[str, float] | None = None,
        chosen: frozenset[str] = frozenset(),
    ) -> None:
        self._values = dict(values)
        self._ceilings = dict(ceilings or {})
        self.ignored = ignored
        self.chosen = chosen

    def over(self, values: Mapping[str, TomlValue]) -> Settings:
        """These settings with other `values` for some keys, which are no choice of the user."""
        return Settings({**self._values, **values}, self.ignored, self._ceilings, self.chosen)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def text(self, key: str) -> str:
        """A setting that is a string."""
        return str(self._values[key])

    def number(self, key: str) -> float:
        """A setting that is a number."""
        value = self._values[key]
        if not isinstance(value, int | float):
            raise TypeError(f"{key} is not a number")
        return value

    def integer(self, key: str) -> int:
        """A setting that is a whole number."""
        return int(self.number(key))

    def bound(self, key: str, wanted: int) -> int:
        """`wanted` by a client in place of a whole number, as far as the workspace lets it."""
        return int(min(wanted, self._ceilings.get(key, wanted)))

    def ceiling(self, key: str) -> float | None:
        """The most that the workspace lets a number be, None where it says nothing."""
        return self._ceilings.get(key)

    def rank(self, key: str) -> int:
        """The place of a setting among its choices, from 0."""
        return SETTINGS[key].choices.index(self.text(key))

    def flag(self, key: str) -> bool:
        """A setting that is true or false."""
        return bool(self._values[key])

    def names(self, key: str) -> tuple[str, ...]:
        """A setting that is a list of strings."""
        value = self._values[key]
        if not isinstance(value, list):
            raise TypeError(f"{key} is not a list")
        return tuple(entry for entry in value if isinstance(entry, str))

    def pairs(self, key: str) -> dict[str, str]:
        """A setting that is a table of strings."""
        value = self._values[key]
        if not isinstance(value, dict):
            raise TypeError(f"{key} is not a table")
        return {name: one for name, one in value.items() if isinstance(one, str)}

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The entries of `[models]`, by name or pattern (`config.models`)."""
        value = self._values[MODELS]
        return {name: one for name, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}

    def tables(self, key: str) -> tuple[dict[str, Any], ...]:
        """A setting that is a list of tables."""
        value = self._values[key]
        if not isinstance(value, list):
            raise TypeError(f"{key} is not a list")
        return tuple(entry for entry in value if isinstance(entry, dict))
