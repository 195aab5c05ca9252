"""How servers word their errors: messages as they send them, by the row of the table that is to find them."""

from __future__ import annotations

MESSAGES: dict[tuple[str, str], tuple[str, ...]] = {
    ("rate_limit", "Amazon Bedrock"): (
        "Too many tokens, please wait before trying again.",
        "Throttling error: Too many tokens, please wait before trying again.",
        "Your request was throttled.",
    ),
    ("rate_limit", "Anthropic, OpenAI, LiteLLM"): (
        "This request would exceed your account's rate limit. Please try again later.",
        "litellm.RateLimitError: AnthropicException - slow",
    ),
    ("loading", "llama.cpp, Ollama"): (
        "Loading model",
        "litellm.ServiceUnavailableError: OpenAIException - Loading model",
        "llm server loading model",
    ),
    ("loading", "Hugging Face, LM Studio"): (
        "Model bigcode/starcoder is currently loading",
        "The model is still being loaded",
    ),
    ("guardrail", "several proxies"): (
        "Request blocked by the company's content filter",
        "Input guardrail pii has blocked this request",
    ),
    ("overloaded", "Anthropic, Gemini, OpenAI"): ("Overloaded", "The model is overloaded. Please try again later."),
    ("overloaded", "Mistral"): ("Service tier capacity exceeded for this model.",),
    ("overloaded", "LiteLLM"): ("No deployments available for selected model, Try again in 5 seconds.",),
    ("too_large", "OpenAI, Groq"): (
        "Request too large for model `llama` in organization `o` service tier `s` on tokens per minute (TPM): Limit 12",
    ),
    ("too_large", "Anthropic"): (
        "Request exceeds the maximum size",
        "Request exceeds the maximum allowed number of bytes.",
    ),
    ("too_large", "nginx and other proxies"): ("<title>413 Request Entity Too Large</title>", "request body too large"),
    ("too_long", "Anthropic"): (
        "prompt is too long: 213462 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
    ),
    ("too_long", "Amazon Bedrock"): ("Input is too long for requested model.",),
    ("too_long", "OpenAI, Azure, DeepSeek, OpenRouter, vLLM"): (
        "This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 in messages)",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
        "Input length (265330) exceeds model's maximum context length (262144).",
        "Requested token count exceeds the model's maximum context length of 131072 tokens.",
    ),
    ("too_long", "OpenAI"): (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576.",
    ),
    ("too_long", "OpenAI and servers of its wire"): (
        "context_length_exceeded",
        "context length exceeded",
        "litellm.BadRequestError: litellm.ContextWindowExceededError: OpenAIException - too much",
    ),
    ("too_long", "vLLM"): (
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
    ),
    ("too_long", "SGLang, Together"): (
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    ),
    ("too_long", "SGLang, Fireworks"): (
        "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    ),
    ("too_long", "SageMaker"): ("Input prompt (9762 tokens) is too long and exceeds limit of 8192",),
    ("too_long", "Text Generation Inference"): (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 and 100",
        "Input validation error: `inputs` must have less than 3072 tokens. Given: 4000",
    ),
    ("too_long", "llama.cpp"): (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "request (138229 tokens) exceeds the available context size (133376 tokens), try increasing it",
    ),
    ("too_long", "llama-cpp-python"): ("Requested tokens (2285) exceed context window of 2048",),
    ("too_long", "Ollama"): (
        "prompt too long; exceeded max context length by 100918 tokens",
        "the input length exceeds the context length",
    ),
    ("too_long", "LM Studio"): (
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "However, the model is loaded with context length of only 4096 tokens, which is not enough.",
    ),
    ("too_long", "Gemini, Vertex"): (
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        "Unable to submit request because the input token count is 39206 but model only supports up to 32768.",
    ),
    ("too_long", "Mistral"): (
        "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
    ),
    ("too_long", "Groq"): ("Please reduce the length of the messages or completion.",),
    ("too_long", "xAI"): ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.",),
    ("too_long", "GitHub Copilot"): ("prompt token count of 202345 exceeds the limit of 128000",),
    ("too_long", "Kimi"): ("Your request exceeded model token limit: 262144 (requested: 310000)",),
    ("too_long", "MiniMax"): ("invalid params, context window exceeds limit (2013)",),
    ("too_long", "Zhipu"): ("Prompt exceeds max length", "tokens in request more than max tokens allowed"),
    ("too_long", "DashScope"): ("Range of input length should be [1, 30720]",),
    ("too_long", "Cohere"): (
        "too many tokens: total number of tokens in the prompt and prediction cannot exceed 4081",
    ),
    ("too_long", "Cloudflare Workers AI"): ("The estimated number of tokens exceeded this model context window limit",),
    ("billing", "Anthropic"): (
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
        "You have reached your specified API usage limits. You will regain access on 2026-01-01 at 00:00 UTC.",
    ),
    ("billing", "OpenAI"): (
        "Billing hard limit has been reached",
        "Your account is not active, please check your billing details on our website.",
    ),
    ("billing", "LiteLLM"): (
        "Budget has been exceeded! Current cost: 26.075, Max budget: 0.25",
        "ExceededBudget: End User=x over budget. Spend=0.0008, Budget=0.0001",
        "LiteLLM User: engineer-1, exceeded budget for model=m",
    ),
    ("billing", "OpenRouter"): (
        "This request requires more credits, or fewer max_tokens. You requested up to 16384 tokens.",
        "Insufficient credits",
    ),
    ("billing", "DeepSeek, Kimi"): ("Insufficient Balance",),
    ("billing", "xAI"): ("Your newly created team doesn't have any credits or licenses yet.",),
    ("billing", "Portkey"): ("Budget exhausted",),
    ("billing", "DashScope"): ("Access denied, please make sure your account is in good standing.",),
    ("guardrail", "Anthropic"): ("Output blocked by content filtering policy",),
    ("guardrail", "OpenAI"): (
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        "Your request was rejected as a result of our safety system.",
    ),
    ("guardrail", "Azure"): (
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    ),
    ("guardrail", "Amazon Bedrock"): (
        "Guardrail intervened",
        "The generated text has been blocked by our content filters.",
    ),
    ("guardrail", "Gemini"): ("The prompt was blocked due to prohibited contents", "Blocked due to safety"),
    ("guardrail", "LiteLLM"): (
        "{'error': 'Violated guardrail policy', 'bedrock_guardrail_response': 'Sorry, no.'}",
        "Violated OpenAI moderation policy",
        "Content blocked: keyword 'kumquat' detected",
        "litellm.ContentPolicyViolationError: AzureException - no",
    ),
    ("guardrail", "OpenRouter"): ('m requires moderation on p. Your input was flagged for "violence".',),
    ("guardrail", "Portkey"): ("The guardrail checks defined in the config failed.",),
    ("guardrail", "Cloudflare AI Gateway"): ("Prompt blocked due to security configurations",),
    ("guardrail", "Kong"): ("request failed content safety check",),
    ("guardrail", "xAI"): ("Content violates usage guidelines.",),
    ("guardrail", "DashScope, DeepSeek"): ("Input data may contain inappropriate content.", "Content Exists Risk"),
    ("model", "Anthropic"): ("model: claude-9",),
    ("model", "OpenAI, vLLM, Groq, xAI"): ("The model `gpt-9` does not exist or you do not have access to it.",),
    ("model", "Ollama, Fireworks, Cohere"): (
        'model "x" not found, try pulling it first',
        "Model not found, inaccessible",
    ),
    ("model", "Kimi"): ("Not found the model kimi-9 or Permission denied",),
    ("model", "several proxies"): ("no such model", "unknown model x"),
    ("model", "Gemini"): ("models/gemini-9 is not found for API version v1beta",),
    ("model", "DeepSeek"): ("Model Not Exist",),
    ("model", "LiteLLM"): (
        "/chat/completions: Invalid model name passed in model=x. Call `/v1/models` to view available models.",
        "There are no healthy deployments for this model. Passed model=x",
    ),
    ("model", "OpenRouter"): ("deepseek/deepseek-coder is not a valid model ID", "No endpoints found for x/y."),
    ("model", "Mistral"): ("Invalid model: mistral-9",),
    ("model", "Azure"): ("The API deployment for this resource does not exist.",),
    ("model", "Amazon Bedrock"): (
        "The provided model identifier is invalid.",
        "Invocation of model ID m with on-demand throughput isn\u2019t supported.",
    ),
    ("model", "Groq"): ("`llama2` has been decommissioned and is no longer supported.",),
    ("model", "Together"): ("Unable to access non-serverless model x.",),
    ("model", "LM Studio"): ("No models loaded. Please load a model in the developer page.",),
    ("parameter", "Anthropic"): (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.",
        "tools.0.custom.input_schema: JSON schema is invalid",
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for m",
    ),
    ("parameter", "Anthropic, Mistral, FastAPI"): ("cache: Extra inputs are not permitted", "Field required"),
    ("parameter", "OpenAI, Azure"): (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "Unsupported value: 'temperature' does not support 0.5 with this model.",
        "Unrecognized request argument supplied: tools",
        "Invalid schema for function 'x': no",
    ),
    ("parameter", "OpenAI"): (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
    ),
    ("parameter", "DeepSeek"): (
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    ),
    ("parameter", "Amazon Bedrock"): ("The maximum tokens you requested exceeds the model limit of 4096.",),
    ("parameter", "Groq"): ("`max_tokens` must be less than or equal to `16384`",),
    ("parameter", "vLLM"): ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',),
    ("parameter", "llama.cpp"): ("tools param requires --jinja flag",),
    ("parameter", "Ollama"): ("registry.ollama.ai/library/x does not support tools",),
    ("parameter", "OpenRouter"): ("No endpoints found that support tool use.",),
    ("parameter", "Gemini"): ('Invalid JSON payload received. Unknown name "x": Cannot find field.',),
    ("credentials", "LiteLLM"): ("No connected db.",),
    ("credentials", "Gemini"): ("API key not valid. Please pass a valid API key.",),
    ("credentials", "OpenAI and servers of its wire"): ("Incorrect API key provided: sk-x.",),
}
# The status at which a server says so; 400 for the others.
AT: dict[tuple[str, str], int] = {
    ("too_large", "OpenAI, Groq"): 429,
    ("model", "Azure"): 404,
    ("parameter", "OpenRouter"): 404,
    ("too_long", "SGLang, Fireworks"): 422,
}
