"""A tool call between the model's turn and its result: one frozen value, made by `judging.decisions.decide`.

Each step on the way gives the next value: policy decides, an approval lets the call go on or refuses it, a person edits
its arguments, a wait has it judged again. What crosses to the runtime is made of it, and so is what goes on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from policy.facts import PathFacts, UrlFacts
from policy.names import SANDBOX_GRANT
from state.records import FileEffect

if TYPE_CHECKING:
    from agent_host.contracts import ToolSpec, ToolStatus
    from agent_host.thread.messages import ToolCall
    from policy.decision import Decision
    from policy.facts import ActionFacts
    from state.records import ApprovalAnswered

NO_EFFECT = FileEffect()


class Refusal(NamedTuple):
    """The reason why a call ends without being run: `status` failed or denied, a documented code, and words for the
    model. `approve` is what `--approve` would have taken, where nobody was there to be asked. `name` is what the model
    reads in place of the code, where that is not what the tool's family calls it otherwise. `withheld` names the
    setting that withholds the tool from the session."""

    status: ToolStatus
    code: str
    message: str
    approve: str | None = None
    name: str | None = None
    withheld: str | None = None


class PreparedCall(NamedTuple):
    """One call of a step as it is to run, or refused. `call` has the arguments as run: with `edited`, those that the
    person who approved it wrote.

    `spec` is its tool, None for a name that no tool has; `facts` and `decision` are None for a call that policy did not
    see. `effect` is that of a call that changes one file and may start. `renewed`: its effect is newer than the turn's
    record, and is in the record of its start. `approval_id`: policy wants an approval for it, or wanted one when its
    turn was recorded, and so its start record is synced (see `state.recovery.judge`). `answer` is the answer on record
    from before a crash, or that of a replay.
    """

    call: ToolCall
    spec: ToolSpec | None = None
    facts: ActionFacts | None = None
    decision: Decision | None = None
    refusal: Refusal | None = None
    effect: FileEffect = NO_EFFECT
    renewed: bool = False
    approval_id: str | None = None
    answer: ApprovalAnswered | None = None
    edited: bool = False

    @property
    def needs_approval(self) -> bool:
        """True when an approval decides about it: policy asks for one, or a person has said no before a crash.

        That nobody was there, or answered in time, counts only as long as policy asks.
        """
        if self.refusal is not None or self.decision is None:
            return False
        answer = self.answer
        was_denied = answer is not None and not (answer.approved or answer.unattended or answer.timed_out)
        return was_denied or self.decision.decision == "APPROVAL_REQUIRED"

    @property
    def side_effects(self) -> bool:
        """True if it may change anything; an unknown tool might."""
        return self.spec is None or self.spec.side_effects

    @property
    def may_act(self) -> bool:
        """True when it may have an effect before anything else is put on record."""
        return self.refusal is None and not self.needs_approval and self.spec is not None and self.spec.side_effects

    @property
    def paths(self) -> tuple[str, ...]:
        """The real paths that it acts on, none for what has no files."""
        return self.facts.real_paths if isinstance(self.facts, PathFacts | UrlFacts) else ()

    @property
    def approve(self) -> str:
        """The value of `--approve` that approves calls of this kind."""
        name, decision = self.call.name, self.decision
        if decision is None or (decision.by_name and decision.rule != SANDBOX_GRANT):
            return name
        return decision.rule_id or name
