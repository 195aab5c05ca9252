"""The gateway of a session: its client, the form of its answers, and settings that follow from it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from codecs import BOM_UTF8
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import UsageError
from agent_host.events import EventType
from agent_host.host.secrets import token_name
from agent_host.http import TlsContext, displayable_url, is_loopback
from agent_host.llm.deferred import KnownModels
from agent_host.llm.known_dialects import check_headers, check_token, check_url, gateway_name, is_by_proxy, place_of
from agent_host.llm.local_server import NoList, ServerFacts, ask_models, ask_server, is_local
from agent_host.loop.progress import AnswerForm
from config import json_text
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX, MODELS
from state import WriteFailed
from state.keys import LocalServers, server_key
from tool_runtime.families.catalogue import SLIM
from tool_runtime.schema import UnusableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.events.emitter import Emitter
    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import Dialect
    from agent_host.loop.conversation import Conversation
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from tool_runtime.schema import Judge


class Gateway(NamedTuple):
    """The address of the model, and the TLS context for it, which is made while a session opens. `said` is what the
    first request reports: which dialect was found; "" where the dialect was named. `server_said` is what was taken from
    the server's own word."""

    url: str
    tls: TlsContext
    said: str = ""
    server_said: str = ""


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
    """The setting `host.answer_schema` for the content of a file. Raises UsageError for what is no JSON Schema that can
    be used by itself: nothing is fetched."""
    try:
        schema = json_text.loads(data.removeprefix(BOM_UTF8))
        if not isinstance(schema, dict):
            raise UnusableSchema("it is not an object")
        _judge_of(schema)
    except (json_text.TooDeep, UnusableSchema) as error:
        raise UsageError(f"it is no JSON Schema that can be used: {error}") from error
    except orjson.JSONDecodeError as error:
        text = data.decode("utf-8", "replace")
        raise UsageError(f"it {json_text.describe_json(text, error.msg, error.pos)}") from error
    return orjson.dumps(schema).decode()


def make_client(
    settings: Settings,
    gateway: Gateway,
    token: str | None,
    dialect: Dialect,
    session_id: str,
    time: Callable[[], float],
) -> LlmClient:
    """Make the client of the gateway. Its modules are imported here, with a session's first request."""
    from agent_host.llm.client import LlmClient
    from agent_host.llm.network import AnswerLimits, GatewayTimeouts

    llm = settings.llm
    timeouts = GatewayTimeouts(
        connect_s=llm.connect_timeout_s,
        read_s=llm.read_timeout_s,
        progress_s=llm.progress_timeout_s,
        answer_s=llm.answer_timeout_s,
    )
    return LlmClient(
        gateway.url,
        token,
        dialect,
        session_id=session_id,
        time=time,
        timeouts=timeouts,
        limits=AnswerLimits(**{name: getattr(llm, name) for name in AnswerLimits._fields}),
        tls=gateway.tls,
        headers=llm.headers,
        token_name=token_name(settings),
    )


# Settings that follow from the gateway: the model and the window that a local server names, and the toolset that
# fits.
#
# What the user chose stays: `llm.model`, an entry of `[models]` with `context_tokens`, `host.toolset`. A model that
# was read counts as configured under built-in policies only; what a bundle of a file or a Session Service allows
# stays alone.

SMALL_WINDOW_TOKENS: Final = 16_000
"""A model with a smaller window gets the slim toolset where none is chosen."""
SHIPPED_SMALL: Final = ("gpt-4",)
"""The ends of the names that the shipped table has with such a window."""
GATEWAY_SAYS: Final = "the gateway says: "
_TOOLSET = "host.toolset"
_MODELS_SHOWN: Final = 20


class Informed(NamedTuple):
    """Settings completed by `facts`, None where no server was asked or none answered; `said` is one line of what was
    taken from it, "" for nothing. `learned` is what a session keeps of it: the facts, None for no answer, by
    `server_key`; empty if no server was asked."""

    settings: Settings
    facts: ServerFacts | None = None
    said: str = ""
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
    anew: bool = False,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> Informed:
    """The settings with what the local server of `llm.gateway` says of `model`. `may_choose`: the only model of a
    server is taken where `llm.model` names none. Nothing is asked of a gateway elsewhere, nothing that the session
    learned when it began (`recorded`), and nothing that was asked within the last hour by the clock `time`, unless
    `anew`. Raises UsageError for a URL or a token that no request could carry."""
    url, asked = settings.llm.gateway, "" if may_choose else model
    if not url or url.startswith(MOCK_PREFIX):
        return Informed(settings)
    check_url(url, gateway_name(settings))
    if not is_local(url):
        return Informed(settings)
    key = server_key(url, asked)
    kept = LocalServers(state_dir, time)
    if key in recorded:
        known = recorded[key]
    elif anew or (known := kept.find(url, asked)) is None:
        headers = {**dialect.headers(check_token(token)), **check_headers(settings.llm.headers)}
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
    is_configured = KnownModels(settings.models).is_configured(model, "context_tokens")
    if facts.context_tokens is not None and not is_configured:
        entry = {"context_tokens": facts.context_tokens}
        settings = settings.over({MODELS: {**settings.models, model: {**settings.models.get(model, {}), **entry}}})
        words.append(f"its window is {facts.context_tokens:,} tokens ({facts.page})")
    return Informed(settings, facts, GATEWAY_SAYS + "; ".join(words) if words else "")


async def refuse_unknown_host(settings: Settings) -> None:
    """Raise UsageError where no host has the name in `llm.gateway`: nothing that is tried again would find it. A
    resolver that cannot say is waited for like the gateway itself."""
    url = settings.llm.gateway
    if not url or url.startswith(MOCK_PREFIX):
        return
    host = check_url(url).host
    place = place_of(url)
    if is_loopback(host) or ":" in host or is_by_proxy(place.scheme):
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
    """The settings with the model of their provider, where they do not choose one: the first of those that a bundle of
    others has `allowed` and that the provider serves, else, if nothing names a model, the only one that it serves.
    Raises UsageError where there is none, or several, or the provider does not say."""
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
    return provider.with_model(settings, model)


def fit_toolset(settings: Settings, bundle: PolicyBundle) -> Settings:
    """The settings with the slim toolset where none was chosen and the model's window is known to be small. Without
    entries of `[models]` the shipped table stays unread, whose import is a part of a start."""
    if _TOOLSET in settings.chosen:
        return settings
    model = settings.llm.model or bundle.llm_policy.allowed_models[0]
    if not settings.models and not model.lower().endswith(SHIPPED_SMALL):
        return settings
    window = KnownModels(settings.models).of(model).limits.context_tokens
    is_small = window is not None and window < SMALL_WINDOW_TOKENS
    return settings.over({_TOOLSET: [SLIM]}) if is_small else settings


def report_window(emitter: Emitter, talk: Conversation, said: str, families: tuple[str, ...]) -> None:
    """Report with the first request what was read from the server, and whether the request fits."""
    window = talk.facts.limits.context_tokens
    message = "; ".join(filter(None, (said, advice(talk.tokens, window, families))))
    if message:
        told = {"model": talk.model, "estimatedInputTokens": talk.tokens, "contextTokens": window, "message": message}
        emitter.emit(EventType.LLM_SERVER_READ, {name: value for name, value in told.items() if value is not None})


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
