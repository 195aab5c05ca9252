"""The Chat Completions dialect of OpenAI, which many servers implement: POST {url}/v1/chat/completions, answered by
server-sent events (AH 6.2, 6.3)."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from agent_host.llm import Meaning, ModelTurn, StreamProtocolError
from agent_host.llm.dialects import (
    Assembler,
    Dialect,
    MessageRenderer,
    TurnParts,
    content_of,
    count_in,
    data_url,
    encode_arguments,
    extra_members,
    one_line,
    refuse_open,
    required_text,
    sendable_name,
    size_of,
)
from agent_host.llm.errors import fault_of
from agent_host.llm.raw_json import OpaqueFields, elements, join_members, members, repair, split_open_end
from agent_host.thread.messages import ARGUMENTS_TEXT, NO_TEXT, Block, ToolCall
from config.json_text import copy_to_keep
from state.checkpoint import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.contracts import ToolSpec
    from agent_host.llm.dialects import Event
    from agent_host.thread.messages import Message

    _Path = tuple[str | int, ...]

NAME: Final = "openai"
OF_MESSAGE: Final = "message"
OF_CALL: Final = "call"
OF_FUNCTION: Final = "function"
"""Members of a block, which is `{"message": {...}}` or `{"call": {...}, "function": {...}}`: the fields that are sent
back in the message, in the call, and in the call's function."""

# OpenAI refuses longer ids, and ids from another provider may be longer.
_MAX_ID_CHARS = 40
_OF_CALL = frozenset({"index", "id", "type", "function"})
_OF_FUNCTION = frozenset({"name", "arguments"})


class ChatRenderer(MessageRenderer):
    """Messages in the form of Chat Completions: a tool message for each result, then a user message with their
    pictures, which tool messages cannot contain."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """Encode one user message; several texts are separated by an empty line."""
        if len(messages) == 1:
            return b'{"role":"user","content":%b}' % content_of(messages[0])
        text = "\n\n".join(message.content for message in messages if message.content.strip())
        return b'{"role":"user","content":%b}' % orjson.dumps(text or NO_TEXT)

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """Encode the assistant's message and, if it called tools, a message for each result."""
        pictures = [result for result in results if result.images]
        messages = [self._assistant(assistant), *map(_result, results)]
        if pictures:
            messages.append(_pictures(pictures))
        return copy_to_keep(b",".join(messages))

    def _assistant(self, assistant: Message) -> bytes:
        calls: list[ToolCall] = []
        of_calls: dict[int, dict[str, str]] = {}
        extra = b""
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                found = members(part.raw)
                extra += extra_members(found.get(OF_MESSAGE))
                of_calls[len(calls)] = {**of_calls.get(len(calls), {}), **found}
            elif not isinstance(part, str):
                calls.append(part)
        sent = b",".join(_call(call, of_calls.get(number, {})) for number, call in enumerate(calls, 1))
        content = b"null" if calls and not assistant.content.strip() else content_of(assistant)
        listed = b',"tool_calls":[%b]' % sent if calls else b""
        return b'{"role":"assistant","content":%b%b%b}' % (content, listed, extra)


def _call(call: ToolCall, blocks: Mapping[str, str]) -> bytes:
    """Encode the call with the extra fields that came with it, which are members of its `blocks`."""
    of_call, of_function = (extra_members(blocks.get(name)) for name in (OF_CALL, OF_FUNCTION))
    name, arguments = orjson.dumps(sendable_name(call.name)), encode_arguments(call, blocks.get(ARGUMENTS_TEXT))
    function = b'{"name":%b,"arguments":%b%b}' % (name, arguments, of_function)
    return b'{"id":%b,"type":"function","function":%b%b}' % (_id(call.call_id), function, of_call)


def _id(call_id: str | None) -> bytes:
    """Encode the id; a long one is replaced by a shorter one, always the same."""
    known = call_id or ""
    if len(known) > _MAX_ID_CHARS:
        known = f"call_{sha256(known.encode()).hexdigest()[:32]}"
    return orjson.dumps(known)


def _result(result: Message) -> bytes:
    return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (_id(result.tool_call_id), content_of(result))


def _pictures(results: Iterable[Message]) -> bytes:
    """Encode a user message with the pictures of `results`, each result's after a line with the id of its call."""
    parts: list[dict[str, Any]] = []
    for result in results:
        text = f"[Pictures of the result of {orjson.loads(_id(result.tool_call_id))}:]"
        urls = (orjson.Fragment(data_url(image)) for image in result.images)
        parts += [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    return orjson.dumps({"role": "user", "content": parts})


# Answers of the Chat Completions dialect: from the chunks of one stream to a turn (AH 6.3).

# All finish reasons that are known of any server; OpenAI's own come first in each group.
_MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", ""), "complete"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "empty"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "cut"),
    **dict.fromkeys(("content_filter", "refusal", "safety", "sensitive", "recitation", "guardrail"), "blocked"),
}
# The server gave up: the answer is incomplete, and a retry may succeed.
_FAILED: Final = frozenset({"error", "abort", "network_error", "insufficient_system_resource", "overloaded"})
_EVENTS: Final = ("message", "error")
_REFUSAL: Final = "refusal"
_KNOWN: Final = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
# The first of these fields that a delta has is the text of the model's thinking.
_THINKING: Final = ("reasoning_content", "reasoning")
# Fields of servers for tokens that were read from a cache and written to it.
_READ: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")


class ChatAssembler(Assembler):
    """See Assembler. Builds a turn from chunks with deltas of the first choice."""

    meanings: ClassVar[Mapping[str, Meaning]] = _MEANINGS

    def __init__(self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = str) -> None:
        super().__init__(max_call_arguments_bytes, real_name)
        self._calls: list[_Call] = []
        self._calls_by_index: dict[int, _Call] = {}
        self._fields = OpaqueFields()
        self._texts: list[str] = []
        self._open_text = self._open_thought = ""  # high surrogates that a next delta may complete
        self._refusal: list[str] = []
        self._usage: dict[str, Any] = {}

    def _take(self, event: str, data: str) -> str | None:
        """Skip everything after `[DONE]`, events without data, and events of other names whose data is not an
        object."""
        if self.is_over or not data or data.isspace() or (event not in _EVENTS and not data.startswith("{")):
            return None
        if data.startswith("[DONE]"):
            self.is_over = True
            return self._close_text() if self._halves else None
        return self._chunk(event, self._load(data))

    def _name_event(self) -> str:
        return "a chunk of the answer"

    def finish(self) -> ModelTurn:
        """Return the turn if a chunk had a finish reason. An empty one counts only with `[DONE]`, because servers that
        send it do so in every chunk."""
        if not self._started:
            raise StreamProtocolError("there was no chunk of Chat Completions in it: check --dialect")
        if self._stop_reason is None or (not self._stop_reason and not self.is_over):
            raise StreamProtocolError("the stream ended before the answer did")
        if self._stop_reason in _FAILED:
            raise StreamProtocolError(f"the gateway ended it with finish_reason {self._stop_reason!r}")
        self._close_text()
        stop_reason = _REFUSAL if self._refusal else self._stop_reason
        meaning = self.meaning_of(stop_reason)
        parts = self._parts(is_cut=meaning == "cut")
        detail = (one_line("".join(self._refusal)) or stop_reason) if meaning in ("cut", "blocked") else ""
        return self._turn(parts, stop_reason, _token_usage(self._usage), detail)

    def _parts(self, *, is_cut: bool) -> TurnParts:
        """Return the text, the calls, and the fields of the message and of each call that only the provider reads."""
        parts, text = TurnParts(NAME), "".join(self._texts)
        by_index = [call for _, call in sorted(self._calls_by_index.items())]  # if each has its own index
        calls = by_index if len(by_index) == len(self._calls) else self._calls
        calls = [call for call in calls if call.name or call.call_id]  # others are arguments of one that never started
        fields = self._to_json(self._fields)
        if fields is not None and (text or calls or not is_cut):  # thinking that was cut is not sent back
            parts.add_block(join_members({OF_MESSAGE: fields}))
        parts.add_text(text)
        for call in calls:
            arguments = "".join(call.arguments)
            is_closed = not is_cut or call is not self._calls[-1] or bool(arguments.strip())
            parts.add_call(self._reader.call(call.call_id, call.name, arguments, is_closed=is_closed), arguments)
            joined = {name: self._to_json(fields) for name, fields in sorted(call.extra_fields.items())}
            if kept := {name: fields for name, fields in joined.items() if fields is not None}:
                parts.add_block(join_members(kept))
        return parts

    def _to_json(self, fields: OpaqueFields) -> str | None:
        text = fields.to_json()
        self._replaced += fields.replaced
        self._dropped += fields.dropped
        return text

    def _chunk(self, event: str, chunk: dict[str, Any]) -> str | None:
        self._started = self._started or "choices" in chunk
        error = chunk.get("error") or (chunk if event == "error" else None)
        if error:
            raise fault_of(error)
        self._note_names(chunk)
        self._note_usage(chunk.get("usage"))
        shown = ""
        for place, choice in enumerate(chunk.get("choices") or ()):
            if choice.get("index") in (0, None):
                shown += self._choice(choice, place)
        return shown or None

    def _choice(self, choice: dict[str, Any], place: int) -> str:
        if choice.get("error"):
            raise fault_of(choice["error"])
        delta: dict[str, Any] = choice.get("delta") or {}
        shown = self._add_text(self._text_of(delta.get("content"))) if delta.get("content") else ""
        if delta.get("refusal"):
            self._refusal.append(self._text_of(delta["refusal"]))
            shown += self._add_text(self._refusal[-1])
        self._add_calls(delta, place)
        if not delta.keys() <= _KNOWN:
            self._add_fields(delta, place)
        reason = choice.get("finish_reason")
        if reason is not None:
            shown += self._end(reason)
        self._note_usage(choice.get("usage"))
        return shown

    def _text_of(self, content: Any) -> str:
        """Return the text of a delta. Some servers send it in parts; parts of other types are dropped and counted."""
        if isinstance(content, str):
            return content
        texts = [part.get("text") if part.get("type") == "text" else None for part in content]
        self._dropped += texts.count(None)
        return "".join(filter(None, texts))

    def _add_text(self, text: str) -> str:
        self.content += len(text)
        if self._halves:
            text, self._open_text = split_open_end(self._open_text + text)
            text = self._repair(text)
        self._texts.append(text)
        return text

    def _add_calls(self, delta: dict[str, Any], place: int) -> None:
        path = ("choices", place, "delta")
        for number, entry in enumerate(delta.get("tool_calls") or ()):
            way = (*path, "tool_calls", number)
            self.content += self._add_call(entry, way, (*way, "function"))
        function = delta.get("function_call")  # the predecessor of `tool_calls`
        if function:
            self.content += self._add_call({"index": -1, "function": function}, path, (*path, "function_call"))

    def _add_call(self, delta: dict[str, Any], path: _Path, function_path: _Path) -> int:
        """Add one entry of a delta's `tool_calls`. Return the amount of its content, 0 for none."""
        function: dict[str, Any] = delta.get("function") or {}
        call_id, name = (
            self._repair(value) if isinstance(value, str) else "" for value in (delta.get("id"), function.get("name"))
        )
        arguments = function.get("arguments")
        of_call, of_function = delta.keys() - _OF_CALL, function.keys() - _OF_FUNCTION
        if not (call_id or name or arguments or of_call or of_function):
            return 0
        index = delta.get("index")
        before = len(self._calls)
        call = self._call_for(index if type(index) is int else None, call_id, name)
        brought = len(self._calls) - before
        call.call_id, call.name = call.call_id or call_id, call.name or name
        if arguments:
            # Arguments are pieces of JSON text, or from some servers an object in one piece. Its JSON text is taken, so
            # that all arguments are read in one way.
            text = arguments if isinstance(arguments, str) else self._raw.text(*function_path, "arguments")
            call.arguments.append(text)
            call.size += size_of(text)
            self._reader.check_size(call.size)
            brought += len(text)
        for kept_as, part, names, way in (
            (OF_CALL, delta, of_call, path),
            (OF_FUNCTION, function, of_function, function_path),
        ):
            for extra in sorted(names):
                fields = call.extra_fields.setdefault(kept_as, OpaqueFields())
                brought += fields.add(extra, part[extra], self._raw.text(*way, extra))
        return brought

    def _call_for(self, index: int | None, call_id: str, name: str) -> _Call:
        """Return the call that continues, or a new one if none has this index or another one starts: some servers send
        index 0 for each call, others no index or no id."""
        last = self._calls_by_index.get(index) if index is not None else self._calls[-1] if self._calls else None
        if last is not None:
            other_id = call_id not in ("", last.call_id) and (last.call_id != "" or index is None)
            other_name = name != "" and last.name not in ("", name)
            without_both = index is None and not call_id and name != ""
            if not (other_id or other_name or without_both):
                return last
        call = _Call()
        self._calls.append(call)
        if index is not None:
            self._calls_by_index[index] = call
        return call

    def _add_fields(self, delta: dict[str, Any], place: int) -> None:
        # Texts are joined from their pieces; the JSON text is needed only of other values.
        is_structured = any(value is not None and not isinstance(value, str) for value in delta.values())
        texts = self._raw.members("choices", place, "delta") if is_structured else {}
        for name, value in delta.items():
            if name not in _KNOWN:
                self.content += self._fields.add(name, value, texts.get(name, ""))
        thought = next((delta[name] for name in _THINKING if delta.get(name)), None) or _reasoning_text(delta)
        if isinstance(thought, str) and thought:
            thought, self._open_thought = split_open_end(self._open_thought + thought)
            self.thinking += repair(thought)[0]

    def _end(self, reason: str) -> str:
        reason = self._repair(required_text(reason))
        self.content += reason not in ("", self._stop_reason)
        self._stop_reason = reason or self._stop_reason or ""
        return self._close_text() if self._halves and reason else ""

    def _close_text(self) -> str:
        end, self._open_text = self._repair(self._open_text), ""
        self._texts.append(end)
        return end

    def _note_usage(self, usage: Any) -> None:
        """Replace the counts of earlier chunks: some servers send running counts in each."""
        if isinstance(usage, dict) and usage:
            self._usage = usage


def _reasoning_text(delta: dict[str, Any]) -> str:
    """Return the thinking in `reasoning_details`, for servers that send it nowhere else."""
    details = delta.get("reasoning_details")
    entries = [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []
    texts = (entry.get("text") or entry.get("summary") for entry in entries)
    return "".join(text for text in texts if isinstance(text, str))


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return the counts. `prompt_tokens` is all input. Reasoning counts as output; servers that exclude it from
    `completion_tokens` include it in the total."""
    details = usage.get("prompt_tokens_details")
    counts = {**usage, **(details if isinstance(details, dict) else {})}
    given = count_in(counts, "prompt_tokens")
    beyond = count_in(counts, "total_tokens") - given if given else 0
    read = min(count_in(counts, *_READ), given)
    written = min(count_in(counts, *_WRITTEN), given - read)
    return TokenUsage(given, max(count_in(counts, "completion_tokens"), beyond), read, written)


class _Call:
    """One call as far as it has arrived. `extra_fields` has the fields of the call and of its function that only its
    provider reads."""

    def __init__(self) -> None:
        self.call_id = self.name = ""
        self.arguments: list[str] = []
        self.size = 0
        self.extra_fields: dict[str, OpaqueFields] = {}


class ChatDialect(Dialect):
    """See Dialect."""

    name: ClassVar[str] = NAME
    renderer_type: ClassVar[type[MessageRenderer]] = ChatRenderer
    assembler_type: ClassVar[type[Assembler]] = ChatAssembler
    path: ClassVar[str] = "/v1/chat/completions"

    def _settings(self, max_output_tokens: int) -> dict[str, Any]:
        return {self._max_tokens_field: max_output_tokens, "stream": True, "stream_options": {"include_usage": True}}

    def _definition(self, name: str, tool: ToolSpec) -> dict[str, Any]:
        function = {"name": name, "description": tool.description, "parameters": tool.input_schema}
        return {"type": "function", "function": function}

    def _answer_form(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        form = {"name": "answer", "schema": schema, "strict": False}
        return {"response_format": {"type": "json_schema", "json_schema": form}}

    def events_of_answer(self, body: str) -> Iterator[Event]:
        """See Dialect. Yields one chunk, in which calls are indexed by their position."""
        answer = members(body)
        choices = [_as_delta(members(choice)) for choice in elements(answer["choices"])]
        yield "message", join_members({**answer, "choices": f"[{','.join(choices)}]"})
        yield "message", "[DONE]"


def _as_delta(choice: Mapping[str, str]) -> str:
    refuse_open(choice["finish_reason"])
    message = members(choice["message"])
    if orjson.loads(message.get("tool_calls", "null")):
        given = enumerate(elements(message["tool_calls"]))
        calls = [join_members({**members(call), "index": str(index)}) for index, call in given]
        message["tool_calls"] = f"[{','.join(calls)}]"
    others = {name: text for name, text in choice.items() if name != "message"}
    return join_members({**others, "delta": join_members(message)})
