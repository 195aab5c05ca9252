"""The tokens of this process, and what keeps them and all other secrets out of records and requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent_host.errors import TOKEN_VARIABLE, UsageError
from agent_host.host.environment import SECRET_VARIABLES
from agent_host.http import displayable_url, is_loopback, usable_in_header
from agent_host.llm.known_dialects import check_headers, check_token, check_url, password_of, secrets_in
from agent_host.redaction import Scrubber, hide_in_process_table
from agent_host.services import GRANT_KEY_VARIABLE, TOOLS_TOKEN_VARIABLE
from agent_host.services import TOKEN_VARIABLE as SERVICES_TOKEN_VARIABLE
from config.lean_typing import NamedTuple
from policy.redaction import Redaction
from state.keys import redaction_key
from tool_runtime.platform.environment import looks_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.session.opening import ResolvedOptions
    from config.settings import LlmProvider, Settings
    from policy.bundle import PolicyBundle


KEYRING_SERVICE: Final = "agent-host"
_VARIABLES = (TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE, TOOLS_TOKEN_VARIABLE, GRANT_KEY_VARIABLE)


class Tokens(NamedTuple):
    """The tokens of the gateway, of the backend services and of the Backend Tool Service, and the key of the capability
    grants for the latter."""

    gateway: str | None
    services: str | None
    tools: str | None = None
    grant_key: str | None = None

    @classmethod
    def read(cls) -> Tokens:
        """From the environment, which stays as it is: it is the embedding program's."""
        return cls(*(os.environ.get(name) or None for name in _VARIABLES))

    @classmethod
    def take(cls) -> Tokens:
        """Out of the environment of a process of our own, where they are no more afterwards. The values of all that
        commands are not given are blanked where a command could read them in the process table; this process keeps
        what it may need itself."""
        hide_secrets()
        return cls(*(os.environ.pop(name, None) or None for name in _VARIABLES))

    def under(self, settings: Settings) -> Tokens:
        """These tokens for a session with these settings: a provider gets its own key, or none, in place of the
        gateway's token. Raises UsageError."""
        return self if settings.provider is None else self._replace(gateway=key_of(settings.provider))


def hide_secrets() -> None:
    """Blank the values of all variables that commands are not given where a command could read them in the process
    table. This process keeps them in its environment."""
    hide_in_process_table(name for name in os.environ if name in SECRET_VARIABLES or looks_secret(name))


def hide_key(settings: Settings) -> None:
    """Blank the key of the provider in the same way, whatever its variable is called."""
    if settings.provider is not None and settings.provider.key_env:
        hide_in_process_table([settings.provider.key_env])


def token_name(settings: Settings) -> str:
    """The place where the token for the model is set, for messages."""
    provider = settings.provider
    if provider is None:
        return TOKEN_VARIABLE
    if provider.key_keyring:
        return f"{provider.key_keyring} in the keyring ({KEYRING_SERVICE})"
    return provider.key_env or f"key_env in [providers.{provider.name}]"


def key_of(provider: LlmProvider) -> str | None:
    """The key of the provider, from its variable or from the keyring; None where it has none. Raises UsageError for one
    that is not there, and for one that would go over a network unencrypted."""
    if not provider.has_key and not provider.has_key_header:
        return None
    host = check_url(provider.base_url).host
    if provider.base_url.lower().startswith("http://") and not is_loopback(host):
        raise UsageError(
            f"provider {provider.name}: {displayable_url(provider.base_url)} is plain http, over which a key is only "
            "sent to this machine: give an https:// URL"
        )
    if not provider.has_key:
        return None
    if provider.key_keyring:
        return check_token(from_keyring(provider.key_keyring, f"provider {provider.name}"))
    key = os.environ.get(provider.key_env, "").strip()
    if not key:
        raise UsageError(f"provider {provider.name}: set {provider.key_env} to its key, or run `agent-host init`")
    if not usable_in_header(key):
        raise UsageError(f"{provider.key_env} holds characters that no header can carry")
    return key


def from_keyring(name: str, wanted_by: str) -> str:
    """The secret that the system's keyring has under this name. Raises UsageError, whose message begins with
    `wanted_by`."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise UsageError(f"{wanted_by}: the package keyring is not installed") from error
    try:
        secret: str | None = keyring.get_password(KEYRING_SERVICE, name)
    except KeyringError as error:
        raise UsageError(f"{wanted_by}: the keyring does not give {name}: {error}") from error
    if not secret:
        raise UsageError(f"{wanted_by}: the keyring has nothing under {name} ({KEYRING_SERVICE})")
    return secret


class Secrets(NamedTuple):
    """A token that a header can carry, and what keeps it and all others out of what is shown."""

    gateway_token: str | None
    scrubber: Scrubber

    @classmethod
    def collect(
        cls, tokens: Tokens, gateway_url: str, settings: Settings, redaction: Redaction, of_servers: Sequence[str] = ()
    ) -> Secrets:
        """`of_servers` are the secrets of MCP servers. Raises UsageError for a token that no header can carry, and for
        headers that are none."""
        token = check_token(tokens.gateway)
        values = secrets_in(check_headers(settings.llm.headers))
        urls = (gateway_url, settings.tools.http_proxy, settings.tools.https_proxy)
        passwords = [password_of(url) for url in urls if url]
        return cls(token, Scrubber([token, *passwords, *tokens[1:], *values, *of_servers], redaction))


def redaction_of(resolved: ResolvedOptions, *bundles: PolicyBundle) -> Redaction:
    """The redaction that the bundles and the settings ask for, of all that is kept and sent (AH 8.7)."""
    return Redaction(
        tuple(rule for bundle in bundles for rule in bundle.redaction_rules),
        key=lambda: redaction_key(resolved.state_dir),
        detectors=resolved.settings.redaction.detectors,
    )
