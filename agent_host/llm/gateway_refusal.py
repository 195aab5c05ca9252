"""The error that a gateway's refusal becomes: what it means in words, what to do, and whether it may be tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.errors import ContextTooLong, GatewayUnavailable
from agent_host.http_basics import retry_after_s
from agent_host.llm.gateway_errors import KINDS, limit_of
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.errors import GatewayError, GuardrailBlocked
    from agent_host.llm.error_bodies import Said
    from agent_host.llm.gateway_errors import Kind

_AGAIN = {"true": True, "false": False}


class RetryHints(NamedTuple):
    """What the headers of an answer ask of a client, as the official SDKs read them. `again`: whether the request is to
    be repeated (x-should-retry), None where that is not said; `after_s`: after which wait."""

    again: bool | None = None
    after_s: float | None = None

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> RetryHints:
        """The hints of an answer with these headers."""
        said = str(headers.get("x-should-retry", "")).strip().lower()
        return cls(_AGAIN.get(said), retry_after_s(headers))


NO_HINTS = RetryHints()


def refusal(
    kind: Kind, where: str, said: Said, shown: str, hints: RetryHints = NO_HINTS
) -> GatewayError | GuardrailBlocked:
    """The error for a refusal of this kind. `where` it was said ("HTTP 400"), `shown` are its words as they may be
    shown. What would repeat counts as passing where the gateway asks for a retry, but for a request that is too long:
    a shorter one is sent in any case."""
    meant = KINDS[kind]
    message = f"{meant.says} ({where}): {shown}" + (f"; {meant.advice}" if meant.advice else "")
    details: dict[str, Any] = {} if meant.code is None else {"code": meant.code}
    if issubclass(meant.error, GatewayUnavailable):
        return meant.error(message, retry_after_s=hints.after_s, again=hints.again is not False, **details)
    if kind == "too_long":
        return ContextTooLong(message, limit=limit_of(said))
    if hints.again:
        return GatewayUnavailable(message, retry_after_s=hints.after_s)
    return meant.error(message, **details)
