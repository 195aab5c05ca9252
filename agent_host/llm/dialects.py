"""The dialects that there are, by the names of the setting `llm.dialect`. Each is imported when it is chosen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent_host.llm.urls import checked_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.llm.stream import Dialect
    from config.settings import Settings

AUTO: Final = "auto"
"""The name that stands for the dialect that the gateway is found to speak (`agent_host.llm.dialect_choice`)."""


def _anthropic(_settings: Settings) -> Dialect:
    from agent_host.llm.anthropic import AnthropicDialect

    return AnthropicDialect()


def _openai(settings: Settings) -> Dialect:
    from agent_host.llm.openai_chat import ChatDialect

    return ChatDialect(max_tokens_field=settings.text("llm.max_tokens_field"), names_cache=names_cache(settings))


def _responses(settings: Settings) -> Dialect:
    from agent_host.llm.openai_responses import ResponsesDialect

    return ResponsesDialect(names_cache=names_cache(settings))


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
    wanted = settings.text("llm.prompt_cache_key")
    gateway = settings.text("llm.gateway")
    if wanted != "auto" or not gateway.lower().startswith(("http://", "https://")):
        return wanted == "always"
    return re.search(_HOSTS_WITH_KEYS, checked_url(gateway).host) is not None


def provider_of(name: str) -> str:
    """What OpenTelemetry calls the provider whose dialect this is."""
    return _PROVIDERS.get(name, name)
