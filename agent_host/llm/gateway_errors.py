"""What an error of a gateway means, by its HTTP status, its names and its words: one set of tables for every dialect.

docs/gateway-errors.md is made from them. Names count before words, since words may quote what was sent. Words are RE2's
and are looked for in a bounded text, so that no answer costs more than its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from agent_host.errors import (
    TOKEN_VARIABLE,
    ContextTooLong,
    ErrorCode,
    GatewayRejected,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
)
from agent_host.llm.gateway_words import LIMITS, WORDS
from config.lean_typing import NamedTuple
from policy.patterns import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent_host.llm.error_bodies import Said

Kind = Literal[
    "too_long", "billing", "guardrail", "model", "image", "parameter", "too_large",
    "rate_limit", "loading", "overloaded", "credentials", "failed", "refused",
]  # fmt: skip


class Meant(NamedTuple):
    """What a kind of error does: what is said of it, the error that is raised, its code where that is not the class's
    own, and what to do."""

    says: str
    error: type[GatewayUnavailable | GatewayRejected | GuardrailBlocked]
    code: ErrorCode | None = None
    advice: str = ""


KINDS: Final[dict[Kind, Meant]] = {
    "too_long": Meant(
        "the request is too long for the model",
        ContextTooLong,
        advice="lower llmPolicy.maxInputTokens to what the model takes, then resume",
    ),
    "billing": Meant(
        "the account behind the gateway has no credit or budget left",
        GatewayRejected,
        advice="add credit or raise its limit, then resume",
    ),
    "guardrail": Meant("a guardrail of the gateway blocked the request", GuardrailBlocked),
    "model": Meant(
        "the gateway does not serve the model",
        GatewayRejected,
        advice="choose another of llmPolicy.allowedModels with --model, then resume",
    ),
    "image": Meant(
        "the gateway does not take a picture of the conversation",
        GatewayRejected,
        advice="set llm.images to false, then resume",
    ),
    "parameter": Meant(
        "the gateway does not take a part of the request",
        GatewayRejected,
        advice="check --dialect, --model and llmPolicy.maxOutputTokens, then resume",
    ),
    "too_large": Meant(
        "the request is larger than the gateway takes",
        GatewayRejected,
        advice="lower llmPolicy.maxInputTokens, or set llm.images to false, then resume",
    ),
    "rate_limit": Meant("the gateway is rate limiting", GatewayUnavailable, ErrorCode.RATE_LIMITED),
    "loading": Meant(
        "the server is loading the model", ModelOverloaded, advice="a request waits for it up to llm.max_wait_s"
    ),
    "overloaded": Meant("the gateway is overloaded", ModelOverloaded),
    "credentials": Meant(
        "the gateway refused the credentials",
        GatewayRejected,
        ErrorCode.UNAUTHORIZED,
        f"check {TOKEN_VARIABLE}",
    ),
    "failed": Meant("the gateway failed", GatewayUnavailable),
    "refused": Meant("the gateway refused the request", GatewayRejected, ErrorCode.LLM_REFUSED),
}
GETTING_READY: Final = frozenset({503, 529})
"""HTTP statuses of a server that will answer once it is ready: it is waited for by time, as one is that is loading."""

# Types, codes and reasons as gateways write them, in small letters.
NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "too_long": (
        "context_length_exceeded", "context_window_exceeded", "contextwindowexceedederror", "exceed_context_size_error",
        "model_context_window_exceeded", "model_max_prompt_tokens_exceeded", "token_limit_exceeded",
        "string_above_max_length", "1261",
    ),
    "billing": (
        "billing_error", "billing_hard_limit_reached", "billing_not_active", "insufficient_quota",
        "insufficient_credits", "insufficient_balance", "insufficient_funds", "credit_balance_too_low",
        "credits_exhausted", "payment_required", "budget_exceeded", "budgetexceedederror",
        "exceeded_current_quota_error", "arrearage", "credits_required", "credit_required", "no_credits",
        "out_of_credits", "insufficient_credit", "credits_depleted", "credit_limit_reached", "credit_limit_exceeded",
        "spending_limit_reached", "spend_limit_exceeded", "quota_exhausted", "balance_insufficient", "1113",
    ),
    "guardrail": (
        "content_filter", "content_filtered", "content_policy_violation", "contentpolicyviolationerror",
        "responsibleaipolicyviolation", "moderation_blocked", "guardrail_intervened", "guardrail_violation",
        "guardrailraisedexception", "invalid_prompt", "data_inspection_failed", "datainspectionfailed",
        "prohibited_content", "bio_policy", "misalignment_policy_violation", "image_content_policy_violation",
        "2016", "2017", "1301",
    ),
    "model": (
        "model_not_found", "model_not_supported", "model_not_available", "unknown_model", "unsupported_model",
        "invalid_model", "model_decommissioned", "deploymentnotfound", "key_model_access_denied",
        "team_model_access_denied",
    ),
    "image": (
        "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large",
        "image_too_small", "image_parse_error", "invalid_image_mode", "image_file_too_large",
        "unsupported_image_media_type", "empty_image_file", "failed_to_download_image", "image_file_not_found",
    ),
    "parameter": (
        "unsupported_parameter", "unsupported_value", "invalid_value", "invalid_type", "unknown_parameter",
        "missing_required_parameter", "invalid_parameter", "invalidparameter", "invalid_parameter_error",
        "integer_above_max_value", "integer_below_min_value", "decimal_above_max_value", "decimal_below_min_value",
        "array_above_max_length", "invalid_function_parameters", "unsupportedparamserror", "max_tokens_exceeded",
        "data_residency_mismatch",
    ),
    "too_large": ("request_too_large", "payload_too_large", "request_entity_too_large"),
    "rate_limit": (
        "rate_limit_error", "rate_limit_exceeded", "rate_limit_reached_error", "ratelimiterror", "too_many_requests",
        "throttlingexception", "throttling", "resource_exhausted",
    ),
    "loading": ("model_loading", "loading_model", "model_is_loading", "model_not_ready", "model_warming_up"),
    "overloaded": (
        "overloaded_error", "engine_overloaded_error", "server_overloaded", "model_overloaded", "server_is_overloaded",
        "slow_down", "service_unavailable_error", "serviceunavailableexception", "modelnotreadyexception",
        "unavailable", "3505",
    ),
    "credentials": (
        "authentication_error", "permission_error", "invalid_api_key", "invalid_authentication_error",
        "unauthenticated", "permission_denied", "token_expired", "no_db_connection",
    ),
    "failed": ("api_error", "server_error", "internal_server_error", "internal_error", "timeout_error", "timeout",
               "vector_store_timeout"),
    "refused": ("invalid_request_error", "not_found_error", "bad_request"),
}  # fmt: skip
_KIND_OF: Final = {name: kind for kind, names in NAMES.items() for name in names}
# What these names say is so general that words count before them.
_GENERAL: Final = frozenset({"failed", "refused"})


class Reading(NamedTuple):
    """How an HTTP status is read: what its body may say that it means, the first of them first, and what it means where
    the body says none of these."""

    may: tuple[Kind, ...]
    otherwise: Kind


_LASTING: Final[tuple[Kind, ...]] = ("too_long", "billing", "guardrail", "model", "image", "parameter")
_FAILURE: Final = Reading(("rate_limit", "too_long", "loading", "overloaded"), "failed")
STATUSES: Final[dict[int, Reading]] = {
    400: Reading(("rate_limit", "too_large", *_LASTING, "loading", "overloaded", "credentials"), "refused"),
    401: Reading(("billing", "model"), "credentials"),
    402: Reading((), "billing"),
    403: Reading(("guardrail", "billing", "model"), "credentials"),
    404: Reading(("billing", "model", "parameter", "loading"), "refused"),
    408: Reading((), "failed"),
    409: Reading(("loading",), "failed"),
    412: Reading(_LASTING, "refused"),
    413: Reading(("too_long",), "too_large"),
    422: Reading(_LASTING, "parameter"),
    425: Reading(("loading",), "failed"),
    429: Reading(("billing", "loading", "overloaded", "too_large"), "rate_limit"),
    446: Reading((), "guardrail"),  # Portkey and WSO2
    503: Reading(("rate_limit", "too_long", "loading"), "overloaded"),
    529: Reading(("rate_limit", "too_long", "loading"), "overloaded"),
}
_OTHER_REFUSAL: Final = Reading(_LASTING, "refused")
_NO_STATUS: Final[tuple[Kind, ...]] = (
    "rate_limit", "too_large", *_LASTING, "loading", "overloaded", "credentials", "failed", "refused",
)  # fmt: skip


def kind_of_answer(status: int, said: Said) -> Kind:
    """What an HTTP answer with an error means."""
    return _kind(said, reading_of(status))


def kind_of_event(said: Said, *, passing: bool) -> Kind:
    """What an error inside an answer means, which has no HTTP status but the one it names. `passing`: it may have gone
    by the next try, as far as the tables know nothing of it."""
    if said.status is None:
        return _kind(said, Reading(_NO_STATUS, "failed" if passing else "refused"))
    return _kind(said, reading_of(said.status))


def reading_of(status: int) -> Reading:
    """How a status is read that may have no row."""
    return STATUSES.get(status, _FAILURE if status >= 500 else _OTHER_REFUSAL)


def limit_of(said: Said) -> int | None:
    """How many tokens the model takes, where an error that is too long says so."""
    if said.limit is not None:
        return said.limit
    found = shipped(LIMITS).search(said.message.encode("utf-8", "replace"))
    return None if found is None else int(found.group(1).replace(b",", b""))


def _kind(said: Said, reading: Reading) -> Kind:
    named = {_KIND_OF[name] for said_name in said.names if (name := said_name.replace("-", "_")) in _KIND_OF}
    strong = [kind for kind in reading.may if kind not in _GENERAL]
    return (
        next((kind for kind in strong if kind in named), None)
        or _by_words(said.message, strong)
        or next((kind for kind in reading.may if kind in named), None)
        or reading.otherwise
    )


def _by_words(message: str, kinds: Iterable[Kind]) -> Kind | None:
    if not message:
        return None
    text = message.encode("utf-8", "replace")
    for kind in kinds:
        words = [row.words for row in WORDS if row.kind == kind]
        if words and shipped(f"(?i)(?:{'|'.join(words)})").search(text):
            return kind
    return None
