"""A server's form at a terminal: answered line by line, and declined at any of them."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.approval import ApprovalRequest, form_of
from agent_host.cli.ask import Terminal, can_ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal", allow_module_level=True)

PROPERTIES = {"name": {"type": "string", "minLength": 2}, "sure": {"type": "boolean"}}
FORM = form_of("mcp:odd", "Who are you?", {"type": "object", "properties": PROPERTIES, "required": ["name"]}, None, str)


class Screen(io.StringIO):
    """Standard error, where somebody types the next line at each question."""

    def __init__(self, keyboard: int, lines: list[str]) -> None:
        super().__init__()
        self._keyboard = keyboard
        self._lines = lines

    def write(self, text: str) -> int:
        """A question ends without an end of line."""
        if text.endswith(": ") and self._lines:
            os.write(self._keyboard, f"{self._lines.pop(0)}\n".encode())
        return super().write(text)


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Screen]]:
    """A terminal, at which these lines are typed."""
    keyboard, terminal = os.openpty()

    def at(*lines: str) -> Screen:
        screen = Screen(keyboard, list(lines))
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield at
        os.close(keyboard)  # the thread that reads ends


@pytest.mark.parametrize(
    ("lines", "content", "reason"),
    [
        (("y", "Ada", "n"), {"name": "Ada", "sure": False}, "answered at the terminal"),
        (("y", "A", "Ada", ""), {"name": "Ada"}, "answered at the terminal"),
        (("x", "n"), None, "declined at the terminal"),
        (("y", "!"), None, "declined at the terminal"),
        (("y", "A", " ! "), None, "declined at the terminal"),
        (("y", "Ada", "!"), None, "declined at the terminal"),
    ],
)
async def test_each_line_of_a_form(
    typing: Callable[..., Screen], lines: tuple[str, ...], content: dict[str, object] | None, reason: str
) -> None:
    screen = typing(*lines)
    request = ApprovalRequest(
        "a", "s", "t", "st", "odd/ask", "Mcp.Invoke", {}, "mcp:odd asks you", "Who?", None, "medium", (), form=FORM
    )
    answer = await Terminal(20).approve(request)
    assert (answer.approved, answer.arguments, answer.reason) == (content is not None, content, reason)
    assert "y answer, n decline (! declines later): " in screen.getvalue()


def test_a_terminal_of_another_session_is_one_to_ask_at(
    typing: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program has it that is started with a pseudo-terminal, and not by a shell in it."""
    monkeypatch.setattr("agent_host.terminal.is_in_ci", lambda: False)
    screen = typing()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    assert can_ask(no_input=False)
    assert not can_ask(no_input=True)
