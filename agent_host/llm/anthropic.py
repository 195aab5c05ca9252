"""The Anthropic Messages dialect: POST {url}/v1/messages, answered by server-sent events (AH 6.2, 6.3)."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from agent_host.lenient_json import to_keep
from agent_host.llm.tool_names import SentNames, sendable_name
from agent_host.thread.blocks import Block
from agent_host.thread.messages import NOTHING_SAID
from agent_host.thread.wire import Mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.anthropic_answer import AnthropicAssembler
    from agent_host.llm.stream import CacheTtl
    from agent_host.thread.messages import Message, ToolCall

NAME = "anthropic"
_API_VERSION = "2023-06-01"
# How a message ends: the object of its last block, the array, the message.
_ENDS = b"}]}"
_CACHE_MARK: dict[CacheTtl, dict[str, str]] = {
    "5m": {"type": "ephemeral"},
    "1h": {"type": "ephemeral", "ttl": "1h"},
}


class AnthropicRenderer:
    """Messages as the Messages API takes them: results of one turn's calls stand together in one user message. Blocks
    go out that `model` made."""

    def __init__(self, model: str = "", cache_ttl: CacheTtl = "5m") -> None:
        self._model = model
        self.cache_mark = Mark(b',"cache_control":' + orjson.dumps(_CACHE_MARK[cache_ttl]), len(_ENDS))
        """See `Renderer`: a field of the last block."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """One user message, a text block for each of `messages`."""
        return to_keep(orjson.dumps({"role": "user", "content": [_text(message) for message in messages]}))

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """The assistant's blocks and, where it called tools, the user message with their results."""
        turn = orjson.dumps({"role": "assistant", "content": self._blocks(assistant)})
        if not results:
            return to_keep(turn)
        answers: list[dict[str, Any]] = []
        for result in results:
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id}
            if result.images:
                block["content"] = [*_said(result), *map(_image, result.images)]
            elif result.content:
                block["content"] = orjson.Fragment(result.content_json)
            if result.is_error:
                block["is_error"] = True
            answers.append(block)
        return turn + b"," + orjson.dumps({"role": "user", "content": answers})

    def _blocks(self, assistant: Message) -> list[Any]:
        blocks: list[Any] = []
        answered = False
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                blocks.append(orjson.Fragment(part.raw))
                answered = answered or not _is_thinking(part)
            elif not isinstance(part, str):
                blocks.append(_tool_use(part))
                answered = True
            elif part.strip():
                whole = part == assistant.content
                text = orjson.Fragment(assistant.content_json) if whole else part
                blocks.append({"type": "text", "text": text})
                answered = True
        # The API refuses an answer that is empty, or thinking and nothing else.
        return blocks if answered else [*blocks, {"type": "text", "text": NOTHING_SAID}]


def _said(result: Message) -> list[dict[str, Any]]:
    return [_text(result)] if result.content.strip() else []


def _image(image: Image) -> dict[str, Any]:
    data = orjson.Fragment(b'"%s"' % b64encode(image.data))
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def _is_thinking(block: Block) -> bool:
    kind = orjson.loads(block.raw)["type"]
    return kind in ("thinking", "redacted_thinking")


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call.call_id,
        "name": sendable_name(call.name),
        "input": orjson.Fragment(call.arguments_json),
    }


def _text(message: Message) -> dict[str, Any]:
    said = message.content.strip()
    return {"type": "text", "text": orjson.Fragment(message.content_json) if said else NOTHING_SAID}


class AnthropicDialect:
    """See `agent_host.llm.stream.Dialect`. `cache_ttl` is how long the provider is to keep what requests begin with,
    `names` are those that tools were offered by, where another of the session has offered some."""

    name: ClassVar[str] = NAME
    path: ClassVar[str] = "/v1/messages"
    tail: ClassVar[bytes] = b"]}"
    takes_images: ClassVar[bool] = True

    def __init__(self, cache_ttl: CacheTtl = "5m", names: SentNames | None = None) -> None:
        self._cache_ttl = cache_ttl
        self._names = names or SentNames()

    def kept_for(self, cache_ttl: CacheTtl) -> AnthropicDialect:
        """See `agent_host.llm.stream.Dialect`."""
        return AnthropicDialect(cache_ttl, self._names)

    def renderer(self, model: str) -> AnthropicRenderer:
        """See `agent_host.llm.stream.Dialect`."""
        return AnthropicRenderer(model, self._cache_ttl)

    def headers(self, token: str | None) -> Mapping[str, str]:
        """JSON out, events in; the token goes where the vendor's own clients put it, and where other gateways look."""
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": _API_VERSION,
        }
        if token:
            headers |= {"x-api-key": token, "authorization": f"Bearer {token}"}
        return headers

    def head(
        self,
        *,
        model: str,
        max_output_tokens: int,
        system: str,
        tools: Sequence[ToolSpec],
        session_id: str = "",
        is_marked: bool = True,
    ) -> bytes:
        """Model, limits, tools and system prompt, with a cache mark after it. This provider finds its cache by the
        request's beginning and takes no name for it."""
        del session_id
        mark = {"cache_control": _CACHE_MARK[self._cache_ttl]} if is_marked else {}
        request: dict[str, Any] = {"model": model, "max_tokens": max_output_tokens, "stream": True}
        if tools:
            request["tools"] = [
                {
                    "name": self._names.offer(tool.name),
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                }
                for tool in tools
            ]
        request["system"] = [{"type": "text", "text": system, **mark}]
        return orjson.dumps(request)[:-1] + b',"messages":['

    def assembler(self, max_call_arguments_bytes: int | None = None) -> AnthropicAssembler:
        """A fresh one."""
        from agent_host.llm.anthropic_answer import AnthropicAssembler  # with the first answer

        return AnthropicAssembler(max_call_arguments_bytes, self._names.real)

    def whole(self, body: str) -> Iterator[tuple[str, str]]:
        """See `Dialect.whole`."""
        from agent_host.llm.whole_answer import messages_events  # few gateways answer so

        return messages_events(body)
