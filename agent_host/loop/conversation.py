"""What the model is sent: the head of a request, the thread behind it, and what is counted of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from agent_host.thread.messages import Message, encodable
from agent_host.thread.pictures import ALL_KEPT, MAX_KEPT_BYTES, NONE_TAKEN
from agent_host.thread.tokens import message_tokens
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.contracts import Image
    from agent_host.llm.deferred import Model
    from agent_host.retrying import RetryPolicy
    from agent_host.routing.judge import Judge
    from agent_host.thread.thread import Thread
    from state.records import ContextStrategy


class ForModel(NamedTuple):
    """A conversation as one model reads it: another model gets none of its opaque blocks."""

    thread: Thread
    make_head: Callable[[Judge], bytes]


class ModelView(Protocol):
    """Gives the conversation as one model reads it."""

    def __call__(self, model: str, dropped: int | None = None) -> ForModel:
        """As the record has it; with `dropped` as it is when so many messages are left out from now on."""
        ...


class Compaction(NamedTuple):
    """How room is made in a request that is too long. `summary_model` writes summaries, None for the session's own."""

    strategy: ContextStrategy
    summary_model: str | None = None


DROP_OLDEST: Final = Compaction("drop_oldest")


class _Head(NamedTuple):
    """The encoded head of a request, and its estimated size."""

    data: bytes
    tokens: int


class Conversation:
    """The thread of one session and the model that reads it.

    `make_head` encodes the head of a request: model, limits, system prompt, and the tools that the judge may allow a
    call of. `count` estimates the tokens of a text.
    `for_model` gives thread and head as another model reads them, and `default_model` is that of tasks that name none.
    `fallbacks` are models to ask when one is overloaded. `takes_images`: models read pictures. `compaction` says how
    room is made in a request that is too long. `binds_thinking` says whether a model's provider verifies its thinking.
    """

    def __init__(
        self,
        thread: Thread,
        llm: Model,
        model: str,
        make_head: Callable[[Judge], bytes],
        retry: RetryPolicy,
        count: Callable[[str], int],
        for_model: ModelView | None = None,
        *,
        fallbacks: Sequence[str] = (),
        takes_images: bool = True,
        compaction: Compaction = DROP_OLDEST,
        binds_thinking: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.thread = thread
        self.llm = llm
        self.model = self.default_model = model
        self.for_model = for_model
        self.make_head = make_head
        self.retry = retry
        self.count = count
        self.fallbacks = fallbacks
        self.takes_images = takes_images
        self.compaction = compaction
        self._binds_thinking = binds_thinking
        self._dropped = thread.dropped
        self.compaction_wanted = False
        """Whether a client asked for room to be made before the next request."""
        self.steps_without_summary = 0
        """For how many more steps that need room the model is not asked for a summary."""
        self.full_windows = 0
        """How many turns in a row ended because the model's context window was full."""
        self.open_picture_bytes = 0
        """Bytes of the pictures that are on record of the open step, and not in the thread yet."""
        self._head = _Head(b"", 0)
        self._renew_for: Judge | None = None

    @property
    def head(self) -> bytes:
        """The head of the next request. It is encoded at its first use: a reply to CreateSession waits for none."""
        return self._encoded().data

    @property
    def head_tokens(self) -> int:
        """The estimated size of the head."""
        return self._encoded().tokens

    @property
    def tokens(self) -> int:
        """The estimated size of the next request."""
        return self.head_tokens + self.thread.tokens

    def use_model(self, model: str | None, judge: Judge) -> None:
        """Have `model`, None for the default, read the conversation from its next request on."""
        wanted = model or self.default_model
        if wanted != self.model and self.for_model is not None:
            self.model, (self.thread, self.make_head) = wanted, self.for_model(wanted)
            self._dropped = self.thread.dropped
            self.renew_head(judge)

    def renew_thread(self, dropped: int | None = None) -> None:
        """Take the thread as the record has it now, whose view has changed; with `dropped` as the next record will."""
        if self.for_model is not None:
            self.thread = self.for_model(self.model, dropped).thread
            self._dropped = self.thread.dropped

    def settle_window(self) -> None:
        """Behind a cut, have a model that verifies its thinking read what is left as text."""
        if self.thread.dropped != self._dropped:
            self._dropped = self.thread.dropped
            if self._binds_thinking(self.model):
                self.renew_thread(self.thread.dropped)

    def keep_images(self, images: Sequence[Image]) -> str | None:
        """Count the pictures of a result that goes on record. Returns why they cannot be kept, None where they are."""
        if not images:
            return None
        if not self.takes_images:
            return NONE_TAKEN
        size = sum(len(image.data) for image in images)
        if self.thread.picture_bytes + self.open_picture_bytes + size > MAX_KEPT_BYTES:
            return ALL_KEPT
        self.open_picture_bytes += size
        return None

    def renew_head(self, judge: Judge) -> None:
        """Have the head encoded again, for the bundle, the tools and the options that `judge` has when it is used."""
        self._renew_for = judge

    def _encoded(self) -> _Head:
        if self._renew_for is not None:
            data = self.make_head(self._renew_for)
            self._head = _Head(data, self.count(data.decode()))
            self._renew_for = None
        return self._head

    def warm_up(self) -> None:
        """Get ready for the first request."""
        self.llm.warm_up()
        self._encoded()

    def note(self, text: str) -> Message:
        """A note of the host to the model; `thread.add_note` has the model read it."""
        text = encodable(text)
        return Message("system", text, message_tokens(self.count, text))
