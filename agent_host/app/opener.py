"""How this process comes to its session (AH 3.2, 9.5): the services asked, the policy checked, all put together."""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

from agent_host import own_packages
from agent_host.app.assembly import (
    Gateway,
    Parts,
    Place,
    Secrets,
    Tokens,
    make_context,
    place_of,
    put_under,
    redaction_of,
    utc_now,
)
from agent_host.app.backends import Backends
from agent_host.app.tools import BUILT_IN
from agent_host.approval.pending import PendingApprovals
from agent_host.errors import AgentHostError, Incompatible, SessionExpired, SessionNotFound, UsageError
from agent_host.events.emitter import Emitter
from agent_host.events.sinks import RunLog, next_event_id
from agent_host.http_basics import TlsContext
from agent_host.llm.urls import checked_url
from agent_host.services.session import say_goodbye
from agent_host.session.approval_reports import ApprovalReports
from agent_host.session.handshake import load_bundle, policy_source, unknown_approvals
from agent_host.session.host import Opened
from agent_host.session.launched import launch_record
from agent_host.session.lifecycle import Session
from agent_host.session.new_task import record_of_task
from agent_host.session.opening import (
    LOCAL,
    MOCK_PREFIX,
    Beginning,
    create_store,
    open_store,
    refuse_other_owner,
    state_errors_translated,
    temporary_of,
)
from agent_host.version import __version__
from state import launch_keys, temporary
from state.errors import WriteFailed
from state.locations import SessionPaths, checked_session_id
from state.temporary import session_directory
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Sink
    from agent_host.services.approval import ApprovalReporter
    from agent_host.services.session import NewSession, SessionGrant, SessionService
    from agent_host.session.new_task import NewTask
    from agent_host.session.opening import Launch
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import SessionIdentity
    from state.file_session import FileSession

_OBSERVERS_S = 1.0
_DELETED = "its checkpoint was deleted"


class Launches(Protocol):
    """Where sessions' settings come from. Raises UsageError for what cannot be used."""

    def new(self, workspace: str | None = None) -> Launch:
        """For a new session in `workspace`, else where the program was started."""
        ...

    def again(self, session_id: str) -> Launch:
        """For a session that is resumed. Raises SessionNotFound, CheckpointUnreadable."""
        ...


class SessionOpener:
    """Makes the process's session. `gate` gives who answers approvals; `watch` who watches, by the first event's
    number; `tokens` are those of the environment, by default read there. `owns_process`: this process is the program's
    own, and not one that embeds it."""

    def __init__(
        self,
        launches: Launches,
        *,
        gate: Callable[[Launch], ApprovalGate],
        watch: Callable[[int], Sequence[Sink]],
        tokens: Tokens | None = None,
        owns_process: bool = False,
    ) -> None:
        self._launches = launches
        self._gate = gate
        self._watch = watch
        self._tokens = Tokens.read() if tokens is None else tokens
        self._owns_process = owns_process
        self._backends: Backends | None = None
        self._launch: Launch | None = None

    async def create(self, new: NewSession, task: NewTask | None = None) -> Opened:
        """A new session; its first record holds `task`, where that is known. Raises UsageError, PolicyError,
        Incompatible, ServiceError, SessionHeld."""
        launch = self._launches.new(new.local_paths[0] if new.local_paths else None)
        async with AsyncExitStack() as resources:
            backends = await self._open_backends(launch, resources)
            key = launch.session_id
            if key is not None:
                with state_errors_translated():
                    checked_session_id(key)
                    if backends.has_session_service:
                        resources.callback(launch_keys.hold(launch.state_dir, key).release, remove=False)
                        _refuse_used_key(launch.state_dir, key)
            grant = await backends.sessions().create(_introduced(new, launch))
            _refuse_incompatible(grant)
            async with _given_back(backends.sessions(), grant.session_id):
                with state_errors_translated():
                    checked_session_id(grant.session_id)
                place = place_of(launch, session_directory(launch.state_dir, grant.session_id, os.environ))
                bundle = _bundle(launch, place, grant)
                if grant.policy_bundle is not None and new.user_id == LOCAL:  # the service knows who it is
                    new = new._replace(user_id=bundle.user_id, tenant_id=bundle.tenant_id)
                # A wrong approval, model or tokenizer, or a missing gateway, raises before anything is on disk.
                _refuse_unknown_approvals(launch, bundle)
                parts = Parts.of(launch, place, bundle)
                url = await resources.enter_async_context(_gateway(launch))
                secrets = self._secrets(launch, bundle, url)
                if key is not None and grant.session_id != key:  # before there is a session that could be forgotten
                    with state_errors_translated():
                        launch_keys.remember(launch.state_dir, key, grant.session_id)
                beginning = _beginning(launch, parts, grant, secrets, task)
                with contextlib.ExitStack() as begun:
                    store = create_store(launch, beginning, grant, new)
                    begun.callback(_unbegin, store)
                    _make_temporary(place.temporary)
                    begun.callback(temporary.remove, place.temporary)
                    backends.know(store.state.identity)
                    session = await self._session(launch, parts, backends, store, url, secrets, resources)
                    begun.pop_all()
            return Opened(session, grant.compatibility_status, grant.feature_flags)

    async def resume(self, session_id: str, *, cursor: str | None) -> Opened:
        """The session that another process left. Raises SessionNotFound, SessionExpired (then it is gone here as well),
        SessionHeld, CheckpointUnreadable, and what `create` raises."""
        launch = self._launches.again(session_id)
        async with AsyncExitStack() as resources:
            backends = await self._open_backends(launch, resources)
            with contextlib.ExitStack() as opened:
                store = open_store(launch, session_id)
                opened.callback(store.close)
                backends.know(store.state.identity)
                grant = await self._granted_again(launch, backends, store, cursor)
                place = place_of(launch, temporary_of(launch.state_dir, store.state.identity))
                _make_temporary(place.temporary)
                parts = Parts.of(launch, place, _bundle_again(launch, place, grant, store.state.identity))
                url = await resources.enter_async_context(_gateway(launch))
                secrets = self._secrets(launch, parts.bundle, url)
                session = await self._session(launch, parts, backends, store, url, secrets, resources)
                opened.pop_all()
            return Opened(session, grant.compatibility_status, grant.feature_flags)

    async def refresh(self, session: Session, *, cursor: str | None) -> Opened:
        """The session under a bundle that is asked for again (AH 8.6). Raises what `resume` raises; after
        SessionExpired the session has ended."""
        launch, backends = self._launch, self._backends
        if launch is None or backends is None:
            raise RuntimeError("only an opened session is refreshed")
        try:
            grant = await backends.sessions().resume(
                session.session_id, checkpoint_cursor=cursor or session.step_cursor
            )
        except SessionExpired as error:
            await session.expire(str(error))
            raise SessionExpired(f"{error}; {_DELETED}") from error
        _refuse_incompatible(grant)
        place = place_of(launch, session.temporary)
        parts = Parts.of(launch, place, _bundle_again(launch, place, grant, session.identity))
        session.renew(lambda ctx: put_under(ctx, launch, parts))
        return Opened(session, grant.compatibility_status, grant.feature_flags)

    async def _open_backends(self, launch: Launch, resources: AsyncExitStack) -> Backends:
        own_packages.keep_out(launch.workspace)  # a client names it when much is still to be imported
        self._launch = launch
        self._backends = Backends(os.environ, launch.settings, self._tokens.services)
        resources.push_async_callback(self._backends.aclose)
        return self._backends

    async def _granted_again(
        self, launch: Launch, backends: Backends, store: FileSession, cursor: str | None
    ) -> SessionGrant:
        state = store.state
        try:
            grant = await backends.sessions().resume(
                state.identity.session_id, checkpoint_cursor=cursor or state.step_cursor
            )
        except SessionExpired as error:
            with state_errors_translated():
                store.delete()  # nobody will ever resume it (AH 9.6)
            temporary.remove(temporary_of(launch.state_dir, state.identity))
            kept = _kept_result(SessionPaths(launch.state_dir, state.identity.session_id))
            raise SessionExpired(f"{error}; {_DELETED}{kept}") from error
        except SessionNotFound as error:  # it may be another service than that of its beginning
            raise SessionNotFound(f"{error}; what is here of it is kept") from error
        _refuse_incompatible(grant)
        return grant

    def _secrets(self, launch: Launch, bundle: PolicyBundle, url: str) -> Secrets:
        return Secrets.of(self._tokens, url, redaction_of(launch, bundle))

    async def _session(
        self,
        launch: Launch,
        parts: Parts,
        backends: Backends,
        store: FileSession,
        url: str,
        secrets: Secrets,
        resources: AsyncExitStack,
    ) -> Session:
        """Put it all together. What is to be let go at its end is in `resources` on return."""
        identity = store.state.identity
        paths = SessionPaths(launch.state_dir, identity.session_id)
        first_id = next_event_id(paths.events)
        emitter = Emitter(
            session_id=identity.session_id,
            workspace_id=identity.workspace_id,
            tenant_id=identity.tenant_id,
            user_id=identity.user_id,
            first_id=first_id,
            scrub=secrets.scrubber.event,
            losses=backends.losses,
        )
        reporter = backends.approvals(paths)
        log = RunLog(paths.events, max_bytes=launch.settings.integer("host.max_run_log_bytes"))
        backends.losses.watch(paths.events, log)
        reports = ApprovalReports(reporter, identity, secrets.scrubber.text, BUILT_IN)
        emitter.attach([log, *backends.observers(), reports, *self._watch(first_id)])
        gate = self._gate(launch)
        stores = backends.stores(identity, paths, store.blobs)
        where = Gateway(url, TlsContext(url))
        ctx = await make_context(
            launch, parts, store, where, secrets, gate, emitter, stores, owns_process=self._owns_process
        )
        resources.push_async_callback(_close_observers, emitter, reporter)
        resources.push_async_callback(ctx.router.aclose)
        resources.push_async_callback(ctx.conversation.llm.aclose)
        reports.again(store.state)
        session = Session(
            ctx,
            paths,
            pending_approvals=gate if isinstance(gate, PendingApprovals) else None,
            service=backends.sessions(),
            resources=resources.pop_all(),
            settings=launch.settings,
            undelivered=backends.undelivered,
            losses=backends.losses,
        )
        session.take_up_uploads()
        return session


def _refuse_used_key(state_dir: str, key: str) -> None:
    """Raises UsageError where a session was begun under `key`, StateError where that cannot be told."""
    paths = SessionPaths(state_dir, launch_keys.session_of(state_dir, key))
    if any(os.path.lexists(path) for path in (paths.snapshot, paths.journal, paths.result)):
        raise UsageError(f"a session was begun under {key} already: --or-resume goes on with it, or choose another id")


def _beginning(launch: Launch, parts: Parts, grant: SessionGrant, secrets: Secrets, task: NewTask | None) -> Beginning:
    """What the first record of a new session holds."""
    policy = policy_source(launch.settings, grant.policy_bundle)
    started: dict[str, Any] = {
        "model": parts.model,
        "policy": policy.name,
        "policyHash": policy.digest,
        "toolset": list(launch.settings.names("host.toolset")),
    }
    first = None
    if task is not None and launch.session_id is not None:
        started |= launch_record(launch.state_dir, launch.session_id, task.prompt)
    if task is not None:
        first = record_of_task(task, session_id=grant.session_id, scrubber=secrets.scrubber, count=parts.count)
    where, own = parts.place.where, parts.place.temporary
    return Beginning(parts.bundle, where, parts.count, own, started, first)


def _kept_result(paths: SessionPaths) -> str:
    """Words for a session that was over: its process died between its word to the service and its last file."""
    return f"; its task was over, the result is kept in {paths.result}" if os.path.exists(paths.result) else ""


def _introduced(new: NewSession, launch: Launch) -> NewSession:
    """The request with what this host knows of itself, and what its client did not say."""
    known = {"localAgentHostVersion": __version__, "osFamily": OS_FAMILY}
    return new._replace(session_id=launch.session_id, client_info={**known, **new.client_info})


@contextlib.asynccontextmanager
async def _given_back(service: SessionService, session_id: str) -> AsyncIterator[None]:
    """A session that the service granted and that cannot begin here is none for the service either."""
    try:
        yield
    except AgentHostError as error:
        await say_goodbye(service, session_id, reason=error.code, within_s=_OBSERVERS_S)
        raise


def _make_temporary(path: str) -> None:
    """Make the session's own temporary directory, or find it as it should be. Raises UsageError."""
    try:
        temporary.make(path)
    except OSError as error:
        raise UsageError(f"the session's temporary directory {path}: {error.strerror}") from error


def _unbegin(store: FileSession) -> None:
    """Take a session away whose creation failed: nothing was done in it that anybody could resume."""
    with contextlib.suppress(WriteFailed):  # it is let go all the same, and without a task it is passed over
        store.delete()


async def _close_observers(emitter: Emitter, reporter: ApprovalReporter) -> None:
    """None of them waits for another that is away."""
    await asyncio.gather(emitter.aclose(_OBSERVERS_S), reporter.aclose(_OBSERVERS_S))


def _refuse_unknown_approvals(launch: Launch, bundle: PolicyBundle) -> None:
    """Raises UsageError. Not for a resume, whose approvals may be on record from another policy."""
    unknown = unknown_approvals(bundle, BUILT_IN, launch.approvals)
    if unknown:
        rules = ", ".join(rule.approval_rule_id for rule in bundle.approval_rules) or "none"
        raise UsageError(
            f"--approve {unknown[0]}: this policy knows no such rule, tool or capability; its rules: {rules}"
        )


def _bundle(launch: Launch, place: Place, grant: SessionGrant) -> PolicyBundle:
    return load_bundle(
        launch.settings,
        place.where,
        session_id=grant.session_id,
        state_dir=launch.state_dir,
        now=utc_now(),
        granted=grant.policy_bundle,
        temporary=place.temporary,
    )


def _bundle_again(launch: Launch, place: Place, grant: SessionGrant, identity: SessionIdentity) -> PolicyBundle:
    """The bundle under which a session that there is goes on."""
    bundle = _bundle(launch, place, grant)
    refuse_other_owner(identity, bundle)
    return bundle


def _refuse_incompatible(grant: SessionGrant) -> None:
    if grant.compatibility_status == "incompatible":
        raise Incompatible(
            f"the session service does not serve this host: {grant.incompatibility_reason or 'no reason'}"
        )


@contextlib.asynccontextmanager
async def _gateway(launch: Launch) -> AsyncIterator[str]:
    """The gateway's URL; `mock:FILE` starts the scripted one in this process for as long."""
    url = launch.settings.text("llm.gateway")
    if not url:
        raise UsageError("no LLM gateway: give --gateway URL or set LLM_GATEWAY_ENDPOINT")
    if url.startswith(MOCK_PREFIX):
        from agent_host.testing.gateway import MockGateway
        from agent_host.testing.script import Script, ScriptError

        try:
            script = Script.load(url.removeprefix(MOCK_PREFIX), {"workspace": launch.workspace})
        except ScriptError as error:
            raise UsageError(f"--gateway {url}: {error}") from error
        async with MockGateway(script) as gateway:
            yield gateway.url
    else:
        checked_url(url)
        yield url
