"""A session's current activity, from its events: running calls with their output, a task's usage, and the text of an
answer, split into blocks. Bounded."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat.paper import TAIL_LINES, duration
from agent_host.display_text import count_noun, one_line
from agent_host.terminal import MarkdownBlocks, cut, last_state, without_colours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEPT_CHARS: Final = 256 * 1024
_OPEN_CHARS: Final = 16 * 1024
_SUBJECT_BYTES: Final = 200
_LEAST_SUBJECT: Final = 8
_GAP: Final = re.compile(r"^\[\.\.\. \d+ bytes left out \.\.\.\]$", re.MULTILINE)
"""The mark of `events/emitter.py`. If a program prints it, its output is read from the record, and nothing else
happens."""


class CommandOutput:
    """Bounded output of a call: its last lines, and all of it while it is short and complete."""

    def __init__(self) -> None:
        self.count = 0
        self.is_whole = True
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self.lines: list[str] = []
        """All retained lines."""
        self._kept_chars = 0
        self._open: dict[str, str] = {}

    def add(self, stream: str, text: str) -> None:
        """Add the next piece of a stream."""
        if _GAP.search(text) is not None:
            self.is_whole = False
        *complete, still_open = (self._open.get(stream, "") + text).split("\n")
        if len(still_open) > _OPEN_CHARS:
            complete, still_open = [*complete, still_open], ""
        self._open[stream] = still_open
        for line in complete:
            self._keep(line)

    def end(self) -> None:
        """Add the unfinished lines."""
        for line in self._open.values():
            if line.strip():
                self._keep(line)
        self._open.clear()

    @property
    def tail(self) -> list[str]:
        """The last lines, including unfinished ones."""
        return [*self._last, *(line for line in map(last_state, self._open.values()) if line.strip())][-TAIL_LINES:]

    @property
    def hidden(self) -> str:
        """The number of lines above the last ones, as text; empty if there are none."""
        number = self.count - len(self._last)
        if number <= 0:
            return ""
        return count_noun(number, "line") if self.is_whole else f"more than {count_noun(number, 'line')}"

    def _keep(self, line: str) -> None:
        self.count += 1
        shown = last_state(line)
        if without_colours(shown).strip():
            self._last.append(shown)
        self._kept_chars += len(line)
        if self._kept_chars <= _KEPT_CHARS:
            self.lines.append(line)
        else:
            self.is_whole = False


class RunningCall:
    """A call without a result."""

    def __init__(self, payload: Mapping[str, Any], subject: str) -> None:
        self.name = str(payload["toolName"])
        self.subject = subject
        self.arguments: Mapping[str, Any] | None = payload.get("arguments")
        self.since = time.monotonic()
        self.is_asked = False
        self.output = CommandOutput()


class Activity:
    """The running task: its step, calls and tokens."""

    def __init__(self) -> None:
        self.sandbox = self._launch_sandbox = ""
        self.background: set[str] = set()
        self.calls: dict[str, RunningCall] = {}
        self.thinking = ""
        self.thinking_since: float | None = None
        self.model = ""
        self._step = 0
        self._model_since: float | None = None
        self._started_at: float | None = None
        self._tokens = self._expected = 0
        self._cost: dict[str, float] = {}

    def begin(self) -> None:
        """Start a task."""
        self._started_at = time.monotonic()
        self._step = self._tokens = self._expected = 0
        self._cost.clear()
        self.stop()

    def stop(self) -> None:
        """Mark that nothing runs any more."""
        self._model_since = self.thinking_since = None
        self._expected = 0
        self.calls.clear()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the task."""
        return 0.0 if self._started_at is None else time.monotonic() - self._started_at

    def take(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Update from an event."""
        call = self.calls.get(payload.get("toolCallId", ""))
        match kind:
            case "session_started" | "session_resumed":
                level = (payload.get("sandbox") or {}).get("level", "none")
                self.sandbox = self._launch_sandbox = one_line(str(level), 40)
                self.model = one_line(str(payload.get("model", self.model)), 80)
            case "mode_changed":
                self.sandbox = one_line(str(payload.get("sandbox", self._launch_sandbox)), 40)
            case "step_started":
                self._step, self._model_since = payload["stepCount"], None
                self._started_at = time.monotonic() if self._started_at is None else self._started_at
            case "llm_request_started":
                self.model = one_line(str(payload.get("model", "")), 80)
                self._expected = payload.get("estimatedInputTokens", 0)
                self._model_since = time.monotonic()
            case "llm_request_completed":
                self._add_usage(payload)
            case "thinking_chunk":
                self._add_thoughts(payload["text"])
            case "tool_output_chunk" if call is not None:
                call.output.add(payload["stream"], payload["text"])
            case "approval_requested" | "approval_resolved" if call is not None:
                call.is_asked, call.since = kind == "approval_requested", time.monotonic()
            case "command_ended":
                self.background.discard(str(payload.get("commandId", "")))

    def line(self, columns: int = 1000) -> str:
        """The step, the running or awaited call, seconds, tokens, cost, the sandbox, background commands; a call's
        subject is cut, so that the rest fits."""
        now = time.monotonic()
        running = [call for call in self.calls.values() if not call.is_asked]
        parts = [f"step {self._step}"] if self._step else []
        if running:
            others = [f"and {len(running) - 1} more"] if len(running) > 1 else []
            ends = " · ".join(["", *others, duration(now - running[0].since), *self.totals()])
            begins = " · ".join([*parts, one_line(running[0].name, 60)])
            room = columns - len(begins) - len(ends) - 1
            subject = cut(running[0].subject, room) if room > _LEAST_SUBJECT else ""
            return f"{begins} {subject}".rstrip() + ends
        if self.calls:
            parts += ["a question waits"]
        elif self._model_since is not None:
            what = "thinking" if self.thinking_since is not None else f"waiting for {self.model or 'the model'}"
            parts += [what, duration(now - self._model_since)]
        elif self._started_at is not None:
            parts += ["working", duration(self.seconds)]
        return " · ".join([*parts, *self.totals()])

    def totals(self) -> list[str]:
        """Tokens and cost of the task, the sandbox, background commands."""
        tokens = self._tokens + self._expected
        parts = [f"{tokens:,} tokens"] if tokens else []
        parts += self._costs()
        parts += [f"sandbox {self.sandbox}"] if self.sandbox else []
        return parts + ([f"{len(self.background)} in the background"] if self.background else [])

    def summary(self) -> str:
        """The task in one line, at its end."""
        done = (count_noun(self._step, "step"), f"{self._tokens:,} tokens")
        return ", ".join([*done, *self._costs(), duration(self.seconds)])

    def _costs(self) -> list[str]:
        return [f"{cost:.4f} {currency}" for currency, cost in self._cost.items()]

    def _add_usage(self, payload: Mapping[str, Any]) -> None:
        self._model_since, self._expected = None, 0
        self._tokens += payload.get("inputTokens", 0) + payload.get("outputTokens", 0)
        if "cost" in payload:
            currency = one_line(str(payload.get("costCurrency", "")), 20)
            self._cost[currency] = self._cost.get(currency, 0.0) + payload["cost"]

    def _add_thoughts(self, text: str) -> None:
        if self.thinking_since is None:
            self.thinking_since, self.thinking = time.monotonic(), ""
        self.thinking = (self.thinking + text)[-_KEPT_CHARS:]


def subject_of(arguments: Mapping[str, Any], summary: str, workspace: str) -> str:
    """The subject of a call on one line; a path of the workspace is relative to it."""
    found = next((arguments[name] for name in ("command", "path", "url", "pattern") if name in arguments), summary)
    return one_line(str(found), _SUBJECT_BYTES).removeprefix(workspace.rstrip("/\\") + "/")


# The model's streamed text, split into final blocks of Markdown, so that each is printed once.
#
# A block is final when the next one begins. Printed text cannot be removed, because the scrollback belongs to the
# terminal. So if an answer starts again (the gateway failed, the process died), its new text is compared with the
# printed text, and only new text is printed. If the texts differ, a mark is printed, followed by the whole new text.


BEGINS_AGAIN: Final = None
"""Yielded in place of a block: the text above was withdrawn, and another answer follows."""


class AnswerText:
    """The text of answers, one after the other."""

    def __init__(self) -> None:
        self._blocks = MarkdownBlocks()
        self._text = ""
        self._before = ""  # text that a withdrawn attempt has printed
        self._buffered = ""  # new text that is equal to it so far

    @property
    def growing(self) -> str:
        """The block that is not final yet."""
        return "" if self._before else self._blocks.open

    def add(self, text: str) -> Iterator[str | None]:
        """Yield the blocks that `text` makes final."""
        if self._before:
            self._buffered += text
            if self._before.startswith(self._buffered) and self._buffered != self._before:
                return
            yield from self._compare()
            return
        yield from self._cut(text)

    def end(self, *, is_whole: bool = True) -> Iterator[str | None]:
        """Yield the rest of the answer, which is complete or was interrupted."""
        if self._before and (is_whole or not self._before.startswith(self._buffered)):
            yield from self._compare()
        rest = self._blocks.end()
        if rest.strip():
            yield rest
        self._text = self._before = self._buffered = ""

    def take_back(self) -> None:
        """Expect the answer to start again."""
        self._before = self._before or self._text.removesuffix(self._blocks.end())
        self._text = self._buffered = ""

    def _compare(self) -> Iterator[str | None]:
        before, buffered = self._before, self._buffered
        self._before = self._buffered = ""
        if buffered.startswith(before):
            self._text, buffered = before, buffered[len(before) :]
        else:
            yield BEGINS_AGAIN
        yield from self._cut(buffered)

    def _cut(self, text: str) -> Iterator[str]:
        self._text += text
        yield from self._blocks.add(text)
