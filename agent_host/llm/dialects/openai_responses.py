"""The Responses dialect of OpenAI: POST {url}/v1/responses, answered by server-sent events (AH 6.2, 6.3). Nothing is
stored by the provider: reasoning comes encrypted, and goes back with the conversation."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from agent_host.llm import MAX_DETAIL, Meaning, ModelTurn, StreamProtocolError
from agent_host.llm.dialects import (
    UNNAMED,
    Assembler,
    Dialect,
    content_of,
    data_url,
    encode_arguments,
    members_beside,
    mend_ids,
    sendable_name,
)
from agent_host.llm.dialects.openai_responses_items import (
    NAME,
    OF_CALL,
    ItemPosition,
    ResponsesOutput,
    failure_of,
    text_in,
    usage_of,
)
from agent_host.llm.raw_json import elements, join_members, member, members, repair
from agent_host.thread.messages import ARGUMENTS_TEXT, NOTHING_SAID, Block
from config.json_text import copy_to_keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.dialects import Event
    from agent_host.thread.messages import Message, ToolCall


class ResponsesRenderer:
    """Messages as items of Responses: texts, calls with what came beside them, and outputs by the id of their call.
    Blocks go out that `model` made."""

    cache_mark: ClassVar[None] = None
    """See `Renderer`. This wire has no marks: a provider keeps what it can."""

    def __init__(self, model: str = "") -> None:
        self._model = model

    def user(self, messages: Sequence[Message]) -> bytes:
        """One message of the user, a part for each of `messages`."""
        parts = b",".join(b'{"type":"input_text","text":%b}' % content_of(message) for message in messages)
        return copy_to_keep(b'{"role":"user","content":[%b]}' % parts)

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """The items of the assistant and, where it called tools, the output of each call."""
        return copy_to_keep(b",".join([*self._items(assistant), *map(_output, results)]))

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
                    answered = answered if orjson.loads(kind) == "reasoning" else len(items)
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
        return items[:answered] or [*items, b'{"role":"assistant","content":%b}' % orjson.dumps(NOTHING_SAID)]


def _call(call: ToolCall, blocks: Mapping[str, str] = MappingProxyType({})) -> bytes:
    name, arguments = orjson.dumps(sendable_name(call.name)), encode_arguments(call, blocks.get(ARGUMENTS_TEXT))
    call_id, beside = orjson.dumps(call.call_id), members_beside(blocks.get(OF_CALL))
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % (call_id, name, arguments, beside)


def _output(result: Message) -> bytes:
    content = content_of(result)
    if result.images:
        text = b'{"type":"input_text","text":%b}' % content
        content = b"[%b]" % b",".join([text, *map(_image, result.images)])
    return b'{"type":"function_call_output","call_id":%b,"output":%b}' % (orjson.dumps(result.tool_call_id), content)


def _image(image: Image) -> bytes:
    return b'{"type":"input_image","detail":"auto","image_url":%b}' % data_url(image)


# Answers of the Responses dialect: a turn out of the events of one stream (AH 6.3).

_MEANINGS: Mapping[str, Meaning] = {
    "completed": "complete",
    # Of `incomplete_details.reason`; without one it is the status.
    "max_output_tokens": "cut",
    "max_messages": "cut",
    "content_filter": "blocked",
    "steered": "continue",
    "incomplete": "unknown",
    "cancelled": "unknown",
    # A message of a response that is complete may be a refusal.
    "refusal": "blocked",
}
_REFUSAL: Final = "refusal"
# What a response may have come to, the worse behind the better: some proxies end it with the event of another.
_STATUSES: Final = ("completed", "incomplete", "cancelled", "failed")


class ResponsesAssembler(Assembler):
    """See Assembler. A turn out of the items of one response, as each is announced, streamed and done, and its end."""

    meanings: ClassVar[Mapping[str, Meaning]] = _MEANINGS

    def __init__(
        self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = lambda name: name
    ) -> None:
        super().__init__(max_call_arguments_bytes, real_name)
        self._output = ResponsesOutput(self._reader, real_name)
        self._data = ""
        self._usage: Any = None
        self._seen = self._started = self._has_items = False

    def feed(self, event: str, data: str) -> str | None:
        """Take one event; unknown ones are skipped, as the API asks of its clients, and so is all behind the end. What
        has no name of its own says in its data what it is."""
        self.thinking = ""
        is_named = event in self._HANDLERS
        if self._stop_reason is not None or not (is_named or (event == UNNAMED and data.lstrip()[:1] == "{")):
            return None
        try:
            self._data, self._intact = data, True
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError as error:
                value = self._mend(data, error)
            if not isinstance(value, dict):
                raise TypeError("an event is no object")
            event = event if is_named else _type_of(value)
            handler = self._HANDLERS.get(event)
            if handler is None:
                return None
            self._seen = True
            return handler(self, value)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # Its frames hold what was read of the event, and a retry holds the error while it reads the next answer.
            raise StreamProtocolError(f"the {event} event is malformed") from error.with_traceback(None)

    def finish(self) -> ModelTurn:
        """The turn, when the stream said how the response ended."""
        if not self._seen:
            raise StreamProtocolError("there was no event of Responses in it: check --dialect")
        if self._stop_reason is None:
            raise StreamProtocolError("the stream ended before the response did")
        refusal = self._output.refusal
        stop_reason = _REFUSAL if refusal else self._stop_reason
        meaning = self.meaning_of(stop_reason)
        text, calls, blocks, order = self._output.parts()
        said = repair(" ".join(refusal.split())[:MAX_DETAIL])[0] or stop_reason
        return ModelTurn(
            text,
            mend_ids(calls),
            stop_reason,
            meaning,
            usage_of(self._usage),
            self._output.replaced,
            blocks,
            order,
            self._output.dropped,
            self._response_id,
            self._response_model,
            said if meaning in ("cut", "blocked") else "",
        )

    def _on_created(self, data: dict[str, Any]) -> None:
        if self._started:
            raise StreamProtocolError("a second response begins in the stream of the first")
        self._started = True
        self.content += 1
        self._note_names(data.get("response") or {})

    def _item_added(self, data: dict[str, Any]) -> None:
        self._has_items = True
        item = data.get("item")
        if item is not None:  # as some servers announce one
            self._output.announce(item, _index(data))
            self.content += 1

    def _item_done(self, data: dict[str, Any]) -> str:
        self._has_items = True
        self.content += 1
        text_of = partial(member, self._data, "item")
        text, self.thinking = self._output.close(data["item"], _index(data), text_of, intact=self._intact)
        return text

    def _text_delta(self, data: dict[str, Any], *, refused: bool = False) -> str:
        return self._output.say(_place(data), self._delta(data), halves=self._halves, refused=refused)

    def _thinking_delta(self, data: dict[str, Any]) -> None:
        self.thinking = self._output.think(_place(data), self._delta(data))

    def _summary_part(self, data: dict[str, Any]) -> None:
        """A further part of a summary is a paragraph of its own."""
        self.thinking = "\n\n" if self._output.has_thought(_place(data)) else ""

    def _arguments_delta(self, data: dict[str, Any]) -> None:
        self._output.argue(_place(data), self._delta(data))

    def _arguments_done(self, data: dict[str, Any]) -> None:
        """They count where the item has none when it is done."""
        arguments = data.get("arguments")
        if isinstance(arguments, str):
            self._output.argue(_place(data), arguments, whole=True)
        self.content += 1

    def _delta(self, data: dict[str, Any]) -> str:
        delta = data["delta"]
        if not isinstance(delta, str):
            raise ValueError("a delta is no text")
        self.content += len(delta)
        return delta

    def _end(self, data: dict[str, Any], *, status: str) -> str:
        response: dict[str, Any] = data.get("response") or {}
        given = response.get("status")
        status = max((one for one in (status, given) if one in _STATUSES), key=_STATUSES.index)
        if status == "failed":
            raise failure_of(response.get("error"))
        shown = "" if self._has_items else self._take_output(response.get("output") or ())
        shown += self._output.close_messages()
        details = response.get("incomplete_details")
        reason = details.get("reason") if status == "incomplete" and isinstance(details, dict) else None
        self._note_names(response)
        self._usage = response.get("usage")
        self.content += 1
        self._stop_reason = repair(text_in(reason))[0] or status
        return shown

    def _take_output(self, output: Any) -> str:
        """Take the items of a response that came without events of their own, as proxies send what they did not get as
        a stream; returns text to show."""
        shown: list[tuple[str, str]] = []
        texts = elements(members(members(self._data)["response"])["output"]) if output else ()
        for index, (item, text) in enumerate(zip(output, texts, strict=True)):
            shown.append(self._output.close(item, index, partial(str, text), intact=self._intact))
        self.thinking = "".join(thinking for _, thinking in shown)
        return "".join(text for text, _ in shown)

    def _error(self, data: dict[str, Any]) -> None:
        raise failure_of(data.get("error") or {name: value for name, value in data.items() if name != "type"})

    _HANDLERS: ClassVar[dict[str, Callable[[ResponsesAssembler, dict[str, Any]], str | None]]] = {
        "response.created": _on_created,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text_delta,
        "response.refusal.delta": partial(_text_delta, refused=True),
        "response.reasoning_summary_part.added": _summary_part,
        "response.reasoning_summary_text.delta": _thinking_delta,
        "response.reasoning_text.delta": _thinking_delta,
        "response.function_call_arguments.delta": _arguments_delta,
        "response.function_call_arguments.done": _arguments_done,
        "response.completed": partial(_end, status="completed"),
        "response.incomplete": partial(_end, status="incomplete"),
        "response.failed": partial(_end, status="failed"),
        "error": _error,
    }


def _type_of(data: dict[str, Any]) -> str:
    """The type of an event without a name; some proxies send errors without a type as well."""
    return text_in(data.get("type")) or ("error" if data.get("error") else "")


def _place(data: dict[str, Any]) -> ItemPosition:
    return ItemPosition(text_in(data.get("item_id")), _index(data))


def _index(data: dict[str, Any]) -> int | None:
    index = data.get("output_index")
    return index if type(index) is int else None


class ResponsesDialect(Dialect):
    """See Dialect."""

    name: ClassVar[str] = NAME
    assembler_type: ClassVar[type[Assembler]] = ResponsesAssembler
    path: ClassVar[str] = "/v1/responses"
    messages_field: ClassVar[str] = "input"

    def renderer(self, model: str) -> ResponsesRenderer:
        """See Dialect."""
        return ResponsesRenderer(model)

    def _settings(self, max_output_tokens: int) -> dict[str, Any]:
        include = ["reasoning.encrypted_content"]
        return {"max_output_tokens": max_output_tokens, "stream": True, "store": False, "include": include}

    def _definition(self, name: str, tool: ToolSpec) -> dict[str, Any]:
        # By default it is strict, and schemas with fields that may be left out are refused.
        described = {"name": name, "description": tool.description, "parameters": tool.input_schema}
        return {"type": "function", **described, "strict": False}

    def _answer_form(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}}}

    def whole(self, body: str) -> Iterator[Event]:
        """See Dialect. The last event of a stream has the whole response."""
        response = members(body)
        elements(response["output"])
        status = orjson.loads(response.get("status", '"completed"'))
        if status not in _STATUSES:
            raise ValueError(f"the response is still {status!r}")
        yield "response.completed", join_members({"response": body})
