"""What the reading of a shell line gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policy.shell.evaluated import Evaluated
from policy.shell.limits import Effort
from policy.shell.tables import NUMBER_VARIABLE, STEERING_VARIABLE, Grammar

if TYPE_CHECKING:
    from policy.shell.file_uses import FileUse
    from policy.shell.shown import Shown

_MAX_NAME = 256  # matching takes quadratic time for some names


class Opaque(NamedTuple):
    """A program, as it is spelled, that starts what the line does not show: code that stands in the line (`in_line`),
    or what some file or package has it run."""

    program: str
    what: str
    in_line: bool

    def __str__(self) -> str:
        if self.in_line:
            return f"code in the line: {self.program} {self.what}"
        return f"{self.program} starts what the line does not show: {self.what}"


class Script(NamedTuple):
    """Shell text that a command of the line runs; `is_own` where the shell of the line itself does, `is_postponed`
    where it does later, and `knows_functions` where it has the line's functions then. `is_partial` where `UNKNOWN`
    stands in it for what only the run knows."""

    grammar: Grammar
    text: str
    is_own: bool = False
    is_postponed: bool = False
    knows_functions: bool = False
    is_partial: bool = False


class Findings:
    """What is found in one line, in order: commands (words), reasons, and shell text that a command would run.
    `elsewhere`: a command runs in a directory that the line does not name. `input`: what the line shows of the input
    of the command that is looked at, which `is_called` in a loop or a function: then its input may be set there."""

    def __init__(self) -> None:
        self.commands: list[tuple[str | None, tuple[str | None, ...]]] = []
        self.dynamic: dict[str, None] = {}
        self.opaque: dict[Opaque, None] = {}
        self.scripts: list[Script] = []
        self.uses: dict[FileUse, None] = {}
        self.grammar: Grammar = "bash"
        self.functions: frozenset[str] = frozenset()
        self.evaluated = Evaluated()
        self.variables: dict[str, None] = {}
        self.elsewhere = False
        self.input: Shown | None = None
        self.is_called = False
        self.effort = Effort()
        self.unread = self.unparsed = False
        self.evaluates: dict[str, None] = {}

    def undecidable(self, reason: str) -> None:
        """Notes why the line can't be decided."""
        self.dynamic[reason] = None

    def needs_interpreter(self, reason: str) -> None:
        """Notes that a shell evaluates text that may be code: whoever lists an interpreter consents to any code."""
        self.evaluates[reason] = None

    def misread(self, reason: str) -> None:
        """Notes that the text is not what the grammar knows, so that anything may stand in it."""
        self.unparsed = True
        self.undecidable(reason)

    def give_up(self, reason: str) -> None:
        """Notes that the line was not looked at to its end, and which limit it has passed."""
        self.unread = True
        self.undecidable(reason)

    def run_shown(self, shown: Shown | None, grammar: Grammar, *, is_own: bool = False) -> bool:
        """Notes that a program runs shell text, of which the line shows this much; True if that is all of it."""
        if shown is not None:
            self.scripts.append(Script(grammar, shown.text, is_own=is_own, is_partial=not shown.is_whole))
        return shown is not None and shown.is_whole

    def mark_opaque(self, program: str, what: str, *, in_line: bool = False) -> None:
        """Notes that a program starts what the line does not show."""
        self.opaque[Opaque(program, what, in_line)] = None


def check_assignment(name: str, found: Findings, value: str | None = None) -> None:
    """Notes an assignment to a variable that steers what runs. `value` is its text, where that is known."""
    if len(name) > _MAX_NAME:
        found.undecidable(f"sets a variable whose name is longer than {_MAX_NAME} characters")
    elif STEERING_VARIABLE.fullmatch(name):
        found.undecidable(f"sets {name}, which steers programs")
    elif NUMBER_VARIABLE.fullmatch(name) and not (value or "").isdecimal():
        found.undecidable(f"sets {name}, whose text the shell evaluates")


def note_declared(text: str | None, prefix: str, found: Findings) -> None:
    """Notes a value that `declare` or its like is given: one in brackets is evaluated once more for an array."""
    if prefix.startswith("("):
        found.undecidable("a list in quotes, which is evaluated where it is assigned to an array")
    elif text is None:
        found.evaluated.note_list()
