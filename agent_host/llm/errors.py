"""Classification of a gateway's errors by HTTP status, names and words: one set of tables for every dialect.

docs/gateway-errors.md is generated from them. Names take precedence over words, because words may quote the request.
Words are RE2 patterns and are searched in a bounded text, so that matching takes linear time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.errors import (
    TOKEN_VARIABLE,
    ContextTooLong,
    ErrorCode,
    GatewayRejected,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
)
from agent_host.llm import StreamFault
from agent_host.llm.raw_json import repair
from config import json_text
from config.lean_typing import NamedTuple
from policy.patterns import compile_shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal[
    "too_long", "billing", "guardrail", "model", "image", "parameter", "too_large",
    "rate_limit", "loading", "overloaded", "credentials", "failed", "refused",
]  # fmt: skip


class Meant(NamedTuple):
    """The consequences of a kind of error: its message, the exception raised, its code if that is not the class's own,
    and advice for the user."""

    message: str
    error: type[GatewayUnavailable | GatewayRejected | GuardrailBlocked]
    code: ErrorCode | None = None
    advice: str = ""


KINDS: Final[dict[Kind, Meant]] = {
    "too_long": Meant(
        "the request is too long for the model",
        ContextTooLong,
        advice="lower llmPolicy.maxInputTokens to the model's limit, then resume",
    ),
    "billing": Meant(
        "the gateway's account has no credit or budget left",
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
        "the gateway refused the credentials", GatewayRejected, ErrorCode.UNAUTHORIZED, f"check {TOKEN_VARIABLE}"
    ),
    "failed": Meant("the gateway failed", GatewayUnavailable),
    "refused": Meant("the gateway refused the request", GatewayRejected, ErrorCode.LLM_REFUSED),
}
GETTING_READY: Final = frozenset({503, 529})
"""HTTP statuses of a server that will answer once it is ready. Retries are bounded by time, as for a server that is
loading."""

# Types, codes and reasons of gateways, in lower case.
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
# The names of these kinds are so general that words take precedence over them.
_GENERAL: Final = frozenset({"failed", "refused"})


class Reading(NamedTuple):
    """The interpretation of an HTTP status: kinds that its body may indicate, in order of precedence, and the kind if
    the body indicates none of them."""

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


def kind_of_answer(status: int, details: ErrorDetails) -> Kind:
    """Classify an HTTP answer with an error."""
    return _kind(details, reading_of(status))


def kind_of_event(details: ErrorDetails, *, passing: bool) -> Kind:
    """Classify an error inside an answer, whose only HTTP status is the one in its body. `passing`: if the tables have
    no entry for it, it may be gone at the next retry."""
    of_none = Reading(_NO_STATUS, "failed" if passing else "refused")
    return _kind(details, of_none if details.status is None else reading_of(details.status))


def reading_of(status: int) -> Reading:
    """Return the interpretation of a status, which may not be in the table."""
    return STATUSES.get(status, _FAILURE if status >= 500 else _OTHER_REFUSAL)


def limit_of(details: ErrorDetails) -> int | None:
    """Return the number of tokens that the model accepts, if an error of the kind `too_long` contains it."""
    if details.limit is not None:
        return details.limit
    found = compile_shipped(LIMITS).search(details.message.encode("utf-8", "replace"))
    return None if found is None else int(found.group(1).replace(b",", b""))


def _kind(details: ErrorDetails, reading: Reading) -> Kind:
    named = {_KIND_OF[name] for raw_name in details.names if (name := raw_name.replace("-", "_")) in _KIND_OF}
    strong = [kind for kind in reading.may if kind not in _GENERAL]
    return (
        next((kind for kind in strong if kind in named), None)
        or _find_by_words(details.message, strong)
        or next((kind for kind in reading.may if kind in named), None)
        or reading.otherwise
    )


def _find_by_words(message: str, kinds: Iterable[Kind]) -> Kind | None:
    if not message:
        return None
    text = message.encode("utf-8", "replace")
    for kind in kinds:
        words = [row.words for row in WORDS if row.kind == kind]
        if words and compile_shipped(f"(?i)(?:{'|'.join(words)})").search(text):
            return kind
    return None


# Wordings of gateways' and servers' errors: case-insensitive RE2 patterns, matched with the messages as one line.


class Words(NamedTuple):
    """One wording: the kind of error (`KINDS`), the servers that use it, and the pattern."""

    kind: str
    server: str
    words: str


_COUNT = r"\(?[\d,]+(?: tokens)?\)?"

_STILL = r"(?:still |currently |now )*"

_STOPPED = r"(?:blocked|rejected|denied|flagged|stopped)"
_GUARDS = r"(?:guardrail|moderation|safety (?:check|filter|polic|system)|content[ _-]?(?:filter|polic))"

WORDS: Final = (
    # The first mentions tokens as errors of the kind `too_long` do, so this kind is searched first (`STATUSES`).
    Words("rate_limit", "Amazon Bedrock", r"too many tokens, please wait"),
    Words("rate_limit", "Amazon Bedrock", r"\bthrottl(?:ing|ed)\b"),
    Words("rate_limit", "Anthropic, OpenAI, LiteLLM", r"\brate[ _-]?limit(?:ed|error| reached| exceeded)?\b"),
    Words("loading", "llama.cpp, Ollama", r"(?:^|[:.] |- |server )loading (?:the )?model\b"),
    Words("loading", "Hugging Face, LM Studio", rf"\bmodel\b.{{0,120}} is {_STILL}(?:being loaded|loading|warming)\b"),
    Words("overloaded", "Anthropic, Gemini, OpenAI", r"\boverloaded\b|\bover capacity\b"),
    Words("overloaded", "Mistral", r"capacity exceeded"),
    Words("overloaded", "LiteLLM", r"no deployments available"),
    # One request with more tokens than are allowed per minute.
    Words("too_large", "OpenAI, Groq", r"request too large for .{1,300}tokens per min"),
    Words("too_large", "Anthropic", r"request exceeds the maximum (?:size|allowed number of bytes)"),
    Words("too_large", "nginx and other proxies", r"(?:request entity|request body|payload) (?:is )?too large"),
    Words("too_long", "Anthropic", r"prompt is too long"),
    Words("too_long", "Anthropic", r"input length and `?max_tokens`? exceed context limit"),
    Words("too_long", "Amazon Bedrock", r"input is too long for requested model"),
    Words("too_long", "OpenAI, Azure, DeepSeek, OpenRouter, vLLM", r"maximum context length"),
    Words("too_long", "OpenAI", r"exceeds the context window|input tokens exceed the configured limit"),
    Words("too_long", "OpenAI", r"string too long\. expected a string with maximum length"),
    Words("too_long", "OpenAI and servers of its wire", r"context[ _-]?(?:length|window)[ _-]?exceeded"),
    Words("too_long", "vLLM", r"maximum model length of|too long to fit into the model"),
    Words("too_long", "SGLang, Together", r"longer than the model'?s (?:maximum )?context length"),
    Words("too_long", "SGLang, Fireworks", rf"input length {_COUNT} exceeds the maximum allowed (?:input )?length"),
    Words("too_long", "SageMaker", r"is too long and exceeds limit of \d"),
    Words("too_long", "Text Generation Inference", r"`inputs` tokens \+ `max_new_tokens` must be"),
    Words("too_long", "Text Generation Inference", r"`inputs` must have less than"),
    Words("too_long", "llama.cpp", r"exceeds? (?:the )?available context size"),
    Words("too_long", "llama-cpp-python", r"requested tokens \(\d+\) exceed context window"),
    Words("too_long", "Ollama", r"prompt too long; exceeded (?:max )?context length"),
    Words("too_long", "Ollama", r"input length exceeds (?:the )?(?:maximum )?context length"),
    Words("too_long", "LM Studio", r"greater than the context length|context length (?:of|is) only \d"),
    Words("too_long", "Gemini, Vertex", r"input token count .{0,60}exceeds the maximum number of tokens"),
    Words("too_long", "Gemini, Vertex", r"input token count is \d+ but model only supports up to"),
    Words("too_long", "Mistral", r"too large for model with \d+ maximum context length"),
    Words("too_long", "Groq", r"reduce the length of the messages"),
    Words("too_long", "xAI", r"maximum prompt length is \d"),
    Words("too_long", "GitHub Copilot", r"token count of [\d,]+ exceeds the limit of"),
    Words("too_long", "Kimi", r"exceeded model token limit"),
    Words("too_long", "MiniMax", r"context window exceeds limit"),
    Words("too_long", "Zhipu", r"prompt exceeds max length|tokens in request more than max tokens allowed"),
    Words("too_long", "DashScope", r"range of input length should be"),
    Words("too_long", "Cohere", r"total number of tokens .{0,80}cannot exceed"),
    Words("too_long", "Cloudflare Workers AI", r"exceeded (?:the|this) model'?s? context window"),
    Words("billing", "Anthropic", r"credit balance is too low|reached your specified api usage limits"),
    Words("billing", "OpenAI", r"billing hard limit|account is not active, please check your billing"),
    Words("billing", "LiteLLM", r"budget has been exceeded|exceeded ?budget|over budget|crossed budget"),
    Words("billing", "OpenRouter", r"requires more credits|insufficient credits"),
    Words("billing", "DeepSeek, Kimi", r"insufficient (?:account )?balance"),
    Words("billing", "xAI", r"doesn'?t have any credits|used all available credits|monthly spending limit"),
    Words("billing", "Portkey", r"budget (?:limit )?(?:exhausted|exceeded)"),
    Words("billing", "DashScope", r"account is in good standing"),
    Words("guardrail", "Anthropic", r"blocked by (?:our )?content filtering policy"),
    Words("guardrail", "OpenAI", r"flagged as potentially violating|rejected .{1,20}safety system"),
    Words("guardrail", "Azure", r"content management policy"),
    Words("guardrail", "Amazon Bedrock", r"guardrail intervened|blocked by our content filters"),
    Words("guardrail", "Gemini", r"blocked due to (?:safety|prohibited content)"),
    Words("guardrail", "LiteLLM", r"violated (?:[\w-]+ ){0,4}policy|content blocked:|guardrail (?:blocked|failed)"),
    Words("guardrail", "LiteLLM", r"contentpolicyviolation|guardrailraisedexception"),
    Words("guardrail", "OpenRouter", r"your input was flagged"),
    Words("guardrail", "Portkey", r"guardrail checks .{0,60}failed"),
    Words("guardrail", "Cloudflare AI Gateway", r"(?:prompt|response) blocked due to security configurations"),
    Words("guardrail", "Kong", r"failed content safety check|prompt pattern is blocked"),
    Words("guardrail", "several proxies", rf"\b{_STOPPED} (?:by|due to|for|since) .{{0,60}}{_GUARDS}"),
    Words("guardrail", "several proxies", rf"{_GUARDS}s?\b.{{0,40}} (?:{_STOPPED}|triggered|intervened)"),
    Words("guardrail", "xAI", r"violates? (?:our |the )?usage (?:guidelines|polic)"),
    Words("guardrail", "DashScope, DeepSeek", r"may contain inappropriate content|content exists risk"),
    Words("model", "Anthropic", r"^(?:\w+_error: )?model: \S"),
    Words("model", "OpenAI, vLLM, Groq, xAI", r"\bmodel\b.{0,120} does not exist"),
    Words("model", "Ollama, Fireworks, Cohere", r"\bmodel\b.{0,120} not found|\bmodel not found"),
    Words("model", "Kimi", r"not found the model"),
    Words("model", "several proxies", r"no such model|(?:unknown|unsupported) model\b"),
    Words("model", "Gemini", r"\bmodels/\S{1,120} is not found"),
    Words("model", "DeepSeek", r"model not exist"),
    Words("model", "LiteLLM", r"invalid model name passed in|no healthy deployments for this model"),
    Words("model", "OpenRouter", r"is not a valid model id|no endpoints found for"),
    Words("model", "Mistral", r"invalid model:"),
    Words("model", "Azure", r"deployment for this resource does not exist"),
    Words("model", "Amazon Bedrock", r"model identifier is invalid|on-demand throughput isn.{1,3}t supported"),
    Words("model", "Groq", r"has been decommissioned"),
    Words("model", "Together", r"unable to access (?:non-serverless )?model"),
    Words("model", "LM Studio", r"no models? (?:is |are )?(?:currently )?loaded"),
    Words("parameter", "Anthropic", r"^(?:\w+_error: )?(?:messages|tools|system)(?:\.[\w.-]+)?:"),
    Words("parameter", "Anthropic", r"^(?:\w+_error: )?(?:max_tokens|tool_choice|thinking)(?:\.[\w.-]+)?:"),
    Words("parameter", "Anthropic, Mistral, FastAPI", r"extra inputs are not permitted|field required|input should be"),
    Words(
        "parameter", "OpenAI, Azure", r"unsupported (?:parameter|value)|unknown parameter|missing required parameter"
    ),
    Words("parameter", "OpenAI, Azure", r"unrecognized request argument|invalid (?:value|type|schema) for"),
    Words("parameter", "OpenAI", r"tool_calls.{0,40} must be followed by tool messages"),
    Words("parameter", "DeepSeek", r"reasoning_content.{0,80} must be passed back|valid range of max_tokens"),
    Words(
        "parameter", "Amazon Bedrock", r"maximum tokens you requested exceeds? the model limit|malformed input request"
    ),
    Words("parameter", "Groq", r"max_(?:completion_)?tokens`? must be less than"),
    Words("parameter", "vLLM", r"tool choice requires|--enable-auto-tool-choice"),
    Words("parameter", "llama.cpp", r"requires? --jinja"),
    Words("parameter", "Ollama", r"does not support (?:tools|thinking|images|vision)"),
    Words("parameter", "OpenRouter", r"no endpoints found that support"),
    Words("parameter", "Gemini", r"invalid json payload received"),
    # Without a database of keys its proxy accepts only its master key.
    Words("credentials", "LiteLLM", r"no connected db\b"),
    Words("credentials", "Gemini", r"api key (?:not valid|expired)"),
    Words("credentials", "OpenAI and servers of its wire", r"(?:invalid|incorrect) api key"),
)

_BEFORE_A_LIMIT = (
    r"tokens >", r"\+ [\d,]+ >", r"(?:context|prompt|model) length (?:is|of|for)(?: only)?", r"context length:?",
    r"context size:?", r"context size is", r"for model with", r"exceeds (?:the )?limit of", r"token limit:",
    r"tokens allowed", r"supports up to", r"context window of", r"allowed (?:input )?length(?: of)?", r"cannot exceed",
)  # fmt: skip
LIMITS: Final = rf"(?i)(?:{'|'.join(_BEFORE_A_LIMIT)})[ (]{{0,3}}(\d[\d,]{{2,10}}\d)\b"
"""The number of tokens that the model accepts, with the words before it."""


# The parser of a gateway's error, for any shape of its body.
#
# Bodies differ: `{"error": {"message", "type", "code"}}` of Anthropic and OpenAI, the same in a list (Gemini), without
# `error` around it (vLLM, Amazon Bedrock), `{"error": "text"}` (Ollama), `{"detail": ...}` (FastAPI), and these nested
# in each other, also as JSON in a string (OpenRouter, LiteLLM). All are read here by field names.

_MESSAGES = ("message", "detail", "msg", "error", "raw", "error_description", "errorMessage", "actionReason")
_NAMES = ("type", "code", "error_code", "error_type", "reason", "status", "action", "__type")
_INSIDE = ("error", "errors", "detail", "details", "message", "raw", "metadata", "innererror", "inner_error",
           "provider_specific_fields")  # fmt: skip

_MAX_DEPTH = 6
_MAX_PARTS = 64
_MAX_TEXT = 4096
_MAX_NAME = 100
_STATUSES = range(400, 600)
# Names of several words, which do not occur in prose.
_NAME_IN_TEXT = r"\b(?:[A-Za-z]{2,40}_[A-Za-z0-9_]{2,60}|[A-Za-z]{2,60}(?:Error|Exception))\b"


class ErrorDetails(NamedTuple):
    """The parts of an error. `message` is for people, "" if there is none; `names` are its types, codes and reasons in
    lower case; `status` is the HTTP status in its body, and `limit` the number of tokens that the model accepts."""

    message: str
    names: frozenset[str] = frozenset()
    status: int | None = None
    limit: int | None = None


def read(body: bytes) -> ErrorDetails:
    """Read the body of an answer; if it is not JSON, or of an unknown shape, its text is the message."""
    details = read_value(parse(body))
    if details.message or details.names:
        return details
    return details._replace(message=_one_line(body.decode("utf-8", "replace")))


def parse(body: bytes | str) -> Any:
    """Return the JSON value in the body of an answer; None if it is not JSON."""
    try:
        return json_text.loads(body)
    except orjson.JSONDecodeError:
        return None


def read_value(value: Any) -> ErrorDetails:
    """Read an error from a JSON value; the result is empty if its shape is unknown."""
    messages: dict[str, None] = {}
    names: set[str] = set()
    status = limit = None
    for part in _parts(value):
        messages |= dict.fromkeys(_texts(part))
        for name in _names(part):
            names.add(name)
            if status is None and name.isascii() and name.isdigit() and int(name) in _STATUSES:
                status = int(name)
        limit = limit or _count(part.get("n_ctx"))  # llama.cpp
    return ErrorDetails(_join(messages), frozenset(names), status, limit)


def names_in(text: str) -> frozenset[str]:
    """Return the names of errors in a text, in lower case, for an error whose names are only in its message."""
    return frozenset(name.lower() for name in re.findall(_NAME_IN_TEXT, text[:_MAX_TEXT]))


def is_error(value: Any) -> bool:
    """True if the body of a successful answer is an error nevertheless."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, dict):
        return False
    return bool(first.get("error")) or "error" in (first.get("type"), first.get("object"))


def is_complete_answer(value: Any) -> bool:
    """True if the body of a successful answer is the model's complete answer, not a stream."""
    return isinstance(value, dict) and any(name in value for name in ("content", "choices", "output", "candidates"))


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of an error that may have information, outer before inner ones; their number and depth are
    bounded."""
    level, left = [value], _MAX_PARTS
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for one in level[:left]:
            left -= 1
            if isinstance(one, list):
                below += one[:_MAX_PARTS]
            elif isinstance(one, dict):
                yield one
                below += (_open_string(one[name]) for name in _INSIDE if name in one)
        level = below


def _open_string(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    parsed = parse(value)
    return value if parsed is None else parsed


def _texts(part: Mapping[str, Any]) -> Iterator[str]:
    for name in _MESSAGES:
        value = part.get(name)
        if isinstance(value, str) and not isinstance(_open_string(value), dict | list):
            yield _one_line(value)


def _names(part: Mapping[str, Any]) -> Iterator[str]:
    for name in _NAMES:
        value = part.get(name)
        if type(value) is int:
            value = str(value)
        if isinstance(value, str) and 0 < len(value) <= _MAX_NAME:
            yield value.strip().lower()


def _join(messages: Mapping[str, None]) -> str:
    """Join the messages without those that are contained in an earlier one."""
    kept: list[str] = []
    for message in messages:
        if message and not any(message in other for other in kept):
            kept.append(message)
    return ": ".join(kept)[:_MAX_TEXT]


def _one_line(text: str) -> str:
    return " ".join(text[:_MAX_TEXT].split())


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


# Errors that servers of OpenAI's wire formats report in the middle of a stream, after HTTP 200.

# Permanent errors, by `code` and by `type`; all others are temporary.
_PERMANENT: Final = frozenset(
    ("authentication_error", "billing_error", "billing_hard_limit_reached", "billing_not_active", "content_filter",
     "content_policy_violation", "context_length_exceeded", "exceed_context_size_error", "insufficient_quota",
     "invalid_api_key", "invalid_prompt", "invalid_request", "invalid_request_error", "model_not_found",
     "not_found_error", "permission_denied", "permission_error", "unsupported_parameter", "unsupported_value")
)  # fmt: skip
# HTTP statuses 4xx of temporary errors.
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})


def fault_of(error: Any) -> StreamFault:
    """Return the fault of an `error` object with `message`, `type` and `code`, or of a text instead of it."""
    if not isinstance(error, dict):
        return StreamFault(repair(str(error))[0], retryable=True, body={"error": error})
    kinds = [error.get("code"), error.get("type")]
    message = error.get("message")
    name = next((kind for kind in reversed(kinds) if isinstance(kind, str) and kind), None) or error.get("code")
    detail = message if isinstance(message, str) else ""
    text, _ = repair(f"{name or 'error'}: {detail}")
    return StreamFault(text, retryable=not any(map(_is_permanent, kinds)), body={"error": error})


def _is_permanent(kind: Any) -> bool:
    """True if an error with this code or type is permanent; `kind` is a word, or an HTTP status as a number or a
    text."""
    if isinstance(kind, str) and kind.isascii() and kind.isdigit():
        kind = int(kind[:4])
    if type(kind) is int:
        return 400 <= kind < 500 and kind not in _PASSING_STATUS
    return isinstance(kind, str) and kind.lower() in _PERMANENT
