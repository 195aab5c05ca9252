"""How one task is shown, live and at its end: text for a person, one JSON object, or events as JSON lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

from agent_host import lenient_json
from agent_host.cli.progress import Progress
from agent_host.cli.shared import tokens_in_words
from agent_host.cli.streams import notice, put, reason_of
from agent_host.cli.text_output import TextOutput, defused
from agent_host.errors import CANCELLED
from agent_host.events.sinks import JsonLines
from agent_host.shown_text import counted
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from agent_host import Result
    from agent_host.events.emitter import Sink

# What each form puts on stdout.
_SHOWN = {"text": "the answer", "json": "the result", "jsonl": "the events"}
_ENDS: dict[str, str] = {
    TaskPhase.FAILED: "failed",
    TaskPhase.CANCELLED: "cancelled",
    SessionStatus.PAUSED: "paused",
}


class Display:
    """The output of one task in the form `text`, `json` or `jsonl` (interface section 1). `verbose` shows all output of
    commands, and `asks` says that approvals are asked for at the terminal."""

    def __init__(self, form: str, *, verbose: bool = False, asks: bool = False) -> None:
        self.asks = asks
        self._shown = _SHOWN[form]
        self._text = TextOutput(verbose=verbose, asks=asks) if form == "text" else None
        self._progress = self._text or Progress(verbose=verbose, asks=asks)
        # For a CI runner stdout is one of `cli.runner_log`, which these lines go past.
        clean = getattr(sys.stdout.buffer, "clean", None)
        self._lines = JsonLines(sys.stdout.buffer, clean=clean) if form == "jsonl" else None
        self._result: bytes | None = None
        self._refused: Exception | None = None

    @property
    def is_text(self) -> bool:
        """True if a person reads along."""
        return self._text is not None

    @property
    def sinks(self) -> list[Sink]:
        """What watches the session."""
        return [sink for sink in (self._progress, self._lines) if sink is not None]

    @property
    def lost(self) -> str | None:
        """What stdout did not take, and why; None when it took all, or when its reader left, who wants no more."""
        sink = self._text or self._lines
        refused = self._refused or (None if sink is None else sink.refused)
        if refused is None or isinstance(refused, BrokenPipeError):
            return None
        return f"{self._shown} could not be written to stdout: {reason_of(refused)}"

    def notice(self, line: str) -> None:
        """One line on stderr, while the task runs."""
        self._progress.clear()
        notice(line)

    def stop(self) -> None:
        """The task runs no longer, however it ended: nothing is shown by itself any more."""
        self._progress.stop()

    def close(self) -> None:
        """Wait for a reader of events that is behind, say how many it did not get, and show the result behind the last
        one."""
        if self._lines is not None:
            self._lines.close()
            if self._lines.dropped:
                notice(f"{self._lines.dropped} events were left out: stdout was not read in time")
            if self._result is not None and self._lines.refused is None:
                self._refused = put(sys.stdout, self._result)

    def end(self, result: Result, resume_command: str | None, patch: str = "") -> None:
        """Show the result and what it changed, and how to go on from it, None where nothing is left to go on with."""
        self.stop()
        if self._text is not None:
            self._text.answer(result.text)
            _show_totals(result, patch)
        else:
            again = result.resumable or bool(result.details["deniedApprovals"])
            shown = {**result.details, "resumeCommand": resume_command if again else None}
            line = lenient_json.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
            if self._lines is None:
                self._refused = put(sys.stdout, line)
            else:
                self._result = line
        if not result.completed:
            message = result.message or ""
            is_said = result.reason == CANCELLED
            notice(message if is_said else f"{_ENDS[result.status]}: {result.reason}: {message}")
        _tell_denied(result.details["deniedApprovals"], resume_command)
        if result.unfinished and resume_command is not None:
            notice(f"resume with: {resume_command}")

    def repeat(self, result: Result, resume_command: str) -> None:
        """Show a stored result. No event comes with it, so the result is the one line of the form `jsonl`."""
        self.end(result, resume_command)


def _tell_denied(denied: list[dict[str, Any]], resume_command: str | None) -> None:
    """What nobody was there to approve: each kind, and each call, once."""
    for tool, approve in sorted({(entry["toolName"], entry["replay"]["approve"]) for entry in denied}):
        notice(f"{tool} needed an approval; to give it in advance: --approve {approve}")
    replay_ids = dict.fromkeys(entry["replay"]["id"] for entry in denied if "id" in entry["replay"])
    for replay_id in replay_ids if resume_command is not None else ():
        notice(f"to have that call run after all, and the task go on: {resume_command} --approve {replay_id}")


def _show_totals(result: Result, patch: str) -> None:
    """The patch, and what the task took."""
    if patch:
        put(sys.stderr, "\n" + (defused(patch) if sys.stderr.isatty() else patch))
    details = result.details
    tokens = tokens_in_words({**details, **details["usage"]}, cache_last=True)
    put(
        sys.stderr,
        f"\n{counted(result.step_count, 'step')}, {counted(len(details['toolCalls']), 'tool call')}, {tokens}, "
        f"{details['durationMs'] / 1000:.2f} s\nrecords: {result.records}\n",
    )
