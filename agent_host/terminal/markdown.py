"""The model's prose at a terminal: Markdown, rendered block by block as it comes."""

from __future__ import annotations

import copy
import functools
import io
import re
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import ClassVar

    from markdown_it import MarkdownIt
    from rich.console import JustifyMethod
    from rich.markdown import Markdown

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# What is longer without an end is rendered as far as it has come.
_MAX_OPEN_CHARS = 64 * 1024


class MarkdownBlocks:
    """Cuts a text that comes in pieces where a block of Markdown ends: at a blank line outside of a fence of code."""

    def __init__(self) -> None:
        self._open = ""
        self._seen = 0  # chars of whole lines in `_open` that are known to hold no end of a block
        self._fence = ""

    @property
    def is_empty(self) -> bool:
        """True if no text waits for the end of its block."""
        return not self._open

    @property
    def open(self) -> str:
        """The text that has no end yet."""
        return self._open

    def add(self, text: str) -> Iterator[str]:
        """Yield the blocks that `text` completes."""
        self._open += text
        while True:
            end = self._next_end()
            if end is None:
                break
            block, self._open, self._seen = self._open[:end], self._open[end:], 0
            if block.strip():
                yield block
        if len(self._open) > _MAX_OPEN_CHARS:
            yield self.end()

    def end(self) -> str:
        """The text that has no end yet; nothing is left."""
        rest, self._open, self._seen, self._fence = self._open, "", 0, ""
        return rest

    def _next_end(self) -> int | None:
        """The place behind the first blank line outside of a fence."""
        while (at := self._open.find("\n", self._seen)) >= 0:
            line, self._seen = self._open[self._seen : at], at + 1
            mark = FENCE.match(line)
            if mark is not None and not self._fence:
                self._fence = mark[1]
            elif mark is not None and mark[1].startswith(self._fence) and not line.strip(" `~"):
                self._fence = ""
            elif not line.strip() and not self._fence:
                return self._seen
        return None


def render(block: str, columns: int, *, styled: bool = True) -> str:
    """One block as lines for a terminal of so many columns. The text steers nothing: its control characters are
    escaped already (`display.defuse`), and a link shows where it leads. Nothing of it is left out: what Markdown would
    hide (HTML, the address of a picture, a link's definition) is shown as it was written."""
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
        theme=Theme({"markdown.code": "bold cyan"}),  # no background: not every terminal is dark
    )
    console.print(_parsed(block))
    rows = [row if _STYLE.sub("", row).strip() else "" for row in out.getvalue().splitlines()]
    return "\n".join(row.rstrip() for row in rows).strip("\n") + "\n"


def _parsed(block: str) -> Markdown:
    parser, empty = _markdown()
    markdown = copy.copy(empty)
    markdown.parsed = parser.parse(block)
    return markdown


@functools.cache
def _markdown() -> tuple[MarkdownIt, Markdown]:
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown, TableDataElement

    class LeftHeading(Heading):
        LEVEL_ALIGN: ClassVar = {}

    class WholeCell(TableDataElement):
        def __init__(self, justify: JustifyMethod) -> None:
            super().__init__(justify)
            self.content.overflow = "fold"

    own = {"heading_open": LeftHeading, "td_open": WholeCell, "th_open": WholeCell}

    class OwnMarkdown(Markdown):
        elements: ClassVar = {**Markdown.elements, **own}

    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["image", "reference"]), OwnMarkdown("", hyperlinks=False, code_theme="ansi_dark")


def load_soon() -> None:
    """Import what renders, while the model thinks."""
    threading.Thread(target=render, args=("`x`", 40), name="markdown", daemon=True).start()
