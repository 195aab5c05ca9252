"""What stands in the items, the counts and the errors of a Responses stream (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.llm.openai_errors import fault_of
from agent_host.llm.stream import StreamFault
from agent_host.llm.surrogates import repaired
from state.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

# Codes of errors that may have gone by the next try.
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})
# Far above what any model takes; the sums of a whole session stay countable in any JSON.
_MAX_COUNT: Final = 10**9
_MAX_NAME_CHARS: Final = 256


def text_in(value: object) -> str:
    """A text that may be missing, or of another type: "" then."""
    return value if isinstance(value, str) else ""


def name_in(value: object) -> str:
    """A name that only observers read: what is no string, or too long, is none."""
    return repaired(value)[0] if isinstance(value, str) and len(value) <= _MAX_NAME_CHARS else ""


def size_of(text: str) -> int:
    """Bytes of a text in UTF-8, halves of characters included."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def said_in(content: Any) -> tuple[str, str]:
    """The text in the content of a message that is done, and the part of it that is a refusal."""
    if isinstance(content, str):  # as some servers have it
        return content, ""
    said: list[str] = []
    refused: list[str] = []
    for part in content or ():
        is_refusal = part.get("type") == "refusal"
        text = part.get("refusal" if is_refusal else "text")
        if isinstance(text, str):
            said.append(text)
            refused += [text] if is_refusal else []
    return "".join(said), "".join(refused)


def are_said(content: Any) -> bool:
    """True if each part of the content of a message says something."""
    return isinstance(content, str) or all(part.get("text") or part.get("refusal") for part in content or ())


def thoughts_in(reasoning: Mapping[str, Any]) -> str:
    """The thinking in a reasoning item that is done, for a person to read."""
    parts = [*(reasoning.get("summary") or ()), *(reasoning.get("content") or ())]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return repaired("\n\n".join(text for text in texts if isinstance(text, str)))[0]


def is_readable(reasoning: Mapping[str, Any]) -> bool:
    """True if the model can read its reasoning in this item. One that only names what a server may have stored is
    refused, for nothing is stored."""
    return bool(reasoning.get("encrypted_content") or reasoning.get("content"))


def failure_of(error: Any) -> StreamFault:
    """The fault of a response that failed, or of an error event: `code` and `message`, which may be missing."""
    fault = fault_of(error or "the gateway does not say why")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code and not code.isdigit():
        return StreamFault(str(fault), retryable=code in _PASSING, body=fault.body)
    return fault


def usage_of(usage: Any) -> TokenUsage:
    """The counts; `input_tokens` is all input, `output_tokens` has the reasoning in it."""
    counts: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
    details = counts.get("input_tokens_details")
    parts: Mapping[str, Any] = details if isinstance(details, dict) else {}
    given = _count(counts, "input_tokens")
    read = min(_count(parts, "cached_tokens"), given)
    written = min(_count(parts, "cache_write_tokens"), given - read)
    return TokenUsage(given, _count(counts, "output_tokens"), read, written)


def _count(counts: Mapping[str, Any], name: str) -> int:
    count = counts.get(name)
    return min(count, _MAX_COUNT) if type(count) is int and count >= 0 else 0
