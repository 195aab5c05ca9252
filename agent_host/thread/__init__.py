"""The conversation as it is sent to the model: units of encoded messages, and the window over them.

A unit is a user message, or an assistant message with the results of all its calls. The dialect's renderer encodes each
message once, when it is added; a request joins the encoded pieces. So the work of a step depends on the size of the
step and not on the length of the conversation, and the provider's prompt cache gets the same bytes as before.

Rules:

- The thread only grows, and it is always sendable: a unit enters with every result that it needs.
- What is too long for a request is left out of requests and stays on record. `fit` moves the start of the window by
  whole units; `clear` replaces older results by a note; a summary stands in the place of what was left out.
- The same messages give the same bytes, so a resumed session sends what the first process would have sent.
- Pictures are part of the result of their call. If there are more than a request may hold, the older half is replaced
  by words at once, so that the beginning of a request stays the same for many steps.

How tokens are counted: an estimate (`tokens`) for what the gateway has not counted yet, scaled by what it counted last.

Traps: the position of a unit in the encoded buffer changes when the window moves (`WireBuffer`); a cache mark follows a
unit and is not part of the message; a cleared result keeps its call, because the gateway would reject the request
otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from agent_host.thread.messages import Message, encodable, message_tokens
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_MARKER_TOKENS = 20
_BLOCK_BYTES = 128 * 1024


class Renderer(Protocol):
    """The interface of a gateway dialect to the thread: messages to its wire form, comma-separated JSON objects."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """One user message with the texts of one or more messages."""
        ...

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """An assistant message and, when it called tools, the answers to all its calls in call order."""
        ...

    @property
    def cache_mark(self) -> UnitMark | None:
        """The cache mark after a unit that ends with a user message: the provider caches the request up to there. None
        if the dialect has no marks."""
        ...


class Thread:
    """The thread is append-only except for pictures: if there are too many, the older ones are omitted, and all are if
    the model does not read them. Invariant 4 holds by construction: an assistant message is added together with all its
    results. A cache mark is set after at least `marks_from` estimated tokens; the function is called with the first
    request."""

    def __init__(
        self, renderer: Renderer, *, takes_images: bool = True, marks_from: Callable[[], int] = lambda: 0
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
        self.dropped = 0
        """The number of messages before the window."""
        self._prompt_dropped = False
        self._call_ids: set[str] = set()
        self._newest_exchange = -1
        self._ends_with_assistant = False
        self._task_unit = -1
        self._task_prompt = Message("user", "", 0)
        self._summary: Message | None = None

    @property
    def tokens(self) -> int:
        """Estimated tokens of the next request's messages: the window, and the replacement of the units before it."""
        if not self._start:
            return self._kept
        return self._kept + self._marker_tokens() + (self._task_prompt.tokens if self._prompt_dropped else 0)

    @property
    def newest(self) -> tuple[int, int]:
        """Estimated tokens, and the number, of the messages from the newest turn of the model on."""
        start = max(self._newest_exchange, self._start)
        return sum(self._sizes[start:]), sum(self._messages[start:])

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
            results = self._pictures.admit(results)
        unit, tokens = len(self._wire), assistant.tokens + sum(result.tokens for result in results)
        self._newest_exchange = unit
        self._add(self._renderer.exchange(assistant, results), tokens, 1 + len(results))
        self._ends_with_assistant = not results
        if sizes := sizes_of(results):
            plain = drop_pictures(results)
            saved = tokens - assistant.tokens - sum(result.tokens for result in plain)
            without = self._renderer.exchange(assistant, plain)
            for old in self._pictures.add(Pictured(unit, len(sizes), sum(sizes), saved, without)):
                self._wire.replace(old.unit, old.without)
                self._sizes[old.unit] -= old.tokens
                self._kept -= old.tokens if old.unit >= self._start else 0

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
        """Fill an empty thread from a checkpoint's messages after the system prompt, in their order.

        `still_open` is the index of the model turn whose step is open: it is added when its step ends. `dropped`
        restores the attribute `dropped`: the window starts at the same message, because providers cache an unchanged
        prefix. From the message `large_from` on results are sent whatever their size. `summary` replaces dropped
        messages. Turns before the message `thinking_from` are sent as plain text, for models that reject their thinking
        if anything before it was changed.
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
                results.append(message if place >= large_from else clear(message))
            elif message.role == "user":
                self.add_task(message)
            else:
                self.add_note(message)
            if assistant is not None and len(results) == len(assistant.tool_calls):
                if is_plain:
                    self._call_ids.update(call.call_id for call in assistant.tool_calls)
                    as_text = render_text(assistant, results)
                    self._add(self._renderer.user([as_text]), as_text.tokens, 1 + len(results))
                else:
                    self.add_exchange(assistant, results)
                assistant = None
        start = removed = 0
        while removed < dropped and start < len(self._sizes) - 1:  # the last unit is always sent
            removed += self._messages[start]
            start += 1
        if start:
            self._begin_at(start, self._kept - sum(self._sizes[:start]))

    def fit(self, budget: int) -> int:
        """Drop the oldest units until `budget` tokens hold the rest; returns how many messages went this time."""
        return 0 if self.tokens <= budget else self._move(advance, budget)

    def cut(self, budget: int) -> int:
        """Drop the oldest units until at most `budget` tokens remain, or only the last unit; returns the number of
        dropped messages. Drops nothing if that would save nothing."""
        return self._move(cut, budget, below=self.tokens)

    def _move(
        self,
        find_start: Callable[[Sequence[int], int, int, int], tuple[int, int]],
        budget: int,
        below: int | None = None,
    ) -> int:
        """Move the window, if less than `below` tokens are sent then; returns how many messages went."""
        marker = self._marker_tokens()
        room, pinned = max(0, budget - marker), 0
        # First assume that the prompt stays in the window; if it does not, it takes its tokens from the budget.
        start, kept = find_start(self._sizes, self._start, self._kept, room)
        if start > self._task_unit:
            pinned = self._task_prompt.tokens
            start, kept = find_start(self._sizes, self._start, self._kept, max(0, room - pinned))
        if below is not None and kept + marker + pinned >= below:
            return 0
        seen_before = self._count_removed()
        self._begin_at(start, kept)
        return self._count_removed() - seen_before

    def encode_window(self, head_tokens: int = 0) -> list[bytes]:
        """The encoded messages to send; the joined chunks are JSON objects separated by commas. `head_tokens` are the
        tokens before them in the request."""
        return [*self._head_of_window(), *self._units(head_tokens)]

    def asking(self, question: Message, budget: int, head_tokens: int = 0) -> tuple[list[bytes], int]:
        """The messages of a request about the conversation, and their tokens: those of `encoded` and `question`. Above
        `budget` tokens the newest unit is omitted: the rest fits, because it was sent before."""
        units, tokens = self._units(head_tokens), self.tokens + question.tokens
        if tokens > budget and len(self._wire) - self._start > 1:
            units = self._wire.chunks(self._start, stop=len(self._wire) - 1)
            tokens -= self._sizes[-1]
        return [*self._head_of_window(), *units, b",", self._renderer.user([question])], tokens

    def older(self) -> int:
        """The number of messages before the units that every cut keeps."""
        return sum(self._messages[: max(0, len(self._messages) - RECENT_UNITS)])

    def count_dropped(self, budget: int, before: int) -> int:
        """Return how many messages a cut to a window of `budget` tokens leaves out, `before` of which are taken by what
        replaces them."""
        room = int(budget * REFILL) - before
        start, _ = cut(self._sizes, self._start, self._kept, room)
        return sum(self._messages[:start])

    def _head_of_window(self) -> list[bytes]:
        """The messages that are sent in the place of the units that are left out."""
        if self._start == 0:
            return []
        pinned = [self._task_prompt] if self._prompt_dropped else []
        text = f"[Earlier conversation truncated — {self._count_removed()} messages removed]"
        texts = [*pinned, Message("system", text, _MARKER_TOKENS), *([] if self._summary is None else [self._summary])]
        return [self._renderer.user(texts), b","]

    def _units(self, head_tokens: int) -> list[bytes]:
        """The units of the window, with cache marks at the end of this request, for writing, and at the end of the
        previous one, for reading. A provider looks only some blocks back from a mark, and one turn may have more
        blocks."""
        mark = self._renderer.cache_mark
        if mark is None:
            return self._wire.chunks(self._start)
        ends = {self._newest_exchange - 1} if self._newest_exchange > self._start else set()
        if len(self._wire) and not self._ends_with_assistant:
            ends.add(len(self._wire) - 1)
        total, least = head_tokens + self.tokens, self._marks_from()
        kept = {end for end in ends if total - sum(self._sizes[end + 1 :]) >= least}
        return self._wire.chunks(self._start, kept, mark)

    def _begin_at(self, start: int, kept: int) -> None:
        """Move the window forward to the unit `start`; `kept` are the tokens from there on."""
        self.dropped += sum(self._messages[self._start : start])
        self._start, self._kept = start, kept
        self._prompt_dropped = self._task_unit < start

    def _marker_tokens(self) -> int:
        return _MARKER_TOKENS + (0 if self._summary is None else self._summary.tokens)

    def _count_removed(self) -> int:
        """Messages that are no longer seen; the task's prompt stays in sight when its unit goes."""
        return self.dropped - self._prompt_dropped

    def _add(self, wire: bytes, tokens: int, messages: int) -> None:
        self._wire.append(wire)
        self._ends_with_assistant = False
        self._sizes.append(tokens)
        self._messages.append(messages)
        self._kept += tokens


# Results whose text is left out of requests to make room: the record keeps it, and the model can read it again.

RESULTS: Final = "results/"
"""The references of results in the thread begin so; the id of the call follows."""
MIN_TOKENS: Final = 200
"""A smaller result stays, because its replacement would not be much shorter."""
_LEFT_TOKENS: Final = 60
_HEAD_CHARS: Final = 1_000
_HEAD_FROM_TOKENS: Final = 2_000
"""From this size a result keeps its start, which identifies it at little cost."""


def clear(result: Message) -> Message:
    """Replace the result's text and pictures by a note, if that is shorter; a very large one keeps its start. The note
    contains the reference for ReadOutput."""
    if result.role != "tool" or result.tokens < MIN_TOKENS:
        return result
    shown = result.content[:_HEAD_CHARS] if result.tokens >= _HEAD_FROM_TOKENS else ""
    note = (
        f"[{len(result.content) - len(shown)} characters of output were left out to make room. ReadOutput with the ref "
        f"{RESULTS}{result.tool_call_id}, or ReadFile with it as the path, gives them again.]"
    )
    tokens = _LEFT_TOKENS + -(-result.tokens * len(shown) // max(1, len(result.content)))
    if tokens >= result.tokens:  # its tokens are those of its pictures
        shown, tokens = "", _LEFT_TOKENS
    return result._replace(content=f"{shown}\n{note}" if shown else note, tokens=tokens, images=())


def count_saved(result: Message) -> int:
    """Tokens that `cleared` takes away."""
    return result.tokens - clear(result).tokens


# Which part of the conversation is sent when all of it no longer fits (AH 5.4). Pure.

# After a cut the window is filled to this share of the budget, so that the next cut is many steps away: a prefix that
# stays the same from call to call is what gateways cache.
REFILL = 0.4
# The recency window: so many of the last units are kept even when that leaves the refill mark unreached.
RECENT_UNITS = 4


def advance(sizes: Sequence[int], start: int, kept: int, budget: int) -> tuple[int, int]:
    """Return the new start of the window.

    `sizes` are the tokens of each unit (a user message, or an assistant message with all its results), `start` the
    present first unit, `kept` the tokens from there on, `budget` the maximum. Returns the new (start, kept). A unit is
    kept or dropped whole, so no call ever loses its result; the last unit is always kept.
    """
    if kept <= budget:
        return start, kept
    start, kept = cut(sizes, start, kept, int(budget * REFILL), RECENT_UNITS)
    return cut(sizes, start, kept, budget)


def cut(sizes: Sequence[int], start: int, kept: int, budget: int, recent: int = 1) -> tuple[int, int]:
    """Return the start of the window with at most `budget` tokens, except that the `recent` last units stay; as
    `advance`."""
    while start < len(sizes) - recent and kept > budget:
        kept -= sizes[start]
        start += 1
    return start, kept


# Model turns as plain text, for models that verify their thinking.
#
# Such a model rejects the whole request if anything before its signed thinking was changed. If a request omits
# something, the turns after it cannot be sent unchanged, but can be sent as text of the user.


def render_text(assistant: Message, results: Sequence[Message]) -> Message:
    """Render a turn of the model and its results as text; without pictures and what only its provider reads."""
    parts = ["[An earlier turn of yours, as text.]"]
    if assistant.content.strip():
        parts.append(assistant.content)
    for call, result in zip(assistant.tool_calls, results, strict=True):
        failed = " failed" if result.is_error else ""
        parts.append(f"[You called {call.name} with {call.arguments_json.decode()}. It{failed or ' gave'}:]")
        parts.append(result.content)
    return Message("system", "\n".join(parts), assistant.tokens + sum(result.tokens for result in results))


# A summary of the conversation in the place of its older part (AH 5.4, phase 2).

MAX_CHARS: Final = 32_000
"""A longer summary is cut."""
QUESTION: Final = (
    "[The conversation is too long to go on with. Write down what is needed to finish the task without it: the user's "
    "request and every condition that was set; decisions, and why; files that were read or changed, with their paths; "
    "commands that were run, and their outcome; what is left to do. Call no tools. Answer with these notes only.]"
)


def question(count: Callable[[str], int]) -> Message:
    """The message that asks for a summary."""
    return Message("system", QUESTION, message_tokens(count, QUESTION))


def summary_message(text: str, count: Callable[[str], int]) -> Message:
    """The summary `text` as sent in a request, after the note with the number of omitted messages."""
    shown = encodable(f"[Your own notes on them:]\n{text}")
    return Message("system", shown, message_tokens(count, shown))


# Pictures of a conversation: the newest are sent, as many as gateways accept.
#
# If there are too many, the older half is omitted at once, so that the prefix of the request, which gateways cache,
# stays the same for many steps.

MAX_SENT: Final = 20
"""Pictures in one request. With more of them Anthropic refuses sides of more than 2000 pixels."""
MAX_SENT_BYTES: Final = 12 * 1024 * 1024
"""Bytes of the pictures in one request, before base64: gateways take requests of 20 to 32 MB."""
MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the pictures that a session keeps: all of its messages are in memory, and in one artifact at its end."""

NONE_TAKEN: Final = "this model takes no images"
ALL_KEPT: Final = f"not shown: this session has {MAX_KEPT_BYTES // 1024**2} MiB of pictures and keeps no more"
_OLDER: Final = "not shown any more, newer pictures have taken its place: read it again to see it"
_TOO_MANY: Final = "not shown: too many pictures at once, read it again to see it"


class Pictured(NamedTuple):
    """A unit of the thread with pictures: their number, bytes and tokens, and the unit as it is sent without them."""

    unit: int
    pictures: int
    size: int
    tokens: int
    without: bytes


def sizes_of(results: Sequence[Message]) -> list[int]:
    """The bytes of each picture of `results`."""
    return [len(image.data) for result in results for image in result.images]


def drop_pictures(results: Sequence[Message], why: str = _OLDER) -> list[Message]:
    """`results` with `why` in the place of their pictures."""
    return [result.drop_images(why) for result in results]


class SentPictures:
    """The units with pictures that are sent, oldest first. With `takes_images` false no picture is."""

    def __init__(self, *, takes_images: bool) -> None:
        self._takes_images = takes_images
        self._units: deque[Pictured] = deque()
        self._count = self._size = 0

    def admit(self, results: Sequence[Message]) -> list[Message]:
        """The results of one turn with those of their pictures that one request may have, the last ones first."""
        if not self._takes_images:
            return drop_pictures(results, NONE_TAKEN)
        admitted: list[Message] = []
        count, size = MAX_SENT, MAX_SENT_BYTES
        for result in reversed(results):
            sizes = sizes_of([result])
            fits = len(sizes) <= count and sum(sizes) <= size
            admitted.append(result if fits else result.drop_images(_TOO_MANY))
            if fits:
                count, size = count - len(sizes), size - sum(sizes)
        return admitted[::-1]

    def add(self, added: Pictured) -> Iterator[Pictured]:
        """Append a unit; returns the units to be sent without their pictures from now on."""
        self._units.append(added)
        self._count, self._size = self._count + added.pictures, self._size + added.size
        if self._count <= MAX_SENT and self._size <= MAX_SENT_BYTES:
            return
        while len(self._units) > 1 and (self._count > MAX_SENT // 2 or self._size > MAX_SENT_BYTES // 2):
            oldest = self._units.popleft()
            self._count, self._size = self._count - oldest.pictures, self._size - oldest.size
            yield oldest


class UnitMark(NamedTuple):
    """The mark that a wire puts at the end of a unit: `data`, in front of the unit's last `before` bytes."""

    data: bytes
    before: int


_NO_MARK: Final = UnitMark(b"", 1)


class WireBuffer:
    """Grows at its end. Units are gathered into blocks, each made once; a request then consists of a few large chunks,
    and no unit is looked at again for it (invariant 8)."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []  # each ends with a comma: something always follows it
        self._block_starts: list[int] = []  # number of the first unit in each block
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def append(self, unit: bytes) -> None:
        """Add one unit: one or more JSON objects with commas between them."""
        if self._open_bytes >= _BLOCK_BYTES:
            self._block_starts.append(len(self._lengths) - len(self._open))
            self._blocks.append(b",".join(self._open) + b",")
            self._open, self._open_bytes = [], 0
        self._open.append(unit)
        self._open_bytes += len(unit)
        self._lengths.append(len(unit))

    def unit(self, number: int) -> bytes:
        """The unit of that `number`."""
        first_open = len(self._lengths) - len(self._open)
        if number >= first_open:
            return self._open[number - first_open]
        place = self._place_of(number)
        begins = self._offset(place, number)
        return self._blocks[place][begins : begins + self._lengths[number]]

    def replace(self, number: int, unit: bytes) -> None:
        """Put another unit in the place of that `number`. Only the block that it is in is made again."""
        first_open = len(self._lengths) - len(self._open)
        if number >= first_open:
            self._open_bytes += len(unit) - self._lengths[number]
            self._open[number - first_open] = unit
        else:
            place = self._place_of(number)
            block, begins = self._blocks[place], self._offset(place, number)
            self._blocks[place] = b"".join((block[:begins], unit, block[begins + self._lengths[number] :]))
        self._lengths[number] = len(unit)

    def chunks(
        self, start: int, marks: Collection[int] = (), mark: UnitMark = _NO_MARK, *, stop: int | None = None
    ) -> list[bytes]:
        """All units from number `start` on, commas between them, in as few pieces as that takes no copying, with `mark`
        at the end of the units `marks`. With `stop` only the units before that number, in one piece."""
        if stop is not None:
            return [b",".join(self.unit(number) for number in range(start, stop))]
        first_open = len(self._lengths) - len(self._open)
        if start >= first_open:
            return [self._join(start, marks, mark)]
        first = self._place_of(start)
        begins = self._offset(first, start)
        found: list[bytes] = []
        for place in range(first, len(self._blocks)):
            block, at = self._blocks[place], begins if place == first else 0
            for number in sorted(number for number in marks if start <= number < first_open):
                if self._place_of(number) == place:
                    ends = self._offset(place, number) + self._lengths[number] - mark.before
                    found += [block[at:ends], mark.data]
                    at = ends
            found.append(block[at:])
        return [*found, self._join(first_open, marks, mark)]

    def _join(self, start: int, marks: Collection[int], mark: UnitMark) -> bytes:
        shown = self._open[start - (len(self._lengths) - len(self._open)) :]
        if not any(number >= start for number in marks):
            return b",".join(shown)
        pieces: list[bytes | memoryview] = []  # a unit may be large: it is copied once, as it is without marks
        for number, unit in enumerate(shown, start):
            if number in marks:
                view = memoryview(unit)
                pieces += [view[: -mark.before], mark.data, view[-mark.before :], b","]
            else:
                pieces += [unit, b","]
        return b"".join(pieces[:-1])

    def _place_of(self, number: int) -> int:
        return bisect_right(self._block_starts, number) - 1

    def _offset(self, place: int, number: int) -> int:
        """The first byte of the unit in its block."""
        return sum(length + 1 for length in self._lengths[self._block_starts[place] : number])
