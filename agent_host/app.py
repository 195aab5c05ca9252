"""The composition root: settings in, a session with all its collaborators out. Only this module knows the runtime."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.approval.gate import UnattendedGate
from agent_host.errors import PolicyDenied, UsageError
from agent_host.events.emitter import Emitter
from agent_host.events.sinks import RunLog, next_event_id
from agent_host.llm.anthropic import AnthropicDialect
from agent_host.llm.client import GatewayTimeouts, LlmClient, TlsContext, checked_url, password_of
from agent_host.llm.retry import RetryPolicy
from agent_host.loop.cancellation import Cancellation
from agent_host.loop.context import LoopContext
from agent_host.routing.capabilities import TOOLS
from agent_host.routing.facts import Surroundings
from agent_host.scrub import Scrubber, take_from_environment
from agent_host.services.workspace import EmbeddedWorkspaceService
from agent_host.session.handshake import load_bundle
from agent_host.session.lifecycle import Session
from agent_host.session.opening import MOCK_PREFIX, Launch, open_store, state_errors_translated
from agent_host.thread.messages import decode
from agent_host.thread.thread import Thread
from agent_host.thread.tokens import TokenizerUnavailable, counter
from state.locations import SessionPaths
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import ToolDefinition
    from agent_host.events.emitter import Sink
    from agent_host.llm.stream import Dialect
    from agent_host.loop.context import TaskEnd
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.facts import ShellName
    from state.checkpoint import Checkpoint, SessionIdentity
    from state.file_session import FileSession

TOKEN_VARIABLE = "LLM_GATEWAY_AUTH_TOKEN"  # noqa: S105  the variable's name, not its value

_DIALECTS: dict[str, Callable[[], Dialect]] = {"anthropic": AnthropicDialect}
_SHELLS: dict[str, ShellName] = {
    "bash": "bash",
    "zsh": "zsh",
    "cmd.exe": "cmd",
    "cmd": "cmd",
    "powershell.exe": "powershell",
    "pwsh": "powershell",
}


class Gateway(NamedTuple):
    """Where the model is, and what its certificate is checked with, which is being made while a session opens."""

    url: str
    tls: TlsContext


@dataclass(frozen=True, slots=True)
class Finished:
    """A headless run that came to an end: the result object, what it changed, and where its records lie."""

    end: TaskEnd
    result: dict[str, Any]
    patch: str
    records: str


async def run_headless(
    launch: Launch,
    prompt: str | None,
    *,
    max_steps: int | None,
    sinks: Sequence[Sink],
    on_open: Callable[[Session], None],
    on_end: Callable[[Finished], None],
    gate: ApprovalGate | None = None,
) -> Finished:
    """One task from start to end: `prompt` starts a session, None resumes it. `gate` answers what needs an approval;
    without one nobody is there, and what was approved in advance is all that is.

    `on_end` tells the result while the checkpoint is still there: a process that dies in between leaves a session
    whose resume tells it again. Raises AgentHostError for what keeps the session from starting; everything later is in
    the result.
    """
    async with _gateway(launch) as url:
        gateway = Gateway(url, TlsContext(url))
        session = _open_session(launch, gateway, new=prompt is not None, sinks=sinks, gate=gate)
        end: TaskEnd | None = None
        try:
            on_open(session)
            if prompt is None:
                end = await session.resume(max_steps=max_steps)
            else:
                end = await session.run(prompt, max_steps=max_steps or launch.settings.integer("host.max_steps"))
            finished = Finished(end, session.result(end), session.patch(), session.records)
            on_end(finished)
            return finished
        finally:
            await session.close(end)


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


def _open_session(
    launch: Launch, gateway: Gateway, *, new: bool, sinks: Sequence[Sink], gate: ApprovalGate | None
) -> Session:
    gate = gate or UnattendedGate(launch.approvals, approve_all=launch.approve_all)
    shell = current.default_shell(os.environ)
    where = _surroundings(launch, shell)
    with state_errors_translated():
        paths = SessionPaths(launch.state_dir, launch.session_id)
    bundle = load_bundle(
        launch.settings, where, session_id=paths.session_id, state_dir=launch.state_dir, now=_utc_now()
    )
    model = _model(launch.settings, bundle)  # a wrong model or tokenizer is told before anything is on disk
    count = _counter(launch.settings)
    store = open_store(launch, bundle, where, count, new=new)
    try:
        return Session(_context(launch, gateway, where, shell, bundle, model, count, store, paths, sinks, gate), paths)
    except BaseException:
        store.close()
        raise


def _surroundings(launch: Launch, shell: str) -> Surroundings:
    home = os.path.expanduser("~")
    return Surroundings(
        workspace=launch.workspace,
        home=os.path.realpath(home) if os.path.isabs(home) else None,
        os_family=OS_FAMILY,
        shell=_SHELLS.get(os.path.basename(shell).lower(), "sh"),
    )


def _context(
    launch: Launch,
    gateway: Gateway,
    where: Surroundings,
    shell: str,
    bundle: PolicyBundle,
    model: str,
    count: Callable[[str], int],
    store: FileSession,
    paths: SessionPaths,
    sinks: Sequence[Sink],
    gate: ApprovalGate,
) -> LoopContext:
    settings, identity = launch.settings, store.state.identity
    retry_s = (settings.number("llm.retry_base_s"), settings.number("llm.retry_max_s"))
    token = take_from_environment(TOKEN_VARIABLE)
    router = LocalToolRouter(_runtime_settings(settings, launch.workspace, shell))
    definitions = router.get_available_tools()
    disabled = dict.fromkeys(settings.names("tools.disabled"), "tools.disabled in the configuration")
    dialect = _DIALECTS[settings.text("llm.dialect")]()
    head = dialect.head(
        model=model,
        max_tokens=bundle.llm_policy.max_output_tokens,
        system=decode(store.state.thread[0]).content,
        tools=_offered(definitions, bundle, disabled),
    )
    return LoopContext(
        store=store,
        thread=_thread(dialect, store.state),
        llm=_client(settings, gateway, token, dialect, identity.session_id),
        router=router,
        gate=gate,
        emitter=_emitter(identity, paths.events, sinks),
        workspace=EmbeddedWorkspaceService(paths.artifacts, store.blobs, workspace_id=identity.workspace_id),
        bundle=bundle,
        where=where,
        tools=frozenset(tool.tool_name for tool in definitions),
        disabled_tools=disabled,
        model=model,
        head=head,
        head_tokens=count(head.decode()),
        retry=RetryPolicy(settings.integer("llm.max_retries"), *retry_s),
        count=count,
        clock=_utc_now,
        cancellation=Cancellation(),
        scrubber=Scrubber([token, password_of(gateway.url)]),
        max_stored_bytes=settings.integer("host.max_stored_bytes"),
    )


def _thread(dialect: Dialect, state: Checkpoint) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over."""
    thread, step = Thread(dialect.renderer), state.open_step
    messages = map(decode, itertools.islice(state.thread, 1, None))
    still_open = None if step is None else step.position - 1
    thread.restore(messages, still_open=still_open, dropped=state.dropped_messages)
    return thread


def _emitter(identity: SessionIdentity, run_log: str, sinks: Sequence[Sink]) -> Emitter:
    emitter = Emitter(
        session_id=identity.session_id,
        workspace_id=identity.workspace_id,
        tenant_id=identity.tenant_id,
        user_id=identity.user_id,
        first_id=next_event_id(run_log),
    )
    emitter.attach([RunLog(run_log), *sinks])
    return emitter


def _offered(
    definitions: Sequence[ToolDefinition], bundle: PolicyBundle, disabled: Mapping[str, str]
) -> list[ToolDefinition]:
    """What the model is shown: only tools whose capability is granted (AH 5.2)."""
    return [
        tool
        for tool in definitions
        if tool.tool_name not in disabled
        and tool.tool_name in TOOLS
        and bundle.capability(TOOLS[tool.tool_name].capability) is not None
    ]


def _model(settings: Settings, bundle: PolicyBundle) -> str:
    allowed = bundle.llm_policy.allowed_models
    wanted = settings.text("llm.model") or allowed[0]
    if wanted not in allowed:
        raise PolicyDenied(f"--model {wanted} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
    return wanted


def _counter(settings: Settings) -> Callable[[str], int]:
    try:
        return counter(settings.text("llm.tokenizer"))
    except TokenizerUnavailable as error:
        raise UsageError(f"llm.tokenizer: {error}") from error


def _client(settings: Settings, gateway: Gateway, token: str | None, dialect: Dialect, session_id: str) -> LlmClient:
    timeouts = GatewayTimeouts(settings.number("llm.connect_timeout_s"), settings.number("llm.read_timeout_s"))
    return LlmClient(gateway.url, token, dialect, session_id=session_id, timeouts=timeouts, tls=gateway.tls)


def _runtime_settings(settings: Settings, workspace: str, shell: str) -> RuntimeSettings:
    return RuntimeSettings(
        workspace=workspace,
        shell=shell,
        file_timeout_s=settings.number("tools.file_timeout_s"),
        command_timeout_s=settings.number("tools.command_timeout_s"),
        http_timeout_s=settings.number("tools.http_timeout_s"),
        max_output_bytes=settings.integer("tools.max_output_bytes"),
        max_file_size_bytes=settings.integer("limits.max_file_size_bytes") or None,
        secret_env=frozenset({TOKEN_VARIABLE}),
        env_passthrough=frozenset(settings.names("tools.env_passthrough")),
    )


def _utc_now() -> datetime:
    return datetime.now(UTC)
