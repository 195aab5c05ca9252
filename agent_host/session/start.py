"""Start a session: check its ids and its policy bundle (AH 3.2); and the session of this process."""

from __future__ import annotations

import asyncio
import os
from codecs import BOM_UTF8
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from agent_host.errors import OutOfOrder, SessionHeld, SessionNotFound, SessionNotReady, UsageError
from agent_host.import_isolation import places_in
from agent_host.judging import resolve_places
from agent_host.session.opening import PolicySource
from agent_host.session.reports import Owner
from config import json_text
from config.lean_typing import NamedTuple
from config.load import read_regular_file, user_files
from config.policies import BUILT_IN, digest, is_built_in, names_file, template
from config.shapes import hint_at_path, meant_name
from policy import ANY_SESSION, CapabilityName
from policy.bundle import Narrowing, RedactionRule, narrow
from policy.bundle.builtin import PlaceholderValues, instantiate, kept_step_files, step_files
from state.temporary import session_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime
    from typing import Unpack

    from agent_host.approval.gate import Decision, Delivery
    from agent_host.errors import AgentHostError
    from agent_host.judging import Environment
    from agent_host.services.session import NewSession
    from agent_host.session.lifecycle import LiveSession
    from agent_host.session.opening import ClientServer
    from agent_host.session.patches import FilePatch
    from agent_host.session.reports import StoredSession
    from agent_host.session.stored import SessionRecord, StoredSessions
    from agent_host.session.transcript import Item, Transcript
    from config.settings import Settings
    from policy.bundle import CommandPolicy, PolicyBundle


def load_bundle(
    settings: Settings,
    environment: Environment,
    *,
    session_id: str,
    state_dir: str,
    now: datetime,
    granted: bytes | None = None,
    temporary: str | None = None,
    installed: tuple[str, ...] = (),
    sandboxed: bool = False,
    to_try: bool = False,
) -> PolicyBundle:
    """Load the bundle that the Session Service `granted`, as JSON, else the one that `host.policy` names, a built-in or
    a file, and narrow it by the settings. `temporary` is the session's temporary directory if it is not the usual one;
    `installed` are the names of the Python tools in the configuration. `sandboxed`: commands are sandboxed. With
    `to_try` the bundle's session and expiry are not checked here; they show in the decisions. Raises
    PolicyBundleInvalid with every problem in one message, PolicyExpired, UsageError if there is no such file."""
    servers = [f"{one['name']}/*" for one in settings.mcp.servers if isinstance(one.get("name"), str)]
    tools: Mapping[str, Sequence[str]] = {CapabilityName.MCP_INVOKE: servers, CapabilityName.TOOL_INVOKE: installed}
    places = places_of(environment, state_dir, session_id, tools)
    places = places if temporary is None else places._replace(tmp=temporary)
    if granted is None and policy_name(settings) in BUILT_IN:
        added = _added_rules(settings, settings.policy.allowed_commands)
        bundle = _built_in(settings, places, ANY_SESSION if to_try else session_id, now, sandboxed=sandboxed)
    else:
        from agent_host.session import external_bundles  # imports all the code that reads and validates bundles

        if granted is not None:
            bundle = external_bundles.read_grant(granted, now, session_id=session_id, sandboxed=sandboxed)
        else:
            bundle = external_bundles.read_named(
                settings, _content(settings), places, now, own_files(), sandboxed=sandboxed
            )
            if not to_try:
                external_bundles.refuse_unusable(bundle, external_bundles.named(settings), session_id, now)
        added = _added_rules(settings)
    return resolve_places(narrow(bundle, _narrowing(settings, environment.workspace, added)), environment)


def policy_name(settings: Settings) -> str:
    """Return `host.policy`: a built-in's name or a bundle file. Raises UsageError for a name that is neither."""
    name = settings.host.policy
    if name not in BUILT_IN and not names_file(name):
        meant, file = meant_name(name, BUILT_IN), os.path.join(os.curdir, name)
        raise UsageError(
            f"{settings.name_of('host.policy')} {name!r} is not a built-in: give a bundle file or one of "
            f"{', '.join(BUILT_IN)}; a file's name has a slash in it or ends in .json, as {file!r}"
            f"{'' if meant is None else f'; did you mean {meant}?'}"
        )
    return name


def policy_source(settings: Settings, granted: bytes | None = None) -> PolicySource:
    """Return the source of `load_bundle`'s bundle. Raises UsageError if there is no such file."""
    if granted is not None:
        return PolicySource(None, sha256(granted).hexdigest())
    name = policy_name(settings)
    return PolicySource(name, digest(name) if name in BUILT_IN else sha256(_content(settings)).hexdigest())


def rules_on_record(version: str, started: Mapping[str, Any]) -> Sequence[RedactionRule] | None:
    """Return the redaction rules of a recorded session whose bundle has this `version`; None if the record does not
    lead to them. The rules themselves are not recorded, because a rule may contain the secret that it redacts."""
    redaction = started.get("redaction", {})
    if is_built_in(version) or (redaction.get("bundleVersion"), redaction.get("hasRules")) == (version, False):
        return ()
    name = started.get("policy")
    if name is None or redaction.get("bundleVersion") != version:
        return None
    try:
        content = read_regular_file(name)
    except OSError:
        return None
    if sha256(content).hexdigest() != started.get("policyHash"):
        return None
    rules = json_text.loads(content.removeprefix(BOM_UTF8))["redactionRules"]  # validated when the session started
    return [RedactionRule(one["redactionRuleId"], one["pattern"], "", one.get("replacement")) for one in rules]


SESSION_TO_TRY = "SESSION"
"""Used instead of an id in the name of a directory if there is no session."""


def places_of(
    environment: Environment, state_dir: str, session_id: str = ANY_SESSION, tools: Mapping[str, Sequence[str]] = {}
) -> PlaceholderValues:
    """Return the values of a bundle's placeholders."""
    name = SESSION_TO_TRY if session_id == ANY_SESSION else session_id
    files = step_files(os.environ, environment.os_family)
    return PlaceholderValues(
        workspace=environment.workspace,
        home=environment.home,
        state_dir=os.path.realpath(state_dir),
        os=environment.os_family,
        tmp=session_directory(state_dir, name, os.environ),
        step_files=None if files is None else os.path.realpath(files),
        tools=tools,
    )


def _content(settings: Settings) -> bytes:
    path = settings.host.policy
    try:
        return read_regular_file(path)
    except OSError as error:
        raise UsageError(
            f"{settings.name_of('host.policy')} {path!r}: {error.strerror}; give a bundle file or one of "
            f"{', '.join(BUILT_IN)}{hint_at_path(path)}"
        ) from error


def own_files() -> tuple[str, ...]:
    """Return the real paths of the files that configure this program for its user."""
    return tuple(map(os.path.realpath, user_files(os.environ)))


def files_to_guard(settings: Settings, workspace: str) -> tuple[str, ...]:
    """Return the files that no tool and no command of a session may change, whatever its bundle allows: the bundle
    file, by its name and its real path, files in the workspace that this program runs from (design, invariant 12), and
    the files of a GitHub Actions step that only the host may write."""
    name = settings.host.policy
    bundle = () if not names_file(name) else (os.path.abspath(name), os.path.realpath(name))
    kept = kept_step_files(os.environ, "windows" if os.name == "nt" else "posix")
    return tuple(dict.fromkeys((*bundle, *places_in(workspace), *kept, *map(os.path.realpath, kept))))


def _built_in(
    settings: Settings, places: PlaceholderValues, session_id: str, now: datetime, *, sandboxed: bool
) -> PolicyBundle:
    return instantiate(
        template(settings.host.policy),
        places,
        session_id=session_id,
        now=now,
        models=(settings.llm.model,) if settings.llm.model else (),
        more_models=settings.llm.fallback_models,
        unchanged=own_files(),
        programs=settings.policy.allowed_commands,
        sandboxed=sandboxed,
    )


def _added_rules(settings: Settings, programs: Sequence[str] = ()) -> tuple[CommandPolicy, ...]:
    """Return the rules for commands. Raises UsageError with every problem of the programs, else of the entries for
    commands."""
    if not (programs or settings.policy.command_policies):
        return ()
    from agent_host.session.external_bundles import command_policies, refuse_invalid_programs

    refuse_invalid_programs(programs)
    return command_policies(settings.policy.command_policies)


def _narrowing(settings: Settings, workspace: str, added: tuple[CommandPolicy, ...]) -> Narrowing:
    return Narrowing(
        blocked_paths=tuple(os.path.join(workspace, path) for path in settings.policy.blocked_paths),
        unchanged_paths=files_to_guard(settings, workspace),
        blocked_commands=settings.policy.blocked_commands,
        blocked_domains=settings.policy.blocked_domains,
        command_policies=added,
        max_file_size_bytes=settings.limits.max_file_size_bytes or None,
        max_output_bytes=settings.tools.max_output_bytes,
        max_session_tokens=settings.limits.max_session_tokens or None,
        approval_timeout_s=settings.ceiling("approvals.timeout_s"),
    )


# The session of this process, and the requests that are allowed in each state (AH 3); the desktop app, the terminal and
# CI all use it. One process has one session. Before it is created or resumed, and after its end, requests are rejected.


class Opened(NamedTuple):
    """A session that is ready, with the Session Service's reply."""

    session: LiveSession
    compatibility_status: str
    feature_flags: Mapping[str, bool]


class Opener(Protocol):
    """The part of the composition root that makes sessions. Each method raises AgentHostError if it cannot make one."""

    def use_servers(self, servers: Sequence[ClientServer]) -> None:
        """Set the MCP servers that the client names for the session that is opened next."""

    async def create(self, new: NewSession) -> Opened:
        """Create a session."""

    async def resume(self, session_id: str, *, cursor: str | None) -> Opened:
        """Open the session that a former process left, without running it."""

    async def refresh(self, session: LiveSession, *, cursor: str | None) -> Opened:
        """Request the session's policy bundle again (AH 8.6)."""

    async def set_mode(self, session: LiveSession, changes: Mapping[str, str]) -> dict[str, str]:
        """Change options of the session's mode, and return the resulting ones."""


class SessionHost:
    """At most one `session`, from its creation to its end; None before there is one. `over` is set when there is
    nothing left to do; `failure` is the error if a bug of the program was the reason."""

    def __init__(self, opener: Opener, stored: Callable[[], StoredSessions], remove: Callable[[str], None]) -> None:
        self._opener = opener
        self._remove = remove
        self._stored = stored
        self._opening: asyncio.Task[Opened] | None = None
        self._refreshing = False
        self.session: LiveSession | None = None
        self._ending: asyncio.Task[None] | None = None
        self._changing_mode = asyncio.Lock()
        self.over = asyncio.Event()
        self.failure: BaseException | None = None

    def running_session(self, session_id: str) -> LiveSession:
        """Return the session of that id. Raises SessionNotReady, SessionNotFound."""
        session = self.session
        if session is None:
            raise SessionNotReady("there is no session yet: CreateSession or ResumeSession comes first")
        if session.session_id != session_id:
            raise SessionNotFound(f"this process has session {session.session_id}, not {session_id[:128]!r}")
        if session.has_ended or self._ending is not None or self.over.is_set():
            raise SessionNotReady(f"session {session_id} has ended")
        return session

    async def create(self, new: NewSession, *, servers: Sequence[ClientServer] = ()) -> Opened:
        """Create a session. Raises OutOfOrder if this process has one, and the errors of `Opener.create`."""
        self._refuse_second()
        self._opener.use_servers(servers)
        return await self._open(self._opener.create(new))

    async def resume(self, session_id: str, *, cursor: str | None, servers: Sequence[ClientServer] = ()) -> Opened:
        """Resume the session of a former process, or refresh the policy bundle of this one's. Raises OutOfOrder while a
        task is running, and the errors of `Opener.resume`."""
        session = self.session
        if session is None:
            self._refuse_second()
            self._opener.use_servers(servers)
            return await self._open(self._opener.resume(session_id, cursor=cursor))
        if self.running_session(session_id).tasks.busy:
            raise OutOfOrder(f"session {session_id} is running a task; there is nothing to resume")
        if self._refreshing:
            raise OutOfOrder(f"session {session_id} is just being resumed")
        self._refreshing = True
        try:
            return await self._opener.refresh(session, cursor=cursor)
        finally:
            self._refreshing = False
            if session.has_ended and self._ending is None:  # the Session Service has ended it
                self.over.set()

    async def set_mode(self, session_id: str, changes: Mapping[str, str]) -> dict[str, str]:
        """Change options of the session's mode, one request after the other. Raises the errors of the opener."""
        async with self._changing_mode:
            return await self._opener.set_mode(self.running_session(session_id), changes)

    async def _open(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        """Wait until the session is open. Raises SessionNotReady if a Shutdown came first."""
        self._opening = asyncio.ensure_future(opening)
        try:
            opened = await self._opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise SessionNotReady("the process was shut down before the session was ready") from None
        finally:
            self._opening = None
        self.session = opened.session
        opened.session.on_broken = self._broken
        return opened

    async def list_sessions(self, owner: Owner | None, search: str) -> list[StoredSession]:
        """List the sessions of the state directory, newest first; if this process has a session, only those of its
        owner."""
        return await asyncio.to_thread(self._stored().all, self._owner or owner, search)

    async def transcript(self, session_id: str, owner: Owner | None) -> Transcript:
        """Return the transcript of a session. Raises SessionNotFound."""
        record = await asyncio.to_thread(self._stored().record, session_id, self._owner or owner)
        return await asyncio.to_thread(record.transcript)

    async def items(self, session_id: str, owner: Owner | None, task_id: str) -> list[Item]:
        """Return the items of a session's task. Raises SessionNotFound, UsageError for a task that it does not know."""
        record = await asyncio.to_thread(self._stored().record, session_id, self._owner or owner)
        return await asyncio.to_thread(record.items, task_id)

    async def delete(self, session_id: str, owner: Owner | None) -> None:
        """Remove an ended session with all its data. Raises SessionNotFound for one that does not exist or has another
        owner, SessionHeld for one that a process has, UsageError for one that can be resumed."""
        if self.session is not None and self.session.session_id == session_id and not self.session.has_ended:
            raise SessionHeld(f"session {session_id} is that of this process: Shutdown comes first")
        await asyncio.to_thread(self._stored().record, session_id, self._owner or owner)
        await asyncio.to_thread(self._remove, session_id)

    async def state(self, session_id: str, owner: Owner | None, task_id: str | None = None) -> dict[str, Any]:
        """Return the result of GetSessionState, with a `task_id` for that task, of this process's session or of a
        recorded one of the owner. Raises SessionNotReady, SessionNotFound, UsageError for a task that it does not
        know."""
        try:
            session = self.running_session(session_id)
        except (SessionNotFound, SessionNotReady) as error:
            return (await self._record(session_id, owner, error)).session_state(task_id)
        state = session.state()
        if task_id is None:
            return state
        session.ctx.emitter.flush()
        record = await asyncio.to_thread(self._stored().record, session_id)
        current = state["task"] if state.get("task", {}).get("taskId") == task_id else {}
        return {**state, "task": {**record.task(task_id), **current}}

    async def preview(
        self, session_id: str, owner: Owner | None, task_id: str | None, file_paths: Sequence[str] | None
    ) -> tuple[list[FilePatch], str | None]:
        """Return the changes of a session or one of its tasks, and the reason why they may be incomplete; sessions and
        errors as for `state`."""
        try:
            session = self.running_session(session_id)
        except (SessionNotFound, SessionNotReady) as error:
            record = await self._record(session_id, owner, error)
            return await asyncio.to_thread(record.preview, task_id, file_paths), record.unseen(task_id)
        return await session.preview(task_id, file_paths), session.unseen(task_id)

    async def _record(self, session_id: str, owner: Owner | None, error: AgentHostError) -> SessionRecord:
        """Return the record of a session that this process does not have. Raises `error` if it does not exist or has
        another owner, and for this process's own session while it ends."""
        if self.session is not None and self.session.session_id == session_id:
            raise error
        try:
            return await asyncio.to_thread(self._stored().record, session_id, self._owner or owner)
        except (SessionNotFound, UsageError):  # the latter for an invalid id
            raise error from None

    @property
    def _owner(self) -> Owner | None:
        if self.session is None:
            return None
        identity = self.session.identity
        return Owner(identity.tenant_id, identity.user_id)

    def decide(self, approval_id: str, **answer: Unpack[Decision]) -> Delivery:
        """Answer an approval; see `LiveSession.decide`. Raises SessionNotReady, ValueError."""
        if self.session is None:
            raise SessionNotReady("there is no session yet: CreateSession or ResumeSession comes first")
        if self.session.has_ended or self._ending is not None:
            return "not_found"
        return self.session.decide(approval_id, **answer)

    async def shutdown(self, reason: str) -> str | None:
        """End the session cleanly, if there is one (AH 3.4); return its id, None if there was none."""
        if self._opening is not None:  # a service may keep it waiting for long
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self.session is not None:
            await self._end(self.session.shut_down(reason))
        self.over.set()
        return None if self.session is None else self.session.session_id

    def attend(self) -> None:
        """Restart the approvals' timeouts, because a client is present (again)."""
        if self.session is not None and self.session.pending_approvals is not None:
            self.session.pending_approvals.attend()

    def suspend(self) -> None:
        """Stop the approvals' timeouts, because the client is gone for now: they keep waiting."""
        if self.session is not None and self.session.pending_approvals is not None:
            self.session.pending_approvals.suspend()

    async def detach(self) -> None:
        """Finish the step and leave the session resumable, because the client is gone or the process is asked to
        end."""
        if self.session is not None:
            await self._end(self.session.detach())
        self.over.set()

    async def _end(self, way: Coroutine[Any, Any, None]) -> None:
        """End the session in this `way`, or wait for the end in progress. The end continues if the caller is
        cancelled."""
        await asyncio.shield(self._begin_end(way))

    def _begin_end(self, way: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._ending is not None:
            way.close()
            return self._ending
        self._ending = asyncio.ensure_future(way)
        self._ending.add_done_callback(self._forget)
        return self._ending

    def _forget(self, ending: asyncio.Task[None]) -> None:
        fault = None if ending.cancelled() else ending.exception()
        self.failure = self.failure or fault
        self.over.set()

    def _refuse_second(self) -> None:
        if self.over.is_set():
            raise SessionNotReady("this process is ending")
        if self.session is not None:
            raise OutOfOrder(f"this process has session {self.session.session_id} already; one process has one session")
        if self._opening is not None:
            raise OutOfOrder("a session is just being opened; one process has one session")

    def _broken(self, error: BaseException) -> None:
        """Leave the session, so that observers get the event before the process ends; the record stays."""
        self.failure = error
        if self.session is not None:
            self._begin_end(self.session.detach())
