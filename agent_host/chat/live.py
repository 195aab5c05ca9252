"""The lines below everything that is printed: what grows, what runs, what waits. Bounded in height; drawn by the
console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.chat.paper import INDENT
from agent_host.display_text import count_noun, escape, one_line
from agent_host.terminal.markdown import FENCE, render
from agent_host.terminal.style import CYAN, DIM, cut, wrap, wrap_coloured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.chat.conversation import Conversation

_RENDERED_CHARS: Final = 1024
_TAIL_CHARS: Final = 4096
_MOST_ROWS: Final = 12
_QUEUED_SHOWN: Final = 3
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class LiveArea:
    """The live lines of a conversation."""

    def __init__(self, chat: Conversation) -> None:
        self._chat = chat
        self._rendered: tuple[str, int, list[str]] = ("", 0, [])

    def rows(self, columns: int, height: int) -> list[str]:
        """The rows, each at most `columns` wide; the last is the status of what runs."""
        chat = self._chat
        most = max(3, min(_MOST_ROWS, height // 3))
        rows = self._growing(columns) or list(self._running(columns))
        if len(rows) > most:
            rows = rows[-most:]
        rows += [chat.paper.style(DIM, one) for one in self._queued(columns)]
        if chat.is_busy:
            rows += self._status(columns)
        return rows

    def _status(self, columns: int) -> list[str]:
        chat = self._chat
        turn = _SPINNER[int(chat.activity.seconds) % len(_SPINNER)] if chat.paper.styled else "*"
        first, *rest = wrap(f"{turn} {chat.activity.line(columns - 2)}", columns, len(INDENT))
        rows = [first, *([cut(INDENT + " ".join(one.strip() for one in rest), columns)] if rest else [])]
        return [chat.paper.style(CYAN, row) for row in rows]

    def _growing(self, columns: int) -> list[str]:
        text = self._chat.answer.growing
        if not text.strip():
            return []
        room = min(columns, self._chat.paper.columns) - len(INDENT)
        if len(text) > _RENDERED_CHARS or FENCE.match(text) is not None:
            rows = wrap(escape(text[-_TAIL_CHARS:]), room)
        elif self._rendered[:2] == (text, room):
            rows = self._rendered[2]
        else:
            rows = render(escape(text), min(room, 100), styled=self._chat.paper.styled).rstrip("\n").split("\n")
            self._rendered = (text, room, rows)
        return [f"{INDENT}{row}" for row in rows]

    def _running(self, columns: int) -> Iterator[str]:
        for call in list(self._chat.activity.calls.values())[-2:]:
            tail = call.output.tail
            if not tail or call.is_asked:
                continue
            for line in tail:
                row = wrap_coloured(line, columns - len(INDENT))[0]
                yield (
                    f"{INDENT}{row}" if self._chat.paper.styled else f"{INDENT}{cut(one_line(line, 400), columns - 2)}"
                )

    def _queued(self, columns: int) -> Iterator[str]:
        waiting = list(self._chat.queued.values())
        for text in waiting[:_QUEUED_SHOWN]:
            yield cut(f"queued: {one_line(text, 400)}", columns)
        if len(waiting) > _QUEUED_SHOWN:
            yield f"and {count_noun(len(waiting) - _QUEUED_SHOWN, 'prompt')} more (/queue)"
