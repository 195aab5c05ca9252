"""What the model is sent: the head of a request, the thread behind it, and what is counted of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.thread.messages import Message, encodable
from agent_host.thread.tokens import message_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.llm.deferred import Model
    from agent_host.retrying import RetryPolicy
    from agent_host.routing.judge import Judge
    from agent_host.thread.thread import Thread


class Conversation:
    """The thread of one session and the model that reads it.

    `make_head` encodes the head of a request: model, limits, system prompt, and the tools that the judge may allow a
    call of. `head` is the current one, `head_tokens` its estimated size. `count` estimates the tokens of a text.
    """

    def __init__(
        self,
        thread: Thread,
        llm: Model,
        model: str,
        make_head: Callable[[Judge], bytes],
        retry: RetryPolicy,
        count: Callable[[str], int],
    ) -> None:
        self.thread = thread
        self.llm = llm
        self.model = model
        self.make_head = make_head
        self.retry = retry
        self.count = count
        self.head = b""
        self.head_tokens = 0

    @property
    def tokens(self) -> int:
        """The estimated size of the next request."""
        return self.head_tokens + self.thread.tokens

    def renew_head(self, judge: Judge) -> None:
        """Encode the head again, for the bundle, the tools and the options that `judge` has now."""
        self.head = self.make_head(judge)
        self.head_tokens = self.count(self.head.decode())

    def note(self, text: str) -> Message:
        """A note of the host to the model; `thread.add_note` has the model read it."""
        text = encodable(text)
        return Message("system", text, message_tokens(self.count, text))
