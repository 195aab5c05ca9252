"""The pages: templates, style and scripts, and the page of many sessions; `agent_host.view.session` has that of one
session.

Each is one HTML file that loads nothing else. Only a page's own style and script are applied, because its content
security policy lists their hashes. All text of a session is escaped by the template or by this module (`Shown`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from base64 import b64encode
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup
from markupsafe import escape as to_html

from agent_host import __version__
from agent_host.display_text import count_noun, escape, one_line
from agent_host.host.options import state_option
from agent_host.text_diff import changes
from agent_host.view.timeline import duration_text, spread_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from agent_host.host.records import StoredSession

_FOLDER: Final = os.path.join(os.path.dirname(__file__), "templates")


@functools.cache
def environment() -> jinja2.Environment:
    """The templates; every value is escaped, and a missing one is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"version": __version__, "duration": duration_text}
    return made


@functools.cache
def read_asset(name: str) -> Markup:
    """A style or script, in the form that the pages contain."""
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
        return Markup(file.read())  # noqa: S704  a file of this package


def hash_of(asset: str) -> str:
    """The hash of an asset for a content security policy."""
    return f"'sha256-{b64encode(hashlib.sha256(asset.encode()).digest()).decode()}'"


def assets() -> dict[str, Any]:
    """Parts that a standalone file needs in addition to its content: style, script, and the policy with their
    hashes."""
    style, script = read_asset("page.css"), read_asset("page.js")
    policy = (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": style, "script": script, "policy": Markup(policy)}  # noqa: S704  hashes


# Many sessions


def session_lines(rows: Iterable[StoredSession], *, state_dir: str, href: str | None) -> list[dict[str, Any]]:
    """The rows of a table: `href` leads to the session's page, else `command` makes one. The argument `href` is the
    address of a page with `{}` for the id. The only text of a session is its metadata: title, workspace and end."""
    option = state_option(state_dir)
    return [_session_line(row, option, href) for row in rows]


def _session_line(row: StoredSession, option: str, href: str | None) -> dict[str, Any]:
    by = row.ending.get("endedBy")
    why = "" if row.reason in (None, row.verdict) else f"{row.reason}, "
    return {
        "row": row,
        "href": "" if href is None else href.format(row.session_id),
        "command": f"agent-host show {row.session_id}{option} --html {row.session_id}.html",
        "name": one_line(row.title, 200) or row.session_id,
        "tone": _VERDICT_TONES.get(row.verdict, ""),
        "ended_by": escape(f"{why}by {by}" if by else "", keep=""),
        "workspace": escape(row.workspace, keep=""),
        "spent_s": None if row.duration_ms is None else row.duration_ms / 1000,
        "cost": (row.usage or {}).get("cost"),
        "currency": str((row.usage or {}).get("costCurrency", "")),
        "waits": f"agent-host resume {row.session_id}{option}" if row.resumable and row.verdict != "running" else "",
    }


_VERDICT_TONES: Final[Mapping[str, str]] = {
    "completed": "good", "failed": "bad", "denied": "bad", "interrupted": "bad", "paused": "warn", "cancelled": "warn",
}  # fmt: skip


def sessions_page(rows: Sequence[StoredSession], *, state_dir: str, folder: str | None) -> bytes:
    """The page of many sessions. `folder` is the folder of their own pages, relative to this page; None if there are
    none."""
    href = None if folder is None else f"{quote(folder)}/{{}}.html"
    lines = session_lines(rows, state_dir=state_dir, href=href)
    values = {
        "lines": lines,
        "counts": [(verdict, sum(row.verdict == verdict for row in rows), tone) for verdict, tone in _COUNTED],
        "charts": [one for one in (
            spread_chart("Cost of a session", [one["cost"] for one in lines], lambda value: f"{value:.3g}"),
            spread_chart("Time of the last task", [one["spent_s"] for one in lines], duration_text),
            spread_chart("Tokens of a session", [row.total_tokens for row in rows], lambda value: f"{value:,.0f}"),
        ) if one],
    }  # fmt: skip
    return environment().get_template("sessions.html").render(c=values, **assets()).encode("utf-8", "replace")


_COUNTED: Final = (*_VERDICT_TONES.items(), ("running", ""))


def list_body(rows: Sequence[StoredSession], asked: Collection[str], *, state_dir: str) -> dict[str, Any]:
    """The list of a live page in its parts: sessions that wait for a person are first, the others newest first; `asked`
    are those with an open question."""
    parts: Any = environment().get_template("parts.html").module
    lines = session_lines(rows, state_dir=state_dir, href="/s/{}")
    count = 0
    for one in lines:
        one["order"] = 1 if one["waits"] else 2
        if one["row"].session_id in asked:
            one |= {"waits": "waits for an answer", "tone": "warn", "order": 0}
            count += 1
    lines.sort(key=lambda one: one["order"])
    title = f"{f'({count}) ' if count else ''}{count_noun(len(lines), 'session')}"
    return {"title": title, "parts": {"head": str(parts.list_head(title, count)), "more": str(parts.table(lines))}}


def live_shell() -> tuple[bytes, Markup, tuple[Markup, ...]]:
    """The page that a live view loads, with style and scripts but no data."""
    style, scripts = read_asset("page.css"), (read_asset("page.js"), read_asset("live.js"))
    page = environment().get_template("live.html").render(style=style, scripts=scripts)
    return page.encode(), style, scripts


# Text of a session as HTML: escaped, with the colours of commands, cut to a page's limits.
#
# All of it is hostile. Results are `Markup` that was escaped here, or strings that the template escapes. Unprintable
# characters, including those that change the writing direction, are shown as escapes.


MOST_OF_ONE: Final = 8 * 1024
"""Bytes of one text that a page shows."""
MOST_OF_ALL: Final = 2 * 1024 * 1024
"""Bytes of HTML that all texts of a page may have together."""
ENDS: Final = 256
"""Bytes of the start and of the end of a text that is too long for the page."""
_MOST_DIFF_LINES: Final = 400


class Shown(NamedTuple):
    """A text on a page: `html` and, if it was cut, its full size in bytes. `tail` is the end of a cut text."""

    html: Markup
    cut_from: int = 0
    tail: Markup = Markup()


class Budget:
    """The size limit for texts of a page, as HTML; no limit with `full`."""

    def __init__(self, *, full: bool = False) -> None:
        self._full = full
        self._left = MOST_OF_ALL

    def ends(self, text: str, *, tail: bool = True) -> Shown:
        """The text if it is short, else its start and end, for which there is always room; without `tail` only its
        start."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size <= 2 * ENDS:
            html = to_html(escape(text))
            if _bytes(html) <= 2 * ENDS:
                self._left -= _bytes(html)
                return Shown(html)
        start = cut_start(text, ENDS if tail else ENDS // 2)
        shown = Shown(
            start, size, _cut(text[-ENDS:], ENDS, lambda text: text[len(text) - len(text) // 2 :]) if tail else Markup()
        )
        self._left -= _bytes(shown.html) + _bytes(shown.tail)
        return shown

    def whole_or_ends(self, text: str, ends: Shown, coloured: Mapping[str, str] | None = None) -> Shown:
        """The whole text with colours if there is room, else its `ends`."""
        if not self._full and ends.cut_from > MOST_OF_ONE:
            return ends
        if not (ends.cut_from or coloured):
            return ends
        html = _with_colours(text, coloured) if coloured else to_html(escape(text))
        return Shown(html) if self._take(_bytes(html) - _bytes(ends.html) - _bytes(ends.tail)) else ends

    def fit(self, text: str) -> Shown:
        """The whole text if there is room, else its ends."""
        return self.whole_or_ends(text, self.ends(text))

    def diff(self, rows: list[DiffRow]) -> list[DiffRow] | None:
        """The rows of a diff, None if there is no room for them."""
        cost = sum(_bytes(to_html(row.left)) + _bytes(to_html(row.right)) + _ROW_BYTES for row in rows)
        fits = self._full or (len(rows) <= _MOST_DIFF_LINES and cost <= 4 * MOST_OF_ONE)
        return rows if fits and self._take(cost) else None

    def _take(self, size: int) -> bool:
        if self._full:
            return True
        if size > self._left:
            return False
        self._left -= size
        return True


def _bytes(html: str) -> int:
    return len(html) if html.isascii() else len(html.encode("utf-8", "surrogatepass"))


def cut_start(text: str, most: int) -> Markup:
    """The longest start of the text with at most this many bytes of HTML."""
    return _cut(text[:most], most, lambda text: text[: len(text) // 2])


def _cut(text: str, most: int, halve: Callable[[str], str]) -> Markup:
    while _bytes(html := to_html(escape(text))) > most:
        text = halve(text)
    return html


# Colours: SGR as classes of the 16 colours, because a policy of hashes allows no style attributes.

_SGR: Final = re.compile("\x1b\\[([0-9;:]*)m")
_STYLES: Final = {1: "b", 2: "dim", 3: "i", 4: "u", 7: "inv"}
_OFF: Final = {22: ("b", "dim"), 23: ("i",), 24: ("u",), 27: ("inv",)}
_BASIC: Final = ((30, "fg", 0), (40, "bg", 0), (90, "fg", 8), (100, "bg", 8))
_STEPS: Final = (0, 95, 135, 175, 215, 255)


def _with_colours(text: str, streams: Mapping[str, str]) -> Markup:
    """The text, with colours in each stream that it contains completely."""
    for stream in streams.values():
        plain = _SGR.sub("", stream).rstrip("\n")
        if plain and plain in text:
            text = text.replace(plain, stream.rstrip("\n"), 1)
    return coloured_html(text)


def coloured_html(text: str) -> Markup:
    """Text with SGR as spans; all other control characters are shown as escapes."""
    parts: list[str] = []
    at, state = 0, dict[str, str]()
    for found in _SGR.finditer(text):
        _add_piece(parts, text[at : found.start()], state)
        _apply(state, found[1])
        at = found.end()
    _add_piece(parts, text[at:], state)
    return Markup("".join(parts))  # noqa: S704  each part was escaped


def _add_piece(parts: list[str], piece: str, state: Mapping[str, str]) -> None:
    if not piece:
        return
    html = str(to_html(escape(piece)))
    parts.append(f'<span class="{" ".join(state.values())}">{html}</span>' if state else html)


def _apply(state: dict[str, str], parameters: str) -> None:
    numbers = [int(one) if one else 0 for one in re.split("[;:]", parameters)][:32]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            state.clear()
        elif number in _STYLES:
            state[_STYLES[number]] = f"s-{_STYLES[number]}"
        elif number in _OFF:
            for name in _OFF[number]:
                state.pop(name, None)
        elif number in (39, 49):
            state.pop("fg" if number == 39 else "bg", None)
        elif number in (38, 48):
            colour = _extended(numbers)
            if colour is not None:
                state["fg" if number == 38 else "bg"] = f"{'fg' if number == 38 else 'bg'}-{colour}"
        else:
            for start, name, first in _BASIC:
                if start <= number < start + 8:
                    state[name] = f"{name}-{first + number - start}"


def _extended(numbers: list[int]) -> int | None:
    """The nearest of the 16 colours to one of 256 or a 24-bit one; consumes its numbers."""
    kind = numbers.pop(0) if numbers else 0
    if kind == 5 and numbers:
        number = numbers.pop(0)
        if number < 16:
            return number
        if number >= 232:
            return _nearest(*[8 + 10 * (number - 232)] * 3)
        number = min(number, 231) - 16
        return _nearest(_STEPS[number // 36], _STEPS[number // 6 % 6], _STEPS[number % 6])
    if kind == 2 and len(numbers) >= 3:
        red, green, blue, *rest = numbers
        numbers[:] = rest
        return _nearest(red, green, blue)
    return None


def _nearest(red: int, green: int, blue: int) -> int:
    high = max(red, green, blue)
    if high - min(red, green, blue) < 40:
        return 0 if high < 64 else 8 if high < 160 else 7 if high < 230 else 15
    bits = sum(bit for bit, part in ((1, red), (2, green), (4, blue)) if part > high // 2)
    return bits + (8 if high > 200 else 0)


# Diffs, side by side.

_ROW_BYTES: Final = 90


class DiffRow(NamedTuple):
    """A row of a diff: `kind` is `same`, `change`, `hunk` or `note`; numbers are "" if a side has no line."""

    kind: str
    left: str
    right: str
    old: str = ""
    new: str = ""


def rows_of_patch(diff: str) -> list[DiffRow]:
    """The rows of a unified diff of one file. Anything outside hunks is a note."""
    rows: list[DiffRow] = []
    removed: list[tuple[str, int | str]] = []
    added: list[tuple[str, int | str]] = []
    old = new = 0
    in_hunk = False
    for line in diff.split("\n"):
        if in_hunk and line.startswith("-"):
            removed.append((line[1:], old))
            old += 1
        elif in_hunk and line.startswith("+"):
            added.append((line[1:], new))
            new += 1
        else:
            rows += _paired(removed, added)
            removed, added = [], []
            head = _HUNK.match(line)
            if head is not None:
                old, new, in_hunk = int(head[1]), int(head[2]), True
                rows.append(DiffRow("hunk", escape(line, keep=""), ""))
            elif in_hunk and line.startswith(" "):
                rows.append(DiffRow("same", escape(line[1:]), escape(line[1:]), str(old), str(new)))
                old, new = old + 1, new + 1
            elif line and not line.startswith(("diff --git", "index ", "--- ", "+++ ")):
                rows.append(DiffRow("note", escape(line.lstrip("\\# "), keep=""), ""))
    return rows + list(_paired(removed, added))


_HUNK: Final = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


def _paired(removed: Iterable[tuple[str, int | str]], added: Iterable[tuple[str, int | str]]) -> Iterator[DiffRow]:
    for old, new in zip_longest(removed, added):
        kind = "change" if old and new else "del" if old else "add"
        (left, at_old), (right, at_new) = old or ("", ""), new or ("", "")
        yield DiffRow(kind, escape(left), escape(right), str(at_old), str(at_new))


def rows_of_edits(arguments: Any) -> list[DiffRow]:
    """The rows of the text replacements that a call requests; none for other calls."""
    edits = arguments.get("edits") if isinstance(arguments, dict) else None
    rows: list[DiffRow] = []
    for edit in edits if isinstance(edits, list) else ():
        old, new = (edit.get("oldText"), edit.get("newText")) if isinstance(edit, dict) else (None, None)
        if isinstance(old, str) and isinstance(new, str):
            rows += [DiffRow("hunk", "replaces", "")] if rows else []
            rows += _rows_between(old.split("\n"), new.split("\n"))
    return rows


def _rows_between(old: list[str], new: list[str]) -> Iterator[DiffRow]:
    i = 0
    for change in changes(old, new):
        yield from (DiffRow("same", escape(line), escape(line)) for line in old[i : change.i1])
        left, right = old[change.i1 : change.i2], new[change.j1 : change.j2]
        yield from _paired([(line, "") for line in left], [(line, "") for line in right])
        i = change.i2
    yield from (DiffRow("same", escape(line), escape(line)) for line in old[i:])
