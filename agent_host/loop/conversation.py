"""Requests to the model: the head, the thread after it, and the tokens of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import UsageError
from agent_host.thread import ALL_KEPT, MAX_KEPT_BYTES, NONE_TAKEN
from agent_host.thread.messages import Message, encodable, message_tokens
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.contracts import Image
    from agent_host.http import RetryPolicy
    from agent_host.judging import Judge
    from agent_host.llm.deferred import KnownModels, Model
    from agent_host.llm.models import ModelFacts
    from agent_host.thread import Thread
    from state.checkpoint import Checkpoint, ContextStrategy, Task, TokenUsage


class ForModel(NamedTuple):
    """A conversation as one model reads it: another model gets none of its opaque blocks."""

    thread: Thread
    make_head: Callable[[Judge, int], bytes]


class Compaction(NamedTuple):
    """Settings for making room in a request that is too long. `summary_model` writes summaries, None for the session's
    own."""

    strategy: ContextStrategy
    summary_model: str | None = None


_ANSWER_SHARE = 0.25
DROP_OLDEST: Final = Compaction("drop_oldest")


class Conversation:
    """The thread of one session and the model that reads it.

    `make_head` encodes the head of a request: model, maximum tokens of the answer, system prompt, and the tools that
    the judge may allow. `count` estimates the tokens of a text, and `models` has limits and prices of each model.
    `max_cost` limits the cost of the session, in the currency of the prices; 0 is no limit. `for_model` returns thread
    and head for another model, from the record, or with this many messages omitted from now on; tasks that name no
    model use `default_model`. `fallbacks` are models to ask if one is overloaded. `takes_images`: models read pictures.
    `compaction` is how a request that is too long is shortened."""

    def __init__(
        self,
        thread: Thread,
        llm: Model,
        model: str,
        make_head: Callable[[Judge, int], bytes],
        retry: RetryPolicy,
        count: Callable[[str], int],
        models: KnownModels,
        for_model: Callable[[str, int | None], ForModel],
        *,
        fallbacks: Sequence[str] = (),
        takes_images: bool = True,
        compaction: Compaction = DROP_OLDEST,
        max_cost: float = 0,
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
        self._dropped = thread.dropped
        self.compaction_wanted = False
        """True if a client asked for room to be made before the next request."""
        self.steps_without_summary = 0
        """For how many more steps that need room the model is not asked for a summary."""
        self.full_windows = 0
        """Number of consecutive turns that ended because the model's context window was full."""
        self.has_unusual_count = False
        """True once a gateway's count far above the estimate was reported."""
        self.models = models
        self.max_cost = max_cost
        self._lowered: int | None = None
        self.open_picture_bytes = 0
        """Bytes of the pictures that are on record of the open step, and not in the thread yet."""
        self._head, self._head_tokens = b"", 0
        self._renew_for: Judge | None = None

    @property
    def head(self) -> bytes:
        """The head of the next request. It is encoded at its first use: a reply to CreateSession waits for none."""
        self._encode_head()
        return self._head

    @property
    def head_tokens(self) -> int:
        """The estimated size of the head."""
        if self._renew_for is not None:
            self._encode_head()
        return self._head_tokens

    @property
    def tokens(self) -> int:
        """The estimated size of the next request."""
        return self.head_tokens + self.thread.tokens

    @property
    def facts(self) -> ModelFacts:
        """The limits and the prices of the model."""
        return self.models.table.of(self.model)

    def output_limit(self, judge: Judge) -> int:
        """The maximum tokens of an answer: the bundle's limit, the model's limit, and a share of its window, because
        the conversation needs the rest."""
        allowed, limits = judge.llm_policy.max_output_tokens, self.facts.limits
        can, window = limits.max_output_tokens, limits.context_tokens
        most = allowed if can is None else min(allowed, can)
        return most if window is None else min(most, max(1, int(window * _ANSWER_SHARE)))

    def lower_output(self, tokens: int | None, most: int, judge: Judge) -> int:
        """Have the model answer the next requests with so many tokens, or with `most`; returns which. A request keeps
        its prefix in the provider's cache, which this number is no part of."""
        lowered = None if tokens is None or tokens >= most else tokens
        if lowered != self._lowered:
            self._lowered = lowered
            if self._renew_for is None:
                self._head = self.make_head(judge, most if lowered is None else lowered)
        return most if lowered is None else lowered

    def use_model(self, model: str | None, judge: Judge) -> None:
        """Have `model`, None for the default, read the conversation from its next request on."""
        wanted = model or self.default_model
        if wanted != self.model:
            self.model, (self.thread, self.make_head) = wanted, self.for_model(wanted, None)
            self._dropped = self.thread.dropped
            self.renew_head(judge)

    def renew_thread(self, dropped: int | None = None) -> None:
        """Take the thread as the record has it now, whose view has changed; with `dropped` as the next record will."""
        self.thread = self.for_model(self.model, dropped).thread
        self._dropped = self.thread.dropped

    def settle_window(self) -> None:
        """After a cut, render the remaining thread as text for a model that verifies its thinking."""
        if self.thread.dropped != self._dropped:
            self._dropped = self.thread.dropped
            if self.facts.limits.thinking_bound:
                self.renew_thread(self.thread.dropped)

    def keep_images(self, images: Sequence[Image]) -> str | None:
        """Count the pictures of a result to be recorded. Returns why they cannot be kept, None if they are."""
        if not images:
            return None
        if not self.takes_images or self.facts.limits.images is False:
            return NONE_TAKEN
        size = sum(len(image.data) for image in images)
        if self.thread.picture_bytes + self.open_picture_bytes + size > MAX_KEPT_BYTES:
            return ALL_KEPT
        self.open_picture_bytes += size
        return None

    def renew_head(self, judge: Judge) -> None:
        """Have the head encoded again, for the bundle, the tools and the options that `judge` has when it is used."""
        self._renew_for = judge

    def _encode_head(self) -> None:
        if self._renew_for is not None:
            most = self.output_limit(self._renew_for)
            self._head = self.make_head(self._renew_for, most if self._lowered is None else min(most, self._lowered))
            self._head_tokens, self._renew_for = self.count(self._head.decode()), None

    def warm_up(self) -> None:
        """Get ready for the first request."""
        self.llm.warm_up()
        self._encode_head()

    def note(self, text: str) -> Message:
        """A note of the host to the model; `thread.add_note` has the model read it."""
        text = encodable(text)
        return Message("system", text, message_tokens(self.count, text))


def cost_fields(models: KnownModels, usage: TokenUsage, by_model: Mapping[str, TokenUsage]) -> dict[str, Any]:
    """{cost, costCurrency} of `usage`, which is split `by_model`; empty if a price is unknown."""
    cost = models.table.cost(usage, by_model)
    return {} if cost is None else cost.to_wire()


def refuse_unpriced(models: KnownModels, model: str) -> None:
    """Raises UsageError for a model without a price, whose cost cannot be limited."""
    if models.table.of(model).prices is None:
        raise UsageError(
            f"--max-cost (llm.max_cost): {model} has no price: give price_input and price_output for a million tokens "
            f'in [models."{model}"] of your configuration'
        )


def refuse_uncounted(models: KnownModels, owner: Checkpoint | Task) -> None:
    """Raises UsageError if the past cost of the session or task is unknown."""
    why = models.table.unpriced(owner.usage, owner.usage_by_model)
    if why is not None:
        raise UsageError(f"--max-cost (llm.max_cost): the cost so far is unknown: {why}")
