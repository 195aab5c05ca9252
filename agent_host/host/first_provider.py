"""Setup of a provider: find the providers that this machine has, test one with a call, and save it; describe in one
line a problem with URL, token, model or wire of a gateway."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies, proxy_bypass

from agent_host.contracts import Subject, ToolSpec
from agent_host.display_text import one_line
from agent_host.errors import GatewayError, GatewayUnavailable, GuardrailBlocked, UsageError
from agent_host.host.backends import KEYRING_SERVICE, Tokens, make_client, settle_model, token_name
from agent_host.host.options import OptionNames, settings_from
from agent_host.http import TlsContext, displayable_url, first_line, httpx, is_loopback, redirect_target, strip_html
from agent_host.ids import MACHINE
from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError, errors
from agent_host.llm import known_dialects as dialects
from agent_host.llm.errors import KINDS, kind_of_answer
from agent_host.llm.local_server import NoList, ask_models
from agent_host.llm.network import complete_events
from agent_host.redaction import Scrubber
from agent_host.thread.messages import Message
from config.lean_typing import NamedTuple
from config.load import read_regular_file, user_file
from config.policies import BUILT_IN, template
from config.providers import KNOWN, LOCAL, NotEditable, found_in, names_of, provider_called, put_provider
from config.settings import KEY_HEADERS, LlmProvider, ValueSource, settings_under
from config.shapes import hint_at
from state import WriteFailed
from state.disk import Disk, make_durable_dir, replace_atomically
from tool_runtime.families.schemas import definition_of, parameters, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.llm import ModelTurn
    from agent_host.llm.dialects import Dialect
    from agent_host.llm.errors import Kind
    from config.settings import Settings


LOCAL_S: Final = 1.0
"""Seconds that a server at a usual local port has to answer."""
_BY_URL: Final = "gateway"


class Candidate(NamedTuple):
    """A provider that could be used: `found` is how it was found, `models` are those that it lists, if it was asked."""

    name: str
    found: str
    models: tuple[str, ...] = ()


class Plan(NamedTuple):
    """The provider to set up, and the entry that stands for it in the configuration."""

    provider: LlmProvider
    entry: Mapping[str, Any]

    @property
    def shown_url(self) -> str:
        """The URL of the provider, without a user and password that may be in it."""
        return displayable_url(self.provider.base_url)


class Proven(NamedTuple):
    """The result of a test: the settings that were tried, with the model, and the observations."""

    settings: Settings
    works: bool
    message: str


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
            models = await ask_models(settings, dialects.dialect_of_script(settings).dialect, None, LOCAL_S)
        except UsageError:  # there is no server, or another one
            return None
        return Candidate(name, f"{provider.base_url}, {len(models)} models", models) if models else None

    return [one for one in await asyncio.gather(*map(ask, LOCAL)) if one is not None]


def _users_settings(**flags: Any) -> Settings:
    """The user's settings; a file that the environment names may still be unwritten. Raises UsageError."""
    return settings_from(flags, workspace=None, names=OptionNames("init"), may_be_missing=True)


def check_typed_url(url: str) -> None:
    """Raise UsageError for a text that is no URL of a gateway."""
    dialects.check_url(url, "the URL", may_be_script=False)


def plan(name: str | None, url: str | None = None, **given: Any) -> Plan:
    """The plan for a provider by its name, its URL or both; `given` are the other keys of its entry. Raises
    UsageError."""
    settings, name = _users_settings(), name or _BY_URL
    if url is None and name not in names_of(settings):
        raise UsageError(f"--provider {name}: there is no such provider{hint_at(name, names_of(settings))}")
    present = {} if url is not None else settings.providers.get(name, {})
    entry = {**present, **{key: value for key, value in {"base_url": url, **given}.items() if value is not None}}
    if url is not None:
        dialects.check_url(url, "--gateway", may_be_script=False)
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
        dialect = dialects.dialect_of_settings(settings)
        if dialect is None:
            dialect = dialects.find_dialect(
                settings, settings.llm.gateway, token, state_dir, MACHINE.time, refresh=True
            )
            settings = settings.over({"llm.dialect": dialect.dialect.name})
        settings = asyncio.run(settle_model(settings, None, dialect.dialect, token))
    except (GatewayError, NoList) as error:
        return Proven(settings, False, str(error))
    return Proven(settings, *try_tool_call(settings, settings.llm.gateway, state_dir))


def entry_to_write(wanted: Plan, proven: Proven) -> dict[str, Any]:
    """The entry with the results of the test, so that a run need not ask again."""
    entry, url = dict(wanted.entry), wanted.provider.base_url
    if (
        "base_url" not in entry
        and url != KNOWN[wanted.provider.name].base_url
        and displayable_url(url).rstrip("/") == url.rstrip("/")
    ):
        entry["base_url"] = url  # one with a password stays in its variable
    if wanted.provider.dialect == dialects.AUTO:
        entry["dialect"] = proven.settings.llm.dialect
    return {**entry, "model": proven.settings.llm.model}


def _without_key(entry: Mapping[str, Any]) -> dict[str, Any]:
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
        """Remove possible secrets from both, to show them: the values of headers, and passwords in URLs."""
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
    try:
        put_file(change.path, change.after.encode())
    except (OSError, WriteFailed) as error:
        raise UsageError(f"{change.path}: {getattr(error, 'strerror', None) or error}") from error


def put_file(path: str, content: bytes) -> None:
    """Put a file of the user's in place, in a folder that is made if need be. Raises OSError, WriteFailed."""
    folder, disk = os.path.dirname(path), Disk()
    if not os.path.isdir(folder):
        make_durable_dir(disk, folder, within=folder)
    replace_atomically(disk, path, [content])


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


# One real call to the gateway.

_TIMEOUT_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024
_MESSAGE_BYTES = 200
# The least that every provider takes.
_MAX_TOKENS = 16
_DEEP_TOKENS = 512
_LOOK_UP: Final = ToolSpec(
    "look_up",
    "Look up a word",
    parameters(["word"], word=text("The word")),
    capability="Tool.Invoke",
    subject=Subject("name"),
    effect="none",
    category="files",
)


def try_gateway(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the gateway at `url` answers a request with the token and the model of a run, and a description. With
    `auto` its dialect is detected again, and kept in `state_dir`."""
    try:
        host = dialects.check_url(url, dialects.gateway_name(settings), may_be_script=not settings.provider).host
        token = dialects.check_token(Tokens.read().under(settings).gateway)
        headers = dialects.check_headers(settings.llm.headers)
        dialect, found = dialects.dialect_of_settings(settings) or dialects.find_dialect(
            settings, url, token, state_dir, MACHINE.time, refresh=True
        )
    except (UsageError, GatewayError) as error:
        return False, str(error)
    model = model_of(settings)
    scrubber = Scrubber([token, dialects.check_url(url).password, *dialects.secrets_in(headers)])
    head = dialect.head(model=model, max_output_tokens=_MAX_TOKENS, system="Answer in one word.", tools=[])
    shown, started = displayable_url(dialects.request_url(url, dialect.path)).partition("?")[0], MACHINE.monotonic()
    try:
        with httpx.stream(
            "POST",
            dialects.request_url(url, dialect.path),
            content=b"".join((head, dialect.renderer(model).user([Message("user", "Say: ok", 3)]), dialect.tail)),
            headers={**dialect.headers(token), **headers, "x-session-id": "doctor", "accept-encoding": "identity"},
            timeout=_TIMEOUT_S,
            verify=TlsContext(url).get(),
            trust_env=not is_loopback(host),
        ) as response:
            status, media_type = response.status_code, response.headers.get("content-type", "none")
            target = redirect_target(status, response.headers)
            data, speaks = _start_of(response, dialect, until=started + _TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return False, f"{shown} cannot be reached{_by_proxy(url, host)}: {one_line(first_line(error))}"
    read = errors.read(data)
    message = scrubber.text(one_line(strip_html(read.message) or "an empty answer", _MESSAGE_BYTES))
    if target is not None:
        place = scrubber.text(one_line(target, _MESSAGE_BYTES))
        return False, f"{shown} redirects to {place} (HTTP {status}): if that is the gateway, give its URL"
    if status != httpx.codes.OK:
        kind = kind_of_answer(status, read)
        why = _refusal(kind, status, model, token_name(settings), has_token=token is not None)
        return False, f"{shown} {why} (HTTP {status}): {message}"
    if not media_type.startswith("text/event-stream") or not speaks:
        return False, f"{shown} does not speak the wire {dialect.name!r}: it answered {one_line(media_type)}: {message}"
    elapsed_ms = MACHINE.ms_since(started)
    return True, f"{shown} answers with model {one_line(model)} ({elapsed_ms} ms)" + (f"; {found}" if found else "")


def try_tool_call(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the model of the gateway calls a tool when asked to, and the server returns that as a call; and a
    description. One request of up to `_DEEP_TOKENS` tokens."""
    try:
        token = dialects.check_token(Tokens.read().under(settings).gateway)
        dialect, _ = dialects.dialect_of_settings(settings) or dialects.find_dialect(
            settings, url, token, state_dir, MACHINE.time
        )
        turn = asyncio.run(_tool_call(settings, url, dialect, token))
    except (UsageError, GatewayError, GuardrailBlocked) as error:
        return False, str(error)
    if any(call.name == _LOOK_UP.name for call in turn.tool_calls):
        return True, "the model calls a tool, and the server gives it as a call"
    how = "llama.cpp needs --jinja and a template with tools, vLLM --enable-auto-tool-choice and --tool-call-parser"
    if _LOOK_UP.name in turn.text:
        return False, f"the model wrote its call as text: this server parses none ({how})"
    answer = one_line(turn.text or "an empty answer", _MESSAGE_BYTES)
    return False, f"the model called no tool: choose one that can, or the server parses no calls ({how}): {answer}"


async def _tool_call(settings: Settings, url: str, dialect: Dialect, token: str | None) -> ModelTurn:
    model = model_of(settings)
    head = dialect.head(
        model=model, max_output_tokens=_DEEP_TOKENS, system="You work through tools.", tools=[definition_of(_LOOK_UP)]
    )
    question = Message("user", "Call the tool look_up with the word ok.", 12)
    client = make_client(settings, url, token, dialect, "doctor", MACHINE.time)
    try:
        return await client.stream(head, [dialect.renderer(model).user([question])], lambda _text: None)
    finally:
        await client.aclose()


def _by_proxy(url: str, host: str) -> str:
    """The proxy that the environment names for this URL, in words; "" for none."""
    proxy = getproxies().get(url.partition(":")[0].lower()) or getproxies().get("all")
    if proxy is None or is_loopback(host) or proxy_bypass(host):
        return ""
    return f" by the proxy {displayable_url(proxy)} of the environment (NO_PROXY names hosts that need none)"


def model_of(settings: Settings) -> str:
    """The model of a run: the setting's, else the first that the policy allows, if that is a built-in."""
    policy = settings.host.policy
    allowed = template(policy if policy in BUILT_IN else "workspace")["llmPolicy"]["allowedModels"]
    return settings.llm.model or str(allowed[0])


def _refusal(kind: Kind, status: int, model: str, token: str, *, has_token: bool) -> str:
    if kind == "credentials":
        return f"refuses the token in {token}" if has_token else f"wants a token: set {token}"
    if kind == "loading":
        return "is loading the model: try again once it is loaded; a run waits for it up to llm.max_wait_s"
    no_token = "" if has_token else f"; no token was sent: set {token} if it wants one"
    if kind == "model":
        return f"does not serve the model {one_line(model)!r}: check --model{no_token}"
    if kind == "billing":
        return f"has no credit or budget left: {KINDS[kind].advice}"
    if kind == "rate_limit":
        return "limits requests: try again later"
    if issubclass(KINDS[kind].error, GatewayUnavailable):
        return "fails: try again later"
    if status == httpx.codes.NOT_FOUND:
        unknown = f"does not know the path, or the model {one_line(model)!r}"
        return f"{unknown}: check --gateway, --dialect and --model{no_token}"
    return f"refuses the request: check the model, {one_line(model)!r}, and the wire"


def _start_of(response: httpx.Response, dialect: Dialect, *, until: float) -> tuple[bytes, bool]:
    """The answer up to its first content, `until` a moment of the monotonic clock, and whether the dialect reads it."""
    data = b""
    for piece in response.iter_raw():
        data += piece
        speaks = _is_of(dialect, data)
        if speaks or len(data) > _MAX_ANSWER_BYTES or MACHINE.monotonic() > until:
            return data, speaks
    return data, False


def _is_of(dialect: Dialect, data: bytes) -> bool:
    assembler = dialect.assembler()
    try:
        for event, content in complete_events(data):
            assembler.feed(event, content)
    except (StreamProtocolError, StreamFault, AnswerTooLarge):
        return False
    return assembler.content > 0
