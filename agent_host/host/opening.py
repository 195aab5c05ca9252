"""Opening of a session in this process (AH 3.2, 9.5): ask the services, check the policy, compose the parts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agent_host import import_isolation
from agent_host.approval.gate import InAdvance, PendingApprovals, UnattendedGate
from agent_host.errors import AgentHostError, Incompatible, SessionExpired, SessionNotFound, UsageError
from agent_host.events.emitter import Emitter
from agent_host.events.sinks import RunLog, next_event_id
from agent_host.host import environment
from agent_host.host.backends import (
    Backends,
    Informed,
    Secrets,
    Tokens,
    ask_gateway,
    fit_toolset,
    hide_key,
    redaction_of,
    refuse_unknown_host,
    serving_gateway,
    settle_model,
)
from agent_host.host.parts import Composition, LaunchParts, Parts, Ready, Terms
from agent_host.host.records import remove_session, stored_sessions
from agent_host.http import TlsContext
from agent_host.llm.deferred import import_client
from agent_host.llm.known_dialects import dialect_of_script, dialect_of_settings, find_dialect
from agent_host.loop.background import reap_background_commands
from agent_host.loop.results import take_up_uploads
from agent_host.services import drop_observers
from agent_host.services.session import report_end
from agent_host.session import start as session_start
from agent_host.session.lifecycle import LiveSession, unknown_approvals
from agent_host.session.opening import (
    LOCAL,
    Beginning,
    claim_store,
    create_store,
    prepare_state_dir,
    refuse_foreign_cursor,
    sessions_of,
    start_record,
    state_errors_translated,
    temporary_of,
)
from agent_host.session.reports import ApprovalReports
from agent_host.session.task_runner import import_loop
from agent_host.session.tasks import record_of_task
from agent_host.version import __version__
from config.policies import BUILT_IN
from config.settings import MOCK_PREFIX
from config.shapes import meant_name
from policy import CapabilityName
from policy.rules.toolset import names_it
from state import SessionPaths, WriteFailed, check_session_id, keys, temporary
from state.temporary import session_directory
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from agent_host.approval.gate import ApprovalGate, OnAsked
    from agent_host.events.emitter import Sink
    from agent_host.host.options import LayeredOptions
    from agent_host.host.remote_tools import RecordedToolService
    from agent_host.ids import Outside
    from agent_host.judging import Registry
    from agent_host.llm.known_dialects import ChosenDialect
    from agent_host.services.session import ApprovalReporter, NewSession, SessionGrant, SessionService
    from agent_host.session.opening import ClientServer, OptionsSource, ResolvedOptions
    from agent_host.session.tasks import NewTask
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from state.file_session import FileSession
    from state.file_store import FileCheckpointStore
    from tool_runtime.families.python_tools import PythonTool

_OBSERVERS_S = 1.0
_DELETED = "its checkpoint was deleted"


class SessionOpener:
    """Opener of the process's session. `gate` makes the gate of approvals; `watch` makes the sinks of events, given the
    first event's number. `owns_process`: this process is agent-host's own, not a program that embeds it. `tokens` are
    by default those of the environment; a process of our own removes them from it. `tools` are those of an embedding
    program. `recorded` replaces the Backend Tool Service in a replay: then no service is called except the Session
    Service, which has the policy. `reopens`: an ended session is resumed as well, for its next task. `surroundings` are
    the session's inputs from outside its process."""

    def __init__(
        self,
        source: OptionsSource,
        *,
        gate: Callable[[ResolvedOptions], ApprovalGate],
        watch: Callable[[int], Sequence[Sink]],
        tokens: Tokens | None = None,
        owns_process: bool = False,
        tools: Sequence[PythonTool] = (),
        recorded: RecordedToolService | None = None,
        reopens: bool = False,
        surroundings: environment.Surroundings = environment.THIS_MACHINE,
    ) -> None:
        self._surroundings = surroundings
        self.outside = surroundings.outside
        self._source = source
        self._reopens = reopens
        self._gate = gate
        self._watch = watch
        if tokens is None:
            tokens = Tokens.take() if owns_process else Tokens.read()
        self._tokens = tokens
        self._owns_process = owns_process
        self._tools = tools
        self._recorded = recorded
        self._session_tokens = self._tokens
        self._ready: Ready | None = None
        self._attended = False
        self._launch: LaunchParts | None = None
        self._servers: tuple[ClientServer, ...] = ()

    def use_servers(self, servers: Sequence[ClientServer]) -> None:
        """See Opener."""
        self._servers = tuple(servers)

    async def create(self, new: NewSession, task: NewTask | None = None) -> session_start.Opened:
        """A new session; its first record contains `task`, if that is known. Raises UsageError, PolicyError,
        Incompatible, ServiceError, SessionHeld, and GatewayError if the gateway's dialect has to be detected."""
        resolved = self._source.new(new.local_paths[0] if new.local_paths else None)
        async with AsyncExitStack() as resources:
            backends = await self._open_backends(resolved, resources)
            host_check = asyncio.ensure_future(refuse_unknown_host(resolved.settings))
            resources.callback(host_check.cancel)
            key = resolved.session_id
            if key is not None:
                with state_errors_translated():
                    check_session_id(key)
                    if backends.has_session_service:
                        resources.callback(keys.hold(resolved.state_dir, key).release, remove=False)
                        refuse_used_key(resolved.state_dir, key)
            known = {"localAgentHostVersion": __version__, "osFamily": OS_FAMILY}
            wanted = new._replace(session_id=key, client_info={**known, **new.client_info})
            grant = await backends.sessions().create(wanted)
            refuse_incompatible(grant)
            backends.capability_grant = grant.capability_grant
            async with _end_on_error(backends.sessions(), grant.session_id):
                with state_errors_translated():
                    check_session_id(grant.session_id)
                refuse_opened_hosts(resolved, grant)
                own_directory = session_directory(resolved.state_dir, grant.session_id, os.environ)
                ready = await self._prepare(Terms.find(resolved, grant, own_directory), backends, resources)
                resolved, parts = ready.parts.terms.resolved, ready.parts
                if grant.brings_policy and new.user_id == LOCAL:  # the service determines the owner
                    new = new._replace(user_id=parts.bundle.user_id, tenant_id=parts.bundle.tenant_id)
                await host_check
                prepare_state_dir(resolved.state_dir, self._surroundings.disk)
                if key is not None and grant.session_id != key:  # before there is a session that could be forgotten
                    with state_errors_translated():
                        keys.remember(resolved.state_dir, key, grant.session_id)
                beginning = beginning_of(ready, task, self.outside)
                with contextlib.ExitStack() as rollback:
                    store = create_store(self._sessions(resolved), resolved, self.outside, beginning, grant, new)
                    rollback.callback(_discard, store)
                    make_temporary(parts.terms.machine.temporary, resolved.state_dir)
                    rollback.callback(temporary.remove, parts.terms.machine.temporary)
                    backends.register(store.state.identity)
                    session = await self._session(ready, store, resources)
                    rollback.pop_all()
            return session_start.Opened(session, grant.compatibility_status, grant.feature_flags)

    async def resume(self, session_id: str, *, cursor: str | None) -> session_start.Opened:
        """The session that another process left. Its files stay as they are until nothing refuses it any more. Raises
        SessionNotFound, SessionExpired (then it is gone here as well), SessionHeld, CheckpointUnreadable, UsageError
        for a cursor that is none of the session's, and what `create` raises."""
        resolved = self._source.resolve_resume(session_id, ended_too=self._reopens)
        async with AsyncExitStack() as resources:
            backends = await self._open_backends(resolved, resources)
            with contextlib.ExitStack() as opened:
                store = claim_store(self._sessions(resolved), resolved, session_id)
                opened.callback(store.close)
                refuse_foreign_cursor(store.state, cursor)
                backends.register(store.state.identity)
                grant = await self._renew_grant(resolved, backends, store, cursor)
                backends.capability_grant = grant.capability_grant
                identity = store.state.identity
                refuse_opened_hosts(resolved, grant)
                terms = Terms.find(resolved, grant, temporary_of(resolved.state_dir, identity), identity)
                if "sandbox" not in store.state.mode:  # else its level is found when the mode is made
                    environment.refuse_weaker(resolved, terms.level, store.state)
                ready = await self._prepare(terms, backends, resources)
                make_temporary(terms.machine.temporary, resolved.state_dir)
                session = await self._session(ready, store, resources)
                opened.pop_all()
            return session_start.Opened(session, grant.compatibility_status, grant.feature_flags)

    async def refresh(self, session: LiveSession, *, cursor: str | None) -> session_start.Opened:
        """The session under a bundle that is asked for again (AH 8.6). Raises what `resume` raises; after
        SessionExpired the session has ended."""
        ready = self._ready
        if ready is None:
            raise RuntimeError("only an opened session is refreshed")
        backends, resolved = ready.backends, ready.parts.terms.resolved
        refuse_foreign_cursor(session.ctx.state, cursor)
        try:
            grant = await backends.sessions().resume(
                session.session_id, checkpoint_cursor=cursor or session.ctx.state.step_cursor
            )
        except SessionExpired as error:
            await session.expire(str(error))
            raise SessionExpired(f"{error}; {_DELETED}") from error
        refuse_incompatible(grant)
        backends.capability_grant = grant.capability_grant
        terms = Terms.find(resolved, grant, session.temporary, session.identity)
        parts = Parts.make(terms, terms.make_bundle(self.outside.now()), ready.chosen.dialect)
        parts = parts.set_cache_time(attended=self._attended)
        launch = LaunchParts(parts, self.outside.now)
        mode = cast("dict[str, str]", session.ctx.state.mode)
        made = await asyncio.to_thread(launch.make_mode, mode) if mode else None
        session.renew(parts.switch_bundle)
        self._launch = launch
        if made is not None:
            session.apply_mode(made)
        return session_start.Opened(session, grant.compatibility_status, grant.feature_flags)

    async def set_mode(self, session: LiveSession, changes: Mapping[str, str]) -> dict[str, str]:
        """Change options of the session's mode, and return those that hold: {policy?, model, sandbox, approvalMode?}.
        Raises what `LaunchParts.make_mode` and `LiveSession.set_mode` raise."""
        launch = self._launch
        if launch is None:
            raise RuntimeError("only an opened session has a mode")
        fields = launch.merge(cast("dict[str, str]", session.ctx.state.mode), changes)
        if fields != session.ctx.state.mode:
            session.set_mode(await asyncio.to_thread(launch.make_mode, fields))
        return {**launch.fields, **fields}

    async def _open_backends(self, resolved: ResolvedOptions, resources: AsyncExitStack) -> Backends:
        import_isolation.keep_out(resolved.workspace)  # a client names it when much is still to be imported
        if self._servers and not resolved.settings.acp.client_servers:
            raise UsageError(
                "clientServers: `client_servers = true` under [acp] in the user's configuration allows them"
            )
        environ = os.environ if self._recorded is None else drop_observers(os.environ)
        self._session_tokens = self._tokens.under(resolved.settings)
        if self._owns_process:
            hide_key(resolved.settings)
        backends = Backends(environ, resolved.settings, self._session_tokens, self.outside)
        resources.push_async_callback(backends.aclose)
        return backends

    def _sessions(self, resolved: ResolvedOptions) -> FileCheckpointStore:
        return sessions_of(resolved, self._surroundings.disk, self.outside.now, self._surroundings.background)

    async def _prepare(self, terms: Terms, backends: Backends, resources: AsyncExitStack) -> Ready:
        """Make all of a session that comes before its files: a wrong tool, approval, model or tokenizer, or a missing
        gateway, raises before anything is on disk."""
        terms, bundle, informed = await self._ask_gateway(terms)
        resolved, settings = terms.resolved, terms.resolved.settings
        tools = environment.python_tools(settings, self._tools)
        if terms.identity is None:
            refuse_unknown_approvals(
                resolved, bundle, environment.registry_with(tools, environment.families_of(settings))
            )
        url = await resources.enter_async_context(serving_gateway(resolved))
        chosen = await self._choose_dialect(resolved, url)
        parts = Parts.make(terms, bundle, chosen.dialect, tools)._replace(
            has_mcp=terms.grant.feature_flags.get("mcpEnabled", True), client_servers=self._servers
        )
        if bundle.capability(CapabilityName.BACKEND_TOOL_INVOKE) is not None:
            parts = parts._replace(tool_service=backends.tool_service() if self._recorded is None else self._recorded)
        redaction = redaction_of(resolved, bundle)
        secrets = Secrets.collect(
            self._session_tokens, url, settings, redaction, resolved.state_dir, bundle.mcp_servers
        )
        return Ready(parts, url, TlsContext(url), secrets, backends, chosen, informed)

    async def _choose_dialect(self, resolved: ResolvedOptions, url: str) -> ChosenDialect:
        """The dialect of the gateway at `url`. Raises UsageError, GatewayError."""
        settings = resolved.settings
        chosen = dialect_of_settings(settings)
        if chosen is None and settings.llm.gateway.startswith(MOCK_PREFIX):
            chosen = dialect_of_script(settings)
        if chosen is not None:
            return chosen
        token, time = self._session_tokens.gateway, self.outside.time
        return await asyncio.to_thread(find_dialect, settings, url, token, resolved.state_dir, time)

    async def _ask_gateway(self, terms: Terms) -> tuple[Terms, PolicyBundle, Informed]:
        """The terms with a local server's facts about its model, and the bundle under them; a resumed session keeps the
        facts that it learned when it started. Raises the errors of `Terms.make_bundle`, and UsageError."""
        settings, token = terms.resolved.settings, self._session_tokens.gateway
        may_choose = not terms.grant.brings_policy and session_start.policy_name(settings) in BUILT_IN
        started = {} if terms.identity is None else terms.identity.options.get("started", {})
        bundle = terms.make_bundle(self.outside.now())
        informed = Informed(settings)
        if self._recorded is None:
            dialect = (dialect_of_settings(settings) or dialect_of_script(settings)).dialect
            if settings.provider is not None and started.get("provider") != settings.provider.name:
                allowed = None if may_choose else bundle.llm_policy.allowed_models
                settings = await settle_model(settings, allowed, dialect, token)
            wanted = settings.llm.model
            informed = await ask_gateway(
                settings,
                dialect,
                token,
                terms.resolved.state_dir,
                self.outside.time,
                model=wanted or bundle.llm_policy.allowed_models[0],
                may_choose=may_choose and not wanted,
                recorded=started.get("servers", {}),
            )
        settings = fit_toolset(informed.settings, bundle)
        if settings is terms.resolved.settings:
            return terms, bundle, informed
        terms = terms._replace(resolved=terms.resolved._replace(settings=settings))
        return terms, terms.make_bundle(self.outside.now()), informed

    async def _renew_grant(
        self, resolved: ResolvedOptions, backends: Backends, store: FileSession, cursor: str | None
    ) -> SessionGrant:
        state = store.state
        try:
            grant = await backends.sessions().resume(
                state.identity.session_id, checkpoint_cursor=cursor or state.step_cursor
            )
        except SessionExpired as error:
            with state_errors_translated():
                store.take_over()
                store.delete()  # it will never be resumed (AH 9.6)
            temporary.remove(temporary_of(resolved.state_dir, state.identity))
            kept = _describe_result(SessionPaths(resolved.state_dir, state.identity.session_id).result)
            raise SessionExpired(f"{error}; {_DELETED}{kept}") from error
        except SessionNotFound as error:  # it may be another service than that of its beginning
            raise SessionNotFound(f"{error}; its files here are kept") from error
        refuse_incompatible(grant)
        return grant

    async def _session(self, ready: Ready, store: FileSession, resources: AsyncExitStack) -> LiveSession:
        """Put it all together. On return, `resources` has everything to release at its end."""
        backends, scrubber, resolved = ready.backends, ready.secrets.scrubber, ready.parts.terms.resolved
        identity = store.state.identity
        paths = SessionPaths(resolved.state_dir, identity.session_id)
        first_id = next_event_id(paths.events)
        emitter = Emitter(
            session_id=identity.session_id,
            workspace_id=identity.workspace_id,
            tenant_id=identity.tenant_id,
            user_id=identity.user_id,
            time=self.outside.time,
            first_id=first_id,
            scrub=scrubber.event,
            losses=backends.losses,
        )
        reporter = backends.approvals(paths)
        log = RunLog(paths.events, max_bytes=resolved.settings.host.max_run_log_bytes, are_clean=scrubber.are_clean)
        backends.losses.watch(paths.events, log)
        tools = environment.registry_with(ready.parts.tools, environment.families_of(resolved.settings))
        reports = ApprovalReports(reporter, identity, scrubber.text, tools, self.outside.time)
        observers = backends.observers(ready.url, paths, ready.parts.dialect.name)
        emitter.attach([log, *observers, reports, *self._watch(first_id)])
        gate = self._gate(resolved)
        self._attended = not isinstance(gate, UnattendedGate)
        parts = ready.parts.set_cache_time(attended=self._attended)
        ready = ready._replace(parts=parts._replace(terms=parts.terms._replace(identity=identity)))
        composition = Composition(ready, store, paths, gate, emitter, self._surroundings, self._owns_process)
        ctx = await composition.make_context()
        resources.push_async_callback(_close_observers, emitter, reporter)
        resources.push_async_callback(ctx.router.aclose)
        resources.push_async_callback(ctx.conversation.llm.aclose)
        self._ready = ready
        self._launch = LaunchParts(ready.parts, self.outside.now)
        mode = cast("dict[str, str]", store.state.mode)
        made = await asyncio.to_thread(self._launch.make_mode, mode) if mode else None
        with state_errors_translated():
            store.take_over()  # nothing refuses the session any more
        reports.again(store.state)
        session = LiveSession(
            ctx,
            paths,
            pending_approvals=gate if isinstance(gate, PendingApprovals) else None,
            service=backends.sessions(),
            resources=resources.pop_all(),
            settings=resolved.settings,
            undelivered=backends.delivery_problems,
            losses=backends.losses,
        )
        if made is not None:
            session.apply_mode(made)
        await reap_background_commands(session.ctx)
        take_up_uploads(session.ctx)
        return session


def _describe_result(path: str) -> str:
    """Words for a session that was over: its process died between its word to the service and its last file."""
    return f"; its task was over, the result is kept in {path}" if os.path.exists(path) else ""


@contextlib.asynccontextmanager
async def _end_on_error(service: SessionService, session_id: str) -> AsyncIterator[None]:
    """A session that the service granted and that cannot begin here is none for the service either."""
    try:
        yield
    except AgentHostError as error:
        await report_end(service, session_id, reason=error.code, within_s=_OBSERVERS_S)
        raise


def _discard(store: FileSession) -> None:
    with contextlib.suppress(WriteFailed):  # it is let go all the same, and without a task it is passed over
        store.delete()


async def _close_observers(emitter: Emitter, reporter: ApprovalReporter) -> None:
    await asyncio.gather(emitter.aclose(_OBSERVERS_S), reporter.aclose(_OBSERVERS_S))


# The start of a session, and the checks that prevent it.


def refuse_incompatible(grant: SessionGrant) -> None:
    """Raises Incompatible."""
    if grant.compatibility_status == "incompatible":
        raise Incompatible(
            f"the session service does not serve this host: {grant.incompatibility_reason or 'no reason'}"
        )


def refuse_used_key(state_dir: str, key: str) -> None:
    """Raise UsageError if a session was started under `key`, StateError if that cannot be read."""
    paths = SessionPaths(state_dir, keys.session_of(state_dir, key))
    if any(os.path.lexists(path) for path in (paths.snapshot, paths.journal, paths.result)):
        raise UsageError(f"session {key} already exists; use --or-resume to continue it, or choose another id")


def refuse_unknown_approvals(resolved: ResolvedOptions, bundle: PolicyBundle, tools: Registry) -> None:
    """Raise UsageError for unknown approvals. Not for a resume, whose recorded approvals may be from another policy."""
    servers = {one.name for one in bundle.mcp_servers}
    servers |= {str(one.get("name")) for one in resolved.settings.mcp.servers}
    of_servers = {name for name in resolved.approvals if name.partition("/")[0] in servers and "/" in name}
    backend = bundle.capability(CapabilityName.BACKEND_TOOL_INVOKE)
    of_backend = {name for name in resolved.approvals if backend is not None and names_it(backend, name)}
    approvals = resolved.approvals - environment.project_tool_names(resolved.workspace) - of_servers - of_backend
    unknown = unknown_approvals(bundle, tools, approvals)
    if unknown:
        rules = [rule.approval_rule_id for rule in bundle.approval_rules]
        listed = f"its rules: {', '.join(rules) or 'none'}"
        known = (*rules, *tools.names, *tools.capabilities)
        meant = {name: meant_name(name, known) for name in unknown}
        raise UsageError(
            *(
                f"--approve {name}: this policy has no such rule, tool or capability; "
                f"{listed if meant[name] is None else f'did you mean {meant[name]}?'}"
                for name in unknown
            )
        )


def refuse_opened_hosts(resolved: ResolvedOptions, grant: SessionGrant) -> None:
    """Raise UsageError if the command line opens hosts, and the policy comes from the Session Service: it alone decides
    which hosts may be reached."""
    if grant.brings_policy and resolved.flags.get(environment.DOMAINS):
        raise UsageError(
            "--allow-domain needs a built-in policy or a bundle in a file: the Session Service decides about the hosts "
            "of this session"
        )


def beginning_of(ready: Ready, task: NewTask | None, outside: Outside) -> Beginning:
    """The first record of a new session."""
    terms, parts = ready.parts.terms, ready.parts
    resolved, grant = terms.resolved, terms.grant
    policy = session_start.policy_source(resolved.settings, grant.policy_bundle)
    provider = resolved.settings.provider
    started: dict[str, Any] = {
        "model": parts.model,
        "policy": policy.name,
        "policyHash": policy.digest,
        "toolset": list(environment.families_of(resolved.settings)),
        "servers": dict(ready.informed.learned),
        "redaction": {
            "bundleVersion": parts.bundle.policy_bundle_version,
            "hasRules": bool(parts.bundle.redaction_rules),
        },
    }
    if provider is not None:
        started["provider"] = provider.name
    if parts.scoping is not None:
        started["sandbox"] = parts.scoping.level
    first = None
    if task is not None and resolved.session_id is not None:
        started |= start_record(resolved.state_dir, resolved.session_id, task.prompt)
    if task is not None:
        scrubber = ready.secrets.scrubber
        first = record_of_task(task, outside, session_id=grant.session_id, scrubber=scrubber, count=parts.count)
    machine = parts.terms.machine
    return Beginning(parts.bundle, machine.environment, parts.count, machine.temporary, started, first)


def make_temporary(path: str, state_dir: str) -> None:
    """Make the session's own temporary directory, or check it, and remove the leftovers of crashes next to it. Raises
    UsageError."""
    try:
        temporary.make(path)
    except OSError as error:
        raise UsageError(f"the session's temporary directory {path}: {error.strerror}") from error
    # Neither the start nor the end of the process waits for it: a later process removes the rest.
    sweep = threading.Thread(target=temporary.sweep, args=(state_dir, os.environ), name="temporary-sweep", daemon=True)
    sweep.start()


def session_host(
    source: LayeredOptions, watch: Callable[[int], Sequence[Sink]], on_asked: OnAsked | None = None
) -> session_start.SessionHost:
    """The one session of a server, whose client approves; the tokens are taken out of the environment.
    `watch` gives its sinks, by the number of its first event; `on_asked` as PendingApprovals has it."""
    tokens = Tokens.take()

    def gate(resolved: ResolvedOptions) -> PendingApprovals:
        in_advance = InAdvance(resolved.approvals, resolved.approve_all)
        timeout_s = resolved.settings.approvals.timeout_s
        return PendingApprovals(timeout_s=timeout_s, in_advance=in_advance, on_asked=on_asked)

    opener = SessionOpener(source, gate=gate, watch=watch, tokens=tokens, owns_process=True, reopens=True)

    return session_start.SessionHost(
        opener, partial(stored_sessions, source.state_dir, tokens), partial(remove_session, source.state_dir)
    )


def get_ready(settings: Settings, state_dir: str) -> None:
    """Prepare a process that runs one task: if another process has to try the levels of the sandbox, import meanwhile
    the modules that the first request needs."""
    if environment.look_ahead(settings, state_dir):
        import_client()
        import_loop()
