"""One tool call of a step and the states that it has, from policy's decision to its start or its refusal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from agent_host.loop.intents import NO_EFFECT
from agent_host.routing.judge import NOT_JUDGED, Judged
from config.lean_typing import NamedTuple
from policy.facts import PathFacts, UrlFacts

if TYPE_CHECKING:
    from agent_host.approval.request import ApprovalAnswer
    from agent_host.contracts import Category, ToolSpec
    from agent_host.thread.messages import ToolCall
    from policy.decision import Decision
    from policy.facts import ActionFacts
    from state.records import FileEffect


class Refusal(NamedTuple):
    """Why a call ends without being run: `status` failed or denied, a documented code, and words for the model.
    `approve` is what `--approve` would have taken, where nobody was there to be asked. `name` is what the model reads
    in place of the code, where that is not what the tool's family calls it otherwise."""

    status: str
    code: str
    message: str
    approve: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"{self.code}: {self.message}"


class CallState(Enum):
    """Where a call stands. Only a call that is STARTED is executed, and a REFUSED one never is."""

    JUDGED = "policy has decided on it, and it may be asked for"
    APPROVED = "an approval or a grant lets it go on"
    WAITING = "it waits for the calls before it on its path, then for a slot"
    STARTED = "its start is on record, or needs no record"
    REFUSED = "it has come to its end without being run"


@dataclass(slots=True)
class CallRun:
    """One call of the current step. `judged` has its tool, its facts and policy's decision; `effect` is that of a call
    that changes one file and may start. `renewed`: its effect is newer than the turn's record, and is in the record
    of its start.

    `approval_id`: policy wants an approval for it, or wanted one when its turn was recorded, and so its start record
    is synced (see `state.recovery.judge`). `answer` is what was answered before a crash. `edited`: the person who
    approved it wrote other arguments, and `call` has these."""

    call: ToolCall
    judged: Judged = NOT_JUDGED
    refusal: Refusal | None = None
    effect: FileEffect = NO_EFFECT
    state: CallState = CallState.JUDGED
    renewed: bool = False
    approval_id: str | None = None
    answer: ApprovalAnswer | None = None
    edited: bool = False

    def take(self, judged: Judged, refusal: Refusal | None) -> None:
        """Replace what was found of the call before; its effect is to be found again."""
        self.judged, self.refusal, self.effect = judged, refusal, NO_EFFECT
        self.state = CallState.JUDGED if refusal is None else CallState.REFUSED

    def refuse(self, refusal: Refusal) -> None:
        """End the call without running it."""
        self.refusal, self.state = refusal, CallState.REFUSED

    @property
    def spec(self) -> ToolSpec | None:
        """Its tool, None for a name that no tool has."""
        return self.judged.spec

    @property
    def facts(self) -> ActionFacts | None:
        """What policy judged it by, None for a call that policy did not see."""
        return self.judged.facts

    @property
    def decision(self) -> Decision | None:
        """Policy's decision, None for a call that policy did not see."""
        return self.judged.decision

    @property
    def gated(self) -> bool:
        """True when an approval decides about it: policy asks for one, or a person has said no before a crash.

        That nobody was there, or answered in time, counts only as long as policy asks.
        """
        if self.refusal is not None or self.decision is None:
            return False
        said_no = self.answer is not None and self.answer.said_no
        return said_no or self.decision.decision == "APPROVAL_REQUIRED"

    @property
    def side_effects(self) -> bool:
        """True if it may change anything; an unknown tool might."""
        return self.spec is None or self.spec.side_effects

    @property
    def may_act(self) -> bool:
        """True when it may have an effect before anything else is put on record."""
        return self.refusal is None and not self.gated and self.spec is not None and self.spec.side_effects

    @property
    def category(self) -> Category | None:
        """Which calls it shares slots with, None for a name that is no tool's."""
        return None if self.spec is None else self.spec.category

    @property
    def paths(self) -> tuple[str, ...]:
        """The real paths that it acts on, none for what has no files."""
        return self.facts.real_paths if isinstance(self.facts, PathFacts | UrlFacts) else ()
