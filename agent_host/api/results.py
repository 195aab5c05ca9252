"""How a task ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Result:
    """How a task ended. `status` is TASK_COMPLETED, TASK_FAILED, TASK_CANCELLED or SESSION_PAUSED, `reason` a
    documented name where it is not completed, `message` one line about it for a person, `text` the model's last answer.
    `details` is the whole result object of the command line, `records` the folder of what stays of the session.
    `unfinished`: the task is still open on record. `resumable`: `resume_task` can go on with it, or approve what was
    denied because nobody was there."""

    session_id: str
    task_id: str
    status: str
    reason: str | None
    text: str
    step_count: int
    resumable: bool
    details: Mapping[str, Any]
    message: str | None = None
    unfinished: bool = False
    records: str = ""

    @property
    def completed(self) -> bool:
        """True if the model said that it is done."""
        return self.status == "TASK_COMPLETED"


def result_of(
    details: Mapping[str, Any], *, message: str | None, records: str, unfinished: bool, resumable: bool
) -> Result:
    """The result out of the result object `details` of a session."""
    return Result(
        details["sessionId"],
        details["taskId"],
        details["status"],
        details["reason"],
        details["text"],
        details["stepCount"],
        resumable,
        details,
        message=message,
        unfinished=unfinished,
        records=records,
    )
