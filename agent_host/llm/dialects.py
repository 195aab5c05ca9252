"""The dialects that there are, by the names of the setting `llm.dialect`. Each is imported when it is chosen."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from agent_host.http import displayable_url
from agent_host.llm.urls import check_url
from config.lean_typing import NamedTuple
from state.errors import WriteFailed
from state.remembered import GatewayDialects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.llm.stream import Dialect, Meaning
    from config.settings import Settings

AUTO: Final = "auto"
"""The name that stands for the dialect that the gateway is found to speak (`agent_host.llm.dialects`)."""


def _anthropic(settings: Settings) -> Dialect:
    from agent_host.llm.anthropic import AnthropicDialect

    return AnthropicDialect(own_key=settings.provider is not None)


def _openai(settings: Settings) -> Dialect:
    from agent_host.llm.openai_chat import ChatDialect

    field = settings.llm.max_tokens_field
    return ChatDialect(max_tokens_field=field, names_cache=names_cache(settings), own_key=settings.provider is not None)


def _responses(settings: Settings) -> Dialect:
    from agent_host.llm.openai_responses import ResponsesDialect

    return ResponsesDialect(names_cache=names_cache(settings), own_key=settings.provider is not None)


_MAKERS: Mapping[str, Callable[[Settings], Dialect]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "responses": _responses,
}
NAMES: Final = tuple(_MAKERS)
"""In the order in which a gateway is asked for them."""
_HOSTS_WITH_KEYS = r"(?:^|\.)(?:openai|azure)\.com$"
_PROVIDERS: Mapping[str, str] = {"responses": "openai"}


def make_dialect(name: str, settings: Settings) -> Dialect:
    """The dialect called `name`, one of `NAMES`, as the settings want it."""
    return _MAKERS[name](settings)


def names_cache(settings: Settings) -> bool:
    """True if requests have `prompt_cache_key`. Proxies and servers of others refuse it, some of them only for some
    models, so that by default it is sent where it is known to be of use."""
    wanted = settings.llm.prompt_cache_key
    gateway = settings.llm.gateway
    if wanted != "auto" or not gateway.lower().startswith(("http://", "https://")):
        return wanted == "always"
    return re.search(_HOSTS_WITH_KEYS, check_url(gateway).host) is not None


def provider_of(name: str) -> str:
    """OpenTelemetry's name of the provider whose dialect this is."""
    return _PROVIDERS.get(name, name)


# Which dialect a gateway speaks, where the setting `llm.dialect` is `auto`.


class ChosenDialect(NamedTuple):
    """`said` is one line for a person: what `auto` took, and why; "" where the settings name the dialect."""

    dialect: Dialect
    said: str = ""


def dialect_of_settings(settings: Settings) -> ChosenDialect | None:
    """The dialect that the settings name; None where it is to be found."""
    name = settings.llm.dialect
    return None if name == AUTO else ChosenDialect(make_dialect(name, settings))


def dialect_of_script(settings: Settings) -> ChosenDialect:
    """That of a scripted gateway in this process, which speaks them all."""
    return _chosen(settings, NAMES[0], "the scripted gateway speaks all")


def meaning_of_old_record(stop_reason: str) -> Meaning:
    """The meaning of a stop reason on record without one: versions that wrote none had one dialect."""
    from agent_host.llm.anthropic import meaning_of

    return meaning_of(stop_reason)


def find_dialect(
    settings: Settings, url: str, token: str | None, state_dir: str, *, anew: bool = False
) -> ChosenDialect:
    """The dialect of the gateway at `url`: what the path of the URL says; else what was found within the last days,
    unless it is looked for `anew`; else what the gateway says to requests that run no model. Blocks until it has
    answered. Raises UsageError, GatewayUnavailable, GatewayRejected."""
    place = displayable_url(url).partition("?")[0]
    for name in NAMES:
        if place.endswith(_tail(make_dialect(name, settings).path)):
            return _chosen(settings, name, "its URL says so")
    kept = GatewayDialects(state_dir)
    known = None if anew else kept.find(place)
    if known in NAMES:
        return _chosen(settings, known, "as it was found to do")
    from agent_host.llm.dialect_probe import probe

    dialects = {name: make_dialect(name, settings) for name in NAMES}
    name, why = probe(dialects, settings, url, token)
    with contextlib.suppress(WriteFailed):  # it is asked again then
        kept.keep(place, name)
    return _chosen(settings, name, why)


def _chosen(settings: Settings, name: str, why: str) -> ChosenDialect:
    return ChosenDialect(make_dialect(name, settings), f"the gateway speaks {name}: {why}")


def _tail(path: str) -> str:
    """`path` behind its version."""
    return path[path.index("/", 1) :]
