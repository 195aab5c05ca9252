"""The error that a gateway's refusal becomes: what it means in words, what to do, and whether it may be tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.errors import TOKEN_VARIABLE, ContextTooLong, GatewayUnavailable
from agent_host.http_basics import retry_after_s
from agent_host.llm.gateway_errors import GETTING_READY, KINDS, limit_of
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
_FOR_WANT_OF_A_TOKEN = frozenset({401, 403, 404})
_NOT_THERE = frozenset({404, 405})


def refusal(
    kind: Kind,
    where: str,
    said: Said,
    shown: str,
    hints: RetryHints = NO_HINTS,
    *,
    status: int | None = None,
    has_token: bool = True,
    at: str = "",
) -> GatewayError | GuardrailBlocked:
    """The error for a refusal of this kind. `where` it was said ("HTTP 400"), `shown` are its words as they may be
    shown, `status` is that of the answer, None for an error inside of one, and `at` the URL of the request. What would
    repeat counts as passing where the gateway asks for a retry, but for a request that is too long: a shorter one is
    sent in any case."""
    meant = KINDS[kind]
    status = said.status if status is None else status
    advice = meant.advice
    if not advice and status in _NOT_THERE:
        advice = f"there may be nothing at {at}: check the URL and --dialect"
    if not has_token and (kind == "credentials" or status in _FOR_WANT_OF_A_TOKEN):
        no_token = f"no token was sent: set {TOKEN_VARIABLE}"
        advice = no_token if kind == "credentials" or not advice else f"{advice} ({no_token} if it wants one)"
    message = f"{meant.says} ({where}): {shown}" + (f"; {advice}" if advice else "")
    details: dict[str, Any] = {} if meant.code is None else {"code": meant.code}
    if issubclass(meant.error, GatewayUnavailable):
        again, gets_ready = hints.again is not False, kind == "loading" or status in GETTING_READY
        return meant.error(message, retry_after_s=hints.after_s, again=again, gets_ready=gets_ready, **details)
    if kind == "too_long":
        return ContextTooLong(message, limit=limit_of(said))
    if hints.again:
        return GatewayUnavailable(message, retry_after_s=hints.after_s)
    return meant.error(message, **details)
