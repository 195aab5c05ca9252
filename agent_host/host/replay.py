"""Replay: a recorded session run again from its own record, to check that it still does the same.

The answers of the model become a script, and a new session with the same prompts runs in a directory that the caller
names. Its calls are real. The comparison covers the host's decisions: which calls are made, the policy decision on
each, and the arguments that reach it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import tomllib
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.approval import ApprovalAnswer
from agent_host.errors import UsageError
from agent_host.events import EventType
from agent_host.host.options import SessionOptions, anchor, existing_directory
from agent_host.host.own_policy import read_record
from agent_host.host.remote_tools import RecordedAnswer, RecordedToolService
from agent_host.host.sessions import open_recorded
from agent_host.session.transcript import read_run_log
from agent_host.testing.gateway import MockGateway, Script
from agent_host.testing.script import ScriptError
from agent_host.thread.messages import CONTINUE_NOTE, ToolCall, decode
from config.lean_typing import NamedTuple
from config.load import read_regular_file
from config.settings import SETTINGS
from policy import SANDBOX_GRANT, CapabilityName
from state.blobs import sha256_hex
from state.temporary import scratch
from state.tool_lists import TOKENS, copy_lists, read_definitions
from tool_runtime.remote import definition_of
from tool_runtime.remote.backend import NAME as BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.approval import ApprovalRequest
    from agent_host.host.sessions import OnEvent


_BROKEN = "{"
"""Arguments that are no whole JSON: so were those of a recorded call that never ran."""
_NO_APPROVAL = "the record has no approval of this call"
_NO_FORM = "the answer to a server's question is not recorded"


class Difference(NamedTuple):
    """The first call that differs. `what` is `decision`, `arguments` (their SHA-256), or `call` for one that was not
    made; `before` and `now` are its values in the record and in the run."""

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
    """Denials of a sandbox to one call, recorded and in the replay, a line each; `grant` is the access that the call
    asked for beyond its scope."""

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
    `before` and `now` describe the sandbox of commands in the record and in the replay ({level, wanted, why?, scope?}),
    None if unknown; `refusals` are the denials of a sandbox, and requests of calls to it."""

    calls: int
    difference: Difference | None
    ended: str | None = None
    before: Mapping[str, Any] | None = None
    now: Mapping[str, Any] | None = None
    refusals: tuple[ReplayDenials, ...] = ()


class _JudgedCall(NamedTuple):
    tool_name: str
    decision: str | None
    arguments: str | None
    grant: Mapping[str, Any] | None = None
    denials: tuple[str, ...] = ()


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
    root = anchor(workspace, os.path.realpath)
    original, run = _Original(state_dir, session_id, root), _Run(on_counted)
    script = Script.from_turns(original.turns(), name=session_id, count_tokens=on_counted is not None)
    before, backend = original.calls(), original.backend_tools()
    started, keys = original.record.started, dict(_STARTED)
    if "host.policy" in flags:
        del keys["model"]  # another policy may not allow it
    given = {**{key: started[name] for name, key in keys.items() if started.get(name)}, **flags}
    ended = None
    with scratch("replay") as own_state:
        _take_along(state_dir, own_state)
        async with MockGateway(script) as gateway:
            options = SessionOptions(workspace=root, gateway=gateway.url, state_dir=own_state, settings=given)
            async with open_recorded(options, original.answer, run.note, backend) as session:
                for prompt in original.prompts:
                    result = await session.run(original.move(prompt))
                    if result.status != "TASK_COMPLETED":
                        ended = f"{result.reason}: {result.message}"
    return Replayed(
        len(before),
        _first_difference(before, run.calls),
        ended,
        before=original.log.sandboxes[-1] if original.log.sandboxes else None,
        now=run.sandboxes[-1] if run.sandboxes else None,
        refusals=_refusals(before, run.calls),
    )


_STARTED: Final = {"policy": "host.policy", "model": "llm.model", "toolset": "host.toolset", "sandbox": "sandbox.level"}
"""The settings on record that a session was started with, by their names there."""


def _take_along(state_dir: str, scratch: str) -> None:
    """Copy the lists of MCP servers' tools: with them policy decides as in a session of now, also if their server does
    not answer. Tokens of OAuth are those of the user: a copy that is renewed would end them."""
    copy_lists(state_dir, scratch, "mcp:")
    tokens = os.path.join(os.path.realpath(state_dir), TOKENS)
    with contextlib.suppress(OSError):  # a Windows without links: the server wants a new authorization then
        if os.path.isdir(tokens):
            os.symlink(tokens, os.path.join(scratch, TOKENS), target_is_directory=True)


class _Original:
    """The session on record: in its texts the path of the workspace `root` takes the place of the old one. Approvals
    are answered as the people of the record did: by the tool and the arguments of a call, in the order they came."""

    def __init__(self, state_dir: str, session_id: str, root: str) -> None:
        self.record = read_record(state_dir, session_id)
        existing_directory(root)
        self._before, self._now = self.record.workspace, root
        self._messages = [decode(data) for data in self.record.messages]
        self.prompts = [message.content for message in self._messages if message.role == "user"]
        self.log = read_run_log(self.record.paths.events)
        if not self.prompts:
            raise UsageError(f"session {session_id} has no prompt on record: there is nothing to run")
        if any(mark["mark"] == EventType.MODE_CHANGED for mark in self.log.marks):
            raise UsageError(
                f"session {session_id} had more than one mode (SetMode), which a replay has not: its decisions cannot "
                "be compared; `agent-host policy rejudge` judges its calls by a bundle"
            )
        self._answers: dict[tuple[str, bytes], deque[ApprovalAnswer]] = defaultdict(deque)
        for call in (call for message in self._messages for call in message.tool_calls):
            answer = self.log.calls.get(call.call_id, {}).get("approval")
            if answer is not None:
                is_approved, scope = answer["decision"] == "approved", answer.get("scope", "once")
                arguments = self.record.ran_with.get(call.call_id)
                given = ApprovalAnswer(is_approved, answer.get("reason", ""), scope=scope, arguments=arguments)
                self._answers[call.name, orjson.dumps(self._arguments(call))].append(given)

    def move(self, text: str) -> str:
        return text.replace(self._before, self._now)

    def _arguments(self, call: ToolCall) -> dict[str, Any]:
        if self._before == self._now:
            return call.arguments
        before, now = (orjson.dumps(path)[1:-1] for path in (self._before, self._now))
        moved: dict[str, Any] = orjson.loads(call.arguments_json.replace(before, now))
        return moved

    def answer(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `agent_host.host.sessions.Approve`. The user's input in a server's form is not recorded."""
        if request.form is not None:
            return ApprovalAnswer(approved=False, reason=_NO_FORM)
        waiting = self._answers.get((request.tool_name, orjson.dumps(request.arguments)))
        return waiting.popleft() if waiting else ApprovalAnswer(approved=False, reason=_NO_APPROVAL)

    def turns(self) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = []
        for before, message in zip((None, *self._messages), self._messages, strict=False):
            if message.role == "assistant":
                if before is not None and before.role == "assistant" and not before.tool_calls:
                    turns[-1]["stop_reason"] = "pause_turn"  # nothing between them: the model continued by itself
                calls = [
                    {"name": call.name, "raw_arguments": _BROKEN}
                    if call.problem
                    else {"name": call.name, "arguments": self._arguments(call)}
                    for call in message.tool_calls
                ]
                turns.append({"text": self.move(message.content), **({"tool_calls": calls} if calls else {})})
            elif turns and message.role == "system" and (message.asks_to_continue or message.content == CONTINUE_NOTE):
                turns[-1]["stop_reason"] = "max_tokens"
        if not turns:
            raise UsageError("the session has no answer of the model on record: there is nothing to run")
        return turns

    def calls(self) -> dict[str, _JudgedCall]:
        """The calls that can be judged, in order, by the ids that the scripted gateway gives them."""
        found: dict[str, _JudgedCall] = {}
        turns = [message.tool_calls for message in self._messages if message.role == "assistant"]
        for turn, calls in enumerate(turns):
            for number, call in enumerate(calls):
                if call.problem is None:
                    decided = self.record.asked.get(call.call_id)
                    kept = decided is not None and decided.arguments_hash == sha256_hex(orjson.dumps(call.arguments))
                    grant = call.arguments.get(SANDBOX_GRANT)
                    found[_script_id(turn, number)] = _JudgedCall(
                        call.name,
                        None if decided is None else decided.decision,
                        sha256_hex(orjson.dumps(self._arguments(call))) if kept else None,
                        grant if isinstance(grant, dict) else None,
                        tuple(self.log.calls.get(call.call_id, {}).get("denials", ())),
                    )
        return found

    def backend_tools(self) -> RecordedToolService:
        """The known backend tools, and the answer to each call. Raises UsageError for one that was called and is no
        longer known."""
        answers: dict[str, RecordedAnswer] = {}
        called: set[str] = set()
        waiting: dict[str, str] = {}
        turns = itertools.count()
        for message in self._messages:
            if message.role == "assistant":
                turn = next(turns)
                for number, call in enumerate(message.tool_calls):
                    waiting[call.call_id] = _script_id(turn, number)
                    decided = self.record.asked.get(call.call_id)
                    if decided is not None and decided.capability == CapabilityName.BACKEND_TOOL_INVOKE:
                        called.add(call.name)
            elif message.tool_call_id in waiting:
                answers[waiting.pop(message.tool_call_id)] = RecordedAnswer(message.content, message.is_error)
        kept = read_definitions(self.record.paths.state_dir, BACKEND)
        if missing := sorted(called - kept.keys()):
            raise UsageError(
                f"session {self.record.paths.session_id} called {', '.join(missing)} of the Backend Tool Service, and "
                "what the service listed is not kept in this state directory: it cannot be run again"
            )
        return RecordedToolService(tuple(map(definition_of, kept.values())), answers)


def _script_id(turn: int, number: int) -> str:
    return f"toolu_{turn}_{number}"


class _Run:
    """The calls of the replay as the model made them, by their ids, and the sandbox of commands, as each start reports
    it; `also` gets the events as well."""

    def __init__(self, also: OnEvent | None) -> None:
        self.calls: dict[str, _JudgedCall] = {}
        self.sandboxes: list[Mapping[str, Any]] = []
        self._also = also

    def note(self, event: Mapping[str, Any]) -> None:
        if self._also is not None:
            self._also(event)
        kind, payload = event["eventType"], event["payload"]
        if "sandbox" in payload:
            self.sandboxes.append(payload["sandbox"])
        if kind == EventType.TOOL_COMPLETED and (call := self.calls.get(payload["toolCallId"])) is not None:
            self.calls[payload["toolCallId"]] = call._replace(denials=tuple(payload.get("denials", ())))
        if kind == EventType.TOOL_REQUESTED and not payload.get("edited"):
            made = _JudgedCall(payload["toolName"], payload.get("decision"), payload.get("argumentsSha256"))
            self.calls[payload["toolCallId"]] = made


def _first_difference(before: Mapping[str, _JudgedCall], now: Mapping[str, _JudgedCall]) -> Difference | None:
    for number, (call_id, old) in enumerate(before.items(), 1):
        new = now.get(call_id)
        if new is None:
            return Difference(number, old.tool_name, "call", old.tool_name, None)
        values = (("decision", old.decision, new.decision), ("arguments", old.arguments, new.arguments))
        for what, was, is_now in values:
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


# What recorded sessions cost, replayed against a gateway that counts tokens as a provider's cache does.
#
# A cost is in token equivalents: a token of input counts 1, one written to the cache 1.25, one read from it 0.1, one of
# output 5. So it changes with what this program sends, and with no price list.

WRITTEN: Final = 1.25
READ: Final = 0.1
OUTPUT: Final = 5.0
_PROMPT: Final = "Do the task."
_SCRIPTS: Final = (".toml", ".jsonl")


class RecordedCost(NamedTuple):
    """The cost of one recorded session: in token equivalents, and the tokens of its first request."""

    equivalents: int
    first_request: int


class Growth(NamedTuple):
    """A cost and that of the baseline, None if that has none; `is_over` is true if one of its figures grew by more than
    is allowed."""

    name: str
    cost: RecordedCost
    before: RecordedCost | None
    is_over: bool


class _Meter:
    def __init__(self) -> None:
        self.equivalents = 0.0
        self.first_request = 0

    def take(self, event: Mapping[str, Any]) -> None:
        if event["eventType"] != EventType.LLM_REQUEST_COMPLETED:
            return
        used = event["payload"]
        read, written = used.get("cachedInputTokens", 0), used.get("cacheWriteTokens", 0)
        fresh = used["inputTokens"] - read - written
        self.first_request = self.first_request or used["inputTokens"]
        self.equivalents += fresh + WRITTEN * written + READ * read + OUTPUT * used["outputTokens"]

    @property
    def cost(self) -> RecordedCost:
        return RecordedCost(round(self.equivalents), self.first_request)


async def cost_of(recording: str, flags: Mapping[str, Any], *, workspace: str | None, state_dir: str) -> RecordedCost:
    """The cost of a recording: a script, which is run in a copy of the directory of its name beside it, with the
    settings of the file `NAME.settings` there; or the id of a session, which is run again in a copy of
    `workspace`. Raises UsageError, SessionNotFound and what opening a session raises."""
    meter = _Meter()
    with scratch("cost") as place:
        root = os.path.join(place, "workspace")
        if recording.endswith(_SCRIPTS):
            await _run_script(anchor(recording), flags, root, os.path.join(place, "state"), meter.take)
        else:
            if workspace is None:
                raise UsageError(f"{recording} is a session: name the directory that it works in with --workspace")
            existing_directory(anchor(workspace))
            shutil.copytree(anchor(workspace), root, symlinks=True)
            await replay_session(
                flags, session_id=recording, workspace=root, state_dir=state_dir, on_counted=meter.take
            )
    return meter.cost


async def _run_script(
    path: str, flags: Mapping[str, Any], root: str, state_dir: str, take: Callable[[Mapping[str, Any]], object]
) -> None:
    stem = path.rpartition(".")[0]
    _make_workspace(stem, root)
    try:
        script = dataclasses.replace(Script.load(path, {"workspace": root}), count_tokens=True)
    except ScriptError as error:
        raise UsageError(f"{path}: {error}") from error
    settings = {**_settings_of(f"{stem}.settings"), **flags}
    async with MockGateway(script) as gateway:
        options = SessionOptions(
            workspace=root, gateway=gateway.url, state_dir=state_dir, settings=settings, approve_all=True
        )
        async with open_recorded(options, None, take, None) as session:
            result = await session.run(_PROMPT)
    if result.status != "TASK_COMPLETED":
        raise UsageError(f"{path}: the session does not come to its end: {result.reason}: {result.message}")


def _make_workspace(template: str, root: str) -> None:
    if os.path.isdir(template):
        shutil.copytree(template, root, symlinks=True)
    else:
        os.makedirs(root)


def _settings_of(path: str) -> dict[str, Any]:
    """The settings of a recording, by key; `${here}` in it stands for its directory. Raises UsageError."""
    try:
        text = read_regular_file(path).decode().replace("${here}", os.path.dirname(path))
        sections = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    found: dict[str, Any] = {}
    for section, content in sections.items():
        if section in SETTINGS or not isinstance(content, dict):
            found[section] = content
        else:
            found |= {f"{section}.{name}": value for name, value in content.items()}
    return found


def name_of(recording: str) -> str:
    """The name of a recording in a baseline."""
    return os.path.basename(recording).rpartition(".")[0] if recording.endswith(_SCRIPTS) else recording


def read_baseline(path: str) -> dict[str, RecordedCost]:
    """The costs of a baseline, by name. Raises UsageError."""
    try:
        rows = orjson.loads(read_regular_file(anchor(path)))["recordings"]
        return {
            name: RecordedCost(int(row["tokenEquivalents"]), int(row["firstRequestTokens"]))
            for name, row in rows.items()
        }
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}; --write-baseline makes one") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"--baseline {path}: it is not a baseline: --write-baseline makes one") from error


def baseline_of(costs: Mapping[str, RecordedCost]) -> bytes:
    """The content of a baseline with these costs."""
    rows = {
        name: {"tokenEquivalents": cost.equivalents, "firstRequestTokens": cost.first_request}
        for name, cost in sorted(costs.items())
    }
    return orjson.dumps({"recordings": rows}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def compare(costs: Mapping[str, RecordedCost], before: Mapping[str, RecordedCost], most: float) -> list[Growth]:
    """Each cost beside the baseline's; `most` is the growth that is allowed, as a part of it."""

    def is_over(now: RecordedCost, then: RecordedCost | None) -> bool:
        return then is not None and any(a > b * (1 + most) for a, b in zip(now, then, strict=True))

    return [Growth(name, cost, before.get(name), is_over(cost, before.get(name))) for name, cost in costs.items()]
