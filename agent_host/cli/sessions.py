"""`agent-host sessions`: what can be resumed and what has ended; `--prune` is in `cli/prune.py`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.shared import PRUNE_OPTIONS, prunes, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.display_text import count_noun, escape
from agent_host.errors import UsageError
from agent_host.host.options import snapshot_limit
from agent_host.host.records import UNREADABLE, remove_session, stored_sessions
from config.load import ConfigError, load
from state.errors import WriteFailed
from state.prune import PruneLimits, SessionPruner, choose

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

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
    if namespace.output == "json":
        rows = [one.to_wire() for one in found[: namespace.limit or None]]
        answer(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        limit = _ROWS if namespace.limit is None else namespace.limit
        shown, now = found[: limit or None], datetime.now(UTC)
        more = len(found) - len(shown)
        answer("".join(_line(one, now) for one in shown) or f"no sessions under {state_dir}\n")
        if more:
            answer(f"[… {more} more; --limit 0 shows all]\n")
    return 0


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
_AGE = re.compile(r"([0-9]{1,15})([smhdw])")
_COUNT = re.compile(r"([0-9]{1,15})()")
_SIZE = re.compile(r"([0-9]{1,15})(?:([KMG])(?:iB)?)?")


def prune(namespace: argparse.Namespace) -> int:
    """Prune by the limits given, or by those of the configuration when none is.

    Returns 1 when something that should go is still there; each such thing is a line on stderr. Raises UsageError.
    """
    limits = _limits(namespace)
    now = time.time()
    report = _Report(dry_run=bool(namespace.dry_run), now=now)
    try:
        with SessionPruner(state_dir_of(namespace), now=now, snapshot_limit_bytes=snapshot_limit()) as pruner:
            for session_id, size in pruner.remains().items():
                report.clear(session_id, size, pruner)
            rows = pruner.survey()
            for chosen in choose(rows, limits, now=now, resumable=bool(namespace.resumable)):
                report.remove(chosen, pruner)
    except OSError as error:
        report.fail("nothing more is pruned", error)
        rows = []
    report.kept = len(rows) - len(report.pruned)
    report.write(namespace.output)
    return exit_codes.FAILED if report.failures else exit_codes.COMPLETED


class _Report:
    """The work that was done, and how it is shown."""

    def __init__(self, *, dry_run: bool, now: float) -> None:
        self._dry_run = dry_run
        self._now = now
        self._freed = 0
        self.pruned: list[SessionToPrune] = []
        self.kept = 0
        self.failures = 0

    def remove(self, chosen: SessionToPrune, pruner: SessionPruner) -> None:
        """Remove one session. One that came to life meanwhile is kept without a word."""
        stored = chosen.stored
        if self._done(stored.session_id, stored.size_bytes, lambda: pruner.remove(stored)):
            self.pruned.append(chosen)

    def clear(self, session_id: str, size_bytes: int, pruner: SessionPruner) -> None:
        """Finish what an earlier prune, or the end of a session, was killed in."""
        self._done(session_id, size_bytes, lambda: pruner.clear(session_id))

    def fail(self, what: str, error: Exception) -> None:
        """Report something that could not be done."""
        self.failures += 1
        problem = str(error)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename is not None else ""
            problem = f"{where}{error.strerror or error}"
        notice(f"{what}: {problem}")

    def write(self, form: str) -> None:
        """Write the report to stdout."""
        if form == "json":
            answer(orjson.dumps(self._to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            return
        lines = []
        for chosen in self.pruned:
            stored = chosen.stored
            age = _age_text(self._now - stored.last_used)
            lines.append(f"{stored.session_id}  {age}  {_size_text(stored.size_bytes)}  {chosen.reason}\n")
        count = len(self.pruned)
        done = "would be pruned" if self._dry_run else "pruned"
        freed = f"{_size_text(self._freed)} {'to free' if self._dry_run else 'freed'}"
        lines.append(f"{count_noun(count, 'session')} {done}, {freed}, {self.kept} kept\n")
        answer("".join(lines))

    def _to_json(self) -> dict[str, Any]:
        return {
            "pruned": [
                {"sessionId": row.stored.session_id, "reason": row.reason, "sizeBytes": row.stored.size_bytes}
                for row in self.pruned
            ],
            "kept": self.kept,
            "freedBytes": self._freed,
            "dryRun": self._dry_run,
        }

    def _done(self, session_id: str, size_bytes: int, do: Callable[[], bool]) -> bool:
        try:
            done = self._dry_run or do()
        except (OSError, WriteFailed) as error:
            self.fail(f"session {session_id} was not removed", error)
            return False
        if done:
            self._freed += size_bytes
        return done


def _limits(namespace: argparse.Namespace) -> PruneLimits:
    if not namespace.prune:
        given = next(name for name in PRUNE_OPTIONS if getattr(namespace, name) is not None)
        raise UsageError(f"--{given.replace('_', '-')} goes with --prune only")
    age = _parse_limit(
        "--max-age", namespace.max_age, _AGE, _SECONDS, "a whole number with its unit s, m, h, d or w: 30d"
    )
    count = _parse_limit("--max-count", namespace.max_count, _COUNT, _BYTES, "a whole number")
    size = _parse_limit(
        "--max-size", namespace.max_size, _SIZE, _BYTES, "bytes, or a whole number with K, M or G: 2GiB"
    )
    if (age, count, size) == (None, None, None):
        return _load_limits()
    return PruneLimits(age, count, size)


def _parse_limit(
    option: str, text: str | None, form: re.Pattern[str], units: dict[str, int], wanted: str
) -> int | None:
    """The number behind an option. 0 is refused: in the configuration it means no limit, here it would mean all."""
    if text is None:
        return None
    found = form.fullmatch(text)
    number = int(found[1]) * units[found[2] or ""] if found else 0
    if number == 0:
        raise UsageError(f"{option} takes {wanted}, and more than 0, not {text!r}")
    return number


def _load_limits() -> PruneLimits:
    """The limits of the defaults and the user's own file. A workspace has no say in what is kept."""
    try:
        settings = load({}, workspace=None)
    except ConfigError as error:
        raise UsageError(*error.problems) from error
    days = settings.retention.max_age_days
    return PruneLimits(
        days * _DAY_S or None,
        settings.retention.max_sessions or None,
        settings.retention.max_bytes or None,
    )


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
