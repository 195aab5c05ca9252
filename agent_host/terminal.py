"""Text for a terminal, shared by every command that shows a session: styles, text width, questions and forms in lines,
Markdown."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import math
import os
import re
import threading
import time
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import escape
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import ClassVar

    from markdown_it import MarkdownIt
    from rich.console import JustifyMethod
    from rich.markdown import Markdown

    from agent_host.approval import Form, FormField

MIN_COLUMNS: Final = 40
_READ_BYTES: Final = 64 * 1024
PLAIN: Final = "\x1b[0m"
BOLD: Final = "\x1b[1m"
DIM: Final = "\x1b[2m"
RED: Final = "\x1b[31m"
GREEN: Final = "\x1b[32m"
YELLOW: Final = "\x1b[33m"
CYAN: Final = "\x1b[36m"
DIFF_COLOURS: Final = {"+": GREEN, "-": RED, "@": CYAN}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]{0,32}m")
_ERASE: Final = re.compile(r"\x1b\[[0-2]?K")
_WORDS: Final = re.compile(r"\s+|\S+")


def is_in_ci() -> bool:
    """True if this runs in CI, where a terminal is only a log."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def wants_style() -> bool:
    """True if the user and the terminal want colours and other styles."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def cells(line: str) -> int:
    """The approximate number of columns of `line`."""
    return len(line) if line.isascii() else sum(map(width, line))


def width(char: str) -> int:
    """Columns of one character, at least as many as a terminal uses for it, so that no text runs over into the next
    row. A combining character counts too, so that a line of them has an end."""
    return 2 if char >= "\u2e80" or unicodedata.east_asian_width(char) in "WF" else 1


def cut(line: str, columns: int) -> str:
    """The part of `line` that fits into `columns`; it ends with `…` if it was cut."""
    if cells(line) <= columns:
        return line
    used = 0
    for at, char in enumerate(line):
        used += width(char)
        if used >= columns:
            return line[:at] + "…"
    return line


def wrap(text: str, columns: int, hang: int | None = None) -> list[str]:
    """Wrap `text` into lines of at most `columns`, between words if possible. Only blanks at a line's end are dropped.
    Continuation lines are indented by `hang` columns, by default like their first line."""
    return [part for line in text.split("\n") for part in _wrap_line(line.expandtabs(), max(columns, 4), hang)]


def _wrap_line(line: str, columns: int, hang: int | None) -> Iterator[str]:
    if cells(line) <= columns or line.isspace():
        yield line if cells(line) <= columns else ""
        return
    begins = len(line) - len(line.lstrip()) if hang is None else hang
    indent = " " * min(begins, columns // 2)
    row = ""
    for word in _WORDS.findall(line):
        wide = cells(word)
        if cells(row) + wide <= columns:
            row += word
            continue
        if wide <= columns - len(indent) and row.strip():
            yield row.rstrip()
            row = indent
        if word.isspace():
            continue
        rest = word
        while cells(row) + cells(rest) > columns:
            part = split_cells(rest, columns - cells(row))[0] if cells(row) + width(rest[0]) <= columns else ""
            yield row + part
            row, rest = indent, rest[len(part) :]
        row += rest
    if row.strip():
        yield row


def split_cells(text: str, columns: int) -> list[str]:
    """Split `text` into pieces of at most `columns`; there is always at least one."""
    pieces: list[str] = []
    row: list[str] = []
    used = 0
    for char in text:
        wide = width(char)
        if used + wide > max(columns, 1) and row:
            pieces.append("".join(row))
            row, used = [], 0
        row.append(char)
        used += wide
    return [*pieces, "".join(row)]


def wrap_coloured(line: str, columns: int) -> list[str]:
    """Wrap one line of a program's output into rows of at most `columns`. Colours are kept, each row begins and ends
    without colour, and all other terminal control sequences are shown as escapes."""
    rows, colours, row, used = [], "", "", 0
    at = 0
    for mark in [*_COLOUR.finditer(line), None]:
        text = line[at : len(line) if mark is None else mark.start()]
        for char in escape(text, keep=""):
            wide = width(char)
            if used + wide > columns:
                rows.append(row + (PLAIN if colours else ""))
                row, used = colours, 0
            row += char
            used += wide
        if mark is not None:
            at = mark.end()
            colours = (colours + mark[0])[-256:] if mark[0] not in ("\x1b[m", PLAIN) else ""
            row += mark[0] if colours else PLAIN
    return [*rows, row + (PLAIN if colours else "")]


def without_colours(text: str) -> str:
    """Return `text` without its colours."""
    return _COLOUR.sub("", text)


def last_state(line: str) -> str:
    """The last state of a line that was overwritten with carriage returns, without the sequences that erase the end of
    a line."""
    return _ERASE.sub("", line).rstrip("\r").rpartition("\r")[2].expandtabs()


def read_lines(fd: int, take: Callable[[str | None, float], object]) -> None:
    """Pass each typed line to `take` with the monotonic time of its first character, and None at end of input. Returns
    then, or when `take` raises RuntimeError because the loop is closed. Run it in a thread."""
    waiting, started_at, data = b"", 0.0, b"-"
    with contextlib.suppress(RuntimeError), open(os.dup(fd), "rb", buffering=0) as file:
        while data:
            try:
                data = file.read(_READ_BYTES) or b""
            except OSError:
                data = b""
            now = time.monotonic()
            started_at = started_at if waiting else now
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                take(line.decode("utf-8", "replace"), started_at)
                started_at = now
        take(None, now)


# An approval as lines for a person, from the payload of `approval_requested`: `run` and `chat` show the same.


# Details with their own line, in this order.
_PLAIN_FIELDS: Final = (
    ("command", "command"), ("cwd", "in"), ("path", "path"), ("requestedPath", "asked for as"), ("newPath", "moved to"),
    ("method", "method"), ("url", "url"), ("host", "host"), ("saveTo", "saved to"), ("bodyFile", "sends"),
    ("note", "note"), ("source", "asked by"), ("question", "question"), ("stdin", "stdin"), ("body", "body"),
    ("start", "begins with"), ("otherArguments", "arguments"),
)  # fmt: skip
_LISTS: Final = (
    ("writes", "writes"), ("deletes", "deletes"), ("reads", "reads"), ("hosts", "reaches"), ("doubts", "in doubt"),
    ("runs", "runs"),
)  # fmt: skip
_NOT_SHOWN: Final = (("segmentsNotShown", "programs"), ("headersNotShown", "headers"))
_UNKNOWN: Final = "(known when it runs)"
_CUT_MARK: Final = "[… "
_ENDS_CUT: Final = "…"


class QuestionLine(NamedTuple):
    """One line, escaped; `colour` is its style if styles are wanted, `indent` the indentation of its continuation
    lines."""

    text: str
    colour: str = ""
    indent: int = 0


def lines_of_question(payload: Mapping[str, Any]) -> Iterator[QuestionLine]:
    """The question as lines. All text of the model is escaped."""
    details = dict(payload["details"])
    yield QuestionLine(escape(f"{payload['title']}: {payload['actionSummary']}", keep=""), BOLD)
    if payload["description"] and payload["description"] != details.get("question"):
        yield from _field("why", payload["description"])
    risks = "".join(f"; {risk}" for risk in payload["risks"])
    yield from _field("risk", f"{payload['riskLevel']}{risks}")
    grant = details.get("sandboxGrant") or {}
    for line in grant.get("opens", ()):
        yield from _field("opens", line)
    if grant:
        yield from _field("since", grant["reason"])
    for name, label in _PLAIN_FIELDS:
        if isinstance(details.get(name), str):
            yield from _field(label, details[name])
    yield from _lines_of_lists(details)
    for line in str(details.get("diff", "")).splitlines():
        yield QuestionLine(f"  {escape(line, keep='')}", DIFF_COLOURS.get(line[:1], ""), 3)


def _lines_of_lists(details: Mapping[str, Any]) -> Iterator[QuestionLine]:
    segments = details.get("segments") or []
    lines = [
        " ".join(_UNKNOWN if word is None else word for word in (one["program"], *one["arguments"])) for one in segments
    ]
    for line in lines if lines != [details.get("command")] else ():
        yield from _field("runs", line)
    for name, label in _LISTS:
        for one in details.get(name) or []:
            yield from _field(label, _UNKNOWN if one is None else one)
    for one in details.get("headers") or []:
        yield from _field("header", f"{one['name']}: {one.get('value', '(not shown)')}")
    for name, label in _NOT_SHOWN:
        if details.get(name):
            yield from _field(label, f"{_CUT_MARK}{details[name]} more are not shown]")


def _field(label: str, text: str) -> Iterator[QuestionLine]:
    first, *rest = escape(text).split("\n")
    yield QuestionLine(f"  {label + ':':<10} {first}", indent=13)
    for line in rest:
        yield QuestionLine(f"{'':<13}{line}", indent=13)


def hides_something(payload: Mapping[str, Any]) -> bool:
    """True if the question does not show the whole call, because something was cut, is binary or is too large to
    compare. The question marks such parts."""
    details = payload["details"]
    has_hidden_header = any("value" not in one for one in details.get("headers", ()))
    return (
        has_hidden_header
        or any(details.get(name) for name, _ in _NOT_SHOWN)
        or "binary" in details
        or _has_cut(details)
    )


def _has_cut(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith(_ENDS_CUT) or _CUT_MARK in value
    if isinstance(value, dict):
        note = value.get("note")
        return isinstance(note, str) or any(map(_has_cut, value.values()))
    return isinstance(value, list) and any(map(_has_cut, value))


# A server's elicitation at a terminal: one line of input for each field.


_FLAGS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
DECLINES: Final = "!"
"""A line that declines the whole form at any field."""


def question_of(form: Form) -> str:
    """The lines before the fields, or in place of them if there is a page to open."""
    if form.url is not None:
        return "Open the page yourself, then y; n declines: "
    return f"Answer {form.source}? y answer, n decline ({DECLINES} declines later): "


def prompt_of(field: FormField, problem: str) -> str:
    """The prompt for an answer; `problem` is the error in the previous answer."""
    lines = [f"  {problem}\n"] if problem else []
    name = field.name if field.title in ("", field.name) else f"{field.title} ({field.name})"
    lines.append(f"  {name}{f': {field.description}' if field.description else ''}\n")
    lines += [f"    {number} {words}\n" for number, (_, words) in enumerate(field.choices, 1)]
    return escape(f"{''.join(lines)}  {_hint(field)}: ")


def _hint(field: FormField) -> str:
    how = {"boolean": "y or n", "choice": "a number of the list", "choices": "numbers of the list, with blanks"}
    hint = how.get(field.kind, {"integer": "a whole number", "number": "a number"}.get(field.kind, "a text"))
    if field.default is not None:
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        return f"{hint}; nothing for {default}"
    return hint if field.required else f"{hint}; nothing to leave it out"


def take(field: FormField, line: str, content: dict[str, Any]) -> str | None:
    """Store a line as the answer to `field` in `content`. Returns the problem with it, None if it was accepted."""
    text = line.strip()
    if not text:
        if field.default is not None:
            content[field.name] = field.default
            return None
        if not field.required:
            return None
    try:
        value = _value(field, text)
    except (ValueError, KeyError, IndexError):
        return f"{field.name} needs {_hint(field)}"
    problem = field.problem(value)
    if problem is None:
        content[field.name] = value
    return problem


def _value(field: FormField, text: str) -> Any:
    if field.kind == "boolean":
        return _FLAGS[text.lower()]
    if field.kind == "integer":
        return int(text)
    if field.kind == "number":
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number
    if field.kind == "choice":
        return _chosen(field, text)
    if field.kind == "choices":
        return [_chosen(field, one) for one in text.split()]
    return text


def _chosen(field: FormField, number: str) -> str:
    place = int(number) - 1
    if place < 0:
        raise IndexError(number)
    return field.choices[place][0]


# The model's prose at a terminal: Markdown, rendered block by block while it is streamed.


FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# A block that exceeds this size is rendered before it is complete.
_MAX_OPEN_CHARS = 64 * 1024


class MarkdownBlocks:
    """Splits streamed text at the end of each Markdown block: at a blank line outside of a code fence."""

    def __init__(self) -> None:
        self.open = ""
        """The text of the unfinished block."""
        self._seen = 0  # chars of complete lines in `open` that are known to contain no end of a block
        self._fence = ""

    def add(self, text: str) -> Iterator[str]:
        """Yield the blocks that `text` completes."""
        self.open += text
        while True:
            end = self._next_end()
            if end is None:
                break
            block, self.open, self._seen = self.open[:end], self.open[end:], 0
            if block.strip():
                yield block
        if len(self.open) > _MAX_OPEN_CHARS:
            yield self.end()

    def end(self) -> str:
        """Return and clear the remaining text."""
        rest, self.open, self._seen, self._fence = self.open, "", 0, ""
        return rest

    def _next_end(self) -> int | None:
        while (at := self.open.find("\n", self._seen)) >= 0:
            line, self._seen = self.open[self._seen : at], at + 1
            mark = FENCE.match(line)
            if mark is not None and not self._fence:
                self._fence = mark[1]
            elif mark is not None and mark[1].startswith(self._fence) and not line.strip(" `~"):
                self._fence = ""
            elif not line.strip() and not self._fence:
                return self._seen
        return None


def render(block: str, columns: int, *, styled: bool = True) -> str:
    """Render one block as lines for a terminal of this many columns. The text cannot control the terminal: its control
    characters are already escaped, and a link shows its target. Nothing is left out: text that Markdown would hide
    (HTML, the address of a picture, a link's definition) is shown as written."""
    from rich.console import Console
    from rich.theme import Theme

    out = io.StringIO()
    console = Console(
        file=out,
        width=columns,
        force_terminal=styled,
        color_system="standard" if styled else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        theme=Theme({"markdown.code": "bold cyan"}),  # no background, because not every terminal is dark
    )
    parser, empty = _markdown()
    markdown = copy.copy(empty)
    markdown.parsed = parser.parse(block)
    console.print(markdown)
    rows = [row if _STYLE.sub("", row).strip() else "" for row in out.getvalue().splitlines()]
    return "\n".join(row.rstrip() for row in rows).strip("\n") + "\n"


@functools.cache
def _markdown() -> tuple[MarkdownIt, Markdown]:
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown, TableDataElement

    class LeftHeading(Heading):
        LEVEL_ALIGN: ClassVar = {}

    class FoldedCell(TableDataElement):
        def __init__(self, justify: JustifyMethod) -> None:
            super().__init__(justify)
            self.content.overflow = "fold"

    own = {"heading_open": LeftHeading, "td_open": FoldedCell, "th_open": FoldedCell}

    class OwnMarkdown(Markdown):
        elements: ClassVar = {**Markdown.elements, **own}

    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["image", "reference"]), OwnMarkdown("", hyperlinks=False, code_theme="ansi_dark")


def load_soon() -> None:
    """Import the renderer while the model is thinking."""
    threading.Thread(target=render, args=("`x`", 40), name="markdown", daemon=True).start()
