"""The conversation of a session, put together: the thread on record, what a request begins with, the client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from codecs import BOM_UTF8
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from agent_host.errors import PolicyDenied, UsageError
from agent_host.events import EventType
from agent_host.host.secrets import token_name
from agent_host.http import RetryPolicy, TlsContext, displayable_url, is_loopback
from agent_host.llm.deferred import DeferredClient, KnownModels
from agent_host.llm.known_dialects import check_headers, check_token, check_url, gateway_name, is_by_proxy, place_of
from agent_host.loop import clean_message
from agent_host.loop.conversation import Compaction, Conversation, ForModel
from agent_host.loop.progress import AnswerForm, instruction_on
from agent_host.thread import Thread, summary_message
from agent_host.thread.messages import decode
from config import json_text
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX, MODELS
from state.errors import WriteFailed
from state.keys import LocalServers, server_key
from tool_runtime.families.catalogue import SLIM
from tool_runtime.families.schemas import definition_of
from tool_runtime.schema import UnusableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.events.emitter import Emitter
    from agent_host.host.compose import Parts
    from agent_host.judging import Judge
    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import Dialect
    from agent_host.llm.local_server import ServerFacts
    from agent_host.redaction import Scrubber
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from state.checkpoint import Checkpoint, ContextStrategy

# A provider may count so many times the tokens that the estimate gives (`loop.requests`).
_LOW_ESTIMATE = 1.5
_MOST_BYTES_PER_TOKEN = 8


class Gateway(NamedTuple):
    """The address of the model, and the TLS context for it, which is made while a session opens. `said` is what the
    first request reports: which dialect was found; "" where the dialect was named. `server_said` is what was taken from
    the server's own word."""

    url: str
    tls: TlsContext
    said: str = ""
    server_said: str = ""


def make_conversation(
    settings: Settings,
    parts: Parts,
    state: Checkpoint,
    scrubber: Scrubber,
    client: Callable[[], LlmClient],
) -> Conversation:
    """The conversation of the session with this `state`; `client` is made with its first request. Raises PolicyDenied
    for a model for summaries that the bundle does not allow."""
    retry_s = (settings.llm.retry_base_s, settings.llm.retry_max_s)
    return Conversation(
        _thread(parts, state, scrubber),
        DeferredClient(client),
        parts.model,
        _head_maker(parts, scrubber, state),
        RetryPolicy(settings.llm.max_retries, *retry_s, max_wait_s=settings.llm.max_wait_s),
        parts.count,
        parts.models,
        _view_of_models(parts, scrubber, state),
        fallbacks=parts.fallbacks,
        takes_images=parts.takes_images,
        compaction=_compaction(settings, parts.bundle),
        max_cost=settings.llm.max_cost,
    )


def put_under_parts(conversation: Conversation, parts: Parts, state: Checkpoint, scrubber: Scrubber) -> None:
    """Have a conversation go on with the model and under the bundle of `parts`; `scrubber` has its rules already."""
    other_model = conversation.model != parts.model  # it gets no blocks of the one before
    conversation.model = conversation.default_model = parts.model
    conversation.fallbacks = parts.fallbacks
    conversation.models = parts.models
    conversation.for_model = _view_of_models(parts, scrubber, state)
    if parts.bundle.redaction_rules or other_model:
        conversation.thread = _thread(parts, state, scrubber)
    conversation.make_head = _head_maker(parts, scrubber, state)


def _thread(parts: Parts, state: Checkpoint, scrubber: Scrubber, dropped: int | None = None) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over. What was
    recorded under other rules leaves under those of this bundle. `dropped` is how many messages requests leave out from
    now on, None for as many as on record."""
    takes_images = parts.takes_images
    if takes_images and len(state.thread) > 1:  # a new session has no pictures yet
        takes_images = parts.models.of(parts.model).limits.images is not False
    renderer = parts.dialect.renderer(parts.model)
    thread = Thread(renderer, takes_images=takes_images, marks_from=lambda: _marks_from(parts))
    step = state.open_step
    messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
    if scrubber.redaction is not None and scrubber.redaction.has_rules:
        messages = (clean_message(scrubber, message) for message in messages)
    still_open = None if step is None else step.position - 1
    thread.restore(
        messages,
        still_open=still_open,
        dropped=state.dropped_messages if dropped is None else dropped,
        large_from=state.cleared_messages,
        summary=None if state.summary is None else summary_message(scrubber.text(state.summary), parts.count),
        thinking_from=_thinking_from(parts, state, dropped),
    )
    return thread


def _marks_from(parts: Parts) -> int:
    """Estimated tokens that a beginning of a request has to have for a cache mark. A provider keeps nothing that is
    shorter than its minimum; a mark that is missing costs more than one too many, and estimates may be low."""
    minimum = parts.models.of(parts.model).limits.cache_minimum_tokens
    return 0 if minimum is None else int(minimum / _LOW_ESTIMATE)


def _thinking_from(parts: Parts, state: Checkpoint, dropped: int | None) -> int:
    # The provider of some models refuses a request in which anything in front of its thinking was changed.
    if not (state.flattened_messages or dropped) or not parts.models.of(parts.model).limits.thinking_bound:
        return 0
    return state.flattened_messages if dropped is None else len(state.thread) - 1


def _view_of_models(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[str, int | None], ForModel]:
    def for_model(model: str, dropped: int | None) -> ForModel:
        own = parts._replace(model=model)
        return ForModel(_thread(own, state, scrubber, dropped), _head_maker(own, scrubber, state))

    return for_model


def _head_maker(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[Judge, int], bytes]:
    """The front of model requests: model, limit, system prompt, and those tools that a call could be allowed of."""

    def head(judge: Judge, max_output_tokens: int) -> bytes:
        system = scrubber.text(decode(state.thread[0]).content)
        encode = partial(
            parts.dialect.head,
            model=parts.model,
            max_output_tokens=max_output_tokens,
            system=system if parts.answer_schema is None else system + instruction_on(parts.answer_schema),
            tools=list(map(definition_of, judge.offered_tools())),
            session_id=state.identity.session_id,
            answer_schema=orjson.loads(parts.answer_schema) if parts.answer_schema and parts.structured else None,
        )
        made, marks_from = encode(), _marks_from(parts)
        # A text has fewer tokens than bytes, and no language as few as one for so many.
        is_short = len(made) < marks_from * _MOST_BYTES_PER_TOKEN and parts.count(made.decode()) < marks_from
        return encode(is_marked=False) if is_short else made

    return head


def answer_form(settings: Settings) -> AnswerForm | None:
    """The form of final answers, None for any text. Raises UsageError for a schema that cannot be used."""
    schema = settings.host.answer_schema
    if not schema:
        return None
    from tool_runtime.foreign_schema import foreign_judge  # for the runs that have a schema

    try:
        return AnswerForm(schema, foreign_judge(json_text.loads(schema.encode())))
    except (orjson.JSONDecodeError, UnusableSchema, AttributeError) as error:
        raise UsageError(f"host.answer_schema cannot be used: {error}") from error


def schema_text(data: bytes) -> str:
    """The setting `host.answer_schema` for the content of a file. Raises UsageError for what is no JSON Schema that can
    be used by itself: nothing is fetched."""
    from tool_runtime.foreign_schema import foreign_judge

    try:
        schema = json_text.loads(data.removeprefix(BOM_UTF8))
        if not isinstance(schema, dict):
            raise UnusableSchema("it is not an object")
        foreign_judge(schema)
    except json_text.TooDeep as error:
        raise UsageError(f"it is no JSON Schema that can be used: {error}") from error
    except orjson.JSONDecodeError as error:
        from config.json_text import describe_json

        text = data.decode("utf-8", "replace")
        raise UsageError(f"it {describe_json(text, error.msg, error.pos)}") from error
    except UnusableSchema as error:
        raise UsageError(f"it is no JSON Schema that can be used: {error}") from error
    return orjson.dumps(schema).decode()


def _compaction(settings: Settings, bundle: PolicyBundle) -> Compaction:
    """Raises PolicyDenied for a model for summaries that the bundle does not allow."""
    model = settings.llm.summary_model or None
    if model is not None and model not in bundle.llm_policy.allowed_models:
        allowed = ", ".join(bundle.llm_policy.allowed_models)
        raise PolicyDenied(f"llm.summary_model {model} is not in llmPolicy.allowedModels: {allowed}")
    return Compaction(cast("ContextStrategy", settings.llm.context_strategy), model)


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

    timeouts = GatewayTimeouts(
        connect_s=settings.llm.connect_timeout_s,
        read_s=settings.llm.read_timeout_s,
        progress_s=settings.llm.progress_timeout_s,
        answer_s=settings.llm.answer_timeout_s,
    )
    limits = AnswerLimits(**{name: getattr(settings.llm, name) for name in AnswerLimits._fields})
    return LlmClient(
        gateway.url,
        token,
        dialect,
        session_id=session_id,
        time=time,
        timeouts=timeouts,
        limits=limits,
        tls=gateway.tls,
        headers=settings.llm.headers,
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
    learned when it began (`recorded`), and nothing that was asked within the last hour by the clock
    `time`, unless `anew`. Raises
    UsageError for a URL or a token that no request could carry."""
    from agent_host.llm.local_server import ServerFacts, is_local  # a scripted gateway does without

    url, asked = settings.llm.gateway, "" if may_choose else model
    if not url or url.startswith(MOCK_PREFIX):
        return Informed(settings)
    check_url(url, gateway_name(settings))
    if not is_local(url):
        return Informed(settings)
    key = server_key(url, asked)
    if key in recorded:
        facts = None if recorded[key] is None else ServerFacts.read_row(recorded[key])
    else:
        facts = await _facts(settings, url, dialect, token, state_dir, time, asked, anew=anew)
    learned = {key: None if facts is None else facts._asdict()}
    if facts is None:
        return Informed(settings, learned=learned)
    return _complete(settings, facts, model, may_choose=may_choose)._replace(learned=learned)


def _complete(settings: Settings, facts: ServerFacts, model: str, *, may_choose: bool) -> Informed:
    """The settings with what the server has said."""
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
    from agent_host.llm.local_server import NoList, ask_models

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


async def _facts(
    settings: Settings,
    url: str,
    dialect: Dialect,
    token: str | None,
    state_dir: str,
    time: Callable[[], float],
    model: str,
    *,
    anew: bool,
) -> ServerFacts | None:
    from agent_host.llm.local_server import ServerFacts, ask_server

    kept = LocalServers(state_dir, time)
    known = None if anew else kept.find(url, model)
    if known is not None:
        return ServerFacts.read_row(known)
    headers = {**dialect.headers(check_token(token)), **check_headers(settings.llm.headers)}
    headers = {name: value for name, value in headers.items() if name not in ("content-type", "accept")}
    facts = await ask_server(url, model, headers, TlsContext(url).get)
    if facts is None:  # it is loading, or not there yet
        known = kept.find(url, model, stale=True)
        return None if known is None else ServerFacts.read_row(known)
    with contextlib.suppress(WriteFailed):  # it is asked again then
        kept.keep(url, model, facts._asdict())
    return facts


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
