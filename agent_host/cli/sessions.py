"""Sessions of a state directory: `agent-host sessions` lists, removes and prunes them; `approvals`, `approve` and
`deny` are for the open questions of those that live."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_host.cli import exit_codes
from agent_host.cli.shared import PRUNE_OPTIONS, answer_in, prunes, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.display_text import count_noun, escape, one_line
from agent_host.errors import UsageError
from agent_host.host.options import snapshot_limit
from agent_host.host.records import UNREADABLE, remove_session, stored_sessions
from agent_host.rpc import questions
from config.load import ConfigError, load
from state.errors import WriteFailed
from state.prune import PruneLimits, SessionPruner, choose

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.host.records import StoredSession
    from state.prune import SessionToPrune

_ROWS = 20


def sessions(namespace: argparse.Namespace) -> int:
    """`agent-host sessions`, newest first; `sessions rm ID` removes one."""
    if namespace.verb is not None:
        return _remove(namespace)
    if prunes(namespace):
        return prune(namespace)
    state_dir = state_dir_of(namespace)
    found = stored_sessions(state_dir).all(search=namespace.search)
    limit = _ROWS if namespace.limit is None and namespace.output == "text" else namespace.limit
    shown = found[: limit or None]
    answer_in(namespace.output, [one.to_wire() for one in shown], _lines(shown, len(found), state_dir))
    return exit_codes.COMPLETED


def _lines(shown: list[StoredSession], count: int, state_dir: str) -> Iterator[str]:
    now = datetime.now(UTC)
    yield from (_line(one, now) for one in shown)
    if not shown:
        yield f"no sessions under {state_dir}\n"
    if count > len(shown):
        yield f"[… {count - len(shown)} more; --limit 0 shows all]\n"


def _remove(namespace: argparse.Namespace) -> int:
    if namespace.session_id is None:
        raise UsageError("sessions rm needs the whole id of a session: sessions rm ID")
    remove_session(state_dir_of(namespace), namespace.session_id, resumable=bool(namespace.resumable))
    answer(f"removed {namespace.session_id}\n")
    return exit_codes.COMPLETED


def _line(one: StoredSession, now: datetime) -> str:
    """One row of the list for a person."""
    held = f" (held by process {one.pid})" if one.pid else ""
    held += " (resumable)" if one.resumable else ""
    title = escape(one.prompt if one.status == UNREADABLE else one.title, keep="")
    tokens = "" if one.total_tokens is None else f", {one.total_tokens:,} tokens"
    did = f"{count_noun(one.step_count, 'step')}{tokens}"
    place = escape(one.workspace, keep="")
    return f"{one.session_id}  {_ago(one.updated_at, now)}  {one.description}{held}  {did}  {place}  {title}\n"


def _ago(updated_at: str, now: datetime) -> str:
    """The age of a moment in RFC 3339; the text itself where it is none."""
    try:
        moment = datetime.fromisoformat(updated_at)
    except ValueError:
        return escape(updated_at, keep="")
    return f"{_age_text((now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).total_seconds())} ago"


# `agent-host sessions --prune`: removes what is over the limits and says so (SK 6/7).

_DAY_S = 24 * 60 * 60
_SECONDS = {"s": 1, "m": 60, "h": 60 * 60, "d": _DAY_S, "w": 7 * _DAY_S}
_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_FORMS = (
    ("max_age", r"([0-9]{1,15})([smhdw])", _SECONDS, "a whole number with its unit s, m, h, d or w: 30d"),
    ("max_count", r"([0-9]{1,15})()", _BYTES, "a whole number"),
    ("max_size", r"([0-9]{1,15})(?:([KMG])(?:iB)?)?", _BYTES, "bytes, or a whole number with K, M or G: 2GiB"),
)
"""The limits of `--prune`: option, form, units, and what it takes in words."""


def prune(namespace: argparse.Namespace) -> int:
    """Prune by the limits given, or by those of the configuration when none is.

    Returns 1 when something that should go is still there; each such thing is a line on stderr. Raises UsageError.
    """
    limits, now, kept = _limits(namespace), time.time(), 0
    report = _Report(dry_run=bool(namespace.dry_run))
    try:
        with SessionPruner(state_dir_of(namespace), now=now, snapshot_limit_bytes=snapshot_limit()) as pruner:
            for session_id, size in pruner.remains().items():  # what an earlier prune, or an end, was killed in
                report.remove(session_id, size, lambda: pruner.clear(session_id))  # noqa: B023  it is called at once
            rows = pruner.survey()
            for chosen in choose(rows, limits, now=now, resumable=bool(namespace.resumable)):
                stored = chosen.stored  # one that came to life meanwhile is kept without a word
                if report.remove(stored.session_id, stored.size_bytes, lambda: pruner.remove(stored)):  # noqa: B023
                    report.pruned.append(chosen)
            kept = len(rows) - len(report.pruned)
    except OSError as error:
        report.fail("nothing more is pruned", error)
    answer_in(namespace.output, report.to_wire(kept), report.lines(kept, now))
    return exit_codes.FAILED if report.failures else exit_codes.COMPLETED


class _Report:
    """The work that was done, and how it is shown."""

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._freed = 0
        self.pruned: list[SessionToPrune] = []
        self.failures = 0

    def remove(self, session_id: str, size_bytes: int, do: Callable[[], bool]) -> bool:
        """Have `do` remove a session; True if it is gone."""
        try:
            done = self._dry_run or do()
        except (OSError, WriteFailed) as error:
            self.fail(f"session {session_id} was not removed", error)
            return False
        self._freed += size_bytes if done else 0
        return done

    def fail(self, what: str, error: Exception) -> None:
        """Report something that could not be done."""
        self.failures += 1
        problem = str(error)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename is not None else ""
            problem = f"{where}{error.strerror or error}"
        notice(f"{what}: {problem}")

    def lines(self, kept: int, now: float) -> Iterator[str]:
        """The report for a person."""
        for chosen in self.pruned:
            stored = chosen.stored
            age = _age_text(now - stored.last_used)
            yield f"{stored.session_id}  {age}  {_size_text(stored.size_bytes)}  {chosen.reason}\n"
        done = "would be pruned" if self._dry_run else "pruned"
        freed = f"{_size_text(self._freed)} {'to free' if self._dry_run else 'freed'}"
        yield f"{count_noun(len(self.pruned), 'session')} {done}, {freed}, {kept} kept\n"

    def to_wire(self, kept: int) -> dict[str, Any]:
        """The report as JSON."""
        pruned = [
            {"sessionId": row.stored.session_id, "reason": row.reason, "sizeBytes": row.stored.size_bytes}
            for row in self.pruned
        ]
        return {"pruned": pruned, "kept": kept, "freedBytes": self._freed, "dryRun": self._dry_run}


def _limits(namespace: argparse.Namespace) -> PruneLimits:
    """The limits of the options; without one those of the defaults and the user's own file: a workspace has no say in
    what is kept."""
    if not namespace.prune:
        given = next(name for name in PRUNE_OPTIONS if getattr(namespace, name) is not None)
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
    """The number of an option. 0 is refused: in the configuration it means no limit, here it would mean all."""
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
    """List the open questions; exit 1 where a live session does not say its own."""
    state_dir, problems = state_dir_of(namespace), _Problems()
    found = questions.open_questions(state_dir, problems.add)
    answer_in(namespace.output, found, map(_question, found) if found else f"no open questions under {state_dir}\n")
    return exit_codes.FAILED if problems.any else exit_codes.COMPLETED


def approve(namespace: argparse.Namespace) -> int:
    """Approve an open question."""
    return _decide(namespace, {"decision": "approved", "scope": namespace.scope})


def deny(namespace: argparse.Namespace) -> int:
    """Deny an open question."""
    reason = {} if namespace.reason is None else {"reason": namespace.reason.encode("utf-8", "replace").decode()}
    return _decide(namespace, {"decision": "denied", **reason})


def _decide(namespace: argparse.Namespace, given: Mapping[str, Any]) -> int:
    state_dir, approval_id, problems = state_dir_of(namespace), namespace.approval_id, _Problems()
    told = questions.answer(state_dir, {"approvalId": approval_id, **given}, problems.add)
    shown = escape(approval_id, keep="")
    if told is None and problems.any:
        return exit_codes.FAILED
    if told is None:
        notice(f"error: no live session under {state_dir} asks {shown}: `agent-host approvals` lists what is open")
    elif told["status"] == "delivered":
        answer(f"{given['decision']} {shown}\n")
        return exit_codes.COMPLETED
    elif told["status"] == "form":
        notice(f"error: {shown} is a form of an MCP server, which only the client that has the session can answer")
    else:
        by = told.get("answeredBy")
        who = "nobody answered it in time" if by is None else f"by {_WHO.get(by, one_line(str(by)))}"
        notice(f"error: {shown} is {one_line(str(told['decision']))} already: {who}")
    return exit_codes.FAILED


def _question(row: Mapping[str, Any]) -> str:
    """One question for a person, in lines; the texts of `approval_requested` steer no terminal."""
    kind = " (a form: its client answers it)" if row.get("isQuestion") else ""
    head = f"{row['approvalId']}  {row['riskLevel']}  {row['title']}: {row['actionSummary']}{kind}"
    return f"{escape(head, keep='')}\n  session {row['sessionId']}, task {escape(str(row['taskId']), keep='')}\n"


class _Problems:
    """Sessions that did not answer, each told as it comes."""

    def __init__(self) -> None:
        self.any = False

    def add(self, line: str) -> None:
        """Tell one."""
        self.any = True
        notice(f"error: {one_line(line)}")
