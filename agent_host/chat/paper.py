"""Lines of a session for the scrollback of a terminal. Pure.

Text of a model, a tool or a file starts in the third column, however it is wrapped; only the host's own text starts in
the first. So no text can look like a question or a notice. All of it is escaped, so it cannot control the terminal.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import count_noun, escape, one_line
from agent_host.terminal import (
    BOLD,
    CYAN,
    DIFF_COLOURS,
    DIM,
    GREEN,
    PLAIN,
    RED,
    YELLOW,
    cells,
    last_state,
    lines_of_question,
    render,
    split_cells,
    without_colours,
    wrap,
    wrap_coloured,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

INDENT: Final = "  "
TAIL_LINES: Final = 5
_MOST_COLUMNS: Final = 160
_PROSE_COLUMNS: Final = 100
_DIFF_LINES: Final = 40
SIDE_BY_SIDE_COLUMNS: Final = 110
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_DIVIDER: Final = " │ "
_MOST_PAIRED: Final = 2000
_RENDERED_CHARS: Final = 8192
"""Longer text is not rendered, because it would delay keys."""


class Paper:
    """`columns` returns the width of the terminal, `styled` is true if colours are wanted; `plain` is for screen
    readers and dumb terminals: words instead of symbols, and no layout."""

    def __init__(self, columns: Callable[[], int], *, styled: bool, plain: bool = False) -> None:
        self._columns = columns
        self.styled = styled and not plain
        self.plain = plain

    @property
    def columns(self) -> int:
        """The columns to fill."""
        return min(max(self._columns(), 20), _MOST_COLUMNS)

    def style(self, colour: str, text: str) -> str:
        """Return `text` in a colour, if colours are wanted."""
        return f"{colour}{text}{PLAIN}" if self.styled and text else text

    def prompt(self, text: str, *, steers: bool = False) -> str:
        """The person's prompt."""
        mark = ("you (to the running task): " if steers else "you: ") if self.plain else ("» " if steers else "› ")
        return "\n" + self._hanging(mark, escape(text.strip("\n")), BOLD)

    def answer(self, block: str) -> str:
        """A block of the model's text."""
        text = escape(block)
        if self.plain:
            return self._indented(wrap(text.strip("\n"), self.columns - len(INDENT)))
        columns = min(self.columns - len(INDENT), _PROSE_COLUMNS)
        if len(text) > _RENDERED_CHARS:
            return "\n" + self._indented(wrap(text.strip("\n"), columns))
        rows = render(text, columns, styled=self.styled).rstrip("\n").split("\n")
        return "\n" + self._indented(part for row in rows for part in wrap_coloured(row, self.columns - len(INDENT)))

    def notice(self, text: str, *, colour: str = DIM) -> str:
        """A line of the host."""
        return self._hanging("agent-host: " if self.plain else "· ", escape(text), colour)

    def warning(self, text: str) -> str:
        """A warning of the host."""
        return self.notice(text, colour=YELLOW)

    def quoted(self, text: str) -> str:
        """Lines of another source, as they are."""
        return self._indented(wrap(escape(text), self.columns - len(INDENT)))

    def thinking(self, seconds: float, text: str) -> str:
        """The folded line for the model's thinking."""
        words = count_noun(len(text.split()), "word")
        return self.notice(f"thought for {duration(seconds)} ({words}; Ctrl-T shows them)")

    def unfolded(self, title: str, lines: Iterable[str]) -> str:
        """The complete folded text; colours of a program's output are kept."""
        return self.notice(title) + self._output(lines)

    def _output(self, lines: Iterable[str]) -> str:
        rows = [row for line in lines for row in wrap_coloured(last_state(line), self.columns - len(INDENT))]
        return self._indented(rows if self.styled else map(without_colours, rows))

    def call(
        self,
        name: str,
        subject: str,
        *,
        status: str,
        result: str = "",
        tail: Sequence[str] = (),
        hidden: str = "",
        diff: str = "",
    ) -> str:
        """A finished call: its line, and the last lines of its output or its diff."""
        colour = {"succeeded": GREEN, "denied": YELLOW}.get(status, RED)
        mark = {"succeeded": "done: ", "denied": "denied: "}.get(status, "failed: ") if self.plain else "● "
        title = self._hanging(mark, escape(f"{name} {subject}".rstrip(), keep=""), "", mark_colour=colour)
        body = self._hanging(INDENT, escape(result), DIM) if result else ""
        if hidden:
            body += self._hanging(INDENT, f"… {hidden} before (Ctrl-O shows all)", DIM)
        return f"\n{title}{body}{self._output(tail)}" + (self.diff(diff, most=_DIFF_LINES) if diff else "")

    def diff(self, diff: str, *, most: int | None = None) -> str:
        """A unified diff, side by side if there is room."""
        rows = list(self.diff_rows(diff, self.columns - len(INDENT)))
        hidden = 0 if most is None else len(rows) - most
        shown = self._indented(rows if hidden <= 0 else rows[:most])
        if hidden <= 0:
            return shown
        return shown + self._hanging(INDENT, f"… {count_noun(hidden, 'line')} more (/diff)", DIM)

    def question(self, payload: Mapping[str, Any]) -> str:
        """A question in full; nothing is cut here."""
        bar = INDENT if self.plain else self.style(YELLOW, "┃ ")
        diff = str(payload["details"].get("diff", ""))
        shown = {**payload, "details": {name: one for name, one in payload["details"].items() if name != "diff"}}
        rows = []
        for line in lines_of_question(shown):
            rows += [self.style(line.colour, one) for one in wrap(line.text, self.columns - 2, line.indent)]
        rows += self.diff_rows(diff, self.columns - 2) if diff else []
        return "\n" + "".join(f"{bar}{row}\n" for row in rows)

    def rows(self, rows: Iterable[str], *, hang: int = 4) -> str:
        """Rows of the host, escaped and otherwise unchanged."""
        wrapped = (line for row in rows for line in wrap(escape(row, keep=""), self.columns, hang))
        return "".join(f"{line}\n" for line in wrapped)

    def diff_rows(self, diff: str, columns: int) -> Iterator[str]:
        """The rows of a diff, each at most `columns` wide."""
        # Split only at newlines: a file may contain other line breaks, and no part of a line may look like another
        # line.
        lines = [escape(line, keep="") for line in diff.replace("\t", "    ").removesuffix("\n").split("\n")]
        marks = {line[:1] for line in lines if not line.startswith(("+++", "---"))}
        if self.plain or columns < SIDE_BY_SIDE_COLUMNS or len(lines) > _MOST_PAIRED or not marks >= {"+", "-"}:
            for line in lines:
                yield from self._unified(line, columns)
        else:
            yield from self._side_by_side(lines, columns)

    def _unified(self, line: str, columns: int) -> Iterator[str]:
        colour = DIM if line.startswith(("+++", "---")) else DIFF_COLOURS.get(line[:1], "")
        first = split_cells(line, columns)[0]
        yield self._paint(colour, first)
        for part in split_cells(line[len(first) :], columns - 2) if len(first) < len(line) else ():
            yield self._paint(colour, f"↪ {part}")

    def _side_by_side(self, lines: list[str], columns: int) -> Iterator[str]:
        half = (columns - len(_DIVIDER)) // 2
        old: list[tuple[int, str]] = []
        new: list[tuple[int, str]] = []
        at_old = at_new = 0
        in_hunk = False

        def flush() -> Iterator[str]:
            for left, right in zip_longest(old, new):
                yield from self._pair(left, right, half, (RED, GREEN))
            old.clear()
            new.clear()

        for line in lines:
            hunk = _HUNK.match(line)
            if in_hunk and hunk is None and line.startswith("-"):
                if new:
                    yield from flush()
                old.append((at_old, line[1:]))
                at_old += 1
                continue
            if in_hunk and hunk is None and line.startswith("+"):
                new.append((at_new, line[1:]))
                at_new += 1
                continue
            yield from flush()
            if hunk is not None:
                at_old, at_new, in_hunk = int(hunk[1]), int(hunk[2]), True
                yield self._paint(CYAN, wrap(line, columns)[0])
            elif in_hunk and line.startswith(" "):
                yield from self._pair((at_old, line[1:]), (at_new, line[1:]), half, ("", ""))
                at_old, at_new = at_old + 1, at_new + 1
            else:
                in_hunk = in_hunk and line.startswith("\\")
                for row in wrap(line, columns):
                    yield self._paint(DIM, row)
        yield from flush()

    def _paint(self, colour: str, text: str) -> str:
        return self.style(colour, text) if colour else text

    def _pair(
        self, left: tuple[int, str] | None, right: tuple[int, str] | None, half: int, colours: tuple[str, str]
    ) -> Iterator[str]:
        for parts in zip_longest(_numbered(left, half), _numbered(right, half), fillvalue=""):
            pad = " " * max(0, half - cells(parts[0]))
            first, second = (self._paint(colour, text) for colour, text in zip(colours, parts, strict=True))
            yield f"{first}{pad}{_DIVIDER}{second}".rstrip()

    def _hanging(self, mark: str, text: str, colour: str, *, mark_colour: str | None = None) -> str:
        room = self.columns - len(INDENT if not self.plain else mark)
        first, *rest = [row for line in text.split("\n") for row in wrap(line, room)]
        head = self.style(colour if mark_colour is None else mark_colour, mark)
        return f"{head}{self.style(colour, first)}\n" + self._indented(self.style(colour, row) for row in rest)

    def _indented(self, rows: Iterable[str]) -> str:
        return "".join(f"{INDENT}{row}\n" if row else "\n" for row in rows)


def duration(seconds: float) -> str:
    """A duration as short text."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def result_line(payload: Mapping[str, Any]) -> str:
    """The outcome of a call in one line, from `tool_completed` or from an item of a transcript."""
    parts = []
    if payload["status"] == "denied":
        parts.append("denied")
    if "exitCode" in payload:
        parts.append(f"exit {payload['exitCode']}")
    if payload["status"] not in ("succeeded", "open") and payload.get("message"):
        parts.append(one_line(str(payload["message"])))
    elif payload["status"] == "failed":
        parts.append(str(payload.get("code", "failed")))
    if payload.get("images"):
        parts.append(count_noun(len(payload["images"]), "picture"))
    if payload.get("commandId"):
        parts.append("runs in the background")
    if "startedAt" in payload and "endedAt" in payload:  # earlier waits do not count
        started, ended = (datetime.fromisoformat(payload[name]) for name in ("startedAt", "endedAt"))
        seconds = (ended - started).total_seconds()
        parts += [duration(seconds)] if seconds >= 1 else []
    parts += [f"the sandbox denied it {one_line(one)}" for one in payload.get("denials", ())[:3]]
    return ", ".join(parts)


def compaction_in_words(payload: Mapping[str, Any]) -> str:
    """Describe the parts of the conversation that requests no longer contain."""
    parts = [f"{payload['droppedMessages']} messages are left out"] if payload.get("droppedMessages") else []
    if payload.get("clearedMessages"):
        parts.append(f"large results of the first {payload['clearedMessages']} messages are not shown")
    before, after = payload.get("estimatedBefore"), payload.get("estimatedAfter")
    if before is not None and after is not None:
        parts.append(f"about {before:,} tokens became {after:,}")
    text = f"requests show less of the conversation ({'; '.join(parts)}); the record keeps all of it"
    return f"{text}\n{payload['summary']}" if payload.get("summary") else text


def end_in_words(kind: str, payload: Mapping[str, Any]) -> str:
    """Describe the end of a task that was not completed, or of the session, on one line."""
    what = kind.partition("_")[2] if kind != "session_failed" else "the session failed"
    parts = [what, *(str(payload[name]) for name in ("reason", "message") if payload.get(name))]
    if kind == "task_cancelled" and len(parts) > 1:
        parts = [what] if parts[-1].startswith(what) else [what, parts[-1]]
    return one_line(": ".join(dict.fromkeys(parts)), 4000)


def _numbered(line: tuple[int, str] | None, half: int) -> list[str]:
    if line is None:
        return [""]
    first, *rest = split_cells(line[1], half - 6)
    return [f"{line[0]:>4}  {first}", *(f"{'':>4}  {part}" for part in rest)]
