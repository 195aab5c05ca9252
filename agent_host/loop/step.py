"""One step: take the model's turn and put it on record, and commit it when its calls are answered. A request that is
too long is shortened before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agent_host.display_text import one_line
from agent_host.errors import (
    BudgetExceeded,
    ContextTooLong,
    ErrorCode,
    GatewayError,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
    UsageError,
)
from agent_host.events import EventType
from agent_host.llm.known_dialects import meaning_of_old_record
from agent_host.loop.background import commands_to_report
from agent_host.loop.context import LISTS_OPTION, MODEL_OPTION
from agent_host.loop.costs import LEAST_SHARE, cost_of, count_usage
from agent_host.loop.journal import clean_message
from agent_host.loop.limits import (
    MAX_REQUEST_BYTES,
    ModelRequest,
    check_before_call,
    check_request,
    emit_compacted,
    estimate_input,
    next_request,
    room_for_conversation,
)
from agent_host.loop.prepare import first_versions, prepare_calls, row_of
from agent_host.loop.progress import NOTES
from agent_host.retrying import call_with_retries
from agent_host.thread.messages import GO_ON, GO_ON_IN_A_NEW_WINDOW, Message, decode, holds_arguments
from agent_host.thread.thread import MAX_CHARS, count_saved, question, summary_message
from agent_host.thread.tokens import message_tokens
from config.lean_typing import NamedTuple
from state.records import ContextCompacted, NoteAdded, StepCommitted, TurnTaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent_host.judging.prepared import PreparedCall
    from agent_host.llm.stream import Meaning, ModelTurn
    from agent_host.loop.context import LoopContext
    from agent_host.loop.conversation import Conversation
    from agent_host.retrying import RetryPolicy
    from agent_host.thread.messages import ToolCall
    from state.checkpoint import OpenStep, RequestWindow, TaskStatus

# What a step that ends its task puts on record about it.
_END_OF_TASK: dict[Meaning, tuple[TaskStatus, str | None]] = {
    "complete": ("completed", None),
    "blocked": ("failed", ErrorCode.LLM_GUARDRAIL_BLOCKED),
}
# Ends of a turn behind which the model goes on with the same answer.
_NOT_WHOLE: frozenset[Meaning] = frozenset({"continue", "cut", "window"})
# Those behind which the model is told what was wrong.
_NO_ANSWER: frozenset[Meaning] = frozenset(NOTES)
_LIMIT_CHARS = 80
_DAMAGED = (
    "[The record of this session was damaged on disk and is whole up to here. What was done after this is not known: "
    "look at what is there before you do anything again.]"
)


class Step(NamedTuple):
    """A model turn on record. `calls` are its calls with policy's decision on each; None when the step was found open
    after a crash, where what happened to each call decides first. `stop` is the gateway's word for its end, and
    `detail` what it said of it besides; a crash loses that."""

    step_id: str
    assistant: Message
    meaning: Meaning
    calls: tuple[PreparedCall, ...] | None
    stop: str = ""
    detail: str = ""


async def take_turn(ctx: LoopContext) -> Step:
    """Call the model and make its turn durable before anything follows from it (invariant 3).

    Raises what `ask` raises, CheckpointWriteFailed.
    """
    step_id = ctx.outside.new_id("step")
    ctx.emit(EventType.STEP_STARTED, step_id, stepId=step_id, stepCount=ctx.task.step_count + 1)
    await make_room(ctx, step_id)
    turn = await ask(ctx, step_id, lambda request, attempts: _call_model(ctx, step_id, request, attempts))
    window: RequestWindow = {"dropped": ctx.conversation.thread.dropped, "estimated": ctx.conversation.tokens}
    meaning = _meaning(ctx, turn)
    calls = () if meaning == "blocked" else _renumber(ctx, [_usable(ctx, call) for call in turn.tool_calls])
    assistant = _clean_turn(ctx, step_id, turn, calls)
    if calls:
        ctx.phase.fire("check")
    prepared_calls = prepare_calls(ctx, calls)
    record = TurnTaken(
        step_id,
        turn.stop_reason,
        ctx.journal.store.boot_id(),
        turn.usage,
        list(map(row_of, prepared_calls)),
        ctx.encode(assistant, step_id),
        turn.meaning if calls else meaning,
        window,
        first_versions(prepared_calls),
        options=_options_from_here(ctx),
        model=ctx.conversation.model,
        sandbox=_sandbox_from_here(ctx, prepared_calls),
    )
    if any(prepared.may_act for prepared in prepared_calls):
        ctx.journal.record(record)
        ctx.journal.write_ahead()
    else:  # nothing that a resume could do twice: a disk that refuses does not keep the model from its work (AH 11)
        ctx.journal.checkpoint(step_id, record, sync=bool(calls))
    return Step(step_id, assistant, meaning, prepared_calls, turn.stop_reason, ctx.scrubber.text(turn.detail))


def _sandbox_from_here(ctx: LoopContext, calls: Sequence[PreparedCall]) -> dict[str, Any]:
    """The sandbox of the programs that calls of the turn start, if that is not what is on record."""
    scoping = ctx.judge.scoping
    if scoping is None or not any(prepared.spec is not None and prepared.spec.starts_program for prepared in calls):
        return {}
    row = scoping.row(ctx.judge.bundle, ctx.judge.environment)
    return {} if row == (ctx.state.sandbox or {"level": "none"}) else row


def _options_from_here(ctx: LoopContext) -> dict[str, Any]:
    """The options on record for the rest of the task, and for a resume of it: the model, if another one has taken over,
    and its lists of remote tools."""
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
    meaning = "continue" if step.calls else _meaning_on_record(step)
    ctx.phase.fire("reopen")
    if step.calls:
        ctx.phase.fire("check")
    return Step(step.step_id, assistant, meaning, None, step.stop_reason)


def _meaning_on_record(step: OpenStep) -> Meaning:
    if step.meaning is not None:
        return cast("Meaning", step.meaning)
    return meaning_of_old_record(step.stop_reason)


def commit(ctx: LoopContext, step: Step, made: Sequence[Message]) -> None:
    """Put the results into the thread, in call order, and close the step, and with the last step the task: durable on
    return. `made` are results that this process made; what is not among them is read from the record."""
    open_step = ctx.state.open_step
    calls = open_step.calls if open_step is not None else []
    by_call = {result.tool_call_id: result for result in made}
    results = [by_call.get(call.call_id) or decode(call.result) for call in calls if call.result is not None]
    goes_on = step.meaning in _NOT_WHOLE
    cut_short = (goes_on or step.meaning in _NO_ANSWER) and not calls
    # A model that paused goes on when it reads its own turn; one that has said nothing has none to read.
    paused = step.meaning == "continue" and (step.assistant.blocks or step.assistant.content.strip())
    note = ctx.conversation.note(_go_on(ctx, step))._replace(goes_on=goes_on) if cut_short and not paused else None
    dropped = _cut_full_window(ctx, step)
    count = ctx.task.step_count + 1
    encoded = None if note is None else ctx.encode(note)
    status, reason = _END_OF_TASK.get(step.meaning, (None, None))
    is_steered = status == "completed" and bool(ctx.state.steers)
    status = None if is_steered else status  # the model has not read all that the person said
    ctx.journal.checkpoint(step.step_id, StepCommitted(count, status, reason, encoded, dropped))
    if calls:
        if ctx.phase.may("execute"):  # nobody was asked after all
            ctx.phase.fire("execute")
        ctx.phase.fire("step_done")
    elif cut_short or is_steered:
        ctx.phase.fire("cut_short")
    ctx.conversation.thread.add_exchange(step.assistant, results)
    ctx.conversation.open_picture_bytes = 0
    if note is not None:
        ctx.conversation.thread.add_note(note)
    ctx.emit(EventType.STEP_COMPLETED, step.step_id, stepId=step.step_id, stepCount=count)


def _cut_full_window(ctx: LoopContext, step: Step) -> int | None:
    """Cut the window if the model ended its turn because its context was full; returns what `RequestWindow` calls
    `dropped`, None if the window stays."""
    talk, open_step = ctx.conversation, ctx.state.open_step
    if open_step is None or open_step.meaning != "window":
        talk.full_windows = 0
        return None
    talk.full_windows += 1
    cut_window(ctx, step.step_id)
    return talk.thread.dropped


def _go_on(ctx: LoopContext, step: Step) -> str:
    """Words of the host behind an answer that is not whole, or is none."""
    if step.meaning == "bad_answer" and ctx.progress.form is not None:
        return ctx.scrubber.text(ctx.progress.form.note(step.assistant.content))
    if step.meaning in NOTES:
        return NOTES[step.meaning]
    if step.meaning == "window":
        return GO_ON_IN_A_NEW_WINDOW
    limit = one_line(step.detail, _LIMIT_CHARS)
    return f'[Your answer was cut at the limit "{limit}". Go on where it stopped.]' if limit else GO_ON


def add_note(
    ctx: LoopContext,
    text: str,
    *,
    workspace: str | None = None,
    of_damage: bool = False,
    of_commands: Sequence[str] = (),
    steers: int = 0,
) -> None:
    """Put a note of the host to the model into the thread; the model sees it with the next request. `workspace` is the
    new one that the note is about, where it is about one; `of_damage`: it reports damage to the record; `of_commands`
    are background commands whose end it reports, `steers` counts what a person said that is in it."""
    note = ctx.conversation.note(text)._replace(workspace=workspace)
    encoded = ctx.encode(note)
    ctx.journal.checkpoint(None, NoteAdded(encoded, of_damage, of_commands, steers), sync=False)
    ctx.conversation.thread.add_note(note)


def report_damage(ctx: LoopContext) -> None:
    """Say to the model that it was here before, where the session was saved from damage."""
    if ctx.state.salvaged is not None:
        add_note(ctx, _DAMAGED, of_damage=True)


def report_steers(ctx: LoopContext) -> None:
    """Say to the model what the person said since its last turn."""
    said = list(ctx.state.steers)
    if said:
        text = "\n\n".join(said)
        add_note(ctx, f"[The user says, while you work on the task:]\n{text}", steers=len(said))


def report_commands(ctx: LoopContext) -> None:
    """Say to the model which background commands have ended since its last turn."""
    report = commands_to_report(ctx.state)
    if report is not None:
        text, of_commands = report
        add_note(ctx, text, of_commands=of_commands)


def _clean_turn(ctx: LoopContext, step_id: str, turn: ModelTurn, calls: tuple[ToolCall, ...]) -> Message:
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
    secret = _count_told(message) - _count_told(kept)
    for count, why in ((turn.dropped_blocks, "could not be read whole"), (secret, "held a secret")):
        if count:
            text = f"{count} part(s) of the model's answer, such as reasoning, {why} and will not be sent back to it"
            ctx.emit(EventType.LLM_BLOCK_DROPPED, step_id, count=count, message=text)
    return kept


def _count_told(message: Message) -> int:
    """Blocks of a message that say something which its text and calls do not."""
    return sum(not holds_arguments(block) for block in message.blocks)


def _usable(ctx: LoopContext, call: ToolCall) -> ToolCall:
    """The call without what stands for arguments that are left out. Policy judges it so."""
    arguments = ctx.router.usable_arguments(call.name, call.arguments)
    return call if arguments is call.arguments else call._replace(arguments=dict(arguments))


def _renumber(ctx: LoopContext, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """A gateway may number its calls again in every answer; in the thread each id stands once (invariant 4)."""
    has_call, new_id = ctx.conversation.thread.has_call, ctx.outside.new_id
    return tuple(call.change_id(new_id("call")) if has_call(call.call_id) else call for call in calls)


def _meaning(ctx: LoopContext, turn: ModelTurn) -> Meaning:
    """AH 4.4: with calls the turn goes on whatever the stop reason, unless the model refused."""
    if turn.tool_calls and turn.meaning != "blocked":
        return "continue"
    return ctx.progress.meaning_without_calls(turn.meaning, turn.text, ctx.judge.tools, ctx.router)


async def _call_model(ctx: LoopContext, step_id: str, request: ModelRequest, attempts: Attempts) -> ModelTurn:
    """One request, tried again where its fault passes."""
    talk, needed = ctx.conversation, request.needed
    started = ctx.outside.monotonic()
    shown: list[str] = []

    def send() -> Awaitable[ModelTurn]:
        attempts.number += 1
        shown.clear()
        return talk.llm.stream(talk.head, request.messages, on_text, on_thinking, ctx.emitter.flush)

    def on_text(text: str) -> None:
        shown.append(text)
        ctx.emit(EventType.TEXT_CHUNK, step_id, text=text, attempt=attempts.number)

    def on_thinking(text: str) -> None:
        shown.append(text)
        ctx.emit(EventType.THINKING_CHUNK, step_id, text=text, attempt=attempts.number)

    def on_retry(_: int, wait_s: float, error: GatewayUnavailable) -> None:
        told = {"attempt": attempts.number, "waitMs": int(wait_s * 1000), "message": str(error)}
        ctx.emit(EventType.LLM_RETRY, step_id, **told)

    if ctx.phase.may("call_model"):  # it waits for the model already where the first request did not do
        ctx.phase.fire("call_model")
    limit = talk.answer_limit(ctx.judge)
    ctx.emit(
        EventType.LLM_REQUEST_STARTED, step_id, model=talk.model, estimatedInputTokens=needed, maxOutputTokens=limit
    )
    retry = attempts.retry_policy(talk)
    turn = await ctx.cancellation.interruptible(
        call_with_retries(GatewayUnavailable, send, retry, on_retry, ctx.outside)
    )
    ctx.phase.fire("answered")
    turn = count_usage(ctx, step_id, turn, needed=needed, sent=request.estimated, shown="".join(shown))
    _emit_answer(ctx, step_id, turn, ctx.outside.ms_since(started))
    return turn


def _emit_answer(ctx: LoopContext, step_id: str, turn: ModelTurn, latency_ms: int) -> None:
    models, model = ctx.conversation.models, ctx.conversation.model
    ctx.emit(
        EventType.LLM_REQUEST_COMPLETED,
        step_id,
        model=model,
        **turn.usage.to_wire(),
        stopReason=turn.stop_reason,
        latencyMs=latency_ms,
        **_names_of_answer(ctx, turn),
        **cost_of(models, turn.usage, model),
    )
    if turn.replaced:
        message = f"the model's answer held halves of characters: U+FFFD stands in {turn.replaced} place(s)"
        ctx.emit(EventType.LLM_ANSWER_REPAIRED, step_id, count=turn.replaced, message=message)


def _names_of_answer(ctx: LoopContext, turn: ModelTurn) -> dict[str, str]:
    """The gateway's names for the answer and its model, and its words on the end, as far as it gives them. Scrubbed
    here, since OpenTelemetry gets payloads as they are emitted."""
    names = {"responseId": turn.response_id, "responseModel": turn.response_model, "stopDetail": turn.detail}
    return {key: ctx.scrubber.text(name) for key, name in names.items() if name}


# The model is asked until it answers: a request that is too long is cut and sent once more, and where the model is
# overloaded the next one is asked (AH 6.4).


# What is left of a conversation that was too long. The estimate of its tokens was wrong then, so the cut is hard.
_SHARE = 0.5


class Attempts:
    """The tries of one step, from 1; `number` is the present one. Text of a try is taken back by its number.
    `overloaded` are the models that had no capacity; another one is asked before a server is waited for."""

    def __init__(self) -> None:
        self.number = 0
        self.overloaded: set[str] = set()

    def next_model(self, talk: Conversation) -> str | None:
        """The model to ask once the present one is overloaded; None if there is no other."""
        return next((name for name in talk.fallbacks if name not in {*self.overloaded, talk.model}), None)

    def retry_policy(self, talk: Conversation) -> RetryPolicy:
        """The number of tries and the time that the present model gets."""
        return talk.retry if self.next_model(talk) is None else talk.retry._replace(max_wait_s=None)


async def ask(
    ctx: LoopContext, step_id: str, call: Callable[[ModelRequest, Attempts], Awaitable[ModelTurn]]
) -> ModelTurn:
    """The answer to the next request, which `call` sends.

    Raises what `fitting_request` and the client raise, TaskCancelled.
    """
    attempts, was_cut = Attempts(), False
    while True:
        request = fitting_request(ctx, step_id)
        try:
            return await call(request, attempts)
        except ContextTooLong as error:
            if was_cut or not cut_window(ctx, step_id, error.limit):
                raise
            was_cut = True
            _take_back(ctx, step_id, attempts, error)
        except ModelOverloaded as error:
            fallback = attempts.next_model(ctx.conversation)
            attempts.overloaded.add(ctx.conversation.model)
            if fallback is None:
                raise
            was_cut = False  # another model has another window
            _take_back(ctx, step_id, attempts, error)
            _fall_back(ctx, step_id, fallback)


def fitting_request(ctx: LoopContext, step_id: str) -> ModelRequest:
    """Make the next request fit, and check that it may be sent. Where the newest turn alone would not fit, it shows its
    results in short, as all before it do.

    Raises what `check_before_call` and `check_request` raise.
    """
    check_before_call(ctx, step_id)
    talk = ctx.conversation
    newest_tokens, newest_messages = talk.thread.newest
    if newest_tokens > room_for_conversation(ctx):
        clear_all_results(ctx, step_id, newest_messages)
    before, dropped = estimate_input(ctx), talk.thread.dropped
    talk.thread.fit(room_for_conversation(ctx))
    if talk.thread.dropped != dropped:
        emit_compacted(ctx, step_id, "drop_oldest", before)
    talk.settle_window()
    request = next_request(ctx)
    while request.size_bytes > MAX_REQUEST_BYTES and cut_window(ctx, step_id):
        talk.settle_window()
        request = next_request(ctx)
    most_output = talk.output_limit(ctx.judge)
    talk.lower_output(check_request(ctx, talk.model, request, most_output), ctx.judge)
    return request


def cut_window(ctx: LoopContext, step_id: str, limit: int | None = None) -> bool:
    """Leave the oldest half of the conversation out of requests, or what is above half of the `limit` of the model;
    says whether anything was left out. The next turn's record, or that of a step's end, says where the window is."""
    talk, before = ctx.conversation, estimate_input(ctx)
    budget = int(talk.thread.tokens * _SHARE)
    if limit is not None:
        budget = min(budget, int(limit * _SHARE) - talk.head_tokens)
    dropped = talk.thread.cut(budget)
    if dropped:
        message = f"the conversation was too long for the model: its oldest {dropped} message(s) are left out"
        ctx.emit(EventType.LLM_WINDOW_CUT, step_id, droppedMessages=dropped, message=message)
        emit_compacted(ctx, step_id, "drop_oldest", before)
    return dropped > 0


def _take_back(ctx: LoopContext, step_id: str, attempts: Attempts, error: GatewayError) -> None:
    ctx.emit(EventType.LLM_RETRY, step_id, attempt=attempts.number, waitMs=0, message=str(error))


def _fall_back(ctx: LoopContext, step_id: str, name: str) -> None:
    """Have the model `name` go on with the task. It gets no blocks of the one before."""
    before = ctx.conversation.model
    ctx.conversation.use_model(name, ctx.judge)
    message = f"{before} is overloaded: {name} goes on with the task (llm.fallback_models)"
    ctx.emit(EventType.LLM_FALLBACK, step_id, model=before, fallbackModel=name, message=message)


# Making room in a request (AH 5.4): older results left out, or a summary in the place of the older part.
#
# The conversation on record stays whole; what a request shows of it is a view, which goes on record when it changes.
# Each way that does not help gives way to the next cheaper one, and the last, dropping the oldest messages, always
# helps.


_MIN_SAVED = 0.2
"""Share of the window that clearing has to save: each change of the view has the whole request written to the cache
again."""
_STEPS_WITHOUT = 10
"""Steps that need room without a further question, once there was no summary to be had."""
_MARGIN = 0.05
"""Share of the window that is kept free for the question, so that a summary is asked for before it is too late."""


async def make_room(ctx: LoopContext, step_id: str) -> None:
    """Change the view where the next request would be too long, or a client asked for it. What is still too long then
    is cut by `Thread.fit`. Raises TaskCancelled, CheckpointWriteFailed."""
    talk = ctx.conversation
    strategy, wanted = talk.compaction.strategy, talk.compaction_wanted
    if strategy == "drop_oldest" and not wanted:
        return
    window = room_for_conversation(ctx)
    if talk.thread.tokens <= window * (1 - _MARGIN) and not wanted:
        return
    talk.compaction_wanted = False
    before = estimate_input(ctx)
    by_summary = (strategy == "summarize" and talk.steps_without_summary == 0) or (wanted and strategy == "drop_oldest")
    talk.steps_without_summary = max(0, talk.steps_without_summary - 1)
    record = await _summarize(ctx, step_id, window) if by_summary else None
    if by_summary and record is None:
        talk.steps_without_summary = _STEPS_WITHOUT
    record = record or _clear_results(ctx, window)
    if record is None:
        return
    _show(ctx, step_id, record, before)


def clear_all_results(ctx: LoopContext, step_id: str, newest: int) -> None:
    """Leave the text of all large results out of requests, where that makes the `newest` messages shorter."""
    state, messages = ctx.state, len(ctx.state.thread) - 1
    first = 1 + max(state.cleared_messages, messages - newest)
    if any(count_saved(decode(data)) for data in state.thread[first:]):
        record = ContextCompacted("clear_tool_results", ctx.conversation.thread.dropped, messages, state.summary)
        _show(ctx, step_id, record, estimate_input(ctx))


def _show(ctx: LoopContext, step_id: str, record: ContextCompacted, before: int) -> None:
    """Have requests show what the record says."""
    ctx.journal.record(record)
    ctx.conversation.renew_thread()
    emit_compacted(ctx, step_id, record.strategy, before, record.usage)


def _clear_results(ctx: LoopContext, window: int) -> ContextCompacted | None:
    """Older results left out; None where that saves too little."""
    state, older = ctx.state, ctx.conversation.thread.older()
    first = max(state.cleared_messages, state.dropped_messages)
    saved = sum(count_saved(decode(data)) for data in state.thread[1 + first : 1 + older])
    if saved < min(window, ctx.conversation.thread.tokens) * _MIN_SAVED:
        return None
    return ContextCompacted("clear_tool_results", state.dropped_messages, older, state.summary)


async def _summarize(ctx: LoopContext, step_id: str, window: int) -> ContextCompacted | None:
    """A summary in the place of all but the newest messages; None where there is none to be had."""
    talk, state = ctx.conversation, ctx.state
    model = talk.compaction.summary_model or talk.model
    turn = await _answer(ctx, step_id, window, model)
    if turn is None:
        return None
    text = ctx.scrubber.text(turn.text.strip())[:MAX_CHARS]
    size = min(window, talk.thread.tokens)
    dropped = talk.thread.count_dropped(size, summary_message(text, talk.count).tokens)
    if not text or turn.tool_calls or turn.meaning != "complete" or dropped <= state.dropped_messages:
        dropped, text = state.dropped_messages, state.summary or ""
    if dropped == state.dropped_messages:
        # What was asked is paid for all the same.
        kept = ContextCompacted("summarize", dropped, state.cleared_messages, state.summary, turn.usage, model)
        ctx.journal.record(kept)
        return None
    return ContextCompacted("summarize", dropped, state.cleared_messages, text, turn.usage, model)


async def _answer(ctx: LoopContext, step_id: str, window: int, model: str) -> ModelTurn | None:
    """The answer of `model` to the question for a summary; None where policy, the budget or the gateway allow none. The
    request begins as the one before it, so that the provider reads it from its cache."""
    talk, asked = ctx.conversation, question(ctx.conversation.count)
    if not ctx.judge.check_llm(model).allowed:
        return None
    thread, make_head = talk.thread, talk.make_head
    if model != talk.model and talk.for_model is not None:
        thread, make_head = talk.for_model(model)
    messages, estimated = thread.asking(asked, window, talk.head_tokens)
    estimated += talk.head_tokens
    request = ModelRequest(messages, estimated, estimated, int(estimated * LEAST_SHARE))
    most_output = talk.output_limit(ctx.judge)
    try:
        affordable = check_request(ctx, model, request, most_output)
    except (BudgetExceeded, UsageError):
        return None
    head = talk.head
    if model != talk.model or affordable not in (None, most_output):
        head = make_head(ctx.judge, most_output if affordable is None else affordable)

    def ask() -> Awaitable[ModelTurn]:
        return talk.llm.stream(head, request.messages, _nothing_shown)

    def on_retry(_: int, wait_s: float, error: GatewayUnavailable) -> None:
        ctx.emit(EventType.CONTEXT_SUMMARY_RETRY, step_id, waitMs=int(wait_s * 1000), message=str(error))

    try:
        turn = await ctx.cancellation.interruptible(
            call_with_retries(GatewayUnavailable, ask, talk.retry, on_retry, ctx.outside)
        )
    except (GatewayError, GuardrailBlocked):
        return None
    return count_usage(ctx, step_id, turn, needed=request.needed, sent=request.estimated, shown=turn.text)


def _nothing_shown(_: str) -> None:
    """The text of a summary is no answer to the person."""
