"""One attempt at a task of a batch: workspace, setup, session, patch, check, and the row that says how it ended.

Everything that runs is a process `agent-host run`, started by an `Engine`. `setup` and `check` are sessions as well,
whose gateway is a script of one call: so they pass the same policy and the same sandbox as what a model asks for, and
what would need a person is denied.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.batch.ledger import COMPLETED, INFRASTRUCTURE, SPENDING_LIMIT, Row
from agent_host.batch.parcels import Parcel
from agent_host.batch.workspaces import WorkspaceUnavailable
from agent_host.display_text import one_line
from agent_host.errors import AgentHostError, ErrorCode, SessionHeld
from agent_host.host.records import remove_session
from agent_host.ids import MACHINE
from agent_host.loop import MAX_COST
from config import json_text
from config.lean_typing import NamedTuple
from state.disk import LOCAL_DISK, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.batch import BatchTask
    from agent_host.batch.ledger import Ledger
    from agent_host.batch.parcels import Depot
    from agent_host.batch.workspaces import Workspaces

HELD: Final = 75
MOST_OUTPUT: Final = 64 * 1024**2
"""Bytes of standard output that a process may write."""
_LEAST_COST: Final = 1e-9
"""A limit that no call fits: 0 would be none."""
_FAILED: Final = "TASK_FAILED"
_MESSAGE_CHARS: Final = 1000
_OF_RESULT: Final = (
    "status",
    "reason",
    "endedBy",
    "retryable",
    "usage",
    "cost",
    "costCurrency",
    "model",
    "message",
    "answer",
)


class ProcessEnd(NamedTuple):
    """The end of a process: its exit code, negative for a signal, what it wrote to standard output, and the end of what
    it wrote to standard error."""

    exit_code: int
    output: bytes
    last_words: str


class Engine(Protocol):
    """A place in which processes of a batch run."""

    async def run(self, name: str, arguments: Sequence[str], *, directory: str, parcel: Parcel) -> ProcessEnd:
        """Run `agent-host` with these arguments to its end; `name` is what people see it under, `parcel` what the
        process needs where it shares no directory with this one. Cancelling ends its input, and waits until it has
        finished its step. Raises EngineFailed."""
        ...

    async def aclose(self) -> None:
        """Let go of it."""
        ...


class EngineFailed(Exception):
    """A process could not be started, or was lost with the machine that it was on."""


class BatchLaunch(NamedTuple):
    """The options of all sessions: `common` of whatever runs (policy, sandbox, approvals, state directory), `model` of
    what asks a model; the limits that a task's own can only narrow; the longest time of a command in seconds.
    `directory` is what their relative paths mean, `files` are those that a node needs of the batch's directory."""

    directory: str
    state_dir: str
    common: tuple[str, ...]
    model: tuple[str, ...]
    max_steps: int
    timeout_s: float | None
    command_s: int
    keeps_all: bool
    files: tuple[str, ...]


class LineEnd(NamedTuple):
    """The end of a shell line of the batch: its exit code, or why it has none. `denied` names what denied it. Where
    `is_held`, another process still runs the line for an earlier attempt."""

    exit_code: int | None
    why: str = ""
    denied: str = ""
    is_held: bool = False


class Attempted(NamedTuple):
    """The row of an attempt. `has_asked`: the model may have been asked, so the attempt may have cost something."""

    row: Row
    has_asked: bool


class Attempts:
    """Makes attempts at tasks, any number at once. `depot` is there for an engine whose sessions travel as parcels."""

    def __init__(
        self,
        ledger: Ledger,
        launch: BatchLaunch,
        workspaces: Workspaces,
        engine: Engine,
        depot: Depot | None = None,
    ) -> None:
        self._depot = depot
        self._ledger = ledger
        self._launch = launch
        self._workspaces = workspaces
        self._engine = engine
        os.makedirs(ledger.at("work"), exist_ok=True)

    async def run(self, task: BatchTask, *, number: int, max_cost: float | None) -> Attempted:
        """Begin the task's session, or continue it, until it ends; `number` counts attempts from 1, `max_cost` is what
        the session may have cost by its end."""
        began = MACHINE.monotonic()
        fields: Row = {}
        try:
            ended = await self._make_attempt(task, fields, max_cost)
        except OSError as error:  # a disk that is full, of the batch's own files
            ended = Attempted(_failure("DISK_FAILED", f"{self._ledger.path}: {error.strerror or error}"), True)
        row = {"id": task.id, "sessionId": self._ledger.session_id(task), **ended.row, **fields, "attempts": number}
        row["durationMs"] = int((MACHINE.monotonic() - began) * 1000)
        return ended._replace(row={**row, **self._ledger.patch_row(task)})

    async def _make_attempt(self, task: BatchTask, fields: Row, max_cost: float | None) -> Attempted:
        """The part of a row that says how the session ended; `fields` gets those of setup and check. Raises OSError."""
        if self._depot is not None:
            await asyncio.to_thread(self._depot.finish, task.key)
            self._depot.costs.settle(task.key)
        unready = await self._get_ready(task, fields)
        if unready is not None:
            return Attempted(unready, has_asked=False)
        row = await self._run_session(task, max_cost)
        if row["endedBy"] != INFRASTRUCTURE and task.check and not row["retryable"]:
            checked = await self._run_line(task, "check")
            if checked.is_held:  # the session repeats its result once the line can be run
                return Attempted({**row, **_held(checked.why)}, has_asked=True)
            fields["check"] = {"exitCode": checked.exit_code, **({"why": checked.why} if checked.why else {})}
        return Attempted(row, has_asked=row["reason"] != ErrorCode.SESSION_HELD)

    async def tidy(self, task: BatchTask, row: Row) -> None:
        """Remove the workspace of a task whose row and patch are stored, if nothing more is to be done there."""
        if row["status"] == COMPLETED and not self._launch.keeps_all:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._workspaces.remove, task.key)

    async def _get_ready(self, task: BatchTask, fields: Row) -> Row | None:
        """Have the workspace as the session begins with it; a row if it cannot be had. `fields` gets the setup's."""
        marker, path = self._ledger.at("work", f"{task.key}.ready"), self._workspaces.path_of(task.key)
        known = _take_known(marker, path)
        if known is not None:
            fields.update(known)
            return None
        held = await asyncio.to_thread(self._forget_line, task, "setup") if task.setup else None
        if held is not None:  # the setup of a batch that was killed is still at work there
            return _held(held)
        try:
            await asyncio.to_thread(self._workspaces.make, task.key, task.workspace)
        except WorkspaceUnavailable as error:
            return _failure("WORKSPACE_UNAVAILABLE", str(error))
        if task.setup:
            end = await self._run_line(task, "setup")
            fields["setup"] = {"exitCode": end.exit_code}
            if end.is_held:
                return _held(end.why)
            if end.denied:
                return {**_failure(end.denied, end.why), "endedBy": "policy", "retryable": False}
            if end.exit_code != 0:
                why = end.why or f"setup ended with exit code {end.exit_code}"
                return _failure("SETUP_FAILED", why)
        _write_json(marker, fields)
        return None

    async def _run_session(self, task: BatchTask, max_cost: float | None) -> Row:
        """The row of a session that has ended, or was left resumable."""
        launch, ledger = self._launch, self._ledger
        order = ledger.at("work", f"{task.key}.order")
        _write_json(order, {"prompt": task.prompt, "policy": task.policy})
        limits = [value for value in (launch.timeout_s, task.timeout_s) if value is not None]
        lost = 0.0 if self._depot is None else self._depot.costs.total(task.key)
        had = float(ledger.rows.get(task.id, {}).get("cost", 0.0))
        risk = 0.0 if max_cost is None else max(0.0, max_cost - max(had, lost))
        arguments = [
            "run", "-", "--order", order, "--session-id", ledger.session_id(task), "--or-resume",
            "--output", "json", "--no-input", "--no-summary", "--patch", ledger.patch_of(task),
            "--workspace", self._workspaces.path_of(task.key), *launch.common, *launch.model,
            "--max-steps", str(min(launch.max_steps, task.max_steps or launch.max_steps)),
            *(["--model", task.model] if task.model else []),
            *([] if max_cost is None else ["--max-cost", repr(max(_LEAST_COST, max_cost - lost))]),
            *(["--timeout", repr(min(limits))] if limits else []),
        ]  # fmt: skip
        try:
            parcel = Parcel(task.key, ledger.session_id(task), (order, *launch.files), ledger.patch_of(task), risk)
            end = await self._engine.run(task.id, arguments, directory=launch.directory, parcel=parcel)
        except EngineFailed as error:
            return _failure("INTERRUPTED", str(error))
        result = _result_in(end.output)
        if result is None:
            return _unfinished(end)
        row = {
            **{name: result[name] for name in _OF_RESULT if result.get(name) is not None},
            "reason": result.get("reason"),
            "exitCode": end.exit_code,
        }
        if lost:
            row["cost"] = row.get("cost", 0.0) + lost
        is_slice = max_cost is not None and (task.max_cost is None or max_cost < task.max_cost)
        return {**row, "reason": SPENDING_LIMIT, "retryable": True} if is_slice and _has_spent_all(result) else row

    async def _run_line(self, task: BatchTask, which: str) -> LineEnd:
        """Run `setup` or `check` of the task under its policy and sandbox."""
        launch, ledger = self._launch, self._ledger
        line, session_id = getattr(task, which), f"{ledger.session_id(task)}-{which}"
        script, order = ledger.at("work", f"{task.key}.{which}.toml"), ledger.at("work", f"{task.key}.{which}.order")
        call = f'[{{name = "RunCommand", arguments = {{command = "${{line}}", timeout = {launch.command_s}}}}}]'
        turns = f'[[turn]]\ntool_calls = {call}\n[[turn]]\ntext = "Done."\n'
        _write(script, b"[vars]\nline = %b\n%b" % (orjson.dumps(line), turns.encode()))  # JSON's string is TOML's
        _write_json(order, {"prompt": f"The {which} of {task.id}", "policy": task.policy})
        held = await asyncio.to_thread(self._forget_line, task, which)
        if held is not None:
            return LineEnd(None, held, is_held=True)
        arguments = [
            "run", "-", "--order", order, "--session-id", session_id, "--output", "json", "--no-input", "--no-summary",
            "--gateway", f"mock:{script}", "--toolset", "desktop",
            "--workspace", self._workspaces.path_of(task.key), *launch.common,
        ]  # fmt: skip
        try:
            parcel = Parcel(task.key, session_id, (script, order, *launch.files))
            end = await self._engine.run(f"{task.id} {which}", arguments, directory=launch.directory, parcel=parcel)
        except EngineFailed as error:
            return LineEnd(None, str(error))
        found = _line_end(end)
        if found.exit_code == 0:
            await asyncio.to_thread(self._forget_line, task, which)
        return found

    def _forget_line(self, task: BatchTask, which: str) -> str | None:
        """Remove the session of an earlier `setup` or `check`, if it is there; why not, if a process still has it."""
        try:
            remove_session(self._launch.state_dir, f"{self._ledger.session_id(task)}-{which}", resumable=True)
        except SessionHeld as error:
            return str(error)
        except AgentHostError:  # there is none, or its new run says what is wrong
            return None
        return None


def _has_spent_all(result: dict[str, Any]) -> bool:
    """True if the session stopped because what it may cost does not cover its next call; more lets it go on."""
    return result.get("reason") == ErrorCode.LLM_BUDGET_EXCEEDED and MAX_COST in str(result.get("message"))


def _line_end(end: ProcessEnd) -> LineEnd:
    result = _result_in(end.output)
    if result is None:
        return LineEnd(None, _last_line(end.last_words) or f"ended with exit code {end.exit_code}")
    for call in result.get("toolCalls", ()):
        if result["deniedApprovals"]:
            return LineEnd(
                None, "it needs an approval, and no person can give one in a batch", ErrorCode.APPROVAL_REQUIRED
            )
        if call["status"] == "denied":
            return LineEnd(None, "the policy denies it", str(call.get("code", ErrorCode.CAPABILITY_DENIED)))
        if "exitCode" in call:
            return LineEnd(call["exitCode"])
        return LineEnd(None, str(call.get("code", call["status"])))
    return LineEnd(None, one_line(str(result.get("message") or result.get("reason") or "it did not run")))


def _unfinished(end: ProcessEnd) -> Row:
    """The row of a process that ended without a result."""
    said = _last_line(end.last_words)
    if end.exit_code == HELD:
        return _held(said)
    if end.exit_code == 2:
        return {**_failure(ErrorCode.INVALID_REQUEST, said), "retryable": False}
    how = f"signal {-end.exit_code}" if end.exit_code < 0 else f"exit code {end.exit_code}"
    return {**_failure("INTERRUPTED", f"the process ended by {how}: {said}"), "exitCode": end.exit_code}


def _held(message: str) -> Row:
    return _failure(ErrorCode.SESSION_HELD, message)


def _failure(reason: str, message: str) -> Row:
    """A row of what infrastructure ended before the session had a result."""
    return {
        "status": _FAILED,
        "reason": str(reason),
        "endedBy": INFRASTRUCTURE,
        "retryable": True,
        "exitCode": 3,
        "usage": {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0},
        "message": one_line(message, _MESSAGE_CHARS),
    }


def _last_line(text: str) -> str:
    return one_line(text.strip().rpartition("\n")[2], _MESSAGE_CHARS)


def _result_in(output: bytes) -> dict[str, Any] | None:
    """The result object that a run has printed, None for none."""
    with contextlib.suppress(orjson.JSONDecodeError):
        value = json_text.loads(output)
        if isinstance(value, dict) and "endedBy" in value:
            return value
    return None


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            value = json_text.loads(file.read())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _take_known(marker: str, workspace: str) -> dict[str, Any] | None:
    """The fields that are known of a workspace that is ready; None for one that is not, or where a part is missing."""
    known = _read_json(marker) if os.path.isdir(workspace) else None
    if known is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(marker)
    return known


def _write_json(path: str, value: Row) -> None:
    _write(path, orjson.dumps(value))


def _write(path: str, data: bytes) -> None:
    replace_atomically(LOCAL_DISK, path, [data])
