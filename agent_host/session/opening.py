"""Open a session's store: with its first state, or as the last process left it (AH 3.2, 9.5)."""

from __future__ import annotations

import contextlib
import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.errors import (
    AgentHostError,
    CheckpointUnreadable,
    CheckpointWriteFailed,
    PolicyBundleInvalid,
    SessionHeld,
    SessionNotFound,
    UsageError,
)
from agent_host.http import displayable_url
from agent_host.safe_open import open_regular
from agent_host.session.reports import is_result
from agent_host.thread.messages import Message, encode, message_tokens
from agent_host.thread.prompt import system_prompt
from config.lean_typing import NamedTuple
from config.policies import BUILT_IN
from config.settings import MOCK_PREFIX
from policy import CapabilityName
from policy.paths import covering, normalize, roots
from state import (
    Damaged,
    InvalidSessionId,
    NoSuchSession,
    SessionExists,
    SessionLocked,
    SessionPaths,
    StateError,
    TooLarge,
    UnknownVersion,
    Untrusted,
    WriteFailed,
    translate_errors,
)
from state.checkpoint import Checkpoint, SessionIdentity
from state.disk import LOCAL_DISK, is_quarantined, make_durable_dir
from state.file_store import FileCheckpointStore
from state.keys import prompt_mark, read_result, session_of
from state.records import fold
from state.temporary import session_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from agent_host.ids import Outside
    from agent_host.judging import Environment
    from agent_host.services.session import NewSession, SessionGrant
    from agent_host.session.tasks import TaskRecord
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.facts import OsFamily
    from state.disk import Disk, StartJob
    from state.file_session import FileSession

LOCAL = "local"

# Settings for the output of this process, with secrets, or with current prices: a resume has its own.
_OF_ONE_PROCESS = frozenset({"host.output", "host.verbose", "llm.headers", "models"})
_NOT_OF_THE_RESULT = frozenset(
    {
        "prompt", "workspace", "resumable", "startedAt", "endedAt", "started", "title", "tenantId", "userId",
        "totalTokens", "sessionUsage",
    }
)  # fmt: skip


class ClientServer(NamedTuple):
    """A stdio MCP server that a client names for its session: a program, its arguments, and variables of its
    environment."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


class ResolvedOptions(NamedTuple):
    """Options that a session is started with: those of a client, then the configuration, and for a resume the recorded
    ones. Paths are absolute.

    `flags` are the settings that the client gave; a resume takes them over from the run. `session_id` is the session to
    resume, or the id requested for a new one. `approve_all` and `approvals` answer approval requests in advance;
    `replays` are the ids of denied calls that a resume runs. `max_steps` is the client's limit of steps, possibly
    tightened by the workspace. `sandbox_named`: this client, not the record, chose the sandbox of commands. With
    `ended_too` an ended session is resumed as well, for its next task."""

    settings: Settings
    flags: Mapping[str, Any]
    workspace: str
    state_dir: str
    session_id: str | None
    approvals: frozenset[str] = frozenset()
    approve_all: bool = False
    replays: frozenset[str] = frozenset()
    max_steps: int | None = None
    sandbox_named: bool = False
    ended_too: bool = False

    def new(self, workspace: str | None = None) -> ResolvedOptions:  # noqa: ARG002 the workspace of the options counts
        """Return these options: a process with one session needs no other source (`OptionsSource`)."""
        return self

    def resolve_resume(self, session_id: str, *, ended_too: bool = False) -> ResolvedOptions:  # noqa: ARG002  as above
        """See `new`."""
        return self


class PolicySource(NamedTuple):
    """The source of a session's policy: the name of a built-in or a file, and the sha256, in hex, of its content; the
    name is None for a bundle of the Session Service."""

    name: str | None
    digest: str

    def is_same(self, other: PolicySource) -> bool:
        """True if both are the same policy: a built-in by its name, in any version, anything else by its content."""
        return self.digest == other.digest or (self.name == other.name and self.name in BUILT_IN)


class OptionsSource(Protocol):
    """The source of the options of each session that a process opens. Raises UsageError for invalid options."""

    def new(self, workspace: str | None = None) -> ResolvedOptions:
        """Return options for a new session in `workspace`, else in the options' own."""

    def resolve_resume(self, session_id: str, *, ended_too: bool = False) -> ResolvedOptions:
        """Return options for a session to resume, with `ended_too` also an ended one. Raises SessionNotFound,
        CheckpointUnreadable."""


@contextlib.contextmanager
def state_errors_translated() -> Iterator[None]:
    """Translate errors of the state package to errors of the host; the only place that does so."""
    try:
        yield
    except SessionLocked as error:
        raise SessionHeld(f"{error}: wait for it or end it", pid=error.pid) from error
    except Damaged as error:
        raise CheckpointUnreadable(_describe_damage(error)) from error
    except StateError as error:
        for one, kind, then in _TRANSLATED:
            if isinstance(error, one):
                raise kind(f"{error}{then}") from error
        raise


_TRANSLATED: Final[tuple[tuple[type[StateError], type[AgentHostError], str], ...]] = (
    (NoSuchSession, SessionNotFound, "; `agent-host sessions` lists what there is"),
    (SessionExists, UsageError, ""),
    (InvalidSessionId, UsageError, ""),
    (TooLarge, CheckpointUnreadable, ": set it higher in your configuration to open the session"),
    (Untrusted, CheckpointUnreadable, ""),
    (UnknownVersion, CheckpointUnreadable, "; use the program that wrote it"),
    (WriteFailed, CheckpointWriteFailed, ""),
)
"""Errors of the state package whose messages lack only what to do."""


def _describe_damage(error: Damaged) -> str:
    if error.salvaged:
        return (
            f"the session is damaged: {error}; the damaged files are kept as {error.quarantined}; what was whole "
            "before the damage can be resumed: give the same command again"
        )
    kept = f"; it was moved to {error.quarantined}" if error.quarantined else ""
    return f"the session cannot be recovered: {error}{kept}"


def read_options(
    state_dir: str, session_id: str, *, snapshot_limit_bytes: int, ended_too: bool = False
) -> dict[str, Any]:
    """Read the options that the session was started with: `flags`, `workspace`, `temporary`, `started`; `gateway` is
    the URL that `flags` lack because it had a user or password, without these. The limit comes from the user's
    configuration, because the session's own settings are in the record that is about to be read. With `ended_too` an
    ended session is read too. Raises SessionNotFound, CheckpointUnreadable (then the files were moved aside, if nothing
    in them was intact); changes nothing else on disk."""
    store = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit_bytes)
    with state_errors_translated():
        try:
            return store.load(session_id, salvaged_too=True, ended_too=ended_too).identity.options
        except (Damaged, NoSuchSession):
            # Moves damaged files aside, and completes a clean end that was interrupted.
            store.claim(session_id, ended_too=ended_too).close()
            raise


def refuse_foreign_cursor(state: Checkpoint, cursor: str | None) -> None:
    """Raise UsageError for a `checkpointCursor` that names no completed step of the session (AH 9.5)."""
    if cursor is None or cursor == state.step_cursor:
        return
    named = (message for message in state.thread if cursor.encode("utf-8", "replace") in message)
    open_step = None if state.open_step is None else state.open_step.step_id
    if cursor == open_step or not any(orjson.loads(message).get("stepId") == cursor for message in named):
        last = "none" if state.step_cursor is None else state.step_cursor
        raise UsageError(
            f"checkpointCursor {cursor!r} is not a completed step of session {state.identity.session_id} (the last "
            f"one: {last}): give one, or leave it out"
        )


def refuse_other_owner(identity: SessionIdentity, bundle: PolicyBundle) -> None:
    """Raise PolicyBundleInvalid for a bundle of another tenant or user than the session's, because one user's
    permissions do not apply to another's session. `local`, on either side, is the user of this machine (AH 3.2,
    decision 0026)."""
    pairs = {"tenantId": (bundle.tenant_id, identity.tenant_id), "userId": (bundle.user_id, identity.user_id)}
    problems = [
        f"{name} is {given!r}, and that of session {identity.session_id} is {own!r}"
        for name, (given, own) in pairs.items()
        if given != own and LOCAL not in (given, own)
    ]
    if problems:
        raise PolicyBundleInvalid(f"the policy belongs to another user: {'; '.join(problems)}")


def temporary_of(state_dir: str, identity: SessionIdentity) -> str:
    """Return the temporary directory of a recorded session: a resume from another environment has the same."""
    return session_directory(state_dir, identity.session_id, os.environ, identity.options.get("temporary"))


def claim_store(sessions: FileCheckpointStore, resolved: ResolvedOptions, session_id: str) -> FileSession:
    """Claim the session's store for this process; until `take_over` it stays as the process before left it. Raises
    SessionHeld, SessionNotFound, CheckpointUnreadable, CheckpointWriteFailed."""
    with state_errors_translated():
        return sessions.claim(session_id, ended_too=resolved.ended_too)


def prepare_state_dir(state_dir: str, disk: Disk) -> None:
    """Make the state directory of a new session; only this function creates one. Raises UsageError."""
    try:
        with translate_errors("preparing the state directory"):
            make_durable_dir(disk, state_dir, within=state_dir)
    except WriteFailed as error:
        raise UsageError(f"the state directory {state_dir} cannot be used: {error}") from error


class Beginning(NamedTuple):
    """The data of a new session. `temporary` is its temporary directory; `started` describes its start, in addition to
    the command line; `task` is its first task, if there is one already: then the session is recorded together with it,
    or not at all."""

    bundle: PolicyBundle
    environment: Environment
    count: Callable[[str], int]
    temporary: str
    started: Mapping[str, Any] = MappingProxyType({})
    task: TaskRecord | None = None


def create_store(
    sessions: FileCheckpointStore,
    resolved: ResolvedOptions,
    outside: Outside,
    beginning: Beginning,
    grant: SessionGrant,
    new: NewSession,
) -> FileSession:
    """Create the store of the session that `grant` allows. Approvals on the command line are not kept: they apply to
    this process only. Raises SessionHeld, UsageError, CheckpointUnreadable."""
    gateway = unrecorded_gateway(resolved.flags)
    options = {
        "flags": _flags_to_keep(resolved.flags),
        "workspace": resolved.workspace,
        "temporary": beginning.temporary,
        "started": dict(beginning.started),
        **({} if gateway is None else {"gateway": gateway}),
    }
    identity = SessionIdentity(grant.session_id, grant.workspace_id, new.tenant_id, new.user_id, options)
    environment, bundle = beginning.environment, beginning.bundle
    wanted = resolved.settings.host.project_instructions
    text = system_prompt(
        workspace=environment.workspace,
        os_family=environment.os_family,
        shell=environment.shell,
        bundle=bundle,
        project=project_instructions(environment.workspace, bundle, environment.os_family) if wanted else (),
        temporary=beginning.temporary,
    )
    head = Message("system", text, message_tokens(beginning.count, text))
    first = encode(head, outside, session_id=grant.session_id)
    state = Checkpoint(identity, policy_bundle_version=bundle.policy_bundle_version, thread=[first])
    if beginning.task is not None:
        fold(state, beginning.task.record)
    with state_errors_translated():
        try:
            _clear_unstarted(sessions, grant.session_id)
            return sessions.create(grant.session_id, state)
        except WriteFailed as error:  # nothing was started, so there is nothing to resume
            raise UsageError(f"the state directory {resolved.state_dir} cannot be used: {error}") from error


def sessions_of(
    resolved: ResolvedOptions, disk: Disk, now: Callable[[], datetime], start_job: StartJob
) -> FileCheckpointStore:
    """Return the store of the sessions in the state directory, on `disk`."""
    settings = resolved.settings
    return FileCheckpointStore(
        resolved.state_dir,
        disk,
        now=now,
        start_job=start_job,
        blob_limit_bytes=settings.host.max_stored_bytes,
        snapshot_limit_bytes=settings.host.max_snapshot_bytes,
        archives=settings.retention.keep_file_versions,
    )


def _clear_unstarted(sessions: FileCheckpointStore, session_id: str) -> None:
    """Remove a session that died before its task was recorded: it is empty, and would keep its id in use."""
    if not sessions.has(session_id):
        return
    with contextlib.suppress(NoSuchSession, Damaged):  # `create` reports the problem
        if sessions.load(session_id).task is not None:
            return
        found = sessions.open(session_id)
        if found.state.task is None:  # checked again, now that no other process can start it
            found.delete()
        else:
            found.close()


def _flags_to_keep(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that a resume takes over. Headers, and a gateway URL with a password, are secrets and are not
    kept."""
    kept = {key: value for key, value in flags.items() if key not in _OF_ONE_PROCESS}
    if unrecorded_gateway(flags) is not None:
        del kept["llm.gateway"]
    return kept


def unrecorded_gateway(flags: Mapping[str, Any]) -> str | None:
    """Return the gateway's URL in `flags` without its user and password if it has any; it is not recorded with them."""
    url = flags.get("llm.gateway", "")
    shown = displayable_url(url)
    return None if "@" not in url or url.startswith(MOCK_PREFIX) or shown == url.rstrip("/") else shown


# A project's instructions for agents: AGENTS.md, or CLAUDE.md if there is no AGENTS.md, from the repository's root down
# to the workspace.
#
# These files are untrusted, like any other file of the project: a session reads them only if File.Read allows them,
# follows no link, and shows them to the model as data.

NAMES: Final = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES: Final = 32 * 1024
"""Limit for all files together. The nearest to the workspace count most, so the files above it are cut first."""
_CONTROLS: Final = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"


class ProjectFile(NamedTuple):
    """One file: its path, its text, and whether the text was cut."""

    path: str
    text: str
    is_cut: bool = False


def project_instructions(workspace: str, bundle: PolicyBundle, os_family: OsFamily) -> list[ProjectFile]:
    """Read the files for a session in `workspace` (a real path), outermost first; unreadable files are left out."""
    found: list[ProjectFile] = []
    room = MAX_BYTES
    for folder in _folders(workspace):
        path = next((path for path in (os.path.join(folder, name) for name in NAMES) if os.path.lexists(path)), None)
        if path is None or room == 0 or not _may_be_read(path, bundle, os_family):
            continue
        data = _content(path, room)
        if data is not None:
            found.append(ProjectFile(path, _displayable(data[:room]), is_cut=len(data) > room))
            room -= min(len(data), room)
    return found[::-1]


def _folders(workspace: str) -> Iterator[str]:
    """Return the workspace and the folders above it, up to the root of its repository; only the workspace if it is in
    none."""
    above, folder = [workspace], workspace
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder or len(above) == 32:
            return iter([workspace])
        above.append(parent)
        folder = parent
    return iter(above)


def _may_be_read(path: str, bundle: PolicyBundle, os_family: OsFamily) -> bool:
    entry = bundle.capability(CapabilityName.FILE_READ)
    if entry is None or entry.requires_approval:
        return False
    place = normalize(path, os_family)
    blocked = roots(entry.blocked_paths or (), os_family, "wide")
    if covering(place, blocked, os_family, "wide") is not None:
        return False
    if entry.allowed_paths is None:
        return True
    return covering(place, roots(entry.allowed_paths, os_family, "narrow"), os_family, "narrow") is not None


def _content(path: str, room: int) -> bytes | None:
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read(room + 1)
    except OSError:
        return None


def _displayable(data: bytes) -> str:
    """Return the text without control characters of terminals and without characters that change the direction of
    text."""
    return re.sub(_CONTROLS, "", data.decode("utf-8-sig", "replace").replace("\r\n", "\n")).strip()


class EarlierStart(NamedTuple):
    """A session that was started under an id. `started` comes from its first record; `result` is its result object if
    it has ended, and None if it can be continued."""

    session_id: str
    started: Mapping[str, Any]
    result: dict[str, Any] | None = None


def find_earlier_start(state_dir: str, key: str, *, snapshot_limit_bytes: int) -> EarlierStart | None:
    """Find the session that was started under `key`; None if there is none. A snapshot above the limit is not read.
    Changes nothing. Raises UsageError for an invalid key and for a session that was removed before its end,
    CheckpointUnreadable for a damaged session or result, because its effects are not known well enough to continue it
    automatically."""
    with state_errors_translated():
        session_id = session_of(state_dir, key)
        try:
            state = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit_bytes).load(session_id)
        except NoSuchSession:
            state = None
        except Damaged as error:
            raise CheckpointUnreadable(_damage(session_id, str(error))) from error
    if state is not None and state.salvaged is not None:
        raise CheckpointUnreadable(_damage(session_id, state.salvaged))
    if state is not None and state.task is not None:
        return EarlierStart(session_id, state.identity.options.get("started", {}))
    try:
        kept = read_result(state_dir, session_id)
    except Damaged as error:
        raise CheckpointUnreadable(_result_damage(session_id, str(error))) from error
    if kept is not None:
        if "status" not in kept:
            raise UsageError(
                f"session {key} was removed before it had ended, or with a result that could not be read: choose "
                "another id"
            )
        if not is_result(kept):
            raise CheckpointUnreadable(_result_damage(session_id, "its kept result has another shape"))
        result = {name: value for name, value in kept.items() if name not in _NOT_OF_THE_RESULT}
        return EarlierStart(session_id, kept.get("started", {}), result)
    if is_quarantined(LOCAL_DISK, SessionPaths(state_dir, session_id)):
        raise CheckpointUnreadable(_damage(session_id, "only damaged files of it are left"))
    return None


def start_record(state_dir: str, key: str, prompt: str) -> dict[str, str]:
    """Return the entry in the first record of a session that `refuse_another` checks."""
    return {"key": key, "promptMark": prompt_mark(state_dir, prompt)}


def refuse_another(state_dir: str, key: str, started: Mapping[str, Any], *, prompt: str, policy: PolicySource) -> None:
    """Raise UsageError if `prompt` or `policy` are not those that the session was started with."""
    if "promptMark" not in started:
        raise UsageError(f"session {key} was not started with --session-id: `agent-host resume {key}` continues it")
    if started["promptMark"] != prompt_mark(state_dir, prompt):
        raise UsageError(f"session {key} was started with another prompt: choose another id, or give the same prompt")
    name = started.get("policy")
    if name is not None and not policy.is_same(PolicySource(name, started.get("policyHash", ""))):
        raise UsageError(
            f"session {key} was started under another policy ({name}): choose another id, give the same policy, or "
            f"take the new one with `agent-host resume {key} --policy ...`"
        )


def _damage(session_id: str, why: str) -> str:
    return (
        f"session {session_id} is damaged: {why}; --or-resume does not continue it: look at what it did, then "
        f"`agent-host resume {session_id}` or choose another id"
    )


def _result_damage(session_id: str, why: str) -> str:
    return f"session {session_id} is damaged: {why}; it may have had its effects: look at them, then choose another id"
