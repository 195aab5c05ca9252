"""docs/states.md from the tables of states: `python -m tests.support.states_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_host.states import SESSION_TABLE, TASK_TABLE, SessionStatus, TaskPhase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum

    from agent_host.states import Transition

PAGE = Path(__file__).resolve().parents[2] / "docs" / "states.md"

_INTRO = """# States

A session is a state machine of two levels (AH 3.3): its own life, and its current task. Both are tables in
`agent_host/states.py`; `python -m tests.support.states_page` generates this page from them. A transition without a row
cannot happen.
"""
_SESSION = """
## The session

`sessionStatus` in GetSessionState. A process that ends in RUNNING or PAUSED leaves the session resumable, also if it
was killed; COMPLETED and CANCELLED remove the checkpoint, FAILED keeps the records.
"""
_TASK = """
## The task

`task.status` in GetSessionState. IDLE is never shown: without a running task it is the end of the last one, and
TASK_RUNNING for a suspended one. Calls of one turn run at once: the task waits for approval as long as any of them
does, while the others continue.
"""


def page() -> str:
    """The page as it should be."""
    return "".join(
        (
            _INTRO,
            _SESSION,
            *_diagram(SESSION_TABLE, SessionStatus.CREATED),
            *_rows(SESSION_TABLE),
            _TASK,
            *_diagram(TASK_TABLE, TaskPhase.IDLE),
            *_rows(TASK_TABLE),
        )
    )


def _diagram(table: tuple[Transition[Any], ...], first: StrEnum) -> Iterator[str]:
    yield f"\n```mermaid\nstateDiagram-v2\n  [*] --> {first}\n"
    for row in table:
        for source in row.sources:
            yield f"  {source} --> {row.target}: {row.trigger}\n"
    left = {source for row in table for source in row.sources}
    for state in dict.fromkeys(row.target for row in table if row.target not in left):
        yield f"  {state} --> [*]\n"
    yield "```\n"


def _rows(table: tuple[Transition[Any], ...]) -> Iterator[str]:
    yield "\n| trigger | from | to | when | what goes with it |\n| --- | --- | --- | --- | --- |\n"
    for row in table:
        sources = ", ".join(row.sources)
        yield f"| `{row.trigger}` | {sources} | {row.target} | {row.when} | {row.action} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
