"""Display of one task, live and at its end: text for a person, one JSON object, or events as JSON lines."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import GITHUB, GITLAB, notice, put, reason_of
from agent_host.cli.progress import OUTPUT_PREFIX, LiveView, ProgressLines, can_draw, colour_diff, columns_of, renders
from agent_host.display_text import count_noun, escape, tokens_in_words
from agent_host.errors import CANCELLED
from agent_host.events import EventType
from agent_host.events.sinks import JsonLines
from agent_host.states import SessionStatus, TaskPhase
from agent_host.terminal import MarkdownBlocks, load_soon, render
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from agent_host import Result
    from agent_host.cli.pipeline import StepMarks
    from agent_host.cli.progress import Clock
    from agent_host.events.emitter import Event, Sink

# The output of each form on stdout.
_SHOWN = {"text": "the answer", "json": "the result", "jsonl": "the events"}
_ENDS: dict[str, str] = {TaskPhase.FAILED: "failed", TaskPhase.CANCELLED: "cancelled", SessionStatus.PAUSED: "paused"}


class Display:
    """The output of one task in the form `text`, `json` or `jsonl` (interface section 1). `verbose` shows all output of
    commands; `asks` is true if approvals are asked for at the terminal. `answer_only`: the final answer is JSON, and in
    the form `text` standard output contains only that."""

    def __init__(self, form: str, *, verbose: bool = False, asks: bool = False, answer_only: bool = False) -> None:
        self.asks = asks
        self._shown = _SHOWN[form]
        self._answer_only = answer_only
        out = sys.stderr if answer_only else None
        self.is_text = form == "text"
        """True if the output is text for a person."""
        self._text = TextOutput(out, verbose=verbose, asks=asks) if self.is_text else None
        self._progress = self._text or ProgressLines(verbose=verbose, asks=asks)
        # For a CI runner stdout is a stream of `cli.runner_log`, which these lines bypass.
        clean = getattr(sys.stdout.buffer, "clean", None)
        self._lines = JsonLines(sys.stdout.buffer, clean=clean) if form == "jsonl" else None
        self.marks: StepMarks | None = None
        if os.environ.get(GITHUB) or os.environ.get(GITLAB):
            from agent_host.cli.pipeline import StepMarks  # no other run needs it

            self.marks = StepMarks(self._progress.flush)
        self._result: bytes | None = None
        self._refused: Exception | None = None
        self.lost_file = False
        """True if a requested file was not written, which was already reported."""

    @property
    def sinks(self) -> list[Sink]:
        """Observers of the session."""
        return [sink for sink in (self.marks, self._progress, self._lines) if sink is not None]

    @property
    def lost(self) -> str | None:
        """The reason why output on stdout was lost; None if nothing was, or if its reader left and wants no more."""
        sink = self._text or self._lines
        if self.lost_file:
            return "a file that was asked for is missing"
        refused = self._refused or (None if sink is None else sink.refused)
        if refused is None or isinstance(refused, BrokenPipeError):
            return None
        return f"{self._shown} could not be written to stdout: {reason_of(refused)}"

    def notice(self, line: str) -> None:
        """One line on stderr, while the task runs."""
        self._progress.clear()
        notice(line)

    def stop(self) -> None:
        """Stop all timed output, because the task no longer runs."""
        self._progress.stop()
        if self.marks is not None:
            self.marks.end()

    def close(self) -> None:
        """Wait for a slow reader of events, report how many it missed, and show the result after the last one."""
        if self._lines is not None:
            self._lines.close()
            if self._lines.dropped:
                notice(f"{self._lines.dropped} events were left out: stdout was not read in time")
            if self._result is not None and self._lines.refused is None:
                self._refused = put(sys.stdout, self._result)

    def end(self, result: Result, resume_command: str | None, patch: str = "") -> None:
        """Show the result, its changes and the command that continues it (None if there is nothing to continue)."""
        self.stop()
        if self._text is not None:
            if self._answer_only and "answer" in result.details:
                self._text.flush()
                data = json_text.dumps(result.details["answer"], option=orjson.OPT_APPEND_NEWLINE)
                self._refused = put(sys.stdout, data)
            else:
                self._text.answer(result.text)
            _show_totals(result, patch)
        else:
            again = result.resumable or bool(result.details["deniedApprovals"])
            shown = {**result.details, "resumeCommand": resume_command if again else None}
            line = json_text.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
            if self._lines is None:
                self._refused = put(sys.stdout, line)
            else:
                self._result = line
        if not result.completed:
            message = result.message or ""
            is_cancelled = result.reason == CANCELLED
            notice(message if is_cancelled else f"{_ENDS[result.status]}: {result.reason}: {message}")
        _print_denied(result.details["deniedApprovals"], resume_command)
        if result.unfinished and resume_command is not None:
            notice(f"resume with: {resume_command}")


def _print_denied(denied: list[dict[str, Any]], resume_command: str | None) -> None:
    for tool, approve in sorted({(entry["toolName"], entry["replay"]["approve"]) for entry in denied}):
        notice(f"{tool} needed an approval; to give it in advance: --approve {approve}")
    replay_ids = dict.fromkeys(entry["replay"]["id"] for entry in denied if "id" in entry["replay"])
    for replay_id in replay_ids if resume_command is not None else ():
        notice(f"to run that call after all and continue the task: {resume_command} --approve {replay_id}")


def _show_totals(result: Result, patch: str) -> None:
    if patch:
        put(sys.stderr, "\n" + (colour_diff(escape(patch)) if sys.stderr.isatty() else patch))
    details = result.details
    tokens = tokens_in_words({**details, **details["usage"]}, cache_last=True)
    put(
        sys.stderr,
        f"\n{count_noun(result.step_count, 'step')}, {count_noun(len(details['toolCalls']), 'tool call')}, {tokens}, "
        f"{details['durationMs'] / 1000:.2f} s\nrecords: {result.records}\n",
    )


# Live text while a task runs: prose on stdout, progress on stderr.

_UNDER = " " * 21
_OUTPUT_CHARS = 400
_LOAD_AFTER_S = 0.1  # the request has been sent by then


class TextOutput(ProgressLines):
    """A sink for `--output text`. The model's text is streamed to `out`, everything else goes to `progress`. `refused`
    is the reason why `out` failed, None while it works.

    On a terminal that supports drawing, a running call is shown with the last lines of its output.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        progress: TextIO | None = None,
        *,
        verbose: bool = False,
        asks: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(progress, verbose=verbose, asks=asks, clock=clock)
        self._out = sys.stdout if out is None else out
        self._in_text = False
        self._any_text = False
        self.refused: Exception | None = None
        if not verbose and can_draw(self._progress):
            self._view = LiveView(self._progress, self._running, self._clock, self._stamp, lambda: self._in_text)
        self._blocks = MarkdownBlocks() if renders(self._out) else None
        self._drop_loading: Callable[[], None] | None = None

    def stop(self) -> None:
        """See ProgressLines."""
        super().stop()
        if self._drop_loading is not None:
            self._drop_loading()

    def flush(self) -> None:
        """End an open line of prose, or show the rest of the rendered text."""
        if self._blocks is not None and self._blocks.open:
            self._write_rendered(self._blocks.end())
        if self._in_text:
            self._write("\n")
            self._in_text = False

    def answer(self, text: str) -> None:
        """Show the final answer unless it was streamed; an earlier process may have received it."""
        if text and not self._any_text:
            self._prose(text)
        self.flush()

    def _write(self, text: str) -> None:
        """Write prose; a reader that left or a full disk ends the prose, not the task."""
        if self.refused is None:
            self.refused = put(self._out, text)

    def _beats(self) -> bool:
        return not can_draw(self._progress)

    def _beat(self) -> None:
        if self._in_text:  # stdout gets the model's text unchanged
            put(self._progress, "\n")
        super()._beat()

    def _show(self, event: Event) -> None:
        super()._show(event)
        kind = event.event_type
        match kind:
            case EventType.TOOL_OUTPUT_CHUNK if not self._verbose:
                self._take_output(event)
            case EventType.TEXT_CHUNK:
                self._prose(event.public_payload["text"])
            case EventType.LLM_REQUEST_STARTED if self._blocks is not None and self._drop_loading is None:
                self._drop_loading = self._clock.later(_LOAD_AFTER_S, load_soon)
            case EventType.TOOL_COMPLETED:
                self._tool_completed(event.public_payload)
            case EventType.APPROVAL_REQUESTED:
                self.flush()
            case _ if kind in _LINES and (kind is not EventType.SESSION_STARTED or "message" in event.payload):
                self._put(self._stamp(escape(_LINES[kind](event.public_payload), keep="")))

    def _put(self, text: str) -> None:
        self.flush()
        super()._put(text)

    def _prose(self, text: str) -> None:
        self._any_text = True
        if self._blocks is not None:
            for block in self._blocks.add(text):
                self._write_rendered(block)
            return
        self.clear()
        self._heartbeat.note_output()
        self._write(text if not self._out.isatty() else escape(text))
        self._in_text = True

    def _write_rendered(self, block: str) -> None:
        self.clear()
        self._write(f"{render(escape(block), columns_of(self._out))}\n")

    def _tool_completed(self, payload: dict[str, Any]) -> None:
        outcome = payload["status"] + (f" {payload['code']}" if "code" in payload else "")
        if payload.get("exitCode"):
            outcome = f"exit code {payload['exitCode']}"
        call = self._running.calls.get(payload["toolCallId"])
        label = escape(payload["toolName"], keep="") if call is None else call.label
        waited_ms = 0 if call is None else call.answered_ms  # no time limit for a person
        duration_ms = max(payload["latencyMs"] - waited_ms, 0)
        lines = [self._stamp(f"  tool    {label} — {outcome}, {duration_ms} ms")]
        if "message" in payload:
            lines.append(f"{_UNDER}{escape(payload['message'], keep='')}\n")
        failed = payload["status"] == "failed" or payload.get("exitCode")
        if failed and not self._verbose and call is not None:
            lines += [f"{OUTPUT_PREFIX}{_head(line)}\n" for line in call.output.last_of_each()]
        self._put("".join(lines))


def _retry(payload: dict[str, Any], what: str = "") -> str:
    return f"  retry   {what or payload['attempt']} in {payload['waitMs'] / 1000:.1f} s: {payload['message']}"


def _command_ended(payload: dict[str, Any]) -> str:
    """Show the end of a background command, or of processes that commands left running when the session ended."""
    if "commandId" not in payload:
        return f"  command {payload['processesEnded']} process(es) left by commands were ended with the session"
    how = [payload["reason"].replace("_", " ")]
    how += [f"exit code {payload['exitCode']}"] if "exitCode" in payload else []
    how += [f"{payload['processesLeft']} process(es) still running"] if "processesLeft" in payload else []
    return f"  command {payload['commandId']} — {', '.join(how)}"


_E = EventType
_LINES: dict[EventType, Callable[[dict[str, Any]], str]] = {
    _E.STEP_STARTED: lambda payload: f"step {payload['stepCount']}",
    _E.LLM_REQUEST_COMPLETED: lambda payload: f"  model   {tokens_in_words(payload)}, {payload['latencyMs']} ms",
    _E.LLM_RETRY: _retry,
    _E.CONTEXT_SUMMARY_RETRY: lambda payload: _retry(payload, "of a summary"),
    _E.COMMAND_ENDED: _command_ended,
    _E.STEP_LIMIT_APPROACHING: lambda payload: f"  notice  {payload['stepCount']} of {payload['maxSteps']} steps used",
    _E.APPROVAL_RESOLVED: lambda payload: f"  approve {payload['decision']}: {payload['reason']}",
    _E.POLICY_EXPIRED: lambda _: "  warning the policy has expired",
    **dict.fromkeys(
        (_E.LLM_DIALECT_CHOSEN, _E.LLM_SERVER_READ, _E.LLM_COUNT_ODD, _E.TOOLS_CHANGED),
        lambda payload: f"  notice  {payload['message']}",
    ),
    **dict.fromkeys(
        (_E.SESSION_STARTED, _E.LLM_ANSWER_REPAIRED, _E.LLM_BLOCK_DROPPED, _E.LLM_WINDOW_CUT, _E.LLM_FALLBACK,
         _E.TOOLS_HIDDEN, _E.CHECKPOINT_FAILED, _E.ARTIFACT_UPLOAD_FAILED, _E.STORAGE_LIMIT_REACHED),
        lambda payload: f"  warning {payload.get('message', '')}",
    ),
}  # fmt: skip
"""Functions for the lines of events, not yet escaped."""


def _head(line: str) -> str:
    return line if len(line) <= _OUTPUT_CHARS else f"{line[:_OUTPUT_CHARS]}…"
