"""Sessions of a state directory: `agent-host sessions` lists, removes and prunes them, `show` and `report` show them,
live or ended; `approvals`, `approve` and `deny` are for the open questions of live sessions."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from difflib import unified_diff
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import answer, exit_codes, notice
from agent_host.cli.outputs import import_view, write_page
from agent_host.cli.shared import answer_in, sandbox_in_words, state_dir_of
from agent_host.clients.markdown import session_markdown
from agent_host.display_text import count_noun, escape, one_line, tokens_in_words
from agent_host.errors import AgentHostError, SessionNotFound, UsageError
from agent_host.host.options import anchor, snapshot_limit, state_option
from agent_host.host.records import MARK_WORDS, UNREADABLE, remove_session, session_id_of, stored_sessions
from agent_host.rpc import questions
from config import json_text
from config.load import ConfigError, load
from state import WriteFailed
from state.prune import PruneLimits, SessionPruner, choose

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.host.records import Item, StoredSession
    from state.prune import SessionToPrune

_ROWS = 20
_PRUNE_OPTIONS = ("max_age", "max_count", "max_size", "resumable", "dry_run")
"""Options that need `--prune`, by attribute."""


def sessions(namespace: argparse.Namespace) -> int:
    """`agent-host sessions`, newest first; `sessions rm ID` removes one."""
    if namespace.verb == "list" and namespace.session_id is not None:
        raise UsageError(f"sessions list takes no id: agent-host show {namespace.session_id} shows a session")
    if namespace.verb == "rm":
        return _remove(namespace)
    if namespace.prune or any(getattr(namespace, name) is not None for name in _PRUNE_OPTIONS):
        return prune(namespace)
    state_dir = state_dir_of(namespace)
    found = stored_sessions(state_dir).all(search=namespace.search)
    limit = _ROWS if namespace.limit is None and namespace.output == "text" else namespace.limit
    shown = found[: limit or None]
    lines = _lines(shown, len(found)) if shown else [_no_rows(state_dir, namespace.search)]
    answer_in(namespace.output, [one.to_wire() for one in shown], lines)
    return exit_codes.COMPLETED


_GENERATED = r"sess_[0-9a-f]{16}"
_START_OF_GENERATED = r"sess_[0-9a-f]{4,15}"


def _remove(namespace: argparse.Namespace) -> int:
    session_id, state_dir = namespace.session_id, state_dir_of(namespace)
    if session_id is None:
        raise UsageError("sessions rm needs the id of a session: sessions rm ID")
    if re.fullmatch(_START_OF_GENERATED, session_id):  # removing a-1 of the user's own must not remove a-12
        whole = session_id_of(state_dir, session_id)
        session_id = whole if re.fullmatch(_GENERATED, whole) else session_id
    try:
        remove_session(state_dir, session_id, resumable=bool(namespace.resumable))
    except SessionNotFound as error:
        raise SessionNotFound(
            f"{error}: give the whole id, or 4 characters or more of a generated one (sess_…)"
        ) from error
    answer(f"removed {session_id}\n")
    return exit_codes.COMPLETED


def _no_rows(state_dir: str, search: str) -> str:
    count = len(stored_sessions(state_dir).all()) if search else 0
    if count == 0:
        return f"no sessions under {state_dir}\n"
    return f"none of {count_noun(count, 'session')} has {search!r} in it\n"


def _lines(shown: list[StoredSession], count: int) -> Iterator[str]:
    now = datetime.now(UTC)
    yield from (_line(one, now) for one in shown)
    if count > len(shown):
        yield f"[… {count - len(shown)} more; --limit 0 shows all]\n"


def _line(one: StoredSession, now: datetime) -> str:
    notes = f" (in use by process {one.pid})" if one.pid else ""
    notes += " (resumable)" if one.resumable else ""
    title = escape(one.prompt if one.status == UNREADABLE else one.title, keep="")
    tokens = "" if one.total_tokens is None else f", {one.total_tokens:,} tokens"
    did = f"{count_noun(one.step_count, 'step')}{tokens}"
    place = escape(one.workspace, keep="")
    return f"{one.session_id}  {_ago(one.updated_at, now)}  {one.description}{notes}  {did}  {place}  {title}\n"


def _ago(updated_at: str, now: datetime) -> str:
    """The age of a moment in RFC 3339; the text itself if it is not one."""
    try:
        moment = datetime.fromisoformat(updated_at)
    except ValueError:
        return escape(updated_at, keep="")
    return f"{_age_text((now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).total_seconds())} ago"


# `agent-host sessions --prune`: removes and lists whatever exceeds the limits (SK 6/7).

_DAY_S = 24 * 60 * 60
_SECONDS = {"s": 1, "m": 60, "h": 60 * 60, "d": _DAY_S, "w": 7 * _DAY_S}
_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_FORMS = (
    ("max_age", r"([0-9]{1,15})([smhdw])", _SECONDS, "a whole number with its unit s, m, h, d or w: 30d"),
    ("max_count", r"([0-9]{1,15})()", _BYTES, "a whole number"),
    ("max_size", r"([0-9]{1,15})(?:([KMG])(?:iB)?)?", _BYTES, "bytes, or a whole number with K, M or G: 2GiB"),
)
"""The limits of `--prune`: option, form, units, and a description of valid values."""


def prune(namespace: argparse.Namespace) -> int:
    """Prune by the given limits, or by those of the configuration if none is given.

    Returns 1 if something could not be removed; each is a line on stderr. Raises UsageError.
    """
    limits, now, kept = _limits(namespace), time.time(), 0
    report = _Report(dry_run=bool(namespace.dry_run))
    try:
        with SessionPruner(state_dir_of(namespace), now=now, snapshot_limit_bytes=snapshot_limit()) as pruner:
            for session_id, size in pruner.remains().items():  # leftovers of an earlier prune, or end, that was killed
                report.remove(session_id, size, lambda: pruner.clear(session_id))  # noqa: B023  it is called at once
            rows = pruner.survey()
            for chosen in choose(rows, limits, now=now, resumable=bool(namespace.resumable)):
                stored = chosen.stored  # one that is live by now is kept silently
                if report.remove(stored.session_id, stored.size_bytes, lambda: pruner.remove(stored)):  # noqa: B023
                    report.pruned.append(chosen)
            kept = len(rows) - len(report.pruned)
    except OSError as error:
        report.fail("nothing more is pruned", error)
    answer_in(namespace.output, report.to_wire(kept), report.lines(kept, now))
    return exit_codes.FAILED if report.failures else exit_codes.COMPLETED


class _Report:
    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._freed = 0
        self.pruned: list[SessionToPrune] = []
        self.failures = 0

    def remove(self, session_id: str, size_bytes: int, do: Callable[[], bool]) -> bool:
        try:
            done = self._dry_run or do()
        except (OSError, WriteFailed) as error:
            self.fail(f"session {session_id} was not removed", error)
            return False
        self._freed += size_bytes if done else 0
        return done

    def fail(self, what: str, error: Exception) -> None:
        self.failures += 1
        problem = str(error)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename is not None else ""
            problem = f"{where}{error.strerror or error}"
        notice(f"{what}: {problem}")

    def lines(self, kept: int, now: float) -> Iterator[str]:
        for chosen in self.pruned:
            stored = chosen.stored
            age = _age_text(now - stored.last_used)
            yield f"{stored.session_id}  {age}  {_size_text(stored.size_bytes)}  {chosen.reason}\n"
        done = "would be pruned" if self._dry_run else "pruned"
        freed = f"{_size_text(self._freed)} {'to free' if self._dry_run else 'freed'}"
        yield f"{count_noun(len(self.pruned), 'session')} {done}, {freed}, {kept} kept\n"

    def to_wire(self, kept: int) -> dict[str, Any]:
        pruned = [
            {"sessionId": row.stored.session_id, "reason": row.reason, "sizeBytes": row.stored.size_bytes}
            for row in self.pruned
        ]
        return {"pruned": pruned, "kept": kept, "freedBytes": self._freed, "dryRun": self._dry_run}


def _limits(namespace: argparse.Namespace) -> PruneLimits:
    """The limits of the options; without any those of the defaults and the user's own file, because a workspace must
    not decide what is kept."""
    if not namespace.prune:
        given = next(name for name in _PRUNE_OPTIONS if getattr(namespace, name) is not None)
        raise UsageError(f"--{given.replace('_', '-')} goes with --prune only")
    limits = PruneLimits(*(_limit(namespace, *row) for row in _FORMS))
    if limits != PruneLimits(None, None, None):
        return limits
    try:
        retention = load({}, workspace=None).retention
    except ConfigError as error:
        raise UsageError(*error.problems) from error
    return PruneLimits(
        retention.max_age_days * _DAY_S or None, retention.max_sessions or None, retention.max_bytes or None
    )


def _limit(namespace: argparse.Namespace, name: str, form: str, units: dict[str, int], wanted: str) -> int | None:
    """The number of an option. 0 is rejected: in the configuration it means no limit, here it would mean all."""
    text = getattr(namespace, name)
    if text is None:
        return None
    found = re.fullmatch(form, text)
    number = int(found[1]) * units[found[2] or ""] if found else 0
    if number == 0:
        raise UsageError(f"--{name.replace('_', '-')} takes {wanted}, and more than 0, not {text!r}")
    return number


def _age_text(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{max(int(seconds), 0)}s"


def _size_text(size_bytes: int) -> str:
    for unit in ("G", "M", "K"):
        if size_bytes >= _BYTES[unit]:
            return f"{size_bytes / _BYTES[unit]:.1f} {unit}iB"
    return f"{size_bytes} B"


# Open questions of live sessions.

_WHO = {
    "client": "the client that has the session",
    "command": "a command",
    "chat": "a chat",
    "acp": "an editor",
    "view": "the local page",
}


def approvals(namespace: argparse.Namespace) -> int:
    """List the open questions; exit 1 if a live session does not report its questions."""
    state_dir, problems = state_dir_of(namespace), list[str]()
    found = questions.open_questions(state_dir, problems.append)
    _report_problems(problems)
    answer_in(namespace.output, found, map(_question, found) if found else f"no open questions under {state_dir}\n")
    return exit_codes.FAILED if problems else exit_codes.COMPLETED


def approve(namespace: argparse.Namespace) -> int:
    """Approve an open question."""
    return _decide(namespace, {"decision": "approved", "scope": namespace.scope})


def deny(namespace: argparse.Namespace) -> int:
    """Deny an open question."""
    reason = {} if namespace.reason is None else {"reason": namespace.reason.encode("utf-8", "replace").decode()}
    return _decide(namespace, {"decision": "denied", **reason})


def _decide(namespace: argparse.Namespace, given: Mapping[str, Any]) -> int:
    state_dir, approval_id, problems = state_dir_of(namespace), namespace.approval_id, list[str]()
    outcome = questions.answer(state_dir, {"approvalId": approval_id, **given}, problems.append)
    _report_problems(problems)
    shown = escape(approval_id, keep="")
    if outcome is None and problems:
        return exit_codes.FAILED
    if outcome is None:
        notice(f"error: no live session under {state_dir} asks {shown}: `agent-host approvals` lists what is open")
    elif outcome["status"] == "delivered":
        answer(f"{given['decision']} {shown}\n")
        return exit_codes.COMPLETED
    elif outcome["status"] == "form":
        notice(f"error: {shown} is a form of an MCP server, which only the client that has the session can answer")
    else:
        by = outcome.get("answeredBy")
        who = "it timed out" if by is None else f"by {_WHO.get(by, one_line(str(by)))}"
        notice(f"error: {shown} is {one_line(str(outcome['decision']))} already: {who}")
    return exit_codes.FAILED


def _question(row: Mapping[str, Any]) -> str:
    """One question as lines for a person; the texts of `approval_requested` contain no terminal control sequences."""
    kind = " (a form: its client answers it)" if row.get("isQuestion") else ""
    head = f"{row['approvalId']}  {row['riskLevel']}  {row['title']}: {row['actionSummary']}{kind}"
    return f"{escape(head, keep='')}\n  session {row['sessionId']}, task {escape(str(row['taskId']), keep='')}\n"


def _report_problems(problems: list[str]) -> None:
    """Name the sessions that did not answer."""
    for line in problems:
        notice(f"error: {one_line(line)}")


# `agent-host show` and `report`.

_FOLDED_LINES = 6
_FOLDED_CHARS = 600
_ARGUMENT_BYTES = 300


def show(namespace: argparse.Namespace) -> int:
    """`agent-host show`: a session's prompts, actions and result; exit 2 for a step that it does not have. Raises
    SessionNotFound."""
    if namespace.step is not None and (namespace.html is not None or namespace.markdown):
        raise UsageError("--step is for text and JSON: a page and Markdown have all steps")
    if namespace.full and namespace.html is None:
        raise UsageError("--full goes with --html FILE")
    state_dir = state_dir_of(namespace)
    session_id = session_id_of(state_dir, namespace.session_id)
    record = stored_sessions(state_dir).record(session_id)
    transcript = record.transcript()
    if namespace.html is not None:
        page = import_view().session.session_page
        return write_page(namespace.html, lambda: page(transcript, state_dir=state_dir, full=namespace.full))
    if namespace.markdown:
        answer(session_markdown(transcript, option=state_option(state_dir)))
        return exit_codes.COMPLETED
    items, turns = transcript.items, transcript.steps
    if namespace.step is not None:
        items = [item for item in items if item.get("step") == namespace.step]
        if not items:
            raise UsageError(f"--step {namespace.step}: session {session_id} has no such step")
    if namespace.output == "json":
        shown, is_whole = {item["stepId"] for item in items if "step" in item}, namespace.step is None
        row = {
            **record.row.to_wire(),
            **({} if transcript.sandbox is None else {"sandbox": transcript.sandbox}),
            "tasks": [record.whole_task(task_id) for task_id in record.task_ids],
            "steps": [step for step in turns if step["stepId"] in shown],
            "items": items,
            "messages": [one for one in record.conversation if is_whole or one.get("stepId") in shown],
            "waits": [wait.to_wire() for wait in transcript.waits],
            "doubts": [doubt.to_wire() for doubt in transcript.doubts],
        }
        answer(json_text.dumps(row, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        text = _text(items, {step["stepId"]: step for step in turns}, whole=namespace.step is not None)
        answer("".join([*_head(record.row, transcript.sandbox), *text]))
    return exit_codes.COMPLETED


def _head(session: StoredSession, sandbox: Mapping[str, Any] | None) -> Iterator[str]:
    status = f"{session.description}{', resumable' if session.resumable else ''}"
    in_use = f", in use by process {session.pid}" if session.pid else ""
    tokens = "" if session.total_tokens is None else f", {session.total_tokens} tokens"
    yield f"{session.session_id}  {status}{in_use}, {session.step_count} steps{tokens}\n"
    yield f"workspace: {escape(session.workspace, keep='')}\n"
    if session.usage is not None:
        yield f"tokens: {tokens_in_words(session.usage)}\n"
    if sandbox is not None:
        yield sandbox_in_words(sandbox)


def _text(items: list[Item], turns: Mapping[str, dict[str, Any]], *, whole: bool) -> Iterator[str]:
    for step, of_step in groupby(items, key=lambda item: item.get("step")):
        shown = list(of_step)
        yield "\n" if step is None else f"\nstep {step}\n"
        turn = None if step is None else turns.get(shown[0]["stepId"])
        if turn is not None:
            yield f"  {one_line(turn['model'])}: {tokens_in_words(turn)}\n"
        for item in shown:
            yield from _item(item, whole=whole)


def _item(item: Item, *, whole: bool) -> Iterator[str]:
    if item["kind"] == "mark":
        details = "".join(
            f": {escape(str(item[name]), keep='')}" for name in ("reason", "message", "text") if item.get(name)
        )
        level = f", commands in the {item['sandbox']['level']} sandbox" if "sandbox" in item else ""
        yield f"-- {item['timestamp']} {MARK_WORDS.get(item['mark'], item['mark'])}{level}{details}\n"
        if item.get("summary"):
            yield from _block("   the model's notes: ", item["summary"], whole=whole, indent="   ")
    elif item["kind"] == "message":
        who = "user" if item["role"] == "user" else "model"
        yield from _block(f"{who}: ", item["text"] or "(nothing)", whole=whole or item["role"] == "user", indent="  ")
    else:
        yield from _call(item, whole=whole)


def _call(item: Item, *, whole: bool) -> Iterator[str]:
    given = item.get("editedArguments", item["arguments"])
    edits = list(_edits(given))
    arguments = json_text.dumps({**given, "edits": f"{len(edits)}, below"} if edits else given).decode()
    shown = escape(arguments, keep="") if whole else one_line(arguments, _ARGUMENT_BYTES)
    outcome = item["status"] + (f" {item['code']}" if "code" in item else "")
    outcome = f"exit code {item['exitCode']}" if item.get("exitCode") else outcome
    yield f"  {one_line(item['toolName'])} {shown} — {outcome}\n"
    if "decision" in item:
        risk = f", risk {item['riskLevel']}" if "riskLevel" in item else ""
        yield f"    policy: {item['decision']} by {one_line(item.get('rule', ''))}{risk}\n"
    approval = item.get("approval")
    if approval is not None:
        edited = ", arguments edited" if approval.get("edited") or "editedArguments" in item else ""
        edited += f", by {one_line(approval['answeredBy'])}" if "answeredBy" in approval else ""
        yield f"    approval: {approval['decision']} ({approval['scope']}{edited}): {one_line(approval['reason'])}\n"
    grant = item.get("editedArguments", item["arguments"]).get("sandboxGrant")
    if isinstance(grant, dict):
        yield f"    asked of the sandbox: {one_line(json_text.dumps(grant).decode())}\n"
    yield from (f"    sandbox: {one_line(denial)}\n" for denial in item.get("denials", ()))
    for lines in edits:
        yield from _block("    ", "\n".join(lines), whole=whole, indent="    ")
    if item.get("output"):
        yield from _block("    ", item["output"], whole=whole, indent="    ")


def _edits(arguments: Any) -> Iterator[list[str]]:
    """The lines of each text replacement that a call requests, as in a diff."""
    rows = arguments.get("edits") if isinstance(arguments, dict) else None
    for row in rows if isinstance(rows, list) else ():
        old, new = (row.get("oldText"), row.get("newText")) if isinstance(row, dict) else (None, None)
        if isinstance(old, str) and isinstance(new, str):
            yield list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]


def _block(head: str, text: str, *, whole: bool, indent: str) -> Iterator[str]:
    """Text after `head`, with further lines indented; cut to some lines unless `whole`."""
    lines = escape(text).rstrip("\n").split("\n")
    if not whole:
        cut = [line if len(line) <= _FOLDED_CHARS else line[:_FOLDED_CHARS] + "…" for line in lines[:_FOLDED_LINES]]
        omitted = len(lines) - len(cut)
        lines = [*cut, f"[… {omitted} more lines; --step N shows all]"] if omitted else cut
    yield f"{head}{lines[0]}\n"
    yield from (f"{indent}{line}\n" for line in lines[1:])


def report(namespace: argparse.Namespace) -> int:
    """`agent-host report`: many sessions as one page, and their own pages beside it; exit 1 if a page could not be
    written. Raises UsageError, SessionNotFound."""
    state_dir = state_dir_of(namespace)
    if bool(namespace.sessions) == bool(namespace.all):
        raise UsageError("report needs the ids of sessions, or --all for all of them")
    rows = stored_sessions(state_dir).all()
    if not namespace.all:
        wanted = list(dict.fromkeys(session_id_of(state_dir, one) for one in namespace.sessions))
        found = {row.session_id: row for row in rows}
        missing = next((one for one in wanted if one not in found), None)
        if missing is not None:
            raise SessionNotFound(f"there is no session {missing} under {state_dir}; `agent-host sessions` lists all")
        rows = [found[one] for one in wanted]
    view = import_view()
    folder = f"{os.path.splitext(anchor(namespace.html))[0]}-sessions" if namespace.with_sessions else None
    failed = 0 if folder is None else _write_sessions(state_dir, rows, folder)
    name = None if folder is None else os.path.basename(folder)
    written = write_page(namespace.html, lambda: view.sessions_page(rows, state_dir=state_dir, folder=name))
    return exit_codes.FAILED if failed else written


def _write_sessions(state_dir: str, rows: list[StoredSession], folder: str) -> int:
    """Write the page of each session into `folder`; return the number of failures. Raises UsageError for the folder."""
    page, sessions, failed = import_view().session.session_page, stored_sessions(state_dir), 0
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--with-sessions {folder}: {error.strerror}") from error
    for row in rows:
        try:
            transcript = sessions.record(row.session_id).transcript()
            path = os.path.join(folder, f"{row.session_id}.html")
            failed += write_page(path, lambda: page(transcript, state_dir=state_dir), quiet=True) != 0  # noqa: B023  it is called at once
        except AgentHostError as error:
            notice(f"error: session {row.session_id} has no page: {error}")
            failed += 1
    answer(f"wrote {count_noun(len(rows) - failed, 'page')} to {folder}\n")
    return failed
