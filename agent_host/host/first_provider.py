"""Inner door: find the providers that this machine has, prove one with a call, and write it down."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import GatewayError, UsageError
from agent_host.host.connection_checks import try_tool_call
from agent_host.host.gateway import settle_model
from agent_host.host.options import OptionNames, settings_from
from agent_host.host.secrets import KEYRING_SERVICE, Tokens
from agent_host.http import displayable_url
from agent_host.ids import MACHINE
from agent_host.llm.known_dialects import AUTO, check_url, dialect_of_script, dialect_of_settings, find_dialect
from agent_host.llm.local_server import NoList, ask_models
from agent_host.redaction import Scrubber
from config.lean_typing import NamedTuple
from config.load import read_regular_file, user_file
from config.providers import KNOWN, LOCAL, NotEditable, found_in, names_of, provider_called, put_provider
from config.settings import KEY_HEADERS, LlmProvider, ValueSource, settings_under
from config.shapes import hint_at
from state.disk import Disk, make_durable_dir, replace_atomically
from state.errors import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from config.settings import Settings

LOCAL_S: Final = 1.0
"""Seconds that a server at a usual local port has to answer."""
_BY_URL: Final = "gateway"


class Candidate(NamedTuple):
    """A provider that could be used: `found` says by what, `models` are those that it lists, where it was asked."""

    name: str
    found: str
    models: tuple[str, ...] = ()


class Plan(NamedTuple):
    """The provider to set up, and the entry that stands for it in the configuration."""

    provider: LlmProvider
    entry: Mapping[str, Any]

    @property
    def shown_url(self) -> str:
        """The URL of the provider, without the user and password that may stand in it."""
        return displayable_url(self.provider.base_url)


class Proven(NamedTuple):
    """The result of a proof: the settings that were tried, with the model, and what was seen."""

    settings: Settings
    works: bool
    said: str


def candidates(environ: Mapping[str, str], *, local: bool = True) -> tuple[Candidate, ...]:
    """The providers whose keys the environment has, then the servers that answer at the usual local ports, unless these
    are not to be asked. They are asked for their models without a key."""
    by_key = (Candidate(name, f"${KNOWN[name].key_env}") for name in found_in(environ))
    return (*by_key, *(local_servers() if local else ()))


def local_servers() -> list[Candidate]:
    """The servers that answer at the usual local ports with a list of models."""
    return asyncio.run(_local_servers())


async def _local_servers() -> list[Candidate]:
    users = _users_settings()

    async def ask(name: str) -> Candidate | None:
        provider = provider_called(name, users, {})._replace(headers={})
        settings = settings_under(users, provider)
        try:
            models = await ask_models(settings, dialect_of_script(settings).dialect, None, LOCAL_S)
        except UsageError:  # nobody is there, or somebody else
            return None
        return Candidate(name, f"{provider.base_url}, {len(models)} models", models) if models else None

    return [one for one in await asyncio.gather(*map(ask, LOCAL)) if one is not None]


def _users_settings(**flags: Any) -> Settings:
    """The user's settings; a file that the environment names may still be unwritten. Raises UsageError."""
    return settings_from(flags, workspace=None, names=OptionNames("init"), may_be_missing=True)


def plan(name: str | None, url: str | None = None, **given: Any) -> Plan:
    """The plan for a provider by its name, its URL or both; `given` is what its entry says besides. Raises
    UsageError."""
    settings, name = _users_settings(), name or _BY_URL
    if url is None and name not in names_of(settings):
        raise UsageError(f"--provider {name}: there is no such provider{hint_at(name, names_of(settings))}")
    present = {} if url is not None else settings.providers.get(name, {})
    entry = {**present, **{key: value for key, value in {"base_url": url, **given}.items() if value is not None}}
    if url is not None:
        check_url(url, "--gateway")
    if given.get("key_env"):
        entry = {**_without_key(entry), "key_env": given["key_env"]}
    own = _users_settings(providers={**settings.providers, name: entry})
    provider = provider_called(name, own, os.environ)._replace(by_option=True)
    return Plan(provider, {**entry, "key_env": provider.key_env} if provider.key_env else entry)


def prove(wanted: Plan, state_dir: str) -> Proven:
    """One real call of a tool at the provider. Raises UsageError for a provider that cannot be asked: a key that is not
    there, a model that has to be chosen."""
    settings = settings_under(_users_settings(), wanted.provider)
    token = Tokens.read().under(settings).gateway
    try:
        dialect = dialect_of_settings(settings)
        if dialect is None:
            dialect = find_dialect(settings, settings.llm.gateway, token, state_dir, MACHINE.time, anew=True)
            settings = settings.over({"llm.dialect": dialect.dialect.name})
        settings = asyncio.run(settle_model(settings, None, dialect.dialect, token))
    except (GatewayError, NoList) as error:
        return Proven(settings, False, str(error))
    return Proven(settings, *try_tool_call(settings, settings.llm.gateway, state_dir))


def entry_to_write(wanted: Plan, proven: Proven) -> dict[str, Any]:
    """The entry with what the proof found out, so that a run need not ask again."""
    entry, url = dict(wanted.entry), wanted.provider.base_url
    if (
        "base_url" not in entry
        and url != KNOWN[wanted.provider.name].base_url
        and displayable_url(url).rstrip("/") == url.rstrip("/")
    ):
        entry["base_url"] = url  # one with a password stays in its variable
    if wanted.provider.dialect == AUTO:
        entry["dialect"] = proven.settings.llm.dialect
    return {**entry, "model": proven.settings.llm.model}


def _without_key(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without all that says where its key is."""
    left = {field: value for field, value in entry.items() if field not in ("key_env", "key_keyring")}
    if "headers" in left:
        left["headers"] = {name: value for name, value in left["headers"].items() if name.lower() not in KEY_HEADERS}
    return left


def entry_with_key(name: str, entry: Mapping[str, Any], dialect: str, key: str | None) -> dict[str, Any]:
    """The entry with its key as plain text, or if that is None in the system's keyring."""
    left = _without_key(entry)
    if key is None:
        return {**left, "key_keyring": name}
    header = {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}
    return {**left, "headers": {**left.get("headers", {}), **header}}


def has_keyring() -> bool:
    """True if the package for the system's keyring is installed."""
    return importlib.util.find_spec("keyring") is not None


class ConfigurationChange(NamedTuple):
    """A configuration before and after, at its path."""

    path: str
    before: str
    after: str

    def scrubber(self) -> Scrubber:
        """Takes what may be a secret out of both, to show them: the values of headers, and passwords in URLs."""
        return Scrubber(secret for text in (self.before, self.after) for secret in _secrets(tomllib.loads(text)))


def _secrets(value: Any, *, is_header: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _secrets(one, is_header=is_header or key == "headers")
    elif isinstance(value, list):
        for one in value:
            yield from _secrets(one, is_header=is_header)
    elif isinstance(value, str):
        if is_header:
            yield json.dumps(value)[1:-1]
        yield from re.findall(r"://[^/?#@:]*:([^/?#@]+)@", value)


def change_of(name: str, entry: Mapping[str, Any]) -> ConfigurationChange:
    """The change that makes this entry the default. Raises UsageError for a file that cannot be read or edited."""
    path = user_file(os.environ)
    if path is None:
        raise UsageError("there is no home directory for a configuration: name a file by AGENT_HOST_CONFIG")
    path = os.path.realpath(path)
    try:
        before = read_regular_file(path).decode("utf-8-sig")
    except FileNotFoundError:
        before = ""
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    try:
        return ConfigurationChange(path, before, put_provider(before, name, entry))
    except NotEditable as error:
        raise UsageError(f"{path} has [providers] in a form that is not edited here; write there:\n{error}") from error


def write(change: ConfigurationChange) -> None:
    """Put the new configuration in place of the old one, for its owner alone. Raises UsageError."""
    folder, disk = os.path.dirname(change.path), Disk()
    try:
        if not os.path.isdir(folder):
            make_durable_dir(disk, folder, within=folder)
        replace_atomically(disk, change.path, [change.after.encode()])
    except (OSError, WriteFailed) as error:
        raise UsageError(f"{change.path}: {getattr(error, 'strerror', None) or error}") from error


def gateway_before_it() -> str | None:
    """The setting that names a gateway, which is asked in place of a default provider; None if none does."""
    source = _users_settings().chosen.get("llm.gateway")
    if source is None:
        return None
    return "LLM_GATEWAY_ENDPOINT" if source is ValueSource.ENVIRONMENT else "gateway in [llm] of the configuration"


def keep_in_keyring(name: str, key: str) -> None:
    """Put a key into the system's keyring. Raises UsageError."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise UsageError("the package keyring is not installed: pip install keyring") from error
    try:
        keyring.set_password(KEYRING_SERVICE, name, key)
    except KeyringError as error:
        raise UsageError(f"the keyring does not take the key: {error}") from error
