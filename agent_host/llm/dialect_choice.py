"""Which dialect a gateway speaks, where the setting `llm.dialect` is `auto`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agent_host.http_basics import shown_url
from agent_host.llm.dialects import AUTO, NAMES, make_dialect
from config.lean_typing import NamedTuple
from state.errors import WriteFailed
from state.gateway_dialects import GatewayDialects

if TYPE_CHECKING:
    from agent_host.llm.stream import Dialect
    from config.settings import Settings


class ChosenDialect(NamedTuple):
    """`said` is one line for a person: what `auto` took, and why; "" where the settings name the dialect."""

    dialect: Dialect
    said: str = ""


def named_dialect(settings: Settings) -> ChosenDialect | None:
    """The dialect that the settings name; None where it is to be found."""
    name = settings.text("llm.dialect")
    return None if name == AUTO else ChosenDialect(make_dialect(name, settings))


def scripted_dialect(settings: Settings) -> ChosenDialect:
    """That of a scripted gateway in this process, which speaks them all."""
    return _chosen(settings, NAMES[0], "the scripted gateway speaks all")


def find_dialect(
    settings: Settings, url: str, token: str | None, state_dir: str, *, anew: bool = False
) -> ChosenDialect:
    """The dialect of the gateway at `url`: what the path of the URL says; else what was found within the last days,
    unless it is looked for `anew`; else what the gateway says to requests that run no model. Blocks until it has
    answered. Raises UsageError, GatewayUnavailable, GatewayRejected."""
    place = shown_url(url).partition("?")[0]
    for name in NAMES:
        if place.endswith(_tail(make_dialect(name, settings).path)):
            return _chosen(settings, name, "its URL says so")
    kept = GatewayDialects(state_dir)
    known = None if anew else kept.of(place)
    if known in NAMES:
        return _chosen(settings, known, "as it was found to do")
    from agent_host.llm.dialect_probe import probe

    name, why = probe(settings, url, token)
    with contextlib.suppress(WriteFailed):  # it is asked again then
        kept.keep(place, name)
    return _chosen(settings, name, why)


def _chosen(settings: Settings, name: str, why: str) -> ChosenDialect:
    return ChosenDialect(make_dialect(name, settings), f"the gateway speaks {name}: {why}")


def _tail(path: str) -> str:
    """`path` behind its version."""
    return path[path.index("/", 1) :]
