"""What a person sees while a task runs: prose on stdout, progress on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from agent_host.cli.streams import put
from agent_host.events.kinds import EventType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar, TextIO

    from agent_host.events.emitter import Event

_SUMMARY_CHARS = 100


class TextOutput:
    """A sink for `--output text`. Text of the model goes to `out` as it comes, everything else to `progress`. `refused`
    is why `out` takes no more, None as long as it does."""

    def __init__(self, out: TextIO | None = None, progress: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._progress = sys.stderr if progress is None else progress
        self._in_text = False
        self._any_text = False
        self.refused: Exception | None = None
        self._subjects: dict[str, str] = {}
        self._began = time.monotonic()

    def take(self, event: Event) -> None:
        """Show the event, if it has something to show."""
        handler = self._HANDLERS.get(event.event_type)
        if handler is not None:
            handler(self, event.told)

    def flush(self) -> None:
        """End a line of prose that is still open."""
        if self._in_text:
            self._write("\n")
            self._in_text = False

    def answer(self, text: str) -> None:
        """The model's last words, unless they were shown as they came: a process before this one may have had them."""
        if text and not self._any_text:
            self._prose(text)
        self.flush()

    def _write(self, text: str) -> None:
        """A reader that went away or a full disk ends the prose, not the task."""
        if self.refused is None:
            self.refused = put(self._out, text)

    def _say(self, line: str) -> None:
        self.flush()
        put(self._progress, f"[{time.monotonic() - self._began:7.2f}s] {line}\n")

    def _text(self, payload: dict[str, Any]) -> None:
        self._prose(payload["text"])

    def _prose(self, text: str) -> None:
        self._write(text if not self._out.isatty() else defused(text))
        self._in_text = self._any_text = True

    def _step_started(self, payload: dict[str, Any]) -> None:
        self._say(f"step {payload['stepCount']}")

    def _model_answered(self, payload: dict[str, Any]) -> None:
        cached = f" ({payload['cachedInputTokens']} cached)" if payload["cachedInputTokens"] else ""
        self._say(
            f"  model   {payload['inputTokens']} tokens in{cached}, {payload['outputTokens']} out, "
            f"{payload['latencyMs']} ms"
        )

    def _tool_requested(self, payload: dict[str, Any]) -> None:
        subject = " ".join(str(payload.get("summary", "")).split())
        shown = f"{subject[:_SUMMARY_CHARS]}…" if len(subject) > _SUMMARY_CHARS else subject
        self._subjects[payload["toolCallId"]] = _printable(shown)

    def _tool_completed(self, payload: dict[str, Any]) -> None:
        subject = self._subjects.pop(payload["toolCallId"], "")
        outcome = payload["status"] + (f" {payload['code']}" if "code" in payload else "")
        self._say(f"  tool    {payload['toolName']} {subject} — {outcome}, {payload['latencyMs']} ms")

    def _retry(self, payload: dict[str, Any]) -> None:
        wait = payload["waitMs"] / 1000
        self._say(f"  retry   {payload['attempt']} in {wait:.1f} s: {_printable(payload['message'])}")

    def _step_limit(self, payload: dict[str, Any]) -> None:
        self._say(f"  notice  {payload['stepCount']} of {payload['maxSteps']} steps used")

    def _warning(self, payload: dict[str, Any]) -> None:
        self._say(f"  warning {_printable(payload.get('message', ''))}")

    def _expired(self, _: dict[str, Any]) -> None:
        self._say("  warning the policy has expired")

    def _approval(self, payload: dict[str, Any]) -> None:
        self._say(f"  approve {payload['decision']}: {_printable(payload['reason'])}")

    _HANDLERS: ClassVar[dict[EventType, Callable[[TextOutput, dict[str, Any]], None]]] = {
        EventType.TEXT_CHUNK: _text,
        EventType.STEP_STARTED: _step_started,
        EventType.LLM_REQUEST_COMPLETED: _model_answered,
        EventType.LLM_ANSWER_REPAIRED: _warning,
        EventType.LLM_BLOCK_DROPPED: _warning,
        EventType.LLM_RETRY: _retry,
        EventType.TOOL_REQUESTED: _tool_requested,
        EventType.TOOL_COMPLETED: _tool_completed,
        EventType.STEP_LIMIT_APPROACHING: _step_limit,
        EventType.APPROVAL_RESOLVED: _approval,
        EventType.CHECKPOINT_FAILED: _warning,
        EventType.ARTIFACT_UPLOAD_FAILED: _warning,
        EventType.STORAGE_LIMIT_REACHED: _warning,
        EventType.POLICY_EXPIRED: _expired,
    }


def defused(text: str) -> str:
    """Text for a terminal: whatever a model or a file put into it, it only shows and steers nothing."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def _printable(text: str) -> str:
    """Control characters escaped, so that what a model chose cannot steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
