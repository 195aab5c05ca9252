"""Inner door: a recorded session run again from its own record, to see whether it still does the same.

The answers of the model become a script, and a new session with the same prompts runs in a directory that the caller
names. Its calls are real. What is compared is what the host decides: which calls are made, policy's word on each, and
the arguments that reach it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import defaultdict, deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.approval import ApprovalAnswer
from agent_host.errors import SessionNotFound, UsageError
from agent_host.events import EventType
from agent_host.events.sinks import run_logs
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.options import SessionOptions, anchor, existing_directory, snapshot_limit
from agent_host.host.remote_tools import RecordedAnswer, RecordedToolService
from agent_host.host.sandboxing import Level
from agent_host.host.sessions import open_recorded
from agent_host.ids import MACHINE
from agent_host.loop import NOT_KEPT
from agent_host.loop.results import arguments_in_note
from agent_host.session.transcript import read_run_log
from agent_host.testing.gateway import MockGateway, Script
from agent_host.thread.messages import GO_ON, ToolCall, decode
from policy.names import SANDBOX_GRANT, CapabilityName
from policy.scope import LEVELS
from state.blobs import sha256_hex
from state.errors import Damaged, InvalidSessionId, NoSuchSession, TooLarge, UnknownVersion, Untrusted, WriteFailed
from state.file_store import FileCheckpointStore
from state.locations import SessionPaths
from state.temporary import scratch
from state.tool_lists import TOKENS, copy_lists, read_definitions
from tool_runtime.remote import definition_of
from tool_runtime.remote.backend import NAME as BACKEND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.approval import ApprovalRequest
    from agent_host.host.sessions import OnEvent
    from agent_host.session.transcript import CallsOfRunLog
    from agent_host.thread.messages import Message
    from policy.decision import Decision
    from policy.scope import SandboxLevel

_BROKEN = "{"
"""Arguments that are no whole JSON: so were those of a recorded call that never ran."""
_NO_APPROVAL = "the record has no approval of this call"
_NO_FORM = "what was answered to a server's question is not on record"


class Difference(NamedTuple):
    """The first call that is not as it was. `what` is `decision`, `arguments` (their SHA-256), or `call` for one that
    was not made; `before` and `now` are what the record and the run say of it."""

    number: int
    tool_name: str
    what: str
    before: str | None
    now: str | None

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {"call": self.number, "toolName": self.tool_name, "what": self.what, "before": self.before,
                "now": self.now}  # fmt: skip


class ReplayDenials(NamedTuple):
    """Denials of a sandbox to one call, on record and in the replay, a line each; `grant` is what the call asked for
    beyond its scope."""

    number: int
    tool_name: str
    before: tuple[str, ...]
    now: tuple[str, ...]
    grant: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        grant = {} if self.grant is None else {"sandboxGrant": self.grant}
        return {"call": self.number, "toolName": self.tool_name, "before": list(self.before), "now": list(self.now),
                **grant}  # fmt: skip


class Replayed(NamedTuple):
    """The outcome of a replay: how many calls the record has, the first difference, and why a task ended early.
    `before` and `now` say how commands were held on record and in the replay ({level, wanted, why?, scope?}), None
    where nothing says it; `refusals` what a sandbox refused, and what calls asked of it."""

    calls: int
    difference: Difference | None
    ended: str | None = None
    before: Mapping[str, Any] | None = None
    now: Mapping[str, Any] | None = None
    refusals: tuple[ReplayDenials, ...] = ()


class _JudgedCall(NamedTuple):
    """One call as it was judged. `arguments` is a hash; None where it is not known or stands for a secret. `grant` is
    what it asked for beyond its scope, `denials` what a sandbox refused to it."""

    tool_name: str
    decision: str | None
    arguments: str | None
    grant: Mapping[str, Any] | None = None
    denials: tuple[str, ...] = ()


class _Run(NamedTuple):
    """The progress of a replay: its calls by their ids, and the sandbox of commands, as each start says it."""

    calls: dict[str, _JudgedCall]
    sandboxes: list[Mapping[str, Any]]


async def replay_session(
    flags: Mapping[str, Any],
    *,
    session_id: str,
    workspace: str,
    state_dir: str,
    on_counted: OnEvent | None = None,
) -> Replayed:
    """Run the session again in `workspace`, with the policy, model and families that it had where `flags` give no
    others. The records of the run are kept nowhere. With `on_counted`, which gets its events, the gateway counts the
    tokens of each request. Raises UsageError, SessionNotFound, and what opening a session raises."""
    paths = _paths(state_dir, session_id)
    record, root = read_record(paths), anchor(workspace, os.path.realpath)
    existing_directory(root)
    messages = [decode(data) for data in record.messages]
    prompts = [message.content for message in messages if message.role == "user"]
    moved = _Moved(record.workspace, root)
    log = read_run_log(paths.events)
    _refuse_unplayable(session_id, prompts, log)
    before, now = _read_calls(paths, messages, moved, log), _Run({}, [])
    script = Script.from_turns(_turns(messages, moved), name=session_id, count_tokens=on_counted is not None)
    approvals = _Approvals(paths, record, messages, moved)
    backend = _backend_tools(paths, messages)
    given = _settings(record)
    if "host.policy" in flags:
        given.pop("llm.model", None)  # another policy may not allow it
    given |= flags
    ended = None
    with scratch("replay") as own_state:
        _take_along(state_dir, own_state)
        async with MockGateway(script) as gateway:
            options = SessionOptions(workspace=root, gateway=gateway.url, state_dir=own_state, settings=given)
            async with open_recorded(options, approvals.answer, _noting(now, on_counted), backend) as session:
                for prompt in prompts:
                    result = await session.run(moved.text(prompt))
                    if result.status != "TASK_COMPLETED":
                        ended = f"{result.reason}: {result.message}"
    found = Replayed(len(before), _first_difference(before, now.calls), ended)
    return found._replace(
        before=log.sandboxes[-1] if log.sandboxes else None,
        now=now.sandboxes[-1] if now.sandboxes else None,
        refusals=_refusals(before, now.calls),
    )


def _refuse_unplayable(session_id: str, prompts: Sequence[str], log: CallsOfRunLog) -> None:
    """Raise UsageError for a session of which no decision could be compared."""
    if not prompts:
        raise UsageError(f"session {session_id} has no prompt on record: there is nothing to run")
    if any(mark["mark"] == EventType.MODE_CHANGED for mark in log.marks):
        raise UsageError(
            f"session {session_id} had more than one mode (SetMode), which a replay has not: its decisions cannot be "
            "compared; `agent-host policy rejudge` judges its calls by a bundle"
        )


def _take_along(state_dir: str, scratch: str) -> None:
    """Copy the lists of MCP servers' tools: with them policy decides as in a session of now, also if their server does
    not answer. Tokens of OAuth are those of the user: a copy that is renewed would end them."""
    copy_lists(state_dir, scratch, "mcp:")
    tokens = os.path.join(os.path.realpath(state_dir), TOKENS)
    with contextlib.suppress(OSError):  # a Windows without links: the server wants a new authorization then
        if os.path.isdir(tokens):
            os.symlink(tokens, os.path.join(scratch, TOKENS), target_is_directory=True)


class _Moved(NamedTuple):
    """The workspace that a session had, and the one that it runs in again: in texts the new path takes the place of the
    old one."""

    before: str
    now: str

    def text(self, text: str) -> str:
        return text.replace(self.before, self.now)

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        if self.before == self.now:
            return call.arguments
        before, now = (orjson.dumps(path)[1:-1] for path in self)
        moved: dict[str, Any] = orjson.loads(call.arguments_json.replace(before, now))
        return moved


class _Approvals:
    """Answers as the people of the record did: by the tool and the arguments of a call, in the order they came."""

    def __init__(self, paths: SessionPaths, record: Recorded, messages: Sequence[Message], moved: _Moved) -> None:
        said = read_run_log(paths.events).calls
        edited = find_edits(record, decisions(paths)[1])
        self._answers: dict[tuple[str, bytes], deque[ApprovalAnswer]] = defaultdict(deque)
        for call in (call for message in messages for call in message.tool_calls):
            answer = said.get(call.call_id, {}).get("approval")
            if answer is not None:
                approved = ApprovalAnswer(
                    answer["decision"] == "approved",
                    answer.get("reason", ""),
                    scope=answer.get("scope", "once"),
                    arguments=edited.get(call.call_id),
                )
                self._answers[call.name, orjson.dumps(moved.arguments(call))].append(approved)

    def answer(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `agent_host.host.sessions.Approve`. What somebody typed into a server's form is not on record."""
        if request.form is not None:
            return ApprovalAnswer(approved=False, reason=_NO_FORM)
        waiting = self._answers.get((request.tool_name, orjson.dumps(request.arguments)))
        return waiting.popleft() if waiting else ApprovalAnswer(approved=False, reason=_NO_APPROVAL)


def _turns(messages: Sequence[Message], moved: _Moved) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for before, message in zip((None, *messages), messages, strict=False):
        if message.role == "assistant":
            if before is not None and before.role == "assistant" and not before.tool_calls:
                turns[-1]["stop_reason"] = "pause_turn"  # nothing between them: the model went on by itself
            calls = [
                {"name": call.name, "raw_arguments": _BROKEN}
                if call.problem
                else {"name": call.name, "arguments": moved.arguments(call)}
                for call in message.tool_calls
            ]
            turns.append({"text": moved.text(message.content), **({"tool_calls": calls} if calls else {})})
        elif turns and message.role == "system" and (message.goes_on or message.content == GO_ON):
            turns[-1]["stop_reason"] = "max_tokens"
    if not turns:
        raise UsageError("the session has no answer of the model on record: there is nothing to run")
    return turns


def _read_calls(
    paths: SessionPaths, messages: Sequence[Message], moved: _Moved, log: CallsOfRunLog
) -> dict[str, _JudgedCall]:
    """The calls that can be judged, in order, by the ids that the scripted gateway gives them."""
    asked, _ = decisions(paths)
    found: dict[str, _JudgedCall] = {}
    turns = [message.tool_calls for message in messages if message.role == "assistant"]
    for turn, calls in enumerate(turns):
        for number, call in enumerate(calls):
            if call.problem is None:
                said = asked.get(call.call_id)
                kept = said is not None and said.arguments_hash == sha256_hex(orjson.dumps(call.arguments))
                arguments = sha256_hex(orjson.dumps(moved.arguments(call))) if kept else None
                grant = call.arguments.get(SANDBOX_GRANT)
                found[_script_id(turn, number)] = _JudgedCall(
                    call.name,
                    None if said is None else said.decision,
                    arguments,
                    grant if isinstance(grant, dict) else None,
                    tuple(log.calls.get(call.call_id, {}).get("denials", ())),
                )
    return found


def _backend_tools(paths: SessionPaths, messages: Sequence[Message]) -> RecordedToolService:
    """The backend tools that are known, and what each call of the session was answered. Raises UsageError for a backend
    tool that was called and is not known any more."""
    asked, _ = decisions(paths)
    answers: dict[str, RecordedAnswer] = {}
    called: set[str] = set()
    waiting: dict[str, str] = {}
    turns = itertools.count()
    for message in messages:
        if message.role == "assistant":
            turn = next(turns)
            for number, call in enumerate(message.tool_calls):
                waiting[call.call_id] = _script_id(turn, number)
                said = asked.get(call.call_id)
                if said is not None and said.capability == CapabilityName.BACKEND_TOOL_INVOKE:
                    called.add(call.name)
        elif message.tool_call_id in waiting:
            answers[waiting.pop(message.tool_call_id)] = RecordedAnswer(message.content, message.is_error)
    kept = read_definitions(paths.state_dir, BACKEND)
    if missing := sorted(called - kept.keys()):
        raise UsageError(
            f"session {paths.session_id} called {', '.join(missing)} of the Backend Tool Service, and what the service "
            "listed is not kept in this state directory: it cannot be run again"
        )
    return RecordedToolService(tuple(map(definition_of, kept.values())), answers)


def _script_id(turn: int, number: int) -> str:
    """The id that the scripted gateway gives to a call."""
    return f"toolu_{turn}_{number}"


def _noting(run: _Run, also: OnEvent | None) -> OnEvent:
    """A callback that takes each call that was judged as the model made it, and what a sandbox did; `also` gets the
    events as well."""
    calls = run.calls

    def note(event: Mapping[str, Any]) -> None:
        if also is not None:
            also(event)
        payload = event["payload"]
        if "sandbox" in payload:
            run.sandboxes.append(payload["sandbox"])
        if event["eventType"] == EventType.TOOL_COMPLETED and payload["toolCallId"] in calls:
            call = calls[payload["toolCallId"]]
            calls[payload["toolCallId"]] = call._replace(denials=tuple(payload.get("denials", ())))
        if event["eventType"] == EventType.TOOL_REQUESTED and not payload.get("edited"):
            call = _JudgedCall(payload["toolName"], payload.get("decision"), payload.get("argumentsSha256"))
            calls[payload["toolCallId"]] = call

    return note


def _first_difference(before: Mapping[str, _JudgedCall], now: Mapping[str, _JudgedCall]) -> Difference | None:
    for number, (call_id, old) in enumerate(before.items(), 1):
        new = now.get(call_id)
        if new is None:
            return Difference(number, old.tool_name, "call", old.tool_name, None)
        for what, was, is_now in (
            ("decision", old.decision, new.decision),
            ("arguments", old.arguments, new.arguments),
        ):
            if was is not None and was != is_now:
                return Difference(number, old.tool_name, what, was, is_now)
    return None


def _refusals(before: Mapping[str, _JudgedCall], now: Mapping[str, _JudgedCall]) -> tuple[ReplayDenials, ...]:
    found = []
    for number, (call_id, old) in enumerate(before.items(), 1):
        new = now[call_id].denials if call_id in now else ()
        if old.denials or new or old.grant is not None:
            found.append(ReplayDenials(number, old.tool_name, old.denials, new, old.grant))
    return tuple(found)


def _settings(record: Recorded) -> dict[str, Any]:
    """The settings that the session was started with, as far as they are on record."""
    keys = {"policy": "host.policy", "model": "llm.model", "toolset": "host.toolset", "sandbox": "sandbox.level"}
    return {key: record.started[name] for name, key in keys.items() if record.started.get(name)}


def _paths(state_dir: str, session_id: str) -> SessionPaths:
    try:
        return SessionPaths(state_dir, session_id)
    except InvalidSessionId as error:
        raise UsageError(str(error)) from error


# What is on record of a session's calls: the model's, policy's word on them, and what was run in their place.
#
# A call whose arguments somebody changed while approving it has two forms, each with a decision of its own.


class Recorded(NamedTuple):
    """The encoded messages of a session, the workspace it had, and by call id the arguments that were put in place of
    the model's in the step that is open. `started` says with which policy, model and families it was begun."""

    messages: list[bytes]
    workspace: str
    edited: dict[str, dict[str, Any]]
    started: Mapping[str, Any] = MappingProxyType({})

    def calls(self) -> Iterator[ToolCall]:
        """The calls of the model, in order; one whose arguments could not be read was never judged. What is kept of a
        call with a secret is judged with its placeholders."""
        for data in self.messages:
            if b'"toolCalls"' in data:
                yield from (call for call in decode(data).tool_calls if call.problem in {None, NOT_KEPT})


class Decided(NamedTuple):
    """Policy's word on one form of a call, the hash of its arguments as they are kept, and the capability that was
    asked for."""

    decision: str
    arguments_hash: str | None
    capability: str | None = None


def read_record(paths: SessionPaths) -> Recorded:
    """Of the checkpoint, else of what stayed of a session that has ended. Raises SessionNotFound, UsageError."""
    store = FileCheckpointStore(paths.state_dir, snapshot_limit_bytes=snapshot_limit())
    try:
        state = store.load(paths.session_id)
    except (NoSuchSession, Damaged, UnknownVersion, TooLarge, Untrusted, WriteFailed):
        return _read_ended(paths)
    calls = [] if state.open_step is None else state.open_step.calls
    results = [call.result for call in calls if call.result is not None]
    edited = {call.call_id: call.edited_arguments for call in calls if call.edited_arguments is not None}
    workspace = str(state.identity.options.get("workspace", os.getcwd()))
    return Recorded([*state.thread, *results], workspace, edited, state.identity.options.get("started", {}))


def _read_ended(paths: SessionPaths) -> Recorded:
    try:
        with open(os.path.join(paths.artifacts, "session_history"), "rb") as handle:
            messages = orjson.loads(handle.read())
        with open(paths.result, "rb") as handle:
            result = orjson.loads(handle.read())
        encoded = [orjson.dumps(message) for message in messages]
        return Recorded(encoded, str(result["workspace"]), {}, dict(result.get("started", {})))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionNotFound(
            f"there is no session {paths.session_id} with its history on this disk; `agent-host sessions` lists all"
        ) from error


def decisions(paths: SessionPaths) -> tuple[dict[str, Decided], dict[str, Decided]]:
    """Policy's word on each call as the model made it, and on each edited form, from the run log; of several the
    last."""
    found: tuple[dict[str, Decided], dict[str, Decided]] = ({}, {})
    for path in run_logs(paths.events):
        try:
            with open(path, "rb") as handle:
                for line in handle:
                    _note_decision(line, *found)
        except OSError:
            continue
    return found


def _note_decision(line: bytes, asked: dict[str, Decided], edited: dict[str, Decided]) -> None:
    try:
        event = orjson.loads(line)
        payload = event["payload"]
        if event["eventType"] == EventType.TOOL_REQUESTED and "decision" in payload:
            said = Decided(str(payload["decision"]), payload.get("argumentsSha256"), payload.get("capability"))
            (edited if payload.get("edited") else asked)[str(payload["toolCallId"])] = said
    except (ValueError, TypeError, KeyError):
        return  # a line that a crash has cut


def find_edits(record: Recorded, edited: dict[str, Decided]) -> dict[str, dict[str, Any] | None]:
    """The arguments of each edited form by call id, None where they are not on record.

    They stand beside the result; in records of earlier versions the note in front of it has them, and cuts what is
    long. They count when they have the hash that the run log has.
    """
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(edited)
    for data in record.messages:
        if b'"toolCallId"' not in data:
            continue
        message = decode(data)
        if message.tool_call_id in edited:
            arguments = message.edited_arguments
            if arguments is None:
                arguments = arguments_in_note(message.content)
            found[message.tool_call_id] = arguments if _fits(arguments, edited[message.tool_call_id]) else None
    return {**found, **record.edited}  # a process that was killed may not have written its last events


def _fits(arguments: dict[str, Any] | None, said: Decided) -> bool:
    if arguments is None:
        return False
    # Arguments out of which a secret was taken are encoded by the standard library.
    spelled = (orjson.dumps(arguments), json.dumps(arguments, separators=(",", ":")).encode())
    return said.arguments_hash in {sha256_hex(one) for one in spelled}


# Inner door: what another policy would have said to the calls of a session.

NOT_ON_RECORD = "the arguments that it ran with are not on record"


class Rejudged(NamedTuple):
    """One call as the model made it, or the form that the person who approved it gave it.

    `before` is what policy said then, None where it was not asked; `now` what it would say now, None for a form whose
    arguments are not on record. `level` is the one that commands of the session were held at.
    """

    call: ToolCall
    before: str | None
    now: Decision | None
    edited: bool = False
    level: SandboxLevel = "none"

    @property
    def differs(self) -> bool:
        """True if the two decisions are not the same."""
        return self.before is not None and self.now is not None and self.before != self.now.decision

    def to_wire(self) -> dict[str, Any]:
        """A line of the list."""
        row: dict[str, Any] = {
            "toolCallId": self.call.call_id,
            "toolName": self.call.name,
            "before": self.before,
            "now": None if self.now is None else self.now.decision,
            "rule": None if self.now is None else self.now.rule,
            "reason": NOT_ON_RECORD if self.now is None else self.now.reason,
            "changed": self.differs,
        }
        if self.now is not None and self.now.command_scope is not None:
            row["commandScope"] = self.now.command_scope.to_wire(self.level)
        return row | {"edited": True} if self.edited else row


def rejudge_calls(
    flags: Mapping[str, Any], *, session_id: str, workspace: str | None, state_dir: str
) -> list[Rejudged]:
    """Every call of the session in order, under the policy of `host.policy` in `flags`; nothing is executed.

    The disk is asked as it is now, in `workspace`, by default the session's. A call that was edited when it was
    approved is judged in both its forms, each beside what policy said to that form. Raises UsageError,
    SessionNotFound, PolicyBundleInvalid.
    """
    paths = _paths(state_dir, session_id)
    record = read_record(paths)
    root = anchor(workspace, os.path.realpath) if workspace else record.workspace
    level = record.started.get("sandbox", LEVELS[0])
    tried = policy_to_try(flags, workspace=root, state_dir=state_dir, session_id=session_id, level=Level(level, level))
    now = MACHINE.now()
    asked, edited = decisions(paths)
    ran_with = find_edits(record, edited)
    rows = []
    for call in record.calls():
        said = asked.get(call.call_id)
        decision = tried.judge(call.name, call.arguments, now, level)
        rows.append(Rejudged(call, None if said is None else said.decision, decision, level=level))
        if call.call_id in ran_with:
            then = edited.get(call.call_id)
            arguments = ran_with[call.call_id]
            form = call if arguments is None else ToolCall(call.call_id, call.name, arguments)
            changed = None if arguments is None else tried.judge(form.name, form.arguments, now, level)
            rows.append(Rejudged(form, None if then is None else then.decision, changed, edited=True, level=level))
    return rows
