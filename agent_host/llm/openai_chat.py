"""The Chat Completions dialect of OpenAI, which many servers speak: POST {url}/v1/chat/completions, answered by
server-sent events (AH 6.2, 6.3)."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from agent_host.lenient_json import to_keep
from agent_host.llm.raw_json import members
from agent_host.llm.tool_names import SentNames, sendable_name, sent_arguments
from agent_host.thread.blocks import ARGUMENTS_TEXT, Block
from agent_host.thread.messages import NOTHING_SAID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.openai_chat_answer import ChatAssembler
    from agent_host.llm.stream import CacheTtl
    from agent_host.thread.messages import Message, ToolCall

NAME: Final = "openai"
OF_MESSAGE: Final = "message"
OF_CALL: Final = "call"
OF_FUNCTION: Final = "function"
"""Members of a block, which is `{"message": {...}}` or `{"call": {...}, "function": {...}}`: the fields that go back
into the message, into the call, and into the function that it names."""

# Some servers refuse empty texts.
_NOTHING_SAID: Final = b'"%b"' % NOTHING_SAID.encode()
# Tool messages have no field for it.
_ERROR_MARK: Final = b"[error] "
# OpenAI refuses longer ones, and ids that came from another provider may be longer.
_MAX_ID_CHARS = 40


class ChatRenderer:
    """Messages as Chat Completions takes them: a tool message for each result, and behind them a user message with
    their pictures, which tool messages cannot hold. Blocks go out that `model` made."""

    cache_mark: ClassVar[None] = None
    """See `Renderer`. This wire has no marks: a provider keeps what it can."""

    def __init__(self, model: str = "") -> None:
        self._model = model

    def user(self, messages: Sequence[Message]) -> bytes:
        """One user message; several texts have an empty line between them."""
        if len(messages) == 1:
            return b'{"role":"user","content":%b}' % _content(messages[0])
        said = "\n\n".join(message.content for message in messages if message.content.strip())
        return b'{"role":"user","content":%b}' % (orjson.dumps(said) if said else _NOTHING_SAID)

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """The assistant's message and, where it called tools, a message for each result."""
        pictures = [result for result in results if result.images]
        messages = [self._assistant(assistant), *map(_result, results)]
        if pictures:
            messages.append(_pictures(pictures))
        return to_keep(b",".join(messages))

    def _assistant(self, assistant: Message) -> bytes:
        calls: list[ToolCall] = []
        of_calls: dict[int, dict[str, str]] = {}
        beside = b""
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                found = members(part.raw)
                beside += _members(found.get(OF_MESSAGE))
                of_calls[len(calls)] = {**of_calls.get(len(calls), {}), **found}
            elif not isinstance(part, str):
                calls.append(part)
        sent = b",".join(_call(call, of_calls.get(number, {})) for number, call in enumerate(calls, 1))
        content = b"null" if calls and not assistant.content.strip() else _content(assistant)
        listed = b',"tool_calls":[%b]' % sent if calls else b""
        return b'{"role":"assistant","content":%b%b%b}' % (content, listed, beside)


def _content(message: Message) -> bytes:
    return message.content_json if message.content.strip() else _NOTHING_SAID


def _call(call: ToolCall, blocks: Mapping[str, str]) -> bytes:
    """The call, with the fields that came with it, which are members of its `blocks`."""
    beside, of_function = (_members(blocks.get(name)) for name in (OF_CALL, OF_FUNCTION))
    name, arguments = orjson.dumps(sendable_name(call.name)), sent_arguments(call, blocks.get(ARGUMENTS_TEXT))
    function = b'{"name":%b,"arguments":%b%b}' % (name, arguments, of_function)
    return b'{"id":%b,"type":"function","function":%b%b}' % (_id(call.call_id), function, beside)


def _members(fields: str | None) -> bytes:
    """The members of the JSON object `fields`, as they stand there, behind others."""
    inner = "" if fields is None else fields.strip()[1:-1].strip()
    return b",%b" % inner.encode() if inner else b""


def _id(call_id: str | None) -> bytes:
    """The id, or the same other one for each time that it is too long."""
    known = call_id or ""
    if len(known) > _MAX_ID_CHARS:
        known = f"call_{sha256(known.encode()).hexdigest()[:32]}"
    return orjson.dumps(known)


def _result(result: Message) -> bytes:
    content = _content(result)
    if result.is_error:
        content = b'"%b%b' % (_ERROR_MARK, content[1:])
    return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (_id(result.tool_call_id), content)


def _pictures(results: Iterable[Message]) -> bytes:
    """A user message with the pictures of `results`, each result's behind a line that names its call."""
    parts: list[dict[str, Any]] = []
    for result in results:
        text = f"[Pictures of the result of {orjson.loads(_id(result.tool_call_id))}:]"
        parts += [{"type": "text", "text": text}, *map(_image, result.images)]
    return orjson.dumps({"role": "user", "content": parts})


def _image(image: Image) -> dict[str, Any]:
    url = orjson.Fragment(b'"data:%b;base64,%b"' % (image.media_type.encode(), b64encode(image.data)))
    return {"type": "image_url", "image_url": {"url": url}}


class ChatDialect:
    """See `agent_host.llm.stream.Dialect`. `max_tokens_field` is what the gateway calls the limit of an answer;
    `names_cache`: it takes `prompt_cache_key`."""

    name: ClassVar[str] = NAME
    path: ClassVar[str] = "/v1/chat/completions"
    tail: ClassVar[bytes] = b"]}"
    takes_images: ClassVar[bool] = True

    def __init__(self, *, max_tokens_field: str = "max_completion_tokens", names_cache: bool = True) -> None:
        self._max_tokens_field = max_tokens_field
        self._names_cache = names_cache
        self._names = SentNames()

    def kept_for(self, cache_ttl: CacheTtl) -> ChatDialect:
        """See `agent_host.llm.stream.Dialect`: this wire cannot say it."""
        del cache_ttl
        return self

    def renderer(self, model: str) -> ChatRenderer:
        """See `agent_host.llm.stream.Dialect`."""
        return ChatRenderer(model)

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
        """Model, limit, tools and the system message, which other messages follow."""
        del is_marked
        request: dict[str, Any] = {
            "model": model,
            self._max_tokens_field: max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if session_id and self._names_cache:
            request["prompt_cache_key"] = session_id
        if tools:
            request["tools"] = [self._function(tool) for tool in tools]
        first = orjson.dumps({"role": "system", "content": system}) + b"," if system.strip() else b""
        return orjson.dumps(request)[:-1] + b',"messages":[' + first

    def assembler(self, max_call_arguments_bytes: int | None = None) -> ChatAssembler:
        """A fresh one."""
        from agent_host.llm.openai_chat_answer import ChatAssembler  # with the first answer

        return ChatAssembler(max_call_arguments_bytes, self._names.real)

    def whole(self, body: str) -> Iterator[tuple[str, str]]:
        """See `Dialect.whole`."""
        from agent_host.llm.whole_answer import chat_events  # few gateways answer so

        return chat_events(body)

    def _function(self, tool: ToolSpec) -> dict[str, Any]:
        name = self._names.offer(tool.name)
        function = {"name": name, "description": tool.description, "parameters": tool.input_schema}
        return {"type": "function", "function": function}
