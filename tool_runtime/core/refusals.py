"""What a command was refused, as its result tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import Denial
    from policy.scope import CommandScope

_MAX_TOLD: Final = 10
_ASK: Final = (
    "Nothing of this runs again by itself. Where the task needs it, make a new call with sandboxGrant: "
    "{write: [places], domains: [hosts]} and a reason; hidden and read-only places cannot be granted."
)


def report(denials: Sequence[Denial], scope: CommandScope) -> str:
    """Lines for the model: what `scope` refused, what it lets commands write, and how to ask for more; empty where
    nothing was refused. Not more than ten refusals are named."""
    if not denials:
        return ""
    lines = ["--- sandbox ---", *(denial.note() for denial in denials[:_MAX_TOLD])]
    if len(denials) > _MAX_TOLD:
        lines.append(f"and {len(denials) - _MAX_TOLD} more")
    if any(denial.action in ("write", "listen") for denial in denials):
        lines.append(f"Commands may write in: {', '.join(scope.writes[:_MAX_TOLD]) or 'no place'}")
    return "\n".join([*lines, _ASK, ""])
