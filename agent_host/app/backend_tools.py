"""The Backend Tool Service in a session (AH 7.6): where it is, what it is shown of the session, and what a call of its
tools may take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agent_host.app.native import families_of
from agent_host.capability_grants import GRANT_HEADER, KEY_VARIABLE, CapabilityGrant, grant_key, signed
from agent_host.contracts import Need
from agent_host.retrying import RetryPolicy
from agent_host.services.endpoints import endpoints
from agent_host.session.opening import LOCAL
from config.lean_typing import NamedTuple
from policy.rules.sent_elsewhere import sent_elsewhere
from state.tool_lists import ToolLists
from tool_runtime.backend.answers import CAPABILITY
from tool_runtime.backend.invocations import Terms as CallTerms
from tool_runtime.backend.source import NAME, BackendSource
from tool_runtime.families.catalogue import specs_of
from tool_runtime.remote import Terms, definition_of, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.app.elsewhere import ToolsElsewhere
    from agent_host.contracts import ToolSpec
    from agent_host.routing.judge import Judge
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import SessionIdentity
    from tool_runtime.backend.invocations import Service
    from tool_runtime.remote import RemoteTools

GRANT_S: Final = 900
"""For how long a grant holds that the host signs, unless the bundle ends sooner: longer than a call takes with all that
is tried again, and not long enough to be worth stealing."""
_MARGIN_S: Final = 5.0


class ToolService(NamedTuple):
    """The service at `url`, the key of grants, and `given`, which is asked for the Session Service's grant each time: a
    refresh of the session brings another."""

    url: str
    client: Service
    key: bytes | None
    given: Callable[[], str | None]

    @classmethod
    def at(cls, url: str, client: Service, key: str | None, given: Callable[[], str | None]) -> ToolService:
        """`key` is the text of AGENT_HOST_GRANT_KEY. Raises UsageError for one that cannot be used."""
        return cls(url, client, None if key is None else grant_key({KEY_VARIABLE: key}), given)

    def provider(
        self, elsewhere: ToolsElsewhere, judge: Judge, identity: SessionIdentity, settings: Settings
    ) -> RemoteTools:
        """The Provider of its tools, whose grants name the tenant of the judge's bundle. What is tried again is as for
        every service; a call's own time ends before that of the runtime, and says more."""
        longest_s, timeout_s = settings.number("services.retry_max_s"), settings.number("backend.timeout_s")
        retry = RetryPolicy(
            settings.integer("services.max_retries"), settings.number("services.retry_base_s"), longest_s, longest_s
        )
        grant = GrantMaker(identity, lambda: judge.bundle, self.given, self.key)
        terms = CallTerms(grant, GRANT_HEADER, identity.workspace_id, timeout_s, retry)
        return elsewhere.provider(
            BackendSource(self.client, terms), self.url, _terms(settings), stand_ins(settings, judge.bundle)
        )


def kept_tools(
    environ: Mapping[str, str], settings: Settings, bundle: PolicyBundle, state_dir: str
) -> tuple[ToolSpec, ...]:
    """The service's tools, as it listed them last. Nothing is connected. Raises UsageError for a URL that is none."""
    url = endpoints(environ).backend_tools
    if url is None:
        return ()
    lists, completed = ToolLists(state_dir, f"{NAME} {url}"), stand_ins(settings, bundle)
    newest = lists.newest()
    shapes = None if newest is None else lists.read(newest)
    specs = (spec_of(definition_of(shape), CAPABILITY, elsewhere=True) for shape in shapes or ())
    return tuple(completed(spec._replace(identity=None)) for spec in specs)  # who approved it is for a session to say


def _terms(settings: Settings) -> Terms:
    longest_s = settings.number("backend.timeout_s") + _MARGIN_S
    return Terms(CAPABILITY, True, longest_s, settings.number("backend.connect_timeout_s"))


def stand_ins(settings: Settings, bundle: PolicyBundle) -> Callable[[ToolSpec], ToolSpec]:
    """What makes of a tool that takes the place of one of this machine (`insteadOf`) one whose calls need what that one
    needs as well, and are judged by the same arguments."""
    sent = sent_elsewhere(bundle)
    here = {spec.name: spec for spec in specs_of(families_of(settings)) if not sent.isdisjoint(spec.capabilities)}

    def completed(spec: ToolSpec) -> ToolSpec:
        local = here.get(spec.name)
        if local is None:
            return spec
        return spec._replace(also=(Need(local.capability, local.subject), *local.also), category=local.category)

    return completed


class GrantMaker:
    """Makes the capability grant of each request: that which the Session Service gave, else one for the one tool, under
    the key of this host. The bundle of the moment names the tenant, and ends the grant at the latest."""

    def __init__(
        self,
        identity: SessionIdentity,
        bundle: Callable[[], PolicyBundle],
        given: Callable[[], str | None],
        key: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._bundle = bundle
        self._given = given
        self._key = key
        self._clock = clock

    def __call__(self, tool_name: str) -> str | None:
        """None where the host has neither."""
        given = self._given()
        if given is not None or self._key is None:
            return given
        bundle = self._bundle()
        who, tenant = self._identity, bundle.tenant_id
        tenant = who.tenant_id if tenant == LOCAL else tenant  # `local` is the user of this machine, whoever that is
        until = min(int(self._clock()) + GRANT_S, int(bundle.expires_at.timestamp()))
        grant = CapabilityGrant(tenant, who.session_id, (tool_name,), until, who.user_id, who.workspace_id)
        return signed(grant, self._key)
