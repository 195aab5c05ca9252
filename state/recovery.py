"""What to do with each call of a step that a crash left open (invariant 3). Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state.open_step import Call


class Verdict(Enum):
    """What a resume does with one call."""

    REUSE = "its result is on record"
    RUN = "it never started, or running it again changes nothing"
    COMPARE = "it may have happened: the disk can tell, its hashes before and after are on record"
    INTERRUPTED = "it may have happened and nothing can tell: the model is told so"


def judge(call: Call, *, same_boot: bool) -> Verdict:
    """The verdict on `call`. `same_boot`: the machine has been up since the call's step was recorded.

    Start records are written and not synced, so a missing one proves that the call did not start only while the
    machine was up; that of a gated call is synced and always proves it.
    """
    if call.result is not None:
        return Verdict.REUSE
    if not call.side_effects or (not call.started and (same_boot or call.gated)):
        return Verdict.RUN
    return Verdict.INTERRUPTED if call.intent is None else Verdict.COMPARE
