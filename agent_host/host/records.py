"""Records under an id that a user gave."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_host.errors import SandboxWeaker, SessionHeld, SessionNotFound, UsageError
from agent_host.host.backends import Secrets, Tokens
from agent_host.host.environment import level_of, refuse_weaker
from agent_host.host.options import ON_RECORD, model_facts, settings_from, snapshot_limit, state_dir_from, with_provider
from agent_host.ids import MACHINE
from agent_host.services import endpoints
from agent_host.session.opening import LOCAL, find_earlier_start, refuse_another, state_errors_translated
from agent_host.session.reports import MARK_WORDS as MARK_WORDS
from agent_host.session.reports import UNREADABLE as UNREADABLE
from agent_host.session.reports import Owner as Owner
from agent_host.session.reports import StoredSession as StoredSession
from agent_host.session.start import policy_source, rules_on_record
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX
from policy.redaction import Redaction
from state import SessionPaths, StateError
from state.disk import holder
from state.file_store import FileCheckpointStore
from state.keys import redaction_key, session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.session.opening import OptionsSource, ResolvedOptions
    from agent_host.session.patches import WholePatch as WholePatch
    from agent_host.session.stored import StoredSessions
    from agent_host.session.transcript import Item as Item
    from agent_host.session.transcript import Transcript
    from state.checkpoint import Checkpoint

LATEST = "latest"
"""In place of an id: the session that was used last."""
_LISTED = 5


class Unfinished(NamedTuple):
    """A session with a task to continue."""

    session_id: str


def session_under(
    state_dir: str, key: str, same: tuple[OptionsSource, str] | None = None
) -> Unfinished | Result | None:
    """Find the session that a user started under the id `key`: the session, its result if it is over, else None.

    `same`: options and a prompt that have to be those it was started with. Raises UsageError if they are not, for an
    invalid key and for a session that was removed before its end; CheckpointUnreadable for one that is damaged.
    """
    found = find_earlier_start(state_dir, key, snapshot_limit_bytes=snapshot_limit())
    if found is None:
        return None
    if same is not None:
        source, prompt = same
        refuse_another(state_dir, key, found.started, prompt=prompt, policy=policy_source(source.new().settings))
    if found.result is None:
        return Unfinished(found.session_id)
    records = SessionPaths(state_dir, found.session_id).records
    return result_of(found.result, found.result["reason"], records)


def weaker_sandbox(resolved: ResolvedOptions) -> SandboxWeaker | None:
    """The weaker sandbox that the user has to accept before this session is resumed, None if there is none. The resume
    reports unreadable records."""
    limit = resolved.settings.host.max_snapshot_bytes
    if resolved.session_id is None or resolved.sandbox_named:
        return None
    try:
        store = FileCheckpointStore(resolved.state_dir, snapshot_limit_bytes=limit)
        state = store.load(resolved.session_id, ended_too=resolved.ended_too)
    except StateError:
        return None
    try:
        refuse_weaker(resolved, level_of(resolved.settings, resolved.state_dir), state)
    except SandboxWeaker as weaker:
        return weaker
    return None


def stored_sessions(state_dir: str, tokens: Tokens | None = None, *, reads_only: bool = False) -> StoredSessions:
    """The sessions of a state directory; `tokens` are those of this process, by default read from its environment. With
    `reads_only` not even the key of placeholders is made. Raises UsageError for a configuration that cannot be used."""

    def cleaner(state: Checkpoint) -> Callable[[bytes], bytes] | None:
        options = state.identity.options
        rules = rules_on_record(state.policy_bundle_version, options.get("started", {}))
        if rules is None:
            return None
        settings = settings_from(options.get("flags", {}), workspace=None, names=ON_RECORD)
        own = Tokens.read() if tokens is None else tokens
        with contextlib.suppress(UsageError):  # a key or a provider is gone: the others are still redacted
            settings = with_provider(settings, options.get("started", {}))
            own = own.under(settings)
        key = functools.partial(redaction_key, state_dir, makes=not reads_only)
        redaction = Redaction(rules, key=key, detectors=settings.redaction.detectors)
        url = "" if settings.llm.gateway.startswith(MOCK_PREFIX) else settings.llm.gateway
        return Secrets.collect(own, url, settings, redaction, state_dir).scrubber.data

    from agent_host.session.stored import StoredSessions  # imported when records are first read

    return StoredSessions(state_dir, snapshot_limit_bytes=snapshot_limit(), models=model_facts(), cleaner=cleaner)


def state_of_files(state_dir: str, session_id: str) -> tuple[object, ...]:
    """A value that changes when the records of a session do, and when a process takes it or leaves it; cheap enough for
    polling. Raises UsageError for an invalid id."""
    with state_errors_translated():
        paths = SessionPaths(state_dir, session_id)
    found: list[object] = [holder(paths.lock)]
    for path in (paths.events, paths.snapshot, paths.journal, paths.result):
        try:
            status = os.stat(path)
            found.append((status.st_size, status.st_mtime_ns, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def state_of_list(state_dir: str) -> tuple[object, ...]:
    """The same for the list of all sessions: their ids, and the records of the resumable ones."""
    found: list[object] = []
    for folder in (os.path.join(state_dir, "sessions"), os.path.join(state_dir, "checkpoints")):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    lock_holder = holder(entry.path) if entry.name.endswith(".lock") else None
                    found.append((entry.name, status.st_size, status.st_mtime_ns, lock_holder))
    return tuple(found)


def read_transcript(session_id: str, state_dir: str | None = None) -> Transcript:
    """Read the transcript of a recorded session: live, resumable or ended. `session_id` is an id, the start of one, or
    `latest`; `state_dir` defaults to $AGENT_HOST_STATE_DIR, else to the platform's directory. Nothing is written.
    Raises SessionNotFound, CheckpointUnreadable, UsageError."""
    directory = state_dir_from(state_dir)
    return stored_sessions(directory).record(session_id_of(directory, session_id)).transcript()


def own_sessions() -> Owner | None:
    """The owner of sessions that this user's programs start; None if a Session Service determines it."""
    return Owner(LOCAL, LOCAL) if endpoints(os.environ).session is None else None


def session_id_of(state_dir: str, key: str) -> str:
    """The id of the session that was started under `key`, else of the one whose id begins with it, else of the newest
    for `latest`; the key itself if there is none. Raises UsageError for a prefix of several ids,
    CheckpointUnreadable."""
    with state_errors_translated():
        found, paths = session_of(state_dir, key), SessionPaths(state_dir, key)
    if found != key or any(map(os.path.lexists, (*paths.checkpoint_files, paths.records))):
        return found
    newest_first = [one.session_id for one in stored_sessions(state_dir).all()]
    if key == LATEST:
        return newest_first[0] if newest_first else key
    starts = [one for one in newest_first if one.startswith((key, f"sess_{key}"))]
    if len(starts) > 1 and key not in starts:
        listed = ", ".join(starts[:_LISTED]) + (", …" if len(starts) > _LISTED else "")
        raise UsageError(f"{key} is the start of {len(starts)} session ids: {listed}")
    return starts[0] if len(starts) == 1 else key


def remove_session(state_dir: str, session_id: str, *, resumable: bool = False) -> None:
    """Remove an ended session with all its files, by its full id; with `resumable` also one that could be resumed. The
    stub under an id of the user's own stays, so that it is not started again. Raises SessionNotFound, SessionHeld for
    one that a process has, UsageError for one that can be resumed, and for errors of the disk."""
    from state.prune import SessionPruner, Standing

    refused = SessionHeld(f"session {session_id} is in use by a live process: end it first")
    try:
        with state_errors_translated(), SessionPruner(state_dir, now=MACHINE.time()) as pruner:
            row = pruner.look(session_id)
            if row is None:
                raise SessionNotFound(f"there is no session {session_id} under {state_dir}")
            if row.standing is Standing.HELD:
                raise refused
            if row.standing is Standing.FOREIGN:
                raise UsageError(f"session {session_id} is of another version of this program, which can remove it")
            if row.standing is not Standing.ENDED and not resumable:
                raise UsageError(f"session {session_id} can be resumed: --resumable has it removed all the same")
            if not pruner.remove(row):
                raise refused
    except OSError as error:
        raise UsageError(f"session {session_id} was not removed: {error.strerror}") from error


# How a task ended.


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a task. `status` is TASK_COMPLETED, TASK_FAILED, TASK_CANCELLED or SESSION_PAUSED, `reason` a
    documented name if it is not completed, `message` one line about it for a person, `text` the model's last answer.
    `details` is the whole result object of the command line, `records` the folder of the session's records.
    `unfinished`: the task is still open. `resumable`: `resume_task` can continue it, or approve calls that were denied
    because nobody could approve them."""

    session_id: str
    task_id: str
    status: str
    reason: str | None
    text: str
    step_count: int
    resumable: bool
    details: Mapping[str, Any]
    message: str | None = None
    unfinished: bool = False
    records: str = ""

    @property
    def completed(self) -> bool:
        """True if the model reported that it is done."""
        return self.status == "TASK_COMPLETED"


def result_of(
    details: Mapping[str, Any], message: str | None, records: str, *, unfinished: bool = False, resumable: bool = False
) -> Result:
    """The result out of the result object `details` of a session."""
    return Result(
        details["sessionId"],
        details["taskId"],
        details["status"],
        details["reason"],
        details["text"],
        details["stepCount"],
        resumable,
        details,
        message,
        unfinished,
        records,
    )
