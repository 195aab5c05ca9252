"""The Responses dialect of OpenAI: POST {url}/v1/responses, answered by server-sent events (AH 6.2, 6.3). Nothing is
stored by the provider: reasoning comes encrypted, and goes back with the conversation."""

from __future__ import annotations

from base64 import b64encode
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from agent_host.lenient_json import to_keep
from agent_host.llm.raw_json import members
from agent_host.llm.tool_names import SentNames, sendable_name, sent_arguments
from agent_host.thread.blocks import ARGUMENTS_TEXT, Block
from agent_host.thread.messages import NOTHING_SAID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.openai_responses_answer import ResponsesAssembler
    from agent_host.llm.stream import CacheTtl
    from agent_host.thread.messages import Message, ToolCall

NAME: Final = "responses"
OF_CALL: Final = "beside"
"""The member of a block that has the fields which came with a call, beside its id, name and arguments. All other blocks
are whole items, which have a `type`."""

_REASONING: Final = "reasoning"
# Empty texts are refused.
_NOTHING_SAID: Final = b'"%b"' % NOTHING_SAID.encode()
# An output has no field for it.
_ERROR_MARK: Final = b"[error] "


class ResponsesRenderer:
    """Messages as items of Responses: texts, calls with what came beside them, and outputs by the id of their call.
    Blocks go out that `model` made."""

    cache_mark: ClassVar[None] = None
    """See `Renderer`. This wire has no marks: a provider keeps what it can."""

    def __init__(self, model: str = "") -> None:
        self._model = model

    def user(self, messages: Sequence[Message]) -> bytes:
        """One message of the user, a part for each of `messages`."""
        parts = b",".join(b'{"type":"input_text","text":%b}' % _content(message) for message in messages)
        return to_keep(b'{"role":"user","content":[%b]}' % parts)

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """The items of the assistant and, where it called tools, the output of each call."""
        return to_keep(b",".join([*self._items(assistant), *map(_output, results)]))

    def _items(self, assistant: Message) -> list[bytes]:
        items: list[bytes] = []
        answered = 0  # items up to the last that is no reasoning
        last: ToolCall | None = None
        of_last: dict[str, str] = {}
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                found = members(part.raw)
                kind = found.get("type")
                if kind is not None:
                    items.append(part.raw.encode())
                    answered = answered if orjson.loads(kind) == _REASONING else len(items)
                    last = None
                elif last is not None:
                    of_last |= found
                    items[-1] = _call(last, of_last)
            elif not isinstance(part, str):
                items.append(_call(part))
                last, of_last, answered = part, {}, len(items)
            elif part.strip():
                items.append(b'{"role":"assistant","content":%b}' % orjson.dumps(part))
                last, answered = None, len(items)
        # Reasoning with nothing behind it is refused, and so is an answer without anything.
        return items[:answered] or [*items, b'{"role":"assistant","content":%b}' % _NOTHING_SAID]


def _content(message: Message) -> bytes:
    return message.content_json if message.content.strip() else _NOTHING_SAID


def _call(call: ToolCall, blocks: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The call, with what came with it, which are members of its `blocks`."""
    name, arguments = orjson.dumps(sendable_name(call.name)), sent_arguments(call, blocks.get(ARGUMENTS_TEXT))
    inner = blocks.get(OF_CALL, "").strip()[1:-1].strip()
    beside = b",%b" % inner.encode() if inner else b""
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % (
        orjson.dumps(call.call_id),
        name,
        arguments,
        beside,
    )


def _output(result: Message) -> bytes:
    content = _content(result)
    if result.is_error:
        content = b'"%b%b' % (_ERROR_MARK, content[1:])
    if result.images:
        text = b'{"type":"input_text","text":%b}' % content
        content = b"[%b]" % b",".join([text, *map(_image, result.images)])
    return b'{"type":"function_call_output","call_id":%b,"output":%b}' % (orjson.dumps(result.tool_call_id), content)


def _image(image: Image) -> bytes:
    url = b'"data:%b;base64,%b"' % (image.media_type.encode(), b64encode(image.data))
    return b'{"type":"input_image","detail":"auto","image_url":%b}' % url


class ResponsesDialect:
    """See `agent_host.llm.stream.Dialect`. `names_cache`: the gateway takes `prompt_cache_key`."""

    name: ClassVar[str] = NAME
    path: ClassVar[str] = "/v1/responses"
    tail: ClassVar[bytes] = b"]}"
    takes_images: ClassVar[bool] = True

    def __init__(self, *, names_cache: bool = True) -> None:
        self._names_cache = names_cache
        self._names = SentNames()

    def kept_for(self, cache_ttl: CacheTtl) -> ResponsesDialect:
        """See `agent_host.llm.stream.Dialect`: this wire cannot say it."""
        del cache_ttl
        return self

    def renderer(self, model: str) -> ResponsesRenderer:
        """See `agent_host.llm.stream.Dialect`."""
        return ResponsesRenderer(model)

    def headers(self, token: str | None) -> Mapping[str, str]:
        """JSON out, events in; the token goes where the vendor's own clients put it, and where other gateways look."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
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
        """Model, limit, tools and the system message. It stands in `input`: `instructions` may not be cached."""
        del is_marked
        request: dict[str, Any] = {
            "model": model,
            "max_output_tokens": max_output_tokens,
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if session_id and self._names_cache:
            request["prompt_cache_key"] = session_id
        if tools:
            request["tools"] = [self._function(tool) for tool in tools]
        first = orjson.dumps({"role": "system", "content": system}) + b"," if system.strip() else b""
        return orjson.dumps(request)[:-1] + b',"input":[' + first

    def assembler(self, max_call_arguments_bytes: int | None = None) -> ResponsesAssembler:
        """A fresh one."""
        from agent_host.llm.openai_responses_answer import ResponsesAssembler  # with the first answer

        return ResponsesAssembler(max_call_arguments_bytes, self._names.real)

    def whole(self, body: str) -> Iterator[tuple[str, str]]:
        """See `Dialect.whole`."""
        from agent_host.llm.whole_answer import response_events  # few gateways answer so

        return response_events(body)

    def _function(self, tool: ToolSpec) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self._names.offer(tool.name),
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": False,  # the default would refuse schemas with fields that may be left out
        }
