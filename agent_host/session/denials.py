"""The calls that nobody was there to approve: as the result object has them, and as they are run after all (SK 4.2,
4.3). On record is which call it was and what approves its kind; its arguments stand in the thread, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.approval.request import ApprovalAnswer, replay_of
from agent_host.errors import UsageError
from agent_host.loop.context import Replay
from agent_host.thread.messages import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from agent_host.thread.messages import ToolCall
    from state.checkpoint import Checkpoint, Task
    from state.records import ApprovalAnswered


def denied_approvals(task: Task, thread: Sequence[bytes], session_id: str) -> list[dict[str, Any]]:
    """`deniedApprovals` of the result: {toolName, replay} for each. Where the arguments were lost to a damaged disk,
    the replay only says what approves the kind. Rows of earlier versions hold all of it."""
    calls = _calls(task, thread)
    return [
        {"toolName": row["toolName"], "replay": _replay(row["replay"], calls, row["toolName"], session_id)}
        for row in task.denied
    ]


def calls_to_replay(task: Task, thread: Sequence[bytes], session_id: str, wanted: Collection[str]) -> list[Replay]:
    """One for each replay id of `wanted`, in the order in which they were denied. Raises UsageError for an id that is
    none of the task's.

    A task that is open may have had its call run, or begun, before a crash: giving the same command again has it
    go on from there, and nothing is run twice.
    """
    calls = _calls(task, thread)
    found: dict[str, Replay] = {}
    for row in task.denied:
        kept = row["replay"]
        call = calls.get(kept.get("callId", ""))
        replay_id = _replay(kept, calls, row["toolName"], session_id).get("id", "")
        if call is None or replay_id not in wanted:
            continue
        first = found.get(replay_id) or Replay(replay_id, call, ())
        settles = (*first.settles, call.call_id)
        found[replay_id] = first._replace(settles=settles, place=kept.get("place"), approve=kept["approve"])
    unknown = sorted(set(wanted) - found.keys())
    if unknown and task.status == "running":
        made = _made(thread)
        unknown = [replay_id for replay_id in unknown if replay_id not in made]
    if unknown:
        replay_ids = (row["replay"].get("id") for row in denied_approvals(task, thread, session_id))
        known = ", ".join(dict.fromkeys(replay_id for replay_id in replay_ids if replay_id)) or "none"
        raise UsageError(f"--approve {unknown[0]}: no denied call of this session has that id; there is {known}")
    return list(found.values())


def approvals_of_open_calls(state: Checkpoint, session_id: str, wanted: Collection[str]) -> list[ApprovalAnswered]:
    """The approvals of calls of the open step that wait for one, and whose replay ids are in `wanted`."""
    answers = []
    for call in () if state.open_step is None or not wanted else state.open_step.calls:
        if call.approval_id is None or call.started or call.result is not None or call.problem is not None:
            continue
        answer = None if call.answer is None else ApprovalAnswer.from_record(call.answer)
        if answer is not None and (answer.approved or answer.said_no):
            continue
        replay_id = replay_of(call.tool_name, call.arguments, session_id=session_id, approve="")["id"]
        if replay_id in wanted:
            said = ApprovalAnswer(approved=True, reason=f"approved by --approve {replay_id}")
            answers.append(said.to_record(call.call_id, call.approval_id))
    return answers


def replays_approved(
    task: Task, thread: Sequence[bytes], session_id: str, *, approves: Callable[[str, str], bool]
) -> frozenset[str]:
    """The replay ids of those denied calls that are approved by now. `approves` says so of a tool's name and of what
    approves its kind: a rule's id, else that name."""
    rows = denied_approvals(task, thread, session_id)
    found = ((row["toolName"], row["replay"]) for row in rows)
    return frozenset(replay["id"] for name, replay in found if "id" in replay and approves(name, replay["approve"]))


def _replay(kept: dict[str, Any], calls: dict[str, ToolCall], tool_name: str, session_id: str) -> dict[str, Any]:
    if "callId" not in kept:
        return kept
    call = calls.get(kept["callId"])
    if call is not None and call.problem is None:
        return replay_of(tool_name, call.arguments, session_id=session_id, approve=kept["approve"])
    return {"approve": kept["approve"]}


def _calls(task: Task, thread: Sequence[bytes]) -> dict[str, ToolCall]:
    """The task's denied calls by their ids, as the model made them."""
    wanted = {row["replay"]["callId"] for row in task.denied if "callId" in row["replay"]}
    found: dict[str, ToolCall] = {}
    for data in reversed(thread):
        if len(found) == len(wanted):
            break
        if b'"toolCalls"' in data:
            found.update((call.call_id, call) for call in decode(data).tool_calls if call.call_id in wanted)
    return found


def _made(thread: Sequence[bytes]) -> set[str]:
    """The replay ids of all calls in the thread."""
    calls = (call for data in thread if b'"toolCalls"' in data for call in decode(data).tool_calls)
    return {replay_of(call.name, call.arguments, session_id="", approve="")["id"] for call in calls}
