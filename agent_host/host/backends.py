"""The backend services of one process, over HTTP where the environment names one, else embedded on this disk; and the
gateway."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

from agent_host.errors import SessionNotFound, UsageError
from agent_host.events.emitter import Losses
from agent_host.http import TlsContext, displayable_url
from agent_host.llm.known_dialects import check_url, gateway_name, provider_of
from agent_host.services import endpoints
from agent_host.services.session import (
    ApprovalReporter,
    EmbeddedApprovalService,
    EmbeddedSessionService,
    HttpApprovalService,
    HttpSessionService,
)
from agent_host.services.workspace import EmbeddedWorkspaceService, HttpWorkspaceService, UploadLimits, UploadQueue
from config.lean_typing import NamedTuple
from config.settings import MOCK_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agent_host.events.emitter import Sink
    from agent_host.events.otel import OtelSink
    from agent_host.host.remote_tools import ToolService
    from agent_host.host.secrets import Tokens
    from agent_host.ids import Outside
    from agent_host.services.http import ServiceClient
    from agent_host.services.session import SessionService
    from agent_host.services.workspace import ArtifactHome
    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from state import SessionPaths
    from state.blobs import BlobFolder
    from state.checkpoint import SessionIdentity

NO_GATEWAY = (
    "`agent-host init` sets a provider up; or set ANTHROPIC_API_KEY or OPENAI_API_KEY, give --gateway URL, or set "
    "LLM_GATEWAY_ENDPOINT"
)


class Stores(NamedTuple):
    """The places of a session's artifacts on this disk, and the way to the Workspace Service if that is another place
    (`uploads_elsewhere`)."""

    artifacts: ArtifactHome
    uploads: UploadQueue
    uploads_elsewhere: bool


class Backends:
    """Clients of the services that `environ` and the settings name; `tokens` are sent to them. Nothing is connected
    before its first use. `capability_grant` is what the Session Service gave last for the Backend Tool Service.

    Raises UsageError for a URL or a token that cannot be used.
    """

    def __init__(self, environ: Mapping[str, str], settings: Settings, tokens: Tokens, outside: Outside) -> None:
        self._urls = endpoints(environ)
        self._environ = environ
        self._settings = settings
        self._tokens = tokens
        self.capability_grant: str | None = None
        self._outside = outside
        self.losses = Losses(outside.monotonic)
        self._clients: dict[tuple[str, str | None], ServiceClient] = {}
        self._tls: TlsContext | None = None
        self._workspaces: dict[str, str] = {}
        self._traces: OtelSink | None = None

    @property
    def has_session_service(self) -> bool:
        """True if sessions are granted by a server."""
        return self._urls.session is not None

    def sessions(self) -> SessionService:
        """The service that grants sessions."""
        url = self._urls.session
        if url is None:
            return EmbeddedSessionService(self._workspace_of, self._outside.new_id)
        return HttpSessionService(self._client(url))

    def stores(self, identity: SessionIdentity, paths: SessionPaths, blobs: BlobFolder) -> Stores:
        """The stores of a session's artifacts."""
        url, settings = self._urls.workspace, self._settings
        limits = UploadLimits(
            settings.services.upload_max_pending_bytes,
            settings.services.upload_max_behind_s,
            settings.services.upload_end_s,
        )
        here = EmbeddedWorkspaceService(
            paths.artifacts, blobs, workspace_id=identity.workspace_id, outside=self._outside
        )
        if url is None:
            only_histories = limits._replace(max_pending_bytes=sys.maxsize)
            return Stores(here, UploadQueue(here, only_histories), uploads_elsewhere=False)
        service = HttpWorkspaceService(self._client(url), identity.workspace_id, identity.session_id)
        return Stores(here, UploadQueue(service, limits), uploads_elsewhere=True)

    def approvals(self, paths: SessionPaths) -> ApprovalReporter:
        """The reporter of decisions."""
        url = self._urls.approval
        home = EmbeddedApprovalService(paths.approvals) if url is None else HttpApprovalService(self._client(url))
        reporter = ApprovalReporter(home)
        where = paths.approvals if url is None else f"the approval service ({displayable_url(url)})"
        self.losses.watch(where, reporter)
        return reporter

    def tool_service(self) -> ToolService | None:
        """The Backend Tool Service, None where there is none. Raises UsageError for a key of grants that is none."""
        url = self._urls.backend_tools
        if url is None:
            return None
        from agent_host.capability_grants import KEY_VARIABLE, grant_key
        from agent_host.host.remote_tools import ToolService

        client, key = self._client_with(url, self._tokens.tools), self._tokens.grant_key
        key_bytes = None if key is None else grant_key({KEY_VARIABLE: key})
        return ToolService(url, client, key_bytes, lambda: self.capability_grant, self._outside)

    def observers(self, gateway: str, paths: SessionPaths, dialect: str) -> list[Sink]:
        """Sinks of the Audit and Telemetry Services and of OpenTelemetry, as far as there are such, for the session at
        `paths` whose gateway has the URL `gateway` and speaks `dialect`."""
        urls = (self._urls.audit, self._urls.telemetry)
        traced = any(name.startswith("OTEL_") for name in self._environ)
        if urls == (None, None) and not traced:
            return []
        from agent_host.events import outbox, payloads
        from agent_host.services.http import HttpEventService

        found: list[Sink] = []
        for url, service, kinds, shape in (
            (self._urls.audit, "audit", payloads.AUDIT_EVENTS, payloads.AuditRecords()),
            (self._urls.telemetry, "telemetry", payloads.TELEMETRY_EVENTS, payloads.telemetry_line),
        ):
            if url is not None:
                post = HttpEventService(self._client(url), f"/{service}/events").post
                sink = outbox.BatchedSink(post, kinds, shape=shape)
                self.losses.watch(f"the {service} service ({displayable_url(url)})", sink)
                found.append(sink)
        if not traced:
            return found
        from agent_host.events.otel import otel_sink

        provider = provider_of(dialect)
        traces = otel_sink(self._environ, provider=provider, gateway=gateway, trace_file=paths.trace)
        if traces is None:
            return found
        self._traces = traces
        self.losses.watch("OpenTelemetry", traces)
        return [*found, traces]

    def delivery_problems(self) -> list[str]:
        """One line for each observer that did not get all there was; complete once they are closed."""
        lines = [str(loss) for loss in self.losses.so_far()]
        if self._traces is not None and self._traces.unusable is not None:
            lines.append(self._traces.unusable)
        return lines

    def know(self, identity: SessionIdentity) -> None:
        """The session is on this disk; the embedded Session Service may grant its resume."""
        self._workspaces[identity.session_id] = identity.workspace_id

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    def _client(self, url: str) -> ServiceClient:
        return self._client_with(url, self._tokens.services)

    def _client_with(self, url: str, token: str | None) -> ServiceClient:
        """One client a URL: services behind one address share their connections, where they take one token."""
        if (url, token) not in self._clients:
            from agent_host.services.http import ServiceClient

            if self._tls is None and url.startswith("https:"):
                self._tls = TlsContext(url)
            tls = self._tls if url.startswith("https:") else None
            limits = self._settings.services
            self._clients[url, token] = ServiceClient(
                url,
                token,
                outside=self._outside,
                timeout_s=limits.timeout_s,
                retries=limits.max_retries,
                retry_base_s=limits.retry_base_s,
                retry_max_s=limits.retry_max_s,
                tls=tls,
            )
        return self._clients[url, token]

    def _workspace_of(self, session_id: str) -> str:
        try:
            return self._workspaces[session_id]
        except KeyError:
            raise SessionNotFound(f"there is no session {session_id} on this machine") from None


@contextlib.asynccontextmanager
async def serving_gateway(resolved: ResolvedOptions) -> AsyncIterator[str]:
    """The gateway's URL; `mock:FILE` starts the scripted one in this process for as long."""
    url = resolved.settings.llm.gateway
    if not url:
        raise UsageError(f"no LLM gateway: {NO_GATEWAY}")
    if url.startswith(MOCK_PREFIX):
        from agent_host.testing import gateway as scripted

        named = gateway_name(resolved.settings)
        if url == MOCK_PREFIX:
            raise UsageError(f"{named} {url}: name the script after it: mock:FILE")
        try:
            script = scripted.Script.load(url.removeprefix(MOCK_PREFIX), {"workspace": resolved.workspace})
        except scripted.ScriptError as error:
            raise UsageError(*(f"{named} {MOCK_PREFIX}{problem}" for problem in error.problems)) from error
        async with scripted.MockGateway(script) as gateway:
            yield gateway.url
    else:
        check_url(url, gateway_name(resolved.settings))
        yield url
