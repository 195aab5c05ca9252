"""How one task is shown, live and at its end: text for a person, one JSON object, or events as JSON lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

from agent_host import lenient_json
from agent_host.cli.progress import TextOutput, defused
from agent_host.cli.streams import notice, put, reason_of
from agent_host.events.sinks import JsonLines

if TYPE_CHECKING:
    from agent_host.app.headless import Finished
    from agent_host.events.emitter import Sink

# What each form puts on stdout.
_SHOWN = {"text": "the answer", "json": "the result", "jsonl": "the events"}


class Display:
    """The output of one task in the form `text`, `json` or `jsonl` (interface section 1)."""

    def __init__(self, form: str) -> None:
        self._shown = _SHOWN[form]
        self._text = TextOutput() if form == "text" else None
        self._lines = JsonLines(sys.stdout.buffer) if form == "jsonl" else None
        self._refused: Exception | None = None

    @property
    def is_text(self) -> bool:
        """Whether a person reads along."""
        return self._text is not None

    @property
    def sinks(self) -> list[Sink]:
        """What watches the session."""
        return [sink for sink in (self._text, self._lines) if sink is not None]

    @property
    def lost(self) -> str | None:
        """What stdout did not take, and why; None when it took all, or when its reader left, who wants no more."""
        sink = self._text or self._lines
        refused = self._refused or (None if sink is None else sink.refused)
        if refused is None or isinstance(refused, BrokenPipeError):
            return None
        return f"{self._shown} could not be written to stdout: {reason_of(refused)}"

    def close(self) -> None:
        """Wait for a reader of events that is behind, and say how many it did not get."""
        if self._lines is not None:
            self._lines.close()
            if self._lines.dropped:
                notice(f"{self._lines.dropped} events were left out: stdout was not read in time")

    def end(self, finished: Finished, resume_command: str) -> None:
        """Show the result, and how to go on from it."""
        end = finished.end
        if self._text is not None:
            self._text.answer(end.text)
            _show_totals(finished)
        elif self._lines is None:
            line = lenient_json.dumps(finished.result, option=orjson.OPT_APPEND_NEWLINE)
            self._refused = put(sys.stdout, line)
        if end.status != "completed":
            notice(f"{end.status}: {end.reason}: {end.message or ''}")
        _tell_denied(finished.result["deniedApprovals"], resume_command)
        if end.resumable:
            notice(f"resume with: {resume_command}")

    def repeat(self, finished: Finished, resume_command: str) -> None:
        """Show a stored result. No event comes with it, so the result is the one line of the form `jsonl`."""
        if self._lines is not None:
            self._refused = put(sys.stdout, lenient_json.dumps(finished.result, option=orjson.OPT_APPEND_NEWLINE))
        self.end(finished, resume_command)


def _tell_denied(denied: list[dict[str, Any]], resume_command: str) -> None:
    """What nobody was there to approve: each kind, and each call, once."""
    for tool, approve in sorted({(entry["toolName"], entry["replay"]["approve"]) for entry in denied}):
        notice(f"{tool} needed an approval; to give it in advance: --approve {approve}")
    for replay_id in dict.fromkeys(entry["replay"]["id"] for entry in denied if "id" in entry["replay"]):
        notice(f"to have that call run after all, and the task go on: {resume_command} --approve {replay_id}")


def _show_totals(finished: Finished) -> None:
    """The patch, and what the task took."""
    result = finished.result
    if finished.patch:
        put(sys.stderr, "\n" + (defused(finished.patch) if sys.stderr.isatty() else finished.patch))
    usage = result["usage"]
    put(
        sys.stderr,
        f"\n{result['stepCount']} steps, {len(result['toolCalls'])} tool calls, {usage['inputTokens']} tokens in, "
        f"{usage['outputTokens']} out, {result['durationMs'] / 1000:.2f} s\nrecords: {finished.records}\n",
    )
