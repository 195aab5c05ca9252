"""The loop (AH 4): plan → model → policy → approval → tools → checkpoint, until the model is done.

A task is a sequence of steps. A step is one model turn and its tool calls. It is open from the record of its turn until
its commit, so a task that was killed anywhere is resumed by the same loop: it finds the open step and continues with
it. No code here distinguishes a first run from a resume.

How a step runs:

1. `take_turn` sends the conversation and gets one complete `ModelTurn`. The turn, its calls and what they are
   about to do to files go on record and are synced before any call starts (write-ahead).
2. `calls.run_calls` runs the calls: each is judged, approved if necessary, waits for its turn on its path and for a
   slot, and its result goes on record as it comes.
3. `commit` puts the results into the thread, in call order, and closes the step. That is the second sync.

Rules that hold everywhere in this package:

- A call that finished is never run again. A call with side effects that was cut off is reported to the model as
  `TOOL_INTERRUPTED` and not repeated; reads are run again (`recovery`).
- Whatever happens, every call in the thread has exactly one result, so that the next request is valid.
- Denials and tool failures are results that the model reads. Only faults of the infrastructure raise, and `_ENDS` below
  is the one table that says what each of them does to the task.
- Nobody waits for an observer: events leave by `LoopContext.emit`, which returns at once.

Traps: a cancellation is checked only where the step is in a state that can be committed or left open; a background
command may change files between two steps, so its changes are recorded before the commit; a resume note has to reach
the model before its next turn, not after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agent_host.approval import ApprovalAnswer
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
from agent_host.events import EventType
from agent_host.judging import PreparedCall, Refusal
from agent_host.llm.known_dialects import meaning_of_old_record
from agent_host.loop import LISTS_OPTION, MODEL_OPTION, Step, clean_message
from agent_host.loop.background import commands_to_report, see_background_changes
from agent_host.loop.calls import run_calls
from agent_host.loop.prepare import ask_after_all, bound_to, first_versions, prepare_calls, row_of
from agent_host.loop.progress import NOISE, TaskCancelled
from agent_host.loop.requests import LEAST_SHARE, ask, cut_window, make_room, warn_of_step_limit
from agent_host.states import TaskEnd
from agent_host.thread.messages import (
    CONTINUE_IN_NEW_WINDOW,
    CONTINUE_NOTE,
    Message,
    decode,
    holds_arguments,
    last_answer,
    message_tokens,
)
from policy.rules.canonical import move_problem, place_of
from state.checkpoint import NO_TOKENS
from state.records import NoteAdded, SessionStatusChanged, StepCommitted, TaskEnded, TurnTaken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.judging import PreparedCall
    from agent_host.llm import Meaning, ModelTurn
    from agent_host.loop import LoopContext, Replay, ResumeNote
    from agent_host.states import EndStatus
    from agent_host.thread.messages import ToolCall
    from state.checkpoint import RequestWindow, TaskStatus

MAX_FULL_WINDOWS = 3
"""So many turns in a row may end in a full context window, each followed by a cut."""

# The end of a task for each failure of the infrastructure, and whether a resume can continue it (AH 4.6, 11). Failures
# of tools and policy raise nothing: the model reads about them in the thread.
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
    """Run the current task to its end, or continue it after a crash; its end is recorded on return. The model gets
    `resume_note` before its next turn. `replays` are denied calls that run before that."""
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
        message = ctx.scrubber.text(str(error))  # a gateway's error may quote the request
        reason = ctx.scrubber.text(str(error.details.get("code", error.code)))
        end = TaskEnd(status, reason, message, resumable=resumable)
        if isinstance(error, GuardrailBlocked):
            add_note(ctx, f"[The previous request was blocked by the gateway: {message}]")
    _record_end(ctx, end)
    ctx.phase.fire(_LAST_MOVE[end.status] if end.status == "failed" or not end.resumable else "suspend")
    return end


async def _run_steps(ctx: LoopContext, resume_note: ResumeNote | None, replays: Sequence[Replay]) -> TaskEnd:
    while True:
        if ctx.state.open_step is None:
            ctx.cancellation.check()
            report_news(ctx)
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
        end = _end_after(ctx, step) or ctx.progress.end_of_circle(ctx.step_id)
        if end is not None:
            return end
        warn_of_step_limit(ctx)
        del step, results  # frees their data before the next request


def _end_after(ctx: LoopContext, step: Step) -> TaskEnd | None:
    """Return the end of the task after a step, by what its turn means (AH 4.4); None if it continues."""
    end = ctx.progress.end_of_noise(step.meaning, step.assistant.content)
    if end is not None:
        return end
    if step.meaning == "complete":
        return None if ctx.state.steers else TaskEnd("completed", text=last_answer(ctx.state.thread))
    if step.meaning == "blocked":
        why = f": {step.detail}" if step.detail else ""
        return TaskEnd("failed", ErrorCode.LLM_GUARDRAIL_BLOCKED, f"the model refused to answer{why}")
    if step.meaning == "unknown":
        word = one_line(ctx.scrubber.text(step.stop), 80)
        message = f"unknown stop reason {word!r}; the answer may be incomplete; resume to continue"
        return TaskEnd("failed", ErrorCode.LLM_GATEWAY_ERROR, message, resumable=True)
    if step.meaning == "window" and ctx.conversation.full_windows > MAX_FULL_WINDOWS:
        message = (
            f"the model's context window was full {ctx.conversation.full_windows} times in a row, with less of the "
            "conversation each time; lower llmPolicy.maxInputTokens to the model's limit, then resume"
        )
        return TaskEnd("failed", ErrorCode.LLM_GATEWAY_ERROR, message, resumable=True)
    return None


def _record_end(ctx: LoopContext, end: TaskEnd) -> None:
    if ctx.task.status != "running":  # its last step ended it
        return
    if end.status == "paused":
        ctx.journal.checkpoint(None, SessionStatusChanged("SESSION_PAUSED", reason=end.reason))
    elif end.resumable:
        ctx.journal.checkpoint(None, SessionStatusChanged("SESSION_RUNNING", reason=end.reason))
    else:
        ctx.journal.checkpoint(None, TaskEnded(end.status, end.reason))


# Steps


# The record of a task's end, made with its last step.
_END_OF_TASK: dict[Meaning, tuple[TaskStatus, str | None]] = {
    "complete": ("completed", None),
    "blocked": ("failed", ErrorCode.LLM_GUARDRAIL_BLOCKED),
}
# Ends of a turn after which the model continues the same answer.
_INCOMPLETE: frozenset[Meaning] = frozenset({"continue", "cut", "window"})
# Ends of a turn after which the model gets a note about the problem.
_NO_ANSWER: frozenset[Meaning] = frozenset(NOISE)
_DAMAGED = (
    "[The record of this session was damaged on disk and is whole up to here. What was done after this is not known: "
    "look at what is there before you do anything again.]"
)


async def take_turn(ctx: LoopContext) -> Step:
    """Call the model and make its turn durable first (invariant 3). Raises what `ask` does, CheckpointWriteFailed."""
    ctx.step_id = ctx.outside.new_id("step")
    ctx.emit(EventType.STEP_STARTED, ctx.step_id, stepId=ctx.step_id, stepCount=ctx.task.step_count + 1)
    await make_room(ctx)
    turn = await ask(ctx)
    window: RequestWindow = {"dropped": ctx.conversation.thread.dropped, "estimated": ctx.conversation.tokens}
    # A turn with calls continues whatever the stop reason, unless the model refused (AH 4.4).
    meaning: Meaning = "continue"
    if not turn.tool_calls or turn.meaning == "blocked":
        meaning = ctx.progress.meaning_without_calls(turn.meaning, turn.text, ctx.judge.tools, ctx.router)
    calls = () if meaning == "blocked" else tuple(_usable(ctx, call) for call in turn.tool_calls)
    assistant = _clean_turn(ctx, turn, calls)
    if calls:
        ctx.phase.fire("check")
    prepared_calls = prepare_calls(ctx, calls)
    record = TurnTaken(
        ctx.step_id,
        turn.stop_reason,
        ctx.journal.store.boot_id(),
        turn.usage,
        list(map(row_of, prepared_calls)),
        ctx.encode(assistant, ctx.step_id),
        turn.meaning if calls else meaning,
        window,
        first_versions(prepared_calls),
        options=_options_to_record(ctx),
        model=ctx.conversation.model,
        sandbox=_sandbox_to_record(ctx, prepared_calls),
    )
    if any(prepared.may_act for prepared in prepared_calls):
        ctx.journal.record(record)
        ctx.journal.write_ahead()
    else:  # nothing that a resume could do twice: a disk that refuses does not keep the model from its work (AH 11)
        ctx.journal.checkpoint(ctx.step_id, record, sync=bool(calls))
    return Step(assistant, meaning, prepared_calls, turn.stop_reason, ctx.scrubber.text(turn.detail))


def _sandbox_to_record(ctx: LoopContext, calls: Sequence[PreparedCall]) -> dict[str, Any]:
    """The sandbox of programs that the turn's calls start, if it differs from the record."""
    scoping = ctx.judge.scoping
    if scoping is None or not any(prepared.spec is not None and prepared.spec.starts_program for prepared in calls):
        return {}
    row = scoping.row(ctx.judge.bundle, ctx.judge.environment)
    return {} if row == (ctx.state.sandbox or {"level": "none"}) else row


def _options_to_record(ctx: LoopContext) -> dict[str, Any]:
    """The options on record for the rest of the task: another model that took over, its lists of remote tools."""
    model, lists = ctx.conversation.model, dict(ctx.judge.tool_lists)
    was = ctx.task.options.get(MODEL_OPTION) or ctx.conversation.default_model
    options: dict[str, Any] = {} if model == was else {MODEL_OPTION: model}
    return options if lists == ctx.task.options.get(LISTS_OPTION, {}) else {**options, LISTS_OPTION: lists}


def reopen(ctx: LoopContext) -> Step:
    """The step that a crash left open."""
    step = ctx.state.open_step
    if step is None:
        raise RuntimeError("reopen is called only where a step is open")
    assistant = decode(ctx.state.thread[step.position])
    meaning = cast("Meaning", step.meaning or meaning_of_old_record(step.stop_reason))
    ctx.step_id = step.step_id
    ctx.phase.fire("reopen")
    if step.calls:
        meaning = "continue"
        ctx.phase.fire("check")
    return Step(assistant, meaning, None, step.stop_reason)


def commit(ctx: LoopContext, step: Step, made: Sequence[Message]) -> None:
    """Add the results to the thread, in call order, and close the step, and with the last step the task: durable on
    return. `made` are results of this process; others are read from the record."""
    open_step = ctx.state.open_step
    calls = open_step.calls if open_step is not None else []
    by_call = {result.tool_call_id: result for result in made}
    results = [by_call.get(call.call_id) or decode(call.result) for call in calls if call.result is not None]
    goes_on = step.meaning in _INCOMPLETE
    cut_short = (goes_on or step.meaning in _NO_ANSWER) and not calls
    # A paused model continues when it reads its own turn; an empty turn gives it nothing to read.
    paused = step.meaning == "continue" and (step.assistant.blocks or step.assistant.content.strip())
    note = (
        ctx.conversation.note(_continuation_note(ctx, step))._replace(asks_to_continue=goes_on)
        if cut_short and not paused
        else None
    )
    dropped = _cut_full_window(ctx)
    count = ctx.task.step_count + 1
    encoded = None if note is None else ctx.encode(note)
    status, reason = _END_OF_TASK.get(step.meaning, (None, None))
    is_steered = status == "completed" and bool(ctx.state.steers)
    status = None if is_steered else status  # the model has not read all steering messages
    ctx.journal.checkpoint(ctx.step_id, StepCommitted(count, status, reason, encoded, dropped))
    if calls:
        if ctx.phase.may("execute"):  # the question was never put
            ctx.phase.fire("execute")
        ctx.phase.fire("step_done")
    elif cut_short or is_steered:
        ctx.phase.fire("cut_short")
    ctx.conversation.thread.add_exchange(step.assistant, results)
    ctx.conversation.open_picture_bytes = 0
    if note is not None:
        ctx.conversation.thread.add_note(note)
    ctx.emit(EventType.STEP_COMPLETED, ctx.step_id, stepId=ctx.step_id, stepCount=count)


def _cut_full_window(ctx: LoopContext) -> int | None:
    """Cut the window if it was full at the end of the turn; returns `RequestWindow.dropped`, None if it stays."""
    conversation, open_step = ctx.conversation, ctx.state.open_step
    if open_step is None or open_step.meaning != "window":
        conversation.full_windows = 0
        return None
    conversation.full_windows += 1
    cut_window(ctx)
    return conversation.thread.dropped


def _continuation_note(ctx: LoopContext, step: Step) -> str:
    if step.meaning == "bad_answer" and ctx.progress.form is not None:
        return ctx.scrubber.text(ctx.progress.form.note(step.assistant.content))
    if step.meaning in NOISE:
        return NOISE[step.meaning].note
    if step.meaning == "window":
        return CONTINUE_IN_NEW_WINDOW
    limit = one_line(step.detail, 80)
    return f'[Your answer was cut at the limit "{limit}". Go on where it stopped.]' if limit else CONTINUE_NOTE


def add_note(
    ctx: LoopContext,
    text: str,
    *,
    workspace: str | None = None,
    of_damage: bool = False,
    of_commands: Sequence[str] = (),
    steers: int = 0,
) -> None:
    """Add a note of the host to the thread; the model reads it with the next request. `workspace` is the new workspace
    if the note is about one; `of_damage`: it reports damage to the record; `of_commands` are background commands whose
    end it reports, `steers` is the number of steering messages in it."""
    note = ctx.conversation.note(text)._replace(workspace=workspace)
    encoded = ctx.encode(note)
    ctx.journal.checkpoint(None, NoteAdded(encoded, of_damage, of_commands, steers), sync=False)
    ctx.conversation.thread.add_note(note)


def report_news(ctx: LoopContext) -> None:
    """Add notes that the model must read before its next turn: a repair of the session, ended background commands, and
    steering messages of the person."""
    if ctx.state.salvaged is not None:
        add_note(ctx, _DAMAGED, of_damage=True)
    report = commands_to_report(ctx.state)
    if report is not None:
        text, of_commands = report
        add_note(ctx, text, of_commands=of_commands)
    steers = list(ctx.state.steers)
    if steers:
        text = "\n\n".join(steers)
        add_note(ctx, f"[The user says, while you work on the task:]\n{text}", steers=len(steers))


def _clean_turn(ctx: LoopContext, turn: ModelTurn, calls: tuple[ToolCall, ...]) -> Message:
    """The turn as it is kept and sent back. Blocks of a turn that was blocked are not: the model takes none back."""
    # A count that cannot be one of the text makes no later request look shorter than it is.
    encoded = tuple(call.arguments_json.decode() for call in calls)
    estimated = message_tokens(ctx.conversation.count, turn.text, encoded)
    counted = turn.usage.output_tokens
    tokens = counted if counted >= estimated * LEAST_SHARE else estimated
    message = Message("assistant", turn.text, tokens, calls)
    if turn.meaning != "blocked":
        blocks = tuple(block._replace(model=ctx.conversation.model) for block in turn.blocks)
        message = message._replace(blocks=blocks, order=turn.order)
    kept = clean_message(ctx.scrubber, message)
    secret = _count_opaque_blocks(message) - _count_opaque_blocks(kept)
    for count, why in ((turn.dropped_blocks, "could not be read whole"), (secret, "held a secret")):
        if count:
            text = f"{count} part(s) of the model's answer, such as reasoning, {why} and will not be sent back to it"
            ctx.emit(EventType.LLM_BLOCK_DROPPED, ctx.step_id, count=count, message=text)
    return kept


def _count_opaque_blocks(message: Message) -> int:
    """Blocks of a message with content beyond its text and calls."""
    return sum(not holds_arguments(block) for block in message.blocks)


def _usable(ctx: LoopContext, call: ToolCall) -> ToolCall:
    """Return the call without placeholders for omitted arguments, as policy judges it. A gateway may number its calls
    anew in every answer: in the thread each id is unique (invariant 4)."""
    arguments = ctx.router.usable_arguments(call.name, call.arguments)
    if arguments is not call.arguments:
        call = call._replace(arguments=dict(arguments))
    is_used = ctx.conversation.thread.has_call(call.call_id)
    return call.change_id(ctx.outside.new_id("call")) if is_used else call


# Calls that were denied for lack of an approver and run after a person's approval (SK 4.3).
#
# They are an ordinary step that the host makes in place of the model, so they are recorded before they start, and a
# crash repeats none of them.

_APPROVED_NOW = (
    "[Calls of yours were denied since nobody was there to approve them. The user has approved them now: they are run "
    "once, exactly as you asked for them, and their results follow. Go on with the task from there.]"
)
_APPROVED_TEXT = "(approved by the user)"


def take_replay(ctx: LoopContext, replays: Sequence[Replay]) -> Step:
    """A turn of these calls, durable and approved. Raises CheckpointWriteFailed."""
    add_note(ctx, _APPROVED_NOW)
    ctx.step_id = ctx.outside.new_id("step")
    ctx.phase.fire("reopen")
    ctx.emit(EventType.STEP_STARTED, ctx.step_id, stepId=ctx.step_id, stepCount=ctx.task.step_count + 1)
    calls = tuple(replay.call.change_id(ctx.outside.new_id("call")) for replay in replays)
    tokens = message_tokens(
        ctx.conversation.count, _APPROVED_TEXT, tuple(call.arguments_json.decode() for call in calls)
    )
    assistant = Message("assistant", _APPROVED_TEXT, tokens, calls)
    ctx.phase.fire("check")
    prepared_calls = tuple(
        _approve(ctx, prepared, replay) for prepared, replay in zip(prepare_calls(ctx, calls), replays, strict=True)
    )
    record = TurnTaken(
        ctx.step_id,
        "replay",
        ctx.journal.store.boot_id(),
        NO_TOKENS,
        list(map(row_of, prepared_calls)),
        ctx.encode(assistant, ctx.step_id),
        "continue",
        baselines=first_versions(prepared_calls),
        settled=[call_id for replay in replays for call_id in replay.settles],
    )
    ctx.journal.record(record)
    for prepared in prepared_calls:
        if prepared.answer is not None:
            ctx.journal.record(prepared.answer)
    ctx.journal.write_ahead()
    return Step(assistant, "continue", prepared_calls)


def _approve(ctx: LoopContext, prepared: PreparedCall, replay: Replay) -> PreparedCall:
    call_id, approval_id = prepared.call.call_id, prepared.approval_id or ctx.outside.new_id("appr")
    answer = ApprovalAnswer(approved=True, reason=f"approved by --approve {replay.replay_id}")
    record = answer.to_record(call_id, approval_id, bound_to(ctx, prepared))
    asked = ask_after_all(prepared._replace(answer=record))
    if not asked.needs_approval:  # policy has changed its mind since, one way or the other
        return asked._replace(answer=None)
    elsewhere = move_problem(replay.place, place_of(prepared.facts))
    if elsewhere is not None:  # with `approve` it can be replayed there
        refusal = Refusal("denied", ErrorCode.APPROVAL_REQUIRED, elsewhere, replay.approve)
        return asked._replace(answer=None, refusal=refusal)
    return asked._replace(approval_id=approval_id)
