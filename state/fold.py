"""Changes that each record makes to the state of a session: live and after a crash the same functions run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state.blobs import add_mode, mode_and_blob
from state.checkpoint import EarlierTask, Task
from state.errors import Damaged
from state.records import (
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalGranted,
    ArtifactGivenUp,
    ArtifactUploaded,
    CallFinished,
    CallStarted,
    ChangesSeen,
    CommandEnded,
    CommandStarted,
    ContextCompacted,
    NoteAdded,
    SessionStatusChanged,
    StepCommitted,
    TaskEnded,
    TaskQueued,
    TaskReopened,
    TaskStarted,
    TaskUnqueued,
    TurnTaken,
    fields_of,
    kind_of,
)
from state.recovery import open_step_from
from state.usage import NO_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.checkpoint import Checkpoint
    from state.records import EndRow, FirstVersions, Record
    from state.usage import TokenUsage

# What a listing shows of a task that is over; its whole prompt stands in the thread.
_EARLIER_PROMPT_CHARS = 200
# What is said of a background command's line when it ends.
_LINE_CHARS = 80
_BY_THE_MODEL = "stopped"
_MAX_SEEN = 256


def fold(state: Checkpoint, record: Record) -> None:
    """Change `state` as `record` says. Raises Damaged for a record that cannot follow what came before."""
    try:
        _FOLDS[type(record)](state, record)
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise Damaged(f"record {kind_of(record)!r} does not fit the state it follows") from error


def _task_started(state: Checkpoint, record: TaskStarted) -> None:
    if state.open_step is not None:
        raise KeyError("a task follows when the step before it is over")
    if state.task is not None:
        state.earlier_tasks.append(_make_earlier(state.task))
    state.queue = [queued for queued in state.queue if queued.task_id != record.task_id]
    state.task = Task(record.task_id, record.prompt, record.max_steps, options=dict(record.options))
    # It waits for nothing any more that kept it from being over.
    state.session_status = "SESSION_RUNNING"
    # Approvals for a task end with it.
    state.grants = [grant for grant in state.grants if grant.scope != "task"]
    state.thread.append(record.message)


def _task_queued(state: Checkpoint, record: TaskQueued) -> None:
    state.queue.append(record)


def _task_unqueued(state: Checkpoint, record: TaskUnqueued) -> None:
    state.queue.remove(next(queued for queued in state.queue if queued.task_id == record.task_id))


def _make_earlier(task: Task) -> EarlierTask:
    prompt = task.prompt[:_EARLIER_PROMPT_CHARS]
    return EarlierTask(task.task_id, prompt, task.status, task.reason, task.step_count, task.baselines)


def _task_reopened(state: Checkpoint, record: TaskReopened) -> None:
    task = _task(state)
    if task.status == "running":
        raise KeyError("only a task that is over is opened again")
    task.status, task.reason, task.max_steps = "running", None, record.max_steps
    state.session_status = "SESSION_RUNNING"


def _turn_taken(state: Checkpoint, record: TurnTaken) -> None:
    task = _task(state)
    if state.open_step is not None:
        raise KeyError("a turn needs a step before it that is over")
    step = open_step_from({**fields_of(record), "position": len(state.thread)}, record.message)
    if record.window is not None:
        _show(state, record.window["dropped"])
    state.thread.append(record.message)
    # Calls that this turn makes good for; rows of earlier versions do not say which call they are about.
    task.denied = [row for row in task.denied if row["replay"].get("callId") not in record.settled]
    _add_usage(state, record.usage, record.model)
    _add_baselines(state, record.baselines)
    if record.window is not None:
        state.tokens_known = (record.usage.input_tokens, record.window["estimated"])
        state.tokens_known_of = record.model
    if record.options:
        task.options = {**task.options, **record.options}
    if record.sandbox:
        state.sandbox = dict(record.sandbox)
    state.open_step = step


def _show(state: Checkpoint, dropped: int, cleared: int | None = None, summary: str | None = None) -> None:
    """Set the part of the conversation that requests show from now on; None for `cleared` keeps the cleared messages
    and the summary."""
    before = (state.dropped_messages, state.cleared_messages, state.summary)
    if cleared is None:
        cleared, summary = state.cleared_messages, state.summary
    if (dropped, cleared, summary) != before:
        state.dropped_messages, state.cleared_messages, state.summary = dropped, cleared, summary
        state.flattened_messages = len(state.thread) - 1  # the system prompt is none


def _add_usage(state: Checkpoint, usage: TokenUsage, model: str | None) -> None:
    """Count what a model used, for the task and for the session."""
    for owner in (state, _task(state)):
        owner.usage = owner.usage.plus(usage)
        if model is not None:
            owner.usage_by_model[model] = owner.usage_by_model.get(model, NO_TOKENS).plus(usage)


def _add_baselines(state: Checkpoint, baselines: FirstVersions) -> None:
    """Add first versions that a task finds; a path that an earlier task has written has none."""
    if baselines:
        task = _task(state)
        for path, version in baselines.items():
            for known in (state.baselines, task.baselines):
                known[path] = _copy_mode(known[path], version) if path in known else version


def _copy_mode(first: str | None, later: str | None) -> str | None:
    """A first version with the mode that a later call found, where none had changed it until then."""
    if first is None or later is None or mode_and_blob(first)[0] is not None:
        return first
    mode = mode_and_blob(later)[0]
    return first if mode is None else add_mode(mode, first)


def _approval_asked(state: Checkpoint, record: ApprovalAsked) -> None:
    call = state.open_call(record.call_id)
    call.gated, call.approval_id, call.answer = True, record.approval_id, None


def _approval_answered(state: Checkpoint, record: ApprovalAnswered) -> None:
    call = state.open_call(record.call_id)
    call.gated, call.approval_id, call.answer = True, record.approval_id, record


def _approval_granted(state: Checkpoint, record: ApprovalGranted) -> None:
    state.grants.append(record)


def _call_started(state: Checkpoint, record: CallStarted) -> None:
    call = state.open_call(record.call_id)
    call.started = True
    if record.effect is not None:
        call.intent = record.effect.intent
        _add_baselines(state, record.effect.baselines)


def _call_finished(state: Checkpoint, record: CallFinished) -> None:
    call = state.open_call(record.call_id)
    call.result, call.status, call.code, call.replay = record.message, record.status, record.code, record.replay
    call.exit_code, call.duration_ms = record.exit_code, record.duration_ms
    if record.uris:
        state.artifact_uris.setdefault(record.call_id, []).extend(record.uris)
    for row in record.artifacts:
        _add_artifact(state, {**row, "callId": record.call_id})
    _see_changes(state, record)
    if record.skill is not None:
        _task(state).skills[record.skill["name"]] = record.skill["allowedTools"]
    for path, seen in record.seen.items():
        state.seen.pop(path, None)  # the ones that were seen last stand last
        if seen is not None:
            state.seen[path] = seen
    for path in list(state.seen)[:-_MAX_SEEN]:
        del state.seen[path]


def _see_changes(state: Checkpoint, record: CallFinished | ChangesSeen) -> None:
    _add_baselines(state, record.changed)
    if record.unseen is not None:
        state.unseen.setdefault(_task(state).task_id, record.unseen)


def _add_artifact(state: Checkpoint, row: dict[str, Any]) -> None:
    """An artifact of a call of the open step: stored (`uri`), not to be stored (`why`), or still to be uploaded."""
    task, step = _task(state), state.open_step
    if "uri" in row:
        state.artifact_uris.setdefault(row["callId"], []).append(row["uri"])
    elif "why" in row:
        task.not_uploaded.append(row)
    else:
        state.uploads[row["id"]] = {**row, "taskId": task.task_id, "stepId": None if step is None else step.step_id}


def _artifact_uploaded(state: Checkpoint, record: ArtifactUploaded) -> None:
    row = state.uploads.pop(record.id)
    state.artifact_uris.setdefault(row["callId"], []).append(record.uri)


def _artifact_given_up(state: Checkpoint, record: ArtifactGivenUp) -> None:
    row = state.uploads.pop(record.id)
    task = _task(state)
    if task.task_id == row["taskId"]:  # the result of an earlier task is out
        task.not_uploaded.append({**row, "why": record.why})


def _command_started(state: Checkpoint, record: CommandStarted) -> None:
    call, step = state.open_call(record.call_id), state.open_step
    if step is None or record.id in state.commands:
        raise KeyError("a background command is started once, by a call of the open step")
    arguments = call.arguments if call.edited_arguments is None else call.edited_arguments
    line = " ".join(str(arguments.get("command", "")).split())[:_LINE_CHARS]
    state.commands[record.id] = {
        "callId": record.call_id,
        "taskId": _task(state).task_id,
        "stepId": step.step_id,
        "line": line,
    }
    state.commands_started += 1


def _command_ended(state: Checkpoint, record: CommandEnded) -> None:
    row = state.commands[record.id]
    if record.reason == _BY_THE_MODEL:  # the answer to its call says so
        del state.commands[record.id]
        return
    ended: EndRow = {"reason": record.reason}
    if record.exit_code is not None:
        ended["exitCode"] = record.exit_code
    if record.left:
        ended["left"] = record.left
    row["ended"] = ended


def _step_committed(state: Checkpoint, record: StepCommitted) -> None:
    task, step = _task(state), state.open_step
    if step is None or any(call.result is None for call in step.calls):
        raise KeyError("a step is committed when it is open and all its calls are answered")
    for call in step.calls:
        if call.result is not None:
            state.thread.append(call.result)
        if call.exit_code is not None:
            task.exit_codes[len(task.finished_calls)] = call.exit_code
        if call.duration_ms is not None:
            task.tool_ms[call.tool_name] = task.tool_ms.get(call.tool_name, 0) + call.duration_ms
        task.finished_calls.append((call.tool_name, call.status or "failed", call.code))
        if call.replay is not None:
            task.denied.append({"toolName": call.tool_name, "replay": call.replay})
    if record.message is not None:
        state.thread.append(record.message)
    task.step_count = record.step_count
    # The task ends with its last step, in the same record: a crash between two would have the model asked again.
    task.status = record.task_status or task.status
    task.reason = record.task_reason or task.reason
    if record.dropped is not None:
        _show(state, record.dropped)
    state.step_cursor = step.step_id
    state.open_step = None


def _note_added(state: Checkpoint, record: NoteAdded) -> None:
    state.thread.append(record.message)
    if record.of_damage:
        state.salvaged = None
    for command_id in record.of_commands:
        del state.commands[command_id]


def _task_ended(state: Checkpoint, record: TaskEnded) -> None:
    task = _task(state)
    task.status, task.reason = record.status, record.reason


def _context_compacted(state: Checkpoint, record: ContextCompacted) -> None:
    _show(state, record.dropped, record.cleared, record.summary)
    _add_usage(state, record.usage, record.model)


def _session_status_changed(state: Checkpoint, record: SessionStatusChanged) -> None:
    state.session_status = record.status
    if record.policy_bundle_version is not None:
        state.policy_bundle_version = record.policy_bundle_version
    if state.task is not None and record.max_steps is not None:
        state.task.max_steps = record.max_steps
    if (
        state.task is not None
        and state.task.status == "running"
        and (record.reason or record.status == "SESSION_RUNNING")
    ):
        state.task.reason = record.reason  # why it stopped where a resume goes on; None from that resume on


_FOLDS: dict[type, Callable[[Checkpoint, Any], None]] = {
    TaskStarted: _task_started,
    TaskReopened: _task_reopened,
    TaskQueued: _task_queued,
    TaskUnqueued: _task_unqueued,
    TurnTaken: _turn_taken,
    ApprovalAsked: _approval_asked,
    ApprovalAnswered: _approval_answered,
    ApprovalGranted: _approval_granted,
    CallStarted: _call_started,
    CallFinished: _call_finished,
    ArtifactUploaded: _artifact_uploaded,
    ArtifactGivenUp: _artifact_given_up,
    CommandStarted: _command_started,
    CommandEnded: _command_ended,
    ChangesSeen: _see_changes,
    StepCommitted: _step_committed,
    NoteAdded: _note_added,
    TaskEnded: _task_ended,
    ContextCompacted: _context_compacted,
    SessionStatusChanged: _session_status_changed,
}


def _task(state: Checkpoint) -> Task:
    if state.task is None:
        raise KeyError("no task")
    return state.task
