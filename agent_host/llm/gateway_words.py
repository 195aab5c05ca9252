"""How gateways and servers word their errors: RE2 patterns, of any letter case, over the messages in one line."""

from __future__ import annotations

from typing import Final

from config.lean_typing import NamedTuple


class Words(NamedTuple):
    """One wording: the kind of error (`gateway_errors.KINDS`), who words it so, and the pattern."""

    kind: str
    server: str
    words: str


_COUNT = r"\(?[\d,]+(?: tokens)?\)?"

_STILL = r"(?:still |currently |now )*"

# The first speaks of tokens as what is too long does, so this kind is looked for before it (`gateway_errors.STATUSES`).
_PASSING: Final = (
    Words("rate_limit", "Amazon Bedrock", r"too many tokens, please wait"),
    Words("rate_limit", "Amazon Bedrock", r"\bthrottl(?:ing|ed)\b"),
    Words("rate_limit", "Anthropic, OpenAI, LiteLLM", r"\brate[ _-]?limit(?:ed|error| reached| exceeded)?\b"),
    Words("loading", "llama.cpp, Ollama", r"(?:^|[:.] |- |server )loading (?:the )?model\b"),
    Words("loading", "Hugging Face, LM Studio", rf"\bmodel\b.{{0,120}} is {_STILL}(?:being loaded|loading|warming)\b"),
    Words("overloaded", "Anthropic, Gemini, OpenAI", r"\boverloaded\b|\bover capacity\b"),
    Words("overloaded", "Mistral", r"capacity exceeded"),
    Words("overloaded", "LiteLLM", r"no deployments available"),
)
_TOO_LARGE: Final = (
    # One request of more tokens than a minute may have.
    Words("too_large", "OpenAI, Groq", r"request too large for .{1,300}tokens per min"),
    Words("too_large", "Anthropic", r"request exceeds the maximum (?:size|allowed number of bytes)"),
    Words("too_large", "nginx and other proxies", r"(?:request entity|request body|payload) (?:is )?too large"),
)
_TOO_LONG: Final = (
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
)
_BILLING: Final = (
    Words("billing", "Anthropic", r"credit balance is too low|reached your specified api usage limits"),
    Words("billing", "OpenAI", r"billing hard limit|account is not active, please check your billing"),
    Words("billing", "LiteLLM", r"budget has been exceeded|exceeded ?budget|over budget|crossed budget"),
    Words("billing", "OpenRouter", r"requires more credits|insufficient credits"),
    Words("billing", "DeepSeek, Kimi", r"insufficient (?:account )?balance"),
    Words("billing", "xAI", r"doesn'?t have any credits|used all available credits|monthly spending limit"),
    Words("billing", "Portkey", r"budget (?:limit )?(?:exhausted|exceeded)"),
    Words("billing", "DashScope", r"account is in good standing"),
)
_STOPPED = r"(?:blocked|rejected|denied|flagged|stopped)"
_GUARDS = r"(?:guardrail|moderation|safety (?:check|filter|polic|system)|content[ _-]?(?:filter|polic))"
_GUARDRAIL: Final = (
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
)
_MODEL: Final = (
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
)
_PARAMETER: Final = (
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
)
_CREDENTIALS: Final = (
    # Its proxy takes only its master key where it has no database of others.
    Words("credentials", "LiteLLM", r"no connected db\b"),
    Words("credentials", "Gemini", r"api key (?:not valid|expired)"),
    Words("credentials", "OpenAI and servers of its wire", r"(?:invalid|incorrect) api key"),
)
WORDS: Final = (
    *_PASSING, *_TOO_LARGE, *_TOO_LONG, *_BILLING, *_GUARDRAIL, *_MODEL, *_PARAMETER, *_CREDENTIALS,
)  # fmt: skip

_BEFORE_A_LIMIT = (
    r"tokens >", r"\+ [\d,]+ >", r"(?:context|prompt|model) length (?:is|of|for)(?: only)?", r"context length:?",
    r"context size:?", r"context size is", r"for model with", r"exceeds (?:the )?limit of", r"token limit:",
    r"tokens allowed", r"supports up to", r"context window of", r"allowed (?:input )?length(?: of)?", r"cannot exceed",
)  # fmt: skip
LIMITS: Final = rf"(?i)(?:{'|'.join(_BEFORE_A_LIMIT)})[ (]{{0,3}}(\d[\d,]{{2,10}}\d)\b"
"""The number of tokens that the model takes, behind the words that stand before it."""
