"""Tool calls out of the deltas of a Chat Completions stream: which delta belongs to which call (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.llm.answer_calls import NOT_CLOSED
from agent_host.llm.raw_json import OpaqueFields, members, repair
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.llm.answer_calls import CallReader

    _Raw = Callable[[], Mapping[str, str]]

_OF_CALL = frozenset({"index", "id", "type", "function"})
_OF_FUNCTION = frozenset({"name", "arguments"})


class _StreamedCall:
    """One call as far as it has come. `beside` and `of_function` are what only its provider reads of it."""

    __slots__ = ("arguments", "beside", "call_id", "name", "of_function", "size")

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.size = 0
        self.beside: OpaqueFields | None = None
        self.of_function: OpaqueFields | None = None


class StreamedCalls:
    """The calls of one answer, in the order in which they began. `reader` reads their arguments, `real_name` gives the
    tool that the model means."""

    def __init__(self, reader: CallReader, real_name: Callable[[str], str]) -> None:
        self._reader = reader
        self._real_name = real_name
        self._calls: list[_StreamedCall] = []
        self._by_index: dict[int, _StreamedCall] = {}
        self._replaced = 0

    @property
    def replaced(self) -> int:
        """Halves of characters that became U+FFFD."""
        kept = (fields for call in self._calls for fields in (call.beside, call.of_function) if fields is not None)
        return self._replaced + self._reader.replaced + sum(fields.replaced for fields in kept)

    @property
    def dropped(self) -> int:
        """Fields that cannot be sent back unchanged."""
        kept = (fields for call in self._calls for fields in (call.beside, call.of_function) if fields is not None)
        return sum(fields.dropped for fields in kept)

    def add(self, delta: dict[str, Any], raw: _Raw) -> int:
        """Take one entry of a delta's `tool_calls`; `raw` gives the JSON text of its members. Returns how much it
        brought, 0 for nothing. Raises AnswerTooLarge, and for one that is malformed what reading it raises."""
        function: dict[str, Any] = delta.get("function") or {}
        call_id, name = (self._text(value) for value in (delta.get("id"), function.get("name")))
        arguments = function.get("arguments")
        extra, of_function = delta.keys() - _OF_CALL, function.keys() - _OF_FUNCTION
        if not (call_id or name or arguments or extra or of_function):
            return 0
        index = delta.get("index")
        before = len(self._calls)
        call = self._call_for(index if type(index) is int else None, call_id, name)
        brought = len(self._calls) - before
        call.call_id, call.name = call.call_id or call_id, call.name or name
        if arguments:
            brought += self._add_arguments(call, arguments, raw)
        if extra:
            call.beside = call.beside or OpaqueFields()
            brought += _keep(call.beside, delta, extra, raw)
        if of_function:
            call.of_function = call.of_function or OpaqueFields()
            brought += _keep(call.of_function, function, of_function, lambda: members(raw()["function"]))
        return brought

    def read(self, *, cut: bool) -> Iterator[tuple[ToolCall, str, str | None, str | None]]:
        """Each call, the text of its arguments, and as JSON what its provider alone reads of it and of its function.
        `cut`: the answer was cut, and with it perhaps the last call."""
        for call in self._sort_calls():
            if not (call.name or call.call_id):  # arguments of a call that never began
                continue
            arguments = "".join(call.arguments)
            name = self._real_name(call.name)
            if cut and call is self._calls[-1] and not arguments.strip():
                found = ToolCall(call.call_id, name, {}, NOT_CLOSED)
            else:
                found = self._reader.call(call.call_id, name, arguments)
            yield found, arguments, _whole(call.beside), _whole(call.of_function)

    def _sort_calls(self) -> list[_StreamedCall]:
        """The calls by their indexes, where each has one of its own, else as they began."""
        if len(self._by_index) != len(self._calls):
            return self._calls
        return [call for _, call in sorted(self._by_index.items(), key=lambda entry: entry[0])]

    def _call_for(self, index: int | None, call_id: str, name: str) -> _StreamedCall:
        """The call that goes on; a new one where none of this index is there, or where another one begins: some servers
        send index 0 for each, others no index, or no id."""
        last = self._by_index.get(index) if index is not None else self._calls[-1] if self._calls else None
        if last is not None:
            other_id = call_id not in ("", last.call_id) and (last.call_id != "" or index is None)
            other_name = name != "" and last.name not in ("", name)
            without_both = index is None and not call_id and name != ""
            if not (other_id or other_name or without_both):
                return last
        call = _StreamedCall()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _add_arguments(self, call: _StreamedCall, arguments: Any, raw: _Raw) -> int:
        """Arguments come as pieces of JSON text, and from some servers as an object in one piece: its text, so that all
        of them are read in one way."""
        if not isinstance(arguments, str):
            arguments = members(raw()["function"])["arguments"]
        call.arguments.append(arguments)
        call.size += len(arguments) if arguments.isascii() else len(arguments.encode("utf-8", "surrogatepass"))
        self._reader.check_size(call.size)
        return len(arguments)

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            return ""
        text, count = repair(value)
        self._replaced += count
        return text


def _whole(fields: OpaqueFields | None) -> str | None:
    return None if fields is None else fields.whole()


def _keep(fields: OpaqueFields, delta: dict[str, Any], names: set[str], raw: _Raw) -> int:
    """Take those fields of `delta`; `raw` gives their JSON text. Returns how many had something in them."""
    texts = raw()
    return sum(fields.add(name, delta[name], texts[name]) for name in sorted(names))
