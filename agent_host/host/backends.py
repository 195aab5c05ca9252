"""The servers of one process and the secrets for them: the backend services, over HTTP if the environment names one,
else embedded on this disk, and the gateway, with the settings that follow from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from codecs import BOM_UTF8
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import TOKEN_VARIABLE, SessionNotFound, UsageError
from agent_host.events import EventType
from agent_host.events.emitter import Losses
from agent_host.host.environment import SECRET_VARIABLES
from agent_host.http import TlsContext, displayable_url, is_loopback, usable_in_header
from agent_host.llm import known_dialects as dialects
from agent_host.llm.deferred import KnownModels
from agent_host.llm.local_server import NoList, ServerFacts, ask_models, ask_server, is_local
from agent_host.loop.progress import AnswerForm
from agent_host.redaction import Scrubber, hide_in_process_table
from agent_host.services import GRANT_KEY_VARIABLE, TOOLS_TOKEN_VARIABLE, endpoints
from agent_host.services import TOKEN_VARIABLE as SERVICES_TOKEN_VARIABLE
from agent_host.services.session import (
    ApprovalReporter,
    EmbeddedApprovalService,
    EmbeddedSessionService,
    HttpApprovalService,
    HttpSessionService,
)
from agent_host.services.workspace import EmbeddedWorkspaceService, HttpWorkspaceService, UploadLimits, UploadQueue
from config import json_text
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX, MODELS, has_key_header, settings_under
from policy.redaction import Redaction
from state import WriteFailed
from state.keys import LocalServers, redaction_key, server_key
from tool_runtime.families.catalogue import SLIM
from tool_runtime.platform.environment import looks_secret
from tool_runtime.schema import UnusableSchema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from agent_host.events.emitter import Emitter, Sink
    from agent_host.events.otel import OtelSink
    from agent_host.host.remote_tools import ToolService
    from agent_host.ids import Outside
    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import Dialect
    from agent_host.loop.conversation import Conversation
    from agent_host.services.http import ServiceClient
    from agent_host.services.session import SessionService
    from agent_host.session.opening import ResolvedOptions
    from config.settings import LlmProvider, Settings
    from policy.bundle import McpServer, PolicyBundle
    from state import SessionPaths
    from state.blobs import BlobFolder
    from state.checkpoint import SessionIdentity
    from tool_runtime.schema import Judge


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
        """Take the tokens out of the environment of a process of our own. The values of all variables that commands do
        not get are blanked if a command could read them in the process table; this process keeps those that it may need
        itself."""
        hide_secrets()
        return cls(*(os.environ.pop(name, None) or None for name in _VARIABLES))

    def under(self, settings: Settings) -> Tokens:
        """These tokens for a session with these settings: a provider gets its own key, or none, in place of the
        gateway's token. Raises UsageError."""
        return self if settings.provider is None else self._replace(gateway=key_of(settings.provider))


def hide_secrets() -> None:
    """Blank the values of all variables that commands do not get, if a command could read them in the process table.
    This process keeps them in its environment."""
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
    """The key of the provider, from its variable or from the keyring; None if it has none. Raises UsageError for a
    missing key, and for one that would be sent over a network unencrypted."""
    if not provider.has_key and not has_key_header(provider.headers):
        return None
    host = dialects.check_url(provider.base_url, provider.url_name, may_be_script=False).host
    if provider.base_url.lower().startswith("http://") and not is_loopback(host):
        raise UsageError(
            f"provider {provider.name}: {displayable_url(provider.base_url)} is plain http, over which a key is only "
            "sent to this machine: give an https:// URL"
        )
    if not provider.has_key:
        return None
    if provider.key_keyring:
        return dialects.check_token(from_keyring(provider.key_keyring, f"provider {provider.name}"))
    key = os.environ.get(provider.key_env, "").strip()
    if not key:
        raise UsageError(f"provider {provider.name}: set {provider.key_env} to its key, or run `agent-host init`")
    if not usable_in_header(key):
        raise UsageError(f"{provider.key_env} contains characters that no header can carry")
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
    """A token that a header can carry, and the scrubber that removes it and all others from shown text."""

    gateway_token: str | None
    scrubber: Scrubber

    @classmethod
    def collect(
        cls,
        tokens: Tokens,
        gateway_url: str,
        settings: Settings,
        redaction: Redaction,
        state_dir: str,
        of_bundle: Sequence[McpServer] = (),
    ) -> Secrets:
        """Collect the secrets of a session, including those of MCP servers; `of_bundle` are the bundle's servers.
        Raises UsageError for a token that no header can carry, and for invalid headers."""
        token = dialects.check_token(tokens.gateway)
        values = dialects.secrets_in(dialects.check_headers(settings.llm.headers))
        urls = (gateway_url, settings.tools.http_proxy, settings.tools.https_proxy)
        passwords = [dialects.check_url(url).password for url in urls if url]
        of_servers: Sequence[str] = ()
        if settings.mcp.servers or of_bundle:
            from agent_host.host.mcp_servers import secret_values  # most sessions have no servers

            of_servers = secret_values(settings, of_bundle, state_dir)
        return cls(token, Scrubber([token, *passwords, *tokens[1:], *values, *of_servers], redaction))


def redaction_of(resolved: ResolvedOptions, *bundles: PolicyBundle) -> Redaction:
    """The redaction that the bundles and the settings ask for, of all that is kept and sent (AH 8.7)."""
    return Redaction(
        tuple(rule for bundle in bundles for rule in bundle.redaction_rules),
        key=lambda: redaction_key(resolved.state_dir),
        detectors=resolved.settings.redaction.detectors,
    )


def _judge_of(schema: dict[str, Any]) -> Judge:
    from tool_runtime.foreign_schema import foreign_judge  # for the runs that have a schema

    return foreign_judge(schema)


def answer_form(settings: Settings) -> AnswerForm | None:
    """The form of final answers, None for any text. Raises UsageError for a schema that cannot be used."""
    schema = settings.host.answer_schema
    if not schema:
        return None
    try:
        return AnswerForm(schema, _judge_of(json_text.loads(schema.encode())))
    except (orjson.JSONDecodeError, UnusableSchema, AttributeError) as error:
        raise UsageError(f"host.answer_schema cannot be used: {error}") from error


def schema_text(data: bytes) -> str:
    """The setting `host.answer_schema` for the content of a file. Raises UsageError if it is not a self-contained JSON
    Schema: nothing is fetched."""
    try:
        schema = json_text.loads(data.removeprefix(BOM_UTF8))
        if not isinstance(schema, dict):
            raise UnusableSchema("it is not an object")
        _judge_of(schema)
    except (json_text.TooDeep, UnusableSchema) as error:
        raise UsageError(f"it is not a usable JSON Schema: {error}") from error
    except orjson.JSONDecodeError as error:
        text = data.decode("utf-8", "replace")
        raise UsageError(f"it {json_text.describe_json(text, error.msg, error.pos)}") from error
    return orjson.dumps(schema).decode()


def make_client(
    settings: Settings,
    url: str,
    token: str | None,
    dialect: Dialect,
    session_id: str,
    time: Callable[[], float],
    tls: TlsContext | None = None,
) -> LlmClient:
    """Make the client of the gateway at `url`. Its modules are imported here, with a session's first request; `tls` is
    the context that was started before."""
    from agent_host.llm import client, network

    llm = settings.llm
    timeouts = network.GatewayTimeouts(
        connect_s=llm.connect_timeout_s,
        read_s=llm.read_timeout_s,
        progress_s=llm.progress_timeout_s,
        answer_s=llm.answer_timeout_s,
    )
    return client.LlmClient(
        url,
        token,
        dialect,
        session_id=session_id,
        time=time,
        timeouts=timeouts,
        limits=network.AnswerLimits(**{name: getattr(llm, name) for name in network.AnswerLimits._fields}),
        tls=tls,
        headers=llm.headers,
        token_name=token_name(settings),
    )


# Settings that follow from the gateway: the model and the window that a local server reports, and the toolset that
# fits.
#
# The user's choices stay: `llm.model`, an entry of `[models]` with `context_tokens`, `host.toolset`. A model read from
# a server counts as configured under built-in policies only; the models that a bundle of a file or a Session Service
# allows are not extended.

SMALL_WINDOW_TOKENS: Final = 16_000
"""A model with a smaller window gets the slim toolset if none is chosen."""
SHIPPED_SMALL: Final = ("gpt-4",)
"""The ends of the names that the shipped table has with such a window."""
GATEWAY_PREFIX: Final = "the gateway says: "
_TOOLSET = "host.toolset"
_MODELS_SHOWN: Final = 20


class Informed(NamedTuple):
    """Settings completed by `facts`, None if no server was asked or none answered; `summary` is one line about the
    values taken from it, "" for none. `learned` is the part that a session keeps: the facts, None for no answer, by
    `server_key`; empty if no server was asked."""

    settings: Settings
    facts: ServerFacts | None = None
    summary: str = ""
    learned: Mapping[str, Any] = {}


async def ask_gateway(
    settings: Settings,
    dialect: Dialect,
    token: str | None,
    state_dir: str,
    time: Callable[[], float],
    *,
    model: str,
    may_choose: bool,
    refresh: bool = False,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> Informed:
    """The settings with the facts that the local server of `llm.gateway` reports about `model`. `may_choose`: the only
    model of a server is taken if `llm.model` names none. A remote gateway is not asked; nor are facts requested that
    the session learned when it started (`recorded`), or that were requested within the last hour by the clock `time`,
    unless `refresh`. Raises UsageError for a URL or a token that no request could carry."""
    url, asked = settings.llm.gateway, "" if may_choose else model
    if not url or url.startswith(MOCK_PREFIX):
        return Informed(settings)
    dialects.check_url(url, dialects.gateway_name(settings))
    if not is_local(url):
        return Informed(settings)
    key = server_key(url, asked)
    kept = LocalServers(state_dir, time)
    if key in recorded:
        known = recorded[key]
    elif refresh or (known := kept.find(url, asked)) is None:
        headers = {**dialect.headers(dialects.check_token(token)), **dialects.check_headers(settings.llm.headers)}
        headers = {name: value for name, value in headers.items() if name not in ("content-type", "accept")}
        found = await ask_server(url, asked, headers, TlsContext(url).get)
        if found is None:  # it is loading, or not there yet
            known = kept.find(url, asked, stale=True)
        else:
            known = found._asdict()
            with contextlib.suppress(WriteFailed):  # it is asked again then
                kept.keep(url, asked, known)
    facts = None if known is None else ServerFacts.read_row(known)
    if facts is None:
        return Informed(settings, learned={key: None})
    return _complete(settings, facts, model, may_choose=may_choose)._replace(learned={key: facts._asdict()})


def _complete(settings: Settings, facts: ServerFacts, model: str, *, may_choose: bool) -> Informed:
    words = []
    if may_choose and model not in facts.models and len(facts.models) == 1:
        model = facts.models[0]
        settings = settings.over({"llm.model": model})
        words.append(f"it serves the model {model}")
    if not facts.takes_forms:
        settings = settings.over({"llm.structured_answers": "never"})
    is_configured = KnownModels(settings.models).table.is_configured(model, "context_tokens")
    if facts.context_tokens is not None and not is_configured:
        entry = {"context_tokens": facts.context_tokens}
        settings = settings.over({MODELS: {**settings.models, model: {**settings.models.get(model, {}), **entry}}})
        words.append(f"its window is {facts.context_tokens:,} tokens ({facts.page})")
    return Informed(settings, facts, GATEWAY_PREFIX + "; ".join(words) if words else "")


async def refuse_unknown_host(settings: Settings) -> None:
    """Raise UsageError if no host has the name in `llm.gateway`: no retry would find it. A resolver that fails
    temporarily is retried like the gateway itself."""
    url = settings.llm.gateway
    if not url or url.startswith(MOCK_PREFIX):
        return
    place = dialects.check_url(url)
    if is_loopback(place.host) or ":" in place.host or dialects.is_by_proxy(place.scheme):
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(place.host, place.port or 443, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # a label is empty, or longer than one may be
        if isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME:
            raise UsageError(
                f"the gateway at {displayable_url(url)}: there is no host with the name {place.host}: check the URL"
            ) from error
    except OSError:  # it is tried again with the first request
        return


async def settle_model(
    settings: Settings, allowed: Sequence[str] | None, dialect: Dialect, token: str | None
) -> Settings:
    """The settings with the model of their provider, if they do not choose one: the first of those that a bundle of
    others has `allowed` and that the provider serves, else, if nothing names a model, the only one that it serves.
    Raises UsageError if there is none, or several, or the provider does not list them."""
    provider = settings.provider
    if provider is None or provider.has_chosen_model(settings):
        return settings
    if provider.model and (allowed is None or (provider.names_model and provider.model in allowed)):
        return settings
    try:
        served = await ask_models(settings, dialect, token)
    except NoList:
        if allowed is None or provider.model not in allowed:
            raise
        return settings
    if allowed is None and len(served) != 1:
        listed = f"serves {', '.join(served[:_MODELS_SHOWN])}" if served else "names no model that it serves"
        raise UsageError(f"provider {provider.name} {listed}: choose one with --model")
    model = served[0] if allowed is None else next((name for name in allowed if name in served), None)
    if model is None:
        raise UsageError(
            f"the policy allows the models {', '.join(allowed or ())}, and provider {provider.name} serves "
            f"{', '.join(served[:_MODELS_SHOWN]) or 'none'}: none is in both lists"
        )
    return settings_under(settings, provider._replace(model=model, dialect=settings.llm.dialect))


def fit_toolset(settings: Settings, bundle: PolicyBundle) -> Settings:
    """The settings with the slim toolset if none was chosen and the model's window is known to be small. Without
    entries of `[models]` the shipped table is not imported, which makes a start faster."""
    if _TOOLSET in settings.chosen:
        return settings
    model = settings.llm.model or bundle.llm_policy.allowed_models[0]
    if not settings.models and not model.lower().endswith(SHIPPED_SMALL):
        return settings
    window = KnownModels(settings.models).table.of(model).limits.context_tokens
    is_small = window is not None and window < SMALL_WINDOW_TOKENS
    return settings.over({_TOOLSET: [SLIM]}) if is_small else settings


def report_window(emitter: Emitter, conversation: Conversation, summary: str, families: tuple[str, ...]) -> None:
    """Report with the first request the facts read from the server, and if the request fits."""
    window = conversation.facts.limits.context_tokens
    message = "; ".join(filter(None, (summary, advice(conversation.tokens, window, families))))
    if message:
        payload = {
            "model": conversation.model,
            "estimatedInputTokens": conversation.tokens,
            "contextTokens": window,
            "message": message,
        }
        emitter.emit(EventType.LLM_SERVER_READ, {name: value for name, value in payload.items() if value is not None})


def advice(first_request: int, window: int | None, families: tuple[str, ...]) -> str:
    """Advise if the first request, in tokens, leaves a window of so many little room, "" if it fits."""
    if window is None or first_request * 2 <= window:
        return ""
    fits = "leaves little room in" if first_request < window else "does not fit into"
    slim = "" if SLIM in families else "use --toolset slim, or "
    return (
        f"the first request has about {first_request:,} tokens, which {fits} the window of {window:,}: {slim}start the "
        "server with a larger one (llama.cpp: -c, Ollama: OLLAMA_CONTEXT_LENGTH)"
    )


NO_GATEWAY = (
    "`agent-host init` sets a provider up; or set ANTHROPIC_API_KEY or OPENAI_API_KEY, give --gateway URL, or set "
    "LLM_GATEWAY_ENDPOINT"
)


class Stores(NamedTuple):
    """The places of a session's artifacts on this disk, and the way to the Workspace Service if that is another place
    (`uploads_elsewhere`)."""

    artifacts: EmbeddedWorkspaceService
    uploads: UploadQueue
    uploads_elsewhere: bool


class Backends:
    """Clients of the services that `environ` and the settings name; `tokens` are sent to them. Clients connect at their
    first use. `capability_grant` is the last grant of the Session Service for the Backend Tool Service.

    Raises UsageError for a URL or a token that cannot be used.
    """

    def __init__(self, environ: Mapping[str, str], settings: Settings, tokens: Tokens, outside: Outside) -> None:
        self._urls = endpoints(environ)
        self._environ = environ
        self._settings = settings
        self._tokens = tokens
        self.capability_grant: str | None = None
        self._outside = outside
        self.losses = Losses(outside.monotonic)
        self._clients: dict[tuple[str, str | None], ServiceClient] = {}
        self._tls: TlsContext | None = None
        self._workspaces: dict[str, str] = {}
        self._traces: OtelSink | None = None

    @property
    def has_session_service(self) -> bool:
        """True if sessions are granted by a server."""
        return self._urls.session is not None

    def sessions(self) -> SessionService:
        """The service that grants sessions."""
        url = self._urls.session
        if url is None:
            return EmbeddedSessionService(self._workspace_of, self._outside.new_id)
        return HttpSessionService(self._client(url))

    def stores(self, identity: SessionIdentity, paths: SessionPaths, blobs: BlobFolder) -> Stores:
        """The stores of a session's artifacts."""
        url, settings = self._urls.workspace, self._settings
        limits = UploadLimits(
            settings.services.upload_max_pending_bytes,
            settings.services.upload_max_behind_s,
            settings.services.upload_end_s,
        )
        local = EmbeddedWorkspaceService(
            paths.artifacts, blobs, workspace_id=identity.workspace_id, outside=self._outside
        )
        if url is None:
            only_histories = limits._replace(max_pending_bytes=sys.maxsize)
            return Stores(local, UploadQueue(local, only_histories), uploads_elsewhere=False)
        service = HttpWorkspaceService(self._client(url), identity.workspace_id, identity.session_id)
        return Stores(local, UploadQueue(service, limits), uploads_elsewhere=True)

    def approvals(self, paths: SessionPaths) -> ApprovalReporter:
        """The reporter of decisions."""
        url = self._urls.approval
        home = EmbeddedApprovalService(paths.approvals) if url is None else HttpApprovalService(self._client(url))
        reporter = ApprovalReporter(home)
        place = paths.approvals if url is None else f"the approval service ({displayable_url(url)})"
        self.losses.watch(place, reporter)
        return reporter

    def tool_service(self) -> ToolService | None:
        """The Backend Tool Service, None if there is none. Raises UsageError for an invalid grant key."""
        url = self._urls.backend_tools
        if url is None:
            return None
        from agent_host.capability_grants import KEY_VARIABLE, grant_key
        from agent_host.host.remote_tools import ToolService

        client, key = self._client_with(url, self._tokens.tools), self._tokens.grant_key
        key_bytes = None if key is None else grant_key({KEY_VARIABLE: key})
        return ToolService(url, client, key_bytes, lambda: self.capability_grant, self._outside)

    def observers(self, gateway: str, paths: SessionPaths, dialect: str) -> list[Sink]:
        """Sinks of the Audit and Telemetry Services and of OpenTelemetry, as far as they are configured, for the
        session at `paths` whose gateway has the URL `gateway` and speaks `dialect`."""
        urls = (self._urls.audit, self._urls.telemetry)
        traced = any(name.startswith("OTEL_") for name in self._environ)
        if urls == (None, None) and not traced:
            return []
        from agent_host.events import outbox, payloads
        from agent_host.services.http import HttpEventService

        found: list[Sink] = []
        for url, service, kinds, shape in (
            (self._urls.audit, "audit", payloads.AUDIT_EVENTS, payloads.AuditRecords()),
            (self._urls.telemetry, "telemetry", payloads.TELEMETRY_EVENTS, payloads.telemetry_line),
        ):
            if url is not None:
                post = HttpEventService(self._client(url), f"/{service}/events").post
                sink = outbox.BatchedSink(post, kinds, shape=shape)
                self.losses.watch(f"the {service} service ({displayable_url(url)})", sink)
                found.append(sink)
        if not traced:
            return found
        from agent_host.events.otel import otel_sink

        provider = dialects.provider_of(dialect)
        traces = otel_sink(self._environ, provider=provider, gateway=gateway, trace_file=paths.trace)
        if traces is None:
            return found
        self._traces = traces
        self.losses.watch("OpenTelemetry", traces)
        return [*found, traces]

    def delivery_problems(self) -> list[str]:
        """One line for each observer that did not get all there was; complete once they are closed."""
        lines = [str(loss) for loss in self.losses.so_far()]
        if self._traces is not None and self._traces.unusable is not None:
            lines.append(self._traces.unusable)
        return lines

    def register(self, identity: SessionIdentity) -> None:
        """The session is on this disk; the embedded Session Service may grant its resume."""
        self._workspaces[identity.session_id] = identity.workspace_id

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    def _client(self, url: str) -> ServiceClient:
        return self._client_with(url, self._tokens.services)

    def _client_with(self, url: str, token: str | None) -> ServiceClient:
        """One client per URL: services at one address share their connections if they have the same token."""
        if (url, token) not in self._clients:
            from agent_host.services.http import ServiceClient

            if self._tls is None and url.startswith("https:"):
                self._tls = TlsContext(url)
            tls = self._tls if url.startswith("https:") else None
            limits = self._settings.services
            self._clients[url, token] = ServiceClient(
                url,
                token,
                outside=self._outside,
                timeout_s=limits.timeout_s,
                retries=limits.max_retries,
                retry_base_s=limits.retry_base_s,
                retry_max_s=limits.retry_max_s,
                tls=tls,
            )
        return self._clients[url, token]

    def _workspace_of(self, session_id: str) -> str:
        try:
            return self._workspaces[session_id]
        except KeyError:
            raise SessionNotFound(f"there is no session {session_id} on this machine") from None


@contextlib.asynccontextmanager
async def serving_gateway(resolved: ResolvedOptions) -> AsyncIterator[str]:
    """The gateway's URL; `mock:FILE` starts the scripted one in this process for as long."""
    url = resolved.settings.llm.gateway
    if not url:
        raise UsageError(f"no LLM gateway: {NO_GATEWAY}")
    if url.startswith(MOCK_PREFIX):
        from agent_host.testing import gateway as scripted

        named = dialects.gateway_name(resolved.settings)
        if url == MOCK_PREFIX:
            raise UsageError(f"{named} {url}: name the script after it: mock:FILE")
        try:
            script = scripted.Script.load(url.removeprefix(MOCK_PREFIX), {"workspace": resolved.workspace})
        except scripted.ScriptError as error:
            raise UsageError(*(f"{named} {MOCK_PREFIX}{problem}" for problem in error.problems)) from error
        async with scripted.MockGateway(script) as gateway:
            yield gateway.url
    else:
        dialects.check_url(url, dialects.gateway_name(resolved.settings))
        yield url
