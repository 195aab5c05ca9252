"""The model's text as it comes, cut into blocks of Markdown that are final, so that each is printed once.

A block is final when the next one begins. What was printed cannot be taken back: a terminal's scrollback is not ours.
So where an answer begins again (the gateway failed, the process died), its new text is compared with what stands there
already, and only what is new is printed. If it says something else, a mark says that it does, and all of it follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.terminal.markdown import MarkdownBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINS_AGAIN: Final = None
"""In place of a block: the text above was taken back, and what follows is another answer."""


class AnswerText:
    """The text of one answer after the other."""

    def __init__(self) -> None:
        self._blocks = MarkdownBlocks()
        self._text = ""
        self._before = ""  # what an attempt has printed that was taken back
        self._held = ""  # text that is the same as that so far

    @property
    def growing(self) -> str:
        """The block that is not final yet."""
        return "" if self._before else self._blocks.open

    def add(self, text: str) -> Iterator[str | None]:
        """Yield the blocks that `text` makes final."""
        if self._before:
            self._held += text
            if self._before.startswith(self._held) and self._held != self._before:
                return
            yield from self._compare()
            return
        yield from self._cut(text)

    def end(self, *, is_whole: bool = True) -> Iterator[str | None]:
        """Yield what is left of the answer, which is whole or was broken off."""
        if self._before and (is_whole or not self._before.startswith(self._held)):
            yield from self._compare()
        rest = self._blocks.end()
        if rest.strip():
            yield rest
        self._text = self._before = self._held = ""

    def take_back(self) -> None:
        """Expect the answer to begin again."""
        self._before = self._before or self._text.removesuffix(self._blocks.end())
        self._text = self._held = ""

    def _compare(self) -> Iterator[str | None]:
        before, held = self._before, self._held
        self._before = self._held = ""
        if held.startswith(before):
            self._text, held = before, held[len(before) :]
        else:
            yield BEGINS_AGAIN
        yield from self._cut(held)

    def _cut(self, text: str) -> Iterator[str]:
        self._text += text
        yield from self._blocks.add(text)
