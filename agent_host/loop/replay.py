"""Calls that were denied since nobody was there, run after all on a person's word (SK 4.3).

They are a step like any other, only that the host speaks for the model: so they are on record before they start, and a
crash does none of them twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.approval.grants import moved, place_of
from agent_host.approval.request import ApprovalAnswer
from agent_host.errors import ErrorCode
from agent_host.events.kinds import EventType
from agent_host.ids import new_id
from agent_host.loop.call_run import Refusal
from agent_host.loop.prepare import ask_after_all, bound_to, first_versions, prepare_calls, row_of
from agent_host.loop.step import Step, add_note
from agent_host.thread.messages import Message, encode
from agent_host.thread.tokens import message_tokens
from state.boot import boot_id
from state.records import TurnTaken
from state.usage import NO_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.call_run import CallRun
    from agent_host.loop.context import LoopContext, Replay

_APPROVED_NOW = (
    "[Calls of yours were denied since nobody was there to approve them. The user has approved them now: they are run "
    "once, exactly as you asked for them, and their results follow. Go on with the task from there.]"
)
_SAID = "(approved by the user)"


def take_replay(ctx: LoopContext, replays: Sequence[Replay]) -> Step:
    """A turn of these calls, durable and approved. Raises CheckpointWriteFailed."""
    add_note(ctx, _APPROVED_NOW)
    step_id = new_id("step")
    ctx.phase.fire("reopen")
    ctx.emit(EventType.STEP_STARTED, step_id, stepId=step_id, stepCount=ctx.task.step_count + 1)
    calls = tuple(replay.call.renamed(new_id("call")) for replay in replays)
    tokens = message_tokens(ctx.conversation.count, _SAID, tuple(call.arguments_json.decode() for call in calls))
    assistant = Message("assistant", _SAID, tokens, calls)
    ctx.phase.fire("check")
    runs = prepare_calls(ctx, calls)
    for run, replay in zip(runs, replays, strict=True):
        _approve(run, replay)
    record = TurnTaken(
        step_id,
        "replay",
        boot_id(),
        NO_TOKENS,
        list(map(row_of, runs)),
        encode(assistant, session_id=ctx.session_id, task_id=ctx.task.task_id, step_id=step_id),
        "continue",
        baselines=first_versions(runs),
        settled=[call_id for replay in replays for call_id in replay.settles],
    )
    ctx.journal.record(record)
    for run in runs:
        if run.answer is not None and run.approval_id is not None:
            ctx.journal.record(run.answer.to_record(run.call.call_id, run.approval_id, bound_to(ctx, run)))
    ctx.journal.write_ahead()
    return Step(step_id, assistant, "continue", runs)


def _approve(run: CallRun, replay: Replay) -> None:
    run.answer = ApprovalAnswer(approved=True, reason=f"approved by --approve {replay.replay_id}")
    ask_after_all(run)
    if not run.gated:  # policy has changed its mind since, one way or the other
        run.answer = None
        return
    elsewhere = moved(replay.place, place_of(run.facts))
    if elsewhere is not None:  # with `approve` it can be replayed there
        run.answer = None
        run.refuse(Refusal("denied", ErrorCode.APPROVAL_REQUIRED, elsewhere, replay.approve))
        return
    run.approval_id = run.approval_id or new_id("appr")
