"""The parts of a session, which its launch decides before anything of it is on disk, the changes of a mode to them, and
the loop that they make: its conversation, runtime and judge.

A mode is the options that a client sets for a session after its launch (interface section 2, `SetMode`). It can only
narrow. Its policy decides in addition to that of the launch, and the stricter decision counts, so that bundles need no
order. Its level of the sandbox is at or above that of the launch, and its model one that the launch bundle allows.
`launch` in place of a value restores the option of the launch.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import orjson

from agent_host.approval.gate import ElicitationQueue, WatchedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events import EventType
from agent_host.events.emitter import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
from agent_host.host import environment
from agent_host.host.backends import answer_form, make_client, redaction_of, report_window
from agent_host.host.options import anchor
from agent_host.http import RetryPolicy
from agent_host.judging import Judge, Mode, Registry
from agent_host.judging.scoping import Scoping, this_machine
from agent_host.llm.deferred import KnownModels, Model
from agent_host.loop import ArtifactPlaces, CommandWatch, Journal, LoopContext, clean_message
from agent_host.loop.background import CommandLog
from agent_host.loop.conversation import Compaction, Conversation, ForModel, refuse_uncounted, refuse_unpriced
from agent_host.loop.progress import Cancellation, Progress, instruction_on
from agent_host.loop.results import RecordedResults
from agent_host.session.lifecycle import SessionMode
from agent_host.session.opening import refuse_other_owner
from agent_host.session.start import files_to_guard, load_bundle, own_files
from agent_host.states import task_machine
from agent_host.thread import Thread, summary_message
from agent_host.thread.messages import AUTO, TokenizerUnavailable, counter, decode
from config.lean_typing import NamedTuple
from config.policies import names_file
from policy import LEVELS, Widening, is_weaker
from policy import CapabilityName as Name
from policy.rules.toolset import delegated_capabilities
from tool_runtime.families.catalogue import NATIVE, SKILLS
from tool_runtime.families.python_tools import PythonTools
from tool_runtime.families.schemas import definition_of
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Emitter
    from agent_host.host.backends import Backends, Informed, Secrets
    from agent_host.host.environment import LocalMachine
    from agent_host.host.remote_tools import RecordedToolService, ToolsElsewhere, ToolService
    from agent_host.http import TlsContext
    from agent_host.ids import Outside
    from agent_host.judging import Approved
    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import CacheTtl, Dialect
    from agent_host.llm.known_dialects import ChosenDialect
    from agent_host.redaction import Scrubber
    from agent_host.services.session import SessionGrant
    from agent_host.session.opening import ClientServer, ResolvedOptions
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.rules import ApprovalMode
    from state import SessionPaths
    from state.checkpoint import Checkpoint, ContextStrategy, SessionIdentity
    from state.file_session import FileSession
    from tool_runtime.families.python_tools import PythonTool
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.tool import Provider


# A provider may count so many times the tokens that the estimate gives (`loop.requests`).
_LOW_ESTIMATE = 1.5
_MOST_BYTES_PER_TOKEN = 8
_SHORT_TTL_S = 300
LAUNCH: Final = "launch"
"""In place of an option of a mode: that of the launch."""


class Terms(NamedTuple):
    """The terms on which a session is opened: its options, the grant of the Session Service, this machine, and the
    level of the sandbox. `identity` is that of a session that there is."""

    resolved: ResolvedOptions
    grant: SessionGrant
    machine: LocalMachine
    level: environment.Level
    identity: SessionIdentity | None = None

    @classmethod
    def find(
        cls, resolved: ResolvedOptions, grant: SessionGrant, temporary: str, identity: SessionIdentity | None = None
    ) -> Terms:
        """The terms on this machine, for a session with that temporary directory. May try a level of the sandbox."""
        level = environment.level_of(resolved.settings, resolved.state_dir, temporary)
        return cls(resolved, grant, environment.machine_of(resolved, temporary), level, identity)

    def make_bundle(self, now: datetime) -> PolicyBundle:
        """The bundle of the session; see `load_bundle`. Raises PolicyError, UsageError."""
        bundle = load_bundle(
            self.resolved.settings,
            self.machine.environment,
            session_id=self.grant.session_id,
            state_dir=self.resolved.state_dir,
            now=now,
            granted=self.grant.policy_bundle,
            temporary=self.machine.temporary,
            installed=environment.names_of_packages(self.resolved.settings),
            sandboxed=self.level.level != LEVELS[0],
        )
        if self.identity is not None:
            refuse_other_owner(self.identity, bundle)
        return bundle

    def make_scoping(self, *, launch: Terms | None = None) -> Scoping:
        """The sandbox of the session's commands. That of a mode also guards the files of the settings of its `launch`.
        If a bundle of the Session Service is in force, the user opens nothing. Raises UsageError."""
        resolved, machine, level = self.resolved, self.machine, self.level
        terms = (self,) if launch is None else (launch, self)
        guarded = [files_to_guard(one.resolved.settings, resolved.workspace) for one in terms]
        opened = () if terms[0].grant.brings_policy else environment.domains_to_open(resolved.settings)
        steering = tuple(dict.fromkeys(itertools.chain(own_files(), *guarded)))
        return Scoping(
            level.level,
            level.wanted,
            this_machine(
                machine.environment, temporary=machine.temporary, records=resolved.state_dir, steering=steering
            ),
            level.why,
            Widening(domains=opened),
            resolved.settings.policy.blocked_domains,
            unheld=level.unheld,
            withheld=environment.withheld,
            is_untried=level.is_untried,
        )


class Parts(NamedTuple):
    """Decisions about a session before anything of it is on disk. `has_mcp`: the Session Service lets it use MCP
    servers. `tool_service` is the Backend Tool Service, None if there is none for the session. `client_servers` are MCP
    servers that the client names."""

    terms: Terms
    bundle: PolicyBundle
    model: str
    count: Callable[[str], int]
    dialect: Dialect
    models: KnownModels
    scoping: Scoping | None
    tools: tuple[PythonTool, ...] = ()
    has_mcp: bool = True
    tool_service: ToolService | RecordedToolService | None = None
    client_servers: tuple[ClientServer, ...] = ()

    @classmethod
    def make(cls, terms: Terms, bundle: PolicyBundle, dialect: Dialect, tools: tuple[PythonTool, ...] = ()) -> Parts:
        """Raises PolicyDenied for a model that the bundle does not allow, UsageError for a missing tokenizer, for a
        model whose cost is to be limited and that has no price, and for hosts that cannot be read."""
        settings = terms.resolved.settings
        llm, allowed, models = settings.llm, bundle.llm_policy.allowed_models, KnownModels(settings.models)
        model = llm.model or allowed[0]
        fallbacks = ((name, f"llm.fallback_models: {name}") for name in llm.fallback_models)
        for name, words in ((model, f"--model {model}"), *fallbacks):
            if name not in allowed:
                raise PolicyDenied(f"{words} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
        if llm.max_cost:
            refuse_unpriced(models, model)
        try:
            count = counter(llm.tokenizer, models.table.of(model).limits.tokenizer if llm.tokenizer == AUTO else None)
        except TokenizerUnavailable as error:
            raise UsageError(f"llm.tokenizer: {error}") from error
        return cls(terms, bundle, model, count, dialect, models, terms.make_scoping(), tools)

    @property
    def settings(self) -> Settings:
        """The settings of the session."""
        return self.terms.resolved.settings

    @property
    def takes_images(self) -> bool:
        """True if the gateway's dialect and the settings allow sending pictures."""
        return self.dialect.takes_images and self.settings.llm.images

    def set_cache_time(self, *, attended: bool) -> Parts:
        """The same parts, requests kept in the provider's cache as long as steps of this session may take: one hour
        costs more to write, and pays if a step may take longer than five minutes, because a person is asked
        (`attended`) or commands may run that long."""
        ttl = self.settings.llm.cache_ttl
        if ttl == "auto":
            asks = attended and any(capability.requires_approval for capability in self.bundle.capabilities)
            runs = self.bundle.capability(Name.SHELL_EXEC) is not None
            ttl = "1h" if asks or (runs and self.settings.tools.command_timeout_s > _SHORT_TTL_S) else "5m"
        return self._replace(dialect=self.dialect.kept_for(cast("CacheTtl", ttl)))

    def make_conversation(self, state: Checkpoint, scrubber: Scrubber, client: Callable[[], LlmClient]) -> Conversation:
        """The conversation of the session with this `state`; `client` is made with its first request. Raises
        PolicyDenied for a model for summaries that the bundle does not allow."""
        llm, allowed = self.settings.llm, self.bundle.llm_policy.allowed_models
        summary_model = llm.summary_model or None
        if summary_model is not None and summary_model not in allowed:
            raise PolicyDenied(
                f"llm.summary_model {summary_model} is not in llmPolicy.allowedModels: {', '.join(allowed)}"
            )
        return Conversation(
            self.make_thread(state, scrubber),
            Model(client),
            self.model,
            self.make_head(state, scrubber),
            RetryPolicy(llm.max_retries, llm.retry_base_s, llm.retry_max_s, max_wait_s=llm.max_wait_s),
            self.count,
            self.models,
            self._view_of_models(state, scrubber),
            fallbacks=llm.fallback_models,
            takes_images=self.takes_images,
            compaction=Compaction(cast("ContextStrategy", llm.context_strategy), summary_model),
            max_cost=llm.max_cost,
        )

    def switch_bundle(self, ctx: LoopContext) -> None:
        """Switch a session to the model and the bundle of these parts."""
        judge, scrubber, conversation = ctx.judge, ctx.scrubber, ctx.conversation
        if self.scoping is not None and judge.scoping is not None:
            self.scoping.scripts = judge.scoping.scripts
        judge.bundle, judge.scoping = self.bundle, self.scoping
        scrubber.redaction = redaction_of(self.terms.resolved, self.bundle)
        other_model = conversation.model != self.model  # it gets no blocks of the one before
        conversation.model = conversation.default_model = self.model
        conversation.fallbacks = self.settings.llm.fallback_models
        conversation.models = self.models
        conversation.for_model = self._view_of_models(ctx.state, scrubber)
        if self.bundle.redaction_rules or other_model:
            conversation.thread = self.make_thread(ctx.state, scrubber)
        conversation.make_head = self.make_head(ctx.state, scrubber)
        conversation.renew_head(judge)

    def make_thread(self, state: Checkpoint, scrubber: Scrubber, dropped: int | None = None) -> Thread:
        """The conversation after the system prompt; a turn whose step is open enters it when the step is over. Messages
        recorded under other redaction rules are sent under those of this bundle. `dropped` is how many messages
        requests leave out from now on, None for the recorded number."""
        takes_images = self.takes_images
        if takes_images and len(state.thread) > 1:  # a new session has no pictures yet, and does not ask
            takes_images = self.models.table.of(self.model).limits.images is not False
        thread = Thread(self.dialect.renderer(self.model), takes_images=takes_images, marks_from=self._marks_from)
        messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
        if scrubber.redaction is not None and scrubber.redaction.has_rules:
            messages = (clean_message(scrubber, message) for message in messages)
        thinking_from = 0
        # The provider of some models refuses a request in which anything in front of its thinking was changed.
        if (state.flattened_messages or dropped) and self.models.table.of(self.model).limits.thinking_bound:
            thinking_from = state.flattened_messages if dropped is None else len(state.thread) - 1
        thread.restore(
            messages,
            still_open=None if state.open_step is None else state.open_step.position - 1,
            dropped=state.dropped_messages if dropped is None else dropped,
            large_from=state.cleared_messages,
            summary=None if state.summary is None else summary_message(scrubber.text(state.summary), self.count),
            thinking_from=thinking_from,
        )
        return thread

    def _marks_from(self) -> int:
        """Estimated tokens that a beginning of a request has to have for a cache mark. A provider keeps nothing that is
        shorter than its minimum; a mark that is missing costs more than one too many, and estimates may be low."""
        minimum = self.models.table.of(self.model).limits.cache_minimum_tokens
        return 0 if minimum is None else int(minimum / _LOW_ESTIMATE)

    def _view_of_models(self, state: Checkpoint, scrubber: Scrubber) -> Callable[[str, int | None], ForModel]:
        def for_model(model: str, dropped: int | None) -> ForModel:
            own = self._replace(model=model)
            return ForModel(own.make_thread(state, scrubber, dropped), own.make_head(state, scrubber))

        return for_model

    def make_head(self, state: Checkpoint, scrubber: Scrubber) -> Callable[[Judge, int], bytes]:
        """Return the encoder of the front of requests: model, limit, system prompt, and tools that might be allowed."""
        schema = self.settings.host.answer_schema
        has_form = self.settings.llm.structured_answers != "never"

        def head(judge: Judge, max_output_tokens: int) -> bytes:
            system = scrubber.text(decode(state.thread[0]).content)
            encode = partial(
                self.dialect.head,
                model=self.model,
                max_output_tokens=max_output_tokens,
                system=system + instruction_on(schema) if schema else system,
                tools=list(map(definition_of, judge.offered_tools())),
                session_id=state.identity.session_id,
                answer_schema=orjson.loads(schema) if schema and has_form else None,
            )
            made, marks_from = encode(), self._marks_from()
            # A text has fewer tokens than bytes, and no language as few as one for so many.
            is_short = len(made) < marks_from * _MOST_BYTES_PER_TOKEN and self.count(made.decode()) < marks_from
            return encode(is_marked=False) if is_short else made

        return head


class LaunchParts(NamedTuple):
    """The parts that a session has in this process without a mode; `now` gives the present moment."""

    parts: Parts
    now: Callable[[], datetime]

    @property
    def fields(self) -> dict[str, str]:
        """The options of the launch, as a mode has them."""
        settings = self.parts.settings
        own = {} if self.parts.terms.grant.brings_policy else {"policy": settings.host.policy}
        level = settings.sandbox.level if self.parts.scoping is None else self.parts.scoping.level
        return {**own, "model": self.parts.model, "sandbox": level}

    def merge(self, fields: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
        """The options of the mode with some `changes`, without those that are as at the launch."""
        if names_file(changes.get("policy", "")):
            changes = {**changes, "policy": anchor(changes["policy"])}
        was = self.fields
        return {name: value for name, value in {**fields, **changes}.items() if value not in (LAUNCH, was.get(name))}

    def make_mode(self, fields: Mapping[str, str]) -> SessionMode:
        """Make the parts of a mode with these options. Tries a level of the sandbox if need be, so it may take a while.
        Raises UsageError for a model or a level that it may not have, PolicyBundleInvalid, PolicyExpired."""
        parts, terms, resolved = self.parts, self.parts.terms, self.parts.terms.resolved
        if not fields:
            return SessionMode(Mode(), parts.scoping, parts.model, redaction_of(resolved, parts.bundle))
        own = {"host.policy": fields.get("policy"), environment.LEVEL: fields.get("sandbox")}
        settings = resolved.settings.over({key: value for key, value in own.items() if value is not None})
        terms = Terms.find(
            resolved._replace(settings=settings),
            terms.grant._replace(policy_bundle=None),
            terms.machine.temporary,
            terms.identity,
        )
        scoping = self._scoping(terms)
        allowed = parts.bundle.llm_policy.allowed_models
        if "policy" in fields:
            bundle = terms.make_bundle(self.now())
            # The launch bundle decides which models are allowed.
            policy = bundle.llm_policy._replace(allowed_models=allowed)
            scoping.within = bundle._replace(llm_policy=policy).keep_known(bundle)
        model = fields.get("model", parts.model)
        if model not in allowed:
            raise UsageError(f"model {model!r} is not in llmPolicy.allowedModels of the launch: {', '.join(allowed)}")
        mode = Mode(scoping.within, cast("ApprovalMode | None", fields.get("approvalMode")), fields)
        return SessionMode(mode, scoping, model, redaction_of(resolved, *filter(None, (parts.bundle, scoping.within))))

    def _scoping(self, terms: Terms) -> Scoping:
        """The sandbox of commands in the mode, which guards the files of both policies."""
        was, level = self.parts.scoping, terms.level
        is_raised = terms.resolved.settings.sandbox.level != self.parts.settings.sandbox.level
        if is_raised and level.wanted not in (level.level, "auto"):
            raise UsageError(f"sandbox {level.wanted!r} does not work here: {level.why}")
        if was is not None and is_weaker(level.level, was.level):
            raise UsageError(
                f"sandbox {level.wanted!r} is weaker than {was.level}, the level of the launch: a mode can only narrow"
            )
        scoping = terms.make_scoping(launch=self.parts.terms)
        scoping.is_of_mode = is_raised
        scoping.scripts = None if was is None else was.scripts
        return scoping


class Ready(NamedTuple):
    """A session that passed all checks, before it has files. `informed` are the facts from its gateway."""

    parts: Parts
    url: str
    tls: TlsContext
    secrets: Secrets
    backends: Backends
    chosen: ChosenDialect
    informed: Informed


class Composition(NamedTuple):
    """All that the loop of the session in `store` is made of. `owns_process`: this process is the program's own, and
    what commands start may be tied to its life."""

    ready: Ready
    store: FileSession
    paths: SessionPaths
    gate: ApprovalGate
    emitter: Emitter
    surroundings: environment.Surroundings
    owns_process: bool

    async def make_context(self) -> LoopContext:
        """The loop's context, with the tools of its servers and of the Backend Tool Service."""
        ready, emitter, state = self.ready, self.emitter, self.store.state
        parts, settings, scrubber = ready.parts, ready.parts.settings, ready.secrets.scrubber
        stores = ready.backends.stores(state.identity, self.paths, self.store.blobs)
        if settings.llm.max_cost:
            refuse_uncounted(parts.models, state)
        live_output = LiveOutput(emitter, VERBOSE_PIECE_BYTES if settings.host.verbose else MAX_PIECE_BYTES)
        keeps_versions = settings.retention.keep_file_versions
        journal = Journal(self.store, emitter, settings.host.max_stored_bytes, keeps_versions=keeps_versions)
        outputs = RecordedResults(self.store, stores.artifacts)
        runtime = self._runtime_settings(live_output, CommandLog(journal, emitter), outputs)
        router, scripts, approved = self._router(runtime)
        phase = task_machine()
        ctx = LoopContext(
            journal=journal,
            judge=self._judge(Registry(await router.tools()), scripts, approved, outputs),
            conversation=parts.make_conversation(state, scrubber, lambda: self._client(ctx.conversation)),
            router=router,
            gate=WatchedGate(self.gate, phase),
            emitter=emitter,
            artifacts=ArtifactPlaces(stores.artifacts, stores.uploads, stores.uploads_elsewhere, asyncio.Lock()),
            cancellation=Cancellation(),
            scrubber=scrubber,
            phase=phase,
            live_output=live_output,
            max_concurrent={
                "commands": settings.tools.max_parallel_commands,
                "files": settings.tools.max_parallel_files,
                "requests": settings.tools.max_parallel_requests,
                "uploads": settings.tools.max_parallel_uploads,
            },
            questions=ElicitationQueue(),
            outside=self.surroundings.outside,
            progress=Progress(settings.loop.repeat_note, settings.loop.repeat_limit, answer_form(settings)),
            command_watch=self._command_watch(),
        )
        self._add_remote_tools(ctx, router, runtime)
        ctx.conversation.renew_head(ctx.judge)
        return ctx

    def _client(self, conversation: Conversation) -> LlmClient:
        """Make the client of the gateway, and report facts about the gateway with the first request."""
        ready, dialect, settings = self.ready, self.ready.parts.dialect, self.ready.parts.settings
        if ready.chosen.notice:
            self.emitter.emit(EventType.LLM_DIALECT_CHOSEN, {"dialect": dialect.name, "message": ready.chosen.notice})
        report_window(self.emitter, conversation, ready.informed.summary, environment.families_of(settings))
        session_id, time = self.paths.session_id, self.surroundings.outside.time
        return make_client(settings, ready.url, ready.secrets.gateway_token, dialect, session_id, time, ready.tls)

    def _runtime_settings(
        self, live_output: LiveOutput, commands: CommandLog, outputs: RecordedResults
    ) -> RuntimeSettings:
        parts, resolved, paths = self.ready.parts, self.ready.parts.terms.resolved, self.paths
        outside = self.surroundings.outside
        made = runtime_settings(resolved, parts.terms.machine, live_output, outside, guards=self.owns_process)
        sandbox = None
        if parts.scoping is not None:  # a mode may ask for a level although the launch has none
            guarded = os.path.join(paths.records, "guarded")
            caches = os.path.join(parts.terms.machine.temporary, "caches")
            sandbox = SandboxSettings(parts.scoping.level, required=True, directory=guarded, caches=caches)
        return made._replace(
            commands_before=self.store.state.commands_started,
            native_shadowed=frozenset(tool.name for tool in parts.tools),
            elsewhere=delegated_capabilities(parts.bundle),
            commands=commands,
            open_output=outputs.open,
            sandbox=sandbox,
            kept=paths.kept_folder,
        )

    def _router(self, runtime: RuntimeSettings) -> tuple[LocalToolRouter, SkillScripts | None, Approved | None]:
        """The runtime of this machine's tools, the scripts of skills, and which tools of the project a person has
        approved."""
        resolved, parts = self.ready.parts.terms.resolved, self.ready.parts
        providers: list[Provider] = []
        index, scripts = environment.skill_index(resolved.workspace), None
        if SKILLS in resolved.settings.host.toolset:
            local, temporary = parts.terms.machine.environment, parts.terms.machine.temporary
            sandbox = self.paths.sandbox
            scripts = environment.skill_scripts(resolved.settings, index, sandbox, local.workspace, temporary)
        if index is not None:
            from tool_runtime.families.skills import SkillLoading

            providers.append(SkillLoading(index, runtime))
        if parts.tools:
            providers.append(PythonTools(parts.tools, runtime))
        router = LocalToolRouter(runtime, self.surroundings.start_command, providers, scripts)
        if not environment.project_tool_names(resolved.workspace):
            return router, scripts, None
        from state.tool_lists import ApprovedTools
        from tool_runtime.families.project import ProjectTools

        router.add(ProjectTools(runtime, router.run_program))
        return router, scripts, ApprovedTools(resolved.state_dir, resolved.workspace)

    def _judge(
        self, tools: Registry, scripts: SkillScripts | None, approved: Approved | None, outputs: RecordedResults
    ) -> Judge:
        parts, settings = self.ready.parts, self.ready.parts.settings
        local, has_native = parts.terms.machine.environment, NATIVE in settings.host.toolset
        if parts.scoping is not None and scripts is not None:
            parts.scoping.scripts = scripts.sandbox
        return Judge(
            parts.bundle,
            local,
            tools,
            environment.limits_of(settings, has_skills=scripts is not None),
            self.surroundings.outside.now,
            outputs=outputs.maker_of,
            approved=approved,
            native=environment.native_list(settings, local.workspace) if has_native else None,
            scripts=scripts,
            script_runs=lambda: environment.script_runs(self.store.state),
            scoping=parts.scoping,
        )

    def _command_watch(self) -> CommandWatch | None:
        """The watch of the workspace around commands, without the host's own folders; None if it is switched off."""
        resolved, machine = self.ready.parts.terms.resolved, self.ready.parts.terms.machine
        if not resolved.settings.tools.watch_changes:
            return None
        own = map(os.path.realpath, (resolved.state_dir, machine.temporary))
        return CommandWatch(machine.environment.workspace, tuple(own))

    def _add_remote_tools(self, ctx: LoopContext, router: LocalToolRouter, runtime: RuntimeSettings) -> None:
        """Tools of MCP servers and of the Backend Tool Service. They come with the first task: nothing waits for them
        here."""
        parts, judge, settings = self.ready.parts, ctx.judge, self.ready.parts.settings
        if parts.has_mcp and (parts.bundle.mcp_servers or settings.mcp.servers or parts.client_servers):
            from agent_host.host.mcp_servers import SessionServers

            of_session = (self.paths.session_id, runtime.temporary, judge.scoping)
            now, state_dir = ctx.outside.now(), self.paths.state_dir
            servers = SessionServers(settings, judge.bundle, judge.environment, state_dir, now, *of_session)
            servers.add_to(router, runtime, self._remote_sources(judge), ctx, parts.client_servers)
        if parts.tool_service is not None:
            elsewhere = self._remote_sources(judge)
            router.add_remote(parts.tool_service.provider(elsewhere, judge, self.store.state.identity, settings))

    def _remote_sources(self, judge: Judge) -> ToolsElsewhere:
        """Sources of tools, which the judge asks about approvals from now on."""
        from agent_host.host.remote_tools import ToolsElsewhere

        state_dir, emitter = self.paths.state_dir, self.emitter
        judge.approved = elsewhere = ToolsElsewhere(state_dir, lambda: judge.bundle, emitter, judge.approved)
        return elsewhere


def runtime_settings(
    resolved: ResolvedOptions, machine: LocalMachine, live_output: LiveOutput, outside: Outside, *, guards: bool
) -> RuntimeSettings:
    """The settings of the runtime. `guards`: what commands start ends with this process."""
    settings = resolved.settings
    return RuntimeSettings(
        workspace=resolved.workspace,
        outside=outside,
        shell=machine.shell,
        file_timeout_s=settings.tools.file_timeout_s,
        command_timeout_s=settings.tools.command_timeout_s,
        command_timeout_max_s=settings.tools.command_timeout_max_s,
        http_timeout_s=settings.tools.http_timeout_s,
        http_timeout_max_s=settings.tools.http_timeout_max_s,
        http_max_body_bytes=settings.tools.max_response_bytes,
        http_max_download_bytes=settings.tools.max_download_bytes,
        http_proxy=settings.tools.http_proxy or None,
        https_proxy=settings.tools.https_proxy or None,
        max_output_bytes=settings.tools.max_output_bytes,
        artifact_max_bytes=settings.tools.max_artifact_bytes,
        output_buffer_bytes=settings.tools.output_buffer_bytes,
        max_file_size_bytes=settings.limits.max_file_size_bytes or None,
        secret_env=environment.secret_variables(settings),
        env_passthrough=frozenset(settings.tools.env_passthrough),
        env_allowed=environment.variables_to_allow(settings),
        temporary=machine.temporary,
        on_output=live_output.take,
        guard_processes=guards,
        families=environment.families_of(settings),
        native_roots=environment.native_roots(settings, resolved.workspace) if NATIVE in settings.host.toolset else (),
        native_tls_checks=settings.native.tls_checks,
        script_timeout_s=settings.skills.script_timeout_s,
        hidden_files=environment.hidden_files(settings) if SKILLS in settings.host.toolset else (),
        max_background=settings.tools.max_background_commands,
        background_lifetime_s=settings.tools.background_lifetime_s or None,
    )
