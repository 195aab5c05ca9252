"""Settings that follow from the gateway: the model and the window that a local server names, and the toolset that fits.

What the user chose stays: `llm.model`, an entry of `[models]` with `context_tokens`, `host.toolset`. A model that was
read counts as configured under built-in policies only; what a bundle of a file or a Session Service allows stays alone.
"""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agent_host.events.kinds import EventType
from agent_host.llm.deferred import KnownModels
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX, MODELS
from state.errors import WriteFailed
from tool_runtime.families.catalogue import SLIM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.events.emitter import Emitter
    from agent_host.llm.local_server import ServerFacts
    from agent_host.llm.stream import Dialect
    from agent_host.loop.conversation import Conversation
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle

SMALL_WINDOW_TOKENS: Final = 16_000
"""A model with a smaller window gets the slim toolset where none is chosen."""
SHIPPED_SMALL: Final = ("gpt-4",)
"""The ends of the names that the shipped table has with such a window."""
GATEWAY_SAYS: Final = "the gateway says: "
_TOOLSET = "host.toolset"


class Informed(NamedTuple):
    """Settings completed by `facts`, None where no server was asked or none answered; `said` is one line of what was
    taken from it, "" for nothing. `learned` is what a session keeps of it: the facts, None for no answer, by
    `server_key`; empty if no server was asked."""

    settings: Settings
    facts: ServerFacts | None = None
    said: str = ""
    learned: Mapping[str, Any] = {}


async def informed(
    settings: Settings,
    dialect: Dialect,
    token: str | None,
    state_dir: str,
    *,
    model: str,
    may_choose: bool,
    anew: bool = False,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> Informed:
    """The settings with what the local server of `llm.gateway` says of `model`. `may_choose`: the only model of a
    server is taken where `llm.model` names none. Nothing is asked of a gateway elsewhere, nothing that the session
    learned when it began (`recorded`), and nothing that was asked within the last hour, unless `anew`. Raises
    UsageError for a URL or a token that no request could carry."""
    from agent_host.llm.local_server import ServerFacts, is_local  # a scripted gateway does without
    from state.local_servers import server_key

    url, asked = settings.text("llm.gateway"), "" if may_choose else model
    if not url or url.startswith(MOCK_PREFIX) or not is_local(url):
        return Informed(settings)
    key = server_key(url, asked)
    if key in recorded:
        facts = None if recorded[key] is None else ServerFacts.of(recorded[key])
    else:
        facts = await _facts(settings, url, dialect, token, state_dir, asked, anew=anew)
    learned = {key: None if facts is None else facts._asdict()}
    if facts is None:
        return Informed(settings, learned=learned)
    words = []
    if may_choose and model not in facts.models and len(facts.models) == 1:
        model = facts.models[0]
        settings = settings.over({"llm.model": model})
        words.append(f"it serves the model {model}")
    is_configured = KnownModels(settings.models).is_configured(model, "context_tokens")
    if facts.context_tokens is not None and not is_configured:
        entry = {"context_tokens": facts.context_tokens}
        settings = settings.over({MODELS: {**settings.models, model: {**settings.models.get(model, {}), **entry}}})
        words.append(f"its window is {facts.context_tokens:,} tokens ({facts.page})")
    return Informed(settings, facts, GATEWAY_SAYS + "; ".join(words) if words else "", learned)


async def _facts(
    settings: Settings, url: str, dialect: Dialect, token: str | None, state_dir: str, model: str, *, anew: bool
) -> ServerFacts | None:
    from agent_host.http_basics import TlsContext
    from agent_host.llm.local_server import ServerFacts, ask_server
    from agent_host.llm.urls import checked_headers, checked_token
    from state.local_servers import LocalServers

    kept = LocalServers(state_dir)
    known = None if anew else kept.of(url, model)
    if known is not None:
        return ServerFacts.of(known)
    headers = {**dialect.headers(checked_token(token)), **checked_headers(settings.pairs("llm.headers"))}
    headers = {name: value for name, value in headers.items() if name not in ("content-type", "accept")}
    facts = await ask_server(url, model, headers, TlsContext(url).get)
    if facts is None:  # it is loading, or not there yet
        known = kept.of(url, model, stale=True)
        return None if known is None else ServerFacts.of(known)
    with contextlib.suppress(WriteFailed):  # it is asked again then
        kept.keep(url, model, facts._asdict())
    return facts


def with_fitting_toolset(settings: Settings, bundle: PolicyBundle) -> Settings:
    """The settings with the slim toolset where none was chosen and the model's window is known to be small. Without
    entries of `[models]` the shipped table stays unread, whose import is a part of a start."""
    if _TOOLSET in settings.chosen:
        return settings
    model = settings.text("llm.model") or bundle.llm_policy.allowed_models[0]
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
    """What helps where the first request, in tokens, leaves a window of so many little room, "" where it fits."""
    if window is None or first_request * 2 <= window:
        return ""
    fits = "leaves little room in" if first_request < window else "does not fit into"
    slim = "" if SLIM in families else "use --toolset slim, or "
    return (
        f"the first request has about {first_request:,} tokens, which {fits} the window of {window:,}: {slim}start the "
        "server with a larger one (llama.cpp: -c, Ollama: OLLAMA_CONTEXT_LENGTH)"
    )
