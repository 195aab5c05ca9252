"""The line of a bundle that would allow a call that the user was just asked about, tried before it is offered.

A candidate is written by the kind of the call, put into the bundle as it is on disk, and judged as `policy rejudge`
does it: with every call of the session, including this one. Only a bundle that allows the call is offered, with its
other effects. Nothing is offered

- for a call that asks for more than its sandbox, that even the built-in `full` denies (settings of shells, git and
  editors, credentials), or that the bundle does not ask about: then a mode or an option of the task does;
- for programs that may start others, and for those of a path, whose content the model can change;
- under a bundle of the Session Service, which cannot be changed here; and for a file in the workspace, wherever
  links and the user's configuration lead.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.display_text import count_noun, one_line
from agent_host.errors import AgentHostError, SessionNotFound, UsageError
from agent_host.events import EventType
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.environment import Level
from agent_host.host.first_provider import ConfigurationChange, put_file
from agent_host.host.first_provider import write as write_configuration
from agent_host.host.options import anchor, settings_from, snapshot_limit
from agent_host.ids import MACHINE
from agent_host.loop import NOT_KEPT
from agent_host.loop.results import arguments_in_note
from agent_host.services import endpoints
from agent_host.session.opening import state_errors_translated
from agent_host.session.transcript import events_on_record
from agent_host.thread.messages import ToolCall, decode
from config import json_text
from config.lean_typing import NamedTuple
from config.load import read_regular_file, user_file
from config.policies import BUILT_IN
from config.providers import NotEditable, put_setting
from policy import LEVELS, SANDBOX_GRANT
from policy import CapabilityName as Name
from policy.programs import what_it_starts
from policy.rules.toolset import risk_of_guarded
from policy.shell import parse
from policy.urls import UrlProblem, host_of
from state import (
    Damaged,
    NoSuchSession,
    SessionPaths,
    TooLarge,
    UnknownVersion,
    Untrusted,
    WriteFailed,
)
from state.blobs import sha256_hex
from state.file_store import FileCheckpointStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent_host.host.dry_runs import Tried
    from policy import Decision, SandboxLevel


_POLICY: Final = "host.policy"
_FOLDER: Final = "policies"
_MOST_ROWS: Final = 8
_BY_LIST: Final = re.compile(r"capabilities(?:\[([A-Za-z.]+)\]\.allowed(?:Paths|Commands|Domains))?")
"""Rules by which a list that is too short denies."""
_BY_NAME: Final = (Name.MCP_INVOKE, Name.BACKEND_TOOL_INVOKE)
_MOST_BYTES: Final = 4 * 1024 * 1024
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_./-]+")


class Proposal(NamedTuple):
    """A bundle to write at `path`, in place of `before` (None: there is none). `lines` are for the user;
    `sets_default`, if not empty, means that the user's configuration would have to name it."""

    path: str
    before: bytes | None
    after: bytes
    lines: tuple[str, ...]
    sets_default: str = ""

    def write(self) -> str:
        """Write the bundle; returns a description. Raises OSError, also if the file has changed meanwhile."""
        if _read(self.path) != self.before:
            raise OSError(0, f"{self.path} was changed in the meantime")
        put_file(self.path, self.after)
        return f"wrote {self.path}; it counts for this session too, and as a bundle from the next one on"

    def make_default(self) -> str:
        """Name the bundle in the user's configuration; returns a description. Raises UsageError."""
        path = user_file(os.environ)
        if path is None:
            raise UsageError("there is no home directory for a configuration")
        path = os.path.realpath(path)
        before = (_read(path) or b"").decode("utf-8-sig")
        try:
            after = put_setting(before, "host", "policy", self.path)
        except NotEditable as error:
            raise UsageError(f"{path} has [host] in a form that is not edited here; write there: {error}") from error
        write_configuration(ConfigurationChange(path, before, after))
        return f"wrote host.policy in {path}"


def propose(
    flags: Mapping[str, Any],
    tool_name: str,
    arguments: Mapping[str, Any],
    *,
    session_id: str,
    workspace: str,
    state_dir: str,
) -> Proposal | None:
    """The bundle that would allow this call of the session; None if none is to be offered. Raises AgentHostError for a
    policy that cannot be read."""
    if SANDBOX_GRANT in arguments or endpoints(os.environ).session is not None:
        return None
    place = _place(settings_from(flags, workspace=workspace).host.policy, workspace)
    if place is None:
        return None
    path, base = place
    tried = policy_to_try(flags, workspace=workspace, state_dir=state_dir)
    spec = tried.all_tools.get(tool_name)
    if spec is None or risk_of_guarded(tool_name, spec.capability) is not None:
        return None
    full = policy_to_try({**flags, _POLICY: "full"}, workspace=workspace, state_dir=state_dir)
    if _decision(tried, tool_name, arguments) != "APPROVAL_REQUIRED" or (
        spec.capability not in _BY_NAME and _decision(full, tool_name, arguments) != "ALLOWED"
    ):
        return None
    entry = _entry(tried, spec.capability, tool_name, arguments)
    before = _read(path)
    present = base if before is None else _bundle_in(before)
    if entry is None or present is None or present.get("extends") != base.get("extends", present.get("extends")):
        return None
    content = _merge(present, entry)
    after = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    rows = _rejudge(flags, after, session_id, workspace, state_dir)
    mine = [row for row in rows if row.call.name == tool_name and row.call.arguments == arguments]
    if not any(row.now is not None and row.now.decision == "ALLOWED" for row in mine):
        return None
    built_in = "" if "extends" not in base else f"a session has this bundle where host.policy names {path}"
    return Proposal(path, before, after, tuple(_lines(path, entry, rows, tried)), built_in)


def _place(policy: str, workspace: str) -> tuple[str, dict[str, Any]] | None:
    """The file to write, and the start of a new one; None if there is no file that the user may write."""
    if policy in BUILT_IN:
        configuration = user_file(os.environ)
        if configuration is None:
            return None
        folder = os.path.join(os.path.dirname(os.path.realpath(configuration)), _FOLDER)
        path = os.path.realpath(os.path.join(folder, f"{policy}-own.json"))
        return None if _is_inside(path, workspace) else (path, {"extends": policy})
    path = os.path.realpath(anchor(policy))
    return None if _is_inside(path, workspace) or not os.path.isfile(path) else (path, {})


def _is_inside(path: str, workspace: str) -> bool:
    """True if a real path leads through the directory `workspace`, whatever the file system makes of names."""
    folders = (str(one) for one in PurePath(path).parents)
    return any(os.path.samefile(one, workspace) for one in folders if os.path.isdir(one))


def _bundle_in(content: bytes) -> dict[str, Any] | None:
    try:
        found = json_text.loads(content) if len(content) <= _MOST_BYTES else None
    except ValueError:
        return None
    listed = found.get("capabilities", []) if isinstance(found, dict) else None
    return found if isinstance(listed, list) and all(isinstance(one, dict) for one in listed) else None


def _decision(tried: Tried, tool_name: str, arguments: Mapping[str, Any]) -> str:
    return tried.judge(tool_name, arguments, MACHINE.now(), tried.level.level).decision


def _entry(tried: Tried, capability: str, tool_name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    known = tried.bundle_in_use.capability(capability)
    if known is None:
        return None
    if capability in _BY_NAME:
        if not _PLAIN_NAME.fullmatch(tool_name):  # the entry is a pattern
            return None
        return {"name": capability, "toolPolicies": [{"tool": tool_name, "requiresApproval": False}]}
    unasked = {"requiresApproval": False} if known.requires_approval else {}
    if capability == Name.SHELL_EXEC:
        programs = _programs(str(arguments.get("command", "")), tried.machine.shell)
        listed = known.allowed_commands or ()
        if programs is None:
            return None
        return {"name": capability, "allowedCommands": [one for one in programs if one not in listed], **unasked}
    if capability == Name.NETWORK_HTTP:
        host = _host(arguments)
        if host is None:
            return None
        added = [host] if host not in (known.allowed_domains or ()) else []
        return {"name": capability, "allowedDomains": added, **unasked}
    if capability in (Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE) and unasked:
        return {"name": capability, **unasked}
    return None


def _host(arguments: Mapping[str, Any]) -> str | None:
    try:
        return host_of(str(arguments.get("url", "")))
    except UrlProblem:
        return None


def _programs(command: str, shell: Any) -> list[str] | None:
    """The programs of a line, None if one is not known before it runs, or may start others."""
    parsed = parse(command, shell, ())
    if parsed.dynamic or parsed.opaque or parsed.unread or parsed.unparsed or parsed.evaluates:
        return None
    programs = [one.program for one in parsed.commands]
    known = [one for one in programs if one is not None and not set(one) & set("/\\") and what_it_starts(one) is None]
    return list(dict.fromkeys(known)) if programs and len(known) == len(programs) else None


class DeniedCalls:
    """The entries that a bundle lacks for calls of a session that its lists denied. There are none for paths and names
    that a bundle blocks or guards by name, for calls that even `full` denies, for paths outside the workspace after
    links are resolved, for programs that may start others, and under a bundle of the Session Service."""

    def __init__(self, workspace: str, state_dir: str) -> None:
        self._workspace, self._state_dir = workspace, state_dir
        self._full: Tried | None = None

    def entry(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry for a call of the transcript, None if there is none."""
        found = None if endpoints(os.environ).session is not None else _entry_for_denied(item, self._workspace)
        return found if found is not None and self._is_allowed_by_full(item) else None

    def _is_allowed_by_full(self, item: Mapping[str, Any]) -> bool:
        try:
            if self._full is None:  # at a given level, since measuring one would write into the state directory
                full, none = {_POLICY: "full"}, Level("none", "none")
                self._full = policy_to_try(full, workspace=self._workspace, state_dir=self._state_dir, level=none)
            return _decision(self._full, str(item["toolName"]), item["arguments"]) == "ALLOWED"
        except AgentHostError:  # the workspace is gone, or a configuration is unusable: nothing is tried
            return False


def _entry_for_denied(item: Mapping[str, Any], workspace: str) -> dict[str, Any] | None:
    found = _BY_LIST.fullmatch(str(item.get("rule", "")))
    arguments = item.get("arguments")
    if found is None or not isinstance(arguments, dict) or SANDBOX_GRANT in arguments:
        return None
    capability = found[1] or str(item.get("capability", ""))
    if capability != item.get("capability"):  # a file that a command opens
        return None
    if capability == Name.SHELL_EXEC:
        programs = _programs(str(arguments.get("command", "")), "bash")
        return None if programs is None else {"name": capability, "allowedCommands": programs}
    if capability == Name.NETWORK_HTTP:
        host = _host(arguments)
        return None if host is None else {"name": capability, "allowedDomains": [host]}
    if capability in (Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE):
        path = os.path.realpath(os.path.join(workspace, str(arguments.get("path", ""))))
        is_guarded = risk_of_guarded(str(item.get("toolName", "")), capability) is not None
        is_here = path == os.path.realpath(workspace) or _is_inside(path, workspace)
        if not is_here or is_guarded:
            return None
        # As in the built-ins: the entry is complete by itself in a bundle that extends none of them.
        blocked = ["@credentials"] if capability == Name.FILE_READ else ["@credentials", "@steering"]
        return {"name": capability, "allowedPaths": ["${workspace}"], "blockedPaths": blocked}
    return None


def _merge(content: dict[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(content)
    capabilities = merged.setdefault("capabilities", [])
    found = next((one for one in capabilities if one.get("name") == entry["name"]), None)
    if found is None:
        capabilities.append({name: value for name, value in entry.items() if value != []})
        return dict(merged)
    for name, value in entry.items():
        if isinstance(value, list):
            present = found.setdefault(name, []) if value else found.get(name, [])
            present += [one for one in value if one not in present]
        else:
            found[name] = value
    return dict(merged)


def _rejudge(
    flags: Mapping[str, Any], bundle: bytes, session_id: str, workspace: str, state_dir: str
) -> list[Rejudged]:
    with tempfile.TemporaryDirectory(prefix="agent-host-policy-") as folder:
        path = os.path.join(folder, "proposed.json")
        with open(path, "wb") as file:
            file.write(bundle)
        tried = {**flags, _POLICY: path}
        return rejudge_calls(tried, session_id=session_id, workspace=workspace, state_dir=state_dir)


def _lines(path: str, entry: Mapping[str, Any], rows: list[Rejudged], tried: Tried) -> list[str]:
    changed = [row for row in rows if row.differs]
    lines = [f"This line would allow it, in {path}:", f"  {one_line(json.dumps(entry, ensure_ascii=False), 4000)}"]
    known = tried.bundle_in_use.capability(entry["name"])
    if known is not None and "allowedCommands" in entry and known.allowed_commands is None:
        lines.append("  Only the programs of that list run then: others are denied and no longer asked about.")
    if known is not None and "allowedDomains" in entry and known.allowed_domains is None:
        lines.append("  Only the hosts of that list are reached then: others are denied and no longer asked about.")
    lines.append(f"Of this session's {count_noun(len(rows), 'call')} it decides {len(changed)} differently:")
    for row in changed[:_MOST_ROWS]:
        decision = "" if row.now is None else row.now.decision
        call = one_line(f"{row.call.name} {json.dumps(row.call.arguments)}", 200)
        lines.append(f"  {row.before} → {decision}: {call}")
    if len(changed) > _MOST_ROWS:
        lines.append(f"  and {len(changed) - _MOST_ROWS} more (agent-host policy rejudge)")
    lines.append("In this session it counts as s, the bundle from the next one on.")
    return lines


def _read(path: str) -> bytes | None:
    try:
        return read_regular_file(path)
    except FileNotFoundError:
        return None


# Records of a session's calls: the model's calls, policy decisions on them, and the forms that ran instead.
#
# A call whose arguments the approver changed has two forms, each with a decision of its own.


class Recorded(NamedTuple):
    """The record of a session: its encoded messages and its workspace. `started` has the policy, model and families
    that it started with, `asked` and `edited` the policy decisions on each call as the model made it and on each edited
    form, by call id, and `ran_with` the arguments of these forms, None if they are not recorded."""

    paths: SessionPaths
    messages: list[bytes]
    workspace: str
    started: Mapping[str, Any]
    asked: Mapping[str, Decided]
    edited: Mapping[str, Decided]
    ran_with: Mapping[str, dict[str, Any] | None]

    def calls(self) -> Iterator[ToolCall]:
        """The calls of the model, in order; one whose arguments could not be read was never judged. The record of a
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


def read_record(state_dir: str, session_id: str) -> Recorded:
    """Of the checkpoint, else of what stayed of a session that has ended. Raises SessionNotFound, UsageError."""
    with state_errors_translated():
        paths = SessionPaths(state_dir, session_id)
    store = FileCheckpointStore(paths.state_dir, snapshot_limit_bytes=snapshot_limit())
    open_edits: dict[str, dict[str, Any]] = {}
    try:
        state = store.load(paths.session_id)
    except (NoSuchSession, Damaged, UnknownVersion, TooLarge, Untrusted, WriteFailed):
        messages, workspace, started = _read_ended(paths)
    else:
        calls = [] if state.open_step is None else state.open_step.calls
        messages = [*state.thread, *(call.result for call in calls if call.result is not None)]
        open_edits = {call.call_id: call.edited_arguments for call in calls if call.edited_arguments is not None}
        options = state.identity.options
        workspace, started = anchor(options.get("workspace", os.curdir)), options.get("started", {})
    asked, edited = _decisions(paths)
    # A process that was killed may not have written its last events.
    ran_with = {**_find_edits(messages, edited), **open_edits}
    return Recorded(paths, messages, workspace, started, asked, edited, ran_with)


def _read_ended(paths: SessionPaths) -> tuple[list[bytes], str, dict[str, Any]]:
    try:
        with open(os.path.join(paths.artifacts, "session_history"), "rb") as handle:
            messages = orjson.loads(handle.read())
        with open(paths.result, "rb") as handle:
            result = orjson.loads(handle.read())
        encoded = [orjson.dumps(message) for message in messages]
        return encoded, str(result["workspace"]), dict(result.get("started", {}))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionNotFound(
            f"there is no session {paths.session_id} with its history on this disk; `agent-host sessions` lists all"
        ) from error


def _decisions(paths: SessionPaths) -> tuple[dict[str, Decided], dict[str, Decided]]:
    """Policy decisions on each call as the model made it, and on each edited form, from the run log; of several the
    last."""
    asked: dict[str, Decided] = {}
    edited: dict[str, Decided] = {}
    for event in events_on_record(paths.events):
        payload = event["payload"]
        if event["eventType"] == EventType.TOOL_REQUESTED and "decision" in payload:
            decided = Decided(str(payload["decision"]), payload.get("argumentsSha256"), payload.get("capability"))
            (edited if payload.get("edited") else asked)[str(payload["toolCallId"])] = decided
    return asked, edited


def _find_edits(messages: Iterable[bytes], edited: dict[str, Decided]) -> dict[str, dict[str, Any] | None]:
    """The arguments of edited forms are recorded with the result; in records of earlier versions they are in the note
    before it, which cuts long ones. They count when they have the hash that the run log has."""
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(edited)
    for data in messages:
        if b'"toolCallId"' not in data:
            continue
        message = decode(data)
        if message.tool_call_id in edited:
            arguments = message.edited_arguments
            if arguments is None:
                arguments = arguments_in_note(message.content)
            found[message.tool_call_id] = arguments if _fits(arguments, edited[message.tool_call_id]) else None
    return found


def _fits(arguments: dict[str, Any] | None, decided: Decided) -> bool:
    if arguments is None:
        return False
    # Arguments out of which a secret was taken are encoded by the standard library.
    spelled = (orjson.dumps(arguments), json.dumps(arguments, separators=(",", ":")).encode())
    return decided.arguments_hash in {sha256_hex(one) for one in spelled}


# Decisions of another policy on the calls of a session.

NOT_ON_RECORD = "the arguments that it ran with are not on record"


class Rejudged(NamedTuple):
    """One call as the model made it, or the form that the approver gave it.

    `before` is the policy decision then, None if there was none; `now` the one that policy would make now, None for a
    form whose arguments are not recorded. `level` is the sandbox level of the session's commands.
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

    Facts are those of the disk now, in `workspace`, by default the session's. A call that was edited when it was
    approved is judged in both its forms, each compared with the decision on that form. Raises UsageError,
    SessionNotFound, PolicyBundleInvalid.
    """
    record = read_record(state_dir, session_id)
    root = anchor(workspace, os.path.realpath) if workspace else record.workspace
    level = record.started.get("sandbox", LEVELS[0])
    tried = policy_to_try(flags, workspace=root, state_dir=state_dir, session_id=session_id, level=Level(level, level))
    now = MACHINE.now()
    rows = []
    for call in record.calls():
        decided = record.asked.get(call.call_id)
        decision = tried.judge(call.name, call.arguments, now, level)
        rows.append(Rejudged(call, None if decided is None else decided.decision, decision, level=level))
        if call.call_id in record.ran_with:
            then = record.edited.get(call.call_id)
            arguments = record.ran_with[call.call_id]
            form = call if arguments is None else ToolCall(call.call_id, call.name, arguments)
            changed = None if arguments is None else tried.judge(form.name, form.arguments, now, level)
            rows.append(Rejudged(form, None if then is None else then.decision, changed, edited=True, level=level))
    return rows
