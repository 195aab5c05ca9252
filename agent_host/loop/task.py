"""The loop (AH 4): plan → model → policy → approval → tools → checkpoint, until the model is done.

A task is a row of steps. A step is one model turn and its tool calls. It is open from the moment the turn is on record
until it is committed, so a task that was killed anywhere is resumed by running this same loop: it finds the open step
and continues with it. Nothing here knows whether it runs for the first time or after a crash.

How a step runs:

1. `step.take_turn` sends the conversation and gets one complete `ModelTurn`. The turn, its calls and what they are
   about to do to files go on record and are synced before any call starts (write-ahead).
2. `calls.run_calls` runs the calls: each is judged, approved if necessary, waits for its turn on its path and for a
   slot, and its result goes on record as it comes.
3. `step.commit` puts the results into the thread, in call order, and closes the step. That is the second sync.

Rules that hold everywhere in this package:

- A call that finished is never run again. A call with side effects that was cut off is reported to the model as
  `TOOL_INTERRUPTED` and not repeated; reads are run again (`recovery`).
- Whatever happens, every call in the thread has exactly one result, so that the next request is valid.
- Denials and tool failures are results that the model reads. Only faults of the infrastructure raise, and `_ENDS` below
  is the one table that says what each of them does to the task.
- Nobody waits for an observer: events leave by `LoopContext.emit`, which returns at once.

Traps: a cancellation is checked only where the step is in a state that can be committed or left open; a background
command may change files between two steps, so it is looked at before the commit; a resume note has to reach the model
before its next turn, not after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.display_text import count_noun, one_line
from agent_host.errors import (
    CANCELLED,
    MAX_STEPS_EXCEEDED,
    TIME_LIMIT,
    AgentHostError,
    BudgetExceeded,
    CheckpointWriteFailed,
    ContextTooLong,
    CostExceeded,
    ErrorCode,
    GatewayRejected,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
    PolicyDenied,
    PolicyExpired,
    RequestTooLong,
    UsageError,
)
from agent_host.loop.background import see_background_changes
from agent_host.loop.calls import run_calls
from agent_host.loop.cancellation import TaskCancelled
from agent_host.loop.context import MODEL_OPTION
from agent_host.loop.limits import warn_of_step_limit
from agent_host.loop.recovery import take_replay
from agent_host.loop.step import add_note, commit, reopen, report_commands, report_damage, report_steers, take_turn
from agent_host.states import TaskEnd
from agent_host.thread.messages import last_answer
from state.records import SessionStatusChanged, TaskEnded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.context import LoopContext, Replay, ResumeNote
    from agent_host.loop.step import Step
    from agent_host.states import EndStatus

MAX_FULL_WINDOWS = 3
"""So many turns in a row may end in a full context window, each followed by a cut."""
_STOP_CHARS = 80

# What each failure of the infrastructure does to the task, and whether a resume can go on with it (AH 4.6, 11).
# Failures of tools and of policy are no exceptions: the model reads about them in the thread.
_ENDS: dict[type[AgentHostError], tuple[EndStatus, bool]] = {
    PolicyExpired: ("paused", True),
    CheckpointWriteFailed: ("paused", True),
    GatewayUnavailable: ("paused", True),
    ModelOverloaded: ("paused", True),
    GatewayRejected: ("failed", True),
    ContextTooLong: ("failed", True),
    UsageError: ("failed", True),
    GuardrailBlocked: ("failed", False),
    CostExceeded: ("failed", True),
    RequestTooLong: ("failed", True),
    BudgetExceeded: ("failed", False),
    PolicyDenied: ("failed", False),
}
_LAST_MOVE: dict[EndStatus, str] = {"completed": "complete", "failed": "fail", "cancelled": "cancel"}


async def run_task(
    ctx: LoopContext, *, resume_note: ResumeNote | None = None, replays: Sequence[Replay] = ()
) -> TaskEnd:
    """Run the current task to its end, or go on with it after a crash; its end is on record on return. The model gets
    `resume_note` before its next turn. `replays` are denied calls that are run before that."""
    ctx.conversation.full_windows = 0
    ctx.progress.begin()
    try:
        await ctx.refresh_tools()
        end = await _run_steps(ctx, resume_note, replays)
    except TaskCancelled:
        # A call that a stop for now has left open needs its result first, whatever was asked for since.
        resumable = ctx.cancellation.resumable or ctx.state.open_step is not None
        end = TaskEnd("cancelled", CANCELLED, "cancelled on request", resumable=resumable)
        if ctx.cancellation.time_limit is not None and resumable:
            end = TaskEnd("paused", TIME_LIMIT, ctx.cancellation.time_limit, resumable=True)
    except AgentHostError as error:
        status, resumable = _ENDS[type(error)]
        said = ctx.scrubber.text(str(error))  # a gateway may quote what it refuses
        reason = ctx.scrubber.text(str(error.details.get("code", error.code)))
        end = TaskEnd(status, reason, said, resumable=resumable)
        if isinstance(error, GuardrailBlocked):
            add_note(ctx, f"[The previous request was blocked by the gateway: {said}]")
    _record_end(ctx, end)
    ctx.phase.fire(_LAST_MOVE[end.status] if end.status == "failed" or not end.resumable else "suspend")
    return end


async def _run_steps(ctx: LoopContext, resume_note: ResumeNote | None, replays: Sequence[Replay]) -> TaskEnd:
    while True:
        if ctx.state.open_step is None:
            ctx.cancellation.check()
            report_damage(ctx)
            report_commands(ctx)
            report_steers(ctx)
            if resume_note is not None:
                add_note(ctx, resume_note.text, workspace=resume_note.workspace)
                resume_note = None
            if ctx.judge.expired:
                raise PolicyExpired("the policy expired during the last step; resume with a refreshed one")
            if ctx.task.step_count >= ctx.task.max_steps:
                done = count_noun(ctx.task.step_count, "step")
                again = f'agent-host resume {ctx.session_id} "Go on." --max-steps N'
                message = f"not done after {done} (--max-steps {ctx.task.max_steps}); go on with: {again}"
                return TaskEnd("failed", MAX_STEPS_EXCEEDED, message)
            ctx.conversation.use_model(ctx.task.options.get(MODEL_OPTION), ctx.judge)  # a mode may have changed it
            step = take_replay(ctx, replays) if replays else await take_turn(ctx)
            replays = ()
        else:
            step = reopen(ctx)
        results = await run_calls(ctx, step)
        if await see_background_changes(ctx):
            ctx.progress.forget_calls()
        commit(ctx, step, results)
        end = _end_behind(ctx, step) or ctx.progress.end_of_circle(step.step_id)
        if end is not None:
            return end
        warn_of_step_limit(ctx, step.step_id)
        del step, results  # what they hold would stay while the model is asked


def _end_behind(ctx: LoopContext, step: Step) -> TaskEnd | None:
    """Return the end of the task after a step, by what its turn means (AH 4.4); None if it continues."""
    end = ctx.progress.end_of_noise(step.meaning, step.assistant.content)
    if end is not None:
        return end
    if step.meaning == "complete" and ctx.state.steers:
        return None
    if step.meaning == "complete":
        return TaskEnd("completed", text=last_answer(ctx.state.thread))
    if step.meaning == "blocked":
        why = f": {step.detail}" if step.detail else ""
        return TaskEnd("failed", ErrorCode.LLM_GUARDRAIL_BLOCKED, f"the model refused to answer{why}")
    if step.meaning == "unknown":
        word = one_line(ctx.scrubber.text(step.stop), _STOP_CHARS)
        message = f"unknown stop reason {word!r}; the answer may be incomplete; resume to continue"
        return TaskEnd("failed", ErrorCode.LLM_GATEWAY_ERROR, message, resumable=True)
    if step.meaning == "window" and ctx.conversation.full_windows > MAX_FULL_WINDOWS:
        message = (
            f"the model's context window was full {ctx.conversation.full_windows} times in a row, with less of the "
            "conversation each time; lower llmPolicy.maxInputTokens to what the model takes, then resume"
        )
        return TaskEnd("failed", ErrorCode.LLM_GATEWAY_ERROR, message, resumable=True)
    return None


def _record_end(ctx: LoopContext, end: TaskEnd) -> None:
    if ctx.task.status != "running":  # its last step said so
        return
    if end.status == "paused":
        ctx.journal.checkpoint(None, SessionStatusChanged("SESSION_PAUSED", reason=end.reason))
    elif end.resumable:
        ctx.journal.checkpoint(None, SessionStatusChanged("SESSION_RUNNING", reason=end.reason))
    else:
        ctx.journal.checkpoint(None, TaskEnded(end.status, end.reason))
