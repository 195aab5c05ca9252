"""The terminal as a conversation sees it: a place to print on, and a person who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Choice(NamedTuple):
    """A row to choose: its value, and the line that is shown."""

    value: str
    line: str


class Face(Protocol):
    """See the module. `console` is a live one, `plain` one that only appends."""

    def print(self, text: str) -> None:
        """Print whole lines, safe as they are, above what is live."""
        ...

    def refresh(self) -> None:
        """Show what has changed of what is live, soon."""
        ...

    async def room(self) -> None:
        """Wait while the terminal is far behind."""
        ...

    async def key(self, prompt: str, keys: str) -> str:
        """Return the one of `keys` that is typed after the prompt was shown."""
        ...

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """Return what a person types, None if they take it back; `lines` for text of several."""
        ...

    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """Return the value of the row that a person chooses, None for none."""
        ...

    def call_attention(self, title: str) -> None:
        """Ring the bell, and put `title` into the terminal's own; an empty one puts the usual one back."""
        ...

    def leave(self) -> None:
        """End the conversation."""
        ...
