"""Limits on the size and the time of an answer of the gateway: the bounds of AH 6.3 that `[llm]` of the settings
gives."""

from __future__ import annotations

import asyncio

from config.lean_typing import NamedTuple


class GatewayTimeouts(NamedTuple):
    """Seconds. `read_s` is the longest silence between two bytes of an answer, `progress_s` the longest time without
    content (pings and comments are none), `answer_s` the longest time for one answer from its request on."""

    connect_s: float
    read_s: float
    progress_s: float
    answer_s: float


class AnswerLimits(NamedTuple):
    """Bytes of one answer, counted after decompression; each is the setting of the same name in `[llm]`."""

    max_line_bytes: int
    max_event_bytes: int
    max_call_arguments_bytes: int
    max_answer_bytes: int


class AnswerTooLarge(Exception):
    """The answer is over a limit; `str()` of it names what, how much and the setting. A retry would be over it too."""

    def __init__(self, what: str, setting: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit} bytes (llm.{setting})")


class Patience:
    """The deadlines of one answer. `timeout` is entered around the whole call, `renew` moves it with each content.

    Made where an event loop runs.
    """

    def __init__(self, timeouts: GatewayTimeouts) -> None:
        self._timeouts = timeouts
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + timeouts.answer_s
        self._renewed = self._now()
        self.timeout = asyncio.timeout_at(self._next())

    def renew(self) -> None:
        """Content has come. Asked with each event, so the deadline is moved only when it is a hundredth late."""
        if self._now() - self._renewed > self._timeouts.progress_s / 100:
            self._renewed = self._now()
            self.timeout.reschedule(self._next())

    def what_was_missed(self) -> str:
        """The part of the answer that the gateway has not given in time, with its name before it."""
        if self.timeout.when() == self._end:
            return f"was not done after {self._timeouts.answer_s:g} s (llm.answer_timeout_s)"
        return f"sent no content for {self._timeouts.progress_s:g} s (llm.progress_timeout_s)"

    def _next(self) -> float:
        return min(self._end, self._now() + self._timeouts.progress_s)
