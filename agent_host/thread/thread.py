"""The conversation as it is sent: units of already encoded messages, and the window over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent_host.thread.cleared import cleared
from agent_host.thread.messages import Message
from agent_host.thread.pictures import Pictured, SentPictures, sizes_of, without_pictures
from agent_host.thread.plain import as_text
from agent_host.thread.window import RECENT_UNITS, REFILL, advance, cut
from agent_host.thread.wire import Mark, WireBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MARKER_TOKENS = 20


def _from_the_first() -> int:
    return 0


class Renderer(Protocol):
    """What a gateway dialect offers the thread: messages to its wire form, comma-separated JSON objects."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """One user message with the texts of one or more messages."""
        ...

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """An assistant message and, when it called tools, the answers to all its calls in call order."""
        ...

    @property
    def cache_mark(self) -> Mark | None:
        """What is put at the end of a unit that ends with a user's message: up to there the provider is to keep the
        request in its cache. None where the wire has no marks."""
        ...


class Thread:
    """Append-only, but for pictures: where there are too many, the older ones are left out (`thread.pictures`), and all
    are where the model does not take them. Invariant 4 holds by construction: an assistant message enters together with
    all its results. A cache mark is set where at least `marks_from` estimated tokens stand in front of it; it is asked
    for with the first request."""

    def __init__(
        self, renderer: Renderer, *, takes_images: bool = True, marks_from: Callable[[], int] = _from_the_first
    ) -> None:
        self._renderer = renderer
        self._marks_from = marks_from
        self._pictures = SentPictures(takes_images=takes_images)
        self.picture_bytes = 0
        """Bytes of all pictures in the conversation, sent or not."""
        self._wire = WireBuffer()
        self._sizes: list[int] = []
        self._messages: list[int] = []
        self._start = 0
        self._kept = 0
        self._dropped_messages = 0
        self._prompt_dropped = False
        self._call_ids: set[str] = set()
        self._newest_exchange = -1
        self._ends_with_assistant = False
        self._task_unit = -1
        self._task_prompt = Message("user", "", 0)
        self._summary: Message | None = None

    @property
    def tokens(self) -> int:
        """Estimated tokens of what would be sent now."""
        return self._kept + self._set_before_window()

    @property
    def newest(self) -> tuple[int, int]:
        """Estimated tokens, and the number, of the messages from the newest turn of the model on."""
        start = max(self._newest_exchange, self._start)
        return sum(self._sizes[start:]), sum(self._messages[start:])

    @property
    def dropped(self) -> int:
        """How many messages the window has left behind."""
        return self._dropped_messages

    def has_call(self, call_id: str) -> bool:
        """True if a call of this id is in the conversation; a second one could not be sent."""
        return call_id in self._call_ids

    def add_task(self, prompt: Message) -> None:
        """The user's prompt of a new task; it stays in sight however much is dropped."""
        self._task_unit = len(self._wire)
        self._prompt_dropped = False
        self._task_prompt = prompt
        self._add(self._renderer.user([prompt]), prompt.tokens, 1)

    def add_note(self, note: Message) -> None:
        """A message of the host to the model, sent as the user's."""
        self._add(self._renderer.user([note]), note.tokens, 1)

    def add_exchange(self, assistant: Message, results: Sequence[Message]) -> None:
        """A model turn with the results of its calls."""
        self._call_ids.update(call.call_id for call in assistant.tool_calls)
        if any(result.images for result in results):
            self.picture_bytes += sum(sizes_of(results))
            results = self._pictures.admitted(results)
        unit, tokens = len(self._wire), assistant.tokens + sum(result.tokens for result in results)
        self._newest_exchange = unit
        self._add(self._renderer.exchange(assistant, results), tokens, 1 + len(results))
        self._ends_with_assistant = not results
        if sizes := sizes_of(results):
            plain = without_pictures(results)
            saved = tokens - assistant.tokens - sum(result.tokens for result in plain)
            without = self._renderer.exchange(assistant, plain)
            for old in self._pictures.add(Pictured(unit, len(sizes), sum(sizes), saved, without)):
                self._leave_pictures_out(old)

    def restore(
        self,
        messages: Iterable[Message],
        *,
        still_open: int | None = None,
        dropped: int = 0,
        large_from: int = 0,
        summary: Message | None = None,
        thinking_from: int = 0,
    ) -> None:
        """Fill an empty thread from a checkpoint's messages behind the system prompt, in their order.

        `still_open` is the place among them of the model turn whose step is open: it enters when its step is over.
        `dropped` is what `dropped` was: the window starts where it did, for a prefix that stays is what is cached.
        From the message `large_from` on results are shown whatever their size. `summary` stands in place of what is
        dropped. Turns before the message `thinking_from` are shown as plain text: for models that refuse their thinking
        where anything in front of it was changed.
        """
        self._summary = summary
        assistant: Message | None = None
        results: list[Message] = []
        is_plain = False
        for place, message in enumerate(messages):
            if place == still_open:
                continue
            if message.role == "assistant":
                assistant, results, is_plain = message, [], place < thinking_from
            elif message.role == "tool":
                results.append(message if place >= large_from else cleared(message))
            elif message.role == "user":
                self.add_task(message)
            else:
                self.add_note(message)
            if assistant is not None and len(results) == len(assistant.tool_calls):
                (self._add_plain if is_plain else self.add_exchange)(assistant, results)
                assistant = None
        start = gone = 0
        while gone < dropped and start < len(self._sizes) - 1:  # the last unit is always sent
            gone += self._messages[start]
            start += 1
        if start:
            self._begin_at(start, self._kept - sum(self._sizes[:start]))

    def _add_plain(self, assistant: Message, results: Sequence[Message]) -> None:
        """A model turn with the results of its calls, as text of the user."""
        self._call_ids.update(call.call_id for call in assistant.tool_calls)
        tokens = assistant.tokens + sum(result.tokens for result in results)
        self._add(self._renderer.user([as_text(assistant, results)]), tokens, 1 + len(results))

    def fit(self, budget: int) -> int:
        """Drop the oldest units until `budget` tokens hold the rest; returns how many messages went this time."""
        if self.tokens <= budget:
            return 0
        # First as though the prompt stayed in the window; where it would not, it takes its place out of the room.
        budget -= _MARKER_TOKENS + (0 if self._summary is None else self._summary.tokens)
        start, kept = advance(self._sizes, self._start, self._kept, max(0, budget))
        if start > self._task_unit:
            room = max(0, budget - self._task_prompt.tokens)
            start, kept = advance(self._sizes, self._start, self._kept, room)
        seen_before = self._removed()
        self._begin_at(start, kept)
        return self._removed() - seen_before

    def cut(self, budget: int) -> int:
        """Drop the oldest units until no more than `budget` tokens are left, or the last unit alone; returns how many
        messages went. Nothing goes where that would save nothing."""
        marker = _MARKER_TOKENS + (0 if self._summary is None else self._summary.tokens)
        room = max(0, budget - marker)
        start, kept = cut(self._sizes, self._start, self._kept, room)
        pinned = 0
        if start > self._task_unit:
            pinned = self._task_prompt.tokens
            start, kept = cut(self._sizes, self._start, self._kept, max(0, room - pinned))
        if kept + marker + pinned >= self.tokens:
            return 0
        seen_before = self._removed()
        self._begin_at(start, kept)
        return self._removed() - seen_before

    def encoded(self, head_tokens: int = 0) -> list[bytes]:
        """The messages to send, encoded; the chunks put together are JSON objects with commas between them.
        `head_tokens` stand in front of them in the request."""
        return [*self._before_window(), *self._units(head_tokens)]

    def asking(self, question: Message, budget: int, head_tokens: int = 0) -> tuple[list[bytes], int]:
        """The messages of a request that asks about the conversation, and their tokens: those of `encoded` and
        `question`. Where they are over `budget` tokens, the newest unit is left out: the rest was sent, and so it
        fits."""
        units, tokens = self._units(head_tokens), self.tokens + question.tokens
        if tokens > budget and len(self._wire) - self._start > 1:
            units = self._wire.chunks(self._start, stop=len(self._wire) - 1)
            tokens -= self._sizes[-1]
        return [*self._before_window(), *units, b",", self._renderer.user([question])], tokens

    def older(self) -> int:
        """How many messages stand before the units that every cut keeps."""
        return sum(self._messages[: max(0, len(self._messages) - RECENT_UNITS)])

    def dropped_by(self, budget: int, before: int) -> int:
        """How many messages a cut to a window of `budget` tokens leaves out, `before` of which are taken by what stands
        in their place."""
        room = int(budget * REFILL) - before
        start, kept = self._start, self._kept
        while start < len(self._sizes) - 1 and kept > room:
            kept -= self._sizes[start]
            start += 1
        return sum(self._messages[:start])

    def _before_window(self) -> list[bytes]:
        """What is sent in the place of the units that are left out."""
        if self._start == 0:
            return []
        pinned = [self._task_prompt] if self._prompt_dropped else []
        text = f"[Earlier conversation truncated — {self._removed()} messages removed]"
        texts = [*pinned, Message("system", text, _MARKER_TOKENS), *([] if self._summary is None else [self._summary])]
        return [self._renderer.user(texts), b","]

    def _units(self, head_tokens: int) -> list[bytes]:
        """The units of the window, the cache marked where this request ends, to be written, and where the one before
        ended, to be read. A provider looks only some blocks back from a mark, and one turn may have more of them."""
        mark = self._renderer.cache_mark
        if mark is None:
            return self._wire.chunks(self._start)
        ends = {self._newest_exchange - 1} if self._newest_exchange > self._start else set()
        if len(self._wire) and not self._ends_with_assistant:
            ends.add(len(self._wire) - 1)
        whole, least = head_tokens + self.tokens, self._marks_from()
        kept = {end for end in ends if whole - sum(self._sizes[end + 1 :]) >= least}
        return self._wire.chunks(self._start, kept, mark)

    def _leave_pictures_out(self, old: Pictured) -> None:
        self._wire.replace(old.unit, old.without)
        self._sizes[old.unit] -= old.tokens
        if old.unit >= self._start:
            self._kept -= old.tokens

    def _begin_at(self, start: int, kept: int) -> None:
        """Move the window forward to the unit `start`; `kept` are the tokens from there on."""
        self._dropped_messages += sum(self._messages[self._start : start])
        self._start, self._kept = start, kept
        self._prompt_dropped = self._task_unit < start

    def _set_before_window(self) -> int:
        """Tokens of what replaces the dropped units: the marker, and the prompt where it was among them."""
        if self._start == 0:
            return 0
        summary = 0 if self._summary is None else self._summary.tokens
        return _MARKER_TOKENS + summary + (self._task_prompt.tokens if self._prompt_dropped else 0)

    def _removed(self) -> int:
        """Messages that are no longer seen; the task's prompt stays in sight when its unit goes."""
        return self._dropped_messages - self._prompt_dropped

    def _add(self, wire: bytes, tokens: int, messages: int) -> None:
        self._wire.append(wire)
        self._ends_with_assistant = False
        self._sizes.append(tokens)
        self._messages.append(messages)
        self._kept += tokens
