"""What the reading of a shell line gathers."""

from __future__ import annotations

from policy.shell_limits import Effort
from policy.shell_tables import STEERING_VARIABLE, Grammar

_MAX_NAME = 256  # matching takes quadratic time for some names


class Findings:
    """What is found in one line, in order: commands (words), reasons, and shell text that a command would run."""

    def __init__(self) -> None:
        self.commands: list[tuple[str | None, tuple[str | None, ...]]] = []
        self.dynamic: dict[str, None] = {}
        self.opaque: dict[str, None] = {}
        self.scripts: list[tuple[Grammar, str]] = []
        self.effort = Effort()

    def doubt(self, reason: str) -> None:
        """Notes why the line can't be decided."""
        self.dynamic[reason] = None


def check_assignment(name: str, found: Findings) -> None:
    """Notes an assignment to a variable that steers what runs."""
    if len(name) > _MAX_NAME:
        found.doubt(f"sets a variable whose name is longer than {_MAX_NAME} characters")
    elif STEERING_VARIABLE.fullmatch(name):
        found.doubt(f"sets {name}, which steers programs")
